"""Whatever order plugins are asked, pods attached and released in: no device is in the hands of two pods."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from remuda.api.errors import Refusal
from remuda.api.names import RESOURCE_GPU
from tests.unit.agent.scene import Scene, a_pod

SLICE = "nvidia.com/mig-1g.10gb"
PODS = ["a", "b", "c", "d"]

steps = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "attach", "release", "cut", "fail", "mend"]),
        st.sampled_from(PODS),
        st.booleans(),  # of whole devices, or of slices
        st.lists(st.integers(0, 15), min_size=1, max_size=3, unique=True),
    ),
    max_size=40,
)


@given(steps, st.sampled_from([1, 2]))
def test_no_device_is_in_two_hands(walk: list[tuple[str, str, bool, list[int]]], replicas: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(_walk(Path(root), walk, replicas))


async def _walk(root: Path, walk: list[tuple[str, str, bool, list[int]]], replicas: int) -> None:
    scene = Scene(root, sockets=False)
    await scene.slicer.cut("gpu-0", ["1g.10gb"] * 7)
    plugins = {RESOURCE_GPU: scene.plugin(replicas=replicas), SLICE: scene.plugin(SLICE)}
    held: dict[str, str] = {}  # id -> uid, as told
    for what, name, is_whole, numbers in walk:
        resource = RESOURCE_GPU if is_whole else SLICE
        listed = [device.id for device in plugins[resource].devices()]
        ids = [listed[n % len(listed)] for n in numbers] if listed else ["gpu-none"]
        uid = f"uid-{name}"
        others = {i for i, holder in held.items() if holder != uid}
        try:
            if what == "allocate":
                await plugins[resource].allocate(ids)
                assert held.keys().isdisjoint(ids)
            elif what == "attach":
                await scene.grants.attach(a_pod(name), "main", resource, ids)
                assert others.isdisjoint(ids)
                if listed:  # with none left of its resource, it is somebody else's plugin's
                    held |= dict.fromkeys(ids, uid)
            elif what == "cut":
                device = f"gpu-{numbers[0] % 2}"
                before = {row.uuid for row in scene.inventory.slices(device)}
                await scene.slicer.cut(device, ["1g.10gb"] * (numbers[-1] % 8))
                is_same = {row.uuid for row in scene.inventory.slices(device)} == before  # cut that way already
                assert is_same or not any(i.startswith(device) for i in held)
        except Refusal:
            pass
        if what == "release":
            scene.grants.release(uid)
            held = {i: holder for i, holder in held.items() if holder != uid}
        elif what in ("fail", "mend"):
            scene.backend.inject("gpu-3", "health-lost" if what == "fail" else "health-back")
        assert scene.grants.table.holders() == held
    scene.close()

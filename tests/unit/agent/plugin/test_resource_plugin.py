"""One plugin: what it lists, what it hands out, what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from remuda.agent.allocation.grant_records import GrantRecords
from remuda.agent.plugin.resource_plugin import ResourcePlugin
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG, RESOURCE_GPU
from remuda.link.allocation_port import FAIL, HANG, KILL, MEND
from remuda.link.device_plugin_port import HEALTHY, UNHEALTHY, Mount, PluginDevice
from tests.unit.agent.scene import Scene, a_pod

GPUS = [f"gpu-{i}" for i in range(8)]
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path, launcher="/opt/remuda/bin")
    yield made
    made.close()


def health(plugin: ResourcePlugin) -> dict[str, str]:
    return {device.id: device.health for device in plugin.devices()}


def unhealthy(plugin: ResourcePlugin) -> list[str]:
    return [name for name, state in health(plugin).items() if state != HEALTHY]


async def refused(plugin: ResourcePlugin, *devices: str) -> str:
    with pytest.raises(Refusal) as caught:
        await plugin.allocate(devices)
    assert caught.value.fix
    return caught.value.reason


# --- the list -----------------------------------------------------------------------------------------------------------


async def test_the_list_has_health_and_numa(scene: Scene) -> None:
    plugin = scene.plugin()
    assert plugin.devices()[0] == PluginDevice("gpu-0", HEALTHY, (0,))
    assert plugin.devices()[7] == PluginDevice("gpu-7", HEALTHY, (1,))
    assert (await plugin.options()).preferred_allocation_available


async def test_a_change_is_pushed_and_nothing_is_pushed_twice(scene: Scene) -> None:
    plugin = scene.plugin()
    stream = plugin.list_and_watch()
    assert len(await anext(stream)) == 8
    coming = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    scene.inventory.announce()  # nothing is new
    await asyncio.sleep(0)
    assert not coming.done()
    scene.backend.inject("gpu-3", "xid-79")
    pushed = await coming
    assert [d.id for d in pushed if d.health == UNHEALTHY] == ["gpu-3"]
    plugin.close()
    assert [devices async for devices in stream] == []
    assert plugin.streams == 0


async def test_row_51_one_device_off_the_bus_leaves_the_others(scene: Scene) -> None:
    plugin = scene.plugin()
    scene.backend.drop("gpu-5")
    assert unhealthy(plugin) == ["gpu-5"]
    assert list(health(plugin)) == GPUS  # still named: its holder must be found
    assert await plugin.preferred([g for g in GPUS if g != "gpu-5"], [], 7) == tuple(g for g in GPUS if g != "gpu-5")
    await plugin.allocate(["gpu-4"])
    scene.backend.restore("gpu-5")
    assert unhealthy(plugin) == []


async def test_row_52_a_device_with_something_left_on_it_is_withheld_until_clean(scene: Scene) -> None:
    plugin = scene.plugin()
    scene.backend.leave_behind("gpu-2")
    assert unhealthy(plugin) == ["gpu-2"]
    assert await refused(plugin, "gpu-2") == "DeviceNotHealthy"
    scene.backend.clean("gpu-2")
    assert unhealthy(plugin) == []
    await plugin.allocate(["gpu-2"])


async def test_row_54_a_parent_fails_all_its_slices_and_a_slice_only_itself(scene: Scene) -> None:
    await scene.slicer.cut("gpu-0", ["3g.40gb", "3g.40gb"])
    await scene.slicer.cut("gpu-1", ["3g.40gb"])
    plugin = scene.plugin(LARGE)
    first, second, other = (device.id for device in plugin.devices())
    scene.backend.inject(first, "xid-94")  # contained: no reason to withdraw anything
    assert unhealthy(plugin) == []
    scene.backend.inject(first, "ecc-dbe")
    assert unhealthy(plugin) == [first]
    scene.backend.inject("gpu-0", "xid-79")
    assert unhealthy(plugin) == [first, second]
    assert await refused(plugin, second) == "DeviceNotHealthy"
    await plugin.allocate([other])


# --- Allocate -----------------------------------------------------------------------------------------------------------


async def test_allocate_makes_the_place_and_says_where(scene: Scene) -> None:
    answer = await scene.plugin().allocate(["gpu-3", "gpu-1"])  # the kubelet's order means nothing
    uuids = [scene.inventory.rows[g].uuid for g in ("gpu-1", "gpu-3")]
    assert answer.envs == {
        "REMUDA_NODE": "node-01",
        "REMUDA_VISIBLE_DEVICES": "gpu-1,gpu-3",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids),
        "REMUDA_ALLOC_DIR": "/run/remuda/alloc",
    }
    directory = scene.root / "gpu-1_gpu-3"
    assert answer.mounts == (
        Mount("/run/remuda/alloc", str(directory), True),
        Mount("/run/remuda/bin", "/opt/remuda/bin", True),
    )
    assert answer.devices == ()  # nothing under /dev: there is no hardware
    assert (directory / "agent.sock").is_socket()


async def test_a_slice_is_seen_by_its_uuid(scene: Scene) -> None:
    await scene.slicer.cut("gpu-0", ["3g.40gb", "1g.10gb"])
    plugin = scene.plugin(LARGE)
    (piece,) = plugin.devices()
    env = (await plugin.allocate([piece.id])).envs
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == scene.inventory.rows[piece.id].uuid
    assert env["CUDA_VISIBLE_DEVICES"].startswith("MIG-")
    assert await refused(plugin, "gpu-1") == "UnknownDevice"
    assert await refused(scene.plugin(), "gpu-0") == "UnknownDevice"  # only the parent of slices now


@pytest.mark.parametrize(
    ("devices", "reason"),
    [(["gpu-9"], "UnknownDevice"), ([], "InvalidAllocation"), (["gpu-1", "gpu-1"], "InvalidAllocation")],
)
async def test_what_cannot_be_allocated_is_refused(scene: Scene, devices: list[str], reason: str) -> None:
    assert await refused(scene.plugin(), *devices) == reason
    assert not scene.root.exists()


async def test_row_19_a_device_is_not_handed_on_before_its_holder_is_gone(scene: Scene) -> None:
    plugin = scene.plugin()
    await plugin.allocate(["gpu-0", "gpu-1"])
    await scene.grants.attach(a_pod("a", 2), "main", RESOURCE_GPU, ["gpu-1", "gpu-0"])
    with pytest.raises(Refusal, match=r"gpu-1 of node-01 is held by default/a"):
        await plugin.allocate(["gpu-1"])
    scene.grants.release("uid-a")
    await plugin.allocate(["gpu-1"])


async def test_an_init_container_s_devices_are_its_app_s_too(scene: Scene) -> None:
    """The kubelet asks once for each, and says of neither whose it is."""
    plugin = scene.plugin()
    await plugin.allocate(["gpu-0"])
    await plugin.allocate(["gpu-0", "gpu-1"])
    pod = a_pod("a", 2, "gpu-0,gpu-1")
    await scene.grants.attach(pod, "main", RESOURCE_GPU, ["gpu-0", "gpu-1"])
    assert scene.grants.table.holders() == {"gpu-0": "uid-a", "gpu-1": "uid-a"}
    assert (scene.root / "gpu-0").is_dir()  # mounted into the init container


async def test_whose_it_is_goes_into_the_record_and_the_holding(scene: Scene) -> None:
    await scene.plugin().allocate(["gpu-0"])
    records = GrantRecords(scene.root.parent / "grants")
    assert records.read("gpu-0") is not None
    assert [path.name for path in (scene.root / "gpu-0").iterdir()] == ["agent.sock"]  # what the container is shown
    assert scene.grants.holdings() == []
    allocation = await scene.grants.attach(a_pod("a", 1, "gpu-4"), "main", RESOURCE_GPU, ["gpu-0"])
    assert allocation.directory == str(scene.root / "gpu-0")
    assert allocation.env["REMUDA_POD_UID"] == "uid-a"
    record = records.read("gpu-0")
    assert record is not None
    assert (record.uid, record.pod, record.container) == ("uid-a", "default/a", "main")
    (holding,) = scene.grants.holdings()
    assert (holding.devices, holding.chosen) == (["gpu-0"], ["gpu-4"])  # KubeletChoseOtherDevices
    news = scene.news
    await scene.grants.attach(a_pod("a", 1, "gpu-4"), "main", RESOURCE_GPU, ["gpu-0"])
    assert scene.news == news  # said before


async def test_a_simulated_pod_leaves_nothing_on_the_disk(scene: Scene) -> None:
    await scene.plugin().allocate(["gpu-0"])
    allocation = await scene.grants.attach(a_pod("a"), "main", RESOURCE_GPU, ["gpu-0"], simulated=True)
    assert allocation.directory == ""
    assert list(scene.root.iterdir()) == []
    assert "REMUDA_ALLOC_DIR" not in allocation.env


async def test_a_place_without_sockets_touches_no_disk(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sockets=False)
    answer = await scene.plugin().allocate(["gpu-0"])
    assert answer.mounts == ()
    assert "REMUDA_ALLOC_DIR" not in answer.envs
    await scene.grants.attach(a_pod("a"), "main", RESOURCE_GPU, ["gpu-0"])
    scene.grants.release("uid-a")
    assert not scene.root.exists()


# --- preference and replicas --------------------------------------------------------------------------------------------


async def test_the_scheduler_s_choice_is_preferred(scene: Scene) -> None:
    plugin = scene.plugin()
    scene.bound = [a_pod("a", 2, "gpu-2,gpu-5")]
    assert await plugin.preferred(GPUS, [], 2) == ("gpu-2", "gpu-5")
    await plugin.allocate(["gpu-2", "gpu-5"])
    await scene.grants.attach(scene.bound[0], "main", RESOURCE_GPU, ["gpu-2", "gpu-5"])
    assert "gpu-2" not in await plugin.preferred([g for g in GPUS if g not in ("gpu-2", "gpu-5")], [], 2)


@pytest.mark.parametrize("error", [OSError("the API is away"), TimeoutError()])
async def test_row_18_pods_that_cannot_be_listed_fail_nobody(scene: Scene, error: Exception) -> None:
    scene.pods_error = error
    assert len(await scene.plugin().preferred(GPUS, ["gpu-7"], 2)) == 2


async def test_replicas_share_a_device_and_the_ledger_s_row_stays_the_device(scene: Scene) -> None:
    plugin = scene.plugin(replicas=4)
    assert len(plugin.devices()) == 32
    assert plugin.devices()[1] == PluginDevice("gpu-0::1", HEALTHY, (0,))
    env = (await plugin.allocate(["gpu-0::1"])).envs
    assert (env["REMUDA_VISIBLE_DEVICES"], env["CUDA_VISIBLE_DEVICES"]) == ("gpu-0", "0")
    await scene.grants.attach(a_pod("a", 1, "gpu-0"), "main", RESOURCE_GPU, ["gpu-0::1"])
    await plugin.allocate(["gpu-0::2"])
    await scene.grants.attach(a_pod("b", 1, "gpu-0"), "main", RESOURCE_GPU, ["gpu-0::2"])
    assert [(h.pod, h.devices, h.chosen) for h in scene.grants.holdings()] == [
        ("default/a", ["gpu-0"], []),
        ("default/b", ["gpu-0"], []),
    ]
    assert await refused(plugin, "gpu-0::1") == "DeviceHeld"
    assert await refused(plugin, "gpu-1") == "UnknownDevice"
    scene.backend.inject("gpu-0", "xid-79")
    assert unhealthy(plugin) == [f"gpu-0::{n}" for n in range(4)]


@pytest.mark.parametrize("replicas", [0, -1, 1000])
def test_silly_replicas_are_refused(tmp_path: Path, replicas: int) -> None:
    with pytest.raises(Refusal, match="InvalidReplicas"):
        Scene(tmp_path).plugin(replicas=replicas)


# --- drills -------------------------------------------------------------------------------------------------------------


async def test_drills(scene: Scene) -> None:
    plugin = scene.plugin()
    plugin.inject(FAIL)
    assert await refused(plugin, "gpu-0") == "AllocateFailed"
    plugin.inject(HANG)
    asked = asyncio.create_task(plugin.allocate(["gpu-0"]))
    stream = plugin.list_and_watch()
    await anext(stream)
    assert not asked.done()
    plugin.inject(KILL)
    assert [devices async for devices in stream] == []
    with pytest.raises(Refusal, match="PluginGone"):
        await plugin.allocate(["gpu-0"])
    plugin.inject(MEND)
    await asked
    with pytest.raises(Refusal, match="UnknownPluginFault"):
        plugin.inject("melt")


# --- cutting ------------------------------------------------------------------------------------------------------------


async def test_row_55_a_held_device_is_not_cut_and_slices_come_and_go_exactly_once(scene: Scene) -> None:
    whole = scene.plugin()
    await whole.allocate(["gpu-0"])
    await scene.grants.attach(a_pod("a"), "main", RESOURCE_GPU, ["gpu-0"])
    with pytest.raises(Refusal, match=r"DeviceInUse: gpu-0 .* held by default/a"):
        await scene.slicer.cut("gpu-0", ["1g.10gb"] * 7)
    scene.grants.release("uid-a")
    await scene.slicer.cut("gpu-0", ["1g.10gb"] * 7)
    small = scene.plugin(SMALL)
    before = {row.uuid for row in scene.inventory.slices("gpu-0")}
    assert (len(whole.devices()), len(small.devices()), len(before)) == (7, 7, 7)
    await small.allocate([small.devices()[0].id])
    with pytest.raises(Refusal, match="DeviceInUse"):
        await scene.slicer.cut("gpu-0", [])
    scene.grants.drop(small.devices()[0].id)
    await scene.slicer.cut("gpu-0", ["3g.40gb"])
    assert (len(small.devices()), len(scene.plugin(LARGE).devices())) == (0, 1)
    assert before.isdisjoint(row.uuid for row in scene.inventory.slices("gpu-0"))
    await scene.slicer.cut("gpu-0", [])
    assert len(whole.devices()) == 8


async def test_a_layout_that_cannot_be_leaves_everything_as_it_was(scene: Scene) -> None:
    with pytest.raises(Refusal):
        await scene.slicer.cut("gpu-0", ["7g.80gb", "1g.10gb"])
    with pytest.raises(Refusal, match="UnknownMigProfile"):
        await scene.slicer.cut("gpu-0", ["3g.30gb"])
    assert len(scene.plugin().devices()) == 8
    assert unhealthy(scene.plugin()) == []


async def test_pods_of_a_gang_that_got_each_other_s_devices_have_what_was_chosen(scene: Scene) -> None:
    plugin = scene.plugin()
    pods = [in_gang(a_pod(name, 1, device)) for name, device in (("a", "gpu-0"), ("b", "gpu-1"), ("c", "gpu-2"))]
    for pod, device in zip(pods, ("gpu-1", "gpu-2", "gpu-5"), strict=True):
        await plugin.allocate([device])
        await scene.grants.attach(pod, "main", RESOURCE_GPU, [device], beside=pods)
    assert {holding.pod: holding.chosen for holding in scene.grants.holdings()} == {
        "default/a": [],
        "default/b": [],
        "default/c": ["gpu-2"],  # nobody chose gpu-5
    }
    corrected = in_gang(a_pod("c", 1, "gpu-5"))  # as the manager names it afterwards
    await scene.grants.attach(corrected, "main", RESOURCE_GPU, ["gpu-5"], beside=[*pods[:2], corrected])
    assert [holding.chosen for holding in scene.grants.holdings()][-1] == ["gpu-2"]


async def test_the_choice_for_another_gang_s_pod_does_not_count(scene: Scene) -> None:
    mine, other = in_gang(a_pod("a", 1, "gpu-0")), in_gang(a_pod("b", 1, "gpu-1"), "other")
    await scene.plugin().allocate(["gpu-1"])
    await scene.grants.attach(mine, "main", RESOURCE_GPU, ["gpu-1"], beside=[mine, other])
    assert [holding.chosen for holding in scene.grants.holdings()] == [["gpu-0"]]


def in_gang(pod: Pod, gang: str = "g") -> Pod:
    labels = {**pod.labels, LABEL_GANG: gang}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))

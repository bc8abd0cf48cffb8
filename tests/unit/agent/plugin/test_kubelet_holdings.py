"""Who has what: grants against podresources, bound pods and launchers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from remuda.agent.allocation.allocation_table import Grant
from remuda.agent.allocation.checkpoint_places import allocate_checkpoint_place
from remuda.agent.plugin import kubelet_holdings as module
from remuda.agent.plugin.kubelet_holdings import (
    HoldingFindings,
    KubeletHoldings,
    PodResourcesClient,
    compare_kubelet_holdings,
)
from remuda.agent.plugin.resource_plugin import ResourcePlugin
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import OwnerReference
from remuda.api.names import ANNOTATION_LAUNCH, RESOURCE_GPU
from remuda.launch.protocol import Hello, encode_launch_message
from remuda.link.device_plugin_port import UNHEALTHY, ContainerDevices
from tests.builders.waiting import PATIENCE_S
from tests.unit.agent.plugin.kubelet import PodResources
from tests.unit.agent.scene import NOW, Scene, a_pod, short_directory


def a_row(pod: str, *devices: str, resource: str = RESOURCE_GPU) -> ContainerDevices:
    return ContainerDevices("default", pod, "main", resource, devices)


def a_grant(uid: str, *devices: str, at: float = NOW) -> Grant:
    return Grant(devices, f"uid-{uid}" if uid else "", f"default/{uid}" if uid else "", RESOURCE_GPU, "main", at=at)


def compared(
    grants: Sequence[Grant],
    rows: Sequence[ContainerDevices],
    pods: Sequence[Pod] = (),
    *,
    known: Sequence[str] = (),
    connected: Sequence[str] = (),
    met: Sequence[str] = (),
    now: float = NOW,
    asked: Sequence[str] = (),
) -> HoldingFindings:
    return compare_kubelet_holdings(
        grants,
        rows,
        pods,
        is_ours=lambda device: device.startswith("gpu-"),
        is_known=lambda uid: uid in known,
        is_connected=lambda uid: uid in connected,
        has_met=lambda name: name in met,
        now=now,
        asked=frozenset(asked),
    )


# --- one look -----------------------------------------------------------------------------------------------------------


def test_a_grant_is_the_pod_s_whom_the_kubelet_names() -> None:
    pod = a_pod("a", started=True)
    found = compared([a_grant("", "gpu-0")], [a_row("a", "gpu-0")], [pod])
    assert found == HoldingFindings(attach=((pod, a_row("a", "gpu-0")),))


def test_not_before_the_pod_s_admission_is_over() -> None:
    """Its app container may be given its init container's devices by a call that names nobody."""
    pod = a_pod("a")
    assert compared([a_grant("", "gpu-0")], [a_row("a", "gpu-0")], [pod]) == HoldingFindings()
    assert compared([a_grant("", "gpu-0")], [a_row("a", "gpu-0")], [pod], met=["gpu-0"]).attach


def test_a_known_one_is_left_alone_and_one_from_before_a_restart_is_attached_again() -> None:
    grant, row, pod = a_grant("a", "gpu-0"), a_row("a", "gpu-0"), a_pod("a")
    assert compared([grant], [row], [pod], known=["uid-a"]) == HoldingFindings()
    assert compared([grant], [row], [pod]).attach == ((pod, row),)


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    reborn = a_pod("a", uid="uid-2", started=True)
    found = compared([a_grant("a", "gpu-0")], [a_row("a", "gpu-0")], [reborn], known=["uid-a"])
    assert found == HoldingFindings()


def test_a_kubelet_that_lists_nothing_yet_frees_nothing() -> None:
    """As a real one does for a second after its restart; the API still has the pod."""
    pod = a_pod("a", started=True)
    assert compared([a_grant("a", "gpu-0")], [], [pod], known=["uid-a"]) == HoldingFindings()
    assert compared([a_grant("a", "gpu-0")], [], [pod], known=["uid-a"], connected=["uid-a"]) == HoldingFindings()


def test_a_pod_that_is_gone_is_released_unless_its_launcher_lives() -> None:
    assert compared([a_grant("a", "gpu-0")], []).release == ("uid-a",)
    found = compared([a_grant("a", "gpu-0")], [], connected=["uid-a"])
    assert (found.release, found.draining) == ((), {"gpu-0": "default/a"})


def test_row_6_a_kubelet_that_restarts_and_lists_nothing_frees_nothing() -> None:
    grant, pod = a_grant("a", "gpu-0"), a_pod("a", started=True)
    assert compared([grant], [], [pod], known=["uid-a"], connected=["uid-a"]) == HoldingFindings()
    assert compared([grant], [], [pod], known=["uid-a"]) == HoldingFindings()
    # It knows what it does when it hands the device out again, even if the API has not heard of the pod's end.
    assert compared([grant], [], [pod], known=["uid-a"], asked=["gpu-0"]).release == ("uid-a",)
    assert compared([grant], [], [pod], known=["uid-a"], connected=["uid-a"], asked=["gpu-0"]).draining


def test_one_container_of_a_pod_that_ended_is_not_the_pod_s_end() -> None:
    grants = [a_grant("a", "gpu-0"), a_grant("a", "gpu-1")]
    assert compared(grants, [a_row("a", "gpu-0")], [a_pod("a")], known=["uid-a"]).release == ()


def test_a_grant_whose_pod_never_came_is_dropped_after_a_while() -> None:
    late = NOW + module.UNCLAIMED_S
    assert compared([a_grant("", "gpu-0")], [], now=late - 1).drop == ()
    assert compared([a_grant("", "gpu-0")], [], now=late).drop == ("gpu-0",)
    # An init container's share of what its pod has is in nobody's list and in use all the same.
    rows = [a_row("a", "gpu-0", "gpu-1")]
    assert compared([a_grant("", "gpu-0")], rows, now=late).drop == ()


def test_row_28_the_same_id_of_another_resource_is_another_thing() -> None:
    row = a_row("a", "gpu-0", resource="vendor.com/gpu")
    found = compared([a_grant("b", "gpu-0")], [row], [a_pod("a", started=True)], known=["uid-b"], connected=["uid-b"])
    assert found.attach == ()
    assert found.strangers == (row,)


def test_what_is_none_of_ours_is_passed_over() -> None:
    assert compared([], [a_row("a", "nic-0"), a_row("b")], [a_pod("a")]) == HoldingFindings()


# --- with sockets -------------------------------------------------------------------------------------------------------


class Rig:
    def __init__(self, scene: Scene, service: PodResources) -> None:
        self.scene = scene
        self.service = service
        self.plugin: ResourcePlugin = scene.plugin()
        self.news = asyncio.Event()
        self.holdings = KubeletHoldings(
            scene.grants,
            scene.inventory,
            scene.launchers,
            resources=PodResourcesClient(str(service.socket), within_s=PATIENCE_S),
            pods=scene.pods,
            clock=scene.clock,
            changed=self.news.set,
            spacing_s=0.01,
        )
        scene.grants.recheck = self.holdings.look
        scene.launchers.links.meet = self.holdings.meet
        self.writers: list[asyncio.StreamWriter] = []

    async def hello(self, directory: str, pod: str) -> asyncio.StreamReader:
        """A launcher in a container that has the directory mounted."""
        fd = os.open(self.scene.root / directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{fd}/agent.sock")
        finally:
            os.close(fd)
        self.writers.append(writer)
        writer.write(encode_launch_message(Hello(pod, f"uid-{pod}", 42, "parked", 0)))
        return reader

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
        self.writers.clear()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Looks at every turn of the loop that brings something: what is waited for comes over sockets."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.turn()

    async def turn(self) -> None:
        await asyncio.sleep(0.005)

    async def run(self, *devices: str, pod: str = "a") -> None:
        """A pod from Allocate to its launcher's hello."""
        await self.plugin.allocate(devices)
        self.service.rows.append(a_row(pod, *devices))
        self.scene.bound = [*self.scene.bound, a_pod(pod, len(devices), ",".join(devices))]
        await self.hello("_".join(devices), pod)


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    with short_directory() as directory:
        scene = Scene(tmp_path, shared=True)
        scene.launchers.open(())
        service = PodResources(directory / "kubelet.sock")
        await service.start()
        made = Rig(scene, service)
        looking = asyncio.create_task(made.holdings.run())
        yield made
        made.hang_up()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        scene.close()
        await service.stop()


async def test_a_launcher_s_hello_finds_out_whose_the_allocation_is(rig: Rig) -> None:
    await rig.run("gpu-0", "gpu-1")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-a"))
    known = rig.scene.launchers.get("uid-a")
    assert known is not None
    assert (known.pod, known.gang, known.gpus, known.state) == ("a", "job", 2, "parked")
    assert [h.pod for h in rig.scene.grants.holdings()] == ["default/a"]
    assert (rig.scene.root / "gpu-0_gpu-1").stat().st_mode & 0o777 == 0o755
    assert (rig.scene.root / "gpu-0_gpu-1" / "agent.sock").stat().st_mode & 0o777 == 0o666


async def test_a_hello_with_another_pod_s_uid_is_sent_away(rig: Rig) -> None:
    await rig.plugin.allocate(["gpu-0"])
    rig.service.rows = [a_row("a", "gpu-0")]
    rig.scene.bound = [a_pod("a"), a_pod("b")]
    liar = await rig.hello("gpu-0", "b")
    async with asyncio.timeout(PATIENCE_S):
        try:
            assert await liar.read() == b""
        except ConnectionResetError:
            pass
    assert "uid-b" not in rig.scene.launchers


async def test_row_19_gone_for_the_kubelet_but_alive_is_draining_then_free(rig: Rig) -> None:
    await rig.run("gpu-0")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-a"))
    rig.service.rows.clear()
    rig.scene.bound = []
    with pytest.raises(Refusal, match=r"DeviceHeld: gpu-0 of node-01 is held by default/a"):
        await rig.plugin.allocate(["gpu-0"])
    assert [d.id for d in rig.plugin.devices() if d.health == UNHEALTHY] == ["gpu-0"]
    rig.hang_up()
    await rig.until(lambda: not rig.scene.launchers.is_connected("uid-a"))
    await rig.plugin.allocate(["gpu-0"])  # asks again by itself, and it is free
    assert [d.id for d in rig.plugin.devices() if d.health == UNHEALTHY] == []
    assert "uid-a" not in rig.scene.launchers


async def test_an_agent_that_starts_again_frees_nothing(rig: Rig, tmp_path: Path) -> None:
    await rig.run("gpu-0")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-a"))
    rig.scene.close()
    again = Scene(tmp_path, shared=True)
    again.launchers.open(())
    await again.grants.restore()
    assert again.grants.table.holders() == {"gpu-0": "uid-a"}
    next_rig = Rig(again, rig.service)
    again.bound = rig.scene.bound
    with pytest.raises(Refusal, match="DeviceHeld"):
        await next_rig.plugin.allocate(["gpu-0"])
    await next_rig.hello("gpu-0", "a")  # the launcher finds its socket in the same place
    await next_rig.holdings.look()
    await rig.until(lambda: again.launchers.is_connected("uid-a"))
    next_rig.hang_up()
    again.close()


@pytest.mark.parametrize("trouble", ["hangs", "garbage", "gone"])
async def test_a_kubelet_that_cannot_tell_changes_nothing(rig: Rig, trouble: str) -> None:
    await rig.run("gpu-0")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-a"))
    rig.hang_up()
    rig.service.rows.clear()
    client = PodResourcesClient(str(rig.service.socket), within_s=0.05)
    if trouble == "hangs":
        rig.service.hangs = True
    elif trouble == "garbage":
        rig.service.garbage = b"\xff\xff\xff"
    else:
        client = PodResourcesClient(str(rig.service.socket) + "-not", within_s=0.5)
    rig.holdings._resources = client
    await rig.holdings.look()
    assert rig.holdings.fault
    assert rig.scene.grants.table.holders() == {"gpu-0": "uid-a"}


async def test_it_asks_far_less_often_than_the_kubelet_allows(rig: Rig) -> None:
    await rig.run("gpu-0")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-a"))
    assert rig.service.asked <= 5


async def test_a_vendor_s_plugin_is_heard_by_uuid(rig: Rig) -> None:
    uuid = rig.scene.inventory.rows["gpu-3"].uuid
    rig.service.rows = [a_row("v", uuid, resource="nvidia.com/gpu")]
    await rig.holdings.look()
    assert rig.news.is_set()
    assert [(h.pod, h.devices) for h in rig.holdings.foreign()] == [("default/v", ["gpu-3"])]


async def test_a_pod_without_devices_has_a_directory_of_its_own_which_the_kubelet_may_have_made(rig: Rig) -> None:
    pod = a_pod("cpu", 0)
    pod.metadata.annotations[ANNOTATION_LAUNCH] = "container"
    directory = rig.scene.root / "pod-uid-cpu"
    directory.mkdir(parents=True, mode=0o750)
    (directory / "progress.json").write_text("{}")  # in use: its launcher was there first
    rig.scene.bound = [pod]
    rig.holdings.nudge()
    await rig.until(lambda: "uid-cpu" in rig.scene.launchers)
    await rig.hello("pod-uid-cpu", "cpu")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-cpu"))
    assert (directory / "progress.json").exists()
    assert directory.stat().st_mode & 0o777 == 0o755
    rig.scene.bound = []
    await rig.holdings.look()
    assert "uid-cpu" in rig.scene.launchers  # its launcher lives
    rig.hang_up()
    await rig.until(lambda: not rig.scene.launchers.is_connected("uid-cpu"))
    await rig.holdings.look()
    assert "uid-cpu" not in rig.scene.launchers
    assert not directory.exists()


def a_launched_pod(name: str, gpus: int) -> Pod:
    pod = a_pod(name, gpus, started=True)
    pod.metadata.annotations[ANNOTATION_LAUNCH] = "container"
    return pod


async def test_beside_a_vendor_s_plugin_a_pod_has_its_door_and_its_devices_are_known(rig: Rig) -> None:
    """Nothing of ours is asked when its devices are handed out; the launcher's door is by the pod's uid."""
    rig.holdings._hands_out = False
    uuids = [rig.scene.inventory.rows[device].uuid for device in ("gpu-3", "gpu-5")]
    rig.service.rows = [a_row("v", *uuids)]
    rig.scene.bound = [a_launched_pod("v", 2)]
    rig.holdings.nudge()
    await rig.until(lambda: "uid-v" in rig.scene.launchers)
    await rig.hello("pod-uid-v", "v")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-v"))
    known = rig.scene.launchers.get("uid-v")
    assert known is not None
    assert known.gpus == 2
    assert [(h.uid, h.devices) for h in rig.holdings.foreign()] == [("uid-v", ["gpu-3", "gpu-5"])]
    await rig.holdings.look()
    assert rig.scene.launchers.is_connected("uid-v")
    known = rig.scene.launchers.get("uid-v")
    assert known is not None
    assert known.gpus == 2


async def test_with_our_own_plugin_the_door_opens_when_the_devices_are_the_pod_s(rig: Rig) -> None:
    rig.scene.bound = [a_launched_pod("a", 1)]
    await rig.holdings.look()
    assert not rig.scene.grants.has_door("uid-a"), "its devices are nobody's yet"
    await rig.plugin.allocate(["gpu-0"])
    rig.service.rows = [a_row("a", "gpu-0")]
    await rig.holdings.look()
    assert rig.scene.grants.table.holders() == {"gpu-0": "uid-a"}
    await rig.hello("pod-uid-a", "a")
    await rig.until(lambda: rig.scene.launchers.is_connected("uid-a"))
    known = rig.scene.launchers.get("uid-a")
    assert known is not None
    assert known.gpus == 1
    # The kubelet still has the row of a pod that the API has forgotten: neither devices nor door are taken away.
    rig.hang_up()
    await rig.until(lambda: not rig.scene.launchers.is_connected("uid-a"))
    rig.scene.bound = []
    await rig.holdings.look()
    assert rig.scene.grants.table.holders() == {"gpu-0": "uid-a"}
    rig.service.rows = []
    await rig.holdings.look()
    assert rig.scene.grants.table.holders() == {}
    assert not (rig.scene.root / "pod-uid-a").exists()


async def test_a_door_is_open_again_after_the_agent_has_started_anew(rig: Rig, tmp_path: Path) -> None:
    rig.scene.bound = [a_launched_pod("a", 1)]
    await rig.plugin.allocate(["gpu-0"])
    rig.service.rows = [a_row("a", "gpu-0")]
    await rig.holdings.look()
    rig.scene.close()
    again = Scene(tmp_path, shared=True)
    again.launchers.open(())
    await again.grants.restore()
    next_rig = Rig(again, rig.service)
    again.bound = rig.scene.bound
    await next_rig.hello("pod-uid-a", "a")
    await next_rig.holdings.look()
    await rig.until(lambda: again.launchers.is_connected("uid-a"))
    next_rig.hang_up()
    again.close()


async def test_the_job_s_checkpoint_directory_takes_writes_of_any_user(rig: Rig, tmp_path: Path) -> None:
    """A kubelet that was first made it for root. Through a link nothing is made or opened."""
    rig.holdings._checkpoint_root = str(tmp_path / "ckpt")
    own = tmp_path / "ckpt" / "default" / "job-0123abcd"
    own.mkdir(parents=True, mode=0o755)
    owner = OwnerReference("remuda.dev/v1alpha1", "TrainingJob", "job", "0123abcd-rest", controller=True)
    pod = a_launched_pod("cpu", 0)
    rig.scene.bound = [replace(pod, metadata=replace(pod.metadata, owner_references=[owner]))]
    await rig.holdings.look()
    assert own.stat().st_mode & 0o777 == 0o777
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "ckpt" / "default" / "evil-0123abcd").symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        allocate_checkpoint_place(str(tmp_path / "ckpt"), "default", "evil", "0123abcd-rest")
    assert elsewhere.stat().st_mode & 0o777 == 0o700

"""Every drill on simulated nodes in virtual time: what it breaks is seen where a real fault would be, and undoing ends it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from remuda.api.conditions import is_condition_true
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.drills import DRILLS, Drill, DrillKind
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.names import RESOURCE_GPU
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import NAMESPACE, World, play

NODE = "node-01"
Story = Callable[[World], Coroutine[Any, Any, None]]


def state_of(world: World, device: str) -> tuple[DeviceState, str]:
    ledger = world._read(NodeDevices, NODE)
    assert ledger is not None
    found = [(v.state, v.reason) for v in ledger.verdicts if v.device == device]
    return found[0] if found else (DeviceState.UNKNOWN, "NotJudged")


def node_of(world: World) -> Node:
    found = world._read(Node, NODE)
    assert found is not None
    return found


def allocatable(world: World) -> int:
    return int(node_of(world).status.allocatable.get(RESOURCE_GPU, -1))


async def becomes(world: World, device: str, state: DeviceState) -> None:
    # A device that failed comes back after a probe and its soak only.
    within = 1500.0 if state is DeviceState.HEALTHY else 60.0
    await world.until(lambda: state_of(world, device)[0] is state, within, f"{device} is {state}")


async def undo(world: World) -> None:
    """The last drill, by its spec."""
    name = f"drill-{world._drills:03d}"
    await world.cluster.api.patch(Drill, name, {"spec": {"undo": True}})
    await world.until(lambda: world._drill(name).status.phase == "Undone", 10.0, f"{name} is undone")
    assert world._drill(name).status.reason == "TakenBack"


async def device_fail(world: World) -> None:
    await world.drill(DrillKind.DEVICE_FAIL, node=NODE, device="gpu-3", code="xid-79")
    await becomes(world, "gpu-3", DeviceState.UNHEALTHY)
    await world.until(lambda: allocatable(world) == 7, 10.0, "7 are left")
    await undo(world)
    await becomes(world, "gpu-3", DeviceState.HEALTHY)
    await world.until(lambda: allocatable(world) == 8, 10.0, "8 again")


async def device_drop(world: World) -> None:
    await world.drill(DrillKind.DEVICE_DROP, node=NODE, device="gpu-3")
    await becomes(world, "gpu-3", DeviceState.UNHEALTHY)
    assert state_of(world, "gpu-3")[1] == "DeviceMissing"
    await undo(world)
    await becomes(world, "gpu-3", DeviceState.HEALTHY)


async def device_flap(world: World) -> None:
    await world.drill(DrillKind.DEVICE_FLAP, node=NODE, device="gpu-3", times=3)
    await becomes(world, "gpu-3", DeviceState.HEALTHY)
    await world.drill(DrillKind.DEVICE_FLAP, node=NODE, device="gpu-3", times=1)
    await becomes(world, "gpu-3", DeviceState.QUARANTINED)
    assert state_of(world, "gpu-3")[1] == "DeviceFlapping"


async def ecc_trend(world: World) -> None:
    await world.drill(DrillKind.ECC_TREND, node=NODE, device="gpu-3", times=50_000)
    await becomes(world, "gpu-3", DeviceState.DEGRADED)


async def device_idle(world: World) -> None:
    await world.submit(replicas=1, gpus=2)
    await world.running()
    held = world.member("job", 0).devices[0]

    def since() -> object:
        return next(d.idle_since for d in world.devices(NODE).observed.devices if d.id == held)

    await world.sleep(600.0)
    assert since() is None
    await world.drill(DrillKind.DEVICE_IDLE, node=NODE, device=held)
    began = world.loop.clock()
    await world.until(lambda: since() is not None, 600.0, f"{held} is idle")
    assert world.loop.clock() - began >= 300.0
    await undo(world)
    await world.until(lambda: since() is None, 60.0, f"{held} is used again")


async def device_replace(world: World) -> None:
    def uuid() -> str:
        return next(d.uuid for d in world.devices(NODE).observed.devices if d.id == "gpu-3")

    before = uuid()
    await world.drill(DrillKind.DEVICE_FAIL, node=NODE, device="gpu-3", code="xid-79", heals="replace")
    await becomes(world, "gpu-3", DeviceState.UNHEALTHY)
    await world.drill(DrillKind.DEVICE_REPLACE, node=NODE, device="gpu-3")
    await world.until(lambda: uuid() != before, 10.0, "there is another device")
    await becomes(world, "gpu-3", DeviceState.HEALTHY)


async def steps_in(world: World, seconds: float) -> dict[str, int]:
    before = {uid: child.step for uid, child in world.children()}
    await world.sleep(seconds)
    return {uid: child.step - before[uid] for uid, child in world.children() if uid in before}


async def device_slow(world: World) -> None:
    await world.submit(replicas=2, gpus=4)
    await world.running()
    slow = world.member("job", 0)
    await world.drill(DrillKind.DEVICE_SLOW, node=slow.node, device=slow.devices[0], factor=4.0)
    await world.sleep(5.0)  # the step under way ends at its old pace
    taken = await steps_in(world, 40.0)
    assert taken.pop(slow.uid) == pytest.approx(10, abs=1)
    assert list(taken.values()) == [pytest.approx(40, abs=1)]
    await undo(world)
    await world.sleep(5.0)
    assert (await steps_in(world, 40.0))[slow.uid] == pytest.approx(40, abs=1)


async def power_cap(world: World) -> None:
    await world.submit(replicas=2, gpus=4)
    await world.running()
    await world.drill(DrillKind.POWER_CAP, node=NODE, factor=2.0)
    await world.sleep(5.0)
    assert set((await steps_in(world, 40.0)).values()) == {20}
    await undo(world)


async def plugin_kill(world: World) -> None:
    await world.drill(DrillKind.PLUGIN_KILL, node=NODE, resource=RESOURCE_GPU)
    await world.until(lambda: allocatable(world) == 0, 10.0, "nothing is offered")
    assert int(node_of(world).status.capacity[RESOURCE_GPU]) == 8
    assert {state_of(world, f"gpu-{n}")[0] for n in range(8)} == {DeviceState.HEALTHY}, "no device failed"
    await undo(world)
    await world.until(lambda: allocatable(world) == 8, 30.0, "8 again")


async def allocate_fail(world: World) -> None:
    await world.drill(DrillKind.ALLOCATE_FAIL, node=NODE, resource=RESOURCE_GPU)
    await world.submit(replicas=1, gpus=1)

    def rejected() -> bool:
        return any(p.status.reason == "UnexpectedAdmissionError" for p in world._read_all(Pod))

    await world.until(rejected, 30.0, "a pod is rejected")
    await undo(world)
    await world.running(within=120.0)


async def plugin_hang(world: World) -> None:
    await world.drill(DrillKind.PLUGIN_HANG, node=NODE, resource=RESOURCE_GPU)
    await world.submit(replicas=1, gpus=1)
    await world.sleep(3.0)
    assert not world.children()
    await undo(world)
    await world.running(within=120.0)


async def kubelet_restart(world: World) -> None:
    await world.submit(replicas=2, gpus=4)
    await world.running()
    before = {p.uid: p.status.container_statuses[0].restart_count for p in world._read_all(Pod)}
    await world.drill(DrillKind.KUBELET_RESTART, node=NODE)
    await world.sleep(30.0)
    after = {p.uid: p.status.container_statuses[0].restart_count for p in world._read_all(Pod)}
    assert after == before
    assert world.job().status.attempt == 1


async def node_reboot(world: World) -> None:
    await world.submit(replicas=2, gpus=4)
    await world.running()
    await world.drill(DrillKind.NODE_REBOOT, node=NODE)
    await world.until(lambda: world.job().status.attempt > 1, 60.0, "the gang recovers")
    await world.running(within=120.0)


async def node_partition(world: World) -> None:
    await world.submit(replicas=2, gpus=4)
    await world.running()
    attempt = world.job().status.attempt
    await world.drill(DrillKind.NODE_PARTITION, node=NODE, seconds=2.0)
    name = f"drill-{world._drills:03d}"
    await world.until(lambda: world._drill(name).status.phase == "Undone", 10.0, "it ends by itself")
    assert world._drill(name).status.reason == "TimeOver"
    await world.sleep(20.0)
    assert world.job().status.attempt == attempt, "shorter than the lease: nobody is moved"
    assert is_condition_true(node_of(world).status.conditions, "Ready")


async def spot_notice(world: World) -> None:
    await world.drill(DrillKind.SPOT_NOTICE, node=NODE, seconds=30.0)
    assert is_condition_true(node_of(world).status.conditions, "SpotTermination")
    await world.sleep(29.0)
    assert not world.cluster.machines.nodes[NODE].is_lost
    await world.sleep(2.0)
    assert world.cluster.machines.nodes[NODE].is_lost


async def maintenance_notice(world: World) -> None:
    await world.drill(DrillKind.MAINTENANCE_NOTICE, node=NODE, seconds=30.0)
    assert is_condition_true(node_of(world).status.conditions, "MaintenancePlanned")
    await undo(world)
    assert not is_condition_true(node_of(world).status.conditions, "MaintenancePlanned")


async def process_hang(world: World) -> None:
    await world.submit(replicas=2, gpus=4)
    await world.running()
    await world.drill(DrillKind.PROCESS_HANG, pod=world.member("job", 0).pod, namespace=NAMESPACE)
    victim = dict(world.children())[world.member("job", 0).uid]
    at = victim.step
    await world.sleep(10.0)
    assert victim.step == at
    await undo(world)
    await world.until(lambda: victim.step > at, 30.0, "it goes on")


async def device_fail_and_restart(world: World) -> None:
    """Whoever carried it out is gone, and so must be what it did."""
    await world.drill(DrillKind.DEVICE_FAIL, node=NODE, device="gpu-3", code="xid-79")
    await becomes(world, "gpu-3", DeviceState.UNHEALTHY)
    await world.power_cut()
    name = f"drill-{world._drills:03d}"
    await world.until(lambda: world._drill(name).status.phase == "Undone", 10.0, f"{name} is undone")
    assert world._drill(name).status.reason == "NodeRestarted"
    await becomes(world, "gpu-3", DeviceState.HEALTHY)


STORIES: dict[DrillKind, Story] = {
    DrillKind.PROCESS_HANG: process_hang,
    DrillKind.DEVICE_FAIL: device_fail,
    DrillKind.DEVICE_DROP: device_drop,
    DrillKind.DEVICE_FLAP: device_flap,
    DrillKind.DEVICE_SLOW: device_slow,
    DrillKind.DEVICE_IDLE: device_idle,
    DrillKind.DEVICE_REPLACE: device_replace,
    DrillKind.ECC_TREND: ecc_trend,
    DrillKind.POWER_CAP: power_cap,
    DrillKind.PLUGIN_KILL: plugin_kill,
    DrillKind.PLUGIN_HANG: plugin_hang,
    DrillKind.ALLOCATE_FAIL: allocate_fail,
    DrillKind.KUBELET_RESTART: kubelet_restart,
    DrillKind.NODE_REBOOT: node_reboot,
    DrillKind.NODE_PARTITION: node_partition,
    DrillKind.SPOT_NOTICE: spot_notice,
    DrillKind.MAINTENANCE_NOTICE: maintenance_notice,
}
ELSEWHERE = {DrillKind.PROCESS_KILL, DrillKind.LAUNCHER_KILL, DrillKind.POD_DELETE, DrillKind.NODE_LOST}


def test_every_drill_has_a_story() -> None:
    assert set(STORIES) | ELSEWHERE == set(DrillKind) == set(DRILLS)


def test_a_restart_takes_back_what_lasts() -> None:
    play(device_fail_and_restart, nodes=1, racks=1, behaviour=SimulatedBehaviour(step_s=1.0))


@pytest.mark.parametrize("kind", list(STORIES))
def test_drill(kind: DrillKind) -> None:
    play(STORIES[kind], nodes=1, racks=1, behaviour=SimulatedBehaviour(step_s=1.0))

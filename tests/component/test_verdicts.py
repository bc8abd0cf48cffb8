"""Verdicts through the whole control plane: findings, histories and suspects that outlive whoever found them."""

from __future__ import annotations

from typing import Any

from remuda.api.devices import DeviceState, NodeDevices, Signal, Verdict
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.names import ANNOTATION_TOLERATE_DEGRADED, RESOURCE_GPU
from remuda.api.remedies import Mode, Offender, RemedyPolicy, RemedyPolicySpec, Timers
from tests.builders.world import NAMESPACE, World, in_world


async def policy(world: World, **spec: Any) -> None:
    """Nothing is done to devices by itself: what they are called is looked at here."""
    found = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(mode=Mode.OBSERVE, **spec))
    await world.cluster.api.create(RemedyPolicy, found)
    await world.until(
        lambda: all(world.devices(node).verdicts for node in world.rack_of), what="everything is judged once"
    )


async def says(world: World, node: str, device: str, code: str) -> None:
    """No drill: that would be taken back when its node restarts."""
    world.cluster.machines.agents[node].inject_fault(device, code)
    await world.sleep(0.0)


def verdict(world: World, node: str, device: str = "gpu-0") -> Verdict:
    return next(v for v in world.devices(node).verdicts if v.device == device)


async def judged(world: World, node: str, state: DeviceState, reason: str = "", device: str = "gpu-0") -> None:
    def is_so() -> bool:
        found = verdict(world, node, device)
        return found.state is state and reason in ("", found.reason)

    await world.until(is_so, what=f"{node} {device} is {state} {reason}")


async def a_pod(world: World, name: str, gpus: int = 8, **annotations: str) -> None:
    container = {"name": "main", "image": "i", "resources": {"limits": {RESOURCE_GPU: gpus}}}
    meta = {"name": name, "namespace": NAMESPACE, "annotations": annotations}
    await world.cluster.api.create(Pod, {"metadata": meta, "spec": {"containers": [container]}})


def node_of(world: World, pod: str) -> str:
    found = world.pod(pod)
    return found.spec.node_name if found is not None else ""


@in_world(nodes=2, racks=1)
async def test_a_repeat_offender_stays_one_over_restarts_of_everything(world: World) -> None:
    await policy(world, offender=Offender(incidents=2))
    for _ in range(2):
        await says(world, "node-01", "gpu-0", "xid-48")
        await judged(world, "node-01", DeviceState.UNHEALTHY, "Xid48")
        await world.restart_control_plane()
        await world.sleep(10.0)
        await says(world, "node-01", "gpu-0", "probe-passed")
        await judged(world, "node-01", DeviceState.HEALTHY)
        await world.sleep(10.0)
    await says(world, "node-01", "gpu-0", "xid-48")
    await judged(world, "node-01", DeviceState.UNHEALTHY, "RepeatOffender")
    before = world.devices("node-01")
    assert len(before.history["gpu-0"].failures) == 3
    await world.power_cut(down_s=5.0)
    await world.restart_control_plane()
    await world.sleep(20.0)
    after = world.devices("node-01")
    assert (verdict(world, "node-01").reason, after.history, after.findings) == (
        "RepeatOffender",
        before.history,
        before.findings,
    )
    assert verdict(world, "node-01", "gpu-1").state is DeviceState.HEALTHY


@in_world(nodes=2, racks=1)
async def test_a_debounce_is_as_long_as_the_policy_says(world: World) -> None:
    await policy(world, timers=Timers(debounce_seconds=40.0))
    await says(world, "node-01", "gpu-0", "health-lost")
    await judged(world, "node-01", DeviceState.UNKNOWN, "HealthLost")
    begun = world.now
    await world.sleep(30.0)
    assert verdict(world, "node-01").state is DeviceState.UNKNOWN
    await judged(world, "node-01", DeviceState.UNHEALTHY, "HealthLost")
    assert 39.0 <= world.now - begun <= 42.0


@in_world(nodes=12, racks=4)
async def test_a_rack_that_fails_together_is_suspect_and_the_last_choice(world: World) -> None:
    await policy(world)
    rack = [node for node, name in world.rack_of.items() if name == "rack-1"]
    for node in rack:
        await says(world, node, "gpu-0", "xid-79")

    def suspects() -> list[tuple[str, str]]:
        return [(s.domain, s.reason) for s in world.cluster.control.verdicts.suspicion.suspects]

    expected = [("topology.remuda.dev/rack=rack-1", "RackSuspect")]
    await world.until(lambda: suspects() == expected, what="the rack is suspect")
    await world.restart_control_plane()
    await world.until(lambda: suspects() == expected, what="it is to the next manager, too")
    for number in range(9):  # seven GPUs each: any node would do
        await a_pod(world, f"p{number}", gpus=7)
    await world.until(lambda: all(node_of(world, f"p{n}") for n in range(9)), what="nine pods are placed")
    assert not {node_of(world, f"p{n}") for n in range(9)} & set(rack)
    await a_pod(world, "last", gpus=7)
    await world.until(lambda: node_of(world, "last") in rack, what="the last one goes where there is room")


@in_world(nodes=1, racks=1)
async def test_a_degraded_device_is_for_those_who_tolerate_it(world: World) -> None:
    await policy(world)
    slow = Signal("straggler", "straggler", "Rank 1 is slow.", to_time(world.loop.clock()))
    await world.cluster.api.patch(
        NodeDevices,
        "node-01",
        {"findings": {"gpu-3": [{"source": "straggler", "code": "straggler", "time": slow.time.isoformat()}]}},  # type: ignore[union-attr]
    )
    await judged(world, "node-01", DeviceState.DEGRADED, "SlowRank", "gpu-3")
    await a_pod(world, "careful", gpus=8)
    await world.sleep(15.0)
    assert node_of(world, "careful") == ""
    await a_pod(world, "easy", gpus=8, **{ANNOTATION_TOLERATE_DEGRADED: "true"})
    await world.until(lambda: node_of(world, "easy") == "node-01", what="the other one takes it")


@in_world(nodes=1, racks=1)
async def test_a_threshold_crossed_again_and_again_degrades_the_device(world: World) -> None:
    await policy(world)
    for _ in range(4):
        await says(world, "node-01", "gpu-0", "ecc-sbe-rate")
        await judged(world, "node-01", DeviceState.DEGRADED)
        await says(world, "node-01", "gpu-0", "ecc-quiet")
        await world.sleep(61.0)
    assert verdict(world, "node-01").reason == "EccTrend"
    assert "4 times" in verdict(world, "node-01").message

"""Drill objects, carried out on simulated nodes in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from remuda.api.drills import Drill
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.nodes import Rig, until
from tests.builders.pods import pod_wire
from tests.builders.runtimes import simulated

TRAIN = SimulatedBehaviour(start_s=0.2, child_start_s=0.5, step_s=1.0, checkpoint_every=5)


def play(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    """Two nodes; the pod `worker-0` trains on node-01."""
    loop = VirtualLoop()
    runtime = simulated(loop.clock, TRAIN, SimulatedCheckpoints())

    async def main() -> None:
        rig = Rig(loop.clock, deadline_s=600.0)
        for name in ("node-01", "node-02"):
            rig.add_node(runtime, name)
        async with rig.running():
            await rig.create(pod_wire(launch=True, gang="job", devices=("gpu-0",)))
            await scenario(rig)

    run_virtual(main(), loop)


async def training(rig: Rig) -> str:
    pod = await rig.running_pod()
    await until(lambda: bool(rig.agent.said(pod.uid, "hello")))
    rig.agent.links[pod.uid]({"type": "stop", "attempt": 1, "rank": 0, "checkpointDir": "/c"})
    rig.agent.links[pod.uid]({"type": "start", "attempt": 1, "env": {"REMUDA_RANK": "0"}})
    await until(lambda: bool(rig.agent.said(pod.uid, "heartbeat")))
    return pod.uid


async def drill(rig: Rig, kind: str, **spec: str) -> Drill:
    """Make the drill and wait for its end."""
    if "pod" in spec:
        spec.setdefault("namespace", "default")
    body = {"metadata": {"generateName": "drill-"}, "spec": {"type": kind, **spec}}
    made = await rig.cluster.create(Drill, body)
    return await rig.seen(Drill, made.name, lambda d: d.status.phase != "Pending")


def refused(done: Drill, reason: str) -> bool:
    return (done.status.phase, done.status.reason) == ("Refused", reason) and bool(done.status.message)


def test_process_kill_hits_the_child_and_not_the_launcher() -> None:
    async def scenario(rig: Rig) -> None:
        uid = await training(rig)
        done = await drill(rig, "process-kill", pod="worker-0")
        assert done.status.phase == "Done"
        assert done.status.time is not None
        assert to_seconds(done.status.time) <= rig.clock()
        await until(lambda: bool(rig.agent.said(uid, "exited")))
        (end,) = rig.agent.said(uid, "exited")
        assert (end["code"], end["signal"]) == (137, 9)
        pod = await rig.cluster.get(Pod, "worker-0", "default")
        assert pod.status.container_statuses[0].restart_count == 0

    play(scenario)


def test_process_hang_stops_progress_and_nothing_else() -> None:
    async def scenario(rig: Rig) -> None:
        uid = await training(rig)
        assert (await drill(rig, "process-hang", pod="worker-0", node="node-01")).status.phase == "Done"
        beats = len(rig.agent.said(uid, "heartbeat"))
        await asyncio.sleep(60)
        assert len(rig.agent.said(uid, "heartbeat")) == beats
        assert rig.agent.said(uid, "exited") == []
        rig.agent.links[uid]({"type": "stop", "attempt": 2, "rank": 0, "checkpointDir": "/c"})
        await until(lambda: rig.agent.said(uid, "ready")[-1]["attempt"] == 2)

    play(scenario)


def test_launcher_kill_ends_the_container_which_comes_back() -> None:
    async def scenario(rig: Rig) -> None:
        uid = await training(rig)
        assert (await drill(rig, "launcher-kill", pod="worker-0")).status.phase == "Done"
        pod = await rig.running_pod(restarts=1)
        assert pod.uid == uid
        assert ("exited", uid, 137) in rig.agent.calls
        await until(lambda: len(rig.agent.said(uid, "hello")) == 2)

    play(scenario)


def test_pod_delete_deletes_with_grace() -> None:
    async def scenario(rig: Rig) -> None:
        uid = await training(rig)
        assert (await drill(rig, "pod-delete", pod="worker-0")).status.phase == "Done"
        await rig.gone("worker-0")
        assert ("exited", uid, 143) in rig.agent.calls

    play(scenario)


def test_device_fail_goes_to_the_agent() -> None:
    async def scenario(rig: Rig) -> None:
        assert (await drill(rig, "device-fail", node="node-02", device="gpu-3", code="xid-79")).status.phase == "Done"
        assert rig.agents["node-02"].calls == [("fault", "gpu-3", "xid-79")]

    play(scenario)


def test_node_lost_takes_the_node_and_then_refuses() -> None:
    async def scenario(rig: Rig) -> None:
        await training(rig)
        assert (await drill(rig, "node-lost", node="node-01")).status.phase == "Done"
        assert rig.agent.is_silent
        assert not rig.agents["node-02"].is_silent
        assert refused(await drill(rig, "node-lost", node="node-01"), "NodeIsLost")
        assert refused(await drill(rig, "process-kill", pod="worker-0"), "NodeIsLost")
        assert refused(await drill(rig, "device-fail", node="node-01", device="gpu-0", code="x"), "NodeIsLost")

    play(scenario)


def test_refusals_name_the_reason() -> None:
    async def scenario(rig: Rig) -> None:
        pod = await rig.running_pod()
        await until(lambda: bool(rig.agent.said(pod.uid, "hello")))
        assert refused(await drill(rig, "process-kill", pod="worker-0"), "NotRunning")
        assert refused(await drill(rig, "process-kill", pod="nobody"), "NoSuchPod")
        assert refused(await drill(rig, "process-kill", pod="worker-0", node="node-02"), "NoSuchPod")
        assert refused(await drill(rig, "pod-delete", pod="nobody"), "NoSuchPod")
        assert refused(await drill(rig, "pod-delete", pod="worker-0", node="node-02"), "NoSuchPod")
        assert refused(await drill(rig, "device-fail", node="node-01", device="gpu-88", code="xid-79"), "UnknownDevice")
        assert rig.agent.said(pod.uid, "exited") == []

    play(scenario)


def test_a_drill_for_a_foreign_node_is_left_alone() -> None:
    async def scenario(rig: Rig) -> None:
        body = {"metadata": {"name": "theirs"}, "spec": {"type": "node-lost", "node": "node-77"}}
        await rig.cluster.create(Drill, body)
        await asyncio.sleep(30)
        assert (await rig.cluster.get(Drill, "theirs")).status.phase == "Pending"

    play(scenario)


def test_a_drill_is_carried_out_once() -> None:
    async def scenario(rig: Rig) -> None:
        done = await drill(rig, "device-fail", node="node-01", device="gpu-1", code="xid-48")
        await rig.cluster.patch(Drill, done.name, {"metadata": {"labels": {"touched": "yes"}}})
        await asyncio.sleep(10)
        assert [c for c in rig.agent.calls if c[0] == "fault"] == [("fault", "gpu-1", "xid-48")]

    play(scenario)

"""The node on an in-process API in virtual time, with simulated pods: what a kubelet would do, minute by minute."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from remuda.api.conditions import is_condition_true
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node, Pod
from remuda.api.meta import to_seconds
from remuda.embedded.node.images import ImageStore
from remuda.embedded.node.runtime_port import ContainerKey, PodRuntime
from remuda.embedded.node.simulated_runtime import SimulatedRuntime
from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints
from remuda.sim.virtual_time_loop import EPOCH, VirtualLoop, run_virtual
from tests.builders.nodes import BookkeepingAgent, Rig, until
from tests.builders.pods import pod_wire
from tests.builders.runtimes import simulated

Scenario = Callable[[Rig], Coroutine[Any, Any, None]]


def play(
    scenario: Scenario,
    behaviour: SimulatedBehaviour = SimulatedBehaviour(),  # noqa: B008 - an immutable value
    *,
    images: ImageStore | None = None,
    lease_s: float = 8.0,
) -> None:
    """Run the scenario in virtual time on one node whose pods behave like this."""
    loop = VirtualLoop()

    async def main() -> None:
        rig = Rig(loop.clock, deadline_s=3600.0)
        rig.add_node(simulated(loop.clock, behaviour), images=images, lease_s=lease_s)
        async with rig.running():
            await scenario(rig)

    run_virtual(main(), loop)


def now() -> float:
    return asyncio.get_running_loop().time()


# --- the node itself ----------------------------------------------------------------------------------------------------


def test_a_node_registers_and_keeps_its_lease_fresh() -> None:
    async def scenario(rig: Rig) -> None:
        node = await rig.cluster.get(Node, "node-01")
        assert node.labels == {"kubernetes.io/hostname": "node-01", "topology.remuda.dev/rack": "rack-1"}
        assert node.status.capacity == {"nvidia.com/gpu": "8"}
        assert is_condition_true(node.status.conditions, "Ready")
        for _ in range(10):
            await asyncio.sleep(7.3)
            lease = await rig.cluster.get(Lease, "node-01", NODE_LEASE_NAMESPACE)
            assert lease.spec.renew_time is not None
            assert rig.clock() - to_seconds(lease.spec.renew_time) <= 2.01
        assert rig.agent.is_fenced == 0

    play(scenario, lease_s=8.0)


def test_a_node_out_of_touch_fences_once_before_it_is_called_dead() -> None:
    async def scenario(rig: Rig) -> None:
        await asyncio.sleep(1.0)
        rig.reach.is_down = True
        await until(lambda: rig.agent.is_fenced > 0, every=0.01)
        lease = await rig.cluster.get(Lease, "node-01", NODE_LEASE_NAMESPACE)
        assert lease.spec.renew_time is not None
        age = rig.clock() - to_seconds(lease.spec.renew_time)
        assert 8.0 * 2 / 3 - 0.01 <= age <= 8.0 * 2 / 3 + 0.1
        await asyncio.sleep(60)
        assert rig.agent.is_fenced == 1
        rig.reach.is_down = False
        await asyncio.sleep(3)
        lease = await rig.cluster.get(Lease, "node-01", NODE_LEASE_NAMESPACE)
        assert lease.spec.renew_time is not None
        assert rig.clock() - to_seconds(lease.spec.renew_time) <= 3
        rig.reach.is_down = True
        await asyncio.sleep(10)
        assert rig.agent.is_fenced == 2

    play(scenario, lease_s=8.0)


def test_a_node_puts_its_object_right() -> None:
    async def scenario(rig: Rig) -> None:
        dead = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
        await rig.cluster.patch(Node, "node-01", {"status": {"conditions": dead}}, subresource="status")
        await rig.node_object(lambda n: is_condition_true(n.status.conditions, "Ready"))
        await rig.cluster.delete(Node, "node-01")
        again = await rig.node_object(lambda n: is_condition_true(n.status.conditions, "Ready"))
        assert again.status.capacity == {"nvidia.com/gpu": "8"}

    play(scenario)


# --- life of a pod ------------------------------------------------------------------------------------------------------


def test_a_pod_runs_to_completion_and_gives_its_devices_back_first() -> None:
    async def scenario(rig: Rig) -> None:
        phases: list[str] = []

        def phase_at_release(uid: str) -> None:
            record = rig.store.get(Pod.resource.key("worker-0", "default"))
            assert record is not None
            phases.append(record.body["status"]["phase"])

        rig.agent.on_release = phase_at_release
        await rig.create(pod_wire(policy="Never", devices=("gpu-0", "gpu-3")))
        running = await rig.running_pod()
        assert running.status.phase == "Running"
        assert is_condition_true(running.status.conditions, "Ready")
        assert running.status.pod_ip.startswith("127.1.")
        assert running.status.start_time is not None
        assert rig.agent.held == {"gpu-0": running.uid, "gpu-3": running.uid}
        done = await rig.pod("worker-0", lambda p: p.status.phase == "Succeeded")
        assert now() == pytest.approx(60.0, abs=0.1)
        state = done.status.container_statuses[0].state.terminated
        assert state is not None
        assert (state.exit_code, state.reason) == (0, "Completed")
        assert rig.agent.held == {}
        assert phases == ["Running"]

    play(scenario, SimulatedBehaviour(run_s=60.0))


def test_a_pod_that_is_active_for_too_long_fails() -> None:
    async def scenario(rig: Rig) -> None:
        body = pod_wire(policy="Always", devices=("gpu-0",), grace=10)
        body["spec"]["activeDeadlineSeconds"] = 30
        await rig.create(body)
        await rig.running_pod()
        over = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
        assert now() == pytest.approx(30.5, abs=0.1)  # its grace is kept
        assert (over.status.reason, rig.agent.held) == ("DeadlineExceeded", {})
        await asyncio.sleep(600)
        (status,) = (await rig.cluster.get(Pod, "worker-0", "default")).status.container_statuses
        assert (status.restart_count, status.state.running) == (0, None)

    play(scenario, SimulatedBehaviour(stop_s=0.5))


def test_always_restarts_with_the_kubelets_back_off() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(policy="Always"))
        starts = []
        for restarts in range(6):
            await rig.running_pod(restarts=restarts)
            starts.append(now())
        waits = [b - a - 1.0 for a, b in itertools.pairwise(starts)]
        assert waits == pytest.approx([0, 10, 20, 40, 80], abs=0.05)
        await rig.pod(
            "worker-0",
            lambda p: (
                (w := p.status.container_statuses[0].state.waiting) is not None
                and w.reason == "CrashLoopBackOff"
                and p.status.phase == "Running"
            ),
        )

    play(scenario, SimulatedBehaviour(run_s=1.0))


def test_on_failure_ends_with_success() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(policy="OnFailure"))
        pod = await rig.running_pod()
        rig.node.runtime.kill(ContainerKey(pod.uid, "main"))
        pod = await rig.running_pod(restarts=1)
        last = pod.status.container_statuses[0].last_state.terminated
        assert last is not None
        assert last.exit_code == 137
        pod = await rig.pod("worker-0", lambda p: p.status.phase == "Succeeded")
        assert pod.status.container_statuses[0].restart_count == 1

    play(scenario, SimulatedBehaviour(run_s=5.0))


@pytest.mark.parametrize(("stop_s", "took", "code"), [(0.5, 0.5, 143), (60.0, 10.0, 137)], ids=["term", "kill"])
def test_deletion_asks_then_kills_then_releases_then_removes(stop_s: float, took: float, code: int) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(grace=10, devices=("gpu-0",)))
        pod = await rig.running_pod()
        begun = now()
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")
        assert now() - begun == pytest.approx(took, abs=0.05)
        assert rig.agent.calls[-2:] == [("exited", pod.uid, code), ("release", pod.uid)]
        await until(lambda: rig.node.find("worker-0", "default") is None)

    play(scenario, SimulatedBehaviour(stop_s=stop_s))


def test_a_second_delete_may_shorten_the_grace() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(grace=600))
        await rig.running_pod()
        begun = now()
        await rig.cluster.delete(Pod, "worker-0", "default")
        await asyncio.sleep(5)
        await rig.cluster.delete(Pod, "worker-0", "default", grace_s=7)
        await rig.gone("worker-0")
        assert now() - begun == pytest.approx(7, abs=0.05)

    play(scenario, SimulatedBehaviour(stop_s=1000.0))


def test_devices_of_a_pod_removed_by_force_are_waited_for() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(devices=("gpu-0",)))
        old = await rig.running_pod()
        await rig.cluster.delete(Pod, "worker-0", "default", grace_s=0)
        await rig.create(pod_wire("worker-1", devices=("gpu-0",)))
        new = await rig.running_pod("worker-1")
        assert rig.agent.held == {"gpu-0": new.uid}
        assert ("release", old.uid) in rig.agent.calls

    play(scenario)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (pod_wire("late", devices=("gpu-0",)), "DeviceHeld"),
        (pod_wire("odd", devices=("gpu-99",)), "UnknownDevice"),
        (pod_wire("lone", devices=("gpu-1",), annotations={}), "DevicesNotChosen"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_pod_whose_devices_are_refused_fails(body: dict[str, Any], reason: str) -> None:
    if reason == "DevicesNotChosen":
        body["metadata"]["annotations"] = {}

    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire("first", devices=("gpu-0",)))
        first = await rig.running_pod("first")
        name = body["metadata"]["name"]
        await rig.create(body)
        pod = await rig.pod(name, lambda p: p.status.phase == "Failed")
        assert pod.status.reason == "UnexpectedAdmissionError"
        assert reason in pod.status.message
        assert rig.agent.held == {"gpu-0": first.uid}
        await rig.cluster.delete(Pod, name, "default")
        await rig.gone(name)

    play(scenario)


def test_an_image_is_pulled_once_and_then_present() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire("a", image="train:2"))
        await rig.create(pod_wire("b", image="train:2"))
        await rig.create(pod_wire("c", image="train:1"))
        await rig.running_pod("c")
        assert now() < 1
        pending = await rig.pod("a", lambda p: bool(p.status.container_statuses))
        await rig.pod(
            "a",
            lambda p: (
                (w := p.status.container_statuses[0].state.waiting if p.status.container_statuses else None) is not None
                and w.reason == "Pulling"
            ),
        )
        assert pending.status.phase == "Pending"
        await asyncio.gather(rig.running_pod("a"), rig.running_pod("b"))
        assert now() == pytest.approx(12, abs=0.1)
        await rig.node_object(lambda n: len(n.status.images) == 2)
        node = await rig.cluster.get(Node, "node-01")
        assert node.status.images == [{"names": ["train:1"]}, {"names": ["train:2"]}]
        assert now() == pytest.approx(12, abs=0.1)

    play(scenario, images=ImageStore({"train:1"}, lambda image: 12.0))


def test_a_pod_can_be_deleted_while_it_pulls() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(image="huge", devices=("gpu-0",)))
        await until(lambda: bool(rig.agent.held))
        await asyncio.sleep(5)
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")
        assert now() < 6
        assert rig.agent.held == {}

    play(scenario, images=ImageStore((), lambda image: 1000.0))


def test_a_container_restarts_while_the_api_is_away_and_is_told_later() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire())
        pod = await rig.running_pod()
        rig.reach.is_down = True
        rig.node.runtime.kill(ContainerKey(pod.uid, "main"))
        worker = rig.node.find("worker-0", "default")
        assert worker is not None
        await until(lambda: worker.record.containers[0].run == 1 and worker.record.is_live)
        await asyncio.sleep(30)
        stale = await rig.cluster.get(Pod, "worker-0", "default")
        assert stale.status.container_statuses[0].restart_count == 0
        rig.reach.is_down = False
        assert (await rig.running_pod(restarts=1)).status.container_statuses[0].restart_count == 1

    play(scenario)


def test_what_others_write_into_the_status_survives_ours() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(policy="Never"))
        pod = await rig.running_pod()
        theirs = {"type": "DisruptionTarget", "status": "True", "reason": "Preempted"}
        conditions = [{"type": c.type, "status": c.status} for c in pod.status.conditions]
        patch = {"status": {"conditions": [*conditions, theirs]}}
        await rig.cluster.patch(Pod, "worker-0", patch, "default", subresource="status")
        rig.node.runtime.kill(ContainerKey(pod.uid, "main"))
        pod = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
        assert is_condition_true(pod.status.conditions, "DisruptionTarget")
        assert not is_condition_true(pod.status.conditions, "Ready")

    play(scenario)


def test_a_pod_failed_by_another_is_stopped() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(devices=("gpu-0",)))
        await rig.running_pod()
        failed = {"status": {"phase": "Failed", "reason": "NodeLost"}}
        await rig.cluster.patch(Pod, "worker-0", failed, "default", subresource="status")
        await until(lambda: not rig.agent.held)
        await asyncio.sleep(1)
        pod = await rig.cluster.get(Pod, "worker-0", "default")
        assert (pod.status.phase, pod.status.reason) == ("Failed", "NodeLost")
        assert pod.status.container_statuses[0].state.terminated is not None

    play(scenario)


def test_a_lost_node_falls_silent() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.create(pod_wire(devices=("gpu-0",)))
        pod = await rig.running_pod()
        before = await rig.cluster.get(Lease, "node-01", NODE_LEASE_NAMESPACE)
        rig.node.lose()
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.create(pod_wire("worker-1"))
        await asyncio.sleep(300)
        assert rig.agent.is_silent
        after = await rig.cluster.get(Lease, "node-01", NODE_LEASE_NAMESPACE)
        assert after.spec.renew_time == before.spec.renew_time
        still = await rig.cluster.get(Pod, "worker-0", "default")
        assert still.status == pod.status
        assert (await rig.cluster.get(Pod, "worker-1", "default")).status.phase == "Pending"
        begun = now()
        await rig.node.halt(grace_s=30.0)
        assert now() == begun  # there is nothing left to wait for

    play(scenario)


def test_addresses_are_unique_and_come_free() -> None:
    async def scenario(rig: Rig) -> None:
        for index in range(20):
            await rig.create(pod_wire(f"w-{index}"))
        pods = [await rig.running_pod(f"w-{index}") for index in range(20)]
        assert len({p.status.pod_ip for p in pods}) == 20
        await rig.cluster.delete(Pod, "w-3", "default")
        await rig.gone("w-3")
        assert rig.addresses.recover("other", pods[3].status.pod_ip) == pods[3].status.pod_ip

    play(scenario)


# --- simulated pods -----------------------------------------------------------------------------------------------------


async def at_the_barrier(rig: Rig, uid: str) -> None:
    await until(lambda: bool(rig.agent.said(uid, "hello")))


def stop(attempt: int, rank: int = 0) -> dict[str, Any]:
    return {"type": "stop", "attempt": attempt, "grace": 2.0, "rank": rank, "checkpointDir": "/ckpt"}


def start(attempt: int, **env: str) -> dict[str, Any]:
    return {"type": "start", "attempt": attempt, "env": env}


TRAIN = SimulatedBehaviour(start_s=0.2, child_start_s=0.5, step_s=1.0, checkpoint_every=5)


def test_a_simulated_launcher_trains_through_attempts() -> None:
    async def scenario(rig: Rig) -> None:
        uid = (await rig.create(pod_wire(launch=True, gang="job"))).uid
        agent = rig.agent
        await at_the_barrier(rig, uid)
        assert agent.said(uid, "hello")[0]["state"] == "parked"
        agent.links[uid](stop(1))
        await until(lambda: bool(agent.said(uid, "ready")))
        assert agent.said(uid, "ready")[0]["checkpoints"] == []
        agent.links[uid](start(1, REMUDA_RANK="0"))
        await until(lambda: bool(agent.said(uid, "running")))
        await asyncio.sleep(12)
        assert agent.said(uid, "heartbeat")[-1]["step"] == 11
        assert agent.said(uid, "heartbeat")[-1]["checkpoint"] == 10
        agent.links[uid](stop(2))
        await until(lambda: agent.said(uid, "ready")[-1]["attempt"] == 2)
        assert agent.said(uid, "ready")[-1]["checkpoints"] == [10, 5]
        agent.links[uid](start(2, REMUDA_RANK="0", REMUDA_RESUME_STEP="10"))
        await asyncio.sleep(2)
        assert agent.said(uid, "heartbeat")[-1]["step"] == 11
        pod = await rig.cluster.get(Pod, "worker-0", "default")
        assert pod.status.container_statuses[0].restart_count == 0

    play(scenario, TRAIN)


def test_a_dead_launcher_is_back_at_once() -> None:
    async def scenario(rig: Rig) -> None:
        uid = (await rig.create(pod_wire(launch=True, gang="job"))).uid
        for deaths in range(1, 5):
            await until(lambda: len(rig.agent.said(uid, "hello")) == deaths)  # noqa: B023
            died = now()
            rig.node.runtime.kill(ContainerKey(uid, "main"))
            await rig.running_pod(restarts=deaths)
            assert now() - died == pytest.approx([0, 0.2, 0.4, 0.8][deaths - 1], abs=0.01)
        assert ("exited", uid, 137) in rig.agent.calls

    play(scenario, TRAIN)


def test_deleting_a_launched_pod_stops_its_child_first() -> None:
    async def scenario(rig: Rig) -> None:
        uid = (await rig.create(pod_wire(launch=True, gang="job"))).uid
        await at_the_barrier(rig, uid)
        rig.agent.links[uid](stop(1))
        rig.agent.links[uid](start(1, REMUDA_RANK="0"))
        await asyncio.sleep(3)
        begun = now()
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")
        assert now() - begun == pytest.approx(TRAIN.stop_s, abs=0.02)

    play(scenario, TRAIN)


@pytest.mark.slow
def test_512_pods_train_in_one_process_and_every_run_is_the_same() -> None:
    def once() -> list[tuple[str, float]]:
        loop = VirtualLoop()
        log: list[tuple[str, float]] = []
        rng = random.Random(42)
        shaky = SimulatedBehaviour(start_s=0.1, child_start_s=0.2, step_s=1.0, jitter=0.3, checkpoint_every=5, steps=20)

        def runtime(name: str, agent: BookkeepingAgent) -> PodRuntime:
            store = SimulatedCheckpoints()
            return SimulatedRuntime(agent, clock=loop.clock, rng=rng, checkpoints=store, behaviour=lambda pod: shaky)

        async def main() -> None:
            rig = Rig(loop.clock, deadline_s=3600.0)
            for number in range(1, 65):
                rig.add_node(runtime, f"node-{number:02}")
            async with rig.running():
                pods = [
                    await rig.create(pod_wire(f"w-{n}", node=f"node-{n % 64 + 1:02}", launch=True, gang="job"))
                    for n in range(512)
                ]
                agents = {p.uid: rig.agents[p.spec.node_name] for p in pods}
                await until(lambda: all(agents[p.uid].said(p.uid, "hello") for p in pods), every=0.05)
                for rank, pod in enumerate(pods):
                    agents[pod.uid].links[pod.uid](stop(1, rank))
                    agents[pod.uid].links[pod.uid](start(1, REMUDA_RANK=str(rank)))
                await until(lambda: all(agents[p.uid].said(p.uid, "exited") for p in pods), every=1.0, within=60)
                for pod in pods:
                    (end,) = agents[pod.uid].said(pod.uid, "exited")
                    assert end["code"] == 0
                    assert agents[pod.uid].said(pod.uid, "heartbeat")[-1]["step"] == 20
                    log.append((pod.name, round(end["time"] - EPOCH, 6)))

        run_virtual(main(), loop)
        return log

    first = once()
    assert len({end for _, end in first}) > 500
    assert once() == first

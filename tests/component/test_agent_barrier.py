"""One agent, its launchers, and the API between it and the controller: the barrier, restarts, hangs, fences, signals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.agent.agent import Agent
from remuda.agent.launchers import barrier_orders
from remuda.api.errors import Refusal
from remuda.api.training import TrainingJob
from tests.builders.waiting import PATIENCE_S
from tests.component.agent_rig import FakeLauncher, Rig, a_rig
from tests.unit.agent.scene import gang_pod

UIDS = tuple("abcdefgh")


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as rig:
        yield rig


@pytest_asyncio.fixture
async def agent(rig: Rig) -> AsyncIterator[Agent]:
    agent = await rig.agent()
    yield agent
    await agent.stop()


async def launchers(rig: Rig, agent: Agent, uids: tuple[str, ...] = UIDS, **options: Any) -> dict[str, FakeLauncher]:
    for index, uid in enumerate(uids):
        await rig.allocate(agent, uid, f"gpu-{index}")
    return {uid: FakeLauncher(agent, uid, **options) for uid in uids}


async def running_gang(rig: Rig, agent: Agent, uids: tuple[str, ...] = UIDS, **options: Any) -> dict[str, FakeLauncher]:
    await rig.make_job(uids, **options)
    pods = await launchers(rig, agent, uids)
    await rig.all_are(uids, "ready", 1)
    await rig.steer(1, "Open", uids)
    await rig.all_are(uids, "running", 1)
    return pods


# --- the barrier --------------------------------------------------------------------------------------------------------


async def test_a_gang_starts_recovers_and_nobody_is_started_twice(rig: Rig, agent: Agent) -> None:
    pods = await running_gang(rig, agent)
    assert {uid: pod.env["RANK"] for uid, pod in pods.items()} == {uid: str(i) for i, uid in enumerate(UIDS)}
    assert {pod.env["REMUDA_ATTEMPT"] for pod in pods.values()} == {"1"}
    pods["c"].exit(9, "out of luck")
    await rig.all_are(["c"], "exited", 1)
    assert (rig.reports()["c"].code, rig.reports()["c"].message) == (9, "out of luck")
    await rig.steer(2, "Closed", UIDS)
    await rig.all_are(UIDS, "ready", 2)
    assert all(pod.child is None for pod in pods.values())
    await rig.steer(2, "Open", UIDS)
    await rig.all_are(UIDS, "running", 2)
    assert all(pod.runs == [1, 2] for pod in pods.values())
    assert all([m["attempt"] for m in pod.said("stop")] == [1, 2] for pod in pods.values())


async def test_eight_launchers_are_a_handful_of_writes(rig: Rig, agent: Agent) -> None:
    await running_gang(rig, agent)
    before = agent.reporter.writes
    for attempt in range(2, 12):
        await rig.steer(attempt, "Closed", UIDS)
        await rig.all_are(UIDS, "ready", attempt)
        await rig.steer(attempt, "Open", UIDS)
        await rig.all_are(UIDS, "running", attempt)
    assert agent.reporter.writes - before <= 2 * 10 * 2  # ready and running, each in at most two pieces


async def test_a_spare_stays_parked_until_it_is_promoted(rig: Rig, agent: Agent) -> None:
    pods = await running_gang(rig, agent, UIDS[:3])
    await rig.allocate(agent, "s", "gpu-7")
    pods["s"] = FakeLauncher(agent, "s")
    await rig.all_are(["s"], "parked", 0)
    await rig.steer(2, "Closed", ["a", "s", "c"])
    await rig.all_are(["a", "s", "c"], "ready", 2)
    await rig.steer(2, "Open", ["a", "s", "c"])
    await rig.all_are(["a", "s", "c"], "running", 2)
    assert pods["s"].env["RANK"] == "1"
    assert pods["b"].child is None  # no member any more: stopped with the others
    assert pods["b"].runs == [1]


async def test_a_launcher_that_comes_back_empty_waits_for_the_next_attempt(rig: Rig, agent: Agent) -> None:
    pods = await running_gang(rig, agent, UIDS[:2])
    agent.container_exited("a", 137)
    await rig.all_are(["a"], "gone", 1)
    assert rig.reports()["a"].code == 137
    again = FakeLauncher(agent, "a")
    await rig.all_are(["a"], "parked", 0)
    assert again.heard == []
    await rig.steer(2, "Closed", UIDS[:2])
    await rig.all_are(UIDS[:2], "ready", 2)
    await rig.steer(2, "Open", UIDS[:2])
    await rig.all_are(UIDS[:2], "running", 2)
    assert (again.runs, pods["a"].runs, pods["b"].runs) == ([2], [1], [1, 2])


async def test_checkpoints_are_in_the_report(rig: Rig, agent: Agent) -> None:
    await rig.make_job("a")
    await rig.allocate(agent, "a", "gpu-0")
    FakeLauncher(agent, "a", checkpoints=(30, 20))
    await rig.all_are(["a"], "ready", 1)
    assert rig.reports()["a"].checkpoints == [30, 20]


async def test_progress_goes_to_the_board_and_not_to_the_api(rig: Rig, agent: Agent) -> None:
    pods = await running_gang(rig, agent, UIDS[:2])
    before = agent.reporter.writes
    for step in range(100):
        for pod in pods.values():
            pod.beat(step, checkpoint=step)
    await agent.flush()
    assert agent.reporter.writes == before
    found = rig.board.of_gang("default", "job")
    assert {uid: (p.last.step, p.checkpoint) for uid, p in found.items()} == {"a": (99, 99), "b": (99, 99)}


async def test_jobs_of_others_cost_nothing(rig: Rig, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    await running_gang(rig, agent, UIDS[:2])
    looked: list[str] = []

    def plan(job: TrainingJob | None, launcher: Any, site: Any, now: float) -> Any:
        looked.append(launcher.uid)
        return real(job, launcher, site, now)

    real = barrier_orders.plan_launcher_barrier_orders
    monkeypatch.setattr(barrier_orders, "plan_launcher_barrier_orders", plan)
    for number in range(20):
        await rig.make_job("x", name=f"other-{number}")
    arrived = asyncio.Event()
    rig.jobs.subscribe(lambda old, new: arrived.set() if len(rig.jobs) == 21 else None)
    await rig.steer(1, "Open", UIDS[:2])
    async with asyncio.timeout(PATIENCE_S):
        await arrived.wait()
    assert set(looked) <= {"a", "b"}
    assert len(looked) <= 2


# --- trouble ------------------------------------------------------------------------------------------------------------


async def test_a_hang_is_a_transition_and_so_is_its_end(rig: Rig, agent: Agent) -> None:
    pods = await running_gang(rig, agent, UIDS[:2], hang_after_seconds=0.1)
    pods["a"].beat(1)
    await rig.until(lambda: rig.reports()["a"].hung_since is not None, "the hang")
    assert rig.reports()["b"].hung_since is None  # has not made its first step yet
    assert rig.states()["a"] == ("running", 1)
    pods["a"].beat(2, checkpoint=2)  # a checkpoint does not wait for the launcher's own limit
    await rig.until(lambda: rig.reports()["a"].hung_since is None, "its end")


async def test_fence_kills_every_child_and_nothing_starts_before_a_higher_attempt(rig: Rig, agent: Agent) -> None:
    pods = await running_gang(rig, agent, UIDS[:2])
    agent.fence()
    assert all(pod.child is None for pod in pods.values())
    await rig.all_are(UIDS[:2], "parked", 1)
    await rig.steer(1, "Open", UIDS[:2])
    await rig.steer(2, "Closed", UIDS[:2])
    await rig.all_are(UIDS[:2], "ready", 2)
    await rig.steer(2, "Open", UIDS[:2])
    assert all(pod.runs == [1] for pod in pods.values()), "the lease is not good yet"
    agent.unfence()
    await rig.all_are(UIDS[:2], "running", 2)
    assert all(pod.runs == [1, 2] for pod in pods.values())


async def test_a_checkpoint_path_that_cannot_be_written(rig: Rig, agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    await rig.make_job("a", path=str(tmp_path / "file" / "ckpt"))
    await rig.allocate(agent, "a", "gpu-0", simulated=False)
    pod = FakeLauncher(agent, "a")
    await rig.all_are(["a"], "ready", 1)
    await rig.steer(1, "Open", "a")
    await rig.all_are(["a"], "exited", 1)
    report = rig.reports()["a"]
    assert report.code == 73
    assert report.message.startswith("CheckpointPathNotWritable: ")
    assert str(tmp_path / "file" / "ckpt") in report.message
    assert pod.runs == []


async def test_a_checkpoint_path_is_made(rig: Rig, agent: Agent, tmp_path: Path) -> None:
    await rig.make_job("a")
    await rig.allocate(agent, "a", "gpu-0", simulated=False)
    pod = FakeLauncher(agent, "a")
    await rig.all_are(["a"], "ready", 1)
    await rig.steer(1, "Open", "a")
    await rig.all_are(["a"], "running", 1)
    directory = pod.env["REMUDA_CHECKPOINT_DIR"]
    assert directory.startswith(str(tmp_path / "checkpoints" / "default" / "job"))
    assert os.listdir(directory) == []
    assert pod.said("stop")[0]["checkpointDir"] == directory


async def test_a_lost_node_falls_silent(rig: Rig, agent: Agent) -> None:
    pods = await running_gang(rig, agent, UIDS[:2])
    before = await rig.read()
    agent.silence()
    agent.container_exited("a", 137)
    agent.inject_fault("gpu-0", "xid-79")
    pods["b"].exit(1)
    await rig.steer(2, "Closed", UIDS[:2])
    await agent.flush()
    assert (await rig.read()).observed == before.observed
    assert [m["attempt"] for m in pods["a"].said("stop")] == [1]


# --- restarts of the agent ----------------------------------------------------------------------------------------------


async def test_a_restart_of_the_agent_looks_like_nothing_at_all(rig: Rig) -> None:
    first = await rig.agent()
    pods = await running_gang(rig, first)
    await first.stop()
    before = await rig.read()
    second = await rig.agent()
    for index, uid in enumerate(UIDS):
        await rig.allocate(second, uid, f"gpu-{index}")
        pods[uid].reconnect(second)
    await second.flush()
    after = await rig.read()
    assert after.metadata.resource_version == before.metadata.resource_version  # not one write
    assert all(pod.runs == [1] for pod in pods.values())
    await rig.steer(2, "Closed", UIDS)
    await rig.all_are(UIDS, "ready", 2)
    await second.stop()


async def test_what_happened_while_no_agent_was_there_is_told(rig: Rig) -> None:
    first = await rig.agent()
    pods = await running_gang(rig, first, UIDS[:2])
    await first.stop()
    pods["a"].exit(3, "alone")
    second = await rig.agent()
    for index, uid in enumerate(UIDS[:2]):
        await rig.allocate(second, uid, f"gpu-{index}")
        pods[uid].reconnect(second)
    await rig.all_are(["a"], "exited", 1)
    assert (rig.reports()["a"].code, rig.reports()["a"].message) == (3, "alone")
    assert rig.states()["b"] == ("running", 1)
    await second.stop()


async def test_a_restart_in_the_middle_of_a_recovery_goes_on_with_it(rig: Rig) -> None:
    first = await rig.agent()
    pods = await running_gang(rig, first, UIDS[:2])
    await first.stop()
    await rig.steer(2, "Closed", UIDS[:2])
    second = await rig.agent()
    for index, uid in enumerate(UIDS[:2]):
        await rig.allocate(second, uid, f"gpu-{index}")
        pods[uid].reconnect(second)
    await rig.all_are(UIDS[:2], "ready", 2)
    await second.stop()


async def test_a_launcher_that_does_not_come_back_is_gone_after_a_while(rig: Rig) -> None:
    first = await rig.agent()
    pods = await running_gang(rig, first, UIDS[:3])
    await first.stop()
    second = await rig.agent(rejoin_s=3.0)
    assert set(rig.states().values()) == {("running", 1)}
    await rig.allocate(second, "a", "gpu-0")
    await rig.allocate(second, "b", "gpu-1")
    pods["a"].reconnect(second)
    await rig.all_are(["b"], "gone", 1)  # known to the node, but silent
    await rig.until(lambda: "c" not in rig.states(), "c to be dropped")  # not known to the node any more
    assert rig.states()["a"] == ("running", 1)
    await second.stop()


# --- devices ------------------------------------------------------------------------------------------------------------


async def test_signals_reach_the_api_and_survive_the_agent(rig: Rig) -> None:
    first = await rig.agent()
    found = (await rig.read()).observed
    assert (found.model, len(found.devices)) == ("dgx-h100", 8)
    first.inject_fault("gpu-3", "xid-79")
    first.inject_fault("gpu-3", "xid-79")  # the same event
    first.inject_fault("gpu-3", "xid-13")
    await first.flush()
    await first.stop()
    second = await rig.agent()
    device = (await rig.read()).observed.devices[3]
    assert [(s.source, s.code) for s in device.signals] == [("kmsg", "xid-79"), ("kmsg", "xid-13")]
    with pytest.raises(Refusal, match="DeviceNotHealthy"):
        await rig.allocate(second, "a", "gpu-3")
    second.inject_fault("gpu-3", "probe-passed")
    await rig.allocate(second, "a", "gpu-3")
    await second.stop()


async def test_repeated_signals_do_not_flood_the_api(rig: Rig, agent: Agent) -> None:
    agent.inject_fault("gpu-0", "xid-13")
    await agent.flush()
    before = agent.reporter.writes
    for _ in range(100):
        agent.inject_fault("gpu-0", "xid-13")
    await agent.flush()
    assert agent.reporter.writes == before


async def test_refusals_of_a_drill(agent: Agent) -> None:
    with pytest.raises(Refusal, match="UnknownDevice"):
        agent.inject_fault("gpu-8", "xid-79")


# --- allocations --------------------------------------------------------------------------------------------------------


async def test_an_allocation_s_life(rig: Rig, agent: Agent, tmp_path: Path) -> None:
    allocation = await rig.allocate(agent, "a", "gpu-0", "gpu-1", simulated=False)
    assert allocation.devices == ("gpu-0", "gpu-1")
    assert sorted(os.listdir(allocation.directory)) == ["agent.sock"]
    assert allocation.env["REMUDA_ALLOC_DIR"] == allocation.directory
    assert allocation.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert await rig.allocate(agent, "a", "gpu-0", "gpu-1", simulated=False) == allocation
    with pytest.raises(Refusal, match="default/pod-a"):
        await rig.allocate(agent, "b", "gpu-1", simulated=False)
    await agent.release("a")
    await agent.release("a")
    assert os.listdir(tmp_path / "alloc") == []
    await rig.allocate(agent, "b", "gpu-1", simulated=False)


async def test_simulated_pods_leave_no_trace_on_disk(rig: Rig, agent: Agent, tmp_path: Path) -> None:
    allocation = await rig.allocate(agent, "a", "gpu-0")
    assert allocation.directory == ""
    assert "REMUDA_ALLOC_DIR" not in allocation.env
    await rig.make_job("a")
    FakeLauncher(agent, "a")
    await rig.all_are(["a"], "ready", 1)
    await rig.steer(1, "Open", "a")
    await rig.all_are(["a"], "running", 1)
    await agent.release("a")
    await rig.until(lambda: rig.states() == {}, "the report to go")
    assert os.listdir(tmp_path) == []


async def test_the_same_pod_keeps_its_directory_over_a_restart_and_another_does_not(rig: Rig) -> None:
    first = await rig.agent()
    allocation = await rig.allocate(first, "a", "gpu-0", simulated=False)
    note = Path(allocation.directory) / "progress.json"
    note.write_text("{}")
    first.inject_fault("gpu-0", "xid-79")
    await first.flush()
    await first.stop()
    second = await rig.agent()
    assert await rig.allocate(second, "a", "gpu-0", simulated=False) == allocation  # broken device or not: it is there
    assert note.exists()
    second.inject_fault("gpu-0", "probe-passed")
    await second.flush()
    await second.stop()
    third = await rig.agent()
    await rig.allocate(third, "b", "gpu-0", simulated=False)
    assert not note.exists()
    await third.stop()


async def test_the_directory_of_a_pod_that_ended_without_an_agent_is_removed(rig: Rig, tmp_path: Path) -> None:
    first = await rig.agent()
    await rig.allocate(first, "a", "gpu-0", simulated=False)
    await rig.allocate(first, "b", "gpu-1", simulated=False)
    await first.stop()
    second = await rig.agent()
    await second.release("a")
    assert os.listdir(tmp_path / "alloc") == ["gpu-1"]
    await second.stop()


async def test_a_directory_that_cannot_be_made_holds_no_device(rig: Rig, agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "alloc").write_text("in the way")
    with pytest.raises(OSError, match="alloc"):
        await rig.allocate(agent, "a", "gpu-0", simulated=False)
    (tmp_path / "alloc").unlink()
    await rig.allocate(agent, "b", "gpu-0", simulated=False)


async def test_a_plain_pod_has_no_report(rig: Rig, agent: Agent) -> None:
    await agent.allocate(gang_pod("x", gang=""), [], simulated=True)
    agent.container_exited("x", 0)
    agent.container_exited("unheard-of", 0)
    await agent.flush()
    assert (await rig.read()).observed.launchers == []


async def test_nobody_connects_without_an_allocation(agent: Agent) -> None:
    with pytest.raises(Refusal, match="NotAllocated"):
        agent.connect("x", lambda message: None)

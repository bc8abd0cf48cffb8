"""`remuda up` as a process: killed without warning, started again, refused twice, taken down."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from remuda.api.drills import Drill, DrillKind
from remuda.api.training import Cause, Remedy, TrainingJob
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.rig import HELD, RANKS, Rig, kept, left_running

STOP_AT, SAVED = 14, 12
LATER = 23


async def trained(rig: Rig, job: TrainingJob) -> TrainingJob:
    rig.let_run_to(STOP_AT)
    await rig.submit(job)
    return await rig.trained_to(STOP_AT)


async def test_pods_train_on_while_the_cluster_is_dead_and_are_found_again(up: Up) -> None:
    async with up.rig() as rig:
        before = await trained(rig, rig.job(spares=1))
        launchers, children = rig.launchers(), rig.started(1)

    up.kill()
    rig.let_run_to(LATER)
    await until("a checkpoint made while nobody watched", lambda: _has_saved(rig, LATER))
    up.start()

    async with up.rig() as rig:
        after = await rig.trained_to(LATER)
        assert after.status.attempt == 1, "nothing was wrong with the gang"
        kept(before, after)
        assert rig.launchers() == launchers
        assert rig.started(1) == children
        assert [c.restart_count for p in await rig.pods() for c in p.status.container_statuses] == [0] * (RANKS + 1)
        await rig.check_invariants()
        # And it is the same gang to a fault as it was before.
        await rig.strike(DrillKind.PROCESS_KILL, after.status.members[0])
        again = await rig.trained_to(LATER, attempt=2)
        kept(before, again)
        assert rig.launchers() == launchers
        await rig.check_invariants()


async def test_a_cluster_killed_in_the_middle_of_a_recovery_completes_it_when_it_is_back(up: Up) -> None:
    async with up.rig() as rig:
        # Nobody stops until he is let, so the barrier of attempt 2 stays closed.
        held = rig.job(spares=1, stop_file=rig.stop_file, failure=HELD)
        before = await trained(rig, held)
        launchers = rig.launchers()
        victim = before.status.members[2]
        await rig.fail_device(victim.node, victim.devices[0])
        await rig.until("the recovery to begin", lambda job: job.status.attempt == 2)

        up.kill()
        assert rig.started(2) == {}
        rig.let_stop()
        up.start()

    async with up.rig() as rig:
        after = await rig.trained_to(STOP_AT, attempt=2)
        kept(before, after, moved={2})
        assert after.status.members[2].uid == before.status.spares[0].uid
        assert [(r.attempt, r.remedy) for r in after.status.recoveries] == [(2, Remedy.PROMOTE_SPARE)]
        started = await rig.all_started(2)
        assert {line.resumed for line in started.values()} == {SAVED}
        same = {m.uid for m in after.status.members}
        assert {uid: launchers[uid] for uid in same} == {uid: rig.launchers()[uid] for uid in same}
        await rig.check_invariants()


async def test_a_rank_that_died_while_the_cluster_was_dead_is_noticed(up: Up) -> None:
    async with up.rig() as rig:
        before = await trained(rig, rig.job())
        launchers, children = rig.launchers(), rig.started(1)

    up.kill()
    rig.kill(children[1].pid)
    up.start()

    async with up.rig() as rig:
        after = await rig.trained_to(STOP_AT, attempt=2)
        kept(before, after)
        assert rig.launchers() == launchers
        assert {line.resumed for line in (await rig.all_started(2)).values()} == {SAVED}
        await rig.check_invariants()


@pytest.mark.parametrize("kind", [DrillKind.PROCESS_HANG, DrillKind.DEVICE_SLOW])
async def test_a_rank_held_by_a_drill_goes_on_when_the_cluster_is_back(up: Up, kind: DrillKind) -> None:
    async with up.rig() as rig:
        before = await trained(rig, rig.job())
        launchers, pid = rig.launchers(), rig.started(1)[1].pid
        victim = before.status.members[1]
        if kind is DrillKind.PROCESS_HANG:
            await rig.strike(kind, victim)
        else:
            await rig.drill(kind, node=victim.node, device=victim.devices[0], factor=100.0)
        await until("the rank to be stopped", lambda: _is_stopped(pid))

    up.kill()
    os.kill(pid, signal.SIGSTOP)  # a slow one runs now and then: as if the cluster had died in a pause
    up.start()

    async with up.rig() as rig:
        rig.let_run_to(LATER)
        after = await rig.trained_to(LATER)
        kept(before, after)
        assert (rig.launchers(), rig.started(1)[1].pid) == (launchers, pid)
        [drill] = (await rig.api.list(Drill)).items
        assert (drill.status.phase, drill.status.reason) == ("Undone", "NodeRestarted")


async def test_a_second_cluster_on_the_same_state_is_refused(up: Up) -> None:
    code, words = await up.run("up")

    assert code == 2
    assert "StateInUse" in words
    assert f"remuda --state {up.state} down" in words
    async with up.rig() as rig:
        await rig.pods()  # the first one is none the worse for it


async def test_down_leaves_nothing_running_and_up_goes_on_from_the_checkpoint(up: Up) -> None:
    async with up.rig() as rig:
        before = await trained(rig, rig.job(spares=1))

    code, words = await up.run("down")

    assert (code, up.wait()) == (0, 0), words
    assert left_running(up.state) == []
    assert not any(rig.is_launcher_alive(member.uid) for member in before.status.members)

    up.start()
    async with up.rig() as rig:
        again = await rig.until("a new attempt", lambda job: job.status.attempt > 1 and job.status.phase == "Running")
        after = await rig.trained_to(STOP_AT, attempt=again.status.attempt)
        kept(before, after)
        assert {line.resumed for line in (await rig.all_started(after.status.attempt)).values()} == {SAVED}
        assert after.status.used == {"maintenance": 1}, "nothing broke, so no budget for what breaks pays"
        assert {(r.cause, r.reason) for r in after.status.recoveries} == {(Cause.MAINTENANCE, "NodeStopped")}
        await rig.check_invariants()
    code, words = await up.run("down")
    assert (code, up.wait()) == (0, 0), words
    assert left_running(up.state) == []


async def test_a_split_cluster_that_is_taken_down_says_so_too(state: Path) -> None:
    up = Up(state, lease_s=20.0)
    try:
        up.start("--split", "--groups=2")
        async with up.rig() as rig:
            before = await trained(rig, rig.job())
        code, words = await up.run("down")
        assert (code, up.wait()) == (0, 0), words

        up.start("--split", "--groups=2")
        async with up.rig() as rig:
            again = await rig.until("a new attempt", lambda j: j.status.attempt > 1 and j.status.phase == "Running")
            after = await rig.trained_to(STOP_AT, attempt=again.status.attempt)
            kept(before, after)
            assert after.status.used == {"maintenance": 1}
    finally:
        up.kill()


async def _is_stopped(pid: int) -> bool:
    return _state(pid) == "T"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _has_saved(rig: Rig, step: int) -> bool:
    return all(rig.checkpoints(rank)[-1:] == [step // 4 * 4] for rank in range(RANKS))

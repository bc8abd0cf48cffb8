"""Real processes, one fault at a time: who keeps what, and what everybody resumes from.

Training stands still at step 14 with a checkpoint at 12 while a test breaks something, so each test knows exactly what must
come back. (Where a rank must be *seen* to make no progress, training runs freely.)
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.drills import DrillKind
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.training import (
    Budgets,
    Cause,
    Checkpoint,
    CheckpointFallBack,
    Failure,
    Recovery,
    Remedy,
    TrainingJob,
)
from remuda.runtime.up_config import RACK_LABEL, ClusterConfig
from tests.builders.waiting import until
from tests.e2e.clusters import embedded
from tests.e2e.rig import HELD, NAMESPACE, RANKS, Rig, is_alive, kept, left_running

STOP_AT, SAVED, SAVED_BEFORE = 14, 12, 8


async def trained(rig: Rig, job: TrainingJob, spares: int = 0) -> TrainingJob:
    rig.let_run_to(STOP_AT)
    await rig.submit(job)
    return await rig.trained_to(STOP_AT, spares=spares)


async def recovered(rig: Rig, before: TrainingJob, resumed: int = SAVED) -> TrainingJob:
    """The job after one recovery, every rank back at the step it was at; each rank's own log says what it resumed from."""
    attempt = before.status.attempt + 1
    after = await rig.trained_to(STOP_AT, attempt=attempt)
    started = await rig.all_started(attempt)
    assert {rank: line.resumed for rank, line in started.items()} == dict.fromkeys(range(RANKS), resumed)
    assert last(after).resume_step == resumed
    await rig.check_invariants()
    return after


def last(job: TrainingJob) -> Recovery:
    return job.status.recoveries[-1]


async def test_a_killed_process_restarts_the_gang_in_place(rig: Rig) -> None:
    before = await trained(rig, rig.job())
    launchers, children = rig.launchers(), rig.started(1)

    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[2])
    after = await recovered(rig, before)

    kept(before, after)
    assert rig.launchers() == launchers, "launchers must live on"
    assert not {c.pid for c in rig.started(2).values()} & {c.pid for c in children.values()}
    assert (last(after).remedy, last(after).cause) == (Remedy.RESTART_IN_PLACE, Cause.CODE)
    assert after.status.used == {"code": 1}


async def test_a_failed_device_costs_one_pod_and_the_spare_takes_its_rank(rig: Rig) -> None:
    before = await trained(rig, rig.job(spares=1, rack=True), spares=1)
    victim, spare = before.status.members[1], before.status.spares[0]
    launchers = rig.launchers()

    await rig.fail_device(victim.node, victim.devices[0])
    after = await recovered(rig, before)

    kept(before, after, moved={1})
    assert after.status.members[1].uid == spare.uid
    assert (last(after).remedy, last(after).cause, last(after).reason) == (Remedy.PROMOTE_SPARE, Cause.DEVICE, "Xid79")
    survivors = {m.uid for m in after.status.members}
    assert {uid: pid for uid, pid in rig.launchers().items() if uid in survivors} == {
        uid: pid for uid, pid in launchers.items() if uid in survivors
    }
    ledger = await rig.api.get(NodeDevices, victim.node)
    assert {v.device for v in ledger.verdicts if v.state is DeviceState.UNHEALTHY} == {victim.devices[0]}
    fresh = await rig.until("a fresh spare", lambda job: any(s.parked for s in job.status.spares))
    assert fresh.status.spares[0].uid not in {spare.uid, victim.uid}
    assert await _racks(rig, after) == await _racks(rig, before)
    assert len(await _racks(rig, after)) == 1
    await until("the lost pod's processes to end", lambda: _is_gone(rig, victim.uid))


async def test_without_a_spare_a_new_pod_takes_the_rank_and_the_reason_is_told(rig: Rig) -> None:
    before = await trained(rig, rig.job())
    victim = before.status.members[3]

    await rig.fail_device(victim.node, victim.devices[1], "xid-48")
    after = await recovered(rig, before)

    kept(before, after, moved={3})
    assert last(after).remedy is Remedy.REPLACE_POD
    assert any(why.startswith("PromoteSpare: 0 spares parked") for why in last(after).why_not)
    assert (victim.node, victim.devices[1]) not in {(m.node, d) for m in after.status.members for d in m.devices}


async def test_a_spare_that_fails_is_replaced_without_disturbing_the_gang(rig: Rig) -> None:
    before = await trained(rig, rig.job(spares=1), spares=1)
    spare = before.status.spares[0]

    await rig.fail_device(spare.node, spare.devices[0])
    await rig.until("another spare", lambda job: any(s.parked and s.uid != spare.uid for s in job.status.spares))

    after = await rig.get()
    assert after.status.attempt == before.status.attempt
    kept(before, after)
    await rig.check_invariants()


async def test_a_killed_launcher_comes_back_in_the_same_pod(rig: Rig) -> None:
    before = await trained(rig, rig.job(spares=1), spares=1)
    victim = before.status.members[0]
    launchers = rig.launchers()

    await rig.strike(DrillKind.LAUNCHER_KILL, victim)
    after = await recovered(rig, before)

    kept(before, after)
    changed = {uid for uid, pid in rig.launchers().items() if launchers[uid] != pid}
    assert changed == {victim.uid}
    pod = await rig.api.get(Pod, victim.pod, NAMESPACE)
    assert [c.restart_count for c in pod.status.container_statuses] == [1]
    assert last(after).cause is Cause.INFRA


async def test_a_rank_that_makes_no_step_is_hung_and_restarted(rig: Rig) -> None:
    rig.let_run_to(1_000_000)
    # Longer than a busy machine holds a healthy gang up.
    await rig.submit(rig.job(failure=Failure(hang_after_seconds=8.0)))
    before = await rig.until("a checkpoint", lambda job: job.status.progress.checkpoint_step > 0)

    await rig.strike(DrillKind.PROCESS_HANG, before.status.members[1])
    after = await rig.until("training to go on", lambda job: bool(job.status.recoveries) and _is_over(job))

    kept(before, after)
    assert (last(after).remedy, last(after).cause) == (Remedy.RESTART_IN_PLACE, Cause.HANG)
    assert after.status.used == {"hang": 1}
    started = await rig.all_started(2)
    resumed = {line.resumed for line in started.values()}
    assert resumed == {last(after).resume_step}
    assert last(after).resume_step >= before.status.progress.checkpoint_step
    await rig.check_invariants()


async def test_a_corrupt_newest_checkpoint_makes_everybody_fall_back_one(rig: Rig) -> None:
    before = await trained(rig, rig.job())
    assert [rig.checkpoints(rank)[-2:] for rank in range(RANKS)] == [[SAVED_BEFORE, SAVED]] * RANKS
    newest = rig.checkpoint_folder(3) / f"step-{SAVED}.ckpt"
    newest.write_bytes(bytes(byte ^ 0xFF for byte in newest.read_bytes()))

    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[0])
    after = await recovered(rig, before, resumed=SAVED_BEFORE)

    kept(before, after)


async def test_a_rank_without_any_checkpoint_takes_everybody_to_the_beginning_for_good_where_the_job_allows_it(
    rig: Rig,
) -> None:
    job = rig.job()
    allowed = Checkpoint(fall_back=CheckpointFallBack.ALLOWED)
    before = await trained(
        rig, msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, checkpoint=allowed))
    )
    shutil.rmtree(rig.checkpoint_folder(2))
    rig.let_run_to(SAVED_BEFORE - 1)  # the new history stays behind what the others still have on disk

    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[0])
    again = await rig.trained_to(SAVED_BEFORE - 1, attempt=2)
    assert {line.resumed for line in (await rig.all_started(2)).values()} == {None}
    kept(before, again)

    # As if rank 2 were the first to save step 8 anew when the next fault comes: the others' step 8 is of the old history.
    for suffix in ("ckpt", "json"):
        name = f"step-{SAVED_BEFORE}.{suffix}"
        shutil.copy(rig.checkpoint_folder(0) / name, rig.checkpoint_folder(2) / name)
    await rig.strike(DrillKind.PROCESS_KILL, again.status.members[1])
    await rig.trained_to(SAVED_BEFORE - 1, attempt=3)
    assert {line.resumed for line in (await rig.all_started(3)).values()} == {SAVED_BEFORE - 4}
    await rig.check_invariants()


async def test_a_deleted_pod_is_replaced_alone(rig: Rig) -> None:
    before = await trained(rig, rig.job(spares=1), spares=1)
    victim = before.status.members[2]

    await rig.api.delete(Pod, victim.pod, NAMESPACE)
    after = await recovered(rig, before)

    kept(before, after, moved={2})
    assert (last(after).cause, last(after).reason) == (Cause.INFRA, "PodDeleted")
    assert after.status.members[2].uid == before.status.spares[0].uid
    await until("the deleted pod's processes to end", lambda: _is_gone(rig, victim.uid))


async def test_a_lost_node_costs_the_pods_on_it(state: Path) -> None:
    # Whole machines, so that each rank has a node of its own.
    async with embedded(state, ClusterConfig(nodes=6, racks=1, lease_seconds=10.0)) as rig:
        before = await trained(rig, rig.job(gpus=8, spares=1), spares=1)
        victim = before.status.members[1]

        await rig.drill(DrillKind.NODE_LOST, node=victim.node)
        after = await recovered(rig, before)

        kept(before, after, moved={1})
        assert (last(after).cause, last(after).reason) == (Cause.INFRA, "NodeLost")
        assert after.status.members[1].uid == before.status.spares[0].uid
        assert victim.node not in {m.node for m in after.status.members}
        assert not rig.is_launcher_alive(victim.uid)


async def test_two_faults_at_once_are_cured_together(rig: Rig) -> None:
    before = await trained(rig, rig.job(spares=1), spares=1)
    crashed, broken = before.status.members[0], before.status.members[3]

    await rig.strike(DrillKind.PROCESS_KILL, crashed)
    await rig.fail_device(broken.node, broken.devices[0])
    # One recovery or two, as it happens; the second may be noticed when the first is over.
    await rig.until("the device to be cured", lambda j: Cause.DEVICE in {r.cause for r in j.status.recoveries})
    after = await _settled(rig)

    kept(before, after, moved={3})
    assert {line.resumed for line in (await rig.all_started(after.status.attempt)).values()} == {SAVED}
    await rig.check_invariants()


async def test_a_fault_during_recovery_is_cured_too(rig: Rig) -> None:
    # Ranks that do not stop until they are let keep the barrier closed, so that the second fault falls into the recovery.
    held = rig.job(spares=2, stop_file=rig.stop_file, failure=HELD)
    before = await trained(rig, held, spares=2)
    first, second = before.status.members[1], before.status.members[2]

    await rig.fail_device(first.node, first.devices[0])
    await rig.until("the recovery to begin", lambda job: job.status.attempt == 2 and job.status.barrier == "Closed")
    await rig.fail_device(second.node, second.devices[0])
    await rig.until("the second fault to be taken in", lambda job: job.status.attempt == 3)
    rig.let_stop()
    after = await _settled(rig)

    kept(before, after, moved={1, 2})
    assert after.status.attempt == 3
    assert [(r.remedy, r.members) for r in after.status.recoveries] == [(Remedy.PROMOTE_SPARE, [first.pod, second.pod])]
    assert after.status.used == {"device": 1}, "one interruption, whatever it consisted of"
    assert {line.resumed for line in (await rig.all_started(3)).values()} == {SAVED}
    assert rig.started(2) == {}, "the barrier of attempt 2 never opened"
    await rig.check_invariants()


async def test_ranks_that_ignore_the_request_to_stop_are_killed_after_the_grace(rig: Rig) -> None:
    before = await trained(rig, rig.job(stop_file=rig.stop_file, failure=Failure(stop_grace_seconds=0.3)))

    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[0])
    after = await recovered(rig, before)

    kept(before, after)
    assert not any(is_alive(line.pid) for line in rig.started(1).values())


async def test_a_spent_budget_fails_the_job_with_a_named_reason(rig: Rig) -> None:
    before = await trained(rig, rig.job(failure=Failure(budgets=Budgets(code=1))))
    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[0])
    again = await recovered(rig, before)
    await rig.strike(DrillKind.PROCESS_KILL, again.status.members[0])

    failed = await rig.until("the job to fail", lambda job: job.status.phase == "Failed")

    assert failed.status.reason == "CodeBudgetExhausted"
    assert "Failed 2 times because of its own code (limit 1)." in failed.status.message
    assert last(failed).remedy is Remedy.FAIL
    await until("its ranks to have ended", lambda: _have_ended(rig, {member.pod for member in failed.status.members}))
    assert rig.live_ranks() == []


async def _have_ended(rig: Rig, ranks: set[str]) -> bool:
    """Their pods stay for their logs; nothing runs there."""
    pods = await rig.pods()
    has_ended = {pod.name for pod in pods} == ranks and all(pod.is_terminal for pod in pods)
    return has_ended and not left_running(rig.state)


async def _settled(rig: Rig) -> TrainingJob:
    """Once nothing is under way any more and every rank is back at the step it was at, in whatever attempt."""
    job = await rig.until("every recovery to be over", lambda job: bool(job.status.recoveries) and _is_over(job))
    return await rig.trained_to(STOP_AT, attempt=job.status.attempt)


def _is_over(job: TrainingJob) -> bool:
    return job.status.phase == "Running" and last(job).first_step_at is not None


async def _racks(rig: Rig, job: TrainingJob) -> set[str]:
    nodes = {m.node for m in job.status.members}
    return {node.labels[RACK_LABEL] for node in (await rig.api.list(Node)).items if node.name in nodes}


async def _is_gone(rig: Rig, uid: str) -> bool:
    return not rig.is_launcher_alive(uid)

"""Real processes and real directories: a restart while checkpoints cannot be read or are gone, and jobs that are edited.

Training stands still at step 14, with checkpoints at 4, 8 and 12, while a test does something to the files or to the job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.drills import DrillKind
from remuda.api.errors import Invalid
from remuda.api.training import TrainingJob
from tests.builders.hanging_file import HangingFile
from tests.e2e.rig import NAME, NAMESPACE, RANKS, Rig, kept

STOP_AT, SAVED, SAVED_BEFORE = 14, 12, 8


async def trained(rig: Rig) -> TrainingJob:
    rig.let_run_to(STOP_AT)
    job = rig.job()
    # A checkpoint is asked for before a suspension; ranks that stand still do not answer, so nobody waits long for it.
    spec = msgspec.structs.replace(
        job.spec, checkpoint=msgspec.structs.replace(job.spec.checkpoint, typical_seconds=0.01)
    )
    await rig.submit(msgspec.structs.replace(job, spec=spec))
    await rig.trained_to(STOP_AT)
    # What the ranks have must be known before it is taken away: the status may be a second behind.
    return await rig.until("the checkpoint to be known", lambda job: job.status.progress.checkpoint_step == SAVED)


async def patch(rig: Rig, spec: dict[str, Any]) -> None:
    await rig.api.patch(TrainingJob, NAME, {"spec": spec}, NAMESPACE)


def marks(rig: Rig) -> dict[int, list[str]]:
    """Checkpoints that are marked anything, by rank."""
    folders = {rank: rig.checkpoint_folder(rank) for rank in range(RANKS)}
    return {
        rank: found
        for rank, folder in folders.items()
        if (found := sorted(p.name for kind in ("bad", "abandoned") for p in folder.glob(f"*.{kind}")))
    }


async def resumed_from(rig: Rig, attempt: int, ranks: int = RANKS) -> set[int | None]:
    return {line.resumed for line in (await rig.all_started(attempt, ranks)).values()}


async def held(rig: Rig, kind: str) -> TrainingJob:
    return await rig.until(kind, lambda job: is_condition_true(job.status.conditions, kind))


def as_loop(path: Path) -> Path:
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    path.symlink_to(path.name)
    return aside


async def test_a_directory_that_cannot_be_read_for_a_while_costs_no_checkpoint(rig: Rig) -> None:
    before = await trained(rig)
    folder = rig.checkpoint_folder(1)
    aside = as_loop(folder)
    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[2])
    waiting = await held(rig, "CheckpointsUnreadable")
    said = find_condition(waiting.status.conditions, "CheckpointsUnreadable")
    assert said is not None
    assert f"rank 1 ({before.status.members[1].pod} on " in said.message
    assert f"{folder}: Too many levels of symbolic links" in said.message
    folder.unlink()
    aside.rename(folder)
    after = await rig.trained_to(STOP_AT, attempt=2)
    assert await resumed_from(rig, 2) == {SAVED}
    assert marks(rig) == {}
    assert not is_condition_true(after.status.conditions, "CheckpointsUnreadable")
    await rig.check_invariants()


async def test_a_volume_that_hangs_is_waited_for_and_nobody_is_blamed(rig: Rig) -> None:
    """For longer than a rank has to stop: all have stopped, though one cannot say yet what it has."""
    before = await trained(rig)
    folder = rig.checkpoint_folder(1)
    side = HangingFile(folder / f"step-{SAVED}.json")
    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[2])
    waited_s = 16
    assert before.spec.failure.stop_deadline_seconds < waited_s
    waiting = await rig.until(
        "the doubt to be told", lambda job: f"{folder} has not answered for {waited_s} s" in job.status.message
    )
    assert is_condition_true(waiting.status.conditions, "CheckpointsUnreadable")
    side.answer()
    after = await rig.trained_to(STOP_AT, attempt=2)
    assert await resumed_from(rig, 2) == {SAVED}
    kept(before, after)
    assert [recovery.attempt for recovery in after.status.recoveries] == [2]
    await rig.check_invariants()


async def test_checkpoints_that_are_gone_are_waited_for(rig: Rig) -> None:
    before = await trained(rig)
    folder = rig.checkpoint_folder(3)
    aside = folder.rename(folder.with_name("elsewhere"))
    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[0])
    waiting = await held(rig, "CheckpointMissing")
    assert f"step {SAVED} is not there any more: rank 3 (" in waiting.status.message
    aside.rename(folder)
    await rig.trained_to(STOP_AT, attempt=2)
    assert await resumed_from(rig, 2) == {SAVED}
    assert marks(rig) == {}


async def test_consent_goes_on_from_an_earlier_step_and_keeps_what_lies_ahead(rig: Rig) -> None:
    before = await trained(rig)
    for path in rig.checkpoint_folder(3).glob(f"step-{SAVED}.*"):
        path.rename(path.with_name("kept-" + path.name))
    rig.let_run_to(10)
    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[0])
    waiting = await held(rig, "CheckpointMissing")
    assert f"--from-step {SAVED_BEFORE}`" in waiting.status.message
    consent = {"step": SAVED_BEFORE, "attempt": waiting.status.attempt}
    await patch(rig, {"checkpoint": {"resumeFrom": consent}})
    await rig.trained_to(10, attempt=2)
    assert await resumed_from(rig, 2) == {SAVED_BEFORE}
    assert marks(rig) == {rank: [f"step-{SAVED}.abandoned"] for rank in range(3)}
    for rank in range(3):
        assert (rig.checkpoint_folder(rank) / f"step-{SAVED}.ckpt").read_bytes() == str(SAVED).encode()
    rig.let_run_to(STOP_AT)
    await rig.trained_to(STOP_AT, attempt=2)
    assert marks(rig) == {}, "saved again"


async def test_a_corrupt_newest_checkpoint_is_still_passed_over_at_once(rig: Rig) -> None:
    before = await trained(rig)
    (rig.checkpoint_folder(1) / f"step-{SAVED}.ckpt").write_bytes(b"12345")
    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[2])
    await rig.trained_to(STOP_AT, attempt=2)
    assert await resumed_from(rig, 2) == {SAVED_BEFORE}


async def grow(rig: Rig, replicas: int) -> None:
    role = (await rig.get()).spec.roles[0]
    await patch(rig, {"roles": [to_wire(msgspec.structs.replace(role, replicas=replicas))]})


async def test_a_running_job_that_grows_goes_on_from_its_checkpoint(rig: Rig) -> None:
    before = await trained(rig)
    await grow(rig, RANKS + 1)
    await rig.strike(DrillKind.PROCESS_KILL, before.status.members[2])
    after = await rig.until("five ranks", lambda job: job.status.attempt == 2 and job.status.barrier == "Open")
    assert len(after.status.members) == RANKS + 1
    assert await resumed_from(rig, 2, RANKS + 1) == {SAVED}
    await rig.trained_to(STOP_AT, attempt=2)


async def test_a_suspended_job_grows_and_changes_its_template_and_goes_on_from_its_checkpoint(rig: Rig) -> None:
    await trained(rig)
    role = (await rig.get()).spec.roles[0]
    other = msgspec.to_builtins(role.template.spec)
    other["containers"][0]["env"].append({"name": "E2E_TEMPLATE", "value": "other"})
    edit = {**to_wire(role), "replicas": RANKS + 1, "template": {"spec": other}}
    with pytest.raises(Invalid, match="TemplateInUse"):
        await patch(rig, {"roles": [edit]})
    await patch(rig, {"suspend": True})
    await rig.until("it is suspended", lambda job: job.status.phase == "Suspended")
    await patch(rig, {"roles": [edit]})
    await patch(rig, {"suspend": False})
    await rig.trained_to(STOP_AT, attempt=2)
    started = await rig.all_started(2, RANKS + 1)
    assert {line.resumed for line in started.values()} == {SAVED}
    assert {line.env.get("E2E_TEMPLATE") for line in started.values()} == {"other"}

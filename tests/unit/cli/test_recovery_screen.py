"""Recoveries and transitions in words."""

import msgspec
from rich.console import Group

from remuda.api.training import SparePod
from remuda.cli.jobs.recovery_screen import job_transition_lines, recovery_screen_line, render_recoveries
from tests.unit.cli.scenes import a_job, a_recovery, text_of


def test_a_recovery_under_way_has_dashes_for_what_is_to_come() -> None:
    begun = a_recovery(stopped_at=None, opened_at=None, first_step_at=None, replaced=[], why_not=[])
    table = text_of(Group(*render_recoveries([begun], 80)), 80).splitlines()
    assert table[2].split() == ["2", "device", "Xid79", "PromoteSpare", "0.12", "0.05s", "-", "-", "-", "-"]


def test_a_long_reason_folds_so_that_every_number_is_whole() -> None:
    long = a_recovery(reason="CheckpointPathNotWritable", step_at_fault=123456, resume_step=0)
    lines = text_of(Group(*render_recoveries([long], 80)), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].endswith(" 1.50s 123456")
    assert "…" not in "".join(lines)


def test_the_newest_recovery_is_explained_and_with_wide_all_of_them() -> None:
    first = a_recovery(attempt=2, message="The first.")
    second = a_recovery(attempt=3, message="The second.")
    short, long = (text_of(Group(*render_recoveries([first, second], 100, wide=w)), 100) for w in (False, True))
    assert "attempt 3: The second." in short
    assert "The first." not in short
    assert "attempt 2: The first." in long


def test_the_first_look_tells_the_phase_and_finished_recoveries() -> None:
    assert job_transition_lines(None, a_job()) == [
        "attempt 2 Running - BarrierOpen: All 3 ranks run attempt 2.",
        "attempt 2 recovered - " + recovery_screen_line(a_recovery()),
    ]


def test_nothing_is_said_when_only_numbers_move() -> None:
    before = a_job()
    after = a_job(progress=msgspec.structs.replace(before.status.progress, step=150))
    assert job_transition_lines(before, after) == []


def test_a_recovery_is_told_when_it_begins_and_when_it_is_over() -> None:
    calm = a_job(attempt=1, recoveries=[], spares=[])
    begun = a_recovery(stopped_at=None, opened_at=None, first_step_at=None)
    under_way = a_job(
        phase="Recovering", reason="Xid79", message="1 of 3 ranks are ready.", recoveries=[begun], spares=[]
    )
    first, second = job_transition_lines(calm, under_way)
    assert first == "attempt 2 Recovering - Xid79: 1 of 3 ranks are ready."
    assert second == (
        "attempt 2 remedy - PromoteSpare at 0.12 GPU-hours "
        "(not RestartInPlace: hello-worker-1 cannot be used again (Xid79))"
    )
    over = job_transition_lines(under_way, a_job())
    assert over[0] == "attempt 2 Running - BarrierOpen: All 3 ranks run attempt 2."
    assert over[1] == (
        "attempt 2 recovered - PromoteSpare after Xid79 (device): detected 0.05s, stopped 0.60s, told to start 1.00s, "
        "first new step 1.50s, 3 steps lost"
    )
    assert over[2] == "attempt 2 spare parked - hello-worker-4"


def test_a_spare_that_is_only_placed_is_not_parked() -> None:
    waiting = SparePod("hello-worker-4", "uid-4", "worker", "node-05", [], parked=False)
    assert job_transition_lines(a_job(spares=[]), a_job(spares=[waiting])) == []

"""The window of samples: bounded, of the newest attempt, each step once, without the first steps."""

from __future__ import annotations

from remuda.core.health.step_samples import WARM_UP
from remuda.link.progress_board import Heartbeat, ProgressBoard
from remuda.link.step_window import KEPT


def beat(step: int, uid: str = "u0", attempt: int = 1, own: float | None = 0.5, took: float | None = 1.0) -> Heartbeat:
    return Heartbeat("ns", "g", "pod", uid, attempt, step, took, own, time=float(attempt * 10_000 + step))


def steps(board: ProgressBoard, uid: str = "u0", attempt: int = 1) -> list[int]:
    return [s.step for s in board.samples.of_gang("ns", "g", attempt).get(uid, ())]


def test_the_first_steps_of_an_attempt_are_left_out() -> None:
    board = ProgressBoard()
    for step in range(1, 8):
        board.report(beat(step))
    assert steps(board) == list(range(1 + WARM_UP, 8))
    assert board.samples.newest("ns", "g") == (1, 7)


def test_a_step_counts_once_and_a_beat_without_times_not_at_all() -> None:
    board = ProgressBoard()
    for step in (1, 2, 3, 4, 4, 5):
        board.report(beat(step))
    board.report(beat(6, own=None, took=None))
    board.report(beat(7, own=None))
    assert steps(board) == [4, 5, 7]


def test_the_window_is_bounded() -> None:
    board = ProgressBoard()
    for step in range(KEPT * 3):
        board.report(beat(step))
    assert len(steps(board)) == KEPT


def test_a_new_attempt_begins_a_new_window_for_everybody() -> None:
    board = ProgressBoard()
    for uid in ("u0", "u1"):
        for step in range(10):
            board.report(beat(step, uid))
    board.report(beat(8, attempt=2))
    assert steps(board, "u1", 2) == steps(board, "u1", 1) == []
    board.report(beat(11, "u1"))  # late
    assert board.samples.newest("ns", "g") == (2, 0)


def test_a_forgotten_gang_leaves_nothing() -> None:
    board = ProgressBoard()
    for step in range(10):
        board.report(beat(step))
    board.forget("ns", "g")
    assert steps(board) == []


def test_more_own_time_than_the_step_took_is_no_measurement() -> None:
    """A rank that lies about its own time alone is called slow by nobody; what it says of the step still counts."""
    board = ProgressBoard()
    for step in range(1, 8):
        board.report(beat(step, own=50.0))
        board.report(beat(step, uid="u1", own=1.01))  # measured apart: no lie
    kept = board.samples.of_gang("ns", "g", 1)
    assert {(s.self_seconds, s.step_seconds) for s in kept["u0"]} == {(None, 1.0)}
    assert {s.self_seconds for s in kept["u1"]} == {1.01}


def test_a_step_that_goes_back_is_no_sample() -> None:
    board = ProgressBoard()
    for step in (1, 2, 3, 4, 5, 2, 1, 6):
        board.report(Heartbeat("ns", "g", "pod", "u0", 1, step, 1.0, 0.5, time=50.0))
    assert steps(board) == [4, 5, 6]

"""The end of a failed rank's log: told to the API only for a job that has a rule about it, and never more than is allowed."""

from __future__ import annotations

import pytest

from remuda.agent.launchers import launcher_state
from remuda.agent.launchers.launcher_state import LauncherRecord
from remuda.launch.protocol import MAX_TAIL, Exited, Hello, Running

NOW = 1_000.0


def exited(tail: str) -> str:
    known = LauncherRecord(pod="p", uid="u")
    for message in (Hello("p", "u", 1, "running", 1), Running(1, 2, NOW), Exited(1, 3, None, NOW, "exit code 3", tail)):
        known = launcher_state.receive_launcher_message(known, message, NOW).launcher
    assert known.report is not None
    assert (known.report.state, known.report.code) == ("exited", 3)
    return known.report.tail


@pytest.mark.parametrize("length", [0, 10, MAX_TAIL, MAX_TAIL + 10])
def test_the_tail_is_bounded_from_the_front(length: int) -> None:
    text = "".join(chr(97 + n % 26) for n in range(length))
    assert exited(text) == text[-MAX_TAIL:]

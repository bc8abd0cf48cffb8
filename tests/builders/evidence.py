"""What a drill saw, in its own words, for the table of `make drills` and docs/failure-modes.md.

    note("gpu-3 Unhealthy after 0.4 s; allocatable 7, capacity 8")

The words go with the test's report, so they arrive from other processes too. A note is a fact that the test has asserted: put it
behind the assertion.
"""

from __future__ import annotations

import pytest

PROPERTY = "evidence"

_current: list[pytest.Item] = []


def begin(item: pytest.Item) -> None:
    _current[:] = [item]


def note(text: str) -> None:
    """Kept with the test that runs now; nothing when none does."""
    for item in _current:
        item.user_properties.append((PROPERTY, text))


def of(report: pytest.TestReport) -> list[str]:
    return [str(value) for name, value in report.user_properties if name == PROPERTY]

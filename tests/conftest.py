"""Options of the test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="run the random schedule of this seed alone")
    parser.addoption("--schedules", type=int, default=200, help="how many random schedules to run")

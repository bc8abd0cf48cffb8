"""Options of the test suite."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# No test of ours is about speed, and a busy machine must not fail one; a failing example prints how to run it again.
settings.register_profile("remuda", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("remuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="run the random schedule of this seed alone")
    parser.addoption("--schedules", type=int, default=200, help="how many random schedules to run")

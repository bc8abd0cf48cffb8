"""Options of the test suite."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# No test of ours is about speed, and a busy machine must not fail one; a failing example prints how to run it again.
# In CI the same examples are drawn every time: a change is judged by what it changed; runs by hand go on searching.
settings.register_profile(
    "remuda",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
# For `make check`, where two minutes are all there is; `make test` draws the whole number afterwards.
settings.register_profile("quick", settings.get_profile("remuda"), max_examples=25)
settings.load_profile("remuda")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="run the random schedule of this seed alone")
    parser.addoption("--schedules", type=int, default=500, help="how many random schedules to run")

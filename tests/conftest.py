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


# A test of real processes, sockets or third-party servers that fails is tried once more: on a busy machine it may lose a race
# against a deadline of its own. It is named in the summary, and more than this many of them in one run is a failure: a suite that
# needs its second tries is broken. Tests of pure code and in virtual time depend on nothing but their input and are never tried
# again; a second try could only hide what they found.
MOST_SECOND_TRIES = 3
LONGEST_STORY = 3000  # characters of a first try's traceback
PURE = ("tests/unit/core/", "tests/unit/api/", "tests/unit/sim/", "tests/property/")
IN_VIRTUAL_TIME = ("test_random_", "test_scenarios_", "test_barrier_walks")


def is_repeatable(item: pytest.Item) -> bool:
    """Its input alone decides how it ends."""
    return item.nodeid.startswith(PURE) or item.path.stem.startswith(IN_VIRTUAL_TIME)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not is_repeatable(item):
            item.add_marker(pytest.mark.flaky(reruns=1))


class SecondTries:
    """Counts tests that passed only when tried again."""

    def __init__(self) -> None:
        self.first: list[tuple[str, str]] = []  # test, how its first try ended

    @property
    def count(self) -> int:
        return len(self.first)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if str(report.outcome) == "rerun":
            self.first.append((report.nodeid, report.longreprtext))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.count > MOST_SECOND_TRIES and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, story in self.first:
            terminalreporter.write_sep("_", f"first try of {test}", yellow=True)
            terminalreporter.write_line(story[-LONGEST_STORY:])
        if self.count:
            verdict = "too many, this run fails" if self.count > MOST_SECOND_TRIES else "look into them"
            terminalreporter.write_line(
                f"{self.count} second tries, {MOST_SECOND_TRIES} allowed: {verdict}", yellow=True
            )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SecondTries(), "second-tries")

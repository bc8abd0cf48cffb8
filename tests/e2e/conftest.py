"""Clusters for the end-to-end tests: short leases, few nodes, and nothing left behind whatever the test does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.clusters import Up, embedded
from tests.e2e.rig import Rig, sweep
from tests.e2e.small_disk import NO_ROOT
from tests.kube.conftest import pytest_terminal_summary as kubernetes_summary


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    kubernetes_summary(terminalreporter)
    count = sum(NO_ROOT in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if count:
        terminalreporter.section("TESTS ON A FULL DISK DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"{count} skipped: {NO_ROOT}.", red=True, bold=True)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state directory of the test's own; whatever still runs for it in the end is killed."""
    path = tmp_path / "state"
    path.mkdir()
    yield path
    sweep(path)


@pytest.fixture
async def rig(state: Path) -> AsyncIterator[Rig]:
    async with embedded(state) as found:
        yield found


@pytest.fixture
def up(state: Path) -> Iterator[Up]:
    """`remuda up`, a process of its own that has begun."""
    cluster = Up(state)
    cluster.start()
    yield cluster
    cluster.kill()  # what it leaves running is ended by `state`

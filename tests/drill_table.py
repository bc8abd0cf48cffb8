"""A pytest plugin (`-p tests.drill_table`): the table of `make drills`, and docs/failure-modes.md from it.

Every test named `test_row_<number>_<what>` is a drill of that row of the checklist, wherever it is: in tests/drills and
tests/component on the embedded cluster, in tests/kube on a real kubelet. A row passes when it has a drill on the embedded cluster
and all its drills passed. A row without a drill fails the run, except those that need DRA.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.builders import evidence
from tests.drills.rows import ON_A_KUBELET, ROWS, Row

DOCS = Path(__file__).parents[1] / "docs" / "failure-modes.md"
HEAD = """# Failure modes, and what holds

What can go wrong with devices under pods, gangs and jobs, and what a user can rely on. Each row is shown by drills: faults
injected on purpose into the embedded cluster, whose node behaves as a kubelet does, flaws included
([kubelet-behaviour.md](kubelet-behaviour.md)); the rows marked so on a real kubelet as well. `make drills` runs them all and
writes this page from what they saw.

"""
_NAME = re.compile(r"test_row_(\d+)_([^\[]+)")


class Drilled(msgspec.Struct):
    """One drill and what came of it."""

    name: str
    is_real: bool
    passed: bool = True
    skipped: bool = False
    seen: list[str] = []


class DrillTable:
    def __init__(self, writes: bool) -> None:
        self._writes = writes
        self._drills: dict[int, dict[str, Drilled]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        evidence.begin(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = _NAME.search(report.nodeid)
        if found is None:
            return
        rows = self._drills.setdefault(int(found[1]), {})
        is_real = "tests/kube/" in report.nodeid
        drill = rows.setdefault(report.nodeid, Drilled(found[2].replace("_", "-"), is_real, seen=[]))
        if report.when == "call" or report.outcome == "failed":
            drill.passed = report.outcome != "failed"
            drill.skipped = report.outcome == "skipped"
            drill.seen = evidence.of(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        missing = [row.number for row in ROWS if not row.later and not self._of(row, is_real=False)]
        if missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._writes and not missing and session.exitstatus == pytest.ExitCode.OK:
            DOCS.write_text(HEAD + "\n".join(self._table(is_page=True)) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("failure modes")
        for line in self._table(is_page=False):
            terminalreporter.write_line(line)
        states = [self._state(row) for row in ROWS]
        counts = {state: states.count(state) for state in ("pass", "FAIL", "MISSING", "DRA: later")}
        terminalreporter.write_line(", ".join(f"{count} {state}" for state, count in counts.items() if count))

    def _of(self, row: Row, *, is_real: bool) -> list[Drilled]:
        """By name, whichever process was first."""
        drills = sorted(self._drills.get(row.number, {}).items())
        return [drill for _, drill in drills if drill.is_real is is_real and not drill.skipped]

    def _state(self, row: Row) -> str:
        drills = [*self._of(row, is_real=False), *self._of(row, is_real=True)]
        if any(not drill.passed for drill in drills):
            return "FAIL"
        if not self._of(row, is_real=False):
            return "DRA: later" if row.later else "MISSING"
        return "pass"

    def _table(self, *, is_page: bool) -> list[str]:
        lines = ["| Row | What holds | Result | Drill | What was seen |", "|---|---|---|---|---|"] if is_page else []
        for row in ROWS:
            embedded, real = self._of(row, is_real=False), self._of(row, is_real=True)
            names = ", ".join(dict.fromkeys(drill.name for drill in embedded))  # those with parameters are several
            seen = "; ".join(dict.fromkeys(text for drill in (*embedded, *real) for text in drill.seen))
            state = self._state(row)
            if real and state == "pass":
                state = "pass, also on a real kubelet"
            elif row.number in ON_A_KUBELET and state == "pass":
                state = "pass (embedded only in this run)"
            cells = [str(row.number), row.what, state, names, seen]
            if is_page:
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
            else:
                lines.append(f"{row.number:3} {state:12} {names[:60]:60} {seen[:110]}".rstrip())
        return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-docs", action="store_true", help="write docs/failure-modes.md from this run")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(DrillTable(config.getoption("--write-docs")), "drill-table")

"""Every case gives the same transcript on both servers, but for what docs/compatibility.md says, and all it says is so."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.conformance.catalogue import CASES
from tests.conformance.conftest import Compare
from tests.conformance.documented import TABLE, rows

for _path in sorted(Path(__file__).parent.glob("cases_*.py")):
    importlib.import_module(f"tests.conformance.{_path.stem}")  # registers its cases
ROWS = rows(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(CASES))
def test_servers_agree(name: str, compare: Compare) -> None:
    unknown = [each for each in compare(CASES[name]) if not any(row.covers(each) for row in ROWS)]
    assert not unknown, "differences that docs/compatibility.md does not tell of:\n" + "\n".join(map(str, unknown))


def test_documented_differences_are_there(compare: Compare) -> None:
    found = [each for case in CASES.values() for each in compare(case)]
    stale = [str(row) for row in ROWS if not any(row.covers(each) for each in found)]
    assert not stale, "rows of docs/compatibility.md that no longer hold:\n" + "\n".join(stale)


def test_there_are_enough_cases() -> None:
    by_client = {client: sum(case.client == client for case in CASES.values()) for client in ("kubectl", "py", "lk")}
    assert sum(by_client.values()) >= 120
    assert min(by_client.values()) >= 25, by_client

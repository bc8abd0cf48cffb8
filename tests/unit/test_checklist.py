"""Every row of the failure checklist has a drill that `make drills` finds, and docs/failure-modes.md names those there are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.drills.rows import ROWS

ROOT = Path(__file__).parents[2]
# What `make drills` runs on the embedded cluster (DRILLS of the Makefile).
SOURCES = ("tests/drills/test_*.py", "tests/component/test_rows_*.py", "tests/kubelet_rows/*.py")
_DEF = re.compile(r"def test_row_(\d+)_(\w+)\(")
_LINE = re.compile(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*?) \|", re.M)


def drills() -> dict[int, set[str]]:
    """Row -> the names of its drills, as the table spells them."""
    found: dict[int, set[str]] = {}
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            for number, name in _DEF.findall(path.read_text()):
                found.setdefault(int(number), set()).add(name.replace("_", "-"))
    return found


def test_the_sources_are_those_of_the_makefile() -> None:
    asked = re.search(r"^DRILLS = (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert asked is not None
    assert all(pattern.rpartition("/")[0] in asked[1] for pattern in SOURCES)


def test_every_row_has_a_drill_and_every_drill_a_row() -> None:
    rows = {row.number for row in ROWS}
    assert set(drills()) <= rows
    assert not {row.number for row in ROWS if not row.later} - set(drills())


def test_the_page_lists_every_row_and_names_its_drills() -> None:
    """The page is written by `make drills`; one that is out of date names drills that are not there, or lacks some."""
    page = {int(n): (what, names) for n, what, _, names in _LINE.findall((ROOT / "docs/failure-modes.md").read_text())}
    assert {n: what for n, (what, _) in page.items()} == {row.number: row.what for row in ROWS}
    known = drills()
    assert {n: set(filter(None, names.split(", "))) for n, (_, names) in page.items()} == {
        row.number: known.get(row.number, set()) for row in ROWS
    }

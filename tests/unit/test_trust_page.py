"""docs/trust.md says what each party can and cannot do: each line names a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| (?:can|cannot) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_party_has_a_table() -> None:
    for party in ("Tenant", "Hostile pod", "Agent's token", "Policy writer", "Operator", "Network neighbour"):
        section = PAGE.partition(f"\n## {party}\n")[2].partition("\n## ")[0]
        assert re.search(r"^\| cannot \|", section, re.MULTILINE), party


@pytest.mark.parametrize(("claim", "shown_by"), LINES, ids=range(len(LINES)))
def test_each_line_names_a_test_that_is_there(claim: str, shown_by: str) -> None:
    named = TEST.findall(shown_by)
    assert named, f"no test shows: {claim}"
    assert TEST.sub("", shown_by).strip(", ") == "", f"something else than tests stands behind: {claim}"
    for path, name in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE), f"{path} has no {name}"

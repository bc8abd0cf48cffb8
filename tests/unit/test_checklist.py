"""docs/device-checklist.md and the tests of its rows say the same numbers."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    said = {int(n) for n in re.findall(r"^\| (\d+) \|", (ROOT / "docs/device-checklist.md").read_text(), re.M)}
    tests = "\n".join(path.read_text() for path in (ROOT / "tests/component").glob("test_rows_*.py"))
    assert said == {int(n) for n in re.findall(r"def test_row_(\d+)_", tests)}

"""The table of deliberate differences in docs/compatibility.md, which the suite goes by.

A row is `| cases | where | embedded | kube-apiserver | why |`; the first two are shell patterns in backquotes, over the id
of a case and the address of a difference. Several patterns may stand in one cell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.conformance.transcript import Difference

TABLE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- differences: read by tests/conformance -->", "<!-- end of differences -->"
_PATTERN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    cases: tuple[str, ...]
    where: tuple[str, ...]
    why: str

    def covers(self, difference: Difference) -> bool:
        return any(fnmatchcase(difference.case, p) for p in self.cases) and any(
            fnmatchcase(difference.at, p) for p in self.where
        )

    def __str__(self) -> str:
        return f"{' '.join(self.cases)} at {' '.join(self.where)}"


def rows(text: str) -> list[Row]:
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the table must stand once between {BEGIN} and {END}")
    lines = text.split(BEGIN)[1].split(END)[0].strip().splitlines()[2:]
    found = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        cases, where = (tuple(_PATTERN.findall(cell)) for cell in cells[:2])
        if len(cells) != 5 or not cases or not where or not all(cells):
            raise ValueError(f"not a row of cases, where, embedded, kube-apiserver and why: {line}")
        found.append(Row(cases, where, cells[4]))
    return found

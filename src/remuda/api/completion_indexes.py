"""Sets of completion indexes as Kubernetes writes them: `0-2,5`."""

from __future__ import annotations

from collections.abc import Iterable


def parse_indexes(text: str, completions: int | None = None) -> set[int]:
    """Unreadable parts are passed over, as are indexes beyond `completions`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return found if completions is None else {index for index in found if index < completions}


def format_indexes(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(set(indexes)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a},{b}" for a, b in runs)

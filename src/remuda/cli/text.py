"""Small pieces of text every screen uses: durations, numbers, ranges of names. Pure.

Written for eyes: short, and the same everywhere. Whatever a program reads comes from `-o json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from remuda.api.meta import to_seconds

NOTHING = "-"


def duration_text(seconds: float) -> str:
    """0.34s, 12s, 3m05s, 2h14m, 5d03h: two units at most, so that columns stay narrow."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, s = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{s:02d}s"
    hours, m = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{m:02d}m"
    days, h = divmod(hours, 24)
    return f"{days}d{h:02d}h"


def span_text(seconds: float) -> str:
    """A length of time somebody chose: 5m, 24h, 7d, 1h30m. As `duration`, without units that are nothing."""
    return re.sub(r"(?<=\D)00\D$", "", duration_text(seconds))


def reason_sentence(reason: str, message: str) -> str:
    """Reason and sentence as one. A sentence that begins with the reason's own code (Xid79, xid-79: ...) says it once."""
    head, colon, rest = message.partition(": ")
    is_same = colon and re.sub(r"\W", "", head).lower() == reason.lower()
    return f"{reason}: {rest if is_same else message}" if message else reason


def age_text(since: datetime | None, now: float) -> str:
    """Whole seconds: an age with decimals only flickers."""
    return NOTHING if since is None else duration_text(max(0, round(now - to_seconds(since))))


def elapsed_text(start: datetime | None, end: datetime | None) -> str:
    """Seconds from one moment to another with two digits, or `-` while one of them is not known."""
    if start is None or end is None:
        return NOTHING
    seconds = max(0.0, to_seconds(end) - to_seconds(start))
    return f"{seconds:.2f}s" if seconds < 100 else duration_text(seconds)


def percent_text(ratio: float) -> str:
    return f"{100 * ratio:.1f}%"


def amount_text(number: float, unit: str = "") -> str:
    """1,234 or 0.12: whole above ten, two digits below."""
    text = f"{number:,.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.2f}"
    return f"{text} {unit}".rstrip()


def plural_text(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


_NUMBERED = re.compile(r"(.*?)(\d+)$")


def compact_names(names: Iterable[str]) -> str:
    """Runs of numbered names as ranges: gpu-0..7, gpu-0..2,5. Names without a number stay as they are."""
    groups: list[tuple[str, list[list[int]]]] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            groups.append((name, []))
            continue
        number = int(match[2])
        prefix = name.removesuffix(str(number))  # node-01 keeps its zero
        if not groups or groups[-1][0] != prefix or not groups[-1][1]:
            groups.append((prefix, []))
        runs = groups[-1][1]
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join(prefix + ",".join(map(_number_run_text, runs)) for prefix, runs in groups) or NOTHING


def _number_run_text(ends: Sequence[int]) -> str:
    dots = ".." if ends[-1] - ends[0] > 1 else ","  # 0,1 is as short as 0..1 and reads better
    return dots.join(map(str, ends))


def printed_number_ranges(values: Sequence[int]) -> str:
    """Ranges of bare numbers: 0-3, 7."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], value]
        else:
            runs.append([value])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"

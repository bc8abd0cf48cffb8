"""Lengths of time as people write them: 90, 90s, 30m, 1h, 7d, 1h30m. One way to read them, for every option that takes one."""

from __future__ import annotations

import re

import click

from remuda.api.errors import Refusal

LONGEST_S = 10 * 365 * 86_400.0
FIX = "Write it as 45m, 24h, 7d or 1h30m."
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def parse_duration_option(text: str) -> float:
    """Seconds, more than none; Refusal InvalidDuration."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise Refusal("InvalidDuration", f"`{text}` is not a duration.", FIX)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < total <= LONGEST_S:
        raise Refusal("InvalidDuration", f"`{text}` is {'too long' if total else 'no time at all'}.", FIX)
    return total


class Duration(click.ParamType[float]):
    """An option in seconds. A bare number is taken as it is: what it may be is checked where it is used."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        try:
            return float(str(value))
        except ValueError:
            return parse_duration_option(str(value))


DURATION = Duration()

"""Quantities as the server writes them back: `0.5` becomes `500m`, `1.5Gi` becomes `1536Mi`, 2 becomes "2"."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import Any

from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject
from remuda.api.quantity import parse_quantity

_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def canonical(text: int | str, *, finest: int = 10**9) -> str:
    """The one spelling of the value in the family of units that was used; text that is no quantity is returned as it is.

    `finest`: parts of one that are kept; what is finer is rounded up.
    """
    try:
        value = parse_quantity(text)
    except Refusal:
        return str(text)
    if value.denominator > 1:
        value = Fraction(ceil(value * finest), finest)
    written = str(text)
    is_exponent = re.search(r"[eE][+-]?\d+$", written) is not None
    return render(value, binary=written.endswith("i"), exponent=is_exponent)


def render(value: Fraction, *, binary: bool = False, exponent: bool = False) -> str:
    if value == 0:
        return "0"
    if binary and abs(value) >= 1024 and value.denominator == 1:
        number, power = value.numerator, 0
        while number % 1024 == 0 and power < len(_BINARY) - 1:
            number, power = number // 1024, power + 1
        return f"{number}{_BINARY[power]}"
    number, scale = ceil(value * 10**9), -9
    while number % 1000 == 0 and scale < 18:
        number, scale = number // 1000, scale + 3
    if exponent:
        return f"{number}e{scale}" if scale else str(number)
    return f"{number}{_DECIMAL[scale]}"


def canonical_all(amounts: Any) -> Any:
    """A list of resources, each in its canonical form, to the thousandth; the rest is left for the validators to refuse."""
    if not isinstance(amounts, dict):
        return amounts
    plain: JsonObject = {
        name: canonical(str(value), finest=1000)
        if isinstance(value, (int, float, str)) and not isinstance(value, bool)
        else value
        for name, value in amounts.items()
    }
    return plain

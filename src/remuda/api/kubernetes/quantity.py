"""Kubernetes quantities: `2`, `500m`, `16Gi`, `1e3`.

Read to exact values, and written as API servers write them back: `0.5` becomes `500m`, `1.5Gi` becomes `1536Mi`, 2 becomes "2".
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject

_SUFFIX: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i))?$", re.ASCII)
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@lru_cache(maxsize=4096)  # a cluster writes the same few amounts all day long
def parse_quantity(text: int | str) -> Fraction:
    """The exact value; a Refusal names what is wrong."""
    if isinstance(text, int):
        return Fraction(text)
    match = _QUANTITY.match(text.strip())
    if match is None:
        raise Refusal(
            "InvalidQuantity", f"`{text}` is not a quantity.", "Write a number with a unit, say 2, 500m or 16Gi."
        )
    number, exponent, suffix = match.groups()
    value = Fraction(number)
    if exponent:
        return value * Fraction(10) ** int(exponent)
    return value * _SUFFIX[suffix or ""]


def parse_whole_quantity(text: int | str) -> int:
    """A quantity that must be a whole number (devices); a Refusal otherwise."""
    value = parse_quantity(text)
    if value.denominator != 1:
        raise Refusal("InvalidQuantity", f"`{text}` is not a whole number.", "Devices are asked for in whole numbers.")
    return value.numerator


def canonical_quantity(text: int | str, *, finest: int = 10**9) -> str:
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
    return format_quantity(value, binary=written.endswith("i"), exponent=is_exponent)


def format_quantity(value: Fraction, *, binary: bool = False, exponent: bool = False) -> str:
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


def canonical_quantities(amounts: Any) -> Any:
    """A list of resources, each in its canonical form, to the thousandth; the rest is left for the validators to refuse."""
    if not isinstance(amounts, dict):
        return amounts
    plain: JsonObject = {
        name: canonical_quantity(str(value), finest=1000)
        if isinstance(value, (int, float, str)) and not isinstance(value, bool)
        else value
        for name, value in amounts.items()
    }
    return plain

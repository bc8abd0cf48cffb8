"""Kubernetes quantities: `2`, `500m`, `16Gi`, `1e3`. Parsed to exact integers of the base unit (or of milli-units)."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from remuda.api.errors import Refusal

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


def whole(text: int | str) -> int:
    """A quantity that must be a whole number (devices); a Refusal otherwise."""
    value = parse_quantity(text)
    if value.denominator != 1:
        raise Refusal("InvalidQuantity", f"`{text}` is not a whole number.", "Devices are asked for in whole numbers.")
    return value.numerator

"""Quantities are exact."""

from fractions import Fraction

import pytest

from remuda.api.errors import Refusal
from remuda.api.kubernetes.quantity import parse_quantity, parse_whole_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (3, Fraction(3)),
        ("3", Fraction(3)),
        ("500m", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("1Ki", Fraction(1024)),
        ("16Gi", Fraction(16 * 2**30)),
        ("2k", Fraction(2000)),
        ("1e3", Fraction(1000)),
        ("12E", Fraction(12 * 10**18)),
        ("1Ei", Fraction(2**60)),
        ("5.", Fraction(5)),
        ("2e-3", Fraction(1, 500)),
        ("-1", Fraction(-1)),
    ],
)
def test_value(text: int | str, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1KB", "--1", "1e", "0x10", "1e9999", "١", "1_0"])
def test_nonsense_names_itself(text: str) -> None:
    with pytest.raises(Refusal, match="InvalidQuantity"):
        parse_quantity(text)


def test_devices_are_whole() -> None:
    assert parse_whole_quantity("8") == 8
    with pytest.raises(Refusal, match="whole numbers"):
        parse_whole_quantity("500m")

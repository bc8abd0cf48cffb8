"""Numbers with bounds: refused in figures that can be read."""

from __future__ import annotations

import math

import pytest

from remuda.api.errors import Refusal
from remuda.api.validation.numbers import checked_number_text, validate_number_range


@pytest.mark.parametrize(
    ("value", "text"),
    [(8, "8"), (31_536_000.0, "31536000"), (-1e9, "-1000000000"), (0.5, "0.5"), (1e20, "1e+20"), (math.inf, "inf")],
)
def test_figures(value: float, text: str) -> None:
    assert checked_number_text(value) == text


@pytest.mark.parametrize("value", [0, 1_000_000, math.nan, math.inf, -math.inf])
def test_what_lies_outside_is_refused_with_the_bounds(value: float) -> None:
    with pytest.raises(Refusal, match=r"Give a number from 1 to 999999\."):
        validate_number_range(value, 1, 999_999, "InvalidSeconds", "spec.soak.seconds")
    validate_number_range(1, 1, 999_999, "InvalidSeconds", "spec.soak.seconds")

"""Numbers with bounds, and how a refusal writes them: whole numbers in full, because nobody reads 3.1536e+07 as a year."""

from __future__ import annotations

from remuda.api.errors import Refusal

_READABLE = 10**15


def validate_number_range(value: float, low: float, high: float, reason: str, field: str) -> None:
    """Raises Refusal. What is not a number (NaN) lies in no range."""
    if not low <= value <= high:
        bounds = f"Give a number from {checked_number_text(low)} to {checked_number_text(high)}."
        raise Refusal(reason, f"{field} is {checked_number_text(value)}.", bounds, field)


def checked_number_text(value: float) -> str:
    """8, 2592000, 0.5; what is longer than anybody reads as 1e+20."""
    is_whole = abs(value) <= _READABLE and value == int(value)
    return f"{value:.0f}" if is_whole else f"{value:g}"

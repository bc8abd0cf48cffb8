"""Every option that takes a time takes it the way people write it."""

from __future__ import annotations

import pytest

from remuda.api.errors import Refusal
from remuda.cli.durations import DURATION, parse_duration_option


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("45m", 2700), ("1h30m", 5400), ("7d", 604800), ("1w", 604800)]
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration_option(text) == seconds
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1x", "-1h", "0s", "1h ago", "999999d"])
def test_what_is_no_duration_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_duration_option(text)
    assert refused.value.reason == "InvalidDuration"
    assert "1h30m" in refused.value.fix


def test_a_bare_number_is_checked_where_it_is_used() -> None:
    assert DURATION.convert("0", None, None) == 0
    assert DURATION.convert("-5", None, None) == -5

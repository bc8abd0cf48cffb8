"""Durations, numbers and ranges as people read them."""

import pytest

from remuda.cli.text import (
    age_text,
    amount_text,
    compact_names,
    duration_text,
    elapsed_text,
    percent_text,
    plural_text,
    printed_number_ranges,
    reason_sentence,
    span_text,
)
from tests.unit.cli.scenes import NOW, at


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.345, "0.34s"),
        (1.0, "1s"),
        (9.999, "10s"),
        (12.4, "12s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (3 * 3600 + 60, "3h01m"),
        (5 * 86400 + 3600 * 3, "5d03h"),
        (-4, "0s"),
    ],
)
def test_durations_take_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([f"gpu-{i}" for i in range(8)], "gpu-0..7"),
        (["gpu-0", "gpu-1", "gpu-2", "gpu-5"], "gpu-0..2,5"),
        (["gpu-3"], "gpu-3"),
        (["gpu-0", "nic-0", "nic-1"], "gpu-0,nic-0,1"),
        (["gpu-0", "gpu-1", "gpu-3", "gpu-4"], "gpu-0,1,3,4"),
        (["odd"], "odd"),
        (["node-01"], "node-01"),
        (["node-00", "node-01", "node-02"], "node-00..2"),
        (["node-09", "node-10"], "node-09,node-10"),
        ([], "-"),
    ],
)
def test_devices_are_shown_as_ranges(names: list[str], text: str) -> None:
    assert compact_names(names) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(300, "5m"), (90, "1m30s"), (86_400, "24h"), (604_800, "7d"), (5400, "1h30m"), (30, "30s"), (0, "0s")],
)
def test_a_chosen_time_has_no_empty_units(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


def test_a_reason_is_said_once() -> None:
    assert reason_sentence("Xid79", "xid-79: GPU unreachable.") == "Xid79: GPU unreachable."
    assert reason_sentence("SlowRank", "slow-rank: rank 3 is slow.") == "SlowRank: rank 3 is slow."
    assert reason_sentence("ByOperator", "fan: it is loud") == "ByOperator: fan: it is loud"
    assert reason_sentence("Lost", "") == "Lost"


def test_small_words() -> None:
    assert printed_number_ranges([3, 1, 2, 7]) == "1-3, 7"
    assert printed_number_ranges([]) == "none"
    assert plural_text(1, "rank") == "1 rank"
    assert plural_text(0, "rank") == "0 ranks"
    assert percent_text(0.97123) == "97.1%"
    assert amount_text(1234.5) == "1,234"
    assert amount_text(0.123, "GPU-hours") == "0.12 GPU-hours"


def test_times_that_are_not_known_yet_are_a_dash() -> None:
    assert elapsed_text(at(0), at(1.234)) == "1.23s"
    assert elapsed_text(at(0), None) == "-"
    assert age_text(None, NOW) == "-"
    assert age_text(at(-90.4), NOW) == "1m30s"

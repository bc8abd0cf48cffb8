"""Conditions: the transition time moves only with the status, and nothing new means the same list."""

from remuda.api.conditions import find_condition, is_condition_true, with_condition
from remuda.api.meta import to_time

T1, T2 = to_time(100.0), to_time(200.0)


def test_a_new_condition_is_added() -> None:
    conditions = with_condition([], "Ready", True, "Up", "It is up.", T1)
    assert is_condition_true(conditions, "Ready")
    assert not is_condition_true(conditions, "Other")


def test_the_time_moves_only_with_the_status() -> None:
    first = with_condition([], "Ready", True, "Up", "", T1)
    reworded = with_condition(first, "Ready", True, "Up", "Still.", T2)
    flipped = with_condition(reworded, "Ready", False, "Down", "", T2)
    times = [c.last_transition_time for c in (reworded[0], flipped[0])]
    assert times == [T1, T2]


def test_nothing_new_is_the_same_list() -> None:
    first = with_condition([], "Ready", None, "Lost", "", T1)
    assert with_condition(first, "Ready", None, "Lost", "", T2) is first
    found = find_condition(first, "Ready")
    assert found is not None
    assert found.status == "Unknown"

"""The comparison itself: it needs no server, and must see what it is there to see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.documented import BEGIN, END, rows
from tests.conformance.transcript import Difference, Entry, differences, normal, normal_text


def entry(body: Any, code: int = 200, reason: str = "") -> Entry:
    return Entry("GET /x", code, reason, body)


def places(mine: list[Entry], theirs: list[Entry]) -> list[str]:
    return [each.at for each in differences("py/x", mine, theirs)]


def test_equal_transcripts_do_not_differ() -> None:
    assert places([entry({"a": [1, {"b": 2}]})], [entry({"a": [1, {"b": 2}]})]) == []


def test_a_difference_is_named_by_its_place() -> None:
    mine, theirs = [entry({"spec": {"replicas": 1}}, 200)], [entry({"spec": {"replicas": 2}}, 201)]
    assert places(mine, theirs) == ["0.body.spec.replicas", "0.code"]


def test_a_missing_field_is_a_difference() -> None:
    assert places([entry({})], [entry({"metadata": {"uid": "<uid>"}})]) == ["0.body.metadata"]


def test_a_missing_step_is_a_difference() -> None:
    assert "steps" in places([entry(1)], [entry(1), entry(1)])


def test_an_object_and_a_refusal_differ_as_a_whole() -> None:
    assert places([entry({"kind": "Pod", "spec": 1})], [entry({"kind": "Status", "code": 404})]) == ["0.body"]


def test_lines_are_told_apart() -> None:
    assert places([entry(["a", "b"])], [entry(["a", "c", "b"])]) == ["0.body.+c"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"uid": "0f8fad5b-d9cb-469f-a165-70867728950e"}, {"uid": "<uid>"}),
        ({"time": "2026-01-01T00:00:00Z"}, {"time": "<time>"}),
        ({"resourceVersion": "17"}, {"resourceVersion": "<resourceVersion>"}),
        ({"resourceVersion": ""}, {"resourceVersion": ""}),
        ({"generateName": "a-", "name": "a-x7k2p"}, {"generateName": "a-", "name": "a-<generated>"}),
        ({"clusterIP": "None"}, {"clusterIP": "None"}),
        ({"clusterIP": "10.0.0.7"}, {"clusterIP": "<ip>"}),
    ],
)
def test_what_varies_is_replaced_not_dropped(given: Any, expected: Any) -> None:
    assert normal(given) == expected


def owner(manager: str, second: int, operation: str = "Apply") -> dict[str, str]:
    return {"manager": manager, "operation": operation, "time": f"2026-01-01T00:00:0{second}Z"}


def test_whether_two_writes_fall_into_one_second_makes_no_difference() -> None:
    within = {"managedFields": [owner("checker", 1), owner("first", 1)]}
    across = {"managedFields": [owner("first", 1), owner("checker", 2)]}
    assert normal(within) == normal(across)


@pytest.mark.parametrize(
    "entries",
    [
        [owner("first", 2), owner("checker", 1)],
        [owner("checker", 1, "Update"), owner("first", 1, "Apply")],
    ],
    ids=["by time", "by operation"],
)
def test_owners_out_of_order_are_a_difference(entries: list[dict[str, str]]) -> None:
    in_order = sorted(entries, key=lambda entry: (entry["operation"], entry["time"]))
    assert normal({"managedFields": entries}) != normal({"managedFields": in_order})


def test_text_keeps_columns_but_not_their_widths() -> None:
    assert normal_text("NAME     AGE\none      12s\n") == normal_text("NAME  AGE\none   3m4s\n")
    assert normal_text("one 1/1") != normal_text("one 0/1")


def test_a_row_covers_its_own_differences_only() -> None:
    line = "| `py/a*` | `*.message` `1.code` | this | that | because |"
    (row,) = rows(f"{BEGIN}\n| a |\n|---|\n{line}\n{END}")
    assert row.covers(Difference("py/apply", "0.body.message", 1, 2))
    assert row.covers(Difference("py/apply", "1.code", 1, 2))
    assert not row.covers(Difference("py/apply", "0.code", 1, 2))
    assert not row.covers(Difference("lk/apply", "1.code", 1, 2))


@pytest.mark.parametrize(
    "line", ["| `a` | `b` | this | that |", "| a | `b` | this | that | why |", "| `a` | `b` | this | that |  |"]
)
def test_a_row_without_a_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a row"):
        rows(f"{BEGIN}\n| a |\n|---|\n{line}\n{END}")

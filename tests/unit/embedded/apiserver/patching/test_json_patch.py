"""RFC 6902 with Kubernetes' manners."""

import copy
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.patching import json_patch
from remuda.embedded.apiserver.patching.bounds import MAX_DEPTH

DOC: dict[str, Any] = {"a": {"b": [1, 2, 3], "c": "x"}, "d": None, "e/f": {"~": 1}}


def refused(*ops: Any) -> ApiError:
    before = copy.deepcopy(DOC)
    with pytest.raises(ApiError) as error:
        json_patch(DOC, list(ops))
    assert before == DOC
    return error.value


@pytest.mark.parametrize(
    ("ops", "path", "value"),
    [
        ([{"op": "add", "path": "/a/z", "value": 1}], "a z", 1),
        ([{"op": "add", "path": "/a/b/0", "value": 0}], "a b", [0, 1, 2, 3]),
        ([{"op": "add", "path": "/a/b/-", "value": 4}], "a b", [1, 2, 3, 4]),
        ([{"op": "add", "path": "/a/b/3", "value": 4}], "a b", [1, 2, 3, 4]),
        ([{"op": "add", "path": "/a/b/-1", "value": 4}], "a b", [1, 2, 3, 4]),
        ([{"op": "remove", "path": "/a/b/1"}], "a b", [1, 3]),
        ([{"op": "replace", "path": "/a/b/-1", "value": 9}], "a b", [1, 2, 9]),
        ([{"op": "replace", "path": "/a/new", "value": 9}], "a new", 9),
        ([{"op": "move", "from": "/a/b", "path": "/q"}], "q", [1, 2, 3]),
        ([{"op": "copy", "from": "/a/b/0", "path": "/a/b/-"}], "a b", [1, 2, 3, 1]),
        ([{"op": "copy", "from": "/a/nothing", "path": "/q"}], "q", None),
        ([{"op": "add", "path": "/e~1f/~0", "value": 2}], "e/f ~", 2),
        ([{"op": "add", "path": "ignored/q", "value": 2}], "q", 2),
        ([{"op": "replace", "path": "", "value": {"a": 1}}], "a", 1),
        ([{"op": "test", "path": "/a/nothing"}, {"op": "add", "path": "/q", "value": 1}], "q", 1),
        ([{"op": "test", "path": "", "value": DOC}, {"op": "add", "path": "/q", "value": 1}], "q", 1),
    ],
)
def test_operations(ops: list[Any], path: str, value: Any) -> None:
    before = copy.deepcopy(DOC)
    result: Any = json_patch(DOC, ops)
    for name in path.split(" "):
        result = result[name]
    assert result == value
    assert before == DOC


@pytest.mark.parametrize(
    "op",
    [
        {"op": "remove", "path": "/nothing"},
        {"op": "remove", "path": "/a/b/3"},
        {"op": "remove", "path": "/a/b/-"},
        {"op": "remove", "path": ""},
        {"op": "add", "path": "/nothing/x", "value": 1},
        {"op": "add", "path": "/a/c/x", "value": 1},
        {"op": "add", "path": "/d/x", "value": 1},
        {"op": "add", "path": "/a/b/5", "value": 1},
        {"op": "add", "path": "/a/b/x", "value": 1},
        {"op": "add", "path": "/a/b/1_0", "value": 1},
        {"op": "add", "path": "", "value": {}},
        {"op": "add", "value": 1},
        {"op": "replace", "path": "", "value": 1},
        {"op": "replace", "path": "/a/b/9", "value": 1},
        {"op": "move", "from": "/nothing", "path": "/q"},
        {"op": "move", "path": "/q"},
        {"op": "move", "from": "/a", "path": "/a/b/c"},
        {"op": "test", "path": "/a/c", "value": "y"},
        {"op": "test", "path": "/a/b/0", "value": True},
        {"op": "bogus", "path": "/a"},
        {"path": "/a"},
    ],
)
def test_what_does_not_apply_is_invalid_and_names_the_operation(op: Any) -> None:
    error = refused({"op": "test", "path": "/a/c", "value": "x"}, op)
    assert (error.code, error.reason) == (422, "Invalid")
    assert "operation 1" in error.message or op.get("path") == ""


@pytest.mark.parametrize(
    "ops", ["x", {"op": "add"}, [1], [{"op": 1}], [{"op": "add", "path": []}], [{"op": "copy", "from": 1}]]
)
def test_what_is_no_patch_is_a_bad_request(ops: Any) -> None:
    with pytest.raises(ApiError) as error:
        json_patch(DOC, ops)
    assert error.value.code == 400


def test_all_or_nothing() -> None:
    refused({"op": "add", "path": "/a/b/-", "value": 4}, {"op": "remove", "path": "/nothing"})


def test_what_is_not_touched_is_shared() -> None:
    result = json_patch(DOC, [{"op": "add", "path": "/a/z", "value": 1}])
    assert result["e/f"] is DOC["e/f"]
    assert result["a"]["b"] is DOC["a"]["b"]


def test_values_of_the_patch_are_not_changed_by_later_operations() -> None:
    value: dict[str, Any] = {"list": []}
    ops = [{"op": "add", "path": "/q", "value": value}, {"op": "add", "path": "/q/list/-", "value": 1}]
    assert json_patch(DOC, ops)["q"] == {"list": [1]}
    assert value == {"list": []}


def test_a_copy_is_a_copy() -> None:
    ops = [
        {"op": "add", "path": "/a/b/-", "value": 4},
        {"op": "copy", "from": "/a", "path": "/q"},
        {"op": "add", "path": "/a/b/-", "value": 5},
        {"op": "add", "path": "/q/b/-", "value": 6},
    ]
    result = json_patch(DOC, ops)
    assert (result["a"]["b"], result["q"]["b"]) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6])


def test_too_many_operations() -> None:
    with pytest.raises(ApiError) as error:
        json_patch(DOC, [{"op": "test", "path": "/a/c", "value": "x"}] * 10_001)
    assert (error.value.code, error.value.reason) == (413, "RequestEntityTooLarge")


def test_copies_that_double_are_stopped() -> None:
    error = refused(*[{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(60)])
    assert error.code == 413
    long = {"op": "add", "path": "/a/long", "value": "x" * 1000}
    error = refused(long, *[{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(60)])
    assert error.code == 422
    assert "bytes" in error.message


def test_a_document_cannot_be_nested_ever_deeper() -> None:
    bomb: list[Any] = [{"op": "add", "path": "/x", "value": {}}]
    for _ in range(MAX_DEPTH):
        bomb += [{"op": "add", "path": "/y", "value": {}}, {"op": "move", "from": "/x", "path": "/y/x"}]
        bomb += [{"op": "move", "from": "/y", "path": "/x"}]
    assert refused(*bomb).code == 400


def test_many_operations_on_one_list_are_cheap() -> None:
    """Copying the list for each of them would take 10,000 times as much."""
    result = json_patch({"l": []}, [{"op": "add", "path": "/l/-", "value": n} for n in range(10_000)])
    assert result["l"] == list(range(10_000))

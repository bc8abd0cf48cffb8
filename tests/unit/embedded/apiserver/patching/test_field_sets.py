"""Sets of fields: their algebra, their words, and what may come from outside."""

from typing import Any

import pytest

from remuda.embedded.apiserver.patching.field_sets import (
    difference,
    intersection,
    ordered,
    parsed,
    paths,
    text_of,
    union,
    without,
)
from remuda.embedded.apiserver.patching.patch_schema import FieldSet

DATA: FieldSet = {"f:data": {".": {}, "f:a": {}, "f:b": {}}}


def test_union_keeps_both_and_says_when_nothing_is_new() -> None:
    assert union(DATA, {"f:data": {"f:c": {}}}) == {"f:data": {".": {}, "f:a": {}, "f:b": {}, "f:c": {}}}
    assert union({"f:x": {}}, {"f:x": {"f:y": {}}}) == {"f:x": {".": {}, "f:y": {}}}
    assert union(DATA, {"f:data": {"f:a": {}}}) is DATA
    assert list(union({"f:b": {}}, {"f:a": {}})) == ["f:a", "f:b"]


def test_difference_is_of_paths_not_of_trees() -> None:
    assert difference(DATA, {"f:data": {"f:a": {}}}) == {"f:data": {".": {}, "f:b": {}}}
    assert difference(DATA, {"f:data": {}}) == {"f:data": {"f:a": {}, "f:b": {}}}
    assert difference(DATA, {"f:data": {"f:a": {}, "f:b": {}}}) == {"f:data": {}}
    assert difference(DATA, DATA) == {}
    assert difference(DATA, {"f:other": {}}) is DATA


def test_without_takes_what_is_below_as_well() -> None:
    assert without(DATA, {"f:data": {}}) == {}
    assert without({"f:a": {"f:b": {"f:c": {}}, "f:d": {}}}, {"f:a": {"f:b": {}}}) == {"f:a": {"f:d": {}}}
    assert without({"f:a": {".": {}, "f:b": {}}}, {"f:a": {"f:b": {}}}) == {"f:a": {}}
    assert without(DATA, {"f:data": {"f:z": {}}}) is DATA


def test_intersection() -> None:
    assert intersection(DATA, {"f:data": {"f:a": {}, "f:z": {}}}) == {"f:data": {"f:a": {}}}
    assert intersection(DATA, {"f:data": {}}) == {"f:data": {}}
    assert intersection({"f:data": {"f:a": {}}}, {"f:data": {}}) == {}


def test_paths_are_worded_as_kubernetes_does() -> None:
    fields = {
        "f:spec": {
            "f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}},
            "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {}},
        },
        "f:metadata": {"f:finalizers": {'v:"x/y"': {}}},
        "f:list": {"i:3": {}},
    }
    assert set(paths(fields)) == {
        '.spec.containers[name="a"]',
        '.spec.containers[name="a"].image',
        '.spec.ports[containerPort=80,protocol="TCP"]',
        '.metadata.finalizers[="x/y"]',
        ".list[3]",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", '"plain"'),
        ('a<b>&"\\\n', '"a\\u003cb\\u003e\\u0026\\"\\\\\\n"'),
        ("\x08\u2028", '"\\u0008\\u2028"'),
        ("ü", '"ü"'),
        (80, "80"),
        (1.0, "1"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        ({"b": [1], "a": {}}, '{"a":{},"b":[1]}'),
    ],
)
def test_values_are_written_as_go_writes_them(value: object, text: str) -> None:
    assert text_of(value) == text


def test_a_set_from_outside_is_written_anew() -> None:
    given: dict[str, Any] = {
        'k: {"protocol": "TCP", "containerPort": 80}': {".": {}, "f:name": None},
        "v: 1.0 ": {},
        "i:+7": {},
        "z:new": {},
        ".": {},
    }
    assert parsed(given) == {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:name": {}}, "v:1": {}, "i:7": {}}
    assert ordered({"f:b": {"f:d": {}, "f:c": {}}, "f:a": {}}) == {"f:a": {}, "f:b": {"f:c": {}, "f:d": {}}}


@pytest.mark.parametrize(
    "given", [[], "x", {"f": {}}, {"name": {}}, {"k:[]": {}}, {"v:{": {}}, {"i:x": {}}, {"f:a": 1}]
)
def test_what_is_no_set_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"fieldsV1|Expecting"):
        parsed(given)

"""Sets of fields: their algebra, their words, and what may come from outside."""

from typing import Any

import pytest

from remuda.embedded.apiserver.patching.field_sets import (
    field_path_json,
    field_paths,
    intersect_fields,
    ordered_fields,
    parse_field_set,
    subtract_fields,
    subtract_fields_below,
    union_fields,
)
from remuda.embedded.apiserver.patching.patch_schema import FieldSet

DATA: FieldSet = {"f:data": {".": {}, "f:a": {}, "f:b": {}}}


def test_union_keeps_both_and_says_when_nothing_is_new() -> None:
    assert union_fields(DATA, {"f:data": {"f:c": {}}}) == {"f:data": {".": {}, "f:a": {}, "f:b": {}, "f:c": {}}}
    assert union_fields({"f:x": {}}, {"f:x": {"f:y": {}}}) == {"f:x": {".": {}, "f:y": {}}}
    assert union_fields(DATA, {"f:data": {"f:a": {}}}) is DATA
    assert list(union_fields({"f:b": {}}, {"f:a": {}})) == ["f:a", "f:b"]


def test_difference_is_of_paths_not_of_trees() -> None:
    assert subtract_fields(DATA, {"f:data": {"f:a": {}}}) == {"f:data": {".": {}, "f:b": {}}}
    assert subtract_fields(DATA, {"f:data": {}}) == {"f:data": {"f:a": {}, "f:b": {}}}
    assert subtract_fields(DATA, {"f:data": {"f:a": {}, "f:b": {}}}) == {"f:data": {}}
    assert subtract_fields(DATA, DATA) == {}
    assert subtract_fields(DATA, {"f:other": {}}) is DATA


def test_without_takes_what_is_below_as_well() -> None:
    assert subtract_fields_below(DATA, {"f:data": {}}) == {}
    assert subtract_fields_below({"f:a": {"f:b": {"f:c": {}}, "f:d": {}}}, {"f:a": {"f:b": {}}}) == {"f:a": {"f:d": {}}}
    assert subtract_fields_below({"f:a": {".": {}, "f:b": {}}}, {"f:a": {"f:b": {}}}) == {"f:a": {}}
    assert subtract_fields_below(DATA, {"f:data": {"f:z": {}}}) is DATA


def test_intersection() -> None:
    assert intersect_fields(DATA, {"f:data": {"f:a": {}, "f:z": {}}}) == {"f:data": {"f:a": {}}}
    assert intersect_fields(DATA, {"f:data": {}}) == {"f:data": {}}
    assert intersect_fields({"f:data": {"f:a": {}}}, {"f:data": {}}) == {}


def test_paths_are_worded_as_kubernetes_does() -> None:
    fields = {
        "f:spec": {
            "f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}},
            "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {}},
        },
        "f:metadata": {"f:finalizers": {'v:"x/y"': {}}},
        "f:list": {"i:3": {}},
    }
    assert set(field_paths(fields)) == {
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
    assert field_path_json(value) == text


def test_a_set_from_outside_is_written_anew() -> None:
    given: dict[str, Any] = {
        'k: {"protocol": "TCP", "containerPort": 80}': {".": {}, "f:name": None},
        "v: 1.0 ": {},
        "i:+7": {},
        "z:new": {},
        ".": {},
    }
    assert parse_field_set(given) == {
        'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:name": {}},
        "v:1": {},
        "i:7": {},
    }
    assert ordered_fields({"f:b": {"f:d": {}, "f:c": {}}, "f:a": {}}) == {"f:a": {}, "f:b": {"f:c": {}, "f:d": {}}}


@pytest.mark.parametrize(
    "given", [[], "x", {"f": {}}, {"name": {}}, {"k:[]": {}}, {"v:{": {}}, {"i:x": {}}, {"f:a": 1}]
)
def test_what_is_no_set_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"fieldsV1|Expecting"):
        parse_field_set(given)

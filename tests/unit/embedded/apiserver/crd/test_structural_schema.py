"""Structural schemas: pruning, defaults, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.crd.structural_schema import crd_schema_misfits, prune_by_schema, with_schema_defaults

SCHEMA: JsonObject = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "string", "enum": ["small", "large"]},
                "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
                "ratio": {"type": "number", "multipleOf": 0.5},
                "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
                "when": {"type": "string", "format": "date-time"},
                "port": {"x-kubernetes-int-or-string": True},
                "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 3},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
                "nested": {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}},
                "maybe": {"type": "string", "nullable": True},
                "either": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                           "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
                "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                          "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
            },
        }
    },
}  # fmt: skip


def spec(**fields: Any) -> JsonObject:
    return {"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {"size": "small", **fields}}


def test_undeclared_fields_are_pruned_and_named() -> None:
    unknown: list[str] = []
    body = {**spec(extra=1, free={"x": {"y": 1}}, limits={"any": 1}, nested={"a": "1", "b": 2}), "more": 1}
    kept = prune_by_schema(body, SCHEMA, unknown)
    assert kept["spec"] == {"size": "small", "free": {"x": {"y": 1}}, "limits": {"any": 1}, "nested": {"a": "1"}}
    assert kept["metadata"] == {"name": "x"}
    assert sorted(unknown) == ["more", "spec.extra", "spec.nested.b"]
    clean = spec()
    assert prune_by_schema(clean, SCHEMA, unknown) is clean


def test_defaults_fill_what_is_not_there() -> None:
    assert with_schema_defaults(spec(), SCHEMA)["spec"] == {"size": "small", "count": 3}
    assert with_schema_defaults(spec(count=None), SCHEMA)["spec"]["count"] == 3
    assert with_schema_defaults(spec(nested={}), SCHEMA)["spec"]["nested"] == {"a": "x"}
    assert with_schema_defaults(spec(count=5), SCHEMA)["spec"]["count"] == 5


@pytest.mark.parametrize(
    ("fields", "field", "word"),
    [
        ({"size": "huge"}, "spec.size", "Unsupported value"),
        ({"size": 3}, "spec.size", "Invalid value"),
        ({"count": 0}, "spec.count", "Invalid value"),
        ({"count": 10}, "spec.count", "Invalid value"),
        ({"count": 1.5}, "spec.count", "Invalid value"),
        ({"ratio": 0.7}, "spec.ratio", "Invalid value"),
        ({"name": "a"}, "spec.name", "Invalid value"),
        ({"name": "abcde"}, "spec.name", "Too long"),
        ({"name": "A1"}, "spec.name", "Invalid value"),
        ({"when": "yesterday"}, "spec.when", "Invalid value"),
        ({"port": 1.5}, "spec.port", "Invalid value"),
        ({"tags": ["a", "a"]}, "spec.tags[1]", "Duplicate value"),
        ({"tags": ["a", "b", "c", "d"]}, "spec.tags", "Too many"),
        ({"tags": [1]}, "spec.tags[0]", "Invalid value"),
        ({"limits": {"a": "b"}}, "spec.limits.a", "Invalid value"),
        ({"either": {}}, "spec.either", "Invalid value"),
        ({"either": {"a": "1", "b": "2"}}, "spec.either", "Invalid value"),
        ({"items": [{"k": "a"}, {"k": "a"}]}, "spec.items[1]", "Duplicate value"),
        ({"nested": None}, "spec.nested", "Invalid value"),
    ],
)
def test_what_does_not_fit_is_named(fields: JsonObject, field: str, word: str) -> None:
    found = crd_schema_misfits(spec(**fields), SCHEMA)
    assert [(at, what.partition(":")[0]) for at, what in found] == [(field, word)]


def test_what_fits_is_left_in_peace() -> None:
    body = spec(
        count=9,
        ratio=1.5,
        name="abc",
        when="2020-01-01T00:00:00Z",
        port="http",
        tags=["a"],
        maybe=None,
        either={"a": ""},
    )
    assert crd_schema_misfits(body, SCHEMA) == []
    assert crd_schema_misfits(spec(port=80, count=3.0), SCHEMA) == []


def test_what_is_missing_is_named() -> None:
    assert crd_schema_misfits({"metadata": {}}, SCHEMA) == [("spec", "Required value")]
    assert crd_schema_misfits({"spec": {}}, SCHEMA) == [("spec.size", "Required value")]


def test_patterns_are_re2_as_in_go() -> None:
    """What Python's `re` does not know is matched, not waved through; what RE2 does not know fits nothing."""
    letters = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\pL+\z"}}}
    assert crd_schema_misfits({"a": "Ünï"}, letters) == []
    assert crd_schema_misfits({"a": "x1"}, letters) == [
        ("a", r"""Invalid value: "x1": a in body should match '^\pL+\z'""")
    ]
    ahead = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    ((_, what),) = crd_schema_misfits({"a": "x"}, ahead)
    assert (
        "should match '(?=x), but pattern is invalid: error parsing regexp: invalid or unsupported Perl syntax" in what
    )

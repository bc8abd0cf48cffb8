"""Merge patches, faults of a body, and the form in which it is stored."""

import copy
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.patching import (
    MAX_DEPTH,
    builtin_kind_schema,
    check_body_bounds,
    custom_kind_patch_schema,
    find_patch_schema_faults,
    merge_patch,
    settle_body_by_patch_schema,
)
from tests.builders.patches import GADGET_SCHEMA

POD = builtin_kind_schema("v1", "Pod")
assert POD is not None
GADGET = custom_kind_patch_schema(GADGET_SCHEMA, has_status=True)


@pytest.mark.parametrize(
    ("doc", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": {"b": "c"}}, {"a": [1]}, {"a": [1]}),
        ({"a": [1]}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({}, {"a": [{"b": None}, None]}, {"a": [{}, None]}),
        ({"a": {}}, {"a": [{"b": None}]}, {"a": [{"b": None}]}),
    ],
)
def test_merge_patch(doc: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy([doc, patch])
    assert merge_patch(doc, patch) == result
    assert [doc, patch] == before


@pytest.mark.parametrize("patch", [[], "x", 1, None])
def test_a_merge_patch_is_an_object(patch: Any) -> None:
    with pytest.raises(ApiError) as error:
        merge_patch({}, patch)
    assert error.value.code == 400


def nested(levels: int, *, lists: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


def test_depth_is_bounded() -> None:
    check_body_bounds(nested(MAX_DEPTH))
    check_body_bounds(nested(MAX_DEPTH, lists=True))
    check_body_bounds("x" * 100_000)
    for bomb in (nested(MAX_DEPTH + 2), nested(100_000, lists=True), {"a": [nested(MAX_DEPTH)]}):
        with pytest.raises(ApiError) as error:
            check_body_bounds(bomb)
        assert error.value.code == 400


@pytest.mark.parametrize(
    ("body", "kind", "path"),
    [
        ({"bogus": 1}, "unknown", ".bogus"),
        ({"spec": {"containers": [{"name": "a", "imagee": "x"}]}}, "unknown", ".spec.containers[0].imagee"),
        ({"spec": []}, "type", ".spec"),
        ({"spec": {"containers": {}}}, "type", ".spec.containers"),
        ({"spec": {"hostNetwork": "true"}}, "type", ".spec.hostNetwork"),
        ({"spec": {"activeDeadlineSeconds": True}}, "type", ".spec.activeDeadlineSeconds"),
        ({"spec": {"activeDeadlineSeconds": 1.5}}, "type", ".spec.activeDeadlineSeconds"),
        ({"metadata": {"labels": {"a": 1}}}, "type", ".metadata.labels.a"),
        ({"spec": {"overhead": {"cpu": True}}}, "type", ".spec.overhead.cpu"),
        ({"spec": {"overhead": {"cpu": []}}}, "type", ".spec.overhead.cpu"),
        ({"spec": {"containers": [{"image": "x"}]}}, "item", ".spec.containers[0]"),
        ({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}, "item", ".spec.containers[1]"),
        ({"metadata": {"finalizers": [None]}}, "item", ".metadata.finalizers[0]"),
    ],
)
def test_faults_have_a_kind_and_a_path(body: Any, kind: str, path: str) -> None:
    assert POD is not None
    found = find_patch_schema_faults(body, POD.root)
    assert [(fault.kind, fault.path) for fault in found] == [(kind, path)]


def test_a_good_body_has_none() -> None:
    assert POD is not None
    probe = {"httpGet": {"port": "web"}, "tcpSocket": {"port": 80}}
    container = {"name": "a", "livenessProbe": probe, "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}
    assert (
        find_patch_schema_faults({"spec": {"containers": [container], "nodeName": None}, "status": None}, POD.root)
        == []
    )
    assert (
        find_patch_schema_faults({"spec": {"size": "10%", "free": {"any": [{"thing": 1}]}, "note": None}}, GADGET.root)
        == []
    )


def test_a_stored_body_has_no_nulls_and_no_empty_lists() -> None:
    assert POD is not None
    body = {
        "metadata": {"labels": {"a": None, "b": "1"}, "annotations": {}, "finalizers": [], "name": "p", "uid": None},
        "spec": {
            "containers": [{"name": "a", "env": [], "securityContext": {}, "resources": {"limits": {"cpu": None}}}],
            "volumes": None,
            "hostNetwork": False,
            "nodeSelector": {},
        },
    }
    before = copy.deepcopy(body)
    assert settle_body_by_patch_schema(body, POD) == {
        "metadata": {"labels": {"a": "", "b": "1"}, "name": "p"},
        "spec": {
            "containers": [{"name": "a", "securityContext": {}, "resources": {"limits": {"cpu": "0"}}}],
            "hostNetwork": False,
        },
    }
    assert body == before


def test_a_settled_body_is_itself() -> None:
    assert POD is not None
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a", "args": ["", "x"]}], "volumes": [{"name": "v", "emptyDir": {}}]},
    }
    assert settle_body_by_patch_schema(body, POD) is body
    assert settle_body_by_patch_schema(settle_body_by_patch_schema({"spec": {"containers": []}}, POD), POD) == {
        "spec": {"containers": []}
    }


def test_owners_are_left_to_track_update() -> None:
    assert POD is not None
    body = {"metadata": {"name": "p", "managedFields": []}}
    assert settle_body_by_patch_schema(body, POD) is body


def test_a_custom_kind_keeps_the_nulls_it_allows() -> None:
    body = {
        "metadata": {"labels": {"a": None}, "annotations": None},
        "spec": {"note": None, "tags": None, "args": [], "free": {"x": None}, "limits": {"a": None}},
    }
    assert settle_body_by_patch_schema(body, GADGET) == {
        "metadata": {"labels": {"a": ""}},
        "spec": {"note": None, "args": [], "free": {"x": None}, "limits": {}},
    }


def test_structural_schemas() -> None:
    spec = GADGET.root.fields["spec"]
    assert (spec.fields["ports"].list_type, spec.fields["ports"].keys) == ("map", ("port", "protocol"))
    assert spec.fields["selector"].atomic
    assert spec.fields["note"].nullable
    assert spec.fields["free"].child("anything").type == "any"
    assert spec.element is None
    assert GADGET.root.fields["metadata"].fields["finalizers"].list_type == "set"
    assert GADGET.resets == {"": {"f:status": {}}, "status": {"f:metadata": {}, "f:spec": {}}}
    assert custom_kind_patch_schema({"type": "object"}, has_status=False).resets == {}


def test_unknown_fields_are_kept_below_a_schema_that_says_so() -> None:
    open_schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": {
                    "known": {"type": "object", "properties": {"a": {"type": "string"}}},
                    "template": {"type": "object", "x-kubernetes-embedded-resource": True},
                    "strict": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"a": {"type": "string"}},
                    },
                },
            }
        },
    }
    schema = custom_kind_patch_schema(open_schema, has_status=False).root
    body = {
        "spec": {"more": [1], "known": {"a": "1", "b": 2}, "template": {"metadata": {"labels": {"x": "1"}}, "spec": {}}}
    }
    assert find_patch_schema_faults(body, schema) == []
    assert [fault.path for fault in find_patch_schema_faults({"spec": {"strict": {"b": 1}}, "status": {}}, schema)] == [
        ".spec.strict.b",
        ".status",
    ]
    assert schema.fields["spec"].fields["template"].fields["metadata"].fields["finalizers"].list_type == "set"
    assert custom_kind_patch_schema(None, has_status=False).root.child("spec").type == "any"

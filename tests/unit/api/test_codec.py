"""The codec: strict where a user speaks to us, lenient for projections, and patches that share what they do not change."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.codec import decode, decode_strict, encode, from_wire, merge_patch, to_wire
from remuda.api.drills import Drill
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.training import TrainingJob


def a_body(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "remuda.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "j"}, "spec": spec}


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (a_body(rolls=[]), "UnknownField", "`spec.rolls` is not a field. Did you mean `roles`?"),
        ({**a_body(), "spek": {}}, "UnknownField", "Did you mean `spec`?"),
        (a_body(roles=[{"replica": 3}]), "UnknownField", "Did you mean `replicas`?"),
        (a_body(failure={"budgets": {"cod": 1}}), "UnknownField", "Did you mean `code`?"),
        (a_body(spares="two"), "InvalidField", "`spec.spares`"),
        (a_body(roles={}), "InvalidField", "`spec.roles`: expected list, got object. Write a list."),
        (a_body(roles=[{"replicas": 8.5}]), "InvalidField", "`spec.roles[0].replicas`: expected integer, got number."),
        (a_body(roles=[{"replicas": True}]), "InvalidField", "Write a whole number."),
        (a_body(spares=None), "InvalidField", "`spec.spares`: expected integer, got null. Write a whole number."),
        (a_body(failure={"rules": [{"name": 7}]}), "InvalidField", "Write a string, in quotes."),
        (a_body(failure={"rules": [{"exitCodes": "3"}]}), "InvalidField", "Write a list."),
        (a_body(failure={"deviceFailed": "Maybe"}), "InvalidField", "Write one of: Cheapest, Ignore, RestartInPlace"),
        (a_body(failure={"rules": [{"charge": "x"}]}), "InvalidField", "Write one of: code, device, infra, hang"),
        ({**a_body(), "metadata": {"name": "j", "lables": {}}}, "UnknownField", "Did you mean `labels`?"),
        (
            a_body(roles=[{"template": {"metadata": {"anotations": {}}}}]),
            "UnknownField",
            "`spec.roles[0].template.metadata.anotations` is not a field. Did you mean `annotations`?",
        ),
        ({**a_body(), "metadata": {"labels": {"a": 1}}}, "InvalidField", "`metadata.labels[...]`"),
        (
            dict([*a_body().items(), (7, 1)]),
            "UnknownField",
            "`7` is not a field. Known here: apiVersion, kind, metadata",
        ),
        (a_body(failure={1: 2}), "InvalidField", "`spec.failure`: one of its names is not a string."),
        (a_body(roles=[3]), "InvalidField", "`spec.roles[0]`"),
        ([], "NotAnObject", "is not an object"),
    ],
)
def test_strict_decode_names_field_and_fix(body: Any, reason: str, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        decode_strict(TrainingJob, body)
    assert caught.value.reason == reason
    assert words in str(caught.value)


def test_what_a_cluster_adds_to_exported_objects_is_let_through() -> None:
    meta = {"name": "j", "managedFields": [], "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert decode_strict(TrainingJob, {**a_body(), "metadata": meta}).uid == "u"


def test_a_missing_required_field_is_named() -> None:
    with pytest.raises(Refusal, match="type"):
        decode_strict(
            Drill, {"apiVersion": "remuda.dev/v1alpha1", "kind": "Drill", "metadata": {"name": "d"}, "spec": {}}
        )


def test_a_projection_ignores_what_it_does_not_know() -> None:
    pod = decode(Pod, b'{"metadata":{"name":"p"},"spec":{"volumes":[{"name":"v"}],"nodeName":"n"}}')
    assert pod.spec.node_name == "n"


def test_a_kind_says_what_it_is_on_the_wire() -> None:
    job = from_wire(TrainingJob, a_body(spares=1))
    wire = to_wire(job)
    assert (wire["apiVersion"], wire["kind"], wire["spec"]) == ("remuda.dev/v1alpha1", "TrainingJob", {"spares": 1})
    assert decode(TrainingJob, encode(job)) == job


def test_a_template_keeps_every_field() -> None:
    spec = {"containers": [{"name": "m", "command": ["x"]}], "volumes": [{"name": "v", "emptyDir": {}}]}
    job = from_wire(TrainingJob, a_body(roles=[{"template": {"spec": spec}}]))
    assert to_wire(job)["spec"]["roles"][0]["template"]["spec"] == spec


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), json_values, max_size=3)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return value


@settings(deadline=None)
@given(objects, objects)
def test_merge_patch_is_idempotent(target: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@settings(deadline=None)
@given(objects, objects)
def test_merge_patch_changes_neither_input(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = (encode(target), encode(patch))
    merge_patch(target, patch)
    assert (encode(target), encode(patch)) == before


@settings(deadline=None)
@given(objects)
def test_merge_patch_onto_nothing_is_the_patch_without_nulls(patch: dict[str, Any]) -> None:
    assert merge_patch({}, patch) == without_nulls(patch)

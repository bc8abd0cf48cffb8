"""Laws of patches and ownership, on random bodies of real kinds; and random junk, which may be refused but nothing worse.

Bodies come from `Maker`, whose seed hypothesis prints when a law is broken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.patching import (
    ApplyConflict,
    KindSchema,
    builtin_kind_schema,
    custom_kind_patch_schema,
    find_patch_schema_faults,
    json_patch,
    merge_patch,
    server_side_apply,
    settle_body_by_patch_schema,
    strategic_merge,
    track_field_owners,
)
from remuda.embedded.apiserver.patching.compare import applied_field_set, compare_fields
from remuda.embedded.apiserver.patching.field_sets import (
    SELF,
    intersect_fields,
    is_member_field,
    parse_field_set,
    subtract_fields,
    subtract_fields_below,
    union_fields,
)
from remuda.embedded.apiserver.patching.patch_schema import FieldSet
from tests.builders.patches import GADGET_SCHEMA, MANAGERS, Maker

Body = dict[str, Any]


def known(api_version: str, kind: str) -> KindSchema:
    schema = builtin_kind_schema(api_version, kind)
    assert schema is not None
    return schema


GADGET = custom_kind_patch_schema(GADGET_SCHEMA, has_status=True)
KINDS: list[tuple[str, str, KindSchema, Callable[[Maker], Body]]] = [
    ("v1", "ConfigMap", known("v1", "ConfigMap"), Maker.config_map),
    ("apps/v1", "Deployment", known("apps/v1", "Deployment"), Maker.deployment),
    ("v1", "Service", known("v1", "Service"), Maker.service),
    ("patching.remuda.dev/v1", "Gadget", GADGET, Maker.gadget),
]
makers = st.integers(0, 2**32).map(Maker)
kinds = st.sampled_from(KINDS)
NOW = 1_700_000_000.0


def body_of(maker: Maker, kind: tuple[str, str, KindSchema, Callable[[Maker], Body]]) -> Body:
    api_version, name, _, make = kind
    body = make(maker)
    return {"apiVersion": api_version, "kind": name, **body, "metadata": {"name": "x", **body["metadata"]}}


def object_of(maker: Maker, kind: tuple[str, str, KindSchema, Callable[[Maker], Body]]) -> Body:
    """An object that some managers have written to."""
    live: Body | None = None
    for _ in range(maker.random.randint(1, 3)):
        live = server_side_apply(live, body_of(maker, kind), maker.pick(*MANAGERS), True, kind[2], NOW)
    assert live is not None
    if maker.some():
        changed = settle_body_by_patch_schema(merge_patch(live, maker.sparse(kind[3](maker), 0.1)), kind[2])
        live = track_field_owners(live, changed, maker.pick(*MANAGERS), kind[2], NOW)
    return live


def owner(body: Body, manager: str, operation: str = "Apply") -> FieldSet:
    entries = body["metadata"].get("managedFields", [])
    found = [e["fieldsV1"] for e in entries if (e["manager"], e["operation"]) == (manager, operation)]
    return found[0] if found else {}


def outcome(act: Callable[[], Any]) -> tuple[Any, ApiError | None]:
    try:
        return act(), None
    except ApiError as error:
        return None, error


def bare(body: Body) -> Body:
    return {**body, "metadata": {name: of for name, of in body["metadata"].items() if name != "managedFields"}}


# Sets of fields are sets of paths.

elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"', "i:1"])
path_sets = st.frozensets(st.lists(elements, min_size=1, max_size=4).map(tuple), max_size=8)
Paths = frozenset[tuple[str, ...]]


def tree(paths: Paths) -> FieldSet:
    out: FieldSet = {}
    for path in sorted(paths):
        out = union_fields(out, _single(path))
    return out


def _single(path: tuple[str, ...]) -> FieldSet:
    head, *rest = path
    return {head: _single(tuple(rest)) if rest else {}}


def members(fields: FieldSet, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    out: set[tuple[str, ...]] = set()
    for key, node in fields.items():
        if key != SELF:
            out |= members(node, (*above, key))
            if is_member_field(node):
                out.add((*above, key))
    return out


@given(path_sets, path_sets)
@settings(max_examples=300, deadline=None)
def test_the_algebra_is_that_of_sets(a: Paths, b: Paths) -> None:
    left, right = tree(a), tree(b)
    before = copy.deepcopy([left, right])
    assert members(left) == a
    assert members(union_fields(left, right)) == a | b
    assert members(subtract_fields(left, right)) == a - b
    assert members(intersect_fields(left, right)) == a & b
    assert members(subtract_fields_below(left, right)) == {p for p in a if not any(p[: len(q)] == q for q in b)}
    assert [left, right] == before
    assert parse_field_set(left) == left
    assert list(left) == sorted(left)


# Patches.


@given(makers, kinds)
@settings(max_examples=150, deadline=None)
def test_a_merge_patch_twice_is_once(maker: Maker, kind: Any) -> None:
    doc, patch = body_of(maker, kind), maker.sparse(kind[3](maker), 0.2)
    before = copy.deepcopy([doc, patch])
    once = merge_patch(doc, patch)
    assert merge_patch(once, patch) == once
    assert merge_patch(doc, {}) == doc
    assert [doc, patch] == before


@given(makers, st.sampled_from(KINDS[:3]))
@settings(max_examples=150, deadline=None)
def test_a_strategic_patch_twice_is_once(maker: Maker, kind: Any) -> None:
    """Without directives and nulls (a null in a new item of a list stands for an empty value the first time only).

    A list never gets the same item twice.
    """
    schema = kind[2]
    doc, patch = body_of(maker, kind), maker.sparse(kind[3](maker))
    if kind[1] == "Service":  # patches tell its ports apart by number alone
        for each in (doc, patch):
            ports = each["spec"].get("ports", [])
            each["spec"]["ports"] = [port for port in ports if port["protocol"] == "TCP"]
    before = copy.deepcopy([doc, patch])
    once = settle_body_by_patch_schema(strategic_merge(doc, patch, schema), schema)
    assert settle_body_by_patch_schema(strategic_merge(once, patch, schema), schema) == once
    assert strategic_merge(doc, {}, schema) == doc
    assert find_patch_schema_faults(once, schema.root) == []
    assert [doc, patch] == before


@given(makers, st.sampled_from(KINDS[:3]))
@settings(max_examples=150, deadline=None)
def test_directives_leave_a_good_body_or_a_refusal(maker: Maker, kind: Any) -> None:
    doc, patch = body_of(maker, kind), maker.directed(kind[3](maker))
    before = copy.deepcopy([doc, patch])
    result, refusal = outcome(lambda: settle_body_by_patch_schema(strategic_merge(doc, patch, kind[2]), kind[2]))
    if refusal is not None:
        assert refusal.code in (400, 422)
    else:
        assert "$" not in msgspec.json.encode(result).decode()
        assert [fault for fault in find_patch_schema_faults(result, kind[2].root) if fault.kind != "item"] == []
    assert [doc, patch] == before


@given(makers, kinds)
@settings(max_examples=150, deadline=None)
def test_operations_build_what_they_say(maker: Maker, kind: Any) -> None:
    """Taking a body apart and putting another one together, operation by operation."""
    old, new = body_of(maker, kind), body_of(maker, kind)
    before = copy.deepcopy([old, new])
    ops: list[Any] = [{"op": "test", "path": "", "value": old}]
    ops += [{"op": "remove", "path": f"/{name}"} for name in old]
    for name, value in new.items():
        ops += [{"op": "add", "path": f"/{name}", "value": value}, {"op": "copy", "from": f"/{name}", "path": "/spare"}]
        ops += [{"op": "move", "from": "/spare", "path": f"/{name}"}]
    assert json_patch(old, ops) == new
    assert [old, new] == before


# Ownership.


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """What stands at a path of field names and list keys."""
    for element in path:
        kind, text = element[:2], element[2:]
        if kind == "f:":
            value = (value or {}).get(text)
        elif kind == "v:":
            value = next((item for item in value if item == msgspec.json.decode(text)), None)
        else:
            keys = msgspec.json.decode(text)
            value = next((i for i in value if all(i.get(k, DEFAULTS.get(k)) == v for k, v in keys.items())), None)
    return value


DEFAULTS = {"protocol": "TCP"}


def is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


@given(makers, kinds, st.booleans())
@example(Maker(2054), KINDS[3], False)  # names nothing but empty lists
@settings(max_examples=200, deadline=None)
def test_apply_does_what_it_says(maker: Maker, kind: Any, force: bool) -> None:
    schema = kind[2]
    live = object_of(maker, kind)
    body, manager = maker.sparse(body_of(maker, kind)), maker.pick(*MANAGERS)
    before = copy.deepcopy([live, body])
    claimed = applied_field_set(body, schema.root)
    result, refusal = outcome(lambda: server_side_apply(live, body, manager, force, schema, NOW + 60))
    assert [live, body] == before
    if refusal is not None:
        assert not force
        assert isinstance(refusal, ApplyConflict)
        assert refusal.causes
        assert all(f'"{manager}"' not in cause.message or "using" in cause.message for cause in refusal.causes)
        return
    # She owns what she named, and it is as she said.
    named = owner(result, manager)
    assert members(named) <= members(claimed)
    assert {p for p in members(claimed) - members(named) if p[0] != "f:metadata"} <= {("f:apiVersion",), ("f:kind",)}
    if settle_body_by_patch_schema(result, schema) != result:
        return  # a custom kind's list lost its last item: the null in its place is for the schema to refuse
    for path in members(claimed):
        assert value_at(result, path) == value_at(body, path) or is_container(value_at(body, path)), path
    # What is empty claims nothing below it, so a list or object that was given up goes before it comes back empty.
    second = server_side_apply(result, body, manager, True, schema, NOW + 120)
    text = msgspec.json.encode(body).decode()
    assert second is result or "[]" in text or "{}" in text
    if not second["metadata"].get("managedFields"):
        return  # all that she named is empty, so nobody owns anything: the next apply is a first one, and notes who wrote before
    assert server_side_apply(second, body, manager, True, schema, NOW + 180) is second
    # Without force nobody lost anything but what she removed.
    if not force:
        for other in set(MANAGERS) - {manager}:
            assert members(owner(result, other)) == members(owner(live, other))


def is_entry(path: tuple[str, ...]) -> bool:
    """An item of a list or of a free-form map goes with all that others own of it, unless they own the item itself."""
    return bool(path) and (path[-1].startswith(("k:", "v:")) or path[:2] == ("f:spec", "f:free"))


@given(makers, kinds)
@settings(max_examples=150, deadline=None)
def test_who_gives_everything_up_leaves_what_others_own(maker: Maker, kind: Any) -> None:
    schema, manager = kind[2], maker.pick(*MANAGERS)
    live = object_of(maker, kind)
    empty = {"apiVersion": kind[0], "kind": kind[1], "metadata": {"name": "x"}}
    result = server_side_apply(live, empty, manager, True, schema, NOW + 60)
    assert owner(result, manager) == {}
    _, gone = compare_fields(bare(live), bare(result), schema.root)
    for entry in live["metadata"].get("managedFields", []):
        if (entry["manager"], entry["operation"]) != (manager, "Apply"):
            theirs = members(entry["fieldsV1"])
            for path in members(gone) & theirs:
                if is_container(value_at(live, path)) and not is_entry(path):
                    continue  # owned as an empty place, and empty it is
                assert any(path[:end] in members(gone) - theirs and is_entry(path[:end]) for end in range(len(path))), (
                    path
                )


@given(makers, kinds)
@settings(max_examples=150, deadline=None)
def test_a_write_takes_over_exactly_what_it_changed(maker: Maker, kind: Any) -> None:
    schema, manager = kind[2], maker.pick(*MANAGERS)
    live = object_of(maker, kind)
    new = settle_body_by_patch_schema(merge_patch(live, maker.sparse(kind[3](maker), 0.1)), schema)
    before = copy.deepcopy([live, new])
    result = track_field_owners(live, new, manager, schema, NOW + 60)
    assert [live, new] == before
    assert bare(result) == bare(new)
    changed, gone = compare_fields(bare(live), bare(new), schema.root)
    if not live["metadata"].get("managedFields"):
        assert "managedFields" not in result["metadata"]
        return
    assert members(changed) - {("f:metadata",)} <= members(owner(result, manager, "Update"))
    for entry in result["metadata"].get("managedFields", []):
        assert entry["fieldsV1"] == parse_field_set(entry["fieldsV1"])
        if (entry["manager"], entry["operation"]) != (manager, "Update"):
            assert not (members(entry["fieldsV1"]) & (members(changed) | members(gone)))
    if not changed and not gone:
        assert result["metadata"].get("managedFields") is live["metadata"].get("managedFields")


# Junk.

names = st.sampled_from(
    "apiVersion kind metadata spec data name labels finalizers ownerReferences managedFields containers env ports uid free "
    "tags $patch $retainKeys $setElementOrder/finalizers $deleteFromPrimitiveList/finalizers $setElementOrder/ports "
    "template op path from value f:a . k:{} v:1 manager operation apiVersion fieldsType fieldsV1 time".split()
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "a", "delete", "replace", "/data", "/metadata/labels/a", "/spec/containers/0", "-", "Update", "FieldsV1"]
    ),
    st.text(max_size=3),
)
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=5)),
    max_leaves=25,
)
operations = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"])},
            optional={"path": scalars, "from": scalars, "value": junk},
        ),
        junk,
    ),
    max_size=6,
)


def only_refused(act: Callable[[], Any]) -> None:
    """A result that can be written as JSON, or an error of the client's."""
    result, refusal = outcome(act)
    if refusal is not None:
        assert 400 <= refusal.code < 500
        assert refusal.message
    msgspec.json.encode(result)


@pytest.mark.slow
@given(makers, kinds, junk, operations)
@settings(max_examples=400, deadline=None)
def test_junk_is_refused_and_changes_nothing(maker: Maker, kind: Any, patch: Any, ops: Any) -> None:
    schema = kind[2]
    live = object_of(maker, kind)
    before = copy.deepcopy([live, patch, ops])
    only_refused(lambda: merge_patch(live, patch))
    only_refused(lambda: json_patch(live, ops))
    only_refused(lambda: json_patch(live, patch))
    only_refused(lambda: strategic_merge(live, patch, schema))
    only_refused(lambda: server_side_apply(live, patch, "anna", True, schema, NOW))
    only_refused(lambda: server_side_apply(None, patch, "anna", False, schema, NOW))
    assert [live, patch, ops] == before


@pytest.mark.slow
@given(makers, kinds, st.dictionaries(names, junk, max_size=5), junk)
@settings(max_examples=300, deadline=None)
def test_junk_bodies_can_be_tracked_and_stored(maker: Maker, kind: Any, body: Any, owners: Any) -> None:
    """Whatever validation lets through, nothing here falls over."""
    schema = kind[2]
    live = object_of(maker, kind)
    new = {**live, **body}
    if isinstance(new["metadata"], dict):
        new["metadata"] = {**new["metadata"], "managedFields": owners}
    before = copy.deepcopy([live, new])
    only_refused(lambda: settle_body_by_patch_schema(new, schema))
    only_refused(lambda: track_field_owners(live, new, "bert", schema, NOW))
    only_refused(lambda: track_field_owners(None, new, "bert", schema, NOW))
    only_refused(
        lambda: server_side_apply(
            track_field_owners(live, new, "bert", schema, NOW), body_of(maker, kind), "carl", True, schema, NOW
        )
    )
    only_refused(lambda: [fault.path for fault in find_patch_schema_faults(new, schema.root)])
    assert [live, new] == before

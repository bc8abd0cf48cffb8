"""What a request may cost beyond its size. Work is counted (values walked over, items moved, patterns tried), not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import re2

from remuda.api.errors import ApiError, BadRequest
from remuda.api.meta import JsonObject
from remuda.api.selectors import parse_selector
from remuda.api.validation import patterns
from remuda.embedded.apiserver import patching
from remuda.embedded.apiserver.crd import structural_schema
from remuda.embedded.apiserver.crd.lifecycle import accept_crd
from remuda.embedded.apiserver.kinds_served import KindRegistry
from remuda.embedded.apiserver.patching import bounds, check_body_bounds, json_patch, strategic_merge
from remuda.embedded.apiserver.patching.field_owners import MAX_OWNERS
from remuda.embedded.apiserver.preparation import MAX_OBJECT_BYTES, WritePreparation
from remuda.embedded.apiserver.wire.url_paths import parse_read_query

_pod = patching.builtin_kind_schema("v1", "Pod")
assert _pod is not None
POD = _pod


def refusal(call: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        call()
    assert refused.value.code in (400, 413, 422), refused.value
    assert ";" in refused.value.message  # what is wrong; what to do
    return refused.value


class Visits:
    """Counts the values that a walk over a body sees, by the bodies handed to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bodies = 0
        real = check_body_bounds

        def counted(value: Any) -> None:
            self.bodies += 1
            real(value)

        monkeypatch.setattr(sys.modules[json_patch.__module__], "check_body_bounds", counted)


def test_moves_do_not_look_at_what_they_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 moves of 300 KB took 10 s, because the depth of the value was measured at each."""
    visits = Visits(monkeypatch)
    doc = {"data": {"a": [{"b": n} for n in range(10_000)]}}
    there_and_back = [
        {"op": "move", "from": "/data/a", "path": "/data/b"},
        {"op": "move", "from": "/data/b", "path": "/data/a"},
    ]
    assert json_patch(doc, there_and_back * 200) == doc
    assert visits.bodies == 2  # the patch and the result


def test_items_that_move_in_a_long_list_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = spent_by(monkeypatch)
    items = list(range(100_000))
    json_patch({"a": items}, [{"op": "add", "path": "/a/0", "value": 0}] * 10)
    assert spent() > 10 * 100_000 // 64
    first = {"op": "add", "path": "/a/0", "value": 0}
    assert refusal(lambda: json_patch({"a": items}, [first] * 10_000)).code == 413


def spent_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    made: list[bounds.WorkBudget] = []
    real = bounds.WorkBudget.__init__

    def noted(self: bounds.WorkBudget, fix: str, steps: int = bounds.MAX_STEPS) -> None:
        made.append(self)
        real(self, fix, steps)

    monkeypatch.setattr(bounds.WorkBudget, "__init__", noted)
    return lambda: sum(bounds.MAX_STEPS - budget.left for budget in made)


def pod(env: int) -> JsonObject:
    return {"spec": {"containers": [{"name": "c", "env": [{"name": f"v{n}", "value": "x"} for n in range(env)]}]}}


def test_a_strategic_patch_that_names_one_item_often_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    again = {"name": "c", "env": [{"name": "v0", "value": "y"}]}
    spent = spent_by(monkeypatch)
    merged: Any = strategic_merge(pod(1_000), {"spec": {"containers": [again]}}, POD)
    assert merged["spec"]["containers"][0]["env"][0]["value"] == "y"
    assert 1_000 < spent() < 5_000
    assert refusal(lambda: strategic_merge(pod(1_000), {"spec": {"containers": [again] * 1_000}}, POD)).code == 413


def test_a_strategic_patch_of_many_items_is_cheap_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = spent_by(monkeypatch)
    strategic_merge(pod(20_000), {"spec": pod(20_000)["spec"]}, POD)
    assert spent() < 500_000


def test_retained_keys_are_looked_up_not_searched() -> None:
    class Names(list[str]):
        searched = 0

        def __contains__(self, name: object) -> bool:
            self.searched += 1
            return super().__contains__(name)

    names = Names(f"k{n}" for n in range(10_000))
    kept: Any = strategic_merge({"metadata": {"labels": {"a": "b"}}}, {"metadata": {"$retainKeys": names}}, POD)
    assert kept == {"metadata": {}}
    assert names.searched == 0


# Objects.


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({"a": [0] * (bounds.MAX_VALUES + 1)}, 413, "values"),
        ({"a": [[]] * (bounds.MAX_VALUES + 1)}, 413, "values"),
        ({"a": {str(n): {} for n in range(bounds.MAX_VALUES + 1)}}, 413, "values"),
        ({"x" * 1_500_000: {str(n): 1 for n in range(1_000)}}, 413, "names"),
        ({"x" * 1_500_000: [{"a": 1}] * 1_000}, 413, "names"),
    ],
)
def test_an_object_of_too_many_values_or_too_long_names_is_refused(body: JsonObject, code: int, said: str) -> None:
    refused = refusal(lambda: check_body_bounds(body))
    assert refused.code == code
    assert said in refused.message


def test_ordinary_large_objects_are_within_bounds() -> None:
    check_body_bounds({"data": {f"file-{n}": "x" * 30_000 for n in range(100)}})
    check_body_bounds({"metadata": {"annotations": {"a": "x" * 250_000}}})
    deep: JsonObject = {}
    for _ in range(40):
        deep = {"properties": {f"a-field-with-a-long-name-{n}": deep if n == 0 else {} for n in range(50)}}
    check_body_bounds(deep)


def preparation(served: Any, **more: Any) -> WritePreparation:
    return WritePreparation(served, validation="Warn", manager="m", now=0.0, **more)


def served_kind(group: str, version: str, plural: str) -> Any:
    return KindRegistry().find(group, version, plural)


def test_patches_do_not_grow_an_object_for_ever() -> None:
    config_maps = served_kind("", "v1", "configmaps")
    half = {"metadata": {"name": "a"}, "data": {"a": "x" * (MAX_OBJECT_BYTES * 2 // 3)}}
    more = {**half, "data": {**half["data"], "b": "x" * (MAX_OBJECT_BYTES // 2)}}
    patched = preparation(config_maps, is_patch=True)
    assert refusal(lambda: patched.written(half, more)).code == 413
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"b": more["data"]["b"]}}
    live = {"apiVersion": "v1", "kind": "ConfigMap", **half}
    assert refusal(lambda: preparation(config_maps).applied(live, applied, is_forced=True)).code == 413


def test_an_object_has_only_so_many_field_managers() -> None:
    config_maps = served_kind("", "v1", "configmaps")
    entry = {"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}}
    entries = [{**entry, "manager": f"m{n}"} for n in range(MAX_OWNERS)]
    live = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "managedFields": entries},
        "data": {"a": "b"},
    }
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"c": "d"}}
    assert refusal(lambda: preparation(config_maps).applied(live, mine, is_forced=True)).code == 422


@pytest.mark.parametrize("validation", ["Warn", "Strict"])
def test_warnings_and_refusals_name_a_hundred_fields_at_most(validation: str) -> None:
    config_maps = served_kind("", "v1", "configmaps")
    body = {"metadata": {"name": "a"}, **{f"unknown{n}": 1 for n in range(50_000)}}
    work = WritePreparation(config_maps, validation=validation, manager="m", now=0.0)
    if validation == "Strict":
        with pytest.raises(BadRequest) as refused:
            work.written(None, body)
        assert len(refused.value.message) < 10_000
    else:
        work.written(None, body)
        assert len(work.warnings) == 100


# Schemas of custom kinds.


def test_a_schema_of_many_choices_met_by_a_long_list_is_paid_for() -> None:
    choices = {"type": "array", "items": {"anyOf": [{"minimum": 10, "maximum": n} for n in range(2_000)]}}
    schema = {"type": "object", "properties": {"a": choices}}
    assert structural_schema.crd_schema_misfits({"a": [10**6]}, schema)
    assert refusal(lambda: structural_schema.crd_schema_misfits({"a": list(range(5_000))}, schema)).code == 413


def test_a_long_enum_is_paid_for() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": [f"x{n}" for n in range(5_000)]}}},
    }
    assert structural_schema.crd_schema_misfits({"a": ["x4999"] * 50}, schema) == []
    assert refusal(lambda: structural_schema.crd_schema_misfits({"a": ["x4999"] * 5_000}, schema)).code == 413


def test_a_match_is_paid_for_by_the_size_of_pattern_and_text() -> None:
    hard = "[ab]*a[ab]{1000}[cd]"  # RE2's tables do not hold it: 1.5 s for 300 KB
    assert patterns.validation_pattern_price("^[a-z0-9-]{1,63}$", "a" * 63) < 100
    assert patterns.validation_pattern_price(hard, "ab" * 150_000) > 1_000_000
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": hard}}}
    assert structural_schema.crd_schema_misfits({"a": "ab" * 100}, schema)
    assert refusal(lambda: structural_schema.crd_schema_misfits({"a": "ab" * 1_000_000}, schema)).code == 413


def test_misfits_are_told_up_to_a_hundred_and_shown_in_part() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"maximum": 1}}}}
    assert len(structural_schema.crd_schema_misfits({"a": [7] * 100_000}, schema)) == structural_schema.MAX_MISFITS

    class Long(list[int]):
        seen = 0

        def __iter__(self) -> Any:
            for each in super().__iter__():
                self.seen += 1
                yield each

    long = Long(range(100_000))
    assert structural_schema._shown_misfit(long).startswith("[0,1,2,3,")
    assert long.seen < 1_000  # not written out to be cut


def definition(*patterns: str) -> JsonObject:
    properties = {f"p{n}": {"type": "string", "pattern": pattern} for n, pattern in enumerate(patterns)}
    schema = {"type": "object", "properties": properties}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "gadgets", "kind": "Gadget"}
    spec = {"group": "a.b", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "gadgets.a.b"}, "spec": spec}


def test_patterns_that_take_long_to_compile_are_refused_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """RE2 needs 2 s for thirty counts of a thousand side by side, and a definition can have thousands of patterns."""
    compiled: list[str] = []
    real = re2.compile

    def counted(pattern: bytes, options: Any) -> Any:
        compiled.append(pattern.decode())
        return real(pattern, options)

    monkeypatch.setattr(re2, "compile", counted)
    with pytest.raises(ApiError, match="expression too large"):
        accept_crd(definition("^" + r"\d{1,1000}" * 30 + "$"), None, KindRegistry(), 0.0)
    with pytest.raises(ApiError, match="expression too large"):
        accept_crd(definition("a?" * 8_000), None, KindRegistry(), 0.0)
    assert compiled == []
    with pytest.raises(ApiError, match="all patterns of the definition"):
        accept_crd(definition(*(rf"a{{1,1000}}{n}" for n in range(500))), None, KindRegistry(), 0.0)
    assert len(compiled) <= 20
    compiled.clear()
    accept_crd(
        definition(*(rf"^[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?{n}$" for n in range(200))), None, KindRegistry(), 0.0
    )
    accept_crd(definition(*([r"^\d{1,1000}$"] * 1_000)), None, KindRegistry(), 0.0)  # one pattern, wherever it stands


# Selectors.


def test_selectors_are_bounded() -> None:
    pods = served_kind("", "v1", "pods").resource
    parse_read_query({"labelSelector": ",".join(f"a{n}=b" for n in range(400))}, pods)
    parse_read_query({"labelSelector": f"a in ({','.join(f'b{n}' for n in range(900))})"}, pods)
    for query in (
        {"labelSelector": ",".join(f"a{n}" for n in range(1_001))},
        {"labelSelector": f"a in ({','.join(f'b{n}' for n in range(1_001))})"},
        {"fieldSelector": ",".join(["metadata.name!=x"] * 1_001)},
    ):
        assert refusal(lambda query=query: parse_read_query(query, pods)).code == 400  # type: ignore[misc]


def test_a_long_selector_is_read_once() -> None:
    class Text(str):
        copied = 0

        def __getitem__(self, key: Any) -> str:
            Text.copied += 1
            return super().__getitem__(key)

    assert len(parse_selector(Text(",".join(["a"] * 5_000))).requirements) == 5_000
    assert Text.copied == 0

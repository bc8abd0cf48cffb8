"""The table of pod fields is complete, says what is true, and is what docs/compatibility.md shows."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching.patch_schema import PatchSchema, builtin_kind_schema
from remuda.embedded.pod_fields.field_page import pod_schema_paths, with_pod_field_table
from remuda.embedded.pod_fields.field_table import POD_FIELDS, FieldClaim, PodField, find_pod_field
from remuda.embedded.pod_fields.judge_pod import PodHost, judge_pod_spec

ROOT = Path(__file__).parents[4]


def test_every_field_of_a_pod_has_an_entry() -> None:
    without = [path for path in pod_schema_paths() if find_pod_field(path) is None]
    assert without == []


def test_every_entry_is_of_a_field_and_can_be_reached() -> None:
    known = set(pod_schema_paths())
    assert [path for path in POD_FIELDS if path not in known] == []
    for path in POD_FIELDS:
        above = path.rpartition(".")[0]
        assert not above or POD_FIELDS[above].is_section, f"{path} is hidden by the entry of {above}"


def test_a_new_field_would_be_noticed() -> None:
    assert find_pod_field("containers[].securityContext.newInKubernetes") is None
    assert find_pod_field("newInKubernetes") is None


@pytest.mark.parametrize("field", [f for f in POD_FIELDS.values() if not f.is_section], ids=lambda f: f.path)
def test_what_is_honoured_has_a_test_and_what_is_not_has_words(field: PodField) -> None:
    if field.claim is FieldClaim.HONOURED:
        file, _, name = field.shown_by.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        tests = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
        assert name in tests, f"{field.path} is shown by {field.shown_by}, which is not there"
    else:
        assert field.said
    if field.claim is FieldClaim.REFUSED:
        assert field.reason.isalnum()
        assert field.fix


UNHONOURED = [
    f
    for f in POD_FIELDS.values()
    if f.claim is not FieldClaim.HONOURED and not f.path.startswith("volumes[].") and "volumeMounts" not in f.path
]


@pytest.mark.parametrize("field", UNHONOURED, ids=lambda f: f.path)
def test_a_pod_that_uses_the_field_is_judged_as_the_table_says(field: PodField) -> None:
    only_quiet = field.path in ("enableServiceLinks",)  # both its values ask for nothing
    for host, is_process in ((PodHost(), True), (PodHost(is_simulated=True), False)):
        found = judge_pod_spec(pod_using(field), host)
        claim = field.claim if is_process or not field.is_process_only else FieldClaim.WARNED
        assert [f.claim for f in found] == ([] if only_quiet else [claim]), found


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert with_pod_field_table(page) == page, "run .venv/bin/python tools/render-pod-fields"


def pod_using(field: PodField) -> JsonObject:
    """A spec whose containers have a command and nothing else, but for that one field."""
    kind = builtin_kind_schema("v1", "Pod")
    assert kind is not None
    spec: JsonObject = {"containers": [{"name": "main", "command": ["true"]}]}
    place: Any = spec
    schema: PatchSchema = kind.root.fields["spec"]
    names = field.path.split(".")
    for number, name in enumerate(names):
        plain = name.removesuffix("[]").removesuffix("{}")
        schema = schema.fields[plain]
        if number == len(names) - 1:
            place[plain] = some_value(schema, field)
        elif name.endswith("[]"):
            schema = schema.items
            place = place.setdefault(plain, [{}])[0]
        else:
            place = place.setdefault(plain, {})
    return spec


def some_value(schema: PatchSchema, field: PodField) -> Any:
    match schema.type:
        case "array":
            return [some_value(schema.items, field)]
        case "object" if schema.fields:
            name, below = next(iter(schema.fields.items()))
            return {name: some_value(below, field)}
        case "object":
            return {"cpu": "1"}
        case "boolean":
            return True not in field.quiet
        case "integer":
            return 1000
    return "1"

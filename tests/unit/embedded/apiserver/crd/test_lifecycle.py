from __future__ import annotations

from typing import Any

import pytest

from remuda.api.errors import Invalid
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.crd.lifecycle import CLEANUP, accept_crd

NOW = 1_700_000_000.0


class Free:
    def __init__(self, resources: str = "", kinds: str = "") -> None:
        self.names = set(resources.split()), set(kinds.split())

    def taken(self, group: str, by: str) -> tuple[set[str], set[str]]:
        return self.names


def definition(**spec: Any) -> JsonObject:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "widgets", "kind": "Widget"}
    body = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version], **spec}
    return {"metadata": {"name": "widgets.example.com", "uid": "u"}, "spec": body}


def conditions(body: JsonObject) -> dict[str, str]:
    return {c["type"]: c["status"] for c in body["status"]["conditions"]}


def test_a_good_definition_is_established_at_once() -> None:
    made = accept_crd(definition(), None, Free(), NOW)
    assert conditions(made) == {"NamesAccepted": "True", "Established": "True"}
    assert made["metadata"]["finalizers"] == [CLEANUP]
    assert made["spec"]["names"] == {
        "plural": "widgets",
        "kind": "Widget",
        "singular": "widget",
        "listKind": "WidgetList",
    }
    assert made["status"]["storedVersions"] == ["v1"]


def test_names_in_use_are_not_accepted() -> None:
    assert conditions(accept_crd(definition(), None, Free("widgets"), NOW)) == {
        "NamesAccepted": "False",
        "Established": "False",
    }


def test_storage_versions_are_remembered() -> None:
    made = accept_crd(definition(), None, Free(), NOW)
    version = {"name": "v2", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    old = {**made["spec"]["versions"][0], "storage": False}
    changed = accept_crd({**made, "spec": {**made["spec"], "versions": [old, version]}}, made, Free(), NOW + 60)
    assert changed["status"]["storedVersions"] == ["v1", "v2"]
    assert changed["status"]["conditions"] == made["status"]["conditions"]


SCHEMALESS = {"name": "v1", "served": True, "storage": True}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"group": ""}, "spec.group"),
        ({"group": "nodots"}, "spec.group"),
        ({"scope": "Galaxy"}, "spec.scope"),
        ({"names": {"plural": "widgets"}}, "spec.names.kind"),
        ({"names": {"plural": "others", "kind": "Widget"}}, "metadata.name"),
        ({"versions": []}, "spec.versions"),
        ({"versions": [{**SCHEMALESS, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}}]}, "spec.versions"),
        ({"versions": [SCHEMALESS]}, "spec.versions[0].schema.openAPIV3Schema"),
        ({"versions": [{**SCHEMALESS, "schema": {"openAPIV3Schema": {"type": "string"}}}]},
         "spec.versions[0].schema.openAPIV3Schema.type"),
        ({"versions": [{**SCHEMALESS, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}}}]},
         "spec.versions[0].schema.openAPIV3Schema.properties[a].type"),
        ({"conversion": {"strategy": "Webhook"}}, "spec.conversion.strategy"),
    ],
)  # fmt: skip
def test_a_bad_definition_is_refused_by_field(spec: JsonObject, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        accept_crd(definition(**spec), None, Free(), NOW)
    assert caught.value.details is not None
    assert field in [cause.field for cause in caught.value.details.causes]


def test_identity_cannot_be_changed() -> None:
    made = accept_crd(definition(), None, Free(), NOW)
    with pytest.raises(Invalid, match="immutable"):
        accept_crd({**made, "spec": {**made["spec"], "scope": "Cluster"}}, made, Free(), NOW)


@pytest.mark.parametrize(
    ("taken", "reason", "kept"),
    [
        (
            ("widgets", ""),
            "PluralConflict",
            {"plural": "", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"},
        ),
        (("widget", ""), "SingularConflict", {"plural": "widgets", "kind": "Widget", "listKind": "WidgetList"}),
        (("", "WidgetList"), "ListKindConflict", {"plural": "widgets", "kind": "Widget", "singular": "widget"}),
        (("widget", "Widget"), "KindConflict", {"plural": "widgets", "kind": "", "listKind": "WidgetList"}),
    ],
)
def test_names_of_others_are_not_accepted(taken: tuple[str, str], reason: str, kept: JsonObject) -> None:
    status = accept_crd(definition(), None, Free(*taken), NOW)["status"]
    assert status["acceptedNames"] == kept
    assert [c["reason"] for c in status["conditions"]] == [reason, "NotAccepted"]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("+", "missing argument to repetition operator: `+`"),  # as upstream's own test has it, word for word
        ("(?=x)", "invalid or unsupported Perl syntax: `(?=`"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
    ],
)
def test_patterns_that_go_cannot_compile_are_refused(pattern: str, why: str) -> None:
    below = {"type": "string", "anyOf": [{"pattern": pattern}]}
    for inner, at in (({"type": "string", "pattern": pattern}, ""), (below, ".anyOf[0]")):
        schema = {"type": "object", "properties": {"foo": inner}}
        with pytest.raises(Invalid) as refused:
            accept_crd(definition(versions=[{**SCHEMALESS, "schema": {"openAPIV3Schema": schema}}]), None, Free(), NOW)
        assert str(refused.value).endswith(
            f"spec.versions[0].schema.openAPIV3Schema.properties[foo]{at}.pattern: Invalid value: "
            f'"{pattern}": must be a valid regular expression, but isn\'t: error parsing regexp: {why}'
        )

"""The table of what is served, and definitions that come and go."""

from __future__ import annotations

import pytest

from remuda.api.kinds import KINDS
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.kinds_served import BUILTIN, KindRegistry
from remuda.embedded.apiserver.patching import builtin_kind_schema


def widgets(version: str = "v1", *, established: bool = True) -> JsonObject:
    schema = {"type": "object", "properties": {"spec": {"type": "object"}}}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
        "status": {"conditions": [{"type": "Established", "status": str(established)}]},
    }


def test_every_kind_of_the_port_is_served_with_its_type() -> None:
    registry = KindRegistry()
    for kind in KINDS:
        served = registry.of(kind)
        assert served.kind is kind
        assert registry.find(kind.resource.group, kind.resource.version, kind.resource.plural) is served
        assert served.resource.prefix == kind.resource.prefix
        assert served.resource.namespaced == kind.resource.namespaced
        assert set(kind.resource.subresources) <= set(served.resource.subresources)


@pytest.mark.parametrize("resource", BUILTIN, ids=lambda r: r.full_name)
def test_every_stored_built_in_kind_has_a_schema(resource: object) -> None:
    from remuda.api.meta import Resource

    assert isinstance(resource, Resource)
    if resource.verbs != ("create",):
        assert builtin_kind_schema(resource.api_version, resource.kind) is not None


def test_no_two_built_in_kinds_share_a_name() -> None:
    assert len({(r.group, r.plural) for r in BUILTIN}) == len(BUILTIN)
    shorts = [(r.group, s) for r in BUILTIN for s in r.short]
    assert len(set(shorts)) == len(shorts)


def test_a_definition_is_served_once_established_and_gone_when_uninstalled() -> None:
    registry = KindRegistry()
    registry.install(widgets(established=False))
    assert registry.find("example.com", "v1", "widgets") is None
    registry.install(widgets())
    served = registry.find("example.com", "v1", "widgets")
    assert served is not None
    assert (served.resource.kind, served.resource.short, served.resource.list_of) == ("Widget", ("wd",), "WidgetList")
    assert served.schema.custom
    registry.install(widgets("v2"))
    assert registry.find("example.com", "v1", "widgets") is None
    assert registry.groups()["example.com"] == ["v2"]
    registry.uninstall("widgets.example.com")
    assert "example.com" not in registry.groups()


def test_names_of_others_are_taken() -> None:
    registry = KindRegistry()
    resources, kinds = registry.taken("apps", "deployments.apps")
    assert {"deployments", "deployment", "deploy"} <= resources
    assert {"Deployment", "DeploymentList"} <= kinds
    registry.install(widgets())
    assert registry.taken("example.com", "widgets.example.com") == (set(), set())
    assert registry.taken("example.com", "other") == ({"widgets", "widget", "wd"}, {"Widget", "WidgetList"})


def test_definitions_of_our_own_kinds_change_nothing() -> None:
    from remuda.api.crds import CRDS

    registry = KindRegistry()
    before = registry.find("remuda.dev", "v1alpha1", "trainingjobs")
    registry.install({**CRDS[0], "status": {"conditions": [{"type": "Established", "status": "True"}]}})
    assert registry.find("remuda.dev", "v1alpha1", "trainingjobs") is before
    registry.uninstall("trainingjobs.remuda.dev")
    assert registry.find("remuda.dev", "v1alpha1", "trainingjobs") is before


def test_versions_are_in_kubernetes_order() -> None:
    registry = KindRegistry()
    body = widgets()
    names = ("v1beta1", "v2", "v1", "v1alpha1", "v10", "v1beta2")
    schema = {"openAPIV3Schema": {"type": "object"}}
    body["spec"]["versions"] = [{"name": n, "served": True, "storage": n == "v1", "schema": schema} for n in names]
    registry.install(body)
    assert registry.groups()["example.com"] == ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1"]


def test_a_resource_is_found_by_the_key_of_its_objects_and_by_its_kind() -> None:
    registry = KindRegistry()
    assert registry.by_prefix(Pod.resource.key("p", "ns")) is registry.of(Pod)
    assert registry.by_prefix("/example.com/widgets/a/b") is None
    assert registry.by_group_kind("", "Pod") is registry.of(Pod)
    assert registry.by_group_kind("example.com", "Widget") is None
    registry.install(widgets())
    assert registry.by_group_kind("example.com", "Widget") is registry.find("example.com", "v1", "widgets")
    registry.uninstall("widgets.example.com")
    assert registry.by_group_kind("example.com", "Widget") is None

"""What a client learns about the server before it asks for anything: groups, versions, resources. Not aggregated."""

from __future__ import annotations

from collections.abc import Iterator

from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver.kinds_served import KindRegistry

_ON_OBJECTS = ("get", "patch", "update")
# kind (and its group version, when it is not the resource's own) and verbs of subresources that are no view of their object
_SPECIAL: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "binding": ("", "", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "exec": ("", "", "PodExecOptions", ("create", "get")),
    "scale": ("autoscaling", "v1", "Scale", _ON_OBJECTS),
}


def discover_core_versions(address: str) -> JsonObject:
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def discover_groups(registry: KindRegistry) -> JsonObject:
    groups = [_api_group(name, versions) for name, versions in registry.groups().items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def discover_group(registry: KindRegistry, name: str) -> JsonObject | None:
    versions = registry.groups().get(name)
    return None if versions is None else {"kind": "APIGroup", "apiVersion": "v1", **_api_group(name, versions)}


def _api_group(name: str, versions: list[str]) -> JsonObject:
    found = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": found, "preferredVersion": found[0]}


def discover_resources(registry: KindRegistry, group: str, version: str) -> JsonObject | None:
    served = [s.resource for s in registry if (s.resource.group, s.resource.version) == (group, version)]
    if not served:
        return None
    entries = [entry for resource in sorted(served, key=lambda r: r.plural) for entry in _api_resources(resource)]
    of = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": of, "resources": entries}


def _api_resources(resource: Resource) -> Iterator[JsonObject]:
    entry: JsonObject = {
        "name": resource.plural,
        "singularName": resource.singular or resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        entry["shortNames"] = list(resource.short)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    yield entry
    for name in resource.subresources:
        group, version, kind, verbs = _SPECIAL.get(name, ("", "", resource.kind, _ON_OBJECTS))
        if name in ("log", "finalize"):
            verbs = ("get",) if name == "log" else ("update",)
        below: JsonObject = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
        if group:
            below |= {"group": group, "version": version}
        yield {**below, "kind": kind, "verbs": list(verbs)}

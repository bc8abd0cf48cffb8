"""The columns `kubectl get` shows for each kind: those Kubernetes users know, and a custom kind's printer columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.kinds_served import Served
from remuda.embedded.apiserver.wire import table_cells
from remuda.embedded.apiserver.wire.jsonpath import find
from remuda.embedded.apiserver.wire.table_cells import NONE, created, get, joined

Cell = Callable[[JsonObject, float], Any]


class Column(msgspec.Struct, frozen=True):
    """`definition` is its entry in the Table's columnDefinitions."""

    definition: JsonObject
    cell: Cell


def _column(
    name: str, cell: Cell, type_: str = "string", priority: int = 0, format_: str = "", about: str = ""
) -> Column:
    definition = {"name": name, "type": type_, "format": format_, "description": about, "priority": priority}
    return Column(definition, cell)


def _at(*path: str, none: Any = NONE) -> Cell:
    def cell(body: JsonObject, now: float) -> Any:
        value = get(body, *path)
        return none if value is None or value == "" else value

    return cell


def _wide(name: str, cell: Cell) -> Column:
    return _column(name, cell, priority=1)


NAME = _column("Name", lambda body, now: body["metadata"]["name"], format_="name", about="Name of the object.")
AGE = _column("Age", created, about="Time since it was created.")
_CREATED_AT = _column("Created At", lambda body, now: get(body, "metadata", "creationTimestamp"), "date")
_PLAIN = (NAME, _CREATED_AT)
_TEMPLATE = (
    _wide("Containers", lambda body, now: table_cells.template_containers(body, "name")),
    _wide("Images", lambda body, now: table_cells.template_containers(body, "image")),
    _wide("Selector", lambda body, now: table_cells.selector(get(body, "spec", "selector"))),
)
_EVENTS = (
    _column("Last Seen", table_cells.event_last),
    _column("Type", _at("type", none="")),
    _column("Reason", _at("reason", none="")),
    _column("Object", table_cells.event_object),
    _wide("Subobject", _at("involvedObject", "fieldPath", none="")),
    _wide("Source", table_cells.event_source),
    _column("Message", lambda body, now: str(body.get("message") or "").strip()),
    _wide("First Seen", table_cells.event_first),
    _wide("Count", table_cells.event_count),
    _column("Name", lambda body, now: body["metadata"]["name"], priority=1, format_="name"),
)

_COLUMNS: dict[tuple[str, str], tuple[Column, ...]] = {
    ("", "pods"): (
        NAME,
        _column("Ready", table_cells.pod_ready, about="Containers ready, of all."),
        _column("Status", table_cells.pod_status, about="Phase, or why it is not running."),
        _column("Restarts", table_cells.pod_restarts, about="Restarts of its containers."),
        AGE,
        _wide("IP", _at("status", "podIP")),
        _wide("Node", _at("spec", "nodeName")),
        _wide("Nominated Node", _at("status", "nominatedNodeName")),
        _wide("Readiness Gates", lambda body, now: NONE),
    ),
    ("", "nodes"): (
        NAME,
        _column("Status", table_cells.node_status),
        _column("Roles", table_cells.node_roles),
        AGE,
        _column("Version", lambda body, now: get(body, "status", "nodeInfo", "kubeletVersion") or ""),
        _wide("Internal-IP", lambda body, now: table_cells.node_address(body, "InternalIP")),
        _wide("External-IP", lambda body, now: table_cells.node_address(body, "ExternalIP")),
        _wide("OS-Image", lambda body, now: table_cells.node_info(body, "osImage")),
        _wide("Kernel-Version", lambda body, now: table_cells.node_info(body, "kernelVersion")),
        _wide("Container-Runtime", lambda body, now: table_cells.node_info(body, "containerRuntimeVersion")),
    ),
    ("", "namespaces"): (NAME, _column("Status", _at("status", "phase", none="")), AGE),
    ("", "services"): (
        NAME,
        _column("Type", _at("spec", "type", none="ClusterIP")),
        _column("Cluster-IP", _at("spec", "clusterIP")),
        _column("External-IP", table_cells.service_external),
        _column("Port(s)", table_cells.service_ports),
        AGE,
        _wide("Selector", lambda body, now: table_cells.pairs(get(body, "spec", "selector"))),
    ),
    ("", "configmaps"): (
        NAME,
        _column("Data", lambda body, now: len(body.get("data") or ()) + len(body.get("binaryData") or ())),
        AGE,
    ),
    ("", "secrets"): (
        NAME,
        _column("Type", _at("type", none="Opaque")),
        _column("Data", lambda body, now: len(body.get("data") or ())),
        AGE,
    ),
    ("", "serviceaccounts"): (NAME, AGE),
    ("", "events"): _EVENTS,
    ("events.k8s.io", "events"): _EVENTS,
    ("", "persistentvolumeclaims"): (
        NAME,
        _column("Status", _at("status", "phase", none="")),
        _column("Volume", _at("spec", "volumeName", none="")),
        _column("Capacity", _at("status", "capacity", "storage", none="")),
        _column("Access Modes", lambda body, now: table_cells.modes(body)),
        _column("StorageClass", _at("spec", "storageClassName", none="")),
        _column("VolumeAttributesClass", _at("spec", "volumeAttributesClassName", none="<unset>")),
        AGE,
        _wide("VolumeMode", _at("spec", "volumeMode", none="<unset>")),
    ),
    ("", "resourcequotas"): (
        NAME,
        _column("Request", lambda body, now: table_cells.quota(body, limits=False)),
        _column("Limit", lambda body, now: table_cells.quota(body, limits=True)),
        AGE,
    ),
    ("", "limitranges"): _PLAIN,
    ("apps", "deployments"): (
        NAME,
        _column(
            "Ready",
            lambda body, now: f"{get(body, 'status', 'readyReplicas') or 0}/{_or_one(get(body, 'spec', 'replicas'))}",
        ),
        _column("Up-to-date", lambda body, now: get(body, "status", "updatedReplicas") or 0),
        _column("Available", lambda body, now: get(body, "status", "availableReplicas") or 0),
        AGE,
        *_TEMPLATE,
    ),
    ("apps", "replicasets"): (
        NAME,
        _column("Desired", lambda body, now: _or_one(get(body, "spec", "replicas")), "integer"),
        _column("Current", _at("status", "replicas", none=0), "integer"),
        _column("Ready", _at("status", "readyReplicas", none=0), "integer"),
        AGE,
        *_TEMPLATE,
    ),
    ("batch", "jobs"): (
        NAME,
        _column("Status", table_cells.job_status),
        _column("Completions", table_cells.job_completions),
        _column("Duration", table_cells.job_duration),
        AGE,
        *_TEMPLATE,
    ),
    ("policy", "poddisruptionbudgets"): (
        NAME,
        _column("Min Available", lambda body, now: str(_at("spec", "minAvailable", none="N/A")(body, now))),
        _column("Max Unavailable", lambda body, now: str(_at("spec", "maxUnavailable", none="N/A")(body, now))),
        _column("Allowed Disruptions", _at("status", "disruptionsAllowed", none=0), "integer"),
        AGE,
    ),
    ("scheduling.k8s.io", "priorityclasses"): (
        NAME,
        _column("Value", _at("value", none=0), "integer"),
        _column("Global-Default", lambda body, now: bool(body.get("globalDefault")), "boolean"),
        AGE,
        _column("PreemptionPolicy", _at("preemptionPolicy", none="PreemptLowerPriority")),
    ),
    ("coordination.k8s.io", "leases"): (NAME, _column("Holder", _at("spec", "holderIdentity", none="")), AGE),
    ("discovery.k8s.io", "endpointslices"): (
        NAME,
        _column("AddressType", _at("addressType", none="")),
        _column("Ports", table_cells.slice_ports),
        _column("Endpoints", table_cells.slice_endpoints),
        AGE,
    ),
    ("autoscaling", "horizontalpodautoscalers"): (
        NAME,
        _column(
            "Reference",
            lambda body, now: (
                f"{get(body, 'spec', 'scaleTargetRef', 'kind')}/{get(body, 'spec', 'scaleTargetRef', 'name')}"
            ),
        ),
        _column("Targets", table_cells.hpa_targets),
        _column("MinPods", lambda body, now: str(_at("spec", "minReplicas", none="<unset>")(body, now))),
        _column("MaxPods", _at("spec", "maxReplicas", none=0)),
        _column("Replicas", _at("status", "currentReplicas", none=0)),
        AGE,
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (
        NAME,
        _column("Scope", _at("spec", "scope", none="")),
        _column("Versions", lambda body, now: joined(_version(v) for v in body["spec"]["versions"] if v.get("served"))),
        _CREATED_AT,
        _wide("Group", _at("spec", "group", none="")),
        _wide("Kind", _at("spec", "names", "kind", none="")),
        _wide("ShortNames", lambda body, now: ",".join(get(body, "spec", "names", "shortNames") or ())),
        _column("Established", lambda body, now: table_cells.condition(body, "Established") == "True", "boolean", 1),
    ),
}


def _version(version: JsonObject) -> str:
    return f"{version['name']}(storage)" if version.get("storage") else str(version["name"])


def _or_one(value: Any) -> Any:
    return 1 if value is None else value


@lru_cache(maxsize=1024)
def columns_of(served: Served) -> tuple[Column, ...]:
    if served.custom is not None:
        return (NAME, *(_printer_column(c) for c in served.custom.columns))
    return _COLUMNS.get((served.resource.group, served.resource.plural), _PLAIN)


def _printer_column(given: JsonObject) -> Column:
    type_, path = str(given.get("type") or "string"), str(given.get("jsonPath") or "")

    def cell(body: JsonObject, now: float) -> Any:
        found = find(body, path)
        if not found or (found[0] is None and len(found) == 1):
            return None
        if type_ == "date":
            return table_cells.age(found[0], now)
        if type_ == "string":
            return " ".join(_text(value) for value in found)
        return _typed(type_, found[0])

    return _column(
        str(given.get("name")),
        cell,
        type_,
        int(given.get("priority") or 0),
        str(given.get("format") or ""),
        str(given.get("description") or ""),
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)


def _typed(type_: str, value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match type_:
        case "integer":
            return int(value) if is_number else None
        case "number":
            return value if is_number else None
        case "boolean":
            return value if isinstance(value, bool) else None
    return _text(value)

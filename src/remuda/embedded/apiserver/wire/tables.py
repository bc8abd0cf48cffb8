"""The columns `kubectl get` shows for each kind: those Kubernetes users know, and a custom kind's printer columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.wire import table_cells
from remuda.embedded.apiserver.wire.jsonpath import find_by_jsonpath
from remuda.embedded.apiserver.wire.table_cells import NONE, cell_field, created_cell, joined_cell

Cell = Callable[[JsonObject, float], Any]


class TableColumn(msgspec.Struct, frozen=True):
    """`definition` is its entry in the Table's columnDefinitions."""

    definition: JsonObject
    cell: Cell


def _table_column(
    name: str, cell: Cell, type_: str = "string", priority: int = 0, format_: str = "", about: str = ""
) -> TableColumn:
    definition = {"name": name, "type": type_, "format": format_, "description": about, "priority": priority}
    return TableColumn(definition, cell)


def _field_cell(*path: str, none: Any = NONE) -> Cell:
    def cell(body: JsonObject, now: float) -> Any:
        value = cell_field(body, *path)
        return none if value is None or value == "" else value

    return cell


def _wide_column(name: str, cell: Cell) -> TableColumn:
    return _table_column(name, cell, priority=1)


NAME = _table_column("Name", lambda body, now: body["metadata"]["name"], format_="name", about="Name of the object.")
AGE = _table_column("Age", created_cell, about="Time since it was created.")
_CREATED_AT = _table_column("Created At", lambda body, now: cell_field(body, "metadata", "creationTimestamp"), "date")
_PLAIN = (NAME, _CREATED_AT)
_TEMPLATE = (
    _wide_column("Containers", lambda body, now: table_cells.template_containers_cell(body, "name")),
    _wide_column("Images", lambda body, now: table_cells.template_containers_cell(body, "image")),
    _wide_column("Selector", lambda body, now: table_cells.selector_cell(cell_field(body, "spec", "selector"))),
)
_EVENTS = (
    _table_column("Last Seen", table_cells.event_last_cell),
    _table_column("Type", _field_cell("type", none="")),
    _table_column("Reason", _field_cell("reason", none="")),
    _table_column("Object", table_cells.event_object_cell),
    _wide_column("Subobject", _field_cell("involvedObject", "fieldPath", none="")),
    _wide_column("Source", table_cells.event_source_cell),
    _table_column("Message", lambda body, now: str(body.get("message") or "").strip()),
    _wide_column("First Seen", table_cells.event_first_cell),
    _wide_column("Count", table_cells.event_count_cell),
    _table_column("Name", lambda body, now: body["metadata"]["name"], priority=1, format_="name"),
)

_COLUMNS: dict[tuple[str, str], tuple[TableColumn, ...]] = {
    ("", "pods"): (
        NAME,
        _table_column("Ready", table_cells.pod_ready_cell, about="Containers ready, of all."),
        _table_column("Status", table_cells.pod_status_cell, about="Phase, or why it is not running."),
        _table_column("Restarts", table_cells.pod_restarts_cell, about="Restarts of its containers."),
        AGE,
        _wide_column("IP", _field_cell("status", "podIP")),
        _wide_column("Node", _field_cell("spec", "nodeName")),
        _wide_column("Nominated Node", _field_cell("status", "nominatedNodeName")),
        _wide_column("Readiness Gates", lambda body, now: NONE),
    ),
    ("", "nodes"): (
        NAME,
        _table_column("Status", table_cells.node_status_cell),
        _table_column("Roles", table_cells.node_roles_cell),
        AGE,
        _table_column("Version", lambda body, now: cell_field(body, "status", "nodeInfo", "kubeletVersion") or ""),
        _wide_column("Internal-IP", lambda body, now: table_cells.node_address_cell(body, "InternalIP")),
        _wide_column("External-IP", lambda body, now: table_cells.node_address_cell(body, "ExternalIP")),
        _wide_column("OS-Image", lambda body, now: table_cells.node_info_cell(body, "osImage")),
        _wide_column("Kernel-Version", lambda body, now: table_cells.node_info_cell(body, "kernelVersion")),
        _wide_column(
            "Container-Runtime", lambda body, now: table_cells.node_info_cell(body, "containerRuntimeVersion")
        ),
    ),
    ("", "namespaces"): (NAME, _table_column("Status", _field_cell("status", "phase", none="")), AGE),
    ("", "services"): (
        NAME,
        _table_column("Type", _field_cell("spec", "type", none="ClusterIP")),
        _table_column("Cluster-IP", _field_cell("spec", "clusterIP")),
        _table_column("External-IP", table_cells.service_external_cell),
        _table_column("Port(s)", table_cells.service_ports_cell),
        AGE,
        _wide_column("Selector", lambda body, now: table_cells.labels_cell(cell_field(body, "spec", "selector"))),
    ),
    ("", "configmaps"): (
        NAME,
        _table_column("Data", lambda body, now: len(body.get("data") or ()) + len(body.get("binaryData") or ())),
        AGE,
    ),
    ("", "secrets"): (
        NAME,
        _table_column("Type", _field_cell("type", none="Opaque")),
        _table_column("Data", lambda body, now: len(body.get("data") or ())),
        AGE,
    ),
    ("", "serviceaccounts"): (NAME, AGE),
    ("", "events"): _EVENTS,
    ("events.k8s.io", "events"): _EVENTS,
    ("", "persistentvolumeclaims"): (
        NAME,
        _table_column("Status", _field_cell("status", "phase", none="")),
        _table_column("Volume", _field_cell("spec", "volumeName", none="")),
        _table_column("Capacity", _field_cell("status", "capacity", "storage", none="")),
        _table_column("Access Modes", lambda body, now: table_cells.access_modes_cell(body)),
        _table_column("StorageClass", _field_cell("spec", "storageClassName", none="")),
        _table_column("VolumeAttributesClass", _field_cell("spec", "volumeAttributesClassName", none="<unset>")),
        AGE,
        _wide_column("VolumeMode", _field_cell("spec", "volumeMode", none="<unset>")),
    ),
    ("", "resourcequotas"): (
        NAME,
        _table_column("Request", lambda body, now: table_cells.quota_cell(body, limits=False)),
        _table_column("Limit", lambda body, now: table_cells.quota_cell(body, limits=True)),
        AGE,
    ),
    ("", "limitranges"): _PLAIN,
    ("apps", "deployments"): (
        NAME,
        _table_column(
            "Ready",
            lambda body, now: (
                f"{cell_field(body, 'status', 'readyReplicas') or 0}/{_one_if_absent(cell_field(body, 'spec', 'replicas'))}"
            ),
        ),
        _table_column("Up-to-date", lambda body, now: cell_field(body, "status", "updatedReplicas") or 0),
        _table_column("Available", lambda body, now: cell_field(body, "status", "availableReplicas") or 0),
        AGE,
        *_TEMPLATE,
    ),
    ("apps", "replicasets"): (
        NAME,
        _table_column("Desired", lambda body, now: _one_if_absent(cell_field(body, "spec", "replicas")), "integer"),
        _table_column("Current", _field_cell("status", "replicas", none=0), "integer"),
        _table_column("Ready", _field_cell("status", "readyReplicas", none=0), "integer"),
        AGE,
        *_TEMPLATE,
    ),
    ("batch", "jobs"): (
        NAME,
        _table_column("Status", table_cells.job_status_cell),
        _table_column("Completions", table_cells.job_completions_cell),
        _table_column("Duration", table_cells.job_duration_cell),
        AGE,
        *_TEMPLATE,
    ),
    ("policy", "poddisruptionbudgets"): (
        NAME,
        _table_column(
            "Min Available", lambda body, now: str(_field_cell("spec", "minAvailable", none="N/A")(body, now))
        ),
        _table_column(
            "Max Unavailable", lambda body, now: str(_field_cell("spec", "maxUnavailable", none="N/A")(body, now))
        ),
        _table_column("Allowed Disruptions", _field_cell("status", "disruptionsAllowed", none=0), "integer"),
        AGE,
    ),
    ("scheduling.k8s.io", "priorityclasses"): (
        NAME,
        _table_column("Value", _field_cell("value", none=0), "integer"),
        _table_column("Global-Default", lambda body, now: bool(body.get("globalDefault")), "boolean"),
        AGE,
        _table_column("PreemptionPolicy", _field_cell("preemptionPolicy", none="PreemptLowerPriority")),
    ),
    ("coordination.k8s.io", "leases"): (
        NAME,
        _table_column("Holder", _field_cell("spec", "holderIdentity", none="")),
        AGE,
    ),
    ("discovery.k8s.io", "endpointslices"): (
        NAME,
        _table_column("AddressType", _field_cell("addressType", none="")),
        _table_column("Ports", table_cells.slice_ports_cell),
        _table_column("Endpoints", table_cells.slice_endpoints_cell),
        AGE,
    ),
    ("autoscaling", "horizontalpodautoscalers"): (
        NAME,
        _table_column(
            "Reference",
            lambda body, now: (
                f"{cell_field(body, 'spec', 'scaleTargetRef', 'kind')}/{cell_field(body, 'spec', 'scaleTargetRef', 'name')}"
            ),
        ),
        _table_column("Targets", table_cells.hpa_targets_cell),
        _table_column("MinPods", lambda body, now: str(_field_cell("spec", "minReplicas", none="<unset>")(body, now))),
        _table_column("MaxPods", _field_cell("spec", "maxReplicas", none=0)),
        _table_column("Replicas", _field_cell("status", "currentReplicas", none=0)),
        AGE,
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (
        NAME,
        _table_column("Scope", _field_cell("spec", "scope", none="")),
        _table_column(
            "Versions",
            lambda body, now: joined_cell(_crd_version_cell(v) for v in body["spec"]["versions"] if v.get("served")),
        ),
        _CREATED_AT,
        _wide_column("Group", _field_cell("spec", "group", none="")),
        _wide_column("Kind", _field_cell("spec", "names", "kind", none="")),
        _wide_column("ShortNames", lambda body, now: ",".join(cell_field(body, "spec", "names", "shortNames") or ())),
        _table_column(
            "Established", lambda body, now: table_cells.condition_cell(body, "Established") == "True", "boolean", 1
        ),
    ),
}


def _crd_version_cell(version: JsonObject) -> str:
    return f"{version['name']}(storage)" if version.get("storage") else str(version["name"])


def _one_if_absent(value: Any) -> Any:
    return 1 if value is None else value


@lru_cache(maxsize=1024)
def table_columns(served: ServedKind) -> tuple[TableColumn, ...]:
    if served.custom is not None:
        return (NAME, *(_printer_column(c) for c in served.custom.columns))
    return _COLUMNS.get((served.resource.group, served.resource.plural), _PLAIN)


def _printer_column(given: JsonObject) -> TableColumn:
    type_, path = str(given.get("type") or "string"), str(given.get("jsonPath") or "")

    def cell(body: JsonObject, now: float) -> Any:
        found = find_by_jsonpath(body, path)
        if not found or (found[0] is None and len(found) == 1):
            return None
        if type_ == "date":
            return table_cells.age_cell(found[0], now)
        if type_ == "string":
            return " ".join(_served_cell_text(value) for value in found)
        return _typed_cell(type_, found[0])

    return _table_column(
        str(given.get("name")),
        cell,
        type_,
        int(given.get("priority") or 0),
        str(given.get("format") or ""),
        str(given.get("description") or ""),
    )


def _served_cell_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)


def _typed_cell(type_: str, value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match type_:
        case "integer":
            return int(value) if is_number else None
        case "number":
            return value if is_number else None
        case "boolean":
            return value if isinstance(value, bool) else None
    return _served_cell_text(value)

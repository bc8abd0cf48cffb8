"""CustomResourceDefinitions of our kinds, made from their Structs: what `kubectl apply -f deploy/crds` installs elsewhere.

The schema is structural and flat (no references): names, types, enums and descriptions come from the Structs, their
docstrings and the comments beside their fields; bounds of numbers and lists from `BOUNDS`. Defaults are left to the code that
reads the objects: a default written into the schema would be stored in every object and could not change with the program.

A field without a Python default is required. What a Struct keeps word for word (`JsonObject`) keeps unknown fields.
"""

from __future__ import annotations

import types
import typing
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from remuda.api.devices import NodeDevices
from remuda.api.drills import Drill
from remuda.api.incidents import Incident
from remuda.api.kinds import OWN_KINDS
from remuda.api.meta import JsonObject, KObject, ObjectMeta
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout
from remuda.api.training import TrainingJob
from remuda.api.validation.training import (
    MAX_EXIT_CODES,
    MAX_GPUS,
    MAX_LISTED,
    MAX_PODS,
    MAX_REPLICAS,
    MAX_ROLES,
    MAX_RULES,
    MAX_SECONDS,
    MAX_STEPS,
)

_AGE = ("Age", "date", ".metadata.creationTimestamp", 0)
# (name, type, path, priority); priority above 0 shows with `-o wide` only.
COLUMNS: dict[type[KObject], tuple[tuple[str, str, str, int], ...]] = {
    TrainingJob: (
        ("Phase", "string", ".status.phase", 0),
        ("Attempt", "integer", ".status.attempt", 0),
        ("Ranks", "string", ".spec.roles[*].replicas", 0),
        ("Step", "integer", ".status.progress.step", 0),
        ("Checkpoint", "integer", ".status.progress.checkpointStep", 1),
        ("Interruptions", "integer", ".status.interruptions", 0),
        ("ETTR", "number", ".status.goodput.ettr", 0),
        ("Reason", "string", ".status.reason", 0),
        _AGE,
    ),
    NodeDevices: (("Model", "string", ".status.model", 0), ("Devices", "string", ".summary", 0), _AGE),
    Drill: (
        ("Type", "string", ".spec.type", 0),
        ("Node", "string", ".spec.node", 0),
        ("Pod", "string", ".spec.pod", 0),
        ("Device", "string", ".spec.device", 0),
        ("Phase", "string", ".status.phase", 0),
        ("Reason", "string", ".status.reason", 1),
        _AGE,
    ),
    Incident: (
        ("Subject", "string", ".spec.subject.kind", 0),
        ("Node", "string", ".spec.subject.node", 0),
        ("Device", "string", ".spec.subject.device", 0),
        ("Gang", "string", ".spec.subject.gang", 0),
        ("Reason", "string", ".status.verdict.reason", 0),
        ("Phase", "string", ".status.phase", 0),
        ("Outcome", "string", ".status.outcome", 0),
        ("Lost-GPU-H", "number", ".status.lostGpuHours", 1),
        _AGE,
    ),
    RemedyPolicy: (
        ("Mode", "string", ".spec.mode", 0),
        ("Priority", "integer", ".spec.priority", 0),
        ("Nodes", "integer", ".status.nodes", 0),
        ("Held-Back", "integer", ".status.heldBack", 0),
        ("Breaker", "boolean", ".status.breaker.open", 0),
        _AGE,
    ),
    NodeRollout: (
        ("Phase", "string", ".status.phase", 0),
        ("Done", "integer", ".status.done", 0),
        ("Total", "integer", ".status.total", 0),
        ("Failed", "integer", ".status.failed", 0),
        ("Stopped-Because", "string", ".status.stoppedBecause", 1),
        ("Waiting-For", "string", ".status.waitingFor", 1),
        _AGE,
    ),
}


def crd_manifest(kind: type[KObject]) -> JsonObject:
    resource = kind.resource
    columns = [
        {"name": name, "type": type_, "jsonPath": path, **({"priority": priority} if priority else {})}
        for name, type_, path, priority in COLUMNS[kind]
    ]
    version: JsonObject = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _kind_schema(kind)},
        "additionalPrinterColumns": columns,
    }
    if "status" in resource.subresources:
        version["subresources"] = {"status": {}}
    names: JsonObject = {
        "kind": resource.kind,
        "listKind": resource.list_of,
        "plural": resource.plural,
        "singular": resource.singular or resource.kind.lower(),
    }
    if resource.short:
        names["shortNames"] = list(resource.short)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _kind_schema(kind: type[KObject]) -> JsonObject:
    schema = _struct_schema(kind)
    properties = {
        "apiVersion": {"type": "string", "description": "Version of this object's form."},
        "kind": {"type": "string", "description": "What this object is."},
        "metadata": {"type": "object"},
    }
    return {**schema, "properties": {**properties, **schema["properties"], "metadata": {"type": "object"}}}


def _struct_schema(struct: type[msgspec.Struct]) -> JsonObject:
    schema: JsonObject = {"type": "object"}
    if text := _struct_description(struct):
        schema["description"] = text
    fields = msgspec.structs.fields(struct)
    schema["properties"] = {field.encode_name: _field_schema(struct, field) for field in fields}
    if required := [field.encode_name for field in fields if field.required]:
        schema["required"] = required
    return schema


def _field_schema(struct: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> JsonObject:
    schema = {**_type_schema(field.type), **BOUNDS.get((struct.__name__, field.encode_name), {})}
    note = DESCRIPTIONS.get((struct.__name__, field.encode_name))
    return {"description": note, **schema} if note and "description" not in schema else schema


def _type_schema(type_: Any) -> JsonObject:
    origin, args = typing.get_origin(type_), typing.get_args(type_)
    if origin in (typing.Union, types.UnionType):
        rest = [a for a in args if a is not type(None)]
        if set(rest) == {int, str}:
            schema: JsonObject = {"x-kubernetes-int-or-string": True}
        else:
            schema = _type_schema(rest[0])
        return {**schema, "nullable": True} if len(rest) < len(args) else schema
    if type_ == JsonObject:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if origin is list:
        return {"type": "array", "items": _type_schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(args[1])}
    if type_ is ObjectMeta:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        return {"type": "string", "enum": [member.value for member in type_]}
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return _struct_schema(type_)
    return dict(_SCALARS[type_])


_SCALARS: dict[Any, JsonObject] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    Any: {"x-kubernetes-preserve-unknown-fields": True},
}


def _struct_description(struct: type[msgspec.Struct]) -> str:
    text = struct.__dict__.get("__doc__") or ""
    return " ".join(text.split()).replace("`", "")


# Numbers and lists that a controller works through. The same bounds as in `validation`, which says more about them; here they
# hold on every API server. Only specs have them: what a status holds is written by Remuda.
BOUNDS: dict[tuple[str, str], JsonObject] = {
    ("TrainingJobSpec", "roles"): {"maxItems": MAX_ROLES},
    ("TrainingJobSpec", "spares"): {"minimum": 0, "maximum": MAX_REPLICAS},
    ("TrainingJobSpec", "totalSteps"): {"minimum": 0, "maximum": MAX_STEPS},
    ("TrainingJobSpec", "activeDeadlineSeconds"): {"minimum": 0, "maximum": MAX_SECONDS},
    ("TrainingJobSpec", "ttlSecondsAfterFinished"): {"minimum": 0, "maximum": MAX_SECONDS},
    ("Role", "replicas"): {"minimum": 1, "maximum": MAX_REPLICAS},
    ("Role", "minReplicas"): {"minimum": 0, "maximum": MAX_REPLICAS},
    ("Role", "gpus"): {"minimum": 0, "maximum": MAX_GPUS},
    ("Role", "after"): {"maxItems": MAX_ROLES},
    ("Checkpoint", "volume"): {"maxProperties": 1},
    ("Topology", "segmentSize"): {"minimum": 0, "maximum": MAX_REPLICAS},
    ("SuccessPolicy", "ranks"): {"maxItems": MAX_PODS},
    ("Failure", "rules"): {"maxItems": MAX_RULES},
    ("FailureRule", "exitCodes"): {"maxItems": MAX_EXIT_CODES},
    ("FailureRule", "faults"): {"maxItems": MAX_LISTED},
    ("Budgets", "refillAfterSteps"): {"minimum": 0, "maximum": MAX_STEPS},
}

# What a field's name and type do not say. The key is the Struct's name and the field's name on the wire.
DESCRIPTIONS: dict[tuple[str, str], str] = {
    ("TrainingJob", "spec"): "What the user asks for.",
    ("TrainingJob", "status"): "What became of it; written by Remuda alone.",
    ("TrainingJobSpec", "roles"): "The sets of pods that make up the gang. All of them run, or none.",
    ("TrainingJobSpec", "spares"): "Pods kept parked beside the gang, ready to take over a failed member's rank.",
    ("Role", "name"): "Part of the names of its pods.",
    ("Role", "replicas"): "How many pods; each is one member of the gang.",
    ("Role", "gpus"): "GPUs of each pod.",
    ("Budgets", "code"): "The user's process failed; 3 when left out.",
    ("Budgets", "device"): "A device under a member failed; 10 when left out.",
    ("Budgets", "infra"): "A node, a pod or a launcher was lost; 10 when left out.",
    ("Budgets", "hang"): "No new step for hangAfterSeconds; 3 when left out.",
    ("Budgets", "preemption"): "Somebody more urgent took the place; no limit when left out.",
    ("Budgets", "maintenance"): "A node was drained; no limit when left out.",
    ("Budgets", "refillAfterSteps"): "So many steps of progress fill the budgets again; 0 = never.",
    ("Failure", "hangAfterSeconds"): "No new step for that long means hung; 0 turns the check off.",
    (
        "Failure",
        "hangAfterSteps",
    ): "No new step for this many median steps of the gang counts as a hang; 0 turns the check off.",
    ("Failure", "stopGraceSeconds"): "From SIGTERM to SIGKILL when the gang stops for a recovery.",
    ("Failure", "stopDeadlineSeconds"): "A member not stopped by then is replaced and its devices are quarantined.",
    ("Failure", "startDeadlineSeconds"): "A placed member that has not reached the barrier by then is replaced.",
    ("Checkpoint", "volume"): "A Kubernetes volume source, mounted at path into every rank's container.",
    ("Checkpoint", "typicalSeconds"): "How long saving one usually takes.",
    ("TrainingJobStatus", "phase"): "Pending, Running, Recovering, Succeeded or Failed.",
    ("TrainingJobStatus", "attempt"): "Restart number of the gang; never goes down.",
    ("TrainingJobStatus", "barrier"): "Closed: everyone gets ready for the attempt. Open: everyone runs it.",
    ("TrainingJobStatus", "used"): "Interruptions charged per cause since the last refill.",
    ("TrainingJobStatus", "interruptions"): "How often training was interrupted so far.",
    ("NodeDevices", "status"): "What the node's agent sees; it writes nothing else.",
    ("NodeDevices", "observed"): "As status, of agents from before it. Counts until there is a status.",
    ("NodeDevices", "verdicts"): "What the signals mean and who holds each device; written by the manager.",
    ("NodeDevices", "summary"): "The verdicts in a few words; written by the manager.",
    ("NodeDevices", "quarantine"): "Orders to keep a device out of use, by its id.",
    ("NodeDevices", "withheld"): "Orders to place nothing of a resource on this node, by the resource's name.",
    ("NodeDevices", "findings"): "What the manager itself found about a device, by its id.",
    ("NodeDevices", "history"): "What is remembered of a device when its signals are gone, by its id.",
    ("NodeDevices", "orders"): "What the node's agent is to do, by the order's id.",
    ("Drill", "spec"): "What to break.",
    ("Incident", "spec"): "What it is about, and what operators say to it.",
    ("Incident", "status"): "What was seen, whom it hit, what was done and what it cost; written by Remuda alone.",
    ("RemedyPolicy", "spec"): "What may be done.",
    ("RemedyPolicy", "status"): "What is being done under it; written by Remuda alone.",
}

CRDS: tuple[JsonObject, ...] = tuple(crd_manifest(kind) for kind in OWN_KINDS)

"""What a write does to an object: Kubernetes' rules as pure functions, wire dict in, `WriteChange` (or None: nothing to do) out.

They read no clock and no store. Unchanged parts of the old body are shared with the new one, never copied or mutated.

Copied from Kubernetes: a write through the main resource keeps `status`, a write through `status` keeps everything else
(for kinds with that subresource); `generation` counts changes outside metadata and status; what the server owns in
metadata cannot be written; a write that changes nothing is not a write; finalizers hold a deleted object until the last one
is gone; a pod on a node is only marked for deletion, its node removes it with a second delete of grace 0.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from remuda.api.codec import merge_patch
from remuda.api.errors import AlreadyExists, BadRequest, Conflict, NotFound, StatusDetails
from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver.naming import check_api_namespace_naming, check_api_object_naming, served_field_invalid
from remuda.embedded.apiserver.patching.compare import is_equal_json
from remuda.embedded.apiserver.patching.field_owners import apiserver_timestamp

DEFAULT_GRACE_S = 30
_SERVER_OWNED = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)
_EMPTY: JsonObject = {}
_NAMESPACE = "kubernetes"
_EMPTIED_FIRST = frozenset(("namespaces", "customresourcedefinitions.apiextensions.k8s.io"))
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


# Kubernetes counts generations of all kinds but these.
_UNCOUNTED = frozenset(
    (
        "configmaps",
        "events",
        "limitranges",
        "namespaces",
        "nodes",
        "persistentvolumeclaims",
        "resourcequotas",
        "secrets",
        "serviceaccounts",
        "services",
    )
)


# Kinds with metadata whose change counts as well.
_TELLING = {("apps/v1", "Deployment"): "annotations", ("discovery.k8s.io/v1", "EndpointSlice"): "labels"}


class WriteChange(msgspec.Struct, frozen=True):
    """The body to store, or the last state of an object to remove. `has_intent`: more than metadata and status changed."""

    body: JsonObject
    removed: bool = False
    has_intent: bool = False


class WriteExpectation(msgspec.Struct, frozen=True):
    """Preconditions; empty = not asked."""

    uid: str = ""
    resource_version: str = ""


def has_status_subresource(resource: Resource) -> bool:
    return "status" in resource.subresources


def created_object_body(resource: Resource, body: JsonObject, *, now: float, uid: str) -> JsonObject:
    """A new object, ready to store. `body.metadata.name` is set already."""
    meta: JsonObject = dict(body.get("metadata") or {})
    name = str(meta.get("name") or "")
    if meta.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created; remove metadata.resourceVersion")
    check_api_object_naming(resource, name)
    if resource.namespaced:
        check_api_namespace_naming(resource, name, str(meta.get("namespace") or ""))
    elif meta.get("namespace"):
        raise served_field_invalid(
            resource, name, "metadata.namespace", f"Forbidden: {resource.plural} are not namespaced; leave it out"
        )
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(field, None)
    meta |= {"uid": uid, "generation": 1, "creationTimestamp": apiserver_timestamp(now)}
    if not has_generation(resource):
        del meta["generation"]
    new = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": meta}
    # Status is not the creator's to write. Nodes are the exception in Kubernetes, too: a kubelet registers with its status.
    if has_status_subresource(resource) and resource.plural != "nodes":
        new.pop("status", None)
        if not resource.group:
            if resource.plural == "pods":
                new["status"] = {"phase": "Pending"}
            elif resource.plural == "namespaces":
                _begin_namespace(new, meta, name)
    return new


def _begin_namespace(new: JsonObject, meta: JsonObject, name: str) -> None:
    """A namespace stays until its contents are gone: the finalizer in its spec is taken off through `finalize`."""
    meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": name}
    spec = new.get("spec") or {}
    new["spec"] = {**spec, "finalizers": [*(f for f in spec.get("finalizers") or () if f != _NAMESPACE), _NAMESPACE]}
    new["status"] = {"phase": "Active"}


def patched_change(
    resource: Resource, old: JsonObject, patch: JsonObject, subresource: str, expect: WriteExpectation
) -> WriteChange | None:
    """A merge patch, without the detour over a whole new body: the way of our own controllers."""
    check_subresource(resource, subresource)
    meta = patch.get("metadata")
    check_preconditions(resource, old, expect)
    if isinstance(meta, dict):
        check_preconditions(resource, old, expectation_in_metadata(meta))
    if subresource:
        if "status" not in patch:
            return None
        return _status_change(old, merge_patch(old.get("status"), patch["status"]))
    return _main_change(resource, old, merge_patch(old, patch))


def write_rule_for_replacement(
    resource: Resource, old: JsonObject, new: JsonObject, subresource: str
) -> WriteChange | None:
    check_subresource(resource, subresource)
    check_preconditions(resource, old, expectation_in_metadata(new.get("metadata") or _EMPTY))
    if subresource == "finalize":
        return _finalized_namespace(old, new)
    if subresource:
        return _status_change(_with_field_owners(old, new), new.get("status"), old)
    return _main_change(resource, old, {"apiVersion": resource.api_version, "kind": resource.kind, **new})


def _with_field_owners(old: JsonObject, new: JsonObject) -> JsonObject:
    """Of the metadata, a write through `status` changes only who owns which fields."""
    owners = (new.get("metadata") or _EMPTY).get("managedFields")
    if owners is None or _same_json(owners, old["metadata"].get("managedFields")):
        return old
    rest = {name: value for name, value in old["metadata"].items() if name != "managedFields"}
    return {**old, "metadata": {**rest, "managedFields": owners} if owners else rest}


def _finalized_namespace(old: JsonObject, new: JsonObject) -> WriteChange | None:
    finalizers = (new.get("spec") or _EMPTY).get("finalizers") or []
    spec = {**(old.get("spec") or {}), "finalizers": finalizers}
    if not finalizers:
        del spec["finalizers"]
    body = {**old, "spec": spec}
    if _same_json(body, old):
        return None
    return WriteChange(body, removed="deletionTimestamp" in old["metadata"] and not _is_held_by_finalizers(body))


def write_rule_for_deletion(
    resource: Resource,
    old: JsonObject,
    *,
    now: float,
    grace_s: int | None,
    expect: WriteExpectation,
    finalizer: str | None = None,
) -> WriteChange | None:
    """`finalizer`: FOREGROUND or ORPHAN when the dependents are to be dealt with first, "" when they are not, None when
    the request leaves that open (then what the object has stays)."""
    check_preconditions(resource, old, expect)
    if finalizer is not None:
        old = _with_deletion_finalizer(old, finalizer)
    meta = old["metadata"]
    grace = _deletion_grace(resource, old, grace_s)
    since = meta.get("deletionTimestamp")
    if since is None:
        if grace == 0 and not _is_held_by_finalizers(old):
            return WriteChange(_last_object_state(resource, old, now), removed=True)
        return _marked_for_deletion(resource, old, apiserver_timestamp(now + grace), grace)
    left = meta.get("deletionGracePeriodSeconds") or 0
    if grace >= left and left > 0:
        return None  # a repeated delete may shorten the wait, never lengthen it
    if grace == 0 and not _is_held_by_finalizers(old):
        return WriteChange(_last_object_state(resource, old, now), removed=True)
    if grace == left:
        return None
    asked_at = datetime.fromisoformat(since).timestamp() - left
    return _marked_for_deletion(resource, old, apiserver_timestamp(asked_at + grace), grace)


def served_object_has_deletion_policy(old: JsonObject) -> bool:
    return any(f in (FOREGROUND, ORPHAN) for f in old["metadata"].get("finalizers") or ())


def _with_deletion_finalizer(old: JsonObject, finalizer: str) -> JsonObject:
    meta = old["metadata"]
    has = meta.get("finalizers") or []
    wants = [f for f in has if f not in (FOREGROUND, ORPHAN)] + ([finalizer] if finalizer else [])
    return old if set(wants) == set(has) else {**old, "metadata": {**meta, "finalizers": wants}}


def _is_held_by_finalizers(body: JsonObject) -> bool:
    """Somebody has still to do something before the object may go. (Of all specs, only a namespace's has finalizers.)"""
    if body["metadata"].get("finalizers"):
        return True
    spec = body.get("spec")
    return body.get("kind") == "Namespace" and isinstance(spec, dict) and bool(spec.get("finalizers"))


def write_rule_for_binding(
    old: JsonObject, node: str, annotations: dict[str, str], *, now: float, expect: WriteExpectation
) -> WriteChange:
    """The pod on its node, with the Binding's annotations. Not a change of the pod's intent: generation stays."""
    meta = old["metadata"]
    name, spec = meta["name"], old.get("spec") or {}
    if expect.uid and expect.uid != meta["uid"]:
        raise _unbindable_pod(name, f"uid {expect.uid} is not its uid ({meta['uid']})")
    if expect.resource_version and expect.resource_version != meta["resourceVersion"]:
        raise _unbindable_pod(name, f"it is at version {meta['resourceVersion']} by now")
    if "deletionTimestamp" in meta:
        raise _unbindable_pod(name, "it is being deleted")
    if spec.get("schedulingGates"):
        raise _unbindable_pod(name, "it has scheduling gates")
    if spec.get("nodeName"):
        raise _unbindable_pod(name, f'it is already assigned to node "{spec["nodeName"]}"')
    if not node:
        raise BadRequest(f'cannot bind pod "{name}": the binding names no target node')
    status = old.get("status") or {}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": apiserver_timestamp(now)}
    others = [c for c in status.get("conditions", ()) if c.get("type") != "PodScheduled"]
    new_meta = {**meta, "annotations": {**(meta.get("annotations") or {}), **annotations}} if annotations else meta
    return WriteChange(
        {
            **old,
            "metadata": new_meta,
            "spec": {**spec, "nodeName": node},
            "status": {**status, "conditions": [*others, scheduled]},
        }
    )


def _unbindable_pod(name: str, why: str) -> Conflict:
    return Conflict(f'cannot bind pod "{name}": {why}', details=StatusDetails(name, "pods/binding"))


def has_generation(resource: Resource) -> bool:
    if resource.group:
        return resource.group != "coordination.k8s.io"
    return resource.plural not in _UNCOUNTED


def served_object_not_found(resource: Resource, name: str) -> NotFound:
    return NotFound(f'{resource.full_name} "{name}" not found', details=_object_details(resource, name))


def served_object_already_exists(resource: Resource, name: str) -> AlreadyExists:
    return AlreadyExists(f'{resource.full_name} "{name}" already exists', details=_object_details(resource, name))


def check_subresource(resource: Resource, subresource: str) -> None:
    if subresource and (subresource not in ("status", "finalize") or subresource not in resource.subresources):
        raise NotFound(f"{resource.full_name} has no subresource `{subresource}` to write")


def check_preconditions(resource: Resource, old: JsonObject, expect: WriteExpectation) -> None:
    meta = old["metadata"]
    if expect.uid and expect.uid != meta["uid"]:
        raise _write_conflict(resource, meta["name"], f"its uid is {meta['uid']}, not {expect.uid}")
    if expect.resource_version and expect.resource_version != meta["resourceVersion"]:
        raise _write_conflict(
            resource,
            meta["name"],
            "the object has been modified; please apply your changes to the latest version and try again",
        )


def expectation_in_metadata(meta: JsonObject) -> WriteExpectation:
    return WriteExpectation(str(meta.get("uid") or ""), str(meta.get("resourceVersion") or ""))


def _write_conflict(resource: Resource, name: str, why: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {resource.full_name} "{name}": {why}',
        details=_object_details(resource, name),
    )


def _object_details(resource: Resource, name: str) -> StatusDetails:
    return StatusDetails(name, resource.plural, resource.group)


def _status_change(old: JsonObject, status: Any, unless: JsonObject | None = None) -> WriteChange | None:
    """`unless`: what was there before; ownership alone changes nothing that is worth a version."""
    if _same_json(status, old.get("status")) and (unless is None or unless is old):
        return None
    if status is None:
        return WriteChange({field: value for field, value in old.items() if field != "status"})
    return WriteChange({**old, "status": status})


def _main_change(resource: Resource, old: JsonObject, new: JsonObject) -> WriteChange | None:
    """A write through the main resource: restore what was not the writer's to change, then see what is left of it."""
    old_meta = old["metadata"]
    asked: JsonObject = new.get("metadata") or {}
    for field in ("name", "namespace"):
        if asked.get(field, old_meta.get(field)) != old_meta.get(field):
            raise BadRequest(
                f"metadata.{field} is `{asked[field]}` but the object's is `{old_meta.get(field, '')}`: "
                "names cannot be changed; delete and create instead"
            )
    if asked is not old_meta:
        meta = {field: value for field, value in asked.items() if field not in _SERVER_OWNED}
        meta = {**{field: old_meta[field] for field in _SERVER_OWNED if field in old_meta}, **meta}
        if not meta.get("managedFields"):  # nobody loses owners by not knowing of them, only by an empty list
            is_reset = meta.pop("managedFields", None) is not None
            if "managedFields" in old_meta and not is_reset:
                meta["managedFields"] = old_meta["managedFields"]
        new = {**new, "metadata": meta}
    else:
        meta = old_meta
    if has_status_subresource(resource):
        new = {field: value for field, value in new.items() if field != "status"}
        if "status" in old:
            new["status"] = old["status"]
    if _same_json(new, old):
        return None
    if "deletionTimestamp" in meta:
        added = set(meta.get("finalizers") or ()) - set(old_meta.get("finalizers") or ())
        if added:
            raise served_field_invalid(
                resource,
                meta["name"],
                "metadata.finalizers",
                f"Forbidden: no new finalizers can be added while the object is being deleted, found {sorted(added)}",
            )
    has_intent = not _same_json(_written_intent(new), _written_intent(old))
    if has_intent and has_generation(resource):
        new["metadata"] = meta = {**meta, "generation": int(meta.get("generation") or 0) + 1}
    if "deletionTimestamp" in meta and not meta.get("deletionGracePeriodSeconds") and not _is_held_by_finalizers(new):
        return WriteChange(new, removed=True)
    return WriteChange(new, has_intent=has_intent)


def served_object_unless_unchanged(old: JsonObject, new: JsonObject) -> JsonObject | None:
    """The new body, after what the writer left out was filled in. When that made its intent the old one again, nothing
    was asked for: the generation stays and, with nothing else changed, there is nothing to write (None)."""
    if not _same_json(_written_intent(new), _written_intent(old)):
        return new
    kept = old["metadata"].get("generation")
    if kept is not None and new["metadata"].get("generation") != kept:
        new = {**new, "metadata": {**new["metadata"], "generation": kept}}
    return None if _same_json(new, old) else new


def _same_json(a: Any, b: Any) -> bool:
    """Equal as JSON; Python's own comparison, which is faster, is too lenient (1 is True) but never too strict."""
    return bool(a == b) and is_equal_json(a, b)


def _written_intent(body: JsonObject) -> JsonObject:
    """Everything that states intent: all but metadata and status; and what of the metadata counts."""
    found = {field: value for field, value in body.items() if field not in ("metadata", "status")}
    told = _TELLING.get((str(body.get("apiVersion")), str(body.get("kind"))))
    if told is not None:
        found[told] = body["metadata"].get(told) or {}
    return found


def _deletion_grace(resource: Resource, old: JsonObject, asked: int | None) -> int:
    if resource.plural != "pods" or resource.group:
        return 0
    spec, status = old.get("spec") or {}, old.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0  # nothing runs (any more), so nobody would answer
    if asked is None:
        asked = int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))
    return max(0, asked)


def _last_object_state(resource: Resource, old: JsonObject, now: float) -> JsonObject:
    """What an object was when it went: a pod is marked even when nothing is left to wait for."""
    return (
        _marked_for_deletion(resource, old, apiserver_timestamp(now), 0).body if resource.full_name == "pods" else old
    )


def _marked_for_deletion(resource: Resource, old: JsonObject, when: str, grace: int) -> WriteChange:
    meta = old["metadata"]
    marks: JsonObject = {"deletionTimestamp": when}
    if resource.full_name not in _EMPTIED_FIRST:
        marks["deletionGracePeriodSeconds"] = grace
        if "generation" in meta and "deletionTimestamp" not in meta:
            marks["generation"] = int(meta["generation"]) + 1
    new = {**old, "metadata": {**meta, **marks}}
    if resource.plural == "namespaces" and not resource.group:
        new["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return WriteChange(new)

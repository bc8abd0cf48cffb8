"""What a write does to an object: Kubernetes' rules as pure functions, wire dict in, `Change` (or None: nothing to do) out.

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
from remuda.embedded.apiserver.naming import check_name, check_namespace, invalid
from remuda.embedded.apiserver.patching.compare import is_equal
from remuda.embedded.apiserver.patching.field_owners import timestamp

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


class Change(msgspec.Struct, frozen=True):
    """The body to store, or the last state of an object to remove. `has_intent`: more than metadata and status changed."""

    body: JsonObject
    removed: bool = False
    has_intent: bool = False


class Expect(msgspec.Struct, frozen=True):
    """Preconditions; empty = not asked."""

    uid: str = ""
    resource_version: str = ""


def has_status(resource: Resource) -> bool:
    return "status" in resource.subresources


def created(resource: Resource, body: JsonObject, *, now: float, uid: str) -> JsonObject:
    """A new object, ready to store. `body.metadata.name` is set already."""
    meta: JsonObject = dict(body.get("metadata") or {})
    name = str(meta.get("name") or "")
    if meta.get("resourceVersion"):
        raise BadRequest("resourceVersion should not be set on objects to be created; remove metadata.resourceVersion")
    check_name(resource, name)
    if resource.namespaced:
        check_namespace(resource, name, str(meta.get("namespace") or ""))
    elif meta.get("namespace"):
        raise invalid(
            resource, name, "metadata.namespace", f"Forbidden: {resource.plural} are not namespaced; leave it out"
        )
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(field, None)
    meta |= {"uid": uid, "generation": 1, "creationTimestamp": timestamp(now)}
    if not is_counted(resource):
        del meta["generation"]
    new = {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": meta}
    # Status is not the creator's to write. Nodes are the exception in Kubernetes, too: a kubelet registers with its status.
    if has_status(resource) and resource.plural != "nodes":
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


def patched(resource: Resource, old: JsonObject, patch: JsonObject, subresource: str, expect: Expect) -> Change | None:
    """A merge patch, without the detour over a whole new body: the way of our own controllers."""
    check_subresource(resource, subresource)
    meta = patch.get("metadata")
    check_expected(resource, old, expect)
    if isinstance(meta, dict):
        check_expected(resource, old, expected_by(meta))
    if subresource:
        if "status" not in patch:
            return None
        return _with_status(old, merge_patch(old.get("status"), patch["status"]))
    return _changed(resource, old, merge_patch(old, patch))


def replaced(resource: Resource, old: JsonObject, new: JsonObject, subresource: str) -> Change | None:
    check_subresource(resource, subresource)
    check_expected(resource, old, expected_by(new.get("metadata") or _EMPTY))
    if subresource == "finalize":
        return _finalized(old, new)
    if subresource:
        return _with_status(_with_owners(old, new), new.get("status"), old)
    return _changed(resource, old, {"apiVersion": resource.api_version, "kind": resource.kind, **new})


def _with_owners(old: JsonObject, new: JsonObject) -> JsonObject:
    """Of the metadata, a write through `status` changes only who owns which fields."""
    owners = (new.get("metadata") or _EMPTY).get("managedFields")
    if owners is None or _same(owners, old["metadata"].get("managedFields")):
        return old
    rest = {name: value for name, value in old["metadata"].items() if name != "managedFields"}
    return {**old, "metadata": {**rest, "managedFields": owners} if owners else rest}


def _finalized(old: JsonObject, new: JsonObject) -> Change | None:
    finalizers = (new.get("spec") or _EMPTY).get("finalizers") or []
    spec = {**(old.get("spec") or {}), "finalizers": finalizers}
    if not finalizers:
        del spec["finalizers"]
    body = {**old, "spec": spec}
    if _same(body, old):
        return None
    return Change(body, removed="deletionTimestamp" in old["metadata"] and not _is_held(body))


def deleted(
    resource: Resource,
    old: JsonObject,
    *,
    now: float,
    grace_s: int | None,
    expect: Expect,
    finalizer: str | None = None,
) -> Change | None:
    """`finalizer`: FOREGROUND or ORPHAN when the dependents are to be dealt with first, "" when they are not, None when
    the request leaves that open (then what the object has stays)."""
    check_expected(resource, old, expect)
    if finalizer is not None:
        old = _with_policy(old, finalizer)
    meta = old["metadata"]
    grace = _grace(resource, old, grace_s)
    since = meta.get("deletionTimestamp")
    if since is None:
        if grace == 0 and not _is_held(old):
            return Change(_last(resource, old, now), removed=True)
        return _marked(resource, old, timestamp(now + grace), grace)
    left = meta.get("deletionGracePeriodSeconds") or 0
    if grace >= left and left > 0:
        return None  # a repeated delete may shorten the wait, never lengthen it
    if grace == 0 and not _is_held(old):
        return Change(_last(resource, old, now), removed=True)
    if grace == left:
        return None
    asked_at = datetime.fromisoformat(since).timestamp() - left
    return _marked(resource, old, timestamp(asked_at + grace), grace)


def has_policy(old: JsonObject) -> bool:
    return any(f in (FOREGROUND, ORPHAN) for f in old["metadata"].get("finalizers") or ())


def _with_policy(old: JsonObject, finalizer: str) -> JsonObject:
    meta = old["metadata"]
    has = meta.get("finalizers") or []
    wants = [f for f in has if f not in (FOREGROUND, ORPHAN)] + ([finalizer] if finalizer else [])
    return old if set(wants) == set(has) else {**old, "metadata": {**meta, "finalizers": wants}}


def _is_held(body: JsonObject) -> bool:
    """Somebody has still to do something before the object may go. (Of all specs, only a namespace's has finalizers.)"""
    if body["metadata"].get("finalizers"):
        return True
    spec = body.get("spec")
    return body.get("kind") == "Namespace" and isinstance(spec, dict) and bool(spec.get("finalizers"))


def bound(old: JsonObject, node: str, annotations: dict[str, str], *, now: float, expect: Expect) -> Change:
    """The pod on its node, with the Binding's annotations. Not a change of the pod's intent: generation stays."""
    meta = old["metadata"]
    name, spec = meta["name"], old.get("spec") or {}
    if expect.uid and expect.uid != meta["uid"]:
        raise _unbindable(name, f"uid {expect.uid} is not its uid ({meta['uid']})")
    if expect.resource_version and expect.resource_version != meta["resourceVersion"]:
        raise _unbindable(name, f"it is at version {meta['resourceVersion']} by now")
    if "deletionTimestamp" in meta:
        raise _unbindable(name, "it is being deleted")
    if spec.get("nodeName"):
        raise _unbindable(name, f'it is already assigned to node "{spec["nodeName"]}"')
    if not node:
        raise BadRequest(f'cannot bind pod "{name}": the binding names no target node')
    status = old.get("status") or {}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(now)}
    others = [c for c in status.get("conditions", ()) if c.get("type") != "PodScheduled"]
    new_meta = {**meta, "annotations": {**(meta.get("annotations") or {}), **annotations}} if annotations else meta
    return Change(
        {
            **old,
            "metadata": new_meta,
            "spec": {**spec, "nodeName": node},
            "status": {**status, "conditions": [*others, scheduled]},
        }
    )


def _unbindable(name: str, why: str) -> Conflict:
    return Conflict(f'cannot bind pod "{name}": {why}', details=StatusDetails(name, "pods/binding"))


def is_counted(resource: Resource) -> bool:
    if resource.group:
        return resource.group != "coordination.k8s.io"
    return resource.plural not in _UNCOUNTED


def not_found(resource: Resource, name: str) -> NotFound:
    return NotFound(f'{resource.full_name} "{name}" not found', details=_details(resource, name))


def already_exists(resource: Resource, name: str) -> AlreadyExists:
    return AlreadyExists(f'{resource.full_name} "{name}" already exists', details=_details(resource, name))


def check_subresource(resource: Resource, subresource: str) -> None:
    if subresource and (subresource not in ("status", "finalize") or subresource not in resource.subresources):
        raise NotFound(f"{resource.full_name} has no subresource `{subresource}` to write")


def check_expected(resource: Resource, old: JsonObject, expect: Expect) -> None:
    meta = old["metadata"]
    if expect.uid and expect.uid != meta["uid"]:
        raise _conflict(resource, meta["name"], f"its uid is {meta['uid']}, not {expect.uid}")
    if expect.resource_version and expect.resource_version != meta["resourceVersion"]:
        raise _conflict(
            resource,
            meta["name"],
            "the object has been modified; please apply your changes to the latest version and try again",
        )


def expected_by(meta: JsonObject) -> Expect:
    return Expect(str(meta.get("uid") or ""), str(meta.get("resourceVersion") or ""))


def _conflict(resource: Resource, name: str, why: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {resource.full_name} "{name}": {why}', details=_details(resource, name)
    )


def _details(resource: Resource, name: str) -> StatusDetails:
    return StatusDetails(name, resource.plural, resource.group)


def _with_status(old: JsonObject, status: Any, unless: JsonObject | None = None) -> Change | None:
    """`unless`: what was there before; ownership alone changes nothing that is worth a version."""
    if _same(status, old.get("status")) and (unless is None or unless is old):
        return None
    if status is None:
        return Change({field: value for field, value in old.items() if field != "status"})
    return Change({**old, "status": status})


def _changed(resource: Resource, old: JsonObject, new: JsonObject) -> Change | None:
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
    if has_status(resource):
        new = {field: value for field, value in new.items() if field != "status"}
        if "status" in old:
            new["status"] = old["status"]
    if _same(new, old):
        return None
    if "deletionTimestamp" in meta:
        added = set(meta.get("finalizers") or ()) - set(old_meta.get("finalizers") or ())
        if added:
            raise invalid(
                resource,
                meta["name"],
                "metadata.finalizers",
                f"Forbidden: no new finalizers can be added while the object is being deleted, found {sorted(added)}",
            )
    has_intent = not _same(_substance(new), _substance(old))
    if has_intent and is_counted(resource):
        new["metadata"] = meta = {**meta, "generation": int(meta.get("generation") or 0) + 1}
    if "deletionTimestamp" in meta and not meta.get("deletionGracePeriodSeconds") and not _is_held(new):
        return Change(new, removed=True)
    return Change(new, has_intent=has_intent)


def without_news(old: JsonObject, new: JsonObject) -> JsonObject | None:
    """The new body, after what the writer left out was filled in. When that made its intent the old one again, nothing
    was asked for: the generation stays and, with nothing else changed, there is nothing to write (None)."""
    if not _same(_substance(new), _substance(old)):
        return new
    kept = old["metadata"].get("generation")
    if kept is not None and new["metadata"].get("generation") != kept:
        new = {**new, "metadata": {**new["metadata"], "generation": kept}}
    return None if _same(new, old) else new


def _same(a: Any, b: Any) -> bool:
    """Equal as JSON; Python's own comparison, which is faster, is too lenient (1 is True) but never too strict."""
    return bool(a == b) and is_equal(a, b)


def _substance(body: JsonObject) -> JsonObject:
    """Everything that states intent: all but metadata and status; and what of the metadata counts."""
    found = {field: value for field, value in body.items() if field not in ("metadata", "status")}
    told = _TELLING.get((str(body.get("apiVersion")), str(body.get("kind"))))
    if told is not None:
        found[told] = body["metadata"].get(told) or {}
    return found


def _grace(resource: Resource, old: JsonObject, asked: int | None) -> int:
    if resource.plural != "pods" or resource.group:
        return 0
    spec, status = old.get("spec") or {}, old.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0  # nothing runs (any more), so nobody would answer
    if asked is None:
        asked = int(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))
    return max(0, asked)


def _last(resource: Resource, old: JsonObject, now: float) -> JsonObject:
    """What an object was when it went: a pod is marked even when nothing is left to wait for."""
    return _marked(resource, old, timestamp(now), 0).body if resource.full_name == "pods" else old


def _marked(resource: Resource, old: JsonObject, when: str, grace: int) -> Change:
    meta = old["metadata"]
    marks: JsonObject = {"deletionTimestamp": when}
    if resource.full_name not in _EMPTIED_FIRST:
        marks["deletionGracePeriodSeconds"] = grace
        if "generation" in meta and "deletionTimestamp" not in meta:
            marks["generation"] = int(meta["generation"]) + 1
    new = {**old, "metadata": {**meta, **marks}}
    if resource.plural == "namespaces" and not resource.group:
        new["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return Change(new)

"""Server-side apply, and the ownership of fields that every other write leaves behind.

Model: each owner has a set of fields (`metadata.managedFields`). Applying a body claims the fields it names. It conflicts
when it would change a field that another owner has, unless `force` takes it over. A field that the same manager named last
time and does not name now is removed, unless somebody else owns it too. Any other write simply takes over what it changed.

Both functions are pure: bodies in, a new body out that shares what did not change; `old`/`live` itself comes back when
nothing is to be written. What the server owns in metadata is never anybody's.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import msgspec

from remuda.api.codec import decode_json_with_codec
from remuda.api.errors import BadRequest, Conflict, Invalid, StatusCause, StatusDetails
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching import field_owners as ownership
from remuda.embedded.apiserver.patching.bounds import check_body_bounds
from remuda.embedded.apiserver.patching.combine import (
    field_set_with_declared_members,
    merge_applied,
    remove_fields,
    settle_body_by_patch_schema,
    settle_metadata_by_patch_schema,
)
from remuda.embedded.apiserver.patching.compare import UnnameableItem, applied_field_set, compare_fields, is_equal_json
from remuda.embedded.apiserver.patching.field_owners import APPLY, UPDATE, FieldOwner, OwnerName, Owners
from remuda.embedded.apiserver.patching.field_sets import (
    LEAF,
    field_paths,
    intersect_fields,
    ordered_fields,
    subtract_fields,
    subtract_fields_below,
    union_fields,
)
from remuda.embedded.apiserver.patching.patch_schema import FieldSet, KindSchema, PatchSchema
from remuda.embedded.apiserver.patching.schema_check import find_patch_schema_faults

_STRIPPED: Final[FieldSet] = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {
        ".": {},
        "f:name": {},
        "f:namespace": {},
        "f:creationTimestamp": {},
        "f:selfLink": {},
        "f:uid": {},
        "f:clusterName": {},
        "f:generation": {},
        "f:managedFields": {},
        "f:resourceVersion": {},
    },
}
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_MAX_ANNOTATIONS: Final = 256 * 1024
_MAX_FAULTS: Final = 10
_MAX_CONFLICTS: Final = 100  # told


class ApplyConflict(Conflict):
    """Fields that the applied body would change belong to others; `causes` names each."""

    def __init__(self, causes: list[StatusCause]) -> None:
        count = f"{len(causes)} conflict" + ("s" if len(causes) > 1 else "")
        super().__init__(
            f"Apply failed with {count}: " + "; ".join(f"{cause.message}: {cause.field}" for cause in causes),
            fix="Leave these fields out, apply the values they have, or apply with force to take them over.",
            details=StatusDetails(causes=causes),
        )
        self.causes = causes


def track_field_owners(
    old: JsonObject | None, new: JsonObject, manager: str, schema: KindSchema, now: float, subresource: str = ""
) -> JsonObject:
    """`new` with the owners it leaves behind, for a create (`old` is None), an update or a patch by `manager`. An empty list
    of owners says that the writer asked to forget those there were.

    Call it on the body that the writer is to answer for: decoded, patched and defaulted, but before admission.
    """
    meta = _metadata_of(new)
    given, before = meta.get("managedFields"), _metadata_of(old).get("managedFields")
    owners = _owners_of_write(given, before, schema, is_subresource=bool(subresource))
    if owners or old is None:
        try:
            owners = _owners_after_update(
                owners,
                _without_managed_fields(old or schema.zero),
                _without_managed_fields(new),
                manager,
                subresource,
                schema,
                now,
            )
        except UnnameableItem:
            owners = ownership.stored_owners(before)
    entries = ownership.write_managed_fields(owners)
    if before and entries == before:
        entries = before
    if entries is given or (not entries and "managedFields" not in meta):
        return new
    rest = {name: value for name, value in meta.items() if name != "managedFields"}
    return {**new, "metadata": {**rest, "managedFields": entries} if entries or before else rest}


def _owners_of_write(given: Any, before: Any, schema: KindSchema, *, is_subresource: bool) -> Owners:
    """A writer may edit the owners, but not lose them by not knowing of them, nor through a subresource."""
    if not is_subresource and given is not before and given is not None:
        if ownership.asks_to_forget_field_owners(given, custom=schema.custom):
            return {}
        try:
            if given != before and (owners := ownership.read_managed_fields(given)):
                return owners
        except ValueError:
            pass  # like a writer who did not send any
    return ownership.stored_owners(before)


def _owners_after_update(
    owners: Owners,
    old: JsonObject,
    new: JsonObject,
    manager: str,
    subresource: str,
    schema: KindSchema,
    now: float,
) -> Owners:
    version = str(new.get("apiVersion") or "")
    owners = _reconcile_owners(owners, schema)
    changed, gone = compare_fields(old, new, schema.root)
    if not changed and not gone:
        return owners
    if resets := schema.resets.get(subresource):
        changed, gone = subtract_fields_below(changed, resets), subtract_fields_below(gone, resets)
    out = _owners_after_change(owners, changed, gone)
    if taken := ordered_fields(subtract_fields(changed, _STRIPPED)):
        name = ownership.field_owner_name(manager, UPDATE, subresource, version)
        previous = out.get(name)
        taken = union_fields(previous.fields, taken) if previous else taken
        out[name] = FieldOwner(taken, version, ownership.apiserver_timestamp(now))
    return ownership.cap_updaters(out)


def server_side_apply(
    live: JsonObject | None,
    applied: JsonObject,
    manager: str,
    force: bool,
    schema: KindSchema,
    now: float,
    subresource: str = "",
) -> JsonObject:
    """The object after `applied` was applied to `live` (None: it is not there yet).

    The caller has matched apiVersion, kind and name with the address. Refused are bodies that do not fit the schema
    (Invalid, by field) and changes of others' fields (ApplyConflict).
    """
    if not manager:
        raise Invalid("fieldManager: Required value: it must be given for apply")
    ownership.check_field_manager_name(manager)
    _check_applied_body(applied, schema)
    name = ownership.field_owner_name(manager, APPLY, subresource, "")
    try:
        body, owners = _apply_as(live, applied, name, schema, force, now)
    except UnnameableItem as error:  # the applied body has no such item, so the stored one has
        raise Invalid(f"the object cannot be applied to: {error.what}; correct it by an update first") from None
    entries = ownership.write_managed_fields(owners)
    if entries:
        body = {**body, "metadata": {**_metadata_of(body), "managedFields": entries}}
    return live if live is not None and _is_nothing_to_write(live, body, schema) else body


class _ApplyConflicts(Exception):
    def __init__(self, sets: dict[OwnerName, FieldSet]) -> None:
        self.sets = sets


def _apply_as(
    live: JsonObject | None, applied: JsonObject, name: OwnerName, schema: KindSchema, force: bool, now: float
) -> tuple[JsonObject, Owners]:
    is_kubectl = name.manager == "kubectl"
    owners = _reconcile_owners(ownership.stored_owners(_metadata_of(live).get("managedFields")), schema)
    old = _without_managed_fields(live or {})
    if live is not None and not owners:
        owners = _owners_after_update({}, schema.zero, old, "before-first-apply", name.subresource, schema, now)
    try:
        body, owners = _apply_to_live(old, _without_managed_fields(applied), name, owners, schema, force, now)
    except _ApplyConflicts as conflicts:
        sets = conflicts.sets
        if is_kubectl:
            allowed = _client_side_applied_fields(old, schema)
            sets = {owner: rest for owner, taken in sets.items() if (rest := subtract_fields(taken, allowed))}
        if sets:
            raise ApplyConflict(_conflict_causes(sets)) from None
        body, owners = _apply_to_live(old, _without_managed_fields(applied), name, owners, schema, True, now)
    return _with_last_applied(body, applied) if is_kubectl else body, owners


def _apply_to_live(
    live: JsonObject, applied: JsonObject, name: OwnerName, owners: Owners, schema: KindSchema, force: bool, now: float
) -> tuple[JsonObject, Owners]:
    version = str(applied.get("apiVersion") or "")
    resets = schema.resets.get(name.subresource, {})
    claimed = subtract_fields_below(applied_field_set(applied, schema.root), resets)
    last = owners.get(name)
    others = {other: owner for other, owner in owners.items() if other != name}
    body = merge_applied(live, applied, schema.root)
    if last is not None and subtract_fields(last.fields, claimed):
        body = _prune_unowned(body, last.fields, [claimed, *(owner.fields for owner in others.values())], schema)
    if others:
        changed, gone = (subtract_fields_below(fields, resets) for fields in compare_fields(live, body, schema.root))
        conflicts = {
            other: taken for other, owner in others.items() if (taken := intersect_fields(owner.fields, changed))
        }
        if conflicts and not force:
            raise _ApplyConflicts(conflicts)
        others = _owners_after_change(others, changed, gone)
    if claimed := ordered_fields(subtract_fields(claimed, _STRIPPED)):
        # Claiming what is already so changes the owners, not the object, and only the latter has a time.
        time = (
            ownership.apiserver_timestamp(now) if not _is_equal_body(body, live, schema) else last.time if last else ""
        )
        others[name] = FieldOwner(claimed, version, time)
    # A custom kind's body keeps its nulls, even those where a list lost its last item: its schema is what judges them.
    return settle_metadata_by_patch_schema(body) if schema.custom else settle_body_by_patch_schema(body, schema), others


def _prune_unowned(body: JsonObject, last: FieldSet, owned: list[FieldSet], schema: KindSchema) -> JsonObject:
    """The body without the fields of `last` that nobody owns any more.

    A field declared by the schema goes, with all that is below it, when its last owned part does; as long as a part is owned,
    what nobody owns stays beside it. Hence three steps: take out all of `last`, put back what is owned, put back what was
    not in `last`.
    """
    root = schema.root
    last = field_set_with_declared_members(last, root)
    everything = field_set_with_declared_members(applied_field_set(body, root), root)
    kept = field_set_with_declared_members(applied_field_set(remove_fields(body, last, root) or {}, root), root)
    for fields in owned:
        kept = union_fields(kept, field_set_with_declared_members(fields, root))
    rest = remove_fields(body, subtract_fields(everything, kept), root) or {}
    kept = field_set_with_declared_members(applied_field_set(rest, root), root)
    result: JsonObject = remove_fields(body, intersect_fields(subtract_fields(everything, kept), last), root) or {}
    return result


def _owners_after_change(owners: Owners, changed: FieldSet, gone: FieldSet) -> Owners:
    """What is left to the owners of an object after others changed and removed these fields."""
    out: Owners = {}
    for name, owner in owners.items():
        fields = subtract_fields(subtract_fields(owner.fields, changed), gone)
        if fields is owner.fields:
            out[name] = owner
        elif fields:
            out[name] = FieldOwner(fields, owner.api_version, owner.time)
    return out


def _reconcile_owners(owners: Owners, schema: KindSchema) -> Owners:
    """Owners of parts of what has become atomic own the whole. Only custom kinds change their schema."""
    if not schema.custom:
        return owners
    out: Owners = {}
    for name, owner in owners.items():
        fields = _coarsen_fields(owner.fields, schema.root)
        out[name] = owner if fields is owner.fields else FieldOwner(fields, owner.api_version, owner.time)
    return out


def _is_nothing_to_write(old: JsonObject, new: JsonObject, schema: KindSchema) -> bool:
    """Nothing to write: at most the times differ at which somebody came to own what he owned before."""
    if old is new:
        return True
    before, after = _metadata_of(old).get("managedFields") or (), _metadata_of(new).get("managedFields") or ()
    return ownership.same_owners_but_time(before, after) and _is_equal_body(
        _without_managed_fields(old), _without_managed_fields(new), schema
    )


def _is_equal_body(a: JsonObject, b: JsonObject, schema: KindSchema) -> bool:
    return a == b and (not schema.root.free or is_equal_json(a, b))


def _coarsen_fields(fields: FieldSet, schema: PatchSchema) -> FieldSet:
    out: FieldSet | None = None
    for key, below in fields.items():
        if not below:
            continue
        child = schema.child(key[2:]) if key[0] == "f" else schema.items
        is_atomic = child.atomic if child.type == "object" else child.type == "array" and child.list_type == "atomic"
        node = LEAF if is_atomic else _coarsen_fields(below, child)
        if node is not below:
            if out is None:
                out = dict(fields)
            out[key] = node
    return fields if out is None else out


def _conflict_causes(sets: dict[OwnerName, FieldSet]) -> list[StatusCause]:
    causes = (
        StatusCause("FieldManagerConflict", f"conflict with {_owner_in_words(name)}", path)
        for name in sorted(sets, key=lambda n: (n.manager, n.operation, n.subresource, n.api_version))
        for path in field_paths(sets[name])
    )
    return list(islice(causes, _MAX_CONFLICTS))


def _owner_in_words(name: OwnerName) -> str:
    text = f'"{name.manager}"'
    if name.subresource:
        text += f' with subresource "{name.subresource}"'
    return f"{text} using {name.api_version}" if name.operation == UPDATE else text


# `kubectl apply` keeps what it applied in an annotation. When the same user turns to server-side apply, the fields that are
# still as that annotation says are hers, whoever the owners say wrote them.


def _client_side_applied_fields(live: JsonObject, schema: KindSchema) -> FieldSet:
    text = (_metadata_of(live).get("annotations") or {}).get(_LAST_APPLIED)
    try:
        last = decode_json_with_codec(str(text).encode()) if text else None
    except (msgspec.DecodeError, RecursionError):
        return {}
    if (
        not isinstance(last, dict)
        or last.get("apiVersion") != live.get("apiVersion")
        or find_patch_schema_faults(last, schema.root)
    ):
        return {}
    changed, gone = compare_fields(last, live, schema.root)
    return subtract_fields(subtract_fields(applied_field_set(last, schema.root), changed), gone)


def _with_last_applied(body: JsonObject, applied: JsonObject) -> JsonObject:
    annotations: JsonObject = _metadata_of(body).get("annotations") or {}
    if not annotations.get(_LAST_APPLIED):
        return body
    meta = _metadata_of(applied)
    if _LAST_APPLIED in (meta.get("annotations") or {}):
        rest = {name: value for name, value in meta["annotations"].items() if name != _LAST_APPLIED}
        applied = {**applied, "metadata": {**meta, "annotations": rest}}
    annotations = {**annotations, _LAST_APPLIED: msgspec.json.encode(applied, order="sorted").decode() + "\n"}
    if sum(len(name.encode()) + len(str(value).encode()) for name, value in annotations.items()) > _MAX_ANNOTATIONS:
        del annotations[_LAST_APPLIED]
    return {**body, "metadata": {**_metadata_of(body), "annotations": annotations}}


def _check_applied_body(applied: Any, schema: KindSchema) -> None:
    if not isinstance(applied, dict):
        raise BadRequest("an applied configuration must be an object")
    check_body_bounds(applied)
    meta = applied.get("metadata")
    if isinstance(meta, dict) and meta.get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil: the server keeps it; leave it out")
    if found := find_patch_schema_faults(applied, schema.root):
        raise Invalid("; ".join(f"{fault.path}: {fault.what}" for fault in found[:_MAX_FAULTS]))


def _metadata_of(body: JsonObject | None) -> JsonObject:
    meta = body.get("metadata") if body else None
    return meta if isinstance(meta, dict) else {}


def _without_managed_fields(body: JsonObject) -> JsonObject:
    """The object itself, without the record of its owners."""
    meta = _metadata_of(body)
    if "managedFields" not in meta:
        return body
    return {**body, "metadata": {name: value for name, value in meta.items() if name != "managedFields"}}

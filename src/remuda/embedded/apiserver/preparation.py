"""From what a client sends to what may be stored: field checks, pruning, defaults, and who owns the fields from now on.

One `WritePreparation` serves one request. Its methods are handed to `ObjectService` and run inside the decision, maybe more than
once; they depend on their arguments alone, but note warnings, which go out as headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remuda.api.codec import encode
from remuda.api.errors import ApiError, BadRequest, Invalid, StatusCause, StatusDetails
from remuda.api.meta import JsonObject
from remuda.api.names import GROUP
from remuda.embedded.apiserver import patching, write_rules
from remuda.embedded.apiserver.admission.defaults import with_kind_defaults as builtin_defaults
from remuda.embedded.apiserver.admission.defaults import without_selector_assigned_at_admission
from remuda.embedded.apiserver.admission.pod_defaults import with_pod_ip_defaults
from remuda.embedded.apiserver.crd import structural_schema as structural
from remuda.embedded.apiserver.crd.lifecycle import with_crd_names
from remuda.embedded.apiserver.kinds_served import CRD, ServedKind
from remuda.embedded.apiserver.naming import served_fields_invalid
from remuda.embedded.apiserver.patching.schema_check import TYPE

MAX_OBJECT_BYTES = 3 * 1024 * 1024  # as much as a request may bring
MAX_WARNINGS = 100  # of one sort; a header each


class WritePreparation:
    """`validation`: Ignore, Warn or Strict. `manager`: in whose name. `now`: unix seconds. `is_patch`: the bodies are patched
    ones, in which whatever does not fit is the patch's fault."""

    def __init__(
        self,
        served: ServedKind,
        *,
        validation: str,
        manager: str,
        now: float,
        subresource: str = "",
        is_patch: bool = False,
    ) -> None:
        self.served = served
        self._validation = validation
        self._manager = manager
        self._now = now
        self._subresource = subresource
        self._is_patch = is_patch
        self.warnings: list[str] = []

    def written(self, old: JsonObject | None, new: JsonObject) -> JsonObject:
        """The body of a create, an update or a patch (then `new` is the patched body)."""
        _check_object_bounds(new, is_grown=self._is_patch)
        new = self.checked(new, old)
        return self._owned(old, new if old is None else _keep_server_fields(new, old))

    def applied(self, live: JsonObject | None, applied: JsonObject, *, is_forced: bool) -> JsonObject:
        """Server-side apply."""
        served = self.served
        applied = self._known(applied)
        new = patching.server_side_apply(
            live, applied, self._manager, is_forced, served.schema, self._now, self._subresource
        )
        if live is not None and new is live:
            return live
        _check_object_bounds(new, is_grown=True)
        return self._fitting(new)

    def checked(self, body: JsonObject, old: JsonObject | None) -> JsonObject:
        body = self._fitting(self._known(body))
        resource = self.served.resource
        if resource.full_name == "pods" and self._subresource == "status":
            return with_pod_ip_defaults(body)
        if self.served.custom is not None or self._subresource:
            return body
        # Whoever leaves a field out owns its default. (Not so with apply: there defaults belong to nobody.)
        if resource is CRD:
            return with_crd_names(body)
        filled = builtin_defaults(resource, body, old)
        if resource.full_name == "namespaces":  # its finalizer is the server's, not the writer's
            filled = {**body, "metadata": filled.get("metadata", {})}
        return filled

    def _known(self, body: JsonObject) -> JsonObject:
        """Without fields that the kind does not have; a wrong type of a built-in kind's field is the end of it."""
        served = self.served
        if served.custom is not None:
            self.check_types(body.get("metadata"), patching.object_meta_patch_schema(), ".metadata")
            unknown: list[str] = []
            kept = structural.prune_by_schema(body, served.custom.schema, unknown)
            self._judge(_unknown_field_warnings(unknown))
            # Our own kinds are refused later on with a better sentence: an unknown field is never silently dropped there.
            return body if served.resource.group == GROUP else kept
        if not self.check_types(body, served.schema.root):
            return body
        names: list[str] = []
        known: JsonObject = _without_unknown_fields(body, served.schema.root, "", names)
        self._judge(_unknown_field_warnings(names))
        return known

    def check_types(self, value: Any, schema: patching.PatchSchema, path: str = "") -> bool:
        """Refuses values of a wrong type, and says whether there are other faults: items that cannot be told apart are for
        validation to judge (only apply cannot do without), unknown fields depend on what the client asked for."""
        found = patching.find_patch_schema_faults(value, schema, path)
        wrong = next((fault for fault in found if fault.kind == TYPE), None)
        if wrong is not None:
            raise self._undecodable(f"{wrong.path.removeprefix('.')}: {wrong.what}")
        return bool(found)

    def judge_duplicates(self, paths: Sequence[str]) -> None:
        self._judge([f'duplicate field "{path}"' for path in paths])

    def _judge(self, said: Sequence[str]) -> None:
        if not said or self._validation == "Ignore":
            return
        said = said[:MAX_WARNINGS]
        if self._validation == "Strict":
            raise self._undecodable(f"strict decoding error: {', '.join(said)}")
        self.warnings.extend(text for text in said if text not in self.warnings)

    def _undecodable(self, what: str) -> ApiError:
        kind, version = self.served.resource.kind, self.served.resource.version
        text = f'{kind} in version "{version}" cannot be handled as a {kind}: {what}'
        if not self._is_patch:
            return BadRequest(text)
        return Invalid(
            f"patch: {text}", details=StatusDetails(causes=[StatusCause("FieldValueInvalid", what, "patch")])
        )

    def _fitting(self, body: JsonObject) -> JsonObject:
        """Settled, and for a custom kind defaulted and valid."""
        served = self.served
        if served.custom is None or served.resource.group == GROUP:
            return patching.settle_body_by_patch_schema(body, served.schema)
        body = structural.with_schema_defaults(body, served.custom.schema)
        body = patching.settle_body_by_patch_schema(body, served.schema)
        if found := structural.crd_schema_misfits(body, served.custom.schema):
            raise served_fields_invalid(served.resource, str((body.get("metadata") or {}).get("name") or ""), found)
        return body

    def _owned(self, old: JsonObject | None, new: JsonObject) -> JsonObject:
        body = without_selector_assigned_at_admission(self.served.resource, new) if old is None else new
        owned = patching.track_field_owners(old, body, self._manager, self.served.schema, self._now, self._subresource)
        if body is new:
            return owned
        return {**new, "metadata": {**new["metadata"], "managedFields": owned["metadata"].get("managedFields") or []}}


def _unknown_field_warnings(paths: Sequence[str]) -> list[str]:
    return [f'unknown field "{path}"' for path in paths[:MAX_WARNINGS]]


def _check_object_bounds(body: JsonObject, *, is_grown: bool) -> None:
    """What a request made of an object is bounded like a request. The record of owners does not count: it is as large again.
    `is_grown`: what was there has been added to."""
    meta = body.get("metadata")
    if isinstance(meta, dict) and "managedFields" in meta:
        body = {**body, "metadata": {name: value for name, value in meta.items() if name != "managedFields"}}
    patching.check_body_bounds(body)
    if is_grown and len(encode(body)) > MAX_OBJECT_BYTES:
        raise patching.BodyTooLarge(f"the object would be larger than {MAX_OBJECT_BYTES} bytes; make several of it")


_SERVER_FIELDS = ("generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


def _keep_server_fields(new: JsonObject, old: JsonObject) -> JsonObject:
    """What a writer says about these is not heard, so it does not own them either."""
    meta, before = new.get("metadata"), old["metadata"]
    if not isinstance(meta, dict) or all(meta.get(name) == before.get(name) for name in _SERVER_FIELDS):
        return new
    kept = {name: value for name, value in meta.items() if name not in _SERVER_FIELDS}
    return {**new, "metadata": {**kept, **{name: before[name] for name in _SERVER_FIELDS if name in before}}}


def _without_unknown_fields(value: Any, schema: patching.PatchSchema, path: str, unknown: list[str]) -> Any:
    if isinstance(value, list):
        if schema.type != "array":
            return value
        return [
            _without_unknown_fields(item, schema.items, f"{path}[{index}]", unknown) for index, item in enumerate(value)
        ]
    if not isinstance(value, dict) or schema.type != "object":
        return value
    out: JsonObject = {}
    for name, below in value.items():
        at = f"{path}.{name}" if path else name
        child = schema.fields.get(name) or schema.element
        if child is None:
            unknown.append(at)
        else:
            out[name] = _without_unknown_fields(below, child, at, unknown)
    return out


def require_stored(old: JsonObject | None, served: ServedKind, name: str) -> JsonObject:
    """Most writes cannot start from nothing."""
    if old is None:
        raise write_rules.served_object_not_found(served.resource, name)
    return old

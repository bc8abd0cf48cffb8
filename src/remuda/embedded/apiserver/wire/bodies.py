"""Request bodies into values, and the few response bodies that are not objects."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from remuda.api.codec import decode_json_with_codec, encode, from_wire
from remuda.api.errors import ApiError, BadRequest, Status, StatusDetails
from remuda.api.kubernetes.core_v1 import Binding
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver import write_rules
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.naming import served_request_option_invalid
from remuda.embedded.apiserver.patching import check_body_bounds
from remuda.embedded.apiserver.store.record import StoredObject
from remuda.embedded.apiserver.wire import protobuf_bodies
from remuda.embedded.apiserver.wire.yaml_bodies import parse_yaml_body
from remuda.kube.client.rest_paths import JSON, MERGE_PATCH, BindingBody
from remuda.kube.cluster import Preconditions

T = TypeVar("T")

YAML = "application/yaml"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


def parse_media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def parse_object_body(header: str, body: bytes) -> JsonObject:
    """No deeper than a recursive walk may go; everything else about it is still to be checked."""
    media = parse_media_type(header)
    if media == protobuf_bodies.MEDIA:
        return protobuf_bodies.parse_protobuf(body)
    if media not in (JSON, YAML, ""):
        known = f"{JSON}, {YAML} and {protobuf_bodies.MEDIA}"
        raise UnsupportedMediaType(f"the body is `{header}`; {known} are understood here")
    value = _require_object(_decode_yaml_body(body) if media == YAML else _decode_json_body(body))
    check_body_bounds(value)
    return value


def parse_patch_media_and_body(header: str, body: bytes) -> tuple[str, Any]:
    """The patch's media type and its decoded value, no deeper than a recursive walk may go."""
    media = parse_media_type(header)
    if media not in PATCHES:
        raise UnsupportedMediaType(f"the patch is `{header}`; understood here are {', '.join(PATCHES)}")
    value = _decode_yaml_body(body) if media == APPLY_PATCH else _decode_json_body(body)
    check_body_bounds(value)
    return media, value if media == JSON_PATCH else _require_object(value)


def duplicate_fields(header: str, body: bytes) -> list[str]:
    """Fields that a body (which can be parsed) gives twice, JSON's by their paths. The last one counts and the decoder does
    not notice, so the body is read once more, for clients that ask for Strict."""
    found: dict[int, tuple[JsonObject, list[str]]] = {}

    def noted(pairs: list[tuple[str, Any]]) -> JsonObject:
        out = dict(pairs)
        if len(out) < len(pairs):
            found[id(out)] = out, [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        return out

    try:
        value = json.loads(body, object_pairs_hook=noted)
    except RecursionError:
        return []  # too deep, and refused for that
    except ValueError:
        return parse_yaml_body(body).duplicates if parse_media_type(header) in (YAML, APPLY_PATCH) else []
    return (
        [f"{at}.{name}".removeprefix(".") for at, names in _duplicate_paths(value, found) for name in names]
        if found
        else []
    )


def _duplicate_paths(value: Any, of: Mapping[int, tuple[JsonObject, list[str]]]) -> Iterator[tuple[str, list[str]]]:
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        at, value = left.pop()
        if id(value) in of:
            yield at, of[id(value)][1]
        if isinstance(value, dict):
            left.extend((f"{at}.{name}", below) for name, below in value.items() if isinstance(below, dict | list))
        elif isinstance(value, list):
            left.extend((f"{at}[{i}]", below) for i, below in enumerate(value) if isinstance(below, dict | list))


def parse_binding_request_body(header: str, body: bytes) -> Binding:
    given = _convert_request_body(BindingBody, parse_object_body(header, body))
    return Binding(given.target.name, given.metadata)


class DeletePreconditions(msgspec.Struct, frozen=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    """`propagation`: what becomes of the objects that this one owns."""

    grace_period_seconds: int | None = None
    preconditions: DeletePreconditions | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


class Deletion(msgspec.Struct, frozen=True):
    """Arguments of `Objects.delete_record`."""

    when: Preconditions
    grace_s: int | None
    finalizer: str | None
    is_dry_run: bool


def parse_delete_options(header: str, body: bytes, query: dict[str, str]) -> Deletion:
    given = parse_object_body(header, body) if body.strip() else {}
    return parse_deletion(given, query)


def parse_deletion(given: JsonObject, query: dict[str, str]) -> Deletion:
    if given.get("kind") not in (None, "", "DeleteOptions"):
        raise BadRequest(f"the body is a {given['kind']}; expected DeleteOptions")
    options = _convert_request_body(DeleteOptions, given)
    if any(each != "All" for each in options.dry_run or ()):
        raise served_request_option_invalid(
            "DeleteOptions", "dryRun", f'Unsupported value: {options.dry_run}: supported values: "All"'
        )
    grace, query_grace = options.grace_period_seconds, query.get("gracePeriodSeconds", "")
    if grace is None and query_grace:
        if not query_grace.isdigit():
            raise BadRequest(f"gracePeriodSeconds=`{query_grace}` is not a number of seconds")
        grace = int(query_grace)
    policy = options.propagation_policy or query.get("propagationPolicy") or ""
    finalizers = {"": None, "Background": "", "Foreground": write_rules.FOREGROUND, "Orphan": write_rules.ORPHAN}
    if policy not in finalizers:
        what = f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan", "nil"'
        raise served_request_option_invalid("DeleteOptions", "propagationPolicy", what)
    finalizer = finalizers[policy]
    if options.orphan_dependents is not None and policy:
        what = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        raise served_request_option_invalid("DeleteOptions", "propagationPolicy", what)
    if options.orphan_dependents is not None:
        finalizer = write_rules.ORPHAN if options.orphan_dependents else ""
    asked = options.preconditions
    when = Preconditions() if asked is None else Preconditions(asked.uid or "", asked.resource_version or "")
    return Deletion(when, grace, finalizer, bool(options.dry_run) or query.get("dryRun") == "All")


_TOLD_WHOLE = frozenset(("persistentvolumeclaims", "pods", "resourcequotas", "serviceaccounts", "services"))


def encode_deletion_answer_body(served: ServedKind, record: StoredObject, whole: bytes) -> bytes:
    """Gone: a success status. Still there (marked, or held by finalizers): the object as it is now."""
    if not record.deleted or (served.custom is None and served.resource.full_name in _TOLD_WHOLE):
        return whole
    resource, meta = served.resource, record.body["metadata"]
    details = StatusDetails(name=meta["name"], kind=resource.plural, group=resource.group, uid=meta.get("uid") or "")
    return encode_status_answer_body(Status(status="Success", code=0, details=details))


# Kubernetes has details in these refusals even when there is nothing to tell.
_DETAILED = frozenset(("NotFound", "MethodNotAllowed", "NotAcceptable", "UnsupportedMediaType", "Invalid"))


def encode_status_answer_body(status: Status) -> bytes:
    body: JsonObject = msgspec.to_builtins(status)
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, **body, "status": status.status}
    if status.reason in _DETAILED:
        body.setdefault("details", {})
    return encode({**body, "code": status.code} if status.code else {k: v for k, v in body.items() if k != "code"})


def _decode_json_body(body: bytes) -> Any:
    try:
        return decode_json_with_codec(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None


def _require_object(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise BadRequest("the body must be an object")
    return value


def _convert_request_body(type_: type[T], value: JsonObject) -> T:
    try:
        return from_wire(type_, value)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body cannot be read: {error}") from None


_LOOKS_LIKE_JSON = re.compile(rb"\s*[{\[]")


def _decode_yaml_body(body: bytes) -> Any:
    if _LOOKS_LIKE_JSON.match(body):
        try:
            return decode_json_with_codec(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # flow style YAML looks the same
    return parse_yaml_body(body).value

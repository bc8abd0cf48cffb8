"""What becomes of a CustomResourceDefinition when it is written: defaults, checks, conditions.

A definition takes effect with the write that makes it, so NamesAccepted and Established are part of that write. The
finalizer keeps it until its objects are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

from remuda.api.meta import JsonObject
from remuda.api.validation.patterns import MAX_REPEATS, BadPattern, check_validation_pattern, validation_pattern_repeats
from remuda.embedded.apiserver.naming import served_fields_invalid
from remuda.embedded.apiserver.patching.field_owners import apiserver_timestamp

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"

MAX_ALL_REPEATS = 20_000  # of the patterns of one definition; compiling them is the price of a write
_VERSION = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")


class TakenNames(Protocol):
    def taken(self, group: str, by: str) -> tuple[set[str], set[str]]: ...


def accept_crd(body: JsonObject, old: JsonObject | None, names: TakenNames, now: float) -> JsonObject:
    """The definition as it is stored; raises Invalid with everything that is wrong with it."""
    body = with_crd_names(body)
    _check_crd(body, old)
    meta, spec = body["metadata"], body["spec"]
    if old is None:
        finalizers = [f for f in meta.get("finalizers") or () if f != CLEANUP]
        meta = {**meta, "finalizers": [*finalizers, CLEANUP]}
    accepted_names, conflict = _accept_crd_names(spec["names"], *names.taken(spec["group"], meta["name"]))
    status = (old or {}).get("status") or {}
    conditions = [c for c in status.get("conditions") or () if c["type"] not in ("NamesAccepted", "Established")]
    before = {c["type"]: c for c in status.get("conditions") or ()}
    accepted_as = ("False", *conflict) if conflict else ("True", "NoConflicts", "no conflicts found")
    established = (
        ("True", "InitialNamesAccepted", "the initial names have been accepted")
        if not conflict
        else ("False", "NotAccepted", "not all names are accepted")
    )
    conditions = [
        _crd_condition(before, "NamesAccepted", *accepted_as, now),
        _crd_condition(before, "Established", *established, now),
        *conditions,
    ]
    if "deletionTimestamp" in meta:
        conditions = [c for c in conditions if c["type"] != "Terminating"]
        deleting = ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        conditions.append(_crd_condition(before, "Terminating", *deleting, now))
    stored = list(status.get("storedVersions") or ())
    storage = next(v["name"] for v in spec["versions"] if v.get("storage"))
    if storage not in stored:
        stored.append(storage)
    new_status = {"conditions": conditions, "acceptedNames": accepted_names, "storedVersions": stored}
    return {**body, "metadata": meta, "status": new_status}


def _accept_crd_names(
    names: JsonObject, resources: set[str], kinds: set[str]
) -> tuple[JsonObject, tuple[str, str] | None]:
    """The names that nobody else has, and the last conflict: its reason and a sentence."""
    out: JsonObject = {"plural": "", "kind": ""}
    conflict = None
    for field in ("plural", "singular", "shortNames", "kind", "listKind"):
        given = names.get(field)
        taken = kinds if field in ("kind", "listKind") else resources
        clash = taken.intersection(given if isinstance(given, list) else [given])
        if clash:
            is_in_use = ", ".join(f'"{name}" is already in use' for name in sorted(clash))
            conflict = f"{field[0].upper()}{field[1:]}Conflict", is_in_use
        elif given:
            out[field] = given
    if names.get("categories"):
        out["categories"] = names["categories"]
    return out, conflict


def is_crd_terminating(body: JsonObject) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _crd_condition(
    before: dict[str, JsonObject], type_: str, status: str, reason: str, message: str, now: float
) -> Any:
    old = before.get(type_)
    if old is not None and old.get("status") == status:
        return old
    return {
        "type": type_,
        "status": status,
        "lastTransitionTime": apiserver_timestamp(now),
        "reason": reason,
        "message": message,
    }


def with_crd_names(body: JsonObject) -> JsonObject:
    """The names and the conversion that follow from what is given."""
    spec = body.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("names"), dict):
        return body
    names = dict(spec["names"])
    kind = names.get("kind")
    if isinstance(kind, str):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    return {**body, "spec": {**spec, "names": names, "conversion": spec.get("conversion") or {"strategy": "None"}}}


def _check_crd(body: JsonObject, old: JsonObject | None) -> None:
    from remuda.embedded.apiserver.kinds_served import CRD

    found: list[tuple[str, str]] = []
    spec = body.get("spec") if isinstance(body.get("spec"), dict) else {}
    assert isinstance(spec, dict)
    names = spec.get("names") if isinstance(spec.get("names"), dict) else {}
    assert isinstance(names, dict)
    name, group, plural = body["metadata"]["name"], str(spec.get("group") or ""), str(names.get("plural") or "")
    if not group:
        found.append(("spec.group", "Required value"))
    elif not _SUBDOMAIN.fullmatch(group):
        found.append(("spec.group", f'Invalid value: "{group}": should be a domain with at least one dot'))
    for field in ("plural", "kind"):
        if not names.get(field):
            found.append((f"spec.names.{field}", "Required value"))
    if not found and name != f"{plural}.{group}":
        found.append(
            ("metadata.name", f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group, {plural}.{group}')
        )
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        scope = spec.get("scope")
        found.append(
            ("spec.scope", f'Unsupported value: "{scope}": supported values: "Cluster", "Namespaced"')
            if scope
            else ("spec.scope", "Required value")
        )
    versions = spec.get("versions")
    if not isinstance(versions, list) or not versions:
        found.append(("spec.versions", "Required value: at least one version is needed"))
        versions = []
    if versions and sum(1 for v in versions if isinstance(v, dict) and v.get("storage")) != 1:
        found.append(("spec.versions", "Invalid value: must have exactly one version marked as storage version"))
    repeats = _SumOfRepeats()
    for index, version in enumerate(versions):
        found.extend(_check_crd_version(version, f"spec.versions[{index}]", repeats))
    if (spec.get("conversion") or {}).get("strategy", "None") != "None":
        found.append(("spec.conversion.strategy", "Forbidden: this server converts with strategy None only"))
    if old is not None and not found:
        for field in ("group", "scope"):
            if old["spec"].get(field) != spec.get(field):
                found.append((f"spec.{field}", f'Invalid value: "{spec.get(field)}": field is immutable'))
        for field in ("plural", "kind"):
            if old["spec"]["names"].get(field) != names.get(field):
                found.append((f"spec.names.{field}", f'Invalid value: "{names.get(field)}": field is immutable'))
    if found:
        raise served_fields_invalid(CRD, name, found)


def _check_crd_version(version: Any, at: str, repeats: _SumOfRepeats) -> list[tuple[str, str]]:
    if not isinstance(version, dict):
        return [(at, "Invalid value: must be an object")]
    found: list[tuple[str, str]] = []
    if not _VERSION.fullmatch(str(version.get("name") or "")):
        found.append((f"{at}.name", f'Invalid value: "{version.get("name") or ""}": must be a DNS label'))
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    where = f"{at}.schema.openAPIV3Schema"
    if not isinstance(schema, dict):
        return [*found, (where, "Required value: schemas are required")]
    if schema.get("type") != "object":
        what = "must be object at the root"
        found.append(
            (
                f"{where}.type",
                f'Invalid value: "{schema.get("type")}": {what}' if schema.get("type") else f"Required value: {what}",
            )
        )
    found.extend(_check_structural_schema(schema, where, 0))
    found.extend(_check_crd_patterns(schema, where, 0, repeats))
    return found


def _check_structural_schema(schema: JsonObject, at: str, depth: int) -> list[tuple[str, str]]:
    """Structural: every value's type is said, or said to be left open."""
    found: list[tuple[str, str]] = []
    if depth > 60:
        return [(at, "Too long: nested too deeply")]
    is_open = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not schema.get("type") and not is_open and depth:
        found.append((f"{at}.type", "Required value: must not be empty for specified object fields"))
    properties = schema.get("properties")
    if properties is not None and schema.get("additionalProperties"):
        found.append(
            (f"{at}.additionalProperties", "Forbidden: additionalProperties and properties are mutual exclusive")
        )
    if isinstance(properties, dict):
        for name, below in properties.items():
            if isinstance(below, dict) and not (depth == 0 and name in ("apiVersion", "kind", "metadata")):
                found.extend(_check_structural_schema(below, f"{at}.properties[{name}]", depth + 1))
    for name in ("items", "additionalProperties"):
        below = schema.get(name)
        if isinstance(below, dict):
            found.extend(_check_structural_schema(below, f"{at}.{name}", depth + 1))
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        found.append((f"{at}.items", "Required value: must be specified"))
    return found


class _SumOfRepeats:
    """Of the patterns of a definition, each counted once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._sum = 0

    def is_too_large_with(self, pattern: str) -> bool:
        if pattern not in self._seen:
            self._seen.add(pattern)
            repeats = validation_pattern_repeats(pattern)
            self._sum += repeats if repeats <= MAX_REPEATS else 0  # such a one is refused by itself
        return self._sum > MAX_ALL_REPEATS


def _check_crd_patterns(schema: JsonObject, at: str, depth: int, repeats: _SumOfRepeats) -> Iterator[tuple[str, str]]:
    """Every regular expression of the schema can be compiled, and all of them in good time."""
    if depth > 60:
        return
    pattern = schema.get("pattern")
    if pattern and repeats.is_too_large_with(str(pattern)):
        what = f"the counts of all patterns of the definition add up to more than {MAX_ALL_REPEATS}"
        yield f"{at}.pattern", f'Invalid value: "{str(pattern)[:100]}": {what}; use maxLength for lengths'
        return
    if pattern:
        try:
            check_validation_pattern(str(pattern))
        except BadPattern as bad:
            what = f"must be a valid regular expression, but isn't: error parsing regexp: {bad}"
            yield f"{at}.pattern", f'Invalid value: "{pattern}": {what}'
    for where, below in _subschemas(schema):
        if isinstance(below, dict):
            yield from _check_crd_patterns(below, f"{at}.{where}", depth + 1, repeats)


def _subschemas(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield from ((f"properties[{name}]", below) for name, below in properties.items())
    for name in ("items", "additionalProperties", "not"):
        yield name, schema.get(name)
    for name in ("allOf", "anyOf", "oneOf"):
        choices = schema.get(name)
        if isinstance(choices, list):
            yield from ((f"{name}[{index}]", below) for index, below in enumerate(choices))

"""Who owns which fields: `metadata.managedFields` read, kept within bounds, and written.

An owner is a manager's name, the operation (Apply, or Update for every other write), the subresource and the API version.
All four make an Update owner; an Apply owner stays the same when its API version changes.

An owner that a write did not touch keeps its entry object, so unchanged entries are written back as they were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from remuda.api.errors import Invalid
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching.field_sets import ordered_fields, parse_field_set, union_fields
from remuda.embedded.apiserver.patching.patch_schema import FieldSet

APPLY: Final = "Apply"
UPDATE: Final = "Update"
MAX_NAME: Final = 128
MAX_UPDATERS: Final = 10
MAX_OWNERS: Final = 1_000  # every write looks at all of them
_ANCIENT: Final = "ancient-changes"


class OwnerName(msgspec.Struct, frozen=True):
    """What tells owners apart."""

    manager: str
    operation: str
    subresource: str = ""
    api_version: str = ""  # of an Update only


class FieldOwner(msgspec.Struct, frozen=True):
    fields: FieldSet
    api_version: str
    time: str = ""
    entry: JsonObject | None = None  # the wire form that says the same


Owners = dict[OwnerName, FieldOwner]


def field_owner_name(manager: str, operation: str, subresource: str, api_version: str) -> OwnerName:
    return OwnerName(manager or "unknown", operation, subresource, api_version if operation == UPDATE else "")


def manager_name(asked: str, user_agent: str) -> str:
    """The manager of a request: the one it names, else the first word of its user agent."""
    if asked:
        check_field_manager_name(asked)
        return asked
    name = ""
    for character in user_agent.split("/", 1)[0]:
        if character.isprintable():
            if len(name.encode()) + len(character.encode()) > MAX_NAME:
                break
            name += character
    return name


def check_field_manager_name(name: str) -> None:
    if len(name.encode()) > MAX_NAME:
        raise Invalid(f"fieldManager: longer than {MAX_NAME} bytes; choose a shorter one")
    if not name.isprintable():
        raise Invalid("fieldManager: has characters that cannot be printed; leave them out")


def apiserver_timestamp(now: float) -> str:
    """The API's time has whole seconds."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_managed_fields(entries: Any) -> Owners:
    """The owners in a `managedFields` list from outside; ValueError when it is malformed."""
    if not isinstance(entries, list):
        raise ValueError("managedFields must be a list")
    return _owners_from_entries([_check_managed_entry(entry) for entry in entries])


def stored_owners(entries: Any) -> Owners:
    """Of an object in the store. `write_managed_fields` made them, unless it is older than this module: then they may be lost."""
    try:
        return _owners_from_entries(entries or [])
    except (KeyError, TypeError, AttributeError):
        try:
            return read_managed_fields(entries)
        except ValueError:
            return {}


def _owners_from_entries(entries: list[JsonObject]) -> Owners:
    owners: Owners = {}
    for entry in entries:
        version = entry["apiVersion"]
        name = field_owner_name(entry.get("manager", ""), entry["operation"], entry.get("subresource", ""), version)
        owners[name] = FieldOwner(entry["fieldsV1"], version, entry.get("time", ""), entry)
    return owners


def _check_managed_entry(entry: Any) -> JsonObject:
    if not isinstance(entry, dict):
        raise ValueError("an entry of managedFields must be an object")
    out: JsonObject = {}
    for field in ("manager", "operation", "apiVersion", "time", "fieldsType", "subresource"):
        value = entry.get(field)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"managedFields: {field} must be text")
        if value:
            out[field] = value
    if out.get("operation") not in (APPLY, UPDATE):
        raise ValueError("managedFields: operation must be Apply or Update")
    if "apiVersion" not in out:
        raise ValueError("managedFields: apiVersion must not be empty")
    if out.get("fieldsType") != "FieldsV1":
        raise ValueError("managedFields: fieldsType must be FieldsV1")
    if "time" in out:
        time = datetime.fromisoformat(out["time"])
        if time.tzinfo is None:
            raise ValueError("managedFields: time must say its zone")
        out["time"] = apiserver_timestamp(time.timestamp())
    try:
        out["fieldsV1"] = ordered_fields(parse_field_set(entry.get("fieldsV1") or {}))
    except RecursionError:
        raise ValueError("managedFields: fieldsV1 is nested too deeply") from None
    return out


def asks_to_forget_field_owners(entries: Any, *, custom: bool) -> bool:
    """A list of one empty entry asks to forget all owners, and so does an empty list, but not of a custom kind."""
    return (entries == [] and not custom) or (isinstance(entries, list) and entries in ([{}], [None]))


def write_managed_fields(owners: Owners) -> list[JsonObject]:
    """The wire form: appliers first, then oldest first."""
    if len(owners) > MAX_OWNERS:
        fix = "give up the fields of some: apply without them, under their names"
        raise Invalid(f"metadata.managedFields: Too many: the object has {MAX_OWNERS} field managers; {fix}")
    names = sorted(owners, key=lambda n: (n.operation, owners[n].time, n.manager, owners[n].api_version, n.subresource))
    return [owners[name].entry or _managed_entry(name, owners[name]) for name in names]


def _managed_entry(name: OwnerName, owner: FieldOwner) -> JsonObject:
    entry: JsonObject = {"manager": name.manager, "operation": name.operation, "apiVersion": owner.api_version}
    if owner.time:
        entry["time"] = owner.time
    entry["fieldsType"] = "FieldsV1"
    entry["fieldsV1"] = owner.fields
    if name.subresource:
        entry["subresource"] = name.subresource
    return entry


def same_owners_but_time(a: Sequence[JsonObject], b: Sequence[JsonObject]) -> bool:
    if len(a) != len(b):
        return False
    return all(x is y or {**x, "time": ""} == {**y, "time": ""} for x, y in zip(a, b, strict=True))


def cap_updaters(owners: Owners) -> Owners:
    """At most `MAX_UPDATERS` updaters: the oldest of one API version are joined into one entry."""
    updaters = [name for name in owners if name.operation == UPDATE]
    surplus = len(updaters) - MAX_UPDATERS
    if surplus <= 0:
        return owners
    out = dict(owners)
    first: dict[str, OwnerName] = {}
    for name in sorted(updaters, key=lambda n: (owners[n].time, n.manager, n.api_version, n.subresource)):
        if surplus <= 0:
            break
        owner, version = owners[name], owners[name].api_version
        if version not in first:
            first[version] = name
            continue
        bucket = OwnerName(_ANCIENT, UPDATE, "", version)
        if bucket not in out:
            out[bucket] = out.pop(first[version])
        out[bucket] = FieldOwner(union_fields(out[bucket].fields, owner.fields), version, owner.time)
        del out[name]
        surplus -= 1
    return out

"""The objects of object hooks, filled in: the same for the same step, whoever fills them in and how often. Pure.

An object hook asks an outside controller for something by an object that it knows, and reads the answer in its conditions."""

from __future__ import annotations

import msgspec

from remuda.api.meta import JsonObject
from remuda.api.remedies import Hook


class HookCall(msgspec.Struct, frozen=True):
    """Objects that are to be there, and the conditions that say how they ended."""

    key: str
    bodies: tuple[JsonObject, ...]
    success: str
    failure: str


class HookResult(msgspec.Struct, frozen=True):
    """What became of the objects of an object hook. `outcome`: "" while they are at it."""

    key: str  # of the record
    outcome: str = ""  # Succeeded | Failed | Refused
    message: str = ""
    names: tuple[str, ...] = ()  # Kind/name
    reason: str = ""  # of a refusal


def hook_body(hook: Hook, facts: dict[str, str], name: str, index: int, count: int) -> JsonObject:
    """The hook's object with everything filled in. One without a name gets one that is always the same for this step."""
    body: JsonObject = {name: _fill_placeholders(value, facts) for name, value in hook.object.items()}
    meta = dict(body.get("metadata") or {})
    meta.pop("generateName", None)
    meta["name"] = meta.get("name") or (name if count == 1 else f"{name}-{index}")
    return {**body, "metadata": meta}


def _fill_placeholders(value: object, facts: dict[str, str]) -> object:
    if isinstance(value, str):
        for fact, text in facts.items():
            value = value.replace(f"{{{fact}}}", text)
        return value
    if isinstance(value, list):
        return [_fill_placeholders(v, facts) for v in value]
    if isinstance(value, dict):
        return {_fill_placeholders(k, facts): _fill_placeholders(v, facts) for k, v in value.items()}
    return value

"""The object of an object hook, filled in: the same for the same step, whoever fills it in and how often. Pure."""

from __future__ import annotations

from remuda.api.meta import JsonObject
from remuda.api.remedies import Hook


def hook_body(hook: Hook, facts: dict[str, str], name: str, index: int, count: int) -> JsonObject:
    """The hook's object with everything filled in. One without a name gets one that is always the same for this step."""
    body: JsonObject = {name: _filled(value, facts) for name, value in hook.object.items()}
    meta = dict(body.get("metadata") or {})
    meta.pop("generateName", None)
    meta["name"] = meta.get("name") or (name if count == 1 else f"{name}-{index}")
    return {**body, "metadata": meta}


def _filled(value: object, facts: dict[str, str]) -> object:
    if isinstance(value, str):
        for fact, text in facts.items():
            value = value.replace(f"{{{fact}}}", text)
        return value
    if isinstance(value, list):
        return [_filled(v, facts) for v in value]
    if isinstance(value, dict):
        return {_filled(k, facts): _filled(v, facts) for k, v in value.items()}
    return value

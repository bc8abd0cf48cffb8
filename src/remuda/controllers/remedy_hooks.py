"""Object hooks: what an outside controller is asked to do, as an object it knows, and how it went by the object's conditions.

Objects have names that follow from the incident and the step, so one that is made twice is found the second time. What was
read is kept for the next look only: a manager that starts anew makes, finds and reads them again.

Only kinds that the manager's configuration allows are made, or even looked at (`core.remedies.hook_kinds`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from remuda.api.conditions import is_condition_true
from remuda.api.errors import AlreadyExists, ApiError, NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import Condition, JsonObject, KObject, Resource
from remuda.core.remedies.hook_kinds import HookKinds, require_allowed_remedy_hook_kind
from remuda.core.remedies.hook_objects import HookCall, HookResult
from remuda.kube.cluster import Cluster


class ObservedHookObject(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Any object, as far as a hook looks at it."""

    resource: ClassVar[Resource] = Node.resource
    status: dict[str, Any] = {}

    @property
    def conditions(self) -> list[Condition]:
        found = self.status.get("conditions")
        rows = found if isinstance(found, list) else []
        return [
            Condition(
                type=str(row.get("type", "")), status=str(row.get("status", "")), message=str(row.get("message") or "")
            )
            for row in rows
            if isinstance(row, dict)
        ]


class ObjectHooks:
    def __init__(self, cluster: Cluster, allowed: HookKinds) -> None:
        self._cluster = cluster
        self._allowed = allowed
        self._made: dict[str, HookResult] = {}  # by incident

    def made(self, incident: str) -> HookResult | None:
        return self._made.get(incident)

    def forget(self, incident: str) -> None:
        self._made.pop(incident, None)

    async def call(self, incident: str, call: HookCall) -> bool:
        """The objects are there, and what they say is kept. True once they have ended."""
        try:
            for body in call.bodies:
                require_allowed_remedy_hook_kind(body, self._allowed)
        except Refusal as refusal:
            words = f"{refusal.message} {refusal.fix or ''}".strip()
            self._made[incident] = HookResult(call.key, "Refused", words, reason=refusal.reason)
            return True
        found = [await self._ensure_object(body, call) for body in call.bodies]
        outcomes = {outcome for outcome, _ in found}
        outcome = "Failed" if "Failed" in outcomes else "" if "" in outcomes else "Succeeded"
        words = " ".join(dict.fromkeys(message for _, message in found if message))
        names = tuple(f"{body['kind']}/{body['metadata']['name']}" for body in call.bodies)
        self._made[incident] = HookResult(call.key, outcome, words or f"{', '.join(names)}: {outcome}", names)
        return bool(outcome)

    async def _ensure_object(self, body: JsonObject, call: HookCall) -> tuple[str, str]:
        kind = hook_object_kind(body)
        meta = body["metadata"]
        name, namespace = str(meta["name"]), str(meta.get("namespace") or "")
        try:
            there = await self._cluster.get(kind, name, namespace)
        except NotFound:
            try:
                there = await self._cluster.create(kind, body)
            except AlreadyExists:
                return "", ""
            except ApiError as error:
                if error.code >= 500 or error.code == 429:
                    raise
                return "Failed", f"{body['kind']} {name} was refused: {error.message}"
        for condition, outcome in ((call.failure, "Failed"), (call.success, "Succeeded")):
            if is_condition_true(there.conditions, condition):
                said = next((c.message for c in there.conditions if c.type == condition and c.message), "")
                return outcome, said
        return "", ""


_kinds: dict[tuple[str, str, bool], type[ObservedHookObject]] = {}


def hook_object_kind(body: JsonObject) -> type[ObservedHookObject]:
    """A kind this build has no type for. Its plural is guessed by the API's custom: lower case, and as in English."""
    version, kind = str(body["apiVersion"]), str(body["kind"])
    is_namespaced = bool(body["metadata"].get("namespace"))
    key = (version, kind, is_namespaced)
    if key not in _kinds:
        group, _, name = version.rpartition("/")
        resource = Resource(
            group, name, kind, hook_kind_plural(kind), namespaced=is_namespaced, subresources=("status",)
        )
        _kinds[key] = type(
            kind, (ObservedHookObject,), {"resource": resource, "__annotations__": {}}, frozen=True, kw_only=True
        )
    return _kinds[key]


def hook_kind_plural(kind: str) -> str:
    word = kind.lower()
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"

"""Priority: a pod's class becomes a number; at most one class is the default for everyone."""

from __future__ import annotations

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission.request import CREATE, UPDATE, AdmissionRequest, Forbidden, ReadObjects

SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_GROUP, _CLASSES = "scheduling.k8s.io", "priorityclasses"


class PriorityAdmission:
    def __init__(self, read: ReadObjects) -> None:
        self._read = read

    def admit(self, request: AdmissionRequest, body: JsonObject) -> JsonObject:
        spec = body.get("spec")
        if request.operation != CREATE or not isinstance(spec, dict):
            return body
        name, value, policy = self._class_of(request, str(spec.get("priorityClassName") or ""))
        given, given_policy = spec.get("priority"), spec.get("preemptionPolicy")
        if given is not None and given != value:
            raise Forbidden(
                request,
                f"the integer value of priority ({given}) must not be provided in pod spec; priority admission "
                f"controller computed {value} from the given PriorityClass name",
            )
        if given_policy is not None and given_policy != policy:
            raise Forbidden(
                request,
                f"the string value of PreemptionPolicy ({given_policy}) must not be provided in pod spec; priority "
                f"admission controller computed {policy} from the given PriorityClass name",
            )
        filled = {**spec, "priority": value, "preemptionPolicy": policy}
        if name:
            filled["priorityClassName"] = name
        return {**body, "spec": filled}

    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None:
        if body is None or request.operation not in (CREATE, UPDATE) or not body.get("globalDefault"):
            return
        other = self._default()
        if other is not None and other["metadata"]["name"] != request.name:
            raise Forbidden(
                request,
                f"PriorityClass {other['metadata']['name']} is already marked as default. Only one default can exist",
            )

    def _class_of(self, request: AdmissionRequest, name: str) -> tuple[str, int, str]:
        if not name:
            found = self._default()
        elif name in SYSTEM_CLASSES:
            return name, SYSTEM_CLASSES[name], "PreemptLowerPriority"
        else:
            found = self._read.get(_GROUP, _CLASSES, name)
            if found is None:
                raise Forbidden(request, f"no PriorityClass with name {name} was found")
        if found is None:
            return "", 0, "PreemptLowerPriority"
        policy = str(found.get("preemptionPolicy") or "PreemptLowerPriority")
        return found["metadata"]["name"], int(found.get("value") or 0), policy

    def _default(self) -> JsonObject | None:
        marked = [c for c in self._read.list(_GROUP, _CLASSES) if c.get("globalDefault") is True]
        return min(marked, key=lambda c: int(c.get("value") or 0), default=None)

"""ResourceQuota: a write that would use more than its namespace may is refused.

Usage is counted from the objects themselves, in the same step in which the write is staged, so any number of creates at once
cannot exceed a quota together. `status.used`, which users read, is kept by a controller and not trusted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from remuda.api.kubernetes.quantity import format_quantity
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission.request import CREATE, UPDATE, AdmissionRequest, Forbidden, ReadObjects
from remuda.embedded.builtin.planners.quotas import (
    in_quota_scope,
    kinds_counted_by_quota,
    quota_limit,
    quota_usage,
    total_quota_used,
    unstated_quota_resources,
)

_UPDATABLE = frozenset({"persistentvolumeclaims", "services"})


class QuotaAdmission:
    def __init__(self, read: ReadObjects) -> None:
        self._read = read

    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None:
        resource = request.resource
        if body is None or request.subresource or not resource.namespaced:
            return
        if request.operation != CREATE and not (request.operation == UPDATE and resource.plural in _UPDATABLE):
            return
        for quota in self._read.list("", "resourcequotas", request.namespace):
            self._check(request, body, quota)

    def _check(self, request: AdmissionRequest, body: JsonObject, quota: JsonObject) -> None:
        resource, name = request.resource, quota["metadata"]["name"]
        hard = (quota.get("spec") or {}).get("hard") or {}
        if request.is_about("pods"):
            if not in_quota_scope(quota, body):
                return
            missing = unstated_quota_resources(hard, body.get("spec") or {})
            if missing:
                raise Forbidden(request, f"failed quota: {name}: must specify {','.join(missing)}")
        asked = quota_usage(resource.group, resource.plural, body)
        before = quota_usage(resource.group, resource.plural, request.old) if request.old is not None else {}
        more = {n: value - before.get(n, Fraction(0)) for n, value in asked.items() if n in hard}
        more = {n: value for n, value in more.items() if value > 0}
        if not more:
            return
        used = total_quota_used(quota, self._objects(set(more), request.namespace))
        over = sorted(n for n, value in more.items() if used[n] + value > quota_limit(hard, n))
        if over:

            def told(amounts: dict[str, Fraction]) -> str:
                return ",".join(f"{n}={format_quantity(amounts[n], binary=_is_bytes_resource(n))}" for n in over)

            limits = ",".join(f"{n}={hard[n]}" for n in over)
            raise Forbidden(
                request, f"exceeded quota: {name}, requested: {told(more)}, used: {told(used)}, limited: {limits}"
            )

    def _objects(self, hard: set[str], namespace: str) -> Iterator[tuple[str, str, JsonObject]]:
        for group, plural in kinds_counted_by_quota(hard):
            for body in self._read.list(group, plural, namespace):
                yield group, plural, body


def _is_bytes_resource(name: str) -> bool:
    return "memory" in name or "storage" in name

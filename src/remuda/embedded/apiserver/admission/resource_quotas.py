"""ResourceQuota: a write that would use more than its namespace may is refused.

Usage is counted from the objects themselves, in the same step in which the write is staged, so any number of creates at once
cannot exceed a quota together. `status.used`, which users read, is kept by a controller and not trusted here.

Whoever writes into a namespace waits for all of its quotas to be asked, so there are only so many of them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from remuda.api.errors import StatusCause
from remuda.api.kubernetes.quantity import format_quantity
from remuda.api.meta import JsonObject, wire_map_or_empty
from remuda.embedded.apiserver.admission.request import CREATE, UPDATE, AdmissionRequest, Forbidden, ReadObjects
from remuda.embedded.builtin.planners.pod_resources import Amounts
from remuda.embedded.builtin.planners.quotas import (
    NamespaceUse,
    PodClass,
    quota_class_of_pod,
    quota_counts_pod_class,
    quota_limit,
    quota_usage,
    unstated_resources_counted_by_quota,
)

_UPDATABLE = frozenset({"persistentvolumeclaims", "services"})
MAX_QUOTAS = 100  # of a namespace


class QuotaAdmission:
    def __init__(self, read: ReadObjects) -> None:
        self._read = read

    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None:
        resource = request.resource
        if body is None or request.subresource or not resource.namespaced:
            return
        if request.operation != CREATE and not (request.operation == UPDATE and resource.plural in _UPDATABLE):
            return
        quotas = list(self._read.list("", "resourcequotas", request.namespace))
        if request.is_about("resourcequotas") and len(quotas) >= MAX_QUOTAS:
            raise _too_many_quotas(request, len(quotas))
        if quotas:
            asked = _asked_of_quotas(request, body)
            use = NamespaceUse(lambda kind: self._read.list(*kind, request.namespace))
            for quota in quotas:
                _check_quota(request, quota, asked, use)


class _Asked(NamedTuple):
    """What a write asks of quotas: `more` than there was, and for a pod its class and the limits it cannot be counted by."""

    more: Amounts
    pod: PodClass | None
    unstated: list[str]


def _asked_of_quotas(request: AdmissionRequest, body: JsonObject) -> _Asked:
    group, plural = request.resource.group, request.resource.plural
    before = quota_usage(group, plural, request.old) if request.old is not None else {}
    grown = {n: value - before.get(n, Fraction(0)) for n, value in quota_usage(group, plural, body).items()}
    more = {n: value for n, value in grown.items() if value > 0}
    if not request.is_about("pods"):
        return _Asked(more, None, [])
    return _Asked(
        more, quota_class_of_pod(body), unstated_resources_counted_by_quota(wire_map_or_empty(body.get("spec")))
    )


def _check_quota(request: AdmissionRequest, quota: JsonObject, asked: _Asked, use: NamespaceUse) -> None:
    name, hard = quota["metadata"]["name"], (quota.get("spec") or {}).get("hard") or {}
    if asked.pod is not None and not quota_counts_pod_class(quota, asked.pod):
        return
    if missing := [n for n in asked.unstated if n in hard]:
        raise Forbidden(request, f"failed quota: {name}: must specify {','.join(missing)}")
    more = {n: value for n, value in asked.more.items() if n in hard}
    if not more:
        return
    used = use.used(quota, more)
    over = sorted(n for n, value in more.items() if used[n] + value > quota_limit(hard, n))
    if over:

        def told(amounts: dict[str, Fraction]) -> str:
            return ",".join(f"{n}={format_quantity(amounts[n], binary=_is_bytes_resource(n))}" for n in over)

        limits = ",".join(f"{n}={hard[n]}" for n in over)
        raise Forbidden(
            request, f"exceeded quota: {name}, requested: {told(more)}, used: {told(used)}, limited: {limits}"
        )


def _too_many_quotas(request: AdmissionRequest, count: int) -> Forbidden:
    why = f"namespace {request.namespace} has {count} quotas, and no more than {MAX_QUOTAS} may be made"
    fix = "Put its limits into one that is there, or delete one first."
    return Forbidden(request, f"{why}. {fix}", [StatusCause("TooManyQuotas", fix, "metadata.namespace")])


def _is_bytes_resource(name: str) -> bool:
    return "memory" in name or "storage" in name

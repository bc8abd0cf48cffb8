"""Evicting a pod: its deletion, paid for from the PodDisruptionBudget that protects it."""

from __future__ import annotations

from typing import Any, cast

from remuda.api.errors import ApiError, StatusCause, StatusDetails, TooManyRequests
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.objects import ObjectService
from remuda.embedded.apiserver.patching.field_owners import apiserver_timestamp
from remuda.embedded.apiserver.preparation import require_stored

_RETRY_S = 10


async def charge_disruption_budget(objects: ObjectService, pod: JsonObject) -> None:
    """Take the eviction from the budget that protects the pod, or refuse it. A pod that is over, is not running yet or is on its
    way out costs nothing."""
    meta = pod["metadata"]
    if _costs_no_budget(pod) or "deletionTimestamp" in meta:
        return
    served = cast(ServedKind, objects.registry.find("policy", "v1", "poddisruptionbudgets"))
    found = [
        record
        for record in objects.store.scan(f"{served.resource.prefix}{meta['namespace']}/")
        if _budget_selects((record.body.get("spec") or {}).get("selector"), meta.get("labels") or {})
    ]
    if not found:
        return
    if len(found) > 1:
        raise ApiError(f'pod "{meta["name"]}" has more than one PodDisruptionBudget; leave one', code=500)
    budget = found[0].body["metadata"]["name"]

    def charged(old: JsonObject | None) -> JsonObject:
        live = require_stored(old, served, budget)
        status = live.get("status") or {}
        allowed = int(status.get("disruptionsAllowed") or 0)
        if allowed <= 0 or int(status.get("observedGeneration") or 0) < int(live["metadata"].get("generation") or 0):
            cause = StatusCause(
                "DisruptionBudget",
                f"The disruption budget {budget} needs {status.get('desiredHealthy', 0)} healthy pods and has "
                f"{status.get('currentHealthy', 0)} currently",
            )
            raise TooManyRequests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details=StatusDetails(causes=[cause], retry_after_seconds=_RETRY_S),
            )
        disrupted = {**(status.get("disruptedPods") or {}), meta["name"]: apiserver_timestamp(objects.clock())}
        return {**live, "status": {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}}

    await objects.change_record(served, budget, meta["namespace"], charged, subresource="status")


def _costs_no_budget(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending")


def _budget_selects(selector: Any, labels: dict[str, str]) -> bool:
    """A LabelSelector of policy/v1: empty selects everything, absent nothing."""
    if not isinstance(selector, dict):
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or ():
        value, values = labels.get(each.get("key")), each.get("values") or ()
        fits = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not fits.get(each.get("operator"), False):
            return False
    return True

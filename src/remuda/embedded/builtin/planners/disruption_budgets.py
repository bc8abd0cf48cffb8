"""PodDisruptionBudget: how many of its pods may be evicted now."""

from __future__ import annotations

import msgspec

from remuda.api.conditions import with_condition
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.kubernetes.policy_v1 import DisruptionStatus, PodDisruptionBudget
from remuda.api.meta import to_time
from remuda.embedded.builtin.planners.pod_state import count_or_percentage_of, is_active_pod, is_ready_pod


def plan_disruption_budget(
    budget: PodDisruptionBudget, pods: tuple[Pod, ...], expected: int, now: float
) -> DisruptionStatus:
    """`pods`: those the selector matches. `expected`: how many their controllers want."""
    active = [p for p in pods if is_active_pod(p)]
    healthy = sum(map(is_ready_pod, active))
    spec = budget.spec
    if spec.max_unavailable is not None:
        desired = max(0, expected - count_or_percentage_of(spec.max_unavailable, expected, up=True))
    else:
        least = 1 if spec.min_available is None else spec.min_available
        desired = count_or_percentage_of(least, expected, up=True)
        if isinstance(least, int):
            expected = len(active)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    enough = allowed > 0
    conditions = with_condition(
        budget.status.conditions,
        "DisruptionAllowed",
        enough,
        "SufficientPods" if enough else "InsufficientPods",
        "",
        to_time(int(now)),
    )
    return msgspec.structs.replace(
        budget.status,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        observed_generation=budget.metadata.generation,
        conditions=conditions,
        disrupted_pods={},
    )

"""What is due for the pods that one node refused: noted, numbered, told, made again, and the oldest forgotten. Pure.

The rules are those of `rejections`; this is one look at one node. A bare pod is made again when its time has come and its
budget is not used up; nothing is done for a pod before it was told, so what was done once is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from remuda.api.devices import NodeDevices, QuarantineOrder, Rejection
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.foreign import rejections
from remuda.core.foreign.gangs import is_ours


class RefusedPlan(msgspec.Struct, frozen=True):
    notes: dict[str, list[Rejection]] = {}  # by resource: what NodeDevices.rejections should hold
    withhold: dict[str, QuarantineOrder] = {}
    tell: tuple[tuple[Pod, int], ...] = ()  # each with its number in its owner's row
    prune: tuple[Pod, ...] = ()
    again: tuple[tuple[Pod, int], ...] = ()  # bare pods to make anew
    look_again_s: float | None = None


def plan_refused(
    devices: NodeDevices | None,
    pods: Iterable[Pod],
    refused: Sequence[Pod],
    rejected: Callable[[str], Iterable[Pod]],
    now: float,
    limits: rejections.Limits = rejections.DEFAULT,
    kept_pods: int = rejections.KEPT_PODS,
) -> RefusedPlan:
    """`pods`: those that are there. `refused`: also those that are gone by now and were not noted. `rejected`: see
    `rejections.numbered`."""
    notes = rejections.note_rejections(devices, refused, now, limits) if devices is not None else {}
    orders = rejections.withhold(devices, notes, now, limits) if devices is not None else {}
    there = {p.uid for p in pods}
    kept = [p for p in refused if p.uid in there]
    tell = rejections.numbered((p for p in kept if not is_ours(p)), rejected, now)
    again: list[tuple[Pod, int]] = []
    waits: list[float] = []
    for pod in kept:
        n = max(1, rejections.count_on(pod))
        if rejections.is_retried(pod) and rejections.is_told(pod) and not pod.is_deleting and n <= rejections.BUDGET:
            left = rejections.rejected_at(pod) + rejections.retry_after(n) - now
            if left <= 0:
                again.append((pod, n))
            else:
                waits.append(left + 0.001)
    prune = rejections.to_prune(kept, kept_pods)
    return RefusedPlan(notes, orders, tuple(tell), tuple(prune), tuple(again), min(waits, default=None))

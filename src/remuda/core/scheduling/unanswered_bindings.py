"""A binding that was sent and not answered: the API may have done it, may do it yet, or never heard of it. Pure.

Until that is known the devices count as taken, or they could be given to two pods. The pod itself knows: it is read again. One
that has no node yet gets the same binding once more, to the same devices, so it does not matter which of the two arrives. Only
when the pod is gone, or nobody works on the first any more, are the devices free.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.scheduling.placement_request import Assignment

IN_FLIGHT_S = 60.0  # as long as an API server works on a request (kube-apiserver's --request-timeout)


class UnansweredBinding(msgspec.Struct, frozen=True):
    assignment: Assignment
    sent_at: float  # Unix seconds, of the last time


class BindingStep(Enum):
    DONE = "done"  # it was done, by us or by somebody else: the informer will show it
    SEND_AGAIN = "send again"
    FREE = "free"


def is_binding_in_doubt(error: Exception) -> bool:
    """Whether a binding that failed so may have been done. A refusal is an answer."""
    return not isinstance(error, ApiError) or error.code >= 500


def plan_unanswered_binding(binding: UnansweredBinding, pod: Pod | None, now: float) -> BindingStep:
    """`pod`: as the API has it now; None = there is none of that name."""
    if pod is None or pod.uid != binding.assignment.pod.uid or pod.is_terminal:
        return BindingStep.FREE
    if pod.spec.node_name:
        return BindingStep.DONE
    is_late = now - binding.sent_at >= IN_FLIGHT_S
    return BindingStep.FREE if is_late or pod.is_deleting else BindingStep.SEND_AGAIN

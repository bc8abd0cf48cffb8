"""What becomes of a binding without an answer."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.errors import ApiError, Conflict, NotFound, TooManyRequests, Unavailable
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.scheduling.placement_request import Assignment, placement_ask_of_pod
from remuda.core.scheduling.unanswered_bindings import (
    IN_FLIGHT_S,
    BindingStep,
    UnansweredBinding,
    is_binding_in_doubt,
    plan_unanswered_binding,
)
from tests.builders.happenings import after
from tests.builders.pods import a_pod

WAITS = a_pod("p", uid="u", node="")
SENT = UnansweredBinding(Assignment(placement_ask_of_pod(WAITS), "n1", ("gpu-0",)), 100.0)
LEAVING = replace(WAITS, metadata=replace(WAITS.metadata, deletion_timestamp=after(0.0)))
ENDED = replace(WAITS, status=replace(WAITS.status, phase="Failed"))


@pytest.mark.parametrize(
    ("pod", "waited_s", "step"),
    [
        (WAITS, 1.0, BindingStep.SEND_AGAIN),
        (WAITS, IN_FLIGHT_S, BindingStep.FREE),
        (a_pod("p", uid="u", node="n1"), 1.0, BindingStep.DONE),
        (a_pod("p", uid="u", node="n1"), IN_FLIGHT_S, BindingStep.DONE),
        (a_pod("p", uid="u", node="n9"), 1.0, BindingStep.DONE),
        (a_pod("p", uid="another", node="n1"), 1.0, BindingStep.FREE),
        (LEAVING, 1.0, BindingStep.FREE),
        (ENDED, 1.0, BindingStep.FREE),
        (None, 1.0, BindingStep.FREE),
    ],
)
def test_the_pod_says_what_became_of_the_binding(pod: Pod | None, waited_s: float, step: BindingStep) -> None:
    assert plan_unanswered_binding(SENT, pod, 100.0 + waited_s) is step


@pytest.mark.parametrize(
    "error", [Unavailable("no"), ApiError("etcd timed out"), TimeoutError(), OSError(), KeyError()]
)
def test_no_answer_leaves_doubt(error: Exception) -> None:
    assert is_binding_in_doubt(error)


@pytest.mark.parametrize("error", [Conflict("no"), NotFound("no"), TooManyRequests("no"), ApiError("no", code=403)])
def test_a_refusal_is_an_answer(error: Exception) -> None:
    assert not is_binding_in_doubt(error)

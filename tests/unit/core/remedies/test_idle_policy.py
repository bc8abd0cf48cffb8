"""Idle devices: whom a policy reaches, and when."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.codec import from_wire
from remuda.api.devices import NodeDevices, Observed, ObservedDevice, Verdict
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.api.names import ANNOTATION_SPARE
from remuda.api.remedies import Idle, Mode, Pause, RemedyPolicy, RemedyPolicySpec
from remuda.api.training import TrainingJob
from remuda.core.remedies.idle_devices import DEVICE_IDLE, GRACE_S, IdlePlan, IdlePod, idle_pods, plan_idle_pods
from tests.builders.pods import a_pod

NOW = 1_000_000.0
AFTER_S = 600.0


def policy(*, mode: Mode = Mode.AUTO, pause: Pause | None = None, **rule: Any) -> RemedyPolicy:
    idle = Idle(**{"after_seconds": AFTER_S, "action": "Reclaim", **rule})
    spec = RemedyPolicySpec(idle=idle, mode=mode, pause=pause)
    return RemedyPolicy(metadata=ObjectMeta(name="default"), spec=spec)


def pod(told_at: float | None = None, *, job: bool = False, **more: Any) -> Pod:
    owner = {"apiVersion": "v1", "kind": "TrainingJob", "name": "job", "uid": "uid-job", "controller": True}
    conditions = []
    if told_at is not None:
        conditions = [{"type": DEVICE_IDLE, "status": "True", "lastTransitionTime": to_time(told_at)}]
    meta: JsonObject = {"ownerReferences": [owner]} if job else {}
    status = {"phase": "Running", "conditions": conditions}
    return a_pod("p", devices=("gpu-0", "gpu-1"), meta=meta, status=status, **more)


def a_job(phase: str = "Running", **status: Any) -> TrainingJob:
    member = {"rank": 0, "role": "worker", "pod": "p", "uid": "uid-1", "node": "node-01"}
    body = {"metadata": {"name": "job", "uid": "uid-job"}, "status": {"phase": phase, "members": [member], **status}}
    return from_wire(TrainingJob, body)


def look(
    held: Pod, *idle_for: float | None, rule: RemedyPolicy | None = None, job: TrainingJob | None = None
) -> tuple[list[IdlePod], IdlePlan]:
    """`idle_for`: per device, seconds; None = used."""
    rows = [
        ObservedDevice(f"gpu-{ix}", "H100", idle_since=None if since is None else to_time(NOW - since))
        for ix, since in enumerate(idle_for)
    ]
    verdicts = [Verdict(row.id) for row in rows]
    node = NodeDevices(metadata=ObjectMeta(name="node-01"), observed=Observed(devices=rows), verdicts=verdicts)
    found = idle_pods(node, [held], {}, [rule or policy()], lambda namespace, name: job, NOW)
    return found, plan_idle_pods(found, [held], NOW)


def test_it_is_told_in_time() -> None:
    found, plan = look(pod(), AFTER_S + 50, AFTER_S - 10)
    assert (found[0].next_step, found[0].next_at) == ("Warn", NOW + 10)
    assert plan.tell == ()
    assert plan.look_again_s == pytest.approx(10.0, abs=0.1)
    assert [p.name for p, _, _ in look(pod(), AFTER_S + 50, AFTER_S + 1)[1].tell] == ["p"]


def test_hours_and_cost_are_of_the_idle_devices() -> None:
    found, _ = look(pod(), 3600.0, 7200.0, rule=policy(gpu_hour_price=2.0))
    assert (found[0].idle_gpu_hours, found[0].cost) == (3.0, 6.0)


def test_it_goes_a_while_after_it_was_told() -> None:
    assert look(pod(NOW - GRACE_S + 5), 5000.0, 5000.0)[1].reclaim == ()
    plan = look(pod(NOW - GRACE_S - 5), 5000.0, 5000.0)[1]
    assert [p.name for p, _ in plan.reclaim] == ["p"]
    assert look(pod(NOW - GRACE_S - 5), 5000.0, 5000.0, rule=policy(action="Warn"))[1].reclaim == ()


def test_a_policy_that_observes_or_is_paused_takes_nobody_off() -> None:
    told = pod(NOW - GRACE_S - 5)
    observing = policy(mode=Mode.OBSERVE)
    assert look(told, 5000.0, 5000.0, rule=observing)[1].reclaim == ()
    assert [p.name for p, _, _ in look(pod(), 5000.0, 5000.0, rule=observing)[1].tell] == ["p"], (
        "it is told all the same"
    )
    for_ever, an_hour, over = (Pause(until=until) for until in (None, to_time(NOW + 3600), to_time(NOW - 1)))
    assert look(told, 5000.0, 5000.0, rule=policy(pause=for_ever))[1].reclaim == ()
    plan = look(told, 5000.0, 5000.0, rule=policy(pause=an_hour))[1]
    assert plan.reclaim == ()
    assert plan.look_again_s == pytest.approx(3600.0, abs=0.1)
    assert len(look(told, 5000.0, 5000.0, rule=policy(pause=over))[1].reclaim) == 1


@pytest.mark.parametrize(
    ("held", "rule", "idle_for", "why"),
    [
        (pod(0), policy(after_seconds=0.0), (5000.0, 5000.0), "no policy"),
        (pod(0), policy(exempt_namespaces=["default"]), (5000.0, 5000.0), "exempt"),
        (pod(0, namespace="kube-system"), policy(), (5000.0, 5000.0), "exempt"),
        (pod(0), policy(), (5000.0, None), "partly used"),
        (pod(0, annotations={ANNOTATION_SPARE: "true"}), policy(), (5000.0, 5000.0), "a spare"),
    ],
)
def test_who_is_left_alone(held: Pod, rule: RemedyPolicy, idle_for: tuple[float | None, ...], why: str) -> None:
    found, plan = look(held, *idle_for, rule=rule)
    assert why in found[0].exempt
    assert (plan.reclaim, plan.suspend) == ((), ())


@pytest.mark.parametrize(
    ("job", "is_suspended"),
    [
        (a_job(), True),
        (a_job("Pending"), False),
        (
            a_job(checkpointRequest={"id": 1, "attempt": 1, "askedAt": to_time(NOW), "deadline": to_time(NOW + 9)}),
            False,
        ),
        (a_job(checkpointRequest={"id": 1, "attempt": 1, "askedAt": to_time(NOW), "deadline": to_time(NOW - 9)}), True),
        (None, False),
    ],
)
def test_a_training_job_is_suspended_but_never_in_the_middle_of_something(
    job: TrainingJob | None, is_suspended: bool
) -> None:
    plan = look(pod(0, job=True), 5000.0, 5000.0, job=job)[1]
    assert bool(plan.suspend) is is_suspended
    assert plan.reclaim == ()


def test_who_uses_its_devices_again_is_told_that() -> None:
    plan = look(pod(NOW - 10), None, None)[1]
    assert [c.status for _, conditions, _ in plan.tell for c in conditions] == ["False"]

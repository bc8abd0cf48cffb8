"""Objects that only an API server without our admission would take (a CRD checks types, not sense).

Whoever they are for says so in a condition, touches nothing on their word, and looks after everybody else as before.
"""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.drills import DrillKind
from remuda.api.incidents import Incident, IncidentSpec, Subject, SubjectKind
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import ObjectMeta
from remuda.api.remedies import Breaker, Hook, Ladder, Limits, PolicySelector, RemedyPolicy, RemedyPolicySpec
from remuda.api.rollouts import NodeRollout, NodeRolloutSpec, RolloutPhase
from remuda.api.training import TrainingJob
from tests.builders.world import NAMESPACE, World, in_world
from tests.component.world_rig import policy

HELD, FREE, DEVICE = "node-01", "node-02", "gpu-2"


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.embedded.apiserver.objects.check_own_kind", lambda kind, body, old=None: None)


def incident_of(world: World, node: str) -> Incident | None:
    return next((i for i in world._read_all(Incident) if i.spec.subject.node == node and i.spec.subject.device), None)


BROKEN: dict[str, Any] = {
    "limits": RemedyPolicySpec(limits=Limits(pool="plenty")),
    "breaker": RemedyPolicySpec(breaker=Breaker(share="half")),
    "ladder": RemedyPolicySpec(ladders=[Ladder("*", [])]),
}


@in_world(nodes=4)
@pytest.mark.parametrize("what", BROKEN)
async def test_a_policy_that_makes_no_sense_only_observes_and_says_so(world: World, what: str) -> None:
    await world.sleep(2.0)
    await world.cluster.api.patch(Node, HELD, {"metadata": {"labels": {"pool": "odd"}}})
    selector = PolicySelector(nodes={"pool": "odd"})
    spec = BROKEN[what]
    broken = RemedyPolicySpec(selector=selector, limits=spec.limits, breaker=spec.breaker, ladders=spec.ladders)
    await world.cluster.api.create(RemedyPolicy, RemedyPolicy(metadata=ObjectMeta(name="odd"), spec=broken))
    await world.until(lambda: is_condition_true(policy(world, "odd").status.conditions, "Invalid"), 10.0)
    assert policy(world, "odd").status.nodes == 1

    for node in (HELD, FREE):
        await world.drill(DrillKind.DEVICE_FAIL, node=node, device=DEVICE, code="xid-48")
    await world.until(lambda: DEVICE in world.devices(FREE).quarantine, 30.0)  # another policy's: as ever
    await world.sleep(30.0)
    assert not world.devices(HELD).quarantine
    assert not world.devices(HELD).orders
    seen = incident_of(world, HELD)
    assert seen is not None
    assert [r.outcome.value for r in seen.status.remedies] == ["ObserveOnly"]

    good = RemedyPolicySpec(selector=selector)
    await world.cluster.api.replace(RemedyPolicy, RemedyPolicy(metadata=ObjectMeta(name="odd"), spec=good))
    await world.until(lambda: DEVICE in world.devices(HELD).quarantine, 30.0)
    cured = find_condition(policy(world, "odd").status.conditions, "Invalid")
    assert cured is not None
    assert cured.status == "False"


@in_world(nodes=4)
async def test_a_running_job_that_is_edited_into_nonsense_goes_on_untouched(world: World) -> None:
    await world.submit("other", replicas=1, rack=False)
    await world.submit("job", replicas=2, rack=False)
    await world.running("job")
    await world.running("other")
    gang, attempt = world.gang("job"), world.job("job").status.attempt
    nonsense = {"spec": {"failure": {"stopDeadlineSeconds": -1, "rules": [{"action": "Fail", "logPattern": "(("}]}}}
    await world.cluster.api.patch(TrainingJob, "job", nonsense, NAMESPACE)
    await world.until(lambda: is_condition_true(world.job("job").status.conditions, "Invalid"), 10.0)
    await world.kill_process("other")
    await world.running("other", attempt=2)  # others are looked after
    assert (world.gang("job"), world.job("job").status.attempt) == (gang, attempt)
    assert {uid for uid, _ in world.children()} >= {seat.uid for seat in gang.values()}

    sense = {"spec": {"failure": {"stopDeadlineSeconds": None, "rules": None}}}
    await world.cluster.api.patch(TrainingJob, "job", sense, NAMESPACE)
    await world.until(lambda: not is_condition_true(world.job("job").status.conditions, "Invalid"), 10.0)
    await world.kill_process("job")
    await world.running("job", attempt=attempt + 1)


@in_world(nodes=4)
async def test_a_job_whose_roles_wait_for_each_other_is_told_so_and_makes_no_pod(world: World) -> None:
    template = {"spec": {"containers": [{"name": "main", "command": ["train"]}]}}
    roles = [{"name": a, "after": [{"role": b}], "template": template} for a, b in (("a", "b"), ("b", "a"))]
    body = {"metadata": {"name": "circle", "namespace": NAMESPACE}, "spec": {"roles": roles}}
    await world.cluster.api.create(TrainingJob, body)
    await world.until(lambda: world.job("circle").status.reason == "RolesInACircle", 10.0)
    await world.submit("job", replicas=1, rack=False)
    await world.running("job")
    assert not world.pods("circle")


@in_world(nodes=4)
async def test_a_rollout_that_makes_no_sense_is_stopped_before_it_begins(world: World) -> None:
    await world.sleep(2.0)
    spec = NodeRolloutSpec(hook=Hook(command=["reinstall"]), max_unavailable="a few")
    await world.cluster.api.create(NodeRollout, NodeRollout(metadata=ObjectMeta(name="driver"), spec=spec))

    def rollout() -> NodeRollout:
        found = world._read(NodeRollout, "driver")
        assert found is not None
        return found

    await world.until(lambda: rollout().status.phase is RolloutPhase.STOPPED, 10.0)
    assert rollout().status.stopped_because.startswith("InvalidHook: ")
    await world.sleep(30.0)
    assert not rollout().status.steps
    assert not any(n.spec.unschedulable for n in world._read_all(Node))


@in_world(nodes=4)
async def test_incidents_that_somebody_made_up_touch_nothing(world: World) -> None:
    await world.sleep(2.0)
    subjects = [
        Subject(SubjectKind.DEVICE),
        Subject(SubjectKind.DEVICE, node="nowhere", device="gpu-0"),
        Subject(SubjectKind.DEVICE, node=FREE, device="gpu-99"),
        Subject(SubjectKind.DEVICE, node=FREE, device=DEVICE),
        Subject(SubjectKind.NODE, node=FREE, gang="both", domain="="),
        Subject(SubjectKind.GANG, gang="\x1b[2J"),
        Subject(SubjectKind.DOMAIN, domain="=="),
    ]
    for number, subject in enumerate(subjects):
        spec = IncidentSpec(subject)
        await world.cluster.api.create(Incident, Incident(metadata=ObjectMeta(name=f"fake-{number}"), spec=spec))
    await world.sleep(30.0)
    assert not world.devices(FREE).quarantine
    assert not world.devices(FREE).orders
    assert not any(n.spec.unschedulable for n in world._read_all(Node))
    await world.drill(DrillKind.DEVICE_FAIL, node=HELD, device=DEVICE, code="xid-48")
    await world.until(lambda: DEVICE in world.devices(HELD).quarantine, 30.0)

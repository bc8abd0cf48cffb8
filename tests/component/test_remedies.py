"""The device ladder on a whole embedded cluster in virtual time: real agents that probe, reset and reboot simulated hardware."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from remuda.api.core_v1 import Node, Pod
from remuda.api.drills import DrillKind
from remuda.api.incidents import Incident, RemedyRecord
from remuda.api.meta import JsonObject, KObject, ObjectMeta, Resource
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY
from remuda.api.policy_v1 import PodDisruptionBudget
from remuda.api.remedies import (
    Action,
    Breaker,
    Drain,
    Hook,
    Ladder,
    Limits,
    Mode,
    RemedyPolicy,
    RemedyPolicySpec,
    Rung,
    Soak,
)
from remuda.controllers.remedy_hooks import dynamic_kind
from remuda.core.failure.rungs import device_records, is_under_remedy
from tests.builders.foreign import bare, one_running, tell
from tests.builders.world import NAMESPACE, World, in_world

NODE, DEVICE = "node-03", "gpu-2"


async def fail(world: World, code: str = "xid-48", node: str = NODE, device: str = DEVICE) -> None:
    await world.drill(DrillKind.DEVICE_FAIL, node=node, device=device, code=code)


async def set_policy(world: World, name: str = "default", **spec: Any) -> None:
    body = RemedyPolicy(metadata=ObjectMeta(name=name), spec=RemedyPolicySpec(**spec))
    await world.cluster.api.create(RemedyPolicy, body)
    await world.sleep(1.0)


def incidents(world: World) -> list[Incident]:
    return [i for i in world._read_all(Incident) if i.spec.subject.device]


def the_incident(world: World) -> Incident | None:
    found = incidents(world)
    assert len(found) <= 1, [i.name for i in found]
    return found[0] if found else None


def records(world: World) -> dict[str, RemedyRecord]:
    found = the_incident(world)
    return device_records(found.status.remedies) if found is not None else {}


def outcomes(world: World) -> dict[str, str]:
    return {key: r.outcome.value for key, r in records(world).items()}


def node(world: World, name: str = NODE) -> Node:
    found = world._read(Node, name)
    assert found is not None
    return found


def is_quarantined(world: World, name: str = NODE, device: str = DEVICE) -> bool:
    return device in world.devices(name).quarantine


def assert_untouched(world: World, name: str = NODE) -> None:
    marks = (ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY)
    assert not node(world, name).spec.unschedulable
    assert not [mark for mark in marks if mark in node(world, name).annotations]
    assert not world.devices(name).orders


def carried_out(world: World, name: str = NODE) -> list[str]:
    return [a.id.rpartition(".")[2] for a in world.devices(name).observed.answers]


@in_world(nodes=4)
async def test_row_39_a_failed_device_comes_back_after_a_reset_a_probe_and_a_soak(world: World) -> None:
    await world.sleep(2.0)
    await fail(world)
    await world.until(lambda: outcomes(world).get("probe-reset-1") == "Succeeded", 30.0)
    assert outcomes(world) == {"probe-1": "Failed", "reset-1": "Succeeded", "probe-reset-1": "Succeeded"}
    await world.sleep(590.0)
    assert is_quarantined(world), "not before the soak has ended"
    await world.until(lambda: not is_quarantined(world), 30.0)
    await world.until(lambda: the_incident(world).status.outcome == "Cured", 60.0)  # type: ignore[union-attr]
    assert_untouched(world)


@in_world(nodes=4)
async def test_row_11_quarantine_and_ladder_survive_the_control_plane(world: World) -> None:
    await world.sleep(2.0)
    await fail(world)
    await world.until(lambda: outcomes(world).get("probe-reset-1") == "Succeeded", 30.0)
    for _ in range(3):
        await world.restart_control_plane()
        await world.sleep(60.0)
        assert is_quarantined(world)
    assert carried_out(world) == ["probe-1", "reset-1", "probe-reset-1"], "nothing is remediated twice"
    await world.until(lambda: not is_quarantined(world), 500.0)


@pytest.mark.parametrize("writes", range(1, 12))
def test_a_control_plane_killed_at_any_write_of_a_reboot_is_followed_by_one_that_goes_on(writes: int) -> None:
    @in_world(nodes=4, seed=writes)
    async def story(world: World) -> None:
        await world.sleep(2.0)
        world.manager.after(writes)
        await fail(world, "xid-79")
        await world.kill_control_plane(within=30.0)
        await world.until(lambda: outcomes(world).get("probe-reboot-1") == "Succeeded", 120.0)
        assert len(carried_out(world)) == len(set(carried_out(world)))
        await world.until(lambda: not is_quarantined(world), 700.0)
        await world.sleep(5.0)
        assert_untouched(world)

    story()


@in_world(nodes=4)
async def test_a_node_is_worked_on_for_one_incident_at_a_time(world: World) -> None:
    """Two devices that need a reboot: one reboot cures both."""
    seen: set[str] = set()
    await world.sleep(2.0)
    await fail(world, "xid-79")
    await fail(world, "xid-79", device="gpu-5")

    def both() -> bool:
        seen.add(node(world).annotations.get(ANNOTATION_REMEDY_BY, ""))
        return not is_quarantined(world) and not is_quarantined(world, device="gpu-5") and len(incidents(world)) == 2

    await world.until(lambda: all(not i.is_open for i in incidents(world)) and both(), 1500.0)
    reboots = [key for key in carried_out(world) if key.startswith("reboot")]
    assert len(reboots) == 1
    assert_untouched(world)


@in_world(nodes=10)
async def test_row_42_a_storm_is_held_back_and_ends_by_itself(world: World) -> None:
    await world.sleep(2.0)
    await set_policy(
        world,
        limits=Limits(pool="20%"),
        soak=Soak(seconds=30.0),
        breaker=Breaker(share="40%", at_least=3, window_seconds=60.0, cooldown_seconds=120.0),
    )
    most = 0
    for name in [f"node-{i:02d}" for i in range(1, 9)]:
        await fail(world, node=name)
    await world.sleep(5.0)

    def policy() -> RemedyPolicy:
        found = world._read(RemedyPolicy, "default")
        assert found is not None
        return found

    def sample() -> bool:
        nonlocal most
        active = {i.spec.subject.node for i in incidents(world) if is_under_remedy(i)}
        most = max(most, len(active))
        return all(not i.is_open for i in incidents(world))

    assert policy().status.breaker.open
    assert policy().status.held_back > 0
    assert policy().status.nodes == 10
    held = [r for i in incidents(world) for r in i.status.remedies if r.outcome == "HeldBack"]
    assert {r.reason for r in held} & {"BreakerOpen"}
    await world.until(sample, 3000.0)
    assert 0 < most <= 2
    await world.sleep(130.0)
    assert not policy().status.breaker.open
    assert policy().status.held_back == 0


@in_world(nodes=4)
async def test_a_pause_holds_new_remedies_and_gives_devices_back(world: World) -> None:
    await world.sleep(2.0)
    await set_policy(world, soak=Soak(seconds=30.0))
    await fail(world)
    await world.until(lambda: outcomes(world).get("probe-reset-1") == "Succeeded", 10.0)
    api = world.cluster.api
    await api.patch(RemedyPolicy, "default", {"spec": {"pause": {"by": "eva", "message": "power work"}}})
    await fail(world, node="node-01")
    await world.until(lambda: not is_quarantined(world), 60.0)
    other = next(i for i in incidents(world) if i.spec.subject.node == "node-01")
    assert [(r.outcome.value, r.reason) for r in other.status.remedies] == [("HeldBack", "Paused")]
    await api.patch(RemedyPolicy, "default", {"spec": {"pause": None}})
    await world.until(lambda: all(not i.is_open for i in incidents(world)), 200.0)


@in_world(nodes=4)
async def test_a_policy_that_only_observes_leaves_everything_as_it_is(world: World) -> None:
    await world.sleep(2.0)
    await set_policy(world, mode=Mode.OBSERVE)
    await fail(world, "xid-79")
    await world.sleep(1000.0)
    assert outcomes(world) == {"probe-1": "ObserveOnly"}
    assert not carried_out(world)
    assert not is_quarantined(world)
    assert_untouched(world)


@in_world(nodes=4)
async def test_somebody_elses_cordon_is_left_alone(world: World) -> None:
    await world.sleep(2.0)
    await world.cluster.api.patch(Node, NODE, {"spec": {"unschedulable": True}})
    await fail(world, "xid-79")
    await world.sleep(300.0)
    assert records(world)["probe-1"].reason == "NodeTakenByOther"
    assert not carried_out(world)
    await world.cluster.api.patch(Node, NODE, {"spec": {"unschedulable": None}})
    await world.until(lambda: outcomes(world).get("probe-reboot-1") == "Succeeded", 60.0)
    await world.sleep(1.0)
    assert_untouched(world)


def test_row_36_one_failed_device_does_not_cost_the_other_seven() -> None:
    async def story(world: World) -> None:
        await bare(world, "solo", gpus=1)
        pod = await one_running(world, "solo")
        free = next(d.id for d in world.devices(pod.spec.node_name).observed.devices if d.id not in _held(world, pod))
        await fail(world, "xid-79", pod.spec.node_name, free)
        await world.sleep(600.0)
        assert is_quarantined(world, pod.spec.node_name, free)
        assert records(world)["reboot-1"].reason == "NodeInUse"
        still = world.pod("solo")
        assert still is not None
        assert still.uid == pod.uid
        assert not node(world, pod.spec.node_name).spec.unschedulable
        await bare(world, "more", gpus=1)  # and the node is still placed on
        await one_running(world, "more")

    tell(story)


def _held(world: World, pod: Pod) -> set[str]:
    return {d for h in world.devices(pod.spec.node_name).observed.holdings if h.uid == pod.uid for d in h.devices}


def test_row_75_a_budget_that_allows_nothing_does_not_hold_a_drain_up_for_ever() -> None:
    async def story(world: World) -> None:
        drain = Drain(patience_seconds=0.0, checkpoint_seconds=10.0, deadline_seconds=120.0)
        await set_policy(world, drain=drain, soak=Soak(seconds=10.0))
        await bare(world, "solo", gpus=1)
        pod = await one_running(world, "solo")
        budget: JsonObject = {"selector": {"matchLabels": {"app": "solo"}}, "minAvailable": 1}
        meta = {"name": "all", "namespace": NAMESPACE}
        await world.cluster.api.create(PodDisruptionBudget, {"metadata": meta, "spec": budget})
        await world.sleep(5.0)
        free = next(d.id for d in world.devices(pod.spec.node_name).observed.devices if d.id not in _held(world, pod))
        started = world.now
        await fail(world, "xid-79", pod.spec.node_name, free)
        await world.until(lambda: "drain-reboot-1" in outcomes(world), 30.0)
        await world.sleep(60.0)
        assert world.pod("solo") is not None, "the budget is honoured until the deadline"
        await world.until(lambda: outcomes(world).get("probe-reboot-1") == "Succeeded", 200.0)
        await world.sleep(1.0)
        assert world.now - started < 300.0
        assert world.pod("solo") is None
        assert not node(world, pod.spec.node_name).spec.unschedulable

    tell(story)


@in_world(nodes=6)
async def test_row_75_a_gang_on_a_node_that_is_drained_goes_on_elsewhere(world: World) -> None:
    drain = Drain(patience_seconds=0.0, checkpoint_seconds=30.0, deadline_seconds=300.0)
    await set_policy(world, drain=drain, soak=Soak(seconds=10.0))
    await world.submit("job", replicas=2, gpus=4, rack=False)
    await world.running("job")
    seat = world.gang("job")[0]
    free = next(d.id for d in world.devices(seat.node).observed.devices if d.id not in seat.devices)
    await fail(world, "xid-79", seat.node, free)
    await world.until(lambda: outcomes(world).get("probe-reboot-1") == "Succeeded", 600.0)
    await world.running("job", attempt=2, within=120.0)
    assert_untouched(world, seat.node)


@in_world(nodes=4)
async def test_overlapping_policies_say_so_and_the_first_name_is_taken(world: World) -> None:
    await set_policy(world, "b", mode=Mode.OBSERVE)
    await set_policy(world, "a", mode=Mode.AUTO)
    await world.sleep(5.0)
    for name in ("a", "b"):
        found = world._read(RemedyPolicy, name)
        assert found is not None
        condition = next(c for c in found.status.conditions if c.type == "Overlaps")
        assert condition.status == "True"
        assert "a is taken" in condition.message
    await fail(world)
    await world.until(lambda: outcomes(world).get("reset-1") == "Succeeded", 30.0)


CRD: JsonObject = {
    "metadata": {"name": "repairs.dc.example"},
    "spec": {
        "group": "dc.example",
        "scope": "Cluster",
        "names": {"kind": "Repair", "plural": "repairs"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


class Crd(KObject, frozen=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
    )


def test_a_hook_that_is_an_object_is_made_once_and_its_conditions_are_believed() -> None:
    body: JsonObject = {"apiVersion": "dc.example/v1", "kind": "Repair", "spec": {"node": "{node}", "of": "{device}"}}
    hook = Hook(object=body, success_condition="Done", failure_condition="GaveUp")

    async def story(world: World) -> None:
        api = world.cluster.api
        await api.create(Crd, CRD)
        rungs = [Rung(Action.REPLACE, attempts=2, timeout_seconds=600.0, hook=hook), Rung(Action.TICKET)]
        await set_policy(world, ladders=[Ladder("ResetDevice", rungs)], soak=Soak(seconds=10.0))
        await fail(world, node="node-03")
        await world.until(lambda: outcomes(world).get("replace-1") == "Running", 30.0)
        await world.restart_control_plane()
        await world.sleep(30.0)
        kind = dynamic_kind({**body, "metadata": {}})
        made = (await api.list(kind)).items
        assert len(made) == 1
        assert made[0].name.endswith("-replace-1")
        conditions = [{"type": "GaveUp", "status": "True", "message": "no such slot"}]
        await api.patch(kind, made[0].name, {"status": {"conditions": conditions}}, subresource="status")
        await world.until(lambda: outcomes(world).get("replace-1") == "Failed", 30.0)
        assert records(world)["replace-1"].message == "no such slot"
        await world.until(lambda: outcomes(world).get("replace-2") == "Running", 30.0)
        await world.sleep(10.0)
        other = next(o for o in (await api.list(kind)).items if o.name.endswith("-replace-2"))
        done = {"status": {"conditions": [{"type": "Done", "status": "True"}]}}
        await api.patch(kind, other.name, done, subresource="status")
        await world.until(lambda: outcomes(world).get("replace-2") == "Succeeded", 30.0)
        assert records(world)["replace-2"].via == "object hook"

    tell(story)

"""The device ladder on a whole embedded cluster in virtual time: real agents that probe, reset and reboot simulated hardware."""

from __future__ import annotations

from typing import ClassVar

import pytest

from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject, KObject, Resource
from remuda.api.names import ANNOTATION_REMEDY_BY
from remuda.api.remedies import Action, Hook, Ladder, Mode, RemedyPolicy, Rung, Soak
from remuda.controllers.remedy_hooks import hook_object_kind
from tests.builders.foreign import bare, one_running, tell
from tests.builders.world import World, in_world
from tests.component.world_rig import (
    FAULTY,
    a_free_device,
    assert_untouched,
    carried_out,
    device_incidents,
    drain_at_once,
    fail,
    free_on,
    is_quarantined,
    node_object,
    outcomes,
    protect,
    records,
    set_policy,
    until_done,
)

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes


@pytest.mark.parametrize("writes", range(1, 12))
def test_a_control_plane_killed_at_any_write_of_a_reboot_is_followed_by_one_that_goes_on(writes: int) -> None:
    @in_world(nodes=4, seed=writes)
    async def story(world: World) -> None:
        await world.sleep(2.0)
        world.manager.after(writes)
        await fail(world, "xid-79")
        await world.kill_control_plane(within=30.0)
        await until_done(world, "probe-reboot-1", 120.0)
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
        seen.add(node_object(world, FAULTY).annotations.get(ANNOTATION_REMEDY_BY, ""))
        return (
            not is_quarantined(world)
            and not is_quarantined(world, device="gpu-5")
            and len(device_incidents(world)) == 2
        )

    await world.until(lambda: all(not i.is_open for i in device_incidents(world)) and both(), 1500.0)
    reboots = [key for key in carried_out(world) if key.startswith("reboot")]
    assert len(reboots) == 1
    assert_untouched(world)


@in_world(nodes=4)
async def test_a_pause_holds_new_remedies_and_gives_devices_back(world: World) -> None:
    await world.sleep(2.0)
    await set_policy(world, soak=Soak(seconds=30.0))
    await fail(world)
    await until_done(world, "probe-reset-1", 10.0)
    api = world.cluster.api
    await api.patch(RemedyPolicy, "default", {"spec": {"pause": {"by": "eva", "message": "power work"}}})
    await fail(world, node="node-01")
    await world.until(lambda: not is_quarantined(world), 60.0)
    other = next(i for i in device_incidents(world) if i.spec.subject.node == "node-01")
    assert [(r.outcome.value, r.reason) for r in other.status.remedies] == [("HeldBack", "Paused")]
    await api.patch(RemedyPolicy, "default", {"spec": {"pause": None}})
    await world.until(lambda: all(not i.is_open for i in device_incidents(world)), 200.0)


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
    await world.cluster.api.patch(Node, FAULTY, {"spec": {"unschedulable": True}})
    await fail(world, "xid-79")
    await world.sleep(300.0)
    assert records(world)["probe-1"].reason == "NodeTakenByOther"
    assert not carried_out(world)
    await world.cluster.api.patch(Node, FAULTY, {"spec": {"unschedulable": None}})
    await until_done(world, "probe-reboot-1", 60.0)
    await world.sleep(1.0)
    assert_untouched(world)


def test_row_75_a_budget_that_allows_nothing_does_not_hold_a_drain_up_for_ever() -> None:
    async def story(world: World) -> None:
        await drain_at_once(world, 10.0, 120.0)
        await bare(world, "solo", gpus=1)
        pod = await one_running(world, "solo")
        await protect(world, {"app": "solo"}, 1)
        free = a_free_device(world, pod)
        started = world.now
        await fail(world, "xid-79", pod.spec.node_name, free)
        await world.until(lambda: "drain-reboot-1" in outcomes(world), 30.0)
        await world.sleep(60.0)
        assert world.pod("solo") is not None, "the budget is honoured until the deadline"
        await until_done(world, "probe-reboot-1", 200.0)
        await world.sleep(1.0)
        assert world.now - started < 300.0
        assert world.pod("solo") is None
        assert not node_object(world, pod.spec.node_name).spec.unschedulable

    tell(story)


@in_world(nodes=6)
async def test_row_75_a_gang_on_a_node_that_is_drained_goes_on_elsewhere(world: World) -> None:
    await drain_at_once(world, 30.0, 300.0)
    await world.submit("job", replicas=2, gpus=4, rack=False)
    await world.running("job")
    seat = world.gang("job")[0]
    await fail(world, "xid-79", seat.node, free_on(world, seat.node, seat.devices))
    await until_done(world, "probe-reboot-1", 600.0)
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
        assert "a is used" in condition.message
    await fail(world)
    await until_done(world, "reset-1", 30.0)


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
        await until_done(world, "replace-1", 30.0, "Running")
        await world.restart_control_plane()
        await world.sleep(30.0)
        kind = hook_object_kind({**body, "metadata": {}})
        made = (await api.list(kind)).items
        assert len(made) == 1
        assert made[0].name.endswith("-replace-1")
        conditions = [{"type": "GaveUp", "status": "True", "message": "no such slot"}]
        await api.patch(kind, made[0].name, {"status": {"conditions": conditions}}, subresource="status")
        await until_done(world, "replace-1", 30.0, "Failed")
        assert records(world)["replace-1"].message == "no such slot"
        await until_done(world, "replace-2", 30.0, "Running")
        await world.sleep(10.0)
        other = next(o for o in (await api.list(kind)).items if o.name.endswith("-replace-2"))
        done = {"status": {"conditions": [{"type": "Done", "status": "True"}]}}
        await api.patch(kind, other.name, done, subresource="status")
        await until_done(world, "replace-2", 30.0)
        assert records(world)["replace-2"].via == "object hook"

    tell(story, hook_kinds=("dc.example/v1/Repair",))


POD: JsonObject = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "up", "namespace": "kube-system"}}
ROOT_SHELL = {"containers": [{"name": "c", "image": "x", "securityContext": {"privileged": True}}]}


@pytest.mark.parametrize("allowed", [(), ("dc.example/v1/Repair", "batch/v1/Job@site-hooks")], ids=["none", "others"])
def test_a_policy_makes_no_object_of_a_kind_that_nobody_allowed(allowed: tuple[str, ...]) -> None:
    """A pod in kube-system, with the manager's rights, was one policy away."""

    async def story(world: World) -> None:
        api = world.cluster.api
        rungs = [Rung(Action.REPLACE, hook=Hook(object={**POD, "spec": ROOT_SHELL})), Rung(Action.TICKET)]
        await set_policy(world, ladders=[Ladder("ResetDevice", rungs)])
        await fail(world, node="node-03")
        await until_done(world, "replace-1", 60.0, "Refused")
        found = records(world)["replace-1"]
        assert found.reason == "HookKindNotAllowed"
        assert "Let the hook make a Job" in found.message
        assert [p.name for p in (await api.list(Pod, "kube-system")).items] == []

    tell(story, hook_kinds=allowed)


@in_world(nodes=4)
async def test_a_device_whose_node_left_is_free_again_under_the_next_node_of_that_name(world: World) -> None:
    """Its incident is closed as worked around and keeps the device out; the machine that comes is another one."""
    await world.sleep(2.0)
    await set_policy(world, ladders=[Ladder("ResetDevice", [Rung(Action.PROBE), Rung(Action.TICKET)])])
    await fail(world, heals="replace")
    await until_done(world, "ticket-1", 300.0)
    assert is_quarantined(world)
    await world.cluster.api.delete(Node, FAULTY)
    await world.until(lambda: device_incidents(world)[0].status.outcome == "WorkedAround", 60.0, "its node is gone")
    assert is_quarantined(world), "what is owed is owed"
    await world.until(lambda: world._read(Node, FAULTY) is not None, 120.0, "the node registers again")
    await world.until(lambda: not is_quarantined(world), 60.0, "nothing is owed to another node")

"""Incidents on a whole cluster in virtual time: one per failure, closed when it is over. Rows 31 and 32 are in tests/drills."""

from __future__ import annotations

import pytest

from remuda.api.drills import DrillKind
from remuda.api.incidents import Incident, IncidentOutcome, IncidentPhase, RemedyOutcome, SubjectKind
from remuda.api.meta import ObjectMeta
from remuda.api.remedies import Action, Ladder, RemedyPolicy, RemedyPolicySpec, Rung, Soak
from remuda.core.remedies.rungs import device_remedies
from tests.builders.world import World, in_world
from tests.component import world_rig
from tests.component.world_rig import incidents, only_incident, undo_drill

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes


def explained(world: World) -> bool:
    """Every incident is closed or says what it waits for."""
    return all(i.status.message and (not i.is_open or i.status.opened_at) for i in incidents(world))


async def gang_at_work(world: World) -> None:
    quick = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(soak=Soak(seconds=20)))
    await world.cluster.api.create(RemedyPolicy, quick)
    await world_rig.gang_at_work(world)


@in_world()
async def test_a_crash_of_the_code_is_the_gangs_and_over_past_the_fault(world: World) -> None:
    await gang_at_work(world)
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    await world.until(lambda: incidents(world) and not only_incident(world).is_open, 60.0, "it is past the fault")
    status = only_incident(world).status
    assert (only_incident(world).spec.subject.kind, status.outcome) == (SubjectKind.GANG, IncidentOutcome.CURED)
    assert (status.affected[0].rank, status.affected[0].exit_code) == (2, 137)
    assert status.evidence[0].exit_code == 137


@in_world(lease_s=8.0)
async def test_a_lost_node_is_one_incident_that_its_gang_is_told_in(world: World) -> None:
    await gang_at_work(world)
    node = world.member("job", 1).node
    await world.lose_node(node)
    await world.running("job", attempt=2)
    await world.sleep(30.0)
    incident = only_incident(world)
    assert (incident.spec.subject.kind, incident.spec.subject.node) == (SubjectKind.NODE, node)
    assert [r.key for r in incident.status.remedies if r.target == "default/job"] == ["attempt-2"]
    assert incident.status.affected[0].rank == 1
    assert explained(world)


def lost_ladder(after_s: float) -> RemedyPolicy:
    rungs = [Rung(Action.REBOOT), Rung(Action.TICKET, after_seconds=after_s)]
    ladders = [Ladder("NodeLost", rungs), Ladder("RackSuspect", [Rung(Action.TICKET)])]
    return RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(ladders=ladders))


def outcomes(incident: Incident) -> dict[str, str]:
    return {key: r.reason or r.outcome.value for key, r in device_remedies(incident.status.remedies).items()}


@in_world(lease_s=8.0)
async def test_a_node_that_stays_lost_is_not_cured_and_closed_when_it_is_back(world: World) -> None:
    await world.cluster.api.create(RemedyPolicy, lost_ladder(60.0))
    await world.drill(DrillKind.NODE_PARTITION, node="node-02", seconds=240.0)
    await world.until(
        lambda: incidents(world) and "ticket-1" in outcomes(only_incident(world)), 60.0, "it is held back"
    )
    assert outcomes(only_incident(world)) == {"reboot-1": "NoHook", "ticket-1": "TooEarly"}
    await world.until(
        lambda: only_incident(world).status.outcome is IncidentOutcome.NOT_CURED, 120.0, "the ladder has ended"
    )
    assert only_incident(world).is_open
    await world.until(lambda: "has ended without a cure" in only_incident(world).status.message, 10.0, "it says so")
    await world.until(lambda: not only_incident(world).is_open, 300.0, "it is back")
    assert only_incident(world).status.outcome is IncidentOutcome.CURED


@in_world(nodes=12, racks=3, lease_s=8.0)
async def test_a_rack_that_is_lost_is_told_once_and_its_nodes_are_left_to_people(world: World) -> None:
    await world.cluster.api.create(RemedyPolicy, lost_ladder(60.0))
    rack = sorted(node for node, rack in world.rack_of.items() if rack == world.rack_of["node-01"])
    for node in rack:
        await world.lose_node(node)
    await world.sleep(180.0)
    domain = next(i for i in incidents(world) if i.spec.subject.kind is SubjectKind.DOMAIN)
    assert outcomes(domain) == {"ticket-1": "Succeeded"}
    assert "none of its nodes is recycled automatically" in domain.status.message
    assert f"Waits for {len(rack)} of its {len(rack)} parts" in domain.status.message
    nodes = [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.NODE]
    assert [outcomes(i)["ticket-1"] for i in nodes] == ["PartOfDomain"] * len(rack)
    assert all(domain.name in i.status.message for i in nodes)
    await world.cluster.api.patch(Incident, domain.name, {"spec": {"dismiss": "the rack's feed is off until Monday"}})
    await world.sleep(30.0)
    found = [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.NODE]
    assert {i.status.outcome for i in found} == {IncidentOutcome.NOT_CURED}, "each on its own from here on"


@pytest.mark.parametrize("writes", range(1, 9))
def test_a_manager_killed_between_any_two_writes_leaves_one_incident(writes: int) -> None:
    @in_world(seed=writes)
    async def story(world: World) -> None:
        await gang_at_work(world)
        await world.fail_device(rank=1)
        world.manager.after(writes)
        await world.kill_control_plane(within=20.0)
        await world.running("job", attempt=2)
        await world.sleep(30.0)
        assert only_incident(world).spec.subject.kind is SubjectKind.DEVICE
        workload = [r for r in only_incident(world).status.remedies if r.target == "default/job"]
        assert [(r.key, r.outcome) for r in workload] == [
            (f"attempt-{world.job().status.attempt}", RemedyOutcome.SUCCEEDED)
        ]
        assert explained(world)

    story()


@in_world()
async def test_everything_off_and_on_again_opens_nothing(world: World) -> None:
    """Every lease has run out by then, and every agent tells what it told before."""
    await gang_at_work(world)
    await world.fail_device(rank=1)
    await world.running("job", attempt=2)
    await world.until(lambda: incidents(world) and not only_incident(world).is_open, 120.0, "it is cured")
    before = only_incident(world)
    await world.power_cut(down_s=120.0)
    await world.running("job", attempt=2, within=120.0)
    await world.sleep(120.0)
    devices = [i for i in incidents(world) if i.spec.subject.device]
    assert [i.name for i in devices] == [before.name]
    assert not [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.NODE]


@in_world(nodes=3)
async def test_a_power_cap_is_one_matter_of_its_node_also_for_a_manager_that_is_new(world: World) -> None:
    await world.drill(DrillKind.POWER_CAP, node="node-02", factor=2.0)
    await world.until(lambda: len(incidents(world)) > 1, 30.0, "there are incidents")
    await world.restart_control_plane()
    await world.sleep(20.0)
    [domain] = [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.DOMAIN]
    assert domain.spec.subject.domain == "node/node-02"
    assert "8 of 8 devices of node-02 were slowed down within" in domain.status.message
    assert "PowerCap" in domain.status.message
    parts = [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.DEVICE]
    assert sorted(i.spec.subject.device for i in parts) == [f"gpu-{n}" for n in range(8)]
    assert {i.status.part_of for i in parts} == {domain.name}
    assert sorted(domain.status.parts) == sorted(i.name for i in parts)
    await undo_drill(world)
    await world.until(lambda: not any(i.is_open for i in incidents(world)), 300.0, "all of it is over with the cap")
    assert len(incidents(world)) == 9


@in_world(nodes=12, racks=3)
async def test_devices_that_fail_together_are_parts_of_their_racks_incident(world: World) -> None:
    rack = sorted(node for node, rack in world.rack_of.items() if rack == world.rack_of["node-01"])
    for node in rack:
        await world.drill(DrillKind.DEVICE_FAIL, node=node, device="gpu-0", code="xid-79")
    await world.sleep(10.0)
    domain = next(i for i in incidents(world) if i.spec.subject.kind is SubjectKind.DOMAIN)
    parts = [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.DEVICE]
    assert len(parts) == len(rack)
    assert {i.status.part_of for i in parts} == {domain.name}
    assert sorted(domain.status.parts) == sorted(i.name for i in parts)
    assert explained(world)


@in_world()
async def test_an_operator_dismisses_it(world: World) -> None:
    await gang_at_work(world)
    await world.fail_device(rank=1)
    await world.until(lambda: bool(incidents(world)))
    await world.cluster.api.patch(Incident, only_incident(world).name, {"spec": {"dismiss": "riser swapped by hand"}})
    await world.until(lambda: not only_incident(world).is_open)
    assert only_incident(world).status.outcome is IncidentOutcome.DISMISSED
    await world.sleep(60.0)
    assert only_incident(world).status.phase is IncidentPhase.CLOSED

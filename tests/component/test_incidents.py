"""Incidents on a whole cluster in virtual time: one per failure, everything in it, and it stays when the pods are gone."""

from __future__ import annotations

import pytest

from remuda.api.devices import DeviceState
from remuda.api.drills import DrillKind
from remuda.api.event_v1 import Event
from remuda.api.incidents import Incident, IncidentOutcome, IncidentPhase, RemedyOutcome, SubjectKind
from remuda.api.meta import ObjectMeta
from remuda.api.remedies import RemedyPolicy, RemedyPolicySpec, Soak
from remuda.cli.incidentview import render_incident
from tests.builders.foreign import one_running, submit_job, tell
from tests.builders.world import World, in_world
from tests.component.row_rig import counts_are, machine, notices
from tests.unit.cli.scenes import text_of


def incidents(world: World) -> list[Incident]:
    return world._read_all(Incident)


def only(world: World) -> Incident:
    found = incidents(world)
    assert len(found) == 1, [(i.name, i.status.message) for i in found]
    return found[0]


def explained(world: World) -> bool:
    """Every incident is closed or says what it waits for."""
    return all(i.status.message and (not i.is_open or i.status.opened_at) for i in incidents(world))


async def gang_at_work(world: World) -> None:
    quick = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(soak=Soak(seconds=20)))
    await world.cluster.api.create(RemedyPolicy, quick)
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    await world.step("job", 25)


@in_world()
async def test_row_32_a_broken_device_from_first_signal_to_cure(world: World) -> None:
    await gang_at_work(world)
    lost = world.member("job", 1)
    await world.fail_device(rank=1)
    await world.running("job", attempt=2)
    await world.until(lambda: world.pod(lost.pod) is None, 60.0, "the lost pod is gone")
    await world.sleep(5.0)
    incident = only(world)
    status, subject = incident.status, incident.spec.subject
    assert (subject.kind, subject.node, subject.device) == (SubjectKind.DEVICE, lost.node, lost.devices[0])
    assert (status.verdict.reason, status.verdict.cause) == ("Xid79", "device")
    hit = status.affected[0]
    assert (hit.pod, hit.uid, hit.rank, hit.gang) == (f"default/{lost.pod}", lost.uid, 1, "job")
    assert hit.state is DeviceState.UNHEALTHY, "as it was when the pod died"
    remedy = next(r for r in status.remedies if r.key == "attempt-2")
    recovery = world.recovery()
    assert (remedy.action, remedy.outcome) == ("PromoteSpare", RemedyOutcome.SUCCEEDED)
    assert remedy.price_gpu_hours == recovery.price_gpu_hours
    assert remedy.why_not == recovery.why_not
    assert status.lost_gpu_hours == pytest.approx(recovery.lost_gpu_seconds / 3600, abs=1e-4)
    words = text_of(render_incident(incident, world.loop.clock()), 120)
    for piece in ("Xid79", "rank 1", lost.pod, lost.node, "PromoteSpare", "not RestartInPlace", "was Unhealthy then"):
        assert piece in words, words
    await world.until(lambda: not only(world).is_open, 120.0, "it is cured")
    assert only(world).status.outcome is IncidentOutcome.CURED
    await world.sleep(5.0)
    events = [(e.reason, e.involved_object.kind) for e in world._read_all(Event) if e.reason.startswith("Incident")]
    assert ("IncidentOpened", "Incident") in events
    assert ("IncidentClosed", "Incident") in events


@in_world()
async def test_a_crash_of_the_code_is_the_gangs_and_over_past_the_fault(world: World) -> None:
    await gang_at_work(world)
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    await world.until(lambda: incidents(world) and not only(world).is_open, 60.0, "it is past the fault")
    status = only(world).status
    assert (only(world).spec.subject.kind, status.outcome) == (SubjectKind.GANG, IncidentOutcome.CURED)
    assert (status.affected[0].rank, status.affected[0].exit_code) == (2, 137)
    assert status.evidence[0].exit_code == 137


@in_world()
async def test_row_33_the_crash_first_and_the_device_after(world: World) -> None:
    await gang_at_work(world)
    seat = world.member("job", 1)
    await world.kill_process(rank=1)
    await world.sleep(2.0)
    await world.drill(DrillKind.DEVICE_FAIL, node=seat.node, device=seat.devices[0], code="xid-79")
    await world.running("job", attempt=3)
    await world.sleep(5.0)
    assert world.job().status.used == {"device": 1}
    device, gang = sorted(incidents(world), key=lambda i: i.spec.subject.kind)
    assert (gang.status.outcome, gang.status.part_of) == (IncidentOutcome.MERGED, device.name)
    assert [r.key for r in device.status.remedies if r.key.startswith("attempt")] == ["attempt-2", "attempt-3"]
    assert [e.exit_code for e in device.status.evidence if e.kind == "exit"] == [137]


def test_row_31_a_job_that_is_not_ours_is_named_with_its_exit() -> None:
    async def story(world: World) -> None:
        await submit_job(world, "batch", backoffLimit=3)
        pod = await one_running(world, "batch")
        await world.fail_device_of(pod.name)
        await world.sleep(10.0)
        found = [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.DEVICE]
        assert len(found) == 1, found
        status = found[0].status
        assert (status.affected[0].pod, status.affected[0].gang) == (f"default/{pod.name}", "Job/batch")
        assert (status.affected[0].node, status.affected[0].devices) == (
            pod.spec.node_name,
            [found[0].spec.subject.device],
        )
        assert status.affected[0].state is DeviceState.UNHEALTHY
        assert status.verdict.message

    tell(story)


@in_world(lease_s=8.0)
async def test_a_lost_node_is_one_incident_that_its_gang_is_told_in(world: World) -> None:
    await gang_at_work(world)
    node = world.member("job", 1).node
    await world.lose_node(node)
    await world.running("job", attempt=2)
    await world.sleep(30.0)
    incident = only(world)
    assert (incident.spec.subject.kind, incident.spec.subject.node) == (SubjectKind.NODE, node)
    assert [r.key for r in incident.status.remedies if r.target == "default/job"] == ["attempt-2"]
    assert incident.status.affected[0].rank == 1
    assert explained(world)


@in_world(nodes=4, racks=1)
async def test_row_05_a_kubelet_that_restarts_opens_nothing(world: World) -> None:
    await world.submit("job", replicas=2)
    await world.running("job")
    node = world.gang("job")[0].node
    await machine(world, node).restart()
    await counts_are(world, 0, 0, node)
    await world.until(lambda: "PluginLost" in notices(world, node))
    await counts_are(world, 8, 8, node)
    await world.sleep(200.0)
    assert incidents(world) == []


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
        assert only(world).spec.subject.kind is SubjectKind.DEVICE
        workload = [r for r in only(world).status.remedies if r.target == "default/job"]
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
    await world.until(lambda: incidents(world) and not only(world).is_open, 120.0, "it is cured")
    before = only(world)
    await world.power_cut(down_s=120.0)
    await world.running("job", attempt=2, within=120.0)
    await world.sleep(120.0)
    devices = [i for i in incidents(world) if i.spec.subject.device]
    assert [i.name for i in devices] == [before.name]
    assert not [i for i in incidents(world) if i.spec.subject.kind is SubjectKind.NODE]


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
    await world.cluster.api.patch(Incident, only(world).name, {"spec": {"dismiss": "riser swapped by hand"}})
    await world.until(lambda: not only(world).is_open)
    assert only(world).status.outcome is IncidentOutcome.DISMISSED
    await world.sleep(60.0)
    assert only(world).status.phase is IncidentPhase.CLOSED

"""Rows 31, 32, 34, 35: a device fails under somebody, and its incident and the workload's own policy say what becomes of that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from remuda.api.conditions import is_condition_true
from remuda.api.devices import DeviceState
from remuda.api.drills import DrillKind
from remuda.api.incidents import IncidentOutcome, RemedyOutcome, SubjectKind
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.api.names import ANNOTATION_DEVICE_FAILED, LABEL_GANG
from remuda.api.remedies import RemedyPolicy, RemedyPolicySpec, Soak
from remuda.api.training import DeviceFailedPolicy, Remedy
from remuda.cli.faults.incident_screen import render_incident
from remuda.core.foreign.device_failures import DEVICE_FAILED, DISRUPTION_TARGET, EVICT_FOR_S, RESTART_FOR_S
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.embedded.node.runtime_port import ContainerKey
from tests.builders.evidence import note
from tests.builders.foreign import deploy, one_running, pods_of, read, running, seen_with, submit_job, tell
from tests.builders.world import NAMESPACE, World, in_world
from tests.component.world_rig import incidents, machine, only_incident
from tests.unit.cli.scenes import text_of

# --- one incident -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["crash", "device"])
def test_row_31_a_crash_and_a_bad_device_are_one_incident(first: str) -> None:
    """Of a Job that is not ours."""

    async def story(world: World) -> None:
        await submit_job(world, "batch", backoffLimit=3)
        pod = await one_running(world, "batch")
        node, device = pod.spec.node_name, snapshot_devices_of_pod(pod)[0]

        def crash() -> None:
            machine(world, node).runtime.kill(ContainerKey(pod.uid, "main"))

        if first == "crash":
            crash()
            await world.sleep(2.0)
        await world.drill(DrillKind.DEVICE_FAIL, node=node, device=device, code="xid-79")
        if first == "device":
            crash()
        await world.sleep(10.0)
        incident = only_incident(world)
        subject, status = incident.spec.subject, incident.status
        assert (subject.kind, subject.node, subject.device) == (SubjectKind.DEVICE, node, device)
        hit = status.affected[0]
        assert (hit.pod, hit.uid, hit.gang, hit.node, hit.devices) == (
            f"{NAMESPACE}/{pod.name}",
            pod.uid,
            "Job/batch",
            node,
            [device],
        )
        assert hit.exit_code == 137
        assert status.verdict.reason == "Xid79"
        assert status.verdict.message
        words = text_of(render_incident(incident, world.loop.clock()), 160)
        for piece in (device, node, pod.name, "Job/batch", "137", "Xid79"):
            assert piece in words, words
        note(f"{first} first: one incident with {node}/{device}, Xid79, exit 137, Job/batch")

    tell(story)


@in_world()
async def test_row_31_a_gangs_crash_is_told_in_the_devices_incident(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    await world.step("job", 25)
    seat = world.member("job", 1)
    await world.kill_process(rank=1)
    await world.sleep(2.0)
    await world.drill(DrillKind.DEVICE_FAIL, node=seat.node, device=seat.devices[0], code="xid-79")
    await world.running("job", attempt=3)
    await world.sleep(5.0)
    assert len([i for i in incidents(world) if i.is_open]) == 1
    device, gang = sorted(incidents(world), key=lambda i: i.spec.subject.kind)
    assert (gang.status.outcome, gang.status.part_of) == (IncidentOutcome.MERGED, device.name)
    hit = device.status.affected[0]
    assert (hit.pod, hit.node, hit.rank, hit.gang) == (f"{NAMESPACE}/{seat.pod}", seat.node, 1, "job")
    assert [e.exit_code for e in device.status.evidence if e.kind == "exit"] == [137]
    note(
        "TrainingJob, crash 2 s before Xid79: the crash's incident is merged into the device's, with rank 1 and exit 137"
    )


@in_world()
async def test_row_32_the_incident_shows_the_device_as_it_was(world: World) -> None:
    """From the first signal to the cure; the pod is long gone."""
    quick = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(soak=Soak(seconds=20)))
    await world.cluster.api.create(RemedyPolicy, quick)
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    await world.step("job", 25)
    lost = world.member("job", 1)
    await world.fail_device(rank=1)
    await world.running("job", attempt=2)
    await world.until(lambda: world.pod(lost.pod) is None, 60.0, "the lost pod is gone")
    await world.sleep(5.0)
    incident = only_incident(world)
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
    await world.until(lambda: not only_incident(world).is_open, 120.0, "it is cured")
    assert only_incident(world).status.outcome is IncidentOutcome.CURED
    assert only_incident(world).status.affected[0].state is DeviceState.UNHEALTHY, "also when the device is well again"
    await world.sleep(5.0)
    events = [(e.reason, e.involved_object.kind) for e in world._read_all(Event) if e.reason.startswith("Incident")]
    assert ("IncidentOpened", "Incident") in events
    assert ("IncidentClosed", "Incident") in events
    note(f"pod {lost.pod} gone, device cured: the incident says {hit.devices[0]} was {hit.state} then, rank 1, Xid79")


# --- what a workload wants --------------------------------------------------------------------------------------------


def _wants(word: str) -> dict[str, str]:
    return {ANNOTATION_DEVICE_FAILED: word}


async def _ignore(world: World) -> str:
    await deploy(world, annotations=_wants("ignore"))
    pod = await one_running(world, "web")
    await world.fail_device_of(pod.name)
    await world.until(lambda: is_condition_true(pods_of(world, "web")[0].status.conditions, DEVICE_FAILED))
    await world.sleep(2 * EVICT_FOR_S)
    assert [p.uid for p in running(world, "web")] == [pod.uid]
    return f"says {DEVICE_FAILED} and runs on for {2 * EVICT_FOR_S:.0f} s"


async def _restart(world: World) -> str:
    await deploy(world, annotations=_wants("restart"))
    pod = await one_running(world, "web")
    await world.fail_device_of(pod.name)
    await world.sleep(RESTART_FOR_S - 20)
    assert [p.uid for p in running(world, "web")] == [pod.uid]
    begun = world.now - RESTART_FOR_S + 20
    await world.until(lambda: [p.uid for p in running(world, "web")] not in ([], [pod.uid]), 60.0)
    return f"stays in place, and moves after {world.now - begun:.0f} s because the device stays away"


async def _delete(world: World) -> str:
    await submit_job(world, "web", annotations=_wants("delete"))
    pod = await one_running(world, "web")
    begun = world.now
    await world.fail_device_of(pod.name)
    await world.until(lambda: [p.uid for p in running(world, "web")] not in ([], [pod.uid]), 60.0)
    after = running(world, "web")[0]
    assert (after.spec.node_name, snapshot_devices_of_pod(after)) != (pod.spec.node_name, snapshot_devices_of_pod(pod))
    return f"its Job's next pod runs on another device after {world.now - begun:.1f} s"


async def _gang(world: World) -> str:
    await deploy(world, "ring", replicas=3, gpus=8, annotations={**_wants("gang"), LABEL_GANG: "ring"})
    await deploy(world, "other", gpus=2)
    await world.until(lambda: len(running(world, "ring")) == 3)
    other = await one_running(world, "other")
    before = running(world, "ring")
    marked = [seen_with(world, p.uid, DISRUPTION_TARGET) for p in before]
    await world.fail_device_of(before[0].name)
    gone = {p.uid for p in before}
    # Of four nodes one has a failed device now: two of the three find room.
    await world.until(lambda: len(running(world, "ring")) == 2 and not gone & {p.uid for p in running(world, "ring")})
    assert all(marked), "a member went without a word"
    assert [p.uid for p in running(world, "other")] == [other.uid]
    return "all 3 members are replaced together, a bystander stays"


async def _fail(world: World) -> str:
    await submit_job(world, annotations=_wants("fail"), backoffLimit=6)
    pod = await one_running(world, "batch")
    await world.fail_device_of(pod.name)
    await world.until(lambda: is_condition_true(read(world, Job, "batch").status.conditions, "Failed"), 60.0)
    ended = world.pod(pod.name)
    assert ended is not None
    assert (ended.status.phase, ended.status.reason) == ("Failed", DEVICE_FAILED)
    assert len(pods_of(world, "batch")) == 1
    return f"pod Failed ({DEVICE_FAILED}), its Job too, with 6 tries left"


@pytest.mark.parametrize(
    ("word", "outcome"),
    [("ignore", _ignore), ("restart", _restart), ("delete", _delete), ("gang", _gang), ("fail", _fail)],
    ids=["ignore", "restart", "delete", "gang", "fail"],
)
def test_row_34_each_policy_of_a_pod_has_its_outcome(word: str, outcome: Callable[[World], Awaitable[str]]) -> None:
    async def story(world: World) -> None:
        note(f"{word}: {await outcome(world)}")

    tell(story)


@pytest.mark.parametrize("policy", list(DeviceFailedPolicy))
def test_row_34_each_policy_of_a_training_job_has_its_outcome(policy: DeviceFailedPolicy) -> None:
    @in_world(nodes=6)
    async def story(world: World) -> None:
        quick = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(soak=Soak(seconds=20)))
        await world.cluster.api.create(RemedyPolicy, quick)
        await world.submit("job", replicas=2, spares=1, rack=False, device_failed=policy)
        await world.running("job")
        await world.parked("job", 1)
        await world.step("job", 12)
        before = world.gang()
        await world.fail_device(rank=1)
        if policy is DeviceFailedPolicy.IGNORE:
            await world.sleep(300.0)
            world.assert_kept(before)
            assert world.job().status.recoveries == []
            note(f"TrainingJob {policy}: the same 2 pods after 300 s")
            return
        if policy is DeviceFailedPolicy.FAIL:
            await world.until(lambda: world.job().is_finished)
            status = world.job().status
            assert status.phase == "Failed"
            note(f"TrainingJob {policy}: Failed, {status.reason}")
            return
        await world.running("job", attempt=2, within=900.0)
        after = world.gang()
        moved = [rank for rank in before if after[rank].uid != before[rank].uid]
        want = {
            DeviceFailedPolicy.CHEAPEST: (Remedy.PROMOTE_SPARE, [1]),
            DeviceFailedPolicy.RESTART_IN_PLACE: (Remedy.PROMOTE_SPARE, [1]),
            DeviceFailedPolicy.REPLACE_POD: (Remedy.PROMOTE_SPARE, [1]),
            DeviceFailedPolicy.REPLACE_GANG: (Remedy.REPLACE_GANG, [0, 1]),
        }
        assert (world.recovery().remedy, moved) == want[policy]
        refused = [text for text in world.recovery().why_not if "InPlaceRefused" in text]
        assert bool(refused) is (policy is DeviceFailedPolicy.RESTART_IN_PLACE), world.recovery().why_not
        why = " (InPlaceRefused)" if refused else ""
        note(f"TrainingJob {policy}: {world.recovery().remedy}{why}, {len(moved)} of 2 pods replaced")

    story()


def test_row_35_a_pod_that_restarts_for_ever_moves_to_a_healthy_device() -> None:
    """It never waits in CrashLoopBackOff, and says why before it goes."""

    async def story(world: World) -> None:
        await deploy(world)
        before = await one_running(world, "web")
        told = seen_with(world, before.uid, DEVICE_FAILED)
        waited = _waiting_reasons(world)
        begun = world.now
        await world.fail_device_of(before.name)
        await world.until(lambda: [p.uid for p in running(world, "web")] not in ([], [before.uid]), 40.0)
        took = world.now - begun
        after = running(world, "web")[0]
        assert (after.spec.node_name, snapshot_devices_of_pod(after)) != (
            before.spec.node_name,
            snapshot_devices_of_pod(before),
        )
        assert told, "the condition was never there"
        assert "deletionTimestamp" not in told[0]["metadata"], "the condition came after the end"
        said = next(c for c in told[0]["status"]["conditions"] if c["type"] == DEVICE_FAILED)
        assert said["reason"] == "Xid79"
        assert all(
            word in said["message"] for word in (before.spec.node_name, snapshot_devices_of_pod(before)[0], "xid-79")
        )
        await world.sleep(60.0)
        assert [p.uid for p in running(world, "web")] == [after.uid]
        assert "CrashLoopBackOff" not in waited
        note(
            f"DeviceFailed (Xid79) said first, running on a healthy device after {took:.1f} s, never in CrashLoopBackOff"
        )

    tell(story)


def _waiting_reasons(world: World) -> set[str]:
    """Why containers waited, of every pod that is committed from now on."""
    found: set[str] = set()
    inner = world.journal._see

    def look(event: object) -> None:
        body: JsonObject = event.record.body if hasattr(event, "record") else {}
        if body.get("kind") == Pod.resource.kind:
            for status in body.get("status", {}).get("containerStatuses", ()):
                found.add(status.get("state", {}).get("waiting", {}).get("reason", ""))
        inner(event)  # type: ignore[arg-type]

    world.journal._see = look
    return found

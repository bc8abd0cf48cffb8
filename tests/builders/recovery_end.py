"""What has to be so when the faults are over: every gang and every incident is at an end, or can say what it waits for.

Whether that is true is worked out here from pods, devices and nodes alone, not from what the control plane says. Each function
gives sentences about what is not as it should be; none means all is well.
"""

from __future__ import annotations

from collections import Counter

from remuda.api.conditions import find_condition
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.drills import Drill, DrillKind
from remuda.api.incidents import Incident, IncidentPhase, RemedyOutcome, RemedyRecord, SubjectKind
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import to_seconds
from remuda.api.names import RESOURCE_GPU
from remuda.api.remedies import RemedyPolicy
from remuda.api.training import TrainingJob
from remuda.core.state.snapshot import snapshot_devices_of_pod
from tests.builders.limit_rules import device_rungs, is_at_work
from tests.builders.recoveries import GangPlan, RecoverySchedule
from tests.builders.world import NAMESPACE, World

FAR_S = 300.0  # what comes later than this is not waited for
LIMITS = ("PoolLimit", "RackLimit", "CauseLimit", "TenantLimit", "ReservationLimit")


# --- gangs ------------------------------------------------------------------------------------------------------------


def jobs_not_done(world: World, schedule: RecoverySchedule) -> list[str]:
    plans = {g.name: g for g in schedule.gangs}
    return [f"{job.name}: {why}" for job in world.jobs() if (why := _job_is(world, schedule, plans[job.name], job))]


def _job_is(world: World, schedule: RecoverySchedule, plan: GangPlan, job: TrainingJob) -> str:
    status = job.status
    if job.is_finished:
        if not status.reason:
            return f"{status.phase} without a reason"
        is_kept = status.phase == "Failed"  # for their logs, ended
        left = [p.name for p in world.pods(job.name) if not (is_kept and p.is_terminal)]
        return f"{status.phase} and {left} are left" if left else ""
    if job.spec.suspend:
        left = [p.name for p in world.pods(job.name)]
        return "" if status.phase == "Suspended" and not left else f"suspended, but {status.phase} with {left}"
    if world.is_running(job.name):
        return ""
    if _hangs(world, job):
        return "it hangs and is not found" if plan.hang_after else ""
    if not status.reason or not status.message:
        return f"{status.phase} for no reason"
    if not schedule.quota and plenty_of_room(world, plan):
        return f"{status.phase} ({status.reason}: {status.message}) although there is room"
    return ""


def _hangs(world: World, job: TrainingJob) -> bool:
    members = {m.uid for m in job.status.members}
    return any(child.is_hung for uid, child in world.children() if uid in members)


def plenty_of_room(world: World, plan: GangPlan) -> bool:
    """So many good, empty nodes in one rack that the whole gang fits, however it is placed. Less may do; that is not said."""
    held = {p.spec.node_name for p in world.all_pods() if p.is_live and snapshot_devices_of_pod(p)}
    racks: Counter[str] = Counter()
    for name, node in world.cluster.machines.nodes.items():
        if name not in held and not node.is_lost and _is_good(world, name):
            racks[world.rack_of[name]] += 8 // plan.gpus
    return max(racks.values(), default=0) >= plan.replicas


def _is_good(world: World, name: str) -> bool:
    ledger, node = world._read(NodeDevices, name), world._read(Node, name)
    if ledger is None or node is None or node.spec.unschedulable or node.spec.taints:
        return False
    ready = find_condition(node.status.conditions, "Ready")
    leaving = [
        c for c in node.status.conditions if c.type in ("SpotTermination", "MaintenancePlanned") and c.status == "True"
    ]
    if ready is None or ready.status != "True" or leaving or ledger.withheld or ledger.notices or ledger.quarantine:
        return False
    if node.status.allocatable.get(RESOURCE_GPU) not in (8, "8"):
        return False
    return len(ledger.verdicts) == 8 and all(v.state is DeviceState.HEALTHY for v in ledger.verdicts)


# --- incidents --------------------------------------------------------------------------------------------------------


def incidents_not_done(world: World) -> list[str]:
    """Open incidents that are still under way, or wait for something that is not so."""
    found = []
    for incident in world._read_all(Incident):
        if incident.is_open and (why := _incident_is(world, incident)):
            found.append(f"{incident.name} ({incident.status.message}): {why}")
    return found


def _incident_is(world: World, incident: Incident) -> str:
    status, now = incident.status, world.loop.clock()
    if not status.message:
        return "it does not say what it waits for"
    parts = [i.name for i in world._read_all(Incident) if i.is_open and i.status.part_of == incident.name]
    if parts:
        return "" if any(part in status.message for part in parts) else f"it names none of its parts: {parts}"
    rungs = list(device_rungs(incident).values())
    running = next((r for r in rungs if r.outcome is RemedyOutcome.RUNNING), None)
    if running is not None:
        ends = to_seconds(running.deadline) if running.deadline is not None else now
        return "" if ends > now + FAR_S else f"{running.key} is under way"
    if status.phase is IncidentPhase.VERIFYING and rungs:
        ends = to_seconds(status.soak_until) if status.soak_until is not None else now
        is_silent = not _is_heard(world, incident.spec.subject.node)
        return "" if ends > now + FAR_S or is_silent else "it soaks"
    last = rungs[-1] if rungs else None
    if last is not None and (ladder := find_condition(status.conditions, "Ladder")) and ladder.status == "False":
        return ""
    if last is not None and last.outcome is RemedyOutcome.HELD_BACK:
        return _held_back(world, incident, last)
    if last is not None and last.outcome in (RemedyOutcome.WAITING, RemedyOutcome.OBSERVED):
        return "" if last.key in status.message else "its message does not name what it waits for"
    return _subject_is(world, incident, now)


def _held_back(world: World, incident: Incident, record: RemedyRecord) -> str:
    subject, reason = incident.spec.subject, record.reason
    others = [i for i in world._read_all(Incident) if i.name != incident.name and is_at_work(i)]
    policies = world._read_all(RemedyPolicy)
    match reason:
        case "Paused":
            is_so = any(p.spec.pause is not None for p in policies)
        case "BreakerOpen":
            is_so = not policies  # the built-in one takes its time
        case "DeviceInUse":
            is_so = any(
                p.is_live and p.spec.node_name == subject.node and subject.device in snapshot_devices_of_pod(p)
                for p in world.all_pods()
            )
        case "NodeInUse":
            is_so = not policies and any(p.is_live and p.spec.node_name == subject.node for p in world.all_pods())
        case "TooEarly":
            is_so = not _is_heard(world, subject.node)  # it may come back by itself
        case "PartOfDomain":
            whole = world._read(Incident, incident.status.part_of) if incident.status.part_of else None
            is_so = whole is not None and whole.is_open
        case "NodeGone":
            is_so = world._read(Node, subject.node) is None
        case "NodeBusy":
            # Such a one may take its rungs' whole deadlines, where the node is silent and answers none of them.
            is_so = any(other.spec.subject.node == subject.node and not _soon(world, other) for other in others)
        case "HourLimit":
            name, spec = world.remedies.policy_of(subject.node)
            most = world.remedies.limits.most_an_hour(name, spec)
            is_so = most is not None and world.remedies.limits.begun_within_the_hour(name) >= most
        case _ if reason in LIMITS:
            is_so = any(not _soon(world, other) for other in others)
        case _:
            is_so = False
    return "" if is_so else f"{record.key} is held back: {reason}: {record.message}"


def _soon(world: World, incident: Incident) -> bool:
    """It will make room before long."""
    now = world.loop.clock()
    ends = [r.deadline for r in device_rungs(incident).values() if r.outcome is RemedyOutcome.RUNNING]
    if incident.status.soak_until is not None:
        ends.append(incident.status.soak_until)
    is_silent = not _is_heard(world, incident.spec.subject.node)
    return not is_silent and all(end is None or to_seconds(end) < now + FAR_S for end in ends)


def _subject_is(world: World, incident: Incident, now: float) -> str:
    """Without a ladder that says more: the subject itself must not be well."""
    subject = incident.spec.subject
    if subject.kind is SubjectKind.GANG:
        job = world._read(TrainingJob, subject.gang, subject.namespace)
        is_over = job is None or job.is_finished or world.is_running(job.name)
        return "its gang is at work, or has ended" if is_over else ""
    if subject.kind is not SubjectKind.DEVICE or not _is_heard(world, subject.node):
        return ""
    ledger = world.devices(subject.node)
    verdict = next((v for v in ledger.verdicts if v.device == subject.device), None)
    is_well = verdict is not None and verdict.state is DeviceState.HEALTHY
    return "its device is well" if is_well else ""


def _is_heard(world: World, node: str) -> bool:
    found = world.cluster.machines.nodes.get(node)
    return found is not None and not found.is_lost


# --- others -----------------------------------------------------------------------------------------------------------


def drills_not_over(world: World) -> list[str]:
    return [
        f"{d.name} {d.spec.type} is not over"
        for d in world._read_all(Drill)
        if d.status.phase == "Done" and d.spec.seconds and d.spec.type is not DrillKind.PROCESS_HANG
    ]


def wrong_holders(world: World) -> list[str]:
    """Nobody who runs holds a device that was out of use for long, unless it is theirs to leave: a gang's pod that is being
    moved, or a pod that nobody moves (its owner would not make another)."""
    wrong = []
    for pod in world.all_pods():
        if not pod.is_live or pod.is_deleting or pod.namespace != NAMESPACE or not pod.metadata.owner_references:
            continue
        for device in snapshot_devices_of_pod(pod):
            since = world.remedies.out_since(pod.spec.node_name, device)
            if since is not None and world.now - since > FAR_S and _would_move(pod):
                wrong.append(f"{pod.name} still holds {device} of {pod.spec.node_name}, out of use since {since:.1f}")
    return wrong


def _would_move(pod: Pod) -> bool:
    return pod.owner("TrainingJob") is not None

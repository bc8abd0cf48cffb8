"""TrainingJob: desired against observed -> plan. The whole life of a gang is decided here, and nothing is done here.

The steps of one look, in order:
  1 progress    how far the gang is (heartbeats of the current attempt only)
  2 faults      members that cannot go on -> cheapest remedy -> a new attempt, barrier closed, lost pods dropped
  3 spares      unassigned pods that went bad are dropped; no attempt is raised for them
  4 fill        vacant ranks go to parked spares, then to pods made for them; missing pods are asked for
  5 escalate    a gang that waits for room its domain does not have moves whole, if another domain has it
  6 barrier     every rank has a pod and every pod is ready for this attempt -> open, with one common resume step
  7 completion  every rank ended with 0 -> Succeeded

Invariants: `attempt` never goes down; ranks are assigned only while the barrier is closed, so no two pods ever run one rank
of one attempt; membership is decided by the status alone and pods outside it are deleted, so a crash between two writes
leaves nothing that the next look would not put right; planning twice on the same input gives the same plan.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from remuda.api.conditions import find_condition, with_condition
from remuda.api.meta import JsonObject, to_seconds, to_time
from remuda.api.training import (
    Cause,
    Member,
    Placement,
    Progress,
    Recovery,
    Remedy,
    Role,
    SparePod,
    TrainingJob,
    TrainingJobStatus,
)
from remuda.api.validation import gpus_of
from remuda.core.failure.budgets import charge, exhausted, recharge, refill
from remuda.core.failure.remedy import Choice, Costs, Fault, Offer, choose_remedy, root_fault
from remuda.core.placement.gang import GangAsk, PodAsk, count_room, place_members
from remuda.core.placement.snapshot import Snapshot, devices_of
from remuda.core.workload.gang import CLOSED, OPEN, PodView, common_checkpoint, find_faults, never_ran
from remuda.core.workload.goodput import at_time, lost_seconds, with_loss
from remuda.core.workload.pods import build_pod, pod_name

PROGRESS_PERIOD_S = 1.0  # the API holds transitions; progress is shown, so it may be a second old
WAITING_PERIOD_S = 1.0  # how often a gang that waits for room looks again
LOOK_BACK_S = 10.0  # a crash this shortly before its device is reported bad was the device's
KEPT_RECOVERIES = 20


class GangObserved(msgspec.Struct, frozen=True):
    """One look. `snapshot` is a thunk because only a fault needs the picture of the whole cluster."""

    job: TrainingJob
    pods: tuple[PodView, ...]
    snapshot: Callable[[], Snapshot]


class Doomed(msgspec.Struct, frozen=True):
    """A pod to delete. `force`: its node is dead and will never confirm, so nothing is waited for."""

    name: str
    uid: str
    force: bool = False


class Quarantine(msgspec.Struct, frozen=True):
    node: str
    device: str
    reason: str
    message: str


class TrainingPlan(msgspec.Struct, frozen=True):
    """Applied in this order: status (raises the attempt: the fence comes first), quarantine, deletes, creates."""

    status: TrainingJobStatus
    quarantine: tuple[Quarantine, ...] = ()
    delete: tuple[Doomed, ...] = ()
    create: tuple[JsonObject, ...] = ()
    look_again_s: float | None = None


def plan_training(observed: GangObserved, now: float) -> TrainingPlan:
    planner = _Planner(observed, now)
    return planner.run()


class _Planner:
    def __init__(self, observed: GangObserved, now: float) -> None:
        self.job = observed.job
        self.status = observed.job.status
        self.now = now
        self.snapshot = observed.snapshot
        self.views = {v.uid: v for v in observed.pods}
        self.doomed: dict[str, Doomed] = {}
        self.create: list[JsonObject] = []
        self.quarantine: list[Quarantine] = []
        self.ranks = [role for role in self.job.spec.roles for _ in range(role.replicas)]
        self.gang_gpus = sum(gpus_of(role) for role in self.ranks)
        self.fresh = self.status.progress  # not throttled, unlike what is written

    def run(self) -> TrainingPlan:
        if self.job.is_deleting:
            return TrainingPlan(self.status)
        if self.job.is_finished:
            self._doom_all()
            return self._plan()
        if self.status.attempt == 0:
            where = Placement(topology=self.job.spec.topology.required)
            self._set(attempt=1, barrier=CLOSED, attempt_raised_at=to_time(self.now), placement=where)
        seen = max((v.index for v in self.views.values()), default=-1)
        if seen >= self.status.pods_created:
            self._set(pods_created=seen + 1)
        self._progress()
        refused = never_ran(self._job(), self.views)
        if refused:
            self._fail(*refused)
            return self._plan()
        faults = find_faults(self._job(), self.views, self.now)
        if faults:
            self._recover(faults)
        if not self._failed:
            self._drop_bad_spares()
            self._fill()
            self._escalate()
            self._barrier()
            self._completion()
        self._summary()
        return self._plan()

    # -- progress ---------------------------------------------------------------------------------------------------

    def _progress(self) -> None:
        status, old = self.status, self.status.progress
        beats = [v.progress for m in status.members if (v := self.views.get(m.uid)) and v.progress]
        beats = [b for b in beats if b.attempt == status.attempt]
        if not beats or len(beats) < len(status.members):
            return
        saved = [b for b in beats if b.checkpoint is not None]
        newest = min((b.checkpoint for b in saved if b.checkpoint is not None), default=old.checkpoint_step)
        times = [b.step_seconds for b in beats if b.step_seconds]
        self.fresh = Progress(
            step=min(b.step for b in beats),
            checkpoint_step=newest,
            checkpoint_time=to_time(max(b.checkpoint_time for b in saved)) if saved else old.checkpoint_time,
            step_seconds=round(sorted(times)[len(times) // 2], 4) if times else old.step_seconds,
            time=to_time(max(b.time for b in beats)),
        )
        self._first_step(max(b.first_step_time for b in beats))
        used, at = refill(self.job.spec.failure.budgets, status.used, status.refill_step, self.fresh.step)
        if at != status.refill_step:
            self._set(used=used, refill_step=at)
        due = old.time is None or self.now - to_seconds(old.time) >= PROGRESS_PERIOD_S
        if due and self.fresh != old:
            self._set(progress=self.fresh)

    def _first_step(self, at: float) -> None:
        """The recovery under way ends with the last rank's first step of the new attempt."""
        last = self.status.recoveries[-1] if self.status.recoveries else None
        if last is None or last.first_step_at is not None or self.status.barrier != OPEN:
            return
        done = msgspec.structs.replace(last, first_step_at=to_time(at))
        goodput, booked = with_loss(self.status.goodput, done, at, self.fresh.step_seconds, self.gang_gpus)
        self._set(recoveries=[*self.status.recoveries[:-1], booked], goodput=goodput, progress=self.fresh)

    # -- faults -----------------------------------------------------------------------------------------------------

    def _recover(self, faults: list[Fault]) -> None:
        root = root_fault(faults)
        last = self.status.recoveries[-1] if self.status.recoveries else None
        if self._explains(root, last):
            used = recharge(self.status.used, Cause.CODE, Cause.DEVICE)
        else:
            used = charge(self.status.used, _causes(faults))
        over = exhausted(self.job.spec.failure.budgets, used)
        if last is not None and last.first_step_at is None:
            goodput, booked = with_loss(self.status.goodput, last, self.now, self.fresh.step_seconds, self.gang_gpus)
            self._set(recoveries=[*self.status.recoveries[:-1], booked], goodput=goodput)
        choice = choose_remedy(faults, self._offer(), self._costs(faults))
        if over is not None:
            limit = self.job.spec.failure.budgets.limit(over)
            choice = msgspec.structs.replace(choice, remedy=Remedy.FAIL, price_gpu_hours=0.0)
            self._raise_attempt(choice, faults, used, dropped=set())
            text = f"{root.message} That was interruption {used[over.value]} of cause {over}; {limit} are allowed."
            self._fail(f"{over.value.capitalize()}BudgetExhausted", text)
            return
        dropped = self._dropped(choice, faults)
        for fault in faults:
            if fault.reason == "MemberNotStopped" and (view := self.views.get(fault.uid)):
                for device in devices_of(view.pod):
                    order = Quarantine(view.pod.spec.node_name, device, fault.reason, fault.message)
                    self.quarantine.append(order)
        self._raise_attempt(choice, faults, used, dropped)

    def _explains(self, root: Fault, last: Recovery | None) -> bool:
        """The crash just before was this device's doing: its charge moves from the code to the device."""
        return (
            last is not None
            and root.cause is Cause.DEVICE
            and last.cause is Cause.CODE
            and root.pod in last.members
            and last.detected_at is not None
            and self.now - to_seconds(last.detected_at) <= LOOK_BACK_S
        )

    def _dropped(self, choice: Choice, faults: list[Fault]) -> set[str]:
        if choice.remedy is Remedy.REPLACE_GANG:
            return set(self.views)
        lost = {f.uid for f in faults if f.lost}
        if choice.remedy is Remedy.RESTART_IN_PLACE or lost:
            return lost
        return {root_fault(faults).uid}  # not lost, but restarting it in place did not cure it

    def _raise_attempt(self, choice: Choice, faults: list[Fault], used: dict[str, int], dropped: set[str]) -> None:
        status = self.status
        record = Recovery(
            attempt=status.attempt + 1,
            cause=choice.cause,
            remedy=choice.remedy,
            reason=choice.reason,
            message=choice.message,
            price_gpu_hours=round(choice.price_gpu_hours, 4),
            members=[f.pod for f in faults],
            why_not=list(choice.why_not),
            signal_at=to_time(min(min(f.signal_at for f in faults), self.now)),
            detected_at=to_time(self.now),
            step_at_fault=self.fresh.step,
            resume_step=self.fresh.checkpoint_step,
        )
        for uid in dropped:
            self._doom(uid)
        moved = choice.remedy is Remedy.REPLACE_GANG
        self._set(
            attempt=status.attempt + 1,
            barrier=CLOSED,
            resume_step=None,
            attempt_raised_at=to_time(self.now),
            members=[m for m in status.members if m.uid not in dropped and m.uid in self.views],
            placement=Placement(topology=status.placement.topology) if moved else status.placement,
            used=used,
            interruptions=status.interruptions + 1,
            recoveries=[*status.recoveries, record][-KEPT_RECOVERIES:],
            progress=self.fresh,
        )

    def _offer(self) -> Offer:
        """What the cluster has for this gang now, tried on a snapshot."""
        picture, status = self.snapshot(), self.status
        role = self.job.spec.roles[0]
        members = {m.uid for m in status.members}
        shape = _ask(self.job, role, 0)
        domain = status.placement.domain
        nodes = picture.domains(status.placement.topology).get(domain, [])
        own = [(v.pod.spec.node_name, devices_of(v.pod)) for v in self.views.values() if v.is_bound and not v.node_dead]
        whole = GangAsk(
            key=self.job.name,
            members=tuple(_ask(self.job, r, i) for i, r in enumerate(self.ranks)),
            topology=status.placement.topology,
        )
        placed = place_members(picture.releasing(own), whole)
        fits = None
        if isinstance(placed, list):
            labels = {n.name: n.labels for n in picture.nodes}
            fits = labels[placed[0].node].get(status.placement.topology, "") if placed else ""
        return Offer(
            spares=sum(1 for v in self._unassigned(members, role.name) if v.is_parked),
            room_in_domain=count_room(picture, nodes, shape, picture.free),
            domain=domain,
            gang_fits=fits,
        )

    def _costs(self, faults: list[Fault]) -> Costs:
        since = self.fresh.checkpoint_time or self.status.started_at
        step = self.fresh.step
        again = {f.pod for f in faults}
        same = [r for r in self.status.recoveries if again & set(r.members) and r.step_at_fault >= step]
        return Costs(
            gang_gpus=self.gang_gpus or len(self.ranks),
            pod_gpus=gpus_of(self.job.spec.roles[0]) or 1,
            rollback_s=max(0.0, self.now - to_seconds(since)) if since else 0.0,
            same_pod_failures=len(same),
        )

    # -- membership -------------------------------------------------------------------------------------------------

    def _unassigned(self, members: set[str], role: str) -> list[PodView]:
        free = [v for v in self.views.values() if v.uid not in members and v.uid not in self.doomed and v.role == role]
        return sorted((v for v in free if v.is_usable), key=lambda v: (not v.is_parked, not v.is_bound, v.index))

    def _drop_bad_spares(self) -> None:
        members = {m.uid for m in self.status.members}
        for view in self.views.values():
            if view.uid not in members and not view.is_usable:
                self._doom(view.uid)

    def _fill(self) -> None:
        status = self.status
        members = {m.rank: self._refreshed(m) for m in status.members}
        if status.barrier == CLOSED:
            if members:
                self._fill_vacant(members)
            else:
                self._fill_first(members)
        self._set(members=[members[rank] for rank in sorted(members)])
        if members and not status.placement.domain and status.placement.topology:
            self._set(placement=Placement(topology=status.placement.topology, domain=self._domain_of(members)))
        for role in self.job.spec.roles:
            self._ask_for_pods(role)

    def _fill_first(self, members: dict[int, Member]) -> None:
        """First placement: ranks follow topology order, so they are given only when all pods are placed."""
        chosen: dict[str, list[PodView]] = {}
        for role in self.job.spec.roles:
            pods = [v for v in self._unassigned(set(), role.name) if v.is_bound and not v.is_spare]
            if len(pods) < role.replicas:
                return
            chosen[role.name] = sorted(pods, key=lambda v: (v.pod.spec.node_name, devices_of(v.pod), v.index))
        for rank, role in enumerate(self.ranks):
            members[rank] = _member(rank, chosen[role.name].pop(0))

    def _fill_vacant(self, members: dict[int, Member]) -> None:
        taken = {m.uid for m in members.values()}
        for rank, role in enumerate(self.ranks):
            if rank in members:
                continue
            pods = [v for v in self._unassigned(taken, role.name) if v.is_bound]
            if not pods:
                continue
            members[rank] = _member(rank, pods[0])
            taken.add(pods[0].uid)
            self._note_replacement(pods[0].pod.name)

    def _note_replacement(self, pod: str) -> None:
        last = self.status.recoveries[-1] if self.status.recoveries else None
        if last is not None and pod not in last.replaced:
            done = msgspec.structs.replace(last, replaced=[*last.replaced, pod])
            self._set(recoveries=[*self.status.recoveries[:-1], done])

    def _ask_for_pods(self, role: Role) -> None:
        """Makes what is missing: pods for vacant ranks first, then spares (of the first role). Drops what is too much."""
        taken = {m.uid for m in self.status.members}
        free = self._unassigned(taken, role.name)
        vacant = role.replicas - sum(1 for m in self.status.members if m.role == role.name)
        spares = self.job.spec.spares if role is self.job.spec.roles[0] else 0
        coming = sum(1 for v in free if not v.is_spare)
        for _ in range(max(0, vacant - coming)):
            self._make(role, spare=False)
        left_over = max(0, coming - vacant) + sum(1 for v in free if v.is_spare)
        for _ in range(max(0, spares - left_over)):
            self._make(role, spare=True)
        surplus = [v for v in reversed(free) if v.is_spare or coming > vacant][: max(0, left_over - spares)]
        for view in surplus:
            self._doom(view.uid)

    def _make(self, role: Role, *, spare: bool) -> None:
        """The next free name. `pods_created` counts pods that were *seen*, so asking twice asks for the same pod."""
        index = self.status.pods_created + len(self.create)
        self.create.append(build_pod(self.job, role, index, spare=spare, domain=self.status.placement.domain))

    def _refreshed(self, member: Member) -> Member:
        view = self.views.get(member.uid)
        return _member(member.rank, view) if view else member

    def _domain_of(self, members: dict[int, Member]) -> str:
        labels = {n.name: n.labels for n in self.snapshot().nodes}
        first = members[min(members)]
        return labels.get(first.node, {}).get(self.status.placement.topology, "")

    def _escalate(self) -> None:
        """A replacement that finds no room in the domain: move the gang whole, once another domain would take it."""
        status = self.status
        last = status.recoveries[-1] if status.recoveries else None
        waiting = [v for v in self.views.values() if not v.is_bound and not v.is_spare and v.is_usable]
        if status.barrier == OPEN or last is None or not waiting or not status.members or not status.placement.domain:
            return
        refusals = [find_condition(v.pod.status.conditions, "PodScheduled") for v in waiting]
        refusal = next((c for c in refusals if c is not None and c.status == "False"), None)
        if refusal is None:
            return
        offer = self._offer()
        if offer.room_in_domain >= len(waiting) or offer.gang_fits in (None, status.placement.domain):
            return
        moved = msgspec.structs.replace(
            last,
            attempt=status.attempt + 1,
            remedy=Remedy.REPLACE_GANG,
            why_not=[*last.why_not, f"ReplacePod: {refusal.message}"],
        )
        for uid in self.views:
            self._doom(uid)
        self.create.clear()
        self._set(
            attempt=status.attempt + 1,
            attempt_raised_at=to_time(self.now),
            members=[],
            placement=Placement(topology=status.placement.topology),
            recoveries=[*status.recoveries[:-1], moved],
        )
        for role in self.job.spec.roles:
            self._ask_for_pods(role)

    # -- barrier ----------------------------------------------------------------------------------------------------

    def _barrier(self) -> None:
        status = self.status
        if status.barrier == OPEN or len(status.members) < len(self.ranks):
            return
        views = [self.views[m.uid] for m in status.members]
        reports = [v.report for v in views if v.is_ready_for(status.attempt) and v.is_usable and v.pod.status.pod_ip]
        ready = [r for r in reports if r is not None]
        if len(ready) < len(views):
            return
        resume = common_checkpoint(ready)
        changes: dict[str, object] = {"barrier": OPEN, "resume_step": resume}
        if status.started_at is None:
            changes["started_at"] = to_time(self.now)
        if status.recoveries and status.recoveries[-1].opened_at is None:
            survivors = [r.time for r in ready if r.time and r.pod not in status.recoveries[-1].replaced]
            changes["recoveries"] = [
                *status.recoveries[:-1],
                msgspec.structs.replace(
                    status.recoveries[-1],
                    attempt=status.attempt,
                    stopped_at=max(survivors, default=to_time(self.now)),
                    opened_at=to_time(self.now),
                    resume_step=resume or 0,
                ),
            ]
        self._set(**changes)

    def _completion(self) -> None:
        status = self.status
        if status.barrier != OPEN or not status.members:
            return
        reports = [v.report for m in status.members if (v := self.views.get(m.uid))]
        ended = [r for r in reports if r and r.state == "exited" and r.attempt == status.attempt and r.code == 0]
        if len(ended) == len(self.ranks):
            self._set(phase="Succeeded", reason="AllRanksDone", message="Every rank ended with code 0.")
            self._finish()

    # -- outcome ----------------------------------------------------------------------------------------------------

    @property
    def _failed(self) -> bool:
        return self.status.phase == "Failed"

    def _fail(self, reason: str, message: str) -> None:
        self._set(phase="Failed", reason=reason, message=message, barrier=CLOSED)
        self._finish()

    def _finish(self) -> None:
        last = self.status.recoveries[-1] if self.status.recoveries else None
        if last is not None and last.first_step_at is None and not last.lost_gpu_seconds:
            goodput, booked = with_loss(self.status.goodput, last, self.now, self.fresh.step_seconds, self.gang_gpus)
            self._set(recoveries=[*self.status.recoveries[:-1], booked], goodput=goodput)
        self._set(finished_at=to_time(self.now), progress=self.fresh)
        self._set(goodput=at_time(self.status.goodput, self.status.started_at, 0.0, self.now))
        self._doom_all()

    def _summary(self) -> None:
        status = self.status
        members = {m.uid for m in status.members}
        extra = [v for v in self.views.values() if v.uid not in members and v.uid not in self.doomed and v.is_usable]
        spares = [
            SparePod(v.pod.name, v.uid, v.role, v.pod.spec.node_name, list(devices_of(v.pod)), v.is_parked)
            for v in sorted(extra, key=lambda v: v.index)
        ]
        self._set(spares=[] if status.phase in ("Succeeded", "Failed") else spares)
        if status.phase not in ("Succeeded", "Failed"):
            self._set(**dict(zip(("phase", "reason", "message"), self._phase(), strict=True)))
            under_way = [r for r in status.recoveries[-1:] if r.first_step_at is None]
            open_loss = sum(lost_seconds(r, self.now, self.fresh.step_seconds) for r in under_way)
            changed = self.status != self.job.status
            if changed or self.status.progress is not self.job.status.progress:
                self._set(goodput=at_time(self.status.goodput, status.started_at, open_loss, self.now))
        running = self.status.phase == "Running"
        done = self.status.phase in ("Succeeded", "Failed")
        conditions = with_condition(
            status.conditions,
            "Running",
            running,
            self.status.reason or self.status.phase,
            self.status.message,
            to_time(self.now),
        )
        if done:
            kind = "Complete" if self.status.phase == "Succeeded" else "Failed"
            conditions = with_condition(
                conditions, kind, True, self.status.reason, self.status.message, to_time(self.now)
            )
        self._set(conditions=conditions)

    def _phase(self) -> tuple[str, str, str]:
        status = self.status
        if status.barrier == OPEN:
            return "Running", "BarrierOpen", f"All {len(self.ranks)} ranks run attempt {status.attempt}."
        waiting = [v for v in self.views.values() if not v.is_bound and not v.is_spare and v.is_usable]
        for view in waiting:
            refusal = find_condition(view.pod.status.conditions, "PodScheduled")
            if refusal is not None and refusal.status == "False":
                return ("Recovering" if status.started_at else "Pending"), refusal.reason, refusal.message
        ready = sum(1 for m in status.members if (v := self.views.get(m.uid)) and v.is_ready_for(status.attempt))
        text = f"{ready} of {len(self.ranks)} ranks are ready for attempt {status.attempt}."
        if status.started_at is not None:
            last = status.recoveries[-1] if status.recoveries else None
            return "Recovering", last.reason if last else "WaitingAtBarrier", text
        return ("Starting", "WaitingAtBarrier", text) if status.members else ("Pending", "WaitingForPlacement", text)

    # -- plan -------------------------------------------------------------------------------------------------------

    def _plan(self) -> TrainingPlan:
        if self.status.phase in ("Succeeded", "Failed"):
            self.create.clear()
        return TrainingPlan(
            status=self.status,
            quarantine=tuple(self.quarantine),
            delete=tuple(self.doomed[uid] for uid in sorted(self.doomed)),
            create=tuple(self.create),
            look_again_s=self._look_again(),
        )

    def _look_again(self) -> float | None:
        status, limits = self.status, self.job.spec.failure
        if status.phase in ("Succeeded", "Failed"):
            return None
        if status.barrier == OPEN:
            return PROGRESS_PERIOD_S if self.fresh != status.progress else None
        raised = to_seconds(status.attempt_raised_at) if status.attempt_raised_at else self.now
        deadlines = [raised + limits.stop_deadline_seconds, raised + limits.start_deadline_seconds]
        soonest = min((d - self.now for d in deadlines if d > self.now), default=WAITING_PERIOD_S)
        waits = any(not v.is_bound for v in self.views.values())
        return max(0.01, min(soonest + 0.01, WAITING_PERIOD_S)) if waits else soonest + 0.01

    def _doom(self, uid: str) -> None:
        view = self.views.get(uid)
        if view is not None and (view.node_dead or not view.pod.is_deleting):
            self.doomed[uid] = Doomed(view.pod.name, uid, force=view.node_dead)

    def _doom_all(self) -> None:
        for uid in self.views:
            self._doom(uid)

    def _set(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)

    def _job(self) -> TrainingJob:
        return msgspec.structs.replace(self.job, status=self.status)


def _causes(faults: list[Fault]) -> list[Cause]:
    """What to charge. Ranks that crash beside a broken device or node crashed because of it."""
    causes = {f.cause for f in faults}
    if causes & {Cause.DEVICE, Cause.INFRA}:
        causes -= {Cause.CODE, Cause.HANG}
    elif Cause.HANG in causes or Cause.CODE in causes:
        causes = {root_fault(faults).cause} | (causes - {Cause.CODE, Cause.HANG})
    return sorted(causes)


def _member(rank: int, view: PodView) -> Member:
    pod = view.pod
    return Member(rank, view.role, pod.name, pod.uid, pod.spec.node_name, list(devices_of(pod)), pod.status.pod_ip)


def _ask(job: TrainingJob, role: Role, index: int) -> PodAsk:
    return PodAsk(job.namespace, pod_name(job.name, role.name, index), f"trial-{index}", gpus_of(role))

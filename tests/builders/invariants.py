"""What must hold at every single committed change, whatever breaks: the API's history held against what really runs.

`Invariants.see` is told of each change in the order of its commit. It keeps its own picture of pods, jobs and devices, made
from the history alone, and at each change also looks at the simulated machines (which pod runs which attempt and rank, who
holds which device). Nothing here is taken from the code under test: the rules are written a second time, plainly.

A violation is kept, with the moment and the revision, and not raised: it would be raised in the middle of the code that
wrote, which would take it for an error of the API and try again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.kubernetes.core_v1 import Lease, Pod
from remuda.api.meta import to_seconds
from remuda.api.names import (
    ANNOTATION_DEVICES,
    ANNOTATION_SEGMENT,
    ANNOTATION_TOLERATE_DEGRADED,
    ANNOTATION_TOPOLOGY_REQUIRED,
    LABEL_GANG,
)
from remuda.api.training import TrainingJob, TrainingJobStatus, gpus_in_role_spec
from remuda.embedded.apiserver.store import DELETED
from remuda.embedded.apiserver.store.record import StoreEvent
from remuda.embedded.node.training_model import SimulatedTraining
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.charges import ChargeBook

Place = tuple[str, str]  # node, device
MAX_KEPT = 20
CLOCK_JUMP_S = 2.5  # a holder's clock that is further off says nothing about when it renewed


class Reality(Protocol):
    """The machines as they are, not as anyone believes them to be."""

    def children(self) -> list[tuple[str, SimulatedTraining]]:
        """(pod uid, living process) all over the cluster."""
        ...

    def holders(self) -> dict[Place, str]:
        """Device -> pod uid in the tables of the agents of nodes that have power."""
        ...


class Nothing:
    """Before the first machine is up, and after the last has gone."""

    def children(self) -> list[tuple[str, SimulatedTraining]]:
        return []

    def holders(self) -> dict[Place, str]:
        return {}


class Invariants:
    def __init__(self, now: Callable[[], float], rack_of: dict[str, str], *, staleness_s: float = 0.0) -> None:
        """`staleness_s`: how old a scheduler's picture of the devices may be when its binding arrives."""
        self.reality: Reality = Nothing()
        self.violations: list[str] = []
        self.pods: dict[str, Pod] = {}
        self.jobs: dict[str, TrainingJob] = {}  # by namespace/name
        self.bad_since: dict[Place, float] = {}
        self.worn_since: dict[Place, float] = {}  # Degraded
        self.held: dict[str, dict[str, set[Place]]] = {}  # node -> pod uid -> what the node says it has
        self._held_since: dict[tuple[Place, str], float] = {}  # when its node first said so
        self.opened: dict[tuple[str, int], dict[str, int]] = {}  # (job uid, attempt) -> uid -> rank
        self.resumed: dict[tuple[str, int], int] = {}  # (job uid, attempt) -> step
        self.charges = ChargeBook()
        self._now = now
        self._rack_of = rack_of
        self._staleness_s = staleness_s
        self._revision = 0
        self._ran: dict[
            tuple[str, int, int], SimulatedTraining
        ] = {}  # (job uid, attempt, rank) -> the process that ran it
        self._alive_until: dict[str, float] = {}
        self._revived: dict[str, float] = {}  # when a node came back from the dead

    def see(self, event: StoreEvent) -> None:
        record, gone = event.record, event.type == DELETED
        self._revision = record.rv
        if record.key.startswith(Pod.resource.prefix):
            self._see_pod(record.decode(Pod), gone)
        elif record.key.startswith(TrainingJob.resource.prefix):
            self._see_job(record.decode(TrainingJob), gone)
        elif record.key.startswith(NodeDevices.resource.prefix):
            self._see_devices(record.decode(NodeDevices))
        elif record.key.startswith(Lease.resource.prefix):
            self._see_lease(record.decode(Lease))
            return
        else:
            return
        self._look_at_what_runs()

    def _broken(self, rule: str, what: str) -> None:
        if len(self.violations) < MAX_KEPT:
            self.violations.append(f"[t={self._now():.3f} rv={self._revision}] {rule}: {what}")

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _see_pod(self, new: Pod, gone: bool) -> None:
        old = self.pods.get(new.uid)
        if gone:
            self.pods.pop(new.uid, None)
            self._is_really_gone(new)
            return
        self.pods[new.uid] = new
        if old is None:
            self._no_more_pods_than_asked(new)
        elif old.spec.node_name and _places(old) != _places(new) and not self._names_what_it_holds(new):
            self._broken("a bound pod keeps its devices", f"{new.name} moved from {_places(old)} to {_places(new)}")
        if new.spec.node_name and not new.is_terminal:
            self._holds_alone(new)
            if old is None or not old.spec.node_name:
                self._newly_bound(new)

    def _holds_alone(self, pod: Pod) -> None:
        mine = self._has(pod)
        for other in self.pods.values():
            both = mine & self._has(other) - self._swapped(pod, other) - self._swapped(other, pod)
            if other.uid != pod.uid and not other.is_terminal and both:
                self._broken("no device is held twice", f"{pod.name} and {other.name} hold {both}")

    def _swapped(self, pod: Pod, other: Pod) -> set[Place]:
        """What its node gave the pod in place of a device that broke, while the other, for which it was chosen, has yet to be
        given any: it will be given another. Whether that was chosen too late is asked when it is bound."""
        told = self.held.get(pod.spec.node_name, {})
        return set() if other.uid in told else told.get(pod.uid, set()) - set(_places(pod))

    def _has(self, pod: Pod) -> set[Place]:
        """What its node says it has; until then what the scheduler chose for it. The node may have had to give it others."""
        return self.held.get(pod.spec.node_name, {}).get(pod.uid) or set(_places(pod))

    def _newly_bound(self, pod: Pod) -> None:
        places = _places(pod)
        job = self._job_of(pod)
        if job is not None and len(places) != gpus_in_role_spec(job.spec.roles[0]):
            self._broken("a pod gets what it asked for", f"{pod.name} got {places}")
        for place in places:
            # The same moment is no violation: nobody can have known.
            if self.bad_since.get(place, self._now()) < self._now() - self._staleness_s:
                self._broken("no unhealthy device is handed out", f"{pod.name} was bound to {place}")
            is_tolerant = pod.annotations.get(ANNOTATION_TOLERATE_DEGRADED) == "true"
            if not is_tolerant and self.worn_since.get(place, self._now()) < self._now() - self._staleness_s:
                self._broken("a degraded device is for those who tolerate it", f"{pod.name} was bound to {place}")
            holder = self.reality.holders().get(place, pod.uid)
            if (
                holder != pod.uid
                and not self._was_dead(pod.spec.node_name)
                and not self._is_given_unseen(place, holder)
            ):
                self._broken("a device is free before it is handed on", f"{place} to {pod.name}, held by {holder}")
        self._same_rack(pod)

    def _is_given_unseen(self, place: Place, holder: str) -> bool:
        """Its node gave the holder this device in place of one that broke, and whoever chose it for another could not know. The
        node gives the other one a free device then, or none."""
        pod = self.pods.get(holder)
        if pod is None or place in _places(pod):
            return False
        return self._held_since.get((place, holder), self._now()) >= self._now() - self._staleness_s

    def _same_rack(self, pod: Pod) -> None:
        if not pod.annotations.get(ANNOTATION_TOPOLOGY_REQUIRED):
            return
        job = self._job_of(pod)
        if job is not None and job.spec.topology.segment_size and ANNOTATION_SEGMENT not in pod.annotations:
            return  # a spare of a gang in segments serves whichever of them shares its rack
        siblings = [
            p
            for p in self._gang(pod)
            if p.spec.node_name
            and not p.is_deleting
            and not p.is_terminal
            and p.uid != pod.uid
            and p.annotations.get(ANNOTATION_SEGMENT) == pod.annotations.get(ANNOTATION_SEGMENT)
        ]
        racks = {self._rack_of[p.spec.node_name] for p in (*siblings, pod)}
        if len(racks) > 1:
            self._broken("a gang stays in one rack", f"{pod.name} on {pod.spec.node_name}, the gang is in {racks}")

    def _no_more_pods_than_asked(self, pod: Pod) -> None:
        job = self._job_of(pod)
        if job is None:
            return
        live = [p for p in self._gang(pod) if not p.is_deleting and not p.is_terminal]
        asked = sum(role.replicas for role in job.spec.roles) + job.spec.spares
        if len(live) > asked:
            self._broken("no more pods than asked for", f"{sorted(p.name for p in live)}, {asked} asked")

    def _is_really_gone(self, pod: Pod) -> None:
        if any(uid == pod.uid for uid, _ in self.reality.children()):
            self._broken("a pod goes after its processes", f"{pod.name} is gone, its process runs")
        held = [place for place, uid in self.reality.holders().items() if uid == pod.uid]
        if held and not self._was_dead(pod.spec.node_name):
            self._broken("a pod goes after its devices are free", f"{pod.name} is gone, {held} are held")

    def _gang(self, pod: Pod) -> list[Pod]:
        gang = (pod.namespace, pod.labels.get(LABEL_GANG))
        return [p for p in self.pods.values() if (p.namespace, p.labels.get(LABEL_GANG)) == gang]

    def _job_of(self, pod: Pod) -> TrainingJob | None:
        return self.jobs.get(f"{pod.namespace}/{pod.labels.get(LABEL_GANG)}")

    # --- nodes and devices --------------------------------------------------------------------------------------------

    def _see_lease(self, lease: Lease) -> None:
        if self._is_dead(lease.name):
            self._revived[lease.name] = self._now()
        if lease.spec.renew_time is not None:
            renewed = to_seconds(lease.spec.renew_time) - EPOCH
            if abs(renewed - self._now()) > CLOCK_JUMP_S:
                renewed = self._now()
            self._alive_until[lease.name] = renewed + lease.spec.lease_duration_seconds

    def _is_dead(self, node: str) -> bool:
        return self._now() > self._alive_until.get(node, math.inf)

    def _was_dead(self, node: str) -> bool:
        """Its lease has run out, or had until just now. Its pods are removed without asking it; it has stopped their processes
        by then, and gives back their devices when it hears of it."""
        return self._is_dead(node) or self._now() - self._revived.get(node, -math.inf) <= 2.0 + self._staleness_s

    def _names_what_it_holds(self, pod: Pod) -> bool:
        """Its node had given it others than were chosen, and the annotation says so now."""
        return self.held.get(pod.spec.node_name, {}).get(pod.uid) == set(_places(pod))

    def _see_devices(self, node: NodeDevices) -> None:
        fit = (DeviceState.HEALTHY, DeviceState.DEGRADED)
        bad = {v.device for v in node.verdicts if v.state not in fit} | set(node.quarantine)
        worn = {v.device for v in node.verdicts if v.state is DeviceState.DEGRADED} - bad
        for device in node.observed.devices:
            if device.id in bad:
                self.bad_since.setdefault((node.name, device.id), self._now())
            else:
                self.bad_since.pop((node.name, device.id), None)
            if device.id in worn:
                self.worn_since.setdefault((node.name, device.id), self._now())
            else:
                self.worn_since.pop((node.name, device.id), None)
        held: dict[str, set[Place]] = {}
        for holding in node.observed.holdings:
            held.setdefault(holding.uid, set()).update((node.name, device) for device in holding.devices)
        self.held[node.name] = held
        there = {(place, uid) for uid, places in held.items() for place in places}
        for known in [k for k in self._held_since if k[0][0] == node.name and k not in there]:
            del self._held_since[known]
        for new in there:
            self._held_since.setdefault(new, self._now())
        owner: dict[Place, str] = {}
        for uid, places in held.items():
            for place in places:
                if owner.setdefault(place, uid) != uid:
                    self._broken("no node gives a device twice", f"{place} to {owner[place]} and {uid}")
        for report in node.observed.launchers:
            pod = self.pods.get(report.uid)
            job = self._job_of(pod) if pod is not None else None
            if job is not None and report.attempt > job.status.attempt:
                self._broken("no launcher is ahead of its job", f"{report.pod} at {report.attempt}")

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _see_job(self, job: TrainingJob, gone: bool) -> None:
        key = f"{job.namespace}/{job.name}"
        if gone:
            self.jobs.pop(key, None)
            return
        before = self.jobs.get(key)
        self.jobs[key] = job
        old = before.status if before is not None and before.uid == job.uid else TrainingJobStatus()
        self._attempt_moves_forward(job, old)
        if job.status.used != old.used:
            self.charges.see(job, old, self._now(), self._nodes_of(job))
        self._ranks_are_unique(job)
        if job.status.barrier == "Open":
            self._is_open(job, old)
        if job.is_finished and old.phase not in (job.status.phase, "Succeeded", "Failed") and not job.status.reason:
            self._broken("every end has a reason", f"{job.name} is {job.status.phase}")
        goodput = job.status.goodput
        if not 0.0 <= goodput.ettr <= 1.0 or min(goodput.lost_gpu_seconds.values(), default=0.0) < 0.0:
            self._broken("goodput is a ratio", f"{goodput}")

    def _nodes_of(self, job: TrainingJob) -> set[str]:
        mine = [p for p in self.pods.values() if p.labels.get(LABEL_GANG) == job.name]
        return {p.spec.node_name for p in mine if p.spec.node_name}

    def _attempt_moves_forward(self, job: TrainingJob, old: TrainingJobStatus) -> None:
        new = job.status
        if new.attempt < old.attempt:
            self._broken("the attempt never goes down", f"{job.name}: {old.attempt} -> {new.attempt}")
        if old.phase in ("Succeeded", "Failed") and (new.phase, new.reason) != (old.phase, old.reason):
            self._broken("an end is final", f"{job.name}: {old.phase} -> {new.phase}")
        same_attempt = new.attempt == old.attempt
        if same_attempt and old.barrier == "Open" and new.barrier != "Open" and not job.is_finished:
            self._broken("a barrier closes with a new attempt", f"{job.name} at {new.attempt}")
        if new.refill_step == old.refill_step:
            self._budgets_move_forward(job, old)

    def _budgets_move_forward(self, job: TrainingJob, old: TrainingJobStatus) -> None:
        """A charge stays, except that one crash or hang may turn out to be the hardware's: then it moves there."""
        moved = {
            cause: job.status.used.get(cause, 0) - old.used.get(cause, 0) for cause in {*job.status.used, *old.used}
        }
        fell = {cause: -by for cause, by in moved.items() if by < 0}
        explained = moved.get("device", 0) + moved.get("infra", 0) >= 1 or self._is_refused_after_it_ran(job, moved)
        if fell and not (explained and fell in ({"code": 1}, {"hang": 1})):
            self._broken("budgets are not given back", f"{job.name}: {old.used} -> {job.status.used}")
        if any(by > 1 for by in moved.values()):
            self._broken("one interruption is charged once", f"{job.name}: {old.used} -> {job.status.used}")

    def _is_refused_after_it_ran(self, job: TrainingJob, moved: dict[str, int]) -> bool:
        """A pod that has run and is refused by its node has seen the node start anew beneath it. That explains a rank that ended
        or stood still just before, as a lost node does, and has a count of its own. A hang of the code's own that came right
        before is not told from it: the code has the benefit of the doubt, as everywhere, and refusals are bounded. A pod
        that never ran explains nothing."""
        ran = {uid for (owner, _), members in self.opened.items() if owner == job.uid for uid in members}
        refused = [p for p in self.pods.values() if p.uid in ran and p.status.reason == "UnexpectedAdmissionError"]
        return moved.get("admission", 0) >= 1 and bool(refused)

    def _ranks_are_unique(self, job: TrainingJob) -> None:
        members = job.status.members
        if len({m.rank for m in members}) < len(members) or len({m.uid for m in members}) < len(members):
            self._broken("one rank, one pod", f"{job.name}: {[(m.rank, m.pod) for m in members]}")
        ranks = max((m.rank for m in members), default=0) + 1
        block = job.spec.topology.segment_size or ranks
        for first in range(0, ranks, block):
            racks = {self._rack_of[m.node] for m in members if m.node and first <= m.rank < first + block}
            if job.spec.topology.required and len(racks) > 1:
                self._broken("a gang, or a segment of it, stays in one rack", f"{job.name}: members in {racks}")

    def _is_open(self, job: TrainingJob, old: TrainingJobStatus) -> None:
        key = (job.uid, job.status.attempt)
        let_in = [m for m in job.status.members if m.role not in job.status.held_roles]
        members = {m.uid: m.rank for m in let_in}
        ordered = {role.name for role in job.spec.roles if role.after}
        there = {m.role for m in let_in} if ordered else {role.name for role in job.spec.roles}
        sizes = {role.name: job.status.sizes.get(role.name, role.replicas) for role in job.spec.roles}
        size = sum(sizes[role.name] for role in job.spec.roles if role.name in there)
        if self.opened.get(key) == members:
            size = len(members)  # a job that is edited while it runs keeps its ranks until it stops
        elif any(sizes[role.name] < (role.min_replicas or role.replicas) for role in job.spec.roles):
            self._broken("a gang is never smaller than it may be", f"{job.name}: {sizes}")
        if sorted(members.values()) != list(range(size)):
            self._broken("an open barrier has every rank", f"{job.name}: {sorted(members.values())} of {size}")
        if key not in self.opened:
            self.opened[key] = members
            self.resumed[key] = job.status.resume_step or 0
            for uid, child in self.reality.children():
                if self._job_uid(uid) == job.uid and not self._is_given_up(uid):
                    self._broken("everyone has stopped before the barrier opens", f"{self._name(uid)} {_words(child)}")
        elif self.opened[key].items() < members.items():
            known = self.opened[key]
            late = {m.role for m in let_in if m.uid not in known}
            if not late <= ordered:
                self._broken("only a role that comes after another joins late", f"{job.name}: {late}")
            self.opened[key] = members
        elif self.opened[key] != members:
            self._broken("membership is fixed while open", f"{job.name}: {self.opened[key]} -> {members}")
        elif old.attempt == job.status.attempt and (job.status.resume_step or 0) != self.resumed[key]:
            self._broken("the resume step is fixed while open", f"{job.name}: {job.status.resume_step}")

    # --- what runs ----------------------------------------------------------------------------------------------------

    def _look_at_what_runs(self) -> None:
        ranks: dict[tuple[str, int], str] = {}
        for uid, child in self.reality.children():
            job_uid = self._job_uid(uid)
            if job_uid is None:
                continue
            who = f"{self._name(uid)} {_words(child)}"
            members = self.opened.get((job_uid, child.attempt))
            if members is None:
                self._broken("nobody starts before the barrier opens", who)
            elif members.get(uid) != child.rank:
                self._broken("a pod runs the rank it was given", f"{who}, members {members}")
            elif child.resumed_at != self.resumed[job_uid, child.attempt]:
                self._broken("everyone resumes from the same step", f"{who} from {child.resumed_at}")
            if self._ran.setdefault((job_uid, child.attempt, child.rank), child) is not child:
                self._broken("nobody joins an attempt that has begun", who)
            if self._is_given_up(uid):
                continue  # quarantined with its devices: nobody can stop it, and nobody waits for it for ever
            if (job_uid, child.rank) in ranks:
                self._broken("a rank runs once", f"{who} and {self._name(ranks[job_uid, child.rank])}")
            ranks[job_uid, child.rank] = uid
        for job in self.jobs.values():
            if job.status.barrier == "Open":
                self._members_run_the_attempt(job)

    def _members_run_the_attempt(self, job: TrainingJob) -> None:
        members = {m.uid for m in job.status.members}
        for uid, child in self.reality.children():
            if uid in members and child.attempt != job.status.attempt:
                self._broken("everyone runs the open attempt", f"{self._name(uid)} {_words(child)}")

    def _job_uid(self, pod_uid: str) -> str | None:
        pod = self.pods.get(pod_uid)
        owner = pod.owner("TrainingJob") if pod is not None else None
        return owner.uid if owner is not None else None

    def _is_given_up(self, uid: str) -> bool:
        jobs = self.jobs.values()
        return any(r.uid == uid and r.reason == "MemberNotStopped" for job in jobs for r in job.status.retired)

    def _name(self, uid: str) -> str:
        pod = self.pods.get(uid)
        return pod.name if pod is not None else uid


def _places(pod: Pod) -> list[Place]:
    named = filter(None, pod.annotations.get(ANNOTATION_DEVICES, "").split(","))
    return [(pod.spec.node_name, device) for device in named] if pod.spec.node_name else []


def _words(child: SimulatedTraining) -> str:
    return f"runs attempt {child.attempt} rank {child.rank}"

"""A cluster for one gang, small enough to think about: objects, launchers and machines as plain values, no loop, no clock.

Everything that acts is a method that does one thing once: the controller looks (`look`), the scheduler places (`schedule`),
a node works on one pod (`kubelet`), an agent tells one launcher (`agent`), the ranks make a step (`train`). A test calls them
in any order; `settle` calls them all, fairly, until nothing changes. What the code under test decides comes from
`plan_training`, `plan_placement` and `judge_node`; what machines and launchers do is written here a second time, plainly.

Who sees what: the API's truth is in `pods`, `job`, `reports` and `ledger`. The controller sees pods, reports and verdicts only
as far as they were delivered to it (`deliver`); an agent sees the job as of the last `tell`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from remuda.api.codec import from_wire
from remuda.api.conditions import with_condition
from remuda.api.devices import DeviceState, LauncherReport, NodeDevices, QuarantineOrder, Signal, Verdict
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject, to_time
from remuda.api.names import ANNOTATION_DEVICES, ANNOTATION_PREEMPTIBLE, LABEL_GANG, RESOURCE_GPU
from remuda.api.training import Member, Recovery, TrainingJob, TrainingJobStatus
from remuda.core.gang.pod_view import MemberProgress, PodView
from remuda.core.health.ledger import judge_node
from remuda.core.scheduling.gang_placement import plan_placement
from remuda.core.scheduling.waiting_gangs import gather_waiting_gangs
from remuda.core.state.cluster_capacity import ClusterCapacity
from remuda.core.state.leaving_nodes import leaving_state_of_node
from remuda.core.state.snapshot import Snapshot, build_snapshot, snapshot_devices_of_pod
from remuda.core.training.job_plan import plan_training
from remuda.core.training.lent_spares import is_preemptible_pod, loan_reservations
from remuda.core.training.planning_context import GangObserved, LendingView, TrainingPlan
from tests.builders.gangs import NAMESPACE, JobBuilder, NodeBuilder

T = TypeVar("T")
START = 1_000_000.0
CHECKPOINT_EVERY = 5


class Feed(Generic[T]):
    """Changes in the order they happened, and how far the reader has got."""

    def __init__(self) -> None:
        self.now: dict[str, T] = {}
        self.seen: dict[str, T] = {}
        self._waiting: list[tuple[str, T | None]] = []

    def put(self, key: str, value: T | None) -> None:
        if value is None:
            self.now.pop(key, None)
        else:
            self.now[key] = value
        self._waiting.append((key, value))

    def deliver(self, count: int | None = None) -> None:
        some, self._waiting = self._waiting[:count], self._waiting[len(self._waiting[:count]) :]
        for key, value in some:
            if value is None:
                self.seen.pop(key, None)
            else:
                self.seen[key] = value


@dataclass
class Launcher:
    """One launcher as it really is; its report may be older."""

    uid: str
    state: str = "parked"
    attempt: int = 0
    rank: int | None = None
    step: int = 0
    resumed_at: int = 0
    saved: int = 0  # newest checkpoint of this run
    served: int = 0  # checkpoint requests up to this one
    first_step_at: float | None = None
    cannot_stop: bool = False

    @property
    def is_at_work(self) -> bool:
        return self.state in ("running", "stopping")


@dataclass
class Applied:
    """What one look wrote."""

    before: TrainingJobStatus
    plan: TrainingPlan


@dataclass
class GangModel:
    job: TrainingJob
    nodes: dict[str, Node]
    ledger: Feed[NodeDevices]
    now: float = START
    pods: Feed[Pod] = field(default_factory=Feed)
    reports: Feed[LauncherReport] = field(default_factory=Feed)
    launchers: dict[str, Launcher] = field(default_factory=dict)
    beats: dict[str, MemberProgress] = field(default_factory=dict)
    told: dict[str, TrainingJob] = field(default_factory=dict)  # node -> the job as its agent last saw it
    off: set[str] = field(default_factory=set)  # machines without power
    dead: set[str] = field(default_factory=set)  # nodes whose lease ran out
    broken: set[tuple[str, str]] = field(default_factory=set)  # (node, device), known or not
    lagging: set[str] = field(default_factory=set)  # pods whose node and agent do nothing for the time being
    checkpoints: dict[int, set[int]] = field(default_factory=dict)  # rank -> steps, on storage all ranks share
    on_look: list[Callable[[Applied], None]] = field(default_factory=list)
    made: int = 0
    capacity: Callable[[], ClusterCapacity] | None = None  # None: the manager does not know what the cluster has
    answers_requests: bool = True  # False: the script knows nothing of checkpoint requests

    # --- who sees what ------------------------------------------------------------------------------------------------

    def deliver(self, count: int | None = None) -> None:
        """The controller's informers bring the next changes (all of them without a count)."""
        self.pods.deliver(count)
        self.reports.deliver(count)
        self.ledger.deliver(count)

    def tell(self, node: str) -> None:
        self.told[node] = self.job

    def advance(self, seconds: float) -> None:
        self.now += seconds

    @property
    def status(self) -> TrainingJobStatus:
        return self.job.status

    @property
    def recovery(self) -> Recovery:
        return self.status.recoveries[-1]

    def member(self, rank: int) -> Member:
        return next(m for m in self.status.members if m.rank == rank)

    def pod(self, name: str) -> Pod | None:
        return next((p for p in self.pods.now.values() if p.name == name), None)

    def launcher(self, rank: int) -> Launcher:
        return self.launchers[self.member(rank).uid]

    @property
    def gang(self) -> list[Pod]:
        """The pods of the gang; others may be there, too."""
        return [p for p in self.pods.now.values() if LABEL_GANG in p.labels]

    @property
    def live(self) -> list[Pod]:
        """Those that have not ended."""
        return [p for p in self.gang if not p.is_terminal]

    @property
    def kept(self) -> set[str]:
        """Names of those that have ended and are still there."""
        return {p.name for p in self.gang if p.is_terminal and not p.is_deleting}

    def snapshot(self) -> Snapshot:
        """As the scheduler sees it; what is reserved is in no mask."""
        return build_snapshot(
            self.nodes.values(),
            self.ledger.now.values(),
            self.pods.now.values(),
            frozenset(self.dead),
            reserved=loan_reservations(self.job),
        )

    def own_snapshot(self) -> Snapshot:
        return self.snapshot().opened_to(f"{NAMESPACE}/{self.job.name}")

    def _lending(self) -> LendingView | None:
        if not (self.job.spec.lend_spares or self.status.loans):
            return None
        pods = {p.uid: p for p in self.pods.seen.values() if is_preemptible_pod(p)}
        waiting = [p for p in pods.values() if not p.spec.node_name and not p.is_deleting and p.status.conditions]
        return LendingView(tuple(waiting), pods, self._node_snapshot)

    def _node_snapshot(self, node: str) -> Snapshot:
        picture = build_snapshot(
            [self.nodes[node]],
            [self.ledger.now[node]],
            [p for p in self.pods.now.values() if p.spec.node_name == node],
            frozenset(self.dead),
            reserved=loan_reservations(self.job),
        )
        return picture.opened_to(f"{NAMESPACE}/{self.job.name}")

    # --- the controller -----------------------------------------------------------------------------------------------

    def observe(self) -> GangObserved:
        views = tuple(self._view(p) for p in self.pods.seen.values() if LABEL_GANG in p.labels)
        return GangObserved(self.job, views, self.own_snapshot, lending=self._lending(), capacity=self.capacity)

    def _view(self, pod: Pod) -> PodView:
        node = pod.spec.node_name
        return PodView(
            pod=pod,
            report=self.reports.seen.get(pod.uid),
            progress=self.beats.get(pod.uid),
            bad_device=self._judged(
                node, snapshot_devices_of_pod(pod), (DeviceState.UNHEALTHY, DeviceState.QUARANTINED)
            ),
            slow_device=self._judged(node, snapshot_devices_of_pod(pod), (DeviceState.DEGRADED,)),
            leaving=leaving_state_of_node(self.nodes[node]) if node in self.nodes else None,
            node_dead=node in self.dead,
        )

    def _judged(self, node: str, held: Iterable[str], states: Iterable[DeviceState]) -> Verdict | None:
        ledger = self.ledger.seen.get(node)
        found = (v for v in ledger.verdicts if v.device in held and v.state in states) if ledger else iter(())
        return next(found, None)

    def plan(self) -> TrainingPlan:
        return plan_training(self.observe(), self.now)

    def look(self, writes: int | None = None) -> TrainingPlan:
        """Observe, plan, apply. `writes`: the controller dies after so many of its writes (the status is the first)."""
        before, plan = self.status, self.plan()
        steps: list[Callable[[], None]] = []
        if plan.status != before:
            steps.append(lambda: self._write_status(plan.status))
        steps += [lambda q=q: self._quarantine(q.node, q.device, q.reason) for q in plan.quarantine]  # type: ignore[misc]
        steps += [lambda d=d: self._delete(d.uid, force=d.force) for d in plan.delete]  # type: ignore[misc]
        steps += [lambda r=r: self._delete(r.pod.uid) for r in plan.recall]  # type: ignore[misc]
        steps += [lambda body=body: self._create(body) for body in plan.create]  # type: ignore[misc]
        for step in steps[:writes]:
            step()
        for hook in self.on_look:
            hook(Applied(before, plan))
        return plan

    def _write_status(self, status: TrainingJobStatus) -> None:
        meta = msgspec.structs.replace(
            self.job.metadata, resource_version=str(int(self.job.metadata.resource_version) + 1)
        )
        self.job = msgspec.structs.replace(self.job, metadata=meta, status=status)

    def _quarantine(self, node: str, device: str, reason: str) -> None:
        old = self.ledger.now[node]
        orders = {**old.quarantine, device: QuarantineOrder(reason)}
        self.ledger.put(node, msgspec.structs.replace(old, quarantine=orders))

    def _delete(self, uid: str, *, force: bool = False) -> None:
        pod = self.pods.now.get(uid)
        if pod is None:
            return
        if force or not pod.spec.node_name or pod.is_terminal:
            self._remove(uid)
        elif not pod.is_deleting:
            grace = pod.spec.termination_grace_period_seconds
            meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=to_time(self.now + grace))
            self.pods.put(uid, msgspec.structs.replace(pod, metadata=meta))

    def _create(self, body: JsonObject) -> None:
        if self.pod(body["metadata"]["name"]) is not None:
            return  # AlreadyExists: harmless
        self.made += 1
        uid = f"uid-{self.made}"
        meta = {**body["metadata"], "uid": uid, "creationTimestamp": to_time(self.now)}
        self.pods.put(uid, from_wire(Pod, {**body, "metadata": meta}))

    def _remove(self, uid: str) -> None:
        self.pods.put(uid, None)
        if uid in self.reports.now:
            self.reports.put(uid, None)
        self.launchers.pop(uid, None)

    # --- the scheduler ------------------------------------------------------------------------------------------------

    def schedule(self, binds: int | None = None) -> None:
        """One cycle. `binds`: the scheduler dies after so many."""
        waiting = [
            p for p in self.pods.now.values() if not p.spec.node_name and not p.is_deleting and not p.is_terminal
        ]
        plan = plan_placement(self.snapshot(), gather_waiting_gangs(waiting, lambda p: self.gang, self._rack, self.now))
        for assignment in plan.assignments[:binds]:
            pod = self.pods.now[assignment.pod.uid]
            marks = {**pod.annotations, ANNOTATION_DEVICES: ",".join(assignment.devices)}
            self._patch(
                pod,
                meta={"annotations": marks},
                spec={"node_name": assignment.node},
                status={"conditions": with_condition([], "PodScheduled", True, "", "", to_time(self.now))},
            )
        for ask, refusal in plan.refused if binds is None else ():
            pod = self.pods.now[ask.uid]
            text = f"{refusal.message} {refusal.fix}".strip()
            said = with_condition(pod.status.conditions, "PodScheduled", False, refusal.reason, text, to_time(self.now))
            if said is not pod.status.conditions:
                self._patch(pod, status={"conditions": said})

    def _rack(self, node: str, topology: str) -> str | None:
        return self.nodes[node].labels.get(topology)

    def _patch(self, pod: Pod, **parts: dict[str, Any]) -> None:
        new = msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(pod.metadata, **parts.get("meta", {})),
            spec=msgspec.structs.replace(pod.spec, **parts.get("spec", {})),
            status=msgspec.structs.replace(pod.status, **parts.get("status", {})),
        )
        self.pods.put(pod.uid, new)

    # --- nodes and agents ---------------------------------------------------------------------------------------------

    def kubelet(self, uid: str, *, refuse: bool = False) -> None:
        """The pod's node does the next thing with it: starts it, restarts its launcher, or lets it go."""
        pod = self.pods.now.get(uid)
        if uid in self.lagging or pod is None or not pod.spec.node_name or pod.spec.node_name in self.off:
            return
        launcher = self.launchers.get(uid)
        if pod.is_deleting:
            if launcher is None or not (launcher.cannot_stop and launcher.is_at_work):
                self._remove(uid)
        elif pod.is_terminal:
            return
        elif refuse:
            self.kill_launcher(uid)  # one that ran is admitted anew when its node comes back
            self._patch(pod, status={"phase": "Failed", "reason": "UnexpectedAdmissionError"})
        elif pod.status.phase == "Pending":
            self._patch(pod, status={"phase": "Running", "pod_ip": f"127.0.0.{uid.removeprefix('uid-')}"})
            self.launchers[uid] = Launcher(uid)
            self._report(uid)
        elif launcher is not None and launcher.state == "gone":
            self.launchers[uid] = Launcher(uid)
            self._report(uid)

    def agent(self, uid: str) -> None:
        """The agent tells the pod's launcher what the job, as the agent last saw it, wants of it; the launcher obeys."""
        pod, launcher = self.pods.now.get(uid), self.launchers.get(uid)
        if (
            uid in self.lagging
            or pod is None
            or launcher is None
            or pod.spec.node_name in self.off
            or launcher.state == "gone"
        ):
            return
        job = self.told.get(pod.spec.node_name)
        if job is not None and job.status.phase == "Failed" and not pod.is_terminal:
            self._leave(pod, launcher)
        if job is None or not job.status.attempt or job.is_finished:
            return
        member = next((m for m in job.status.members if m.uid == uid), None)
        attempt = job.status.attempt
        if launcher.attempt < attempt and (member is not None or launcher.state in ("ready", "running", "stopping")):
            self._stop(launcher, attempt, member.rank if member else None)
        elif (
            member is not None
            and job.status.barrier == "Open"
            and member.role not in job.status.held_roles
            and (launcher.state, launcher.attempt) == ("ready", attempt)
        ):
            launcher.state, launcher.rank = "running", member.rank
            launcher.step = launcher.resumed_at = launcher.saved = job.status.resume_step or 0
            launcher.first_step_at = None
            self._report(uid)

    def _leave(self, pod: Pod, launcher: Launcher) -> None:
        """Told that the job is over: the launcher ends what runs and leaves with 0, and the pod has ended."""
        if launcher.cannot_stop and launcher.is_at_work:
            launcher.state = "stopping"
        else:
            launcher.state = "gone"
            self._patch(pod, status={"phase": "Succeeded"})
        self._report(pod.uid)

    def _stop(self, launcher: Launcher, attempt: int, rank: int | None) -> None:
        if launcher.cannot_stop and launcher.is_at_work:
            launcher.state = "stopping"
            self._report(launcher.uid)
            return
        launcher.state, launcher.attempt, launcher.rank = "ready", attempt, rank
        usable = sorted(self.checkpoints.get(rank, ()), reverse=True) if rank is not None else []
        self._report(launcher.uid, checkpoints=usable)

    def _report(self, uid: str, **fields: Any) -> None:
        launcher, pod = self.launchers[uid], self.pods.now[uid]
        report = LauncherReport(pod.name, uid, launcher.state, launcher.attempt, time=to_time(self.now), **fields)
        if self.reports.now.get(uid) != report:
            self.reports.put(uid, report)

    def judge(self) -> None:
        """The failure controller writes verdicts."""
        for name, node in list(self.ledger.now.items()):
            verdicts = judge_node(node, self.pods.now.values(), self.now)
            if verdicts != node.verdicts:
                self.ledger.put(name, msgspec.structs.replace(node, verdicts=verdicts))

    def train(self, steps: int = 1) -> None:
        """Ranks step together, or not at all: a collective waits for everyone."""
        ranks = [self.launchers.get(m.uid) for m in self.status.members]
        at_work = [r for r in ranks if r is not None and r.state == "running" and r.attempt == self.status.attempt]
        on = [r for r in at_work if self.reports.now[r.uid].hung_since is None]
        if not on or len(on) < sum(self.status.sizes.get(r.name, r.replicas) for r in self.job.spec.roles):
            return
        for _ in range(steps):
            self.now += 1.0
            for rank in on:
                rank.step += 1
                rank.first_step_at = rank.first_step_at or self.now
                if (rank.step % CHECKPOINT_EVERY == 0 or self._is_asked(rank)) and rank.rank is not None:
                    self.checkpoints.setdefault(rank.rank, set()).add(rank.step)
                    rank.saved = rank.step
        for rank in on:
            saved = rank.saved
            self.beats[rank.uid] = MemberProgress(
                attempt=rank.attempt,
                step=rank.step,
                time=self.now,
                first_step_time=rank.first_step_at or self.now,
                step_seconds=1.0,
                checkpoint=saved or None,
                checkpoint_time=self.now - (rank.step - saved),
            )

    def _is_asked(self, rank: Launcher) -> bool:
        """The rank's agent was told to ask for a checkpoint, and this is the step for it."""
        pod = self.pods.now.get(rank.uid)
        job = self.told.get(pod.spec.node_name) if pod is not None else None
        request = job.status.checkpoint_request if job is not None else None
        if request is None or (request.attempt, rank.served < request.id) != (rank.attempt, True):
            return False
        if self.answers_requests and rank.step >= request.step:
            rank.served = request.id
            return True
        return False

    # --- what breaks --------------------------------------------------------------------------------------------------

    def crash(self, uid: str, code: int = 1, message: str = "", tail: str = "") -> bool:
        """The process of a running rank ends by itself. False when none runs there."""
        launcher = self.launchers.get(uid)
        if launcher is None or launcher.state != "running" or launcher.cannot_stop:
            return False
        launcher.state = "exited"
        self._report(uid, code=code, message=message, tail=tail)
        return True

    def hang(self, uid: str) -> bool:
        launcher = self.launchers.get(uid)
        if launcher is None or launcher.state != "running":
            return False
        self._report(uid, hung_since=to_time(self.now))
        return True

    def kill_launcher(self, uid: str) -> bool:
        launcher = self.launchers.get(uid)
        if launcher is None or launcher.state == "gone" or launcher.cannot_stop:
            return False
        launcher.state = "gone"
        self._report(uid)
        return True

    def fail_device(self, node: str, device: str, code: str = "xid-79") -> None:
        self.broken.add((node, device))
        self.signal(node, device, Signal("kmsg", code, time=to_time(self.now)))

    def slow_device(self, node: str, device: str, factor: float = 2.0) -> None:
        """Ranks on it take so many times longer than their peers, and it is known which device it is."""
        words = f"its ranks take {factor:g} x the median of their peers"
        self.signal(node, device, Signal("straggler", "straggler", words, to_time(self.now)))

    def signal(self, node: str, device: str, new: Signal) -> None:
        old = self.ledger.now[node]
        devices = [
            msgspec.structs.replace(d, signals=[*d.signals, new]) if d.id == device else d for d in old.observed.devices
        ]
        observed = msgspec.structs.replace(old.observed, devices=devices)
        self.ledger.put(node, msgspec.structs.replace(old, observed=observed))

    def announce(self, node: str, condition: str, seconds: float | None = 600.0) -> None:
        """The node is told that it goes, after so many seconds or at any moment."""
        when = "" if seconds is None else f" at {to_time(self.now + seconds):%Y-%m-%dT%H:%M:%SZ}"
        old = self.nodes[node]
        said = with_condition(old.status.conditions, condition, True, "Notice", f"It goes{when}.", to_time(self.now))
        self.nodes[node] = msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, conditions=said))

    def edit(self, **spec: Any) -> None:
        """The user changes the job."""
        self.job = msgspec.structs.replace(self.job, spec=msgspec.structs.replace(self.job.spec, **spec))

    def offer(self, **amounts: int | str) -> None:
        """What every node has beside its devices."""
        for name, old in self.nodes.items():
            status = msgspec.structs.replace(old.status, allocatable={**old.status.allocatable, **amounts})
            self.nodes[name] = msgspec.structs.replace(old, status=status)

    def delete_pod(self, uid: str) -> None:
        self._delete(uid)

    def power_off(self, node: str) -> None:
        """The machine is gone with all it ran; nobody knows before its lease has run out (`expire`)."""
        self.off.add(node)
        for uid, pod in self.pods.now.items():
            if pod.spec.node_name == node:
                self.launchers.pop(uid, None)

    def expire(self, node: str) -> None:
        self.dead.add(node)

    def occupy(self, node: str) -> None:
        """Somebody else takes what is free on the node."""
        snapshot = self.snapshot()
        ix = next(i for i, view in enumerate(snapshot.nodes) if view.name == node)
        free = [d for bit, d in enumerate(snapshot.nodes[ix].devices) if snapshot.free[ix] >> bit & 1]
        if free:
            self.made += 1
            uid = f"other-{self.made}"
            meta = {"name": uid, "namespace": "else", "uid": uid, "annotations": {ANNOTATION_DEVICES: ",".join(free)}}
            body = {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running"}}
            self.pods.put(uid, from_wire(Pod, body))

    def ask_preemptibly(self, gpus: int, **others: int | str) -> str:
        """A preemptible pod comes and waits for so many devices, and for the other resources; its uid."""
        return self.ask(gpus, "guest", {ANNOTATION_PREEMPTIBLE: "true"}, **others)

    def ask(self, gpus: int, name: str, annotations: Mapping[str, str] | None = None, **others: int | str) -> str:
        """A pod that is not the gang's comes and waits for room; its uid."""
        self.made += 1
        uid = f"{name}-{self.made}"
        meta: JsonObject = {"name": uid, "namespace": "else", "uid": uid, "creationTimestamp": to_time(self.now)}
        meta["annotations"] = dict(annotations or {})
        container = {"name": "main", "resources": {"limits": {RESOURCE_GPU: gpus, **others} if gpus else others}}
        self.pods.put(uid, from_wire(Pod, {"metadata": meta, "spec": {"containers": [container]}}))
        return uid

    def vacate(self) -> None:
        for uid in [uid for uid, p in self.pods.now.items() if LABEL_GANG not in p.labels]:
            self._remove(uid)

    # --- all of them, fairly ------------------------------------------------------------------------------------------

    def round(self, seconds: float = 0.1) -> None:
        """Everyone gets one turn and sees everything."""
        self.judge()
        self.round_without_verdicts()
        self.advance(seconds)

    def round_without_verdicts(self) -> None:
        """A round in which nobody judges devices, and no time passes."""
        self.deliver()
        self.look()
        self.schedule()
        for node in self.nodes:
            self.tell(node)
        for uid in list(self.pods.now):
            self.kubelet(uid)
        for uid in list(self.launchers):
            self.agent(uid)
        self.deliver()

    def settle(self, rounds: int = 30, seconds: float = 0.1) -> GangModel:
        for _ in range(rounds):
            self.round(seconds)
        return self

    def start(self, steps: int = 7) -> GangModel:
        """At work, and so many steps far."""
        self.settle()
        assert self.is_running, self.status.message
        self.train(steps)
        return self.settle(2)

    def recover(self) -> GangModel:
        """At work again, and one step further."""
        return self.start(steps=1)

    def break_device(self, rank: int) -> None:
        """The rank's first device fails, and everybody important has seen it."""
        member = self.member(rank)
        self.fail_device(member.node, member.devices[0])
        self.judge()
        self.deliver()

    def lose_node(self, rank: int) -> str:
        """The rank's node goes, for good."""
        node = self.member(rank).node
        self.power_off(node)
        self.expire(node)
        return node

    def train_in_rounds(self, steps: int) -> GangModel:
        """Steps of a second each; everybody hears of each."""
        for _ in range(steps):
            self.train(1)
            self.round(0.0)
        return self

    @property
    def is_running(self) -> bool:
        """Every rank really runs the job's attempt."""
        ranks = [self.launchers.get(m.uid) for m in self.status.members]
        return (
            self.status.barrier == "Open"
            and self.status.phase == "Running"
            and all(r is not None and (r.state, r.attempt) == ("running", self.status.attempt) for r in ranks)
        )


def a_gang(job: JobBuilder, nodes: Iterable[NodeBuilder]) -> GangModel:
    """The job was just created; nothing has happened yet."""
    made = list(nodes)
    ledger: Feed[NodeDevices] = Feed()
    for builder in made:
        ledger.put(builder.name, builder.devices())
    ledger.deliver()
    model = GangModel(job.build(), {b.name: b.node() for b in made}, ledger)
    assert model.job.namespace == NAMESPACE
    return model

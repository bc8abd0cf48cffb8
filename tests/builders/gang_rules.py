"""What must hold for a gang after every single step, whatever broke and whoever saw what: the rules, plainly.

`Rules` drives a `GangModel`, remembers what was really done to which pod, and checks after each step. Nothing here is taken
from the code under test.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from remuda.api.devices import DeviceState
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.api.training import Cause, TrainingJobStatus
from remuda.core.state.leaving_nodes import leaving_state_of_node
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.core.training.job_plan import plan_training
from remuda.core.training.planning_context import GangObserved, TrainingPlan
from tests.builders.gang_model import GangModel, Launcher

# A process that dies may be the first sign of something else.
SYMPTOMS = {Cause.CODE, Cause.HANG}


class Rules:
    def __init__(self, model: GangModel) -> None:
        self.model = model
        self.done_to: dict[str, set[Cause]] = {}  # pod name -> what was done to it
        self.allowed: dict[str, int] = {}  # how often each cause may have been charged by now
        job = model.job
        self.size = sum(role.replicas for role in job.spec.roles)
        self.least = sum(role.min_replicas or role.replicas for role in job.spec.roles)
        self.gpus = job.spec.roles[0].gpus
        self.spares = job.spec.spares
        self.befell: set[tuple[str, str]] = set()  # (uid, what)
        self.done_again: dict[datetime | None, int] = {}  # recovery -> steps made a second time, at a second each
        self.opened: dict[int, dict[int, str]] = {}  # attempt -> rank -> uid

    def note(self, uid: str, *causes: Cause) -> None:
        pod = self.model.pods.now.get(uid)
        if pod is not None:
            self.done_to.setdefault(pod.name, set()).update(causes)
            for cause in causes:
                self.allowed[cause.value] = self.allowed.get(cause.value, 0) + 1

    def _note_what_befell_them(self) -> None:
        """Nobody did anything to these pods themselves: they sit on something broken, or are slower than they may be."""
        model, status = self.model, self.model.status
        for uid, pod in model.pods.now.items():
            if pod.spec.node_name in model.off:
                self._note_once(uid, Cause.INFRA, "lost")
            if any((pod.spec.node_name, device) in model.broken for device in snapshot_devices_of_pod(pod)):
                self._note_once(uid, Cause.DEVICE, "broken")
        raised = status.attempt_raised_at
        if status.barrier == "Closed" and raised is not None and model.now - to_seconds(raised) > 10.0:
            for member in status.members:
                report = model.reports.seen.get(member.uid)
                if report is None or (report.state, report.attempt) != ("ready", status.attempt):
                    self._note_once(member.uid, Cause.INFRA, f"slow in attempt {status.attempt}")

    def _note_once(self, uid: str, cause: Cause, why: str) -> None:
        if (uid, why) not in self.befell:
            self.befell.add((uid, why))
            self.note(uid, cause)

    # --- one look -----------------------------------------------------------------------------------------------------

    def look(self, writes: int | None = None) -> None:
        model = self.model
        observed = model.observe()
        plan = plan_training(observed, model.now)
        assert plan_training(observed, model.now) == plan, "planning twice on equal input differs"
        self._changes_nothing_more(observed, plan)
        before = model.status
        self._note_what_befell_them()
        self._moves_rightly(before, plan.status)
        self._is_charged_rightly(before, plan.status)
        model.look(writes)
        if model.status == plan.status:
            self.done_again |= _done_again(plan.status)
            if plan.status.barrier == "Open":
                self.opened[plan.status.attempt] = {m.rank: m.uid for m in plan.status.members}

    def _changes_nothing_more(self, observed: GangObserved, plan: TrainingPlan) -> None:
        job = msgspec.structs.replace(observed.job, status=plan.status)
        again = plan_training(msgspec.structs.replace(observed, job=job), self.model.now)
        assert again.status == plan.status, _difference(plan.status, again.status)
        assert again.delete == plan.delete, f"deletes {plan.delete} -> {again.delete}"
        assert again.create == plan.create, f"creates {_names(plan)} -> {_names(again)}"
        assert again.quarantine == plan.quarantine

    def _moves_rightly(self, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
        assert new.attempt >= old.attempt, "the attempt went down"
        ranks = {m.rank: m.uid for m in new.members}
        assert len(ranks) == len(new.members), f"a rank twice: {new.members}"
        assert len(set(ranks.values())) == len(ranks), f"a pod with two ranks: {new.members}"
        held = {m.rank: m.uid for m in old.members}
        if new.attempt == old.attempt:
            moved = {r for r in held if ranks.get(r) != held[r]}
            assert not moved, f"ranks {moved} taken away without a new attempt"
            assert (old.barrier, new.barrier) != ("Open", "Closed") or new.phase == "Failed", "closed, same attempt"
            if old.barrier == "Open":
                assert ranks == held, "ranks assigned while the barrier is open"
        else:
            assert new.barrier == "Closed", "a new attempt starts closed"
        if new.barrier == "Open":
            size = self._size(new)
            assert sorted(ranks) == list(range(size)), f"open with ranks {sorted(ranks)}"
            assert self.least <= size <= self.size, f"open with {size} ranks, {self.least} to {self.size} are allowed"
            if old.barrier == "Closed":
                at_work = self._at_work(new)
                assert not at_work, f"open while {at_work} run"
                assert new.attempt not in self.opened, "one attempt opened twice"
        if new.phase in ("Failed", "Succeeded"):
            assert new.reason
        assert 0.0 <= new.goodput.ettr <= 1.0
        assert min(new.goodput.lost_gpu_seconds.values(), default=0.0) >= 0.0
        self._no_second_is_lost_twice(new)

    def _size(self, status: TrainingJobStatus) -> int:
        return sum(status.sizes.get(role.name, role.replicas) for role in self.model.job.spec.roles)

    def _no_second_is_lost_twice(self, new: TrainingJobStatus) -> None:
        if len(new.worlds) > 1 or new.sizes:
            return  # a gang of changing size loses other GPUs each time
        goodput = new.goodput
        by_cause = sum(goodput.lost_gpu_seconds.values())
        assert abs(by_cause - goodput.lost_seconds * self.size * self.gpus) < 0.1 * max(1, len(self.opened)), goodput
        if new.started_at is not None:
            wall = self.model.now - to_seconds(new.started_at)
            again = sum((self.done_again | _done_again(new)).values())
            assert goodput.lost_seconds <= wall + again + 0.1, f"{goodput} in {wall} s, {again} s done again"

    def _is_charged_rightly(self, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
        rises = {c for c in new.used if new.used[c] > old.used.get(c, 0)}
        falls = {c for c in old.used if new.used.get(c, 0) < old.used[c]}
        assert all(new.used[c] - old.used.get(c, 0) == 1 for c in rises), f"{old.used} -> {new.used}"
        if falls:
            assert falls <= SYMPTOMS, f"given back: {falls}"
            assert len(falls) == 1, f"{old.used} -> {new.used}"
            assert rises, f"{old.used} -> {new.used}: given back and charged to nobody"
        is_new = new.interruptions > old.interruptions or new.recoveries != old.recoveries
        last = new.recoveries[-1] if new.recoveries and is_new else None
        is_code = last is not None and last.reason == "SameStepFailing"
        if is_code and Cause.CODE in rises:
            self.allowed["code"] = self.allowed.get("code", 0) + 1
        for cause, count in new.used.items():
            if cause == "admission":  # refusals by nodes: no cause of an interruption, counted beside the budgets
                continue
            assert count <= self.allowed.get(cause, 0), f"{cause} charged {count} times, {self.allowed} was done"
        is_free = new.suspended_at is not None or (last is not None and last.charged == "")
        if new.attempt > old.attempt and old.barrier == "Open" and not is_free:
            assert rises, "an interruption that nobody was charged for"
        if last is not None and len(new.recoveries) > len(old.recoveries) and not is_code:
            causes = set().union(*(self.done_to.get(pod, set()) for pod in last.members))
            assert last.cause in causes, f"{last.members} charged to {last.cause}, but {causes} was done"

    # --- at any moment ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        model, status = self.model, self.model.status
        holders: dict[tuple[str, str], str] = {}
        for pod in model.pods.now.values():
            for device in snapshot_devices_of_pod(pod) if pod.spec.node_name and not pod.is_terminal else ():
                other = holders.setdefault((pod.spec.node_name, device), pod.name)
                assert other == pod.name, f"{device} of {pod.spec.node_name} held by {other} and {pod.name}"
        ranks: dict[int, str] = {}
        for launcher in self._at_work(status):
            assert launcher.rank is not None
            assert ranks.setdefault(launcher.rank, launcher.uid) == launcher.uid, f"rank {launcher.rank} runs twice"
            assert self.opened[launcher.attempt].get(launcher.rank) == launcher.uid, f"{launcher} was never let in"
            if status.barrier == "Open":
                assert launcher.attempt == status.attempt, f"{launcher} runs, {status.attempt} is open"
        live = [p for p in model.gang if not p.is_deleting and not p.is_terminal]
        assert len(live) <= self.size + self.spares, f"too many pods: {[p.name for p in live]}"
        if status.placement.topology:
            block = model.job.spec.topology.segment_size or self.size
            for first in range(0, self.size, block):
                here = [m for m in status.members if first <= m.rank < first + block]
                racks = {model.nodes[m.node].labels[status.placement.topology] for m in here}
                assert len(racks) <= 1, f"members of one segment in {racks}"

    def _at_work(self, status: TrainingJobStatus) -> list[Launcher]:
        """Launchers with a living process, but for those that did not stop in time: they are given up."""
        given_up = {r.uid for r in status.retired if r.reason == "MemberNotStopped"}
        return [r for r in self.model.launchers.values() if r.is_at_work and r.uid not in given_up]

    # --- in the end ---------------------------------------------------------------------------------------------------

    def has_capacity(self) -> bool:
        """Whether some domain has room for the whole gang, counted device by device."""
        model = self.model
        held = [p for p in model.pods.now.values() if p not in model.gang or self._is_stuck(p)]
        stuck = {(p.spec.node_name, d) for p in held for d in snapshot_devices_of_pod(p)}
        topology = model.status.placement.topology
        room: dict[str, int] = {}
        for name, node in model.nodes.items():
            if name in model.dead:
                continue
            ledger = model.ledger.now[name]
            good = {v.device for v in ledger.verdicts if v.state is DeviceState.HEALTHY} - set(ledger.quarantine)
            if leaving_state_of_node(node) is not None:
                continue
            free = [d for d in good if (name, d) not in stuck]
            domain = node.labels[topology] if topology else ""
            room[domain] = room.get(domain, 0) + len(free) // self.gpus
        block = model.job.spec.topology.segment_size
        if topology and 0 < block < self.size:
            blocks = [min(block, self.size - first) for first in range(0, self.size, block)]
            return _all_fit(sorted(blocks, reverse=True), sorted(room.values()))
        return max(room.values(), default=0) >= self.least

    def _is_stuck(self, pod: Pod) -> bool:
        launcher = self.model.launchers.get(pod.uid)
        return launcher is not None and launcher.cannot_stop and launcher.is_at_work

    def check_given_up(self) -> None:
        """What cannot be stopped was taken out of use. (Of a job that has ended, the pod itself still holds its devices.)"""
        members = {m.uid for m in self.model.status.members}
        for launcher in self.model.launchers.values() if not self.model.job.is_finished else ():
            pod = self.model.pods.now[launcher.uid]
            if launcher.cannot_stop and launcher.is_at_work and launcher.uid not in members:
                usable = [
                    d for d in snapshot_devices_of_pod(pod) if self.model.snapshot().is_usable(pod.spec.node_name, d)
                ]
                assert not usable, f"{pod.name} still runs on {usable}"

    def describe(self) -> str:
        model, status = self.model, self.model.status
        lines = [
            f"t={model.now:.1f} {status.phase} {status.reason}: {status.message}",
            f"attempt {status.attempt} {status.barrier} used {status.used} placement {status.placement}",
            *(f"  rank {m.rank}: {m.pod} on {m.node} {m.devices}" for m in status.members),
            *(f"  retired {r.pod}: {r.reason} {r.until}" for r in status.retired),
            *(f"  {r.attempt}: {r.cause} {r.reason} {r.remedy} {r.members} -> {r.replaced}" for r in status.recoveries),
        ]
        for pod in model.pods.now.values():
            said = [f"{c.reason}: {c.message}" for c in pod.status.conditions if c.status == "False"]
            lines.append(
                f"  pod {pod.name} {pod.spec.node_name} {pod.status.phase} deleting={pod.is_deleting} "
                f"{model.launchers.get(pod.uid)} {said}"
            )
        return "\n".join(lines)


def _all_fit(blocks: list[int], rooms: list[int]) -> bool:
    """Whether every block fits whole into some room; the tightest first."""
    for block in blocks:
        fitting = [ix for ix, room in enumerate(rooms) if room >= block]
        if not fitting:
            return False
        best = min(fitting, key=lambda ix: rooms[ix])
        rooms[best] -= block
    return True


def _done_again(status: TrainingJobStatus) -> dict[datetime | None, int]:
    """Steps that each recovery, once it has made its first one, makes a second time."""
    return {
        r.detected_at: max(0, r.step_at_fault - r.resume_step) for r in status.recoveries if r.first_step_at is not None
    }


def _names(plan: TrainingPlan) -> list[str]:
    return [body["metadata"]["name"] for body in plan.create]


def _difference(first: TrainingJobStatus, second: TrainingJobStatus) -> str:
    found = [
        f"{name}: {getattr(first, name)} -> {getattr(second, name)}"
        for name in TrainingJobStatus.__struct_fields__
        if getattr(first, name) != getattr(second, name)
    ]
    return "planning again changes " + "; ".join(found)

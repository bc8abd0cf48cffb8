"""A gang on an embedded cluster, faults, and how long its recoveries took. Real processes and simulated pods alike.

Times come from the job's own record of the recovery and from the blow's record in the drill; nothing is timed by polling.
What must hold besides is checked each time and raises `Broken`: pods and devices kept, one replaced at most, one attempt more.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.marks import Broken
from remuda.api.drills import Drill, DrillKind, DrillSpec
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import ObjectMeta, to_seconds
from remuda.api.training import (
    UNLIMITED,
    Budgets,
    Failure,
    PodTemplate,
    Recovery,
    Remedy,
    Role,
    TrainingJob,
    TrainingJobSpec,
    TrainingJobStatus,
)
from remuda.embedded.apiserver.store.sqlite_journal import SqliteJournal
from remuda.embedded.node.training_model import SimulatedBehaviour
from remuda.runtime.embedded_cluster import EmbeddedCluster
from remuda.runtime.up_config import ClusterConfig

NAME, NAMESPACE = "bench", "default"
RANK_SCRIPT = Path(__file__).with_name("rank.py")
NO_LIMIT = Budgets(code=UNLIMITED, device=UNLIMITED, infra=UNLIMITED, hang=UNLIMITED)


class Times(msgspec.Struct, frozen=True):
    """Seconds from the blow, or from the first signal where that is earlier."""

    began: float
    detected: float
    stopped: float
    opened: float
    attempt: int


def make_cluster(config: ClusterConfig, root: Path, step_s: float = 1.0) -> EmbeddedCluster:
    return EmbeddedCluster(
        config,
        SqliteJournal(root / "store.db"),
        root=root,
        clock=time.time,
        chance=random.Random(0),
        new_uid=lambda: str(uuid.uuid4()),
        behaviour=lambda pod: SimulatedBehaviour(step_s=step_s, checkpoint_every=2),
    )


def rank_command() -> list[str]:
    return [sys.executable, str(RANK_SCRIPT)]


def make_job(replicas: int, marks: Path) -> TrainingJob:
    """`marks`: where the ranks leave theirs. Simulated pods do not run their command."""
    container = {"name": "main", "command": [*rank_command(), str(marks)]}
    role = Role(replicas=replicas, gpus=1, template=PodTemplate(spec={"containers": [container]}))
    return TrainingJob(
        metadata=ObjectMeta(name=NAME, namespace=NAMESPACE),
        spec=TrainingJobSpec(roles=[role], spares=1, failure=Failure(budgets=NO_LIMIT)),
    )


class Gang:
    """The job on a running cluster. Every method that waits does so on the cluster's own informers, with a deadline."""

    def __init__(self, cluster: EmbeddedCluster, timeout_s: float = 60.0) -> None:
        self.cluster = cluster
        self._timeout_s = timeout_s
        self._changed = asyncio.Event()
        view = cluster.control.view
        for informer in (view.jobs, view.pods):
            informer.subscribe(lambda old, new: self._changed.set())
        cluster.board.subscribe(lambda namespace, gang, notable: self._changed.set())

    @property
    def status(self) -> TrainingJobStatus:
        job = self.cluster.control.view.jobs.get(NAME, NAMESPACE)
        return job.status if job is not None else TrainingJobStatus()

    async def start(self, job: TrainingJob) -> None:
        await self.cluster.api.create(TrainingJob, job)
        await self.settle()

    async def settle(self) -> None:
        """Until every rank has taken a step and saved one of this attempt, and a spare waits."""

        def settled() -> bool:
            status = self.status
            last = status.recoveries[-1] if status.recoveries else None
            done = last is None or (last.opened_at is not None and last.first_step_at is not None)
            resumed = last.resume_step if last is not None else 0
            told = self.cluster.board.of_gang(NAMESPACE, NAME)
            saved = all(
                (rank := told.get(member.uid)) is not None
                and rank.last.attempt == status.attempt
                and (rank.checkpoint or 0) > resumed
                for member in status.members
            )
            is_at_work = status.phase == "Running" and status.progress.checkpoint_step > resumed
            return is_at_work and done and saved and any(spare.parked for spare in status.spares)

        await self._until("the gang to train", settled)

    async def kill_process(self, rank: int) -> Times:
        """All members must be what they were before."""
        before = self.status
        began = await self._drill(DrillSpec(DrillKind.PROCESS_KILL, pod=before.members[rank].pod, namespace=NAMESPACE))
        recovery = await self._recovery(before)
        _expect(recovery, Remedy.RESTART_IN_PLACE)
        _check_members(before, self.status, moved=set())
        return _times(began, recovery)

    async def fail_device(self, rank: int) -> Times:
        """The rank must move to the parked spare, the others must stay."""
        before = self.status
        victim = before.members[rank]
        began = await self._drill(
            DrillSpec(DrillKind.DEVICE_FAIL, node=victim.node, device=victim.devices[0], code="xid-79")
        )
        recovery = await self._recovery(before)
        _expect(recovery, Remedy.PROMOTE_SPARE)
        _check_members(before, self.status, moved={rank})
        if self.status.members[rank].uid not in {spare.uid for spare in before.spares}:
            raise Broken(f"rank {rank} went to {self.status.members[rank].pod}, which was not the spare")
        return _times(began, recovery)

    async def recreate(self) -> tuple[float, int]:
        """Delete every pod of the gang, as a controller does that knows no other remedy.

        Returns when that was and the attempt that the new pods run once the barrier is open.
        """
        view = self.cluster.control.view
        old = {pod.uid: pod for pod in view.pods.by_index("gang", f"{NAMESPACE}/{NAME}")}
        began = time.time()
        await asyncio.gather(*(self.cluster.api.delete(Pod, pod.name, NAMESPACE) for pod in old.values()))

        def recreated() -> bool:
            status = self.status
            is_new = not any(member.uid in old for member in status.members)
            return status.barrier == "Open" and is_new and bool(status.members)

        await self._until("the gang to be recreated", recreated)
        return began, self.status.attempt

    async def _recovery(self, before: TrainingJobStatus) -> Recovery:
        """The one recovery after `before`, once the barrier is open again."""

        def is_open() -> bool:
            return self.status.attempt > before.attempt and self.status.barrier == "Open"

        await self._until("the barrier to open", is_open)
        if self.status.attempt != before.attempt + 1:
            raise Broken(f"one fault raised the attempt from {before.attempt} to {self.status.attempt}")
        return self.status.recoveries[-1]

    async def _drill(self, spec: DrillSpec) -> float:
        """When the blow fell."""
        name = f"{spec.type.value}-{uuid.uuid4().hex[:8]}"
        await self.cluster.api.create(Drill, Drill(metadata=ObjectMeta(name=name), spec=spec))
        done: list[Drill] = []

        async def wait() -> None:
            async for event in self.cluster.api.watch(Drill, "0"):
                if event.obj is not None and event.obj.name == name and event.obj.status.phase != "Pending":
                    done.append(event.obj)
                    return

        async with asyncio.timeout(self._timeout_s):
            await wait()
        status = done[0].status
        if status.phase != "Done" or status.time is None:
            raise Broken(f"the drill was refused: {status.reason}: {status.message}")
        return to_seconds(status.time)

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while not holds():
                    if self.status.phase == "Failed":
                        raise Broken(f"the job failed: {self.status.reason}: {self.status.message}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            status = self.status
            words = f"waited {self._timeout_s:g} s for {what}; the job is {status.phase}: {status.message}"
            raise Broken(words) from None


def _times(began: float, recovery: Recovery) -> Times:
    marks = (recovery.signal_at, recovery.detected_at, recovery.stopped_at, recovery.opened_at)
    signal, *others = [to_seconds(moment) for moment in marks if moment is not None]
    if len(others) != 3:
        raise Broken(f"the record of attempt {recovery.attempt} lacks a time")
    began = min(began, signal)
    detected, stopped, opened = (moment - began for moment in others)
    return Times(began, detected, stopped, opened, recovery.attempt)


def _expect(recovery: Recovery, remedy: Remedy) -> None:
    if recovery.remedy is not remedy:
        raise Broken(f"the remedy was {recovery.remedy} ({recovery.reason}), expected {remedy}")
    if recovery.resume_step <= 0:
        raise Broken("training started over instead of resuming from its checkpoint")


def _check_members(before: TrainingJobStatus, after: TrainingJobStatus, moved: set[int]) -> None:
    if [m.rank for m in after.members] != [m.rank for m in before.members]:
        raise Broken("the ranks after the recovery are not those before it")
    held: Sequence[tuple[str, str]] = [(m.node, device) for m in after.members for device in m.devices]
    if len(held) != len(set(held)):
        raise Broken("a device is held twice")
    for old, new in zip(before.members, after.members, strict=True):
        if old.rank in moved:
            if new.uid == old.uid:
                raise Broken(f"rank {old.rank} still has pod {old.pod}")
        elif (new.uid, new.node, new.devices) != (old.uid, old.node, old.devices):
            raise Broken(f"rank {old.rank} lost its pod or devices: {old.pod} -> {new.pod}")

"""A world whose nodes share no directory: each has a disk of its own, and copies of checkpoints go between the disks of nodes
that are up. The care for copies (`agent.copies.rank_copies`), the registry of launchers, the barrier and the manager are the real
ones; files and the way between nodes are models.

At each opening of a barrier it is checked that the gang goes on from no earlier step than the newest that every rank had told
upwards as safe, and that what the ranks go on from is of one history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from remuda.agent.agent import Agent
from remuda.agent.copies.copy_ports import CopyList, CopyRefused, CopySourceGone, JobKey
from remuda.agent.copies.rank_copies import RankCopies
from remuda.api.training import Member, TrainingJob
from remuda.core.training.checkpoint_copies import (
    CopyCandidate,
    copies_to_drop,
    is_in_history,
    is_rank_hosted_by,
)
from remuda.embedded.apiserver.store.record import StoreEvent
from remuda.embedded.node.training_model import Job, SimulatedCheckpoints
from remuda.launch.protocol import MAX_CHECKPOINTS
from remuda.link.copy_wire import CopyMark
from remuda.link.progress_board import Heartbeat
from remuda.runtime.embedded_cluster import EmbeddedCluster
from tests.builders.world import NAMESPACE, World

KEEP = 3  # as the helper in user code does
Content = int  # the attempt whose child wrote it


class NodeDisk(SimulatedCheckpoints):
    """What is on one node: the job's directory, copies of others, and which attempts ran here."""

    def __init__(self, attempt_of: Callable[[Job], int]) -> None:
        super().__init__()
        self._attempt_of = attempt_of
        self._runs: dict[tuple[Job, int], int] = {}
        self.contents: dict[tuple[Job, int, int], Content] = {}
        self.copies: dict[tuple[str, int], dict[int, tuple[CopyMark, Content]]] = {}
        self.held: dict[tuple[str, int], dict[int, tuple[CopyMark, Content]]] = {}
        self.homes: dict[tuple[str, int], int] = {}

    def go_on_from(self, job: Job, rank: int, step: int) -> None:
        super().go_on_from(job, rank, step)
        self._runs[job, rank] = self._attempt_of(job)

    def save(self, job: Job, rank: int, step: int) -> None:
        super().save(job, rank, step)
        self.contents[job, rank, step] = self._runs[job, rank]
        del self._steps[job, rank][:-KEEP]

    def place(self, job: Job, rank: int, step: int, content: Content) -> None:
        SimulatedCheckpoints.save(self, job, rank, step)
        self.contents[job, rank, step] = content

    def wipe(self) -> None:
        for kept in (self._steps, self._abandoned, self._corrupt, self.contents, self.copies, self.held, self.homes):
            kept.clear()


class DiskFiles:
    def __init__(self, disk: NodeDisk) -> None:
        self._disk = disk

    async def home(self, key: JobKey, rank: int) -> int:
        return self._disk.homes.get((key.uid, rank), 0)

    async def note_home(self, key: JobKey, rank: int, attempt: int) -> None:
        self._disk.homes[key.uid, rank] = attempt

    async def drop_held(self, key: JobKey, rank: int, but: frozenset[int]) -> None:
        held = self._disk.held.get((key.uid, rank), {})
        for step in held.keys() - but:
            del held[step]

    async def settle(self, key: JobKey, rank: int, newest: int | None, but: frozenset[int]) -> tuple[int, ...]:
        job = (key.namespace, key.name)
        if newest is not None:
            above = {s for s in self._disk.usable(job, rank) if s > newest and s not in but}
            self._disk._abandoned.setdefault((job, rank), set()).update(above)
        return self._disk.usable(job, rank)[:MAX_CHECKPOINTS]


class DiskTransport:
    """`copy_s`: how long a copy takes, at most. Who dies on the way, the copy dies with."""

    def __init__(self, world: CopiesWorld, node: str) -> None:
        self._world = world
        self._node = node

    async def _travel(self, node: str, longest_s: float) -> None:
        self._world.reach(self._node, node)
        await asyncio.sleep(self._world.chance.uniform(0.0, longest_s))
        self._world.reach(self._node, node)

    def _job(self, node: str, key: JobKey) -> TrainingJob | None:
        return self._world.cluster.machines.jobs.get(key.name, key.namespace)

    async def put(self, node: str, key: JobKey, rank: int, step: int, attempt: int) -> dict[int, int]:
        world, job = self._world, (key.namespace, key.name)
        await self._travel(node, 0.1)
        found = self._job(node, key)
        if found is None or not is_rank_hosted_by(found, key.uid, rank, self._node):
            raise CopyRefused("NotAMember", "not yours")
        if node in world.full:
            raise CopyRefused("NoSpaceForCopies", "full")
        content = world.disk(self._node).contents.get((job, rank, step))
        if step not in world.disk(self._node)._steps.get((job, rank), ()) or content is None:
            raise CopySourceGone
        world.disk(self._node).held.setdefault((key.uid, rank), {})[step] = CopyMark(step, 1, "", attempt), content
        await self._travel(node, world.copy_s)
        if world.disk(self._node).contents.get((job, rank, step)) != content:
            raise CopySourceGone  # it was written anew while it was read: the digest says so
        held = world.disk(node).copies.setdefault((key.uid, rank), {})
        held[step] = CopyMark(step, 1, "", attempt), content
        given_up = [s for s, (mark, _) in held.items() if not is_in_history(found.status, s, mark.attempt)]
        gang = [k.step for k in found.status.progress.kept]
        for old in (*given_up, *copies_to_drop(held.keys() - set(given_up), gang)):
            del held[old]
        await self._travel(node, 0.1)
        return {s: mark.attempt for s, (mark, _) in held.items()}

    async def ask(self, node: str, key: JobKey, rank: int) -> CopyList:
        if node != self._node:
            await self._travel(node, 0.1)
        disk, found = self._world.disk(node), self._job(node, key)
        if found is None or not is_rank_hosted_by(found, key.uid, rank, self._node):
            raise CopyRefused("NotAMember", "not yours")
        home = disk.homes.get((key.uid, rank), 0)
        marks: dict[int, CopyMark] = {}
        for kept in (disk.copies, disk.held):
            for mark, _ in kept.get((key.uid, rank), {}).values():
                if mark.step not in marks or marks[mark.step].attempt < mark.attempt:
                    marks[mark.step] = mark
        if home:
            for step in disk.usable((key.namespace, key.name), rank):
                if step not in marks or marks[step].attempt < home:
                    marks[step] = CopyMark(step, 1, "", home)
        return CopyList(tuple(marks.values()), home)

    async def fetch(self, node: str, key: JobKey, rank: int, mark: CopyMark, said: Callable[[int], None]) -> None:
        job, disk = (key.namespace, key.name), self._world.disk(node)
        if node != self._node:
            await self._travel(node, self._world.copy_s)
        if (node, mark.step) in self._world.rotten:
            raise CopyRefused("CopyCorrupt", "what came is not what was said")
        kept = [k.get((key.uid, rank), {}).get(mark.step) for k in (disk.copies, disk.held)]
        if (found := next((k for k in kept if k is not None and k[0].attempt == mark.attempt), None)) is not None:
            content = found[1]
        elif mark.step in disk.usable(job, rank):
            content = disk.contents[job, rank, mark.step]
        else:
            raise CopyRefused("NoSuchCopy", "it is not here any more")
        self._world.disk(self._node).place(job, rank, mark.step, content)


class ToldCopies(RankCopies):
    """Tells the world what is told upwards."""

    world: CopiesWorld

    def heard(self, job: TrainingJob, member: Member, beat: Heartbeat) -> Heartbeat:
        told = super().heard(job, member, beat)
        self.world.told(told, member.rank)
        return told


class CopiesWorld(World):
    copy_s = 2.0
    meets_peers = True

    def _cluster(self) -> EmbeddedCluster:
        if not hasattr(self, "disks"):
            self.disks: dict[str, NodeDisk] = {}
            self.chance = random.Random(self.seed)
            self.full: set[str] = set()
            self.rotten: set[tuple[str, int]] = set()  # node and step: what it has of it is not what was brought
            self.apart: set[str] = set()  # nodes that no other node reaches
            self.safe: dict[str, dict[int, set[int]]] = {}  # by job and rank: told as safe, in this history
            self.opened: dict[str, int] = {}
            self.resumed: list[tuple[int, int]] = []  # newest safe step, step gone on from
            self.checkpoints_of = self._equip
        return super()._cluster()

    def disk(self, node: str) -> NodeDisk:
        if node not in self.disks:
            self.disks[node] = NodeDisk(lambda job: self.job(job[1]).status.attempt)
        return self.disks[node]

    def reach(self, one: str, other: str) -> None:
        for node in (one, other):
            machine = self.cluster.machines.nodes[node]
            if machine.is_lost or node in self.machines.cut_off or node in self.apart:
                raise OSError(f"{node} is away")

    def told(self, beat: Heartbeat, rank: int) -> None:
        if beat.safe and beat.attempt == self.job(beat.gang).status.attempt:
            self.safe.setdefault(beat.gang, {}).setdefault(rank, set()).update(beat.safe)

    def newest_safe(self, job: str = "job") -> int:
        ranks = sum(role.replicas for role in self.job(job).spec.roles)
        told = [self.safe.get(job, {}).get(rank, set()) for rank in range(ranks)]
        return max(set.intersection(*told), default=0)

    def _candidates(self, node: str) -> list[CopyCandidate] | None:
        if not self.meets_peers:
            return None
        return [CopyCandidate(name, self.rack_of[name] != self.rack_of[node]) for name in self.config.node_names()]

    def expect_step_back(self) -> None:
        """Somebody gives consent to what lies below what was safe."""
        self.safe.clear()

    def _equip(self, agent: Agent) -> SimulatedCheckpoints:
        node = agent.config.node
        machines_jobs = agent.launchers._jobs
        report = agent.launchers.tell_beat

        def tell(beat: Heartbeat) -> None:
            rank = next((m.rank for m in self.job(beat.gang).status.members if m.uid == beat.uid), None)
            if rank is not None:
                self.told(beat, rank)
            report(beat)

        copies = ToldCopies(
            node,
            files=DiskFiles(self.disk(node)),
            transport=DiskTransport(self, node),
            candidates=lambda: self._candidates(node),
            find_job=lambda key: machines_jobs.get(key.name, key.namespace),
            covers=lambda job: True,
            report=tell,
            changed=agent.launchers.copies_changed,
        )
        copies.world = self
        agent.launchers.copies = copies
        return self.disk(node)

    def _see(self, event: StoreEvent) -> None:
        super()._see(event)
        if event.record.key.startswith(TrainingJob.resource.prefix):
            job = event.record.decode(TrainingJob)
            if job.status.opened_attempt > self.opened.get(job.name, 0):
                self.opened[job.name] = job.status.opened_attempt
                self._check_opening(job)

    def _check_opening(self, job: TrainingJob) -> None:
        safe, step = self.newest_safe(job.name), job.status.resume_step or 0
        self.resumed.append((safe, step))
        if step < safe:
            self.errors.append(f"attempt {job.status.attempt} goes on from {step}; step {safe} was safe for all ranks")
        found = {
            m.rank: self.disk(m.node).contents.get(((NAMESPACE, job.name), m.rank, step)) for m in job.status.members
        }
        if step and len(set(found.values())) != 1:
            self.errors.append(f"attempt {job.status.attempt} mixes histories at step {step}: {found}")
        for told in self.safe.get(job.name, {}).values():
            told -= {s for s in told if s > step}

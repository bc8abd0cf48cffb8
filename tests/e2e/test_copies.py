"""A gang of real processes on nodes that share no directory, in a split cluster: whatever is lost, device, pod or node, a rank's
own or the one that has its copies, the gang goes on from no earlier step than the newest that every rank had told as safe.

    python -m pytest tests/e2e/test_copies.py --seed 7 --losses 50
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from remuda.api.drills import DrillKind
from remuda.api.training import Budgets, Failure, Member, TrainingJob
from remuda.kube.runtime.informer import Informer
from remuda.runtime.background_tasks import run_beside
from remuda.runtime.cluster_client import cluster_client_for_state_dir
from remuda.runtime.state_dir import StateDir
from tests.e2e.clusters import Up
from tests.e2e.rig import NAMESPACE, Rig

RANKS = 8
KINDS = ("node", "holder", "device", "pod")  # a holder: the node that has the copies of a rank
TAKES_NODE = 3  # of those, each may cost a node for good
LONG = Failure(budgets=Budgets(code=-1, device=-1, infra=-1, hang=-1), stop_deadline_seconds=120.0)
PATIENCE_S = 300.0


@pytest.fixture
def losses(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--losses"))


@pytest.fixture
def split(state: Path, losses: int) -> Iterator[Up]:
    nodes = RANKS + 3 + -(-losses * TAKES_NODE // len(KINDS))
    made = Up(state, lease_s=15.0)
    made.start("--split", "--groups=2", f"--nodes={nodes}", "--racks=2", "--checkpoints-per-node")
    yield made
    made.kill()


class Openings:
    """Hears every version of the job: what was safe before each opening of its barrier, and where it went on from."""

    def __init__(self) -> None:
        self.safe = 0
        self.found: list[tuple[int, int, int]] = []  # attempt, newest step that was safe, step gone on from

    def hear(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        if new is None:
            return
        status = new.status
        if old is not None and status.opened_attempt > old.status.opened_attempt:
            resumed = status.resume_step or 0
            self.found.append((status.opened_attempt, self.safe, resumed))
            self.safe = 0
        self.safe = max(self.safe, newest_kept(new))

    @property
    def steps_back(self) -> list[str]:
        return [f"attempt {a} goes on from {step}, and {safe} was safe" for a, safe, step in self.found if step < safe]


def newest_kept(job: TrainingJob) -> int:
    kept = job.status.progress.kept
    return kept[-1].step if kept else 0


def is_paired(job: TrainingJob, lost: Collection[str]) -> bool:
    """Each rank's home is where it runs, and somebody else who lives has its copies: any one node may go."""
    entries = {c.rank: c for c in job.status.copies}
    found = [(m, entries.get(m.rank)) for m in job.status.members]
    return len(found) == RANKS and all(e is not None and e.home == m.node and e.copy not in lost for m, e in found)


def has_safe_step_beyond(step: int, lost: Collection[str], job: TrainingJob) -> bool:
    return job.status.barrier == "Open" and newest_kept(job) > step and is_paired(job, lost)


def has_opened_after(attempt: int, job: TrainingJob) -> bool:
    return job.status.attempt > attempt and job.status.barrier == "Open"


def kinds_of_losses(chance: random.Random) -> Iterator[str]:
    """In no order, and all equally often."""
    while True:
        yield from chance.sample(KINDS, len(KINDS))


async def lose_something(rig: Rig, kind: str, job: TrainingJob, member: Member, lost: set[str]) -> bool:
    """Whether the gang has to stop for it."""
    if kind in ("node", "holder"):
        node = member.node if kind == "node" else next(c.copy for c in job.status.copies if c.rank == member.rank)
        await rig.drill(DrillKind.NODE_LOST, node=node)
        lost.add(node)
        return any(m.node == node for m in job.status.members)
    if kind == "device":
        await rig.drill(DrillKind.DEVICE_FAIL, node=member.node, device=member.devices[0], code="xid-79")
    else:
        await rig.drill(DrillKind.POD_DELETE, pod=member.pod, namespace=NAMESPACE)
    return True


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)  # every wait in it has a bound of its own
async def test_losses_cost_no_step_that_was_safe(
    split: Up, state: Path, losses: int, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("--seed")
    seed = random.randrange(1 << 32) if given is None else given
    print(f"seed {seed}, {losses} losses")
    chance = random.Random(seed)
    async with cluster_client_for_state_dir(StateDir(state)) as api:
        rig, openings, lost = Rig(api, state), Openings(), set[str]()
        jobs = Informer(api, TrainingJob)
        jobs.subscribe(openings.hear)
        rig.let_run_to(0)
        async with run_beside(jobs.run(), "openings"):
            await jobs.synced()
            await rig.submit(rig.job(replicas=RANKS, gpus=8, spares=1, failure=LONG))
            job, at = await rig.until("it runs", lambda job: job.status.barrier == "Open", PATIENCE_S), 0
            for number, kind in zip(range(losses), kinds_of_losses(chance), strict=False):
                at = max(at, newest_kept(job), job.status.resume_step or 0) + 8
                rig.let_run_to(at)
                before = newest_kept(job)
                is_safe: Callable[[TrainingJob], bool] = functools.partial(has_safe_step_beyond, before, lost)
                job = await rig.until(f"a safe step beyond {before}", is_safe, PATIENCE_S)
                rig.let_run_to(at + 400)
                await asyncio.sleep(chance.uniform(0.0, 1.0))
                job = await rig.get()
                attempt, member = job.status.attempt, chance.choice(job.status.members)
                print(f"loss {number}: {kind} of rank {member.rank} on {member.node}, step {newest_kept(job)} is safe")
                if await lose_something(rig, kind, job, member, lost):
                    job = await rig.until(
                        f"attempt {attempt + 1}", functools.partial(has_opened_after, attempt), PATIENCE_S
                    )
                    at = job.status.resume_step or 0
                else:
                    at += 400  # it may be anywhere up to there
                assert not openings.steps_back, f"seed {seed}: {job.status.recoveries[-1]}"
        assert any(safe for _, safe, _ in openings.found)
        print(f"{len(openings.found)} openings, {len(lost)} nodes lost, {job.status.progress.step} steps")

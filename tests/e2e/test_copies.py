"""A gang of real processes on nodes that share no directory, in a split cluster: whatever is lost, device, pod, process or
node, the gang goes on from no earlier step than the newest that every rank had told as safe.

    python -m pytest tests/e2e/test_copies.py --seed 7
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.api.drills import DrillKind
from remuda.api.training import Budgets, Failure, TrainingJob
from remuda.runtime.cluster_client import connect_to_state
from remuda.runtime.state_dir import StateDir
from tests.e2e.clusters import Up
from tests.e2e.rig import NAMESPACE, Rig

RANKS, LOSSES = 8, 8
KINDS = ("node", "device", "pod", "process")
LONG = Failure(budgets=Budgets(code=-1, device=-1, infra=-1, hang=-1), stop_deadline_seconds=120.0)
PATIENCE_S = 300.0


@pytest.fixture
def split(state: Path) -> Iterator[Up]:
    made = Up(state, lease_s=15.0)
    made.start("--split", "--groups=2", "--nodes=14", "--racks=2", "--checkpoints-per-node")
    yield made
    made.kill()


def newest_kept(job: TrainingJob) -> int:
    kept = job.status.progress.kept
    return kept[-1].step if kept else 0


def is_paired(job: TrainingJob) -> bool:
    """Each rank's home is where it runs, and somebody else has its copies."""
    homes = {c.rank: c.home for c in job.status.copies}
    return all(homes.get(m.rank) == m.node for m in job.status.members)


def has_safe_step_beyond(step: int, job: TrainingJob) -> bool:
    return newest_kept(job) > step and is_paired(job)


def has_opened_after(attempt: int, job: TrainingJob) -> bool:
    return job.status.attempt > attempt and job.status.barrier == "Open"


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_losses_cost_no_step_that_was_safe(split: Up, state: Path, request: pytest.FixtureRequest) -> None:
    given = request.config.getoption("--seed")
    seed = random.randrange(1 << 32) if given is None else given
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with connect_to_state(StateDir(state)) as api:
        rig = Rig(api, state)
        rig.let_run_to(0)
        await rig.submit(rig.job(replicas=RANKS, gpus=8, spares=1, failure=LONG))
        job, at = await rig.until("it runs", lambda job: job.status.barrier == "Open", PATIENCE_S), 0
        for number in range(LOSSES):
            at = max(at, newest_kept(job), job.status.resume_step or 0) + 8
            rig.let_run_to(at)
            before = newest_kept(job)
            what = f"a safe step beyond {before}"
            job = await rig.until(what, functools.partial(has_safe_step_beyond, before), PATIENCE_S)
            rig.let_run_to(at + 400)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            job = await rig.get()
            at, safe, attempt = job.status.progress.step, newest_kept(job), job.status.attempt
            kind, member = KINDS[number % len(KINDS)], chance.choice(job.status.members)
            print(f"loss {number}: {kind} of rank {member.rank} on {member.node}, step {safe} is safe")
            if kind == "node":
                await rig.drill(DrillKind.NODE_LOST, node=member.node)
            elif kind == "device":
                await rig.drill(DrillKind.DEVICE_FAIL, node=member.node, device=member.devices[0], code="xid-79")
            else:
                drill = DrillKind.POD_DELETE if kind == "pod" else DrillKind.PROCESS_KILL
                await rig.drill(drill, pod=member.pod, namespace=NAMESPACE)
            what = f"attempt {attempt + 1}"
            job = await rig.until(what, functools.partial(has_opened_after, attempt), PATIENCE_S)
            assert (job.status.resume_step or 0) >= safe, f"seed {seed}: {job.status.recoveries[-1]}"
            at = max(at, job.status.resume_step or 0)

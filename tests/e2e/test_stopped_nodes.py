"""A process of nodes under `remuda up --split` stands still, really: no rank ever runs twice at the same time.

Its ranks are handed on while it can stop nothing; their launchers do that. Ranks here meet nobody and never end by themselves.
Each marks in a file of its own that it is at work, and the files tell who ran when: one machine has one clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease
from remuda.api.meta import to_seconds
from remuda.api.training import TrainingJob
from tests.builders.waiting import PATIENCE_S, until
from tests.e2e.clusters import Up
from tests.e2e.rig import Rig, kept

RANKS = 3
# Steps, 2.5 s. A launcher names its newest 16, and ranks that run on are ahead of one that was stopped.
SAVED_EVERY = 50
WORK = (
    f"EVERY = {SAVED_EVERY}"
    + """
import os, time
import remuda_train as remuda
step = remuda.resume_step() or 0
with open(f"{os.environ['E2E_MARKS']}/{remuda.rank()}-{os.getpid()}-{time.monotonic_ns()}", "w", buffering=1) as marks:
    while True:
        step += 1
        marks.write(f"{time.monotonic()} {remuda.attempt()} {step}\\n")
        remuda.report(step)
        if step % EVERY == 0:
            remuda.save(step, b"weights of step %d" % step, keep=1000)
        time.sleep(0.05)
"""
)


class Run:
    """One process of a rank, from its first mark to its last."""

    def __init__(self, path: Path) -> None:
        marks = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        self.rank = int(path.name.partition("-")[0])
        self.pid = int(path.name.split("-")[1])
        self.attempt = int(marks[0][1]) if marks else 0
        self.since, self.until = (float(marks[0][0]), float(marks[-1][0])) if marks else (0.0, 0.0)
        self.first_step, self.last_step = (int(marks[0][2]), int(marks[-1][2])) if marks else (0, 0)

    def __repr__(self) -> str:
        steps = f"steps {self.first_step}-{self.last_step}"
        return f"rank {self.rank} attempt {self.attempt} pid {self.pid} {self.since:.2f}-{self.until:.2f} {steps}"


class Marks:
    def __init__(self, state: Path) -> None:
        self.place = state / "marks"
        self.place.mkdir()

    def runs(self, attempt: int | None = None) -> list[Run]:
        found = [run for run in map(Run, self.place.iterdir()) if run.attempt]
        found.sort(key=lambda run: (run.rank, run.since))
        return [run for run in found if attempt in (None, run.attempt)]

    def check_nobody_ran_twice(self) -> None:
        for one, next_one in itertools.pairwise(self.runs()):
            assert one.rank != next_one.rank or one.until < next_one.since, f"at the same time: {self.runs()}"


async def train(rig: Rig, marks: Marks) -> TrainingJob:
    """A rank on each of three nodes, the fourth is free; until each has checkpoints behind it."""
    await rig.submit(rig.job(replicas=RANKS, gpus=8, command=[sys.executable, "-c", WORK], marks=marks.place))
    await at_work(marks, attempt=1, steps=2 * SAVED_EVERY + 10)
    return await rig.until("the job to run", lambda job: job.status.phase == "Running")


async def at_work(marks: Marks, attempt: int, steps: int) -> None:
    """Until every rank has made so many steps in the attempt."""

    async def is_there() -> bool:
        runs = marks.runs(attempt)
        return len(runs) == RANKS and all(run.last_step - run.first_step >= steps for run in runs)

    await until(f"{steps} steps of all ranks in attempt {attempt}", is_there, PATIENCE_S)


def pid_of(state: Path, part: str) -> int:
    return int((state / "parts" / f"{part}.pid").read_text())


def part_of(node: str) -> str:
    """With as many processes as nodes each has one."""
    return f"nodes-{int(node.rpartition('-')[2])}"


async def renewed_again(rig: Rig, node: str, after: float) -> None:
    async def is_renewed() -> bool:
        try:
            lease = await rig.api.get(Lease, node, NODE_LEASE_NAMESPACE)
        except (ApiError, OSError):
            return False
        return lease.spec.renew_time is not None and to_seconds(lease.spec.renew_time) > after

    await until(f"{node} to renew its lease", is_renewed, PATIENCE_S)


async def renewal_of(rig: Rig, node: str) -> float:
    lease = await rig.api.get(Lease, node, NODE_LEASE_NAMESPACE)
    assert lease.spec.renew_time is not None
    return to_seconds(lease.spec.renew_time)


@pytest.mark.timeout(900)
async def test_a_stopped_process_of_nodes_runs_no_rank_twice(state: Path) -> None:
    """It is stopped until its rank is at work elsewhere, and then woken."""
    up, marks = Up(state, lease_s=12.0), Marks(state)
    up.start("--split", "--groups=4")
    try:
        async with up.rig() as rig:
            before = await train(rig, marks)
            victim = before.status.members[1]
            stopped = pid_of(state, part_of(victim.node))
            os.kill(stopped, signal.SIGSTOP)
            saved = min(run.last_step for run in marks.runs(1)) - SAVED_EVERY - 1  # some checkpoint is newer
            try:
                await at_work(marks, attempt=2, steps=60)  # for 3 s: whoever ran beside them has left marks
            finally:
                os.kill(stopped, signal.SIGCONT)
            marks.check_nobody_ran_twice()
            assert all(run.first_step > saved for run in marks.runs(2)), f"not from its checkpoint: {marks.runs()}"

            await renewed_again(rig, victim.node, after=await renewal_of(rig, victim.node))
            await at_work(marks, attempt=2, steps=max(r.last_step - r.first_step for r in marks.runs(2)) + 40)
            marks.check_nobody_ran_twice()
            after = await rig.get()
            assert [(r.attempt, r.reason) for r in after.status.recoveries] == [(2, "NodeLost")]
            kept(before, after, moved={1})
    finally:
        up.kill()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_process_of_nodes_that_is_back_in_time_costs_nobody_anything(state: Path, how: str) -> None:
    """Killed and started again, or stopped for less than its launchers were told: the ranks are the same processes, long after
    the last word of before is over."""
    lease_s = 30.0  # far longer than a busy machine takes to start a part
    up, marks = Up(state, lease_s=lease_s), Marks(state)
    up.start("--split", "--groups=4")
    try:
        async with up.rig() as rig:
            before = await train(rig, marks)
            node, runs = before.status.members[1].node, marks.runs()
            pid = pid_of(state, part_of(node))
            last = await renewal_of(rig, node)
            if how == "killed":
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(lease_s / 3)  # the stop is the fault, so it is a real pause
                os.kill(pid, signal.SIGCONT)
            await renewed_again(rig, node, after=last + lease_s * 1.25)
            await at_work(marks, attempt=1, steps=max(run.last_step for run in marks.runs(1)) + 1)
            assert [(run.rank, run.pid) for run in marks.runs()] == [(run.rank, run.pid) for run in runs]
            after = await rig.get()
            assert (after.status.attempt, after.status.recoveries) == (1, [])
            kept(before, after)
    finally:
        up.kill()


@pytest.mark.timeout(900)
async def test_ranks_of_a_cluster_that_is_down_as_a_whole_run_on_and_are_found_again(state: Path) -> None:
    """Nobody is there to hand anything on, so nobody is stopped, however long it takes."""
    lease_s = 8.0
    up, marks = Up(state, lease_s=lease_s), Marks(state)
    up.start("--split", "--groups=2")
    try:
        async with up.rig() as rig:
            before = await train(rig, marks)
        parts = [int(path.read_text()) for path in (state / "parts").glob("*.pid")]
        up.kill()
        for pid in parts:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        runs = marks.runs()
        gone = max(run.last_step for run in runs)
        await at_work(marks, attempt=1, steps=gone + int(2.5 * lease_s / 0.05))
        up.start("--split", "--groups=2")
        async with up.rig() as rig:
            await rig.until("the job to run", lambda job: job.status.phase == "Running")
            await at_work(marks, attempt=1, steps=max(run.last_step for run in marks.runs()) + int(2 * lease_s / 0.05))
            assert [(run.rank, run.pid) for run in marks.runs()] == [(run.rank, run.pid) for run in runs]
            kept(before, await rig.get())
    finally:
        up.kill()

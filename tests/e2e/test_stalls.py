"""A process of Remuda is stopped for longer than a lease, really: no healthy pod is replaced, no rank starts anew.

The stop itself is the fault, so it is a real pause; everything after it waits on conditions.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from remuda.api.drills import DrillKind
from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node
from remuda.api.meta import to_seconds
from remuda.api.training import TrainingJob
from tests.builders.waiting import PATIENCE_S, until
from tests.e2e.clusters import Up
from tests.e2e.rig import Rig, kept

LEASE_S = 8.0


async def stop_for(seconds: float, pid: int) -> float:
    """As a debugger, a snapshot of the machine or a laptop's lid would; when it was over."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    return time.time()


async def undisturbed_since(rig: Rig, before: TrainingJob, since: float) -> None:
    """Until every node has renewed its lease for long enough after the stop that whoever was called lost would be known."""

    async def is_long_over() -> bool:
        try:
            leases = (await rig.api.list(Lease, NODE_LEASE_NAMESPACE)).items
        except (ApiError, OSError):
            return False
        renewed = [to_seconds(lease.spec.renew_time) for lease in leases if lease.spec.renew_time is not None]
        return len(renewed) == 4 and min(renewed) > since + LEASE_S + 2.0

    await until("every node to go on renewing its lease", is_long_over, PATIENCE_S)
    floor = (await rig.get()).status.progress.step
    job = await rig.until("more steps", lambda job: job.status.progress.step > floor)
    told = [(r.cause.value, r.reason, r.message) for r in job.status.recoveries]
    assert (job.status.attempt, told) == (1, []), (rig.state / "up.log").read_text()[-4000:]
    kept(before, job)
    await rig.check_invariants()


@pytest.mark.timeout(600)
async def test_up_that_was_stopped_replaces_nobody(state: Path) -> None:
    up = Up(state, lease_s=LEASE_S)
    up.start()
    try:
        async with up.rig() as rig:
            await rig.submit(rig.job(replicas=3))
            before = await rig.trained_to(2)
            since = await stop_for(12.0, up.pid)
            await undisturbed_since(rig, before, since)
    finally:
        up.kill()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("part", "seconds"), [("server", 30.0), ("manager", 12.0)])
async def test_a_part_that_was_stopped_costs_nobody_anything(state: Path, part: str, seconds: float) -> None:
    """The API away for 30 s: the nodes run on by their manager's word, and nobody counts the leases that could not be renewed."""
    up = Up(state, lease_s=LEASE_S)
    up.start("--split", "--groups=2")
    try:
        async with up.rig() as rig:
            await rig.submit(rig.job(replicas=3))
            before = await rig.trained_to(2)
            since = await stop_for(seconds, int((state / "parts" / f"{part}.pid").read_text()))
            await undisturbed_since(rig, before, since)
    finally:
        up.kill()


@pytest.mark.timeout(900)
async def test_most_nodes_lost_at_once_are_shown_and_given_up(state: Path) -> None:
    """Three of four without power: nobody is replaced until an operator says that they are gone."""
    up = Up(state, lease_s=LEASE_S)
    up.start("--runtime=simulated")
    try:
        async with up.rig() as rig:
            await rig.submit(rig.job(replicas=2, gpus=8))
            before = await rig.until(
                "steps", lambda job: job.status.phase == "Running" and job.status.progress.step > 0
            )
            mine = sorted(m.node for m in before.status.members)
            spare = next(n.name for n in (await rig.api.list(Node)).items if n.name not in mine)
            for node in (*mine, spare):
                await rig.drill(DrillKind.NODE_LOST, node=node)

            async def is_shown() -> bool:
                code, words = await up.run("status")
                return code == 0 and "MassSilence: 3 of 4 nodes of the cluster fell silent at once" in words

            await until("the status to show it", is_shown, PATIENCE_S)
            assert (await rig.get()).status.attempt == 1
            code, words = await up.run("give-up", "no-such-node")
            assert code != 0, words
            code, words = await up.run("give-up", mine[0])
            assert (code, f"Given up: {mine[0]}" in words) == (0, True), words
            job = await rig.until("the recovery", lambda job: job.status.attempt > 1)
            assert job.status.recoveries[-1].reason == "NodeLost"
    finally:
        up.kill()

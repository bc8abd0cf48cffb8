"""Jobs that say numbers no training has: their own tenant's affair. Another tenant's gang is not touched, and is looked after.

Time is virtual, so a stall does not show as time here; what is counted is work: looks that fail, and how often.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from remuda.api.training import TrainingJob
from remuda.controllers.training import GangObservation
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import NAMESPACE, World, in_world

BAD = ("bad-0", "bad-1", "bad-2")
WILD_TOTAL = 2**62
UNFORESEEN = "a number nobody thought of"


async def _a_gang_beside_bad_ones(world: World) -> None:
    await world.submit("good", replicas=2, rack=False)
    await world.running("good")
    for name in BAD:
        wild = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, total_steps=WILD_TOTAL)
        world.behaviours[f"{name}-worker-0"] = wild
        await world.submit(name, replicas=1, gpus=1, rack=False)


@in_world(nodes=4)
async def test_three_jobs_of_wild_totals_run_and_nobody_elses_gang_is_touched(world: World) -> None:
    await _a_gang_beside_bad_ones(world)
    gang = world.gang("good")
    for name in BAD:
        await world.running(name)
    await world.sleep(120.0)  # and nothing is logged as an error: the world checks that
    assert world.gang("good") == gang
    assert world.job("good").status.attempt == 1
    for name in BAD:
        status = world.job(name).status
        assert status.progress.step > 100, "its progress is followed"
        assert (status.progress.total_steps, status.progress.eta) == (0, None)
    await world.kill_process("good")
    await world.running("good", attempt=2, within=20.0)


@in_world(nodes=4)
@pytest.mark.parametrize("total", [10**15, 10**12])
async def test_a_total_at_the_edge_gives_progress_without_an_estimate(world: World, total: int) -> None:
    world.behaviours["job-worker-0"] = SimulatedBehaviour(step_s=0.5, total_steps=total)
    await world.submit("job", replicas=1, rack=False)
    await world.until(lambda: world.job("job").status.progress.total_steps == total, 30.0)
    assert world.job("job").status.progress.eta is None


@in_world(nodes=4)
async def test_jobs_that_make_the_controller_fail_are_paused_and_others_are_repaired(world: World) -> None:
    """Whatever the next such defect is: it is looked at ever more rarely, however often its owner writes the object."""
    await _a_gang_beside_bad_ones(world)
    for name in BAD:
        await world.running(name)
    looks: Counter[str] = Counter()
    controller: Any = world.cluster.control.training
    inner = controller.plan

    def plan(observed: GangObservation | None, now: float) -> Any:
        if observed is not None:
            looks[observed.gang.job.name] += 1
            if observed.gang.job.name in BAD:
                raise OverflowError(UNFORESEEN)
        return inner(observed, now)

    controller.plan = plan
    world.errors = ButMeant()
    gang = world.gang("good")
    for number in range(600):  # 10 writes a second for a minute
        name = BAD[number % len(BAD)]
        await world.cluster.api.patch(TrainingJob, name, {"metadata": {"labels": {"n": str(number)}}}, NAMESPACE)
        await world.sleep(0.1)
    assert world.gang("good") == gang
    assert world.job("good").status.attempt == 1
    for name in BAD:
        assert 5 <= looks[name] <= 15, f"{looks}: 0.05 s, doubling to 30 s, is 11 or 12 looks in a minute"
    await world.kill_process("good")
    await world.running("good", attempt=2, within=20.0)


class ButMeant(list[str]):
    """Errors that were logged, without those the test makes."""

    def append(self, text: str) -> None:
        if UNFORESEEN not in text:
            super().append(text)

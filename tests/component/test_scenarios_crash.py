"""The control plane killed at each of its writes, and the whole machine cut off at each of its commits, in mid-recovery.

Whatever was written last is all that is known afterwards. The recovery must end the same way: exactly the pods that had to go
are replaced, the others keep uid and devices, the interruption is charged once, training resumes from the right step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from remuda.api.training import Budgets, TrainingJob
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders import rank_faults
from tests.builders.world import NAMESPACE, World, in_world, play

QUICK = SimulatedBehaviour(step_s=0.5, checkpoint_every=4, start_s=0.02, child_start_s=0.05)
STEP = 6  # past the first checkpoint (4), well before the second
MAX_WRITES = 60
MAX_COMMITS = 60


class Case(msgspec.Struct, frozen=True):
    """A fault, and what must have come of it in the end."""

    fault: Callable[[World], Awaitable[None]]
    replaced: tuple[int, ...] = ()
    used: dict[str, int] = {}
    spares: int = 1
    nodes: int = 6
    racks: int = 1
    replicas: int = 3
    budgets: Budgets = Budgets()
    phase: str = "Running"


CASES = {
    "process": Case(rank_faults.process, used={"code": 1}),
    "launcher": Case(rank_faults.launcher, used={"infra": 1}),
    "device-spare": Case(rank_faults.device, replaced=(1,), used={"device": 1}),
    "device-no-spare": Case(rank_faults.device, replaced=(1,), used={"device": 1}, spares=0),
    "device-move": Case(
        rank_faults.device, replaced=(0, 1), used={"device": 1}, spares=0, nodes=4, racks=2, replicas=2
    ),
    "pod": Case(rank_faults.pod, replaced=(1,), used={"infra": 1}),
    "node": Case(rank_faults.node, replaced=(1,), used={"infra": 1}),
    "budget": Case(rank_faults.process, used={"code": 1}, budgets=Budgets(code=0), phase="Failed"),
}


async def _begin(world: World, case: Case) -> None:
    await world.submit("job", replicas=case.replicas, spares=case.spares, budgets=case.budgets)
    await world.running("job")
    await world.parked("job", case.spares)
    await world.step("job", STEP)


async def _ends_well(world: World, case: Case) -> None:
    if case.phase == "Failed":
        await world.until(lambda: world.job().status.phase == "Failed")
        await world.until(world.has_ended)
        return
    await world.running("job", attempt=2)
    await world.parked("job", case.spares)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_control_plane_killed_at_any_of_its_writes(name: str) -> None:
    """One world for each write of the recovery, until there is none left."""
    case = CASES[name]
    hits = 0
    for writes in range(MAX_WRITES):

        async def story(world: World, writes: int = writes) -> bool:
            await _begin(world, case)
            before = world.gang()
            world.manager.after(writes)
            await case.fault(world)
            hit = await world.kill_control_plane(within=15.0)
            await _ends_well(world, case)
            await world.sleep(1.0)
            assert world.job().status.used == case.used, f"after {writes} writes\n{world.describe()}"
            if case.phase == "Running":
                world.assert_kept(before, but=case.replaced)
                assert world.recovery().resume_step == 4, f"after {writes} writes\n{world.describe()}"
                assert world.job().status.interruptions == 1
            return hit

        try:
            hit = play(story, nodes=case.nodes, racks=case.racks, behaviour=QUICK)
        except AssertionError as error:
            raise AssertionError(f"{name}, killed after {writes} writes: {error}") from error
        if not hit:
            break
        hits += 1
    assert hits >= 3, "a recovery takes at least: new attempt, barrier open, first step"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_power_cut_at_any_commit_of_a_recovery(name: str) -> None:
    """Every simulated pod dies with the machine, so the restart is an interruption too; but nothing is done twice, nobody
    loses its devices for it, and what had to be replaced is replaced once."""
    case = CASES[name]
    # Every fifth, from a different one on for each fault: a recovery is some forty commits.
    for commits in range(1 + list(CASES).index(name) % 5, MAX_COMMITS, 5):

        async def story(world: World, commits: int = commits) -> None:
            await _begin(world, case)
            before = world.gang()
            world.journal.capture_after(commits)
            try:
                await case.fault(world)
            except AssertionError:
                if not world.journal.is_dead:
                    raise
            await world.power_cut(within=15.0)
            await _ends_well_after_power_cut(world, case)
            status = world.job().status
            assert status.used.get("code", 0) <= case.used.get("code", 0)
            assert status.used.get("device", 0) <= case.used.get("device", 0)
            assert status.used.get("infra", 0) <= case.used.get("infra", 0) + 1
            if status.phase == "Running":
                moved = {rank for rank, seat in world.gang().items() if seat.uid != before[rank].uid}
                assert moved <= set(case.replaced), world.describe()
                assert (world.recovery().resume_step or 4) >= 4
                await world.step("job", 10)

        try:
            play(story, nodes=case.nodes, racks=case.racks, behaviour=QUICK)
        except AssertionError as error:
            raise AssertionError(f"{name}, cut off after {commits} commits: {error}") from error


async def _ends_well_after_power_cut(world: World, case: Case) -> None:
    """A fault that was not on the disk when the power went may never have happened."""
    await world.until(lambda: world.job().status.phase == "Failed" or world.is_running("job", 2))
    if world.job().status.phase == "Failed":
        assert case.phase == "Failed"
        await world.until(world.has_ended)
    else:
        await world.parked("job", case.spares)
        await world.sleep(10.0 if case.fault is rank_faults.node else 2.0)
        await world.until(lambda: world.job().status.phase == "Failed" or world.is_running("job", 2))


@in_world(nodes=12)
async def test_power_cut_in_calm_restarts_everyone_in_place(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    await world.step("job", 25)
    before, spares = world.gang(), world.parked_spares()
    await world.power_cut(down_s=60.0)
    await world.running("job", attempt=2)
    world.assert_kept(before)
    assert world.recovery().resume_step == 20
    assert world.job().status.used == {"infra": 1}
    await world.parked("job", 1)
    assert world.parked_spares() == spares


@in_world(nodes=12)
async def test_control_plane_down_for_long_loses_nothing(world: World) -> None:
    """Training goes on without it; a fault meanwhile is found when it is back."""
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    before = world.gang()
    await world.cluster.stop_control_plane()
    at = max(child.step for _, child in world.children())
    await world.sleep(20.0)
    assert min(child.step for _, child in world.children()) >= at + 30
    await world.fail_device(rank=1)
    await world.sleep(5.0)
    assert world.job().status.attempt == 1
    await world.restart_control_plane()
    await world.running("job", attempt=2)
    world.assert_kept(before, but=[1])
    assert world.job().status.used == {"device": 1}
    # Everything that was saved while nobody looked counts: the launchers know it, not the control plane.
    assert world.recovery().resume_step >= 40


@in_world(nodes=12)
async def test_control_plane_restarted_again_and_again_in_one_recovery(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    before = world.gang()
    await world.fail_device(rank=1)
    for _ in range(20):
        await world.restart_control_plane()
        await world.sleep(0.02)
    await world.running("job", attempt=2)
    world.assert_kept(before, but=[1])
    assert world.job().status.used == {"device": 1}


@in_world(nodes=12)
async def test_power_cut_twice_in_one_recovery(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    before = world.gang()
    await world.fail_device(rank=1)
    await world.power_cut(after_commits=3)
    await world.power_cut(after_commits=25)
    await world.running("job", attempt=2)
    await world.sleep(10.0)
    world.assert_kept(before, but=[1])
    assert world.job().status.used["device"] == 1


@in_world(nodes=12)
async def test_power_cut_while_the_job_is_being_made(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.power_cut(after_commits=9)
    await world.running("job")
    assert world.job().status.used.get("device", 0) == 0
    await world.parked("job", 1)


@in_world(nodes=12)
async def test_power_cut_while_the_job_is_being_deleted(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.cluster.api.delete(TrainingJob, "job", NAMESPACE)
    await world.power_cut(after_commits=3)
    await world.until(lambda: not world.pods() and not world.holders())

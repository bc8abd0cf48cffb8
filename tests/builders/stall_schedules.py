"""Random schedules in which nothing is broken but Remuda itself: stops, outages, cuts and jumps of the clock. Drawn beforehand.

    stop           everything of one process stands still: 5, 12, 30 or 120 s
    manager-stop   the manager alone; nodes and API go on
    api-away       nobody reaches the API, 10 to 300 s; nodes and manager hear one another
    api-cut        some or all nodes do not reach the API, and hear the manager that does
    clock          everybody's clock jumps, to and fro, seconds to hours
    restart        another manager takes over

One after another, such a schedule costs nobody anything: same pods, same places, same attempt, and the steps go on. Several at
once may stop ranks (without API and manager a node fences itself, as it must), but replace no pod, lose no checkpoint and start
nothing from step 0. Every invariant of `tests.builders.invariants` holds throughout, "a rank runs once" among them.

An act's `count` is its seconds, its `pick` the share of the nodes.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.acts import Act
from tests.builders.world import NAMESPACE, World

STOPS = (5, 12, 30, 120)
OUTAGES = (10, 10, 30, 30, 60, 300)
JUMPS = (-3600, -30, -5, 5, 30, 3600, 86_400)
KINDS = {"stop": 4, "manager-stop": 3, "api-away": 4, "api-cut": 3, "clock": 3, "restart": 1}
CALM_S = 20.0


class StallSchedule(msgspec.Struct, frozen=True):
    seed: int
    nodes: int
    racks: int
    lease_s: float
    lag_s: float
    replicas: int
    spares: int
    step_s: float
    is_overlapping: bool
    acts: tuple[Act, ...]


def draw(seed: int) -> StallSchedule:
    rng = random.Random(f"stalls-{seed}")
    acts = tuple(_draw_act(rng) for _ in range(rng.randint(1, 3)))
    replicas = rng.randint(2, 5)
    return StallSchedule(
        seed,
        nodes=2 * (replicas + 2),
        racks=rng.choice((1, 2)),
        lease_s=rng.choice((5.0, 8.0, 10.0)),
        lag_s=rng.choice((0.0, 0.0, 0.02, 0.1)),
        replicas=replicas,
        spares=rng.choice((0, 1)),
        step_s=rng.choice((0.5, 1.0)),
        is_overlapping=rng.random() < 0.35,
        acts=acts,
    )


def _draw_act(rng: random.Random) -> Act:
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    seconds = {"stop": STOPS, "manager-stop": STOPS, "clock": JUMPS, "restart": (0,)}.get(kind, OUTAGES)
    wait = rng.choice((rng.uniform(0.0, 2.0), rng.uniform(2.0, 15.0)))
    return Act(round(wait, 3), kind, rng.choice((0.3, 1.0)), rng.choice(seconds))


def options(schedule: StallSchedule) -> dict[str, object]:
    """For `play`."""
    return {
        "seed": schedule.seed,
        "nodes": schedule.nodes,
        "racks": schedule.racks,
        "lease_s": schedule.lease_s,
        "lag_s": schedule.lag_s,
        "behaviour": SimulatedBehaviour(step_s=schedule.step_s, checkpoint_every=5),
    }


async def act_out(world: World, schedule: StallSchedule) -> None:
    await world.submit("job", replicas=schedule.replicas, spares=schedule.spares, rack=False)
    await world.running("job")
    await world.parked("job", spares=schedule.spares)
    await world.step("job", 12)
    before, pods, saved = world.gang(), _uids(world), _checkpoints(world)
    under_way: list[asyncio.Task[None]] = []
    for act in schedule.acts:
        await world.sleep(act.wait)
        doing = asyncio.create_task(_perform(world, act))
        under_way.append(doing)
        if not schedule.is_overlapping:
            await doing
            await world.sleep(CALM_S)  # long enough for whoever would be called lost
    await asyncio.gather(*under_way)
    # Ranks that were stopped meanwhile start again; a hold and a lease may have to pass first.
    await world.until(lambda: world.is_running("job"), 120.0, "the job runs")
    await world.sleep(CALM_S)
    status = world.job().status
    assert _uids(world) == pods, f"a healthy pod was replaced\n{world.describe()}"
    assert world.gang() == before, f"a rank was moved\n{world.describe()}"
    assert all((r.resume_step or 0) >= 10 for r in status.recoveries), f"from step 0\n{world.describe()}"
    kept = _checkpoints(world)
    assert all(max(steps) <= max(kept[rank]) for rank, steps in saved.items()), "a checkpoint was lost"
    if not schedule.is_overlapping:
        assert (status.attempt, status.recoveries) == (1, []), f"a healthy rank was stopped\n{world.describe()}"
    steps = {uid: child.step for uid, child in world.children()}
    await world.sleep(3.0 + 2 * schedule.step_s)
    for uid, child in world.children():
        assert child.step > steps[uid], f"{uid} makes no steps\n{world.describe()}"


async def _perform(world: World, act: Act) -> None:
    if act.kind == "stop":
        await world.stop_everything(act.count)
    elif act.kind == "clock":
        world.clock_ahead_s += act.count
    elif act.kind == "restart":
        # One that cannot reach the API cannot know whom to vouch for: that is another story.
        if not world.manager.away and not world.manager.stopped:
            await world.restart_control_plane()
    elif act.kind == "api-away":
        await world.api_away(act.count)
    elif act.kind == "manager-stop":
        stopped = world.manager
        stopped.stopped = True
        await world.sleep(act.count)
        stopped.stopped = False
    else:
        names = sorted(world.rack_of)
        cut = names[: max(1, round(act.pick * len(names)))]
        world.machines.api_cut.update(cut)
        await world.sleep(act.count)
        world.machines.api_cut.difference_update(cut)


def _uids(world: World) -> set[str]:
    return {pod.uid for pod in world.pods("job")}


def _checkpoints(world: World) -> dict[int, list[int]]:
    return {rank: sorted(world.checkpoints.usable((NAMESPACE, "job"), rank)) for rank in world.gang()}

"""Random schedules in which Remuda itself stalls, is cut off or has no disk, and now and then a device fails. Drawn beforehand.

    stop           everything stands still at once: 5, 12, 30 or 120 s
    manager-stop   the manager that leads, alone; with two, the other one takes over
    api-stop       the API's process alone: what is asked of it waits
    node-stop      one node's process alone; its ranks run on
    api-away       nobody reaches the API, 10 to 300 s; nodes and manager hear one another
    api-cut        some or all nodes do not reach the API, and hear the manager that does
    cut-off        most nodes, or all, reach neither API nor manager
    partition      the manager that leads and some or all nodes, against the API and the one that leads next
    disk           full, read-only or broken: the store takes nothing, leases are renewed in memory
    clock          everybody's clock jumps, to and fro, seconds to hours
    restart        another manager takes over
    xid            a device of the gang fails: a real fault, during or right after one of these

What they may cost is said in `tests.builders.stall_demands`. An act's `count` is its seconds, its `pick` the share of the nodes,
or which one, its `code` the fault or what the disk says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec

from remuda.api.training import Member
from remuda.embedded.apiserver.store.storage_trouble import CODES as DISK_TROUBLES
from remuda.embedded.node.training_model import SimulatedBehaviour
from remuda.kube.runtime.leader_lease import LeaseTiming
from tests.builders.acts import Act, pick
from tests.builders.led_cluster import API_PROCESS, Election
from tests.builders.schedules import UNHEALTHY
from tests.builders.stall_demands import Before, Excuses, assert_no_harm, cut_nodes
from tests.builders.stalled_world import StalledWorld

STOPS = (5, 12, 30, 120)
OUTAGES = (10, 10, 10, 30, 30, 30, 60, 60, 300)
JUMPS = (-3600, -30, -5, 5, 30, 3600, 86_400)
KINDS = {
    "stop": 3,
    "manager-stop": 3,
    "api-stop": 2,
    "node-stop": 3,
    "api-away": 3,
    "api-cut": 2,
    "cut-off": 2,
    "partition": 4,
    "disk": 3,
    "clock": 2,
    "restart": 1,
    "xid": 4,
}
SECONDS = {"stop": STOPS, "manager-stop": STOPS, "api-stop": STOPS, "node-stop": STOPS, "clock": JUMPS, "restart": (0,)}
SHARES = {"api-cut": (0.3, 1.0), "partition": (0.3, 1.0), "cut-off": (0.7, 1.0)}
TIMINGS = (LeaseTiming(15, 10.0, 2.0), LeaseTiming(6, 4.0, 1.0))
CALM_S = 20.0


class StallSchedule(msgspec.Struct, frozen=True):
    """`timing`: of the election of two managers; None: there is one."""

    seed: int
    nodes: int
    racks: int
    lease_s: float
    lag_s: float
    replicas: int
    spares: int
    step_s: float
    timing: LeaseTiming | None
    is_overlapping: bool
    acts: tuple[Act, ...]

    @property
    def has_neighbour(self) -> bool:
        """A second gang, where a device of the first fails: it has nothing to do with that."""
        return any(act.kind == "xid" for act in self.acts)


def draw(seed: int, kinds: Sequence[str] = tuple(KINDS), most: int = 3) -> StallSchedule:
    """`kinds`: of acts, where only those are wanted, and so many at most."""
    rng = random.Random(f"stalls-{seed}")
    acts = tuple(_draw_act(rng, kinds) for _ in range(rng.randint(1, most)))
    replicas = rng.randint(2, 4)
    is_led = any(act.kind == "partition" for act in acts) or rng.random() < 0.25
    return StallSchedule(
        seed,
        nodes=2 * replicas + (5 if any(act.kind == "xid" for act in acts) else 3),
        racks=rng.choice((1, 2)),
        lease_s=rng.choice((5.0, 8.0, 10.0)),
        lag_s=rng.choice((0.0, 0.0, 0.02, 0.1)),
        replicas=replicas,
        spares=rng.choice((0, 1)),
        step_s=rng.choice((0.5, 1.0)),
        timing=rng.choice(TIMINGS) if is_led else None,
        is_overlapping=rng.random() < 0.45,
        acts=acts,
    )


def _draw_act(rng: random.Random, kinds: Sequence[str]) -> Act:
    kind = rng.choices(kinds, [KINDS[kind] for kind in kinds])[0]
    wait = rng.choice((rng.uniform(0.0, 2.0), rng.uniform(2.0, 15.0)))
    share = rng.choice(SHARES[kind]) if kind in SHARES else rng.random()
    code = {"xid": rng.choice(UNHEALTHY), "disk": rng.choice(sorted(DISK_TROUBLES))}.get(kind, "")
    return Act(round(wait, 3), kind, share, rng.choice(SECONDS.get(kind, OUTAGES)), code)


def options(schedule: StallSchedule) -> dict[str, object]:
    """For `play`."""
    return {
        "kind": StalledWorld,
        "seed": schedule.seed,
        "nodes": schedule.nodes,
        "racks": schedule.racks,
        "lease_s": schedule.lease_s,
        "lag_s": schedule.lag_s,
        "behaviour": SimulatedBehaviour(step_s=schedule.step_s, checkpoint_every=5),
        "election": Election(schedule.timing) if schedule.timing is not None else None,
    }


async def act_out(world: StalledWorld, schedule: StallSchedule) -> None:
    await world.submit("job", replicas=schedule.replicas, spares=schedule.spares, rack=False)
    if schedule.has_neighbour:
        await world.submit("neighbour", replicas=2, rack=False)
        await world.running("neighbour")
    await world.running("job")
    await world.parked("job", spares=schedule.spares)
    await world.step("job", 12)
    if schedule.has_neighbour:
        await world.step("neighbour", 12)
    before, excuses = Before.of(world), Excuses(world, schedule)
    under_way: list[asyncio.Task[None]] = []
    for act in schedule.acts:
        await world.sleep(act.wait)
        excuses.note(act)
        doing = asyncio.create_task(_perform(world, act, excuses))
        under_way.append(doing)
        if not schedule.is_overlapping:
            await doing
            await world.sleep(CALM_S)  # long enough for whoever would be called lost
    await asyncio.gather(*under_way)
    await assert_no_harm(world, before, excuses)


async def _perform(world: StalledWorld, act: Act, excuses: Excuses) -> None:
    names = sorted(world.rack_of)
    match act.kind:
        case "stop":
            await world.stop_everything(act.count)
        case "clock":
            world.clock_ahead_s += act.count
        case "restart":
            # One that cannot reach the API cannot know whom to vouch for: that is another story.
            if world.leader and not any(k.away or k.stopped for k in world.kills) and world.far_side is None:
                await world.restart_control_plane()
        case "xid":
            excuses.broke(_break_device(world, act))
        case "manager-stop" | "api-stop" | "node-stop":
            process = {"manager-stop": world.leader, "api-stop": API_PROCESS}.get(act.kind) or pick(names, act)
            async with world.stopped(process):
                await world.sleep(act.count)
        case "api-away":
            async with world.without_api():
                await world.sleep(act.count)
        case "api-cut":
            async with world.nodes_without_api(cut_nodes(world, act)):
                await world.sleep(act.count)
        case "cut-off":
            async with world.cut_off(cut_nodes(world, act)):
                await world.sleep(act.count)
        case "partition":
            if world.far_side is None:
                async with world.parted(cut_nodes(world, act)):
                    await world.sleep(act.count)
        case "disk":
            async with world.disk_refuses(act.code):
                await world.sleep(act.count)


def _break_device(world: StalledWorld, act: Act) -> Member:
    """A device of the gang; whose."""
    member = pick(world.job().status.members, act)
    world.break_device(member.node, member.devices[0], act.code)
    return member

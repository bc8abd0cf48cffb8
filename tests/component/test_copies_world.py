"""Checkpoints that lie on single nodes, in virtual time: whatever is lost, the gang goes on from a step that was safe."""

from __future__ import annotations

import random

import pytest

from remuda.api.checkpoint_volume import NOT_SHARED
from remuda.api.conditions import find_condition
from remuda.api.drills import DrillKind
from remuda.api.training import Budgets, RankCopies, TrainingJob
from remuda.core.training.checkpoint_copies import copies_of_rank
from remuda.core.training.kept_checkpoints import MISSING, UNREADABLE
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.copies_world import CopiesWorld
from tests.builders.world import NAMESPACE, in_world, play

UNLIMITED = Budgets(code=-1, device=-1, infra=-1, hang=-1)
JOB = (NAMESPACE, "job")


async def gang(world: CopiesWorld, safe: int = 20) -> None:
    await world.submit(replicas=4, spares=1)
    await world.parked()
    await world.until(lambda: world.newest_safe() >= safe, 3.0 * safe, "a step is safe")


def resumed(world: CopiesWorld) -> int:
    return world.job().status.resume_step or 0


def where_checkpoints_are(world: CopiesWorld) -> str:
    found = find_condition(world.job().status.conditions, NOT_SHARED)
    return found.reason if found is not None else ""


async def copied_elsewhere(world: CopiesWorld, rank: int, before: RankCopies) -> None:
    def is_elsewhere() -> bool:
        found = copies_of_rank(world.job().status, rank)
        return found is not None and found.copy != before.copy

    await world.until(is_elsewhere, 120.0)


def is_true(world: CopiesWorld, kind: str) -> bool:
    found = find_condition(world.job().status.conditions, kind)
    return found is not None and found.status == "True"


@in_world(kind=CopiesWorld)
async def test_a_rank_that_moves_finds_its_checkpoints_on_another_node(world: CopiesWorld) -> None:
    await gang(world)
    await world.lose_node(world.member("job", 2).node)
    await world.running(attempt=2)
    assert resumed(world) >= 20


@in_world(kind=CopiesWorld)
async def test_copies_go_to_another_rack_and_stay_with_one_node(world: CopiesWorld) -> None:
    await gang(world)
    before = world.job().status.copies
    assert {c.rank: c.home for c in before} == {m.rank: m.node for m in world.job().status.members}
    assert all(world.rack_of[c.copy] != world.rack_of[c.home] for c in before)
    await world.until(lambda: world.newest_safe() >= 60)
    assert world.job().status.copies == before


@in_world(kind=CopiesWorld)
async def test_a_restart_in_place_goes_on_from_what_is_on_the_disks(world: CopiesWorld) -> None:
    await gang(world)
    world.full.update(world.config.node_names())
    await world.step("job", 45)
    await world.kill_process(rank=1)
    await world.running(attempt=2)
    assert resumed(world) == 40, "no copy of it, and none is needed"


@in_world(kind=CopiesWorld)
async def test_the_loss_of_the_holder_alone_stops_nothing(world: CopiesWorld) -> None:
    await gang(world)
    entry = copies_of_rank(world.job().status, 1)
    assert entry is not None
    await world.lose_node(entry.copy)

    await copied_elsewhere(world, 1, entry)
    assert world.job().status.attempt == 1
    safe = world.newest_safe()
    await world.lose_node(entry.home)
    await world.running(attempt=2)
    assert resumed(world) >= safe


@in_world(kind=CopiesWorld, behaviour=SimulatedBehaviour(checkpoint_every=1000))
async def test_copies_that_are_lost_with_their_holder_are_made_anew_before_the_next_checkpoint(
    world: CopiesWorld,
) -> None:
    """That may be hours away, and the rank's own node may be the next to go."""
    await world.submit(replicas=4, spares=1)
    await world.parked()
    await world.until(lambda: world.newest_safe() == 1000, 1200.0)
    entry = copies_of_rank(world.job().status, 1)
    assert entry is not None
    await world.lose_node(entry.copy)

    await copied_elsewhere(world, 1, entry)
    assert world.newest_safe() == 1000, "no other was saved meanwhile"
    await world.lose_node(entry.home)
    await world.running(attempt=2)
    assert resumed(world) == 1000


class SlowCopies(CopiesWorld):
    copy_s = 20.0


@in_world(kind=SlowCopies, nodes=6, behaviour=SimulatedBehaviour(checkpoint_every=2))
async def test_ranks_that_save_faster_than_copies_are_made_still_survive_any_one_node(world: CopiesWorld) -> None:
    """By the time that a copy is there its rank has removed the step. The node that has copies of some ranks, and is the home of
    another one, takes both with it."""
    await world.submit(replicas=4, spares=1, rack=False)
    await world.until(lambda: world.newest_safe() >= 40, 400.0)
    homes = {c.home for c in world.job().status.copies}
    both = next(c.copy for c in world.job().status.copies if c.copy in homes)
    safe = world.newest_safe()
    await world.lose_node(both)
    await world.running(attempt=2, within=240.0)
    assert resumed(world) >= safe


@in_world(kind=CopiesWorld)
async def test_both_copies_lost_is_said(world: CopiesWorld) -> None:
    await gang(world)
    entry = copies_of_rank(world.job().status, 1)
    assert entry is not None
    world.disk(entry.copy).wipe()
    world.disk(entry.home).wipe()
    await world.lose_node(entry.home)
    await world.until(lambda: is_true(world, MISSING), 120.0)
    assert "rank 1" in world.job().status.message
    assert world.job().status.barrier == "Closed"


SELDOM = SimulatedBehaviour(checkpoint_every=40)  # steps of a second: no rank prunes one that matters here


async def damage_all_but_the_first_copy(world: CopiesWorld) -> RankCopies:
    await gang(world, safe=80)
    entry = copies_of_rank(world.job().status, 1)
    assert entry is not None
    world.rotten.update((entry.copy, step) for step in range(80, 1000, 40))
    return entry


async def resume_from(world: CopiesWorld, step: int) -> None:
    consent = {"resumeFrom": {"step": step, "attempt": world.job().status.attempt}}
    await world.cluster.api.patch(TrainingJob, "job", {"spec": {"checkpoint": consent}}, NAMESPACE)
    await world.until(lambda: world.job().status.barrier == "Open", 120.0)
    assert resumed(world) == step


@in_world(kind=CopiesWorld, behaviour=SELDOM)
async def test_a_damaged_copy_is_missing_is_said_and_older_ones_are_there_for_the_asking(world: CopiesWorld) -> None:
    entry = await damage_all_but_the_first_copy(world)
    world.disk(entry.home).wipe()  # it lives, and has nothing any more
    member = world.member("job", 1)
    await world.drill(DrillKind.DEVICE_FAIL, node=member.node, device=member.devices[0], code="xid-79")
    await world.until(lambda: is_true(world, MISSING), 120.0)
    message = world.job().status.message
    assert world.job().status.barrier == "Closed"
    assert f"the copy of step 80 is damaged on {entry.copy} (CopyCorrupt)" in message
    assert "--from-step 40" in message
    world.expect_step_back()
    await resume_from(world, 40)


@in_world(kind=CopiesWorld, behaviour=SELDOM)
async def test_a_damaged_copy_holds_the_barrier_while_the_last_home_may_still_come_back(world: CopiesWorld) -> None:
    entry = await damage_all_but_the_first_copy(world)
    await world.lose_node(entry.home)
    await world.until(lambda: is_true(world, UNREADABLE) and "CopyCorrupt" in world.job().status.message, 120.0)
    assert "its last node cannot be reached" in world.job().status.message
    await world.sleep(60.0)
    assert is_true(world, UNREADABLE)
    world.expect_step_back()
    await resume_from(world, 40)


@in_world(kind=CopiesWorld)
async def test_a_holder_that_cannot_be_reached_holds_the_barrier_until_it_can(world: CopiesWorld) -> None:
    await gang(world)
    entry = copies_of_rank(world.job().status, 1)
    assert entry is not None
    world.machines.cut_off.add(entry.copy)
    await world.lose_node(entry.home)
    await world.until(lambda: is_true(world, UNREADABLE), 120.0)
    assert entry.copy in world.job().status.message
    await world.sleep(120.0)
    assert is_true(world, UNREADABLE)
    world.machines.cut_off.discard(entry.copy)
    await world.running(attempt=2)
    assert resumed(world) >= 20


@in_world(kind=CopiesWorld)
async def test_without_a_peer_nothing_counts_as_kept_and_the_job_says_so(world: CopiesWorld) -> None:
    world.full.update(world.config.node_names())
    await world.submit(replicas=4, spares=1)
    await world.step("job", 35)
    await world.until(lambda: where_checkpoints_are(world) == "NotCopied")
    status = world.job().status
    assert status.progress.kept == []
    assert status.progress.checkpoint_step == 0
    found = find_condition(status.conditions, NOT_SHARED)
    assert found is not None
    assert "NoSpaceForCopies" in found.message
    assert "Make room on other nodes (--copy-space), or give the job a volume" in found.message
    world.full.clear()
    await world.until(lambda: world.newest_safe() >= 40, 120.0)
    await world.until(lambda: where_checkpoints_are(world) == "Copied")


@in_world(kind=CopiesWorld)
async def test_a_job_whose_agents_meet_no_others_is_told_before_its_first_checkpoint(world: CopiesWorld) -> None:
    world.meets_peers = False
    await world.submit(replicas=4, spares=1)
    await world.step("job", 5)
    await world.until(lambda: where_checkpoints_are(world) == "NotCopied")
    found = find_condition(world.job().status.conditions, NOT_SHARED)
    assert found is not None
    assert "rank 0 on node-01: its agent meets no others (NoPeers)" in found.message
    assert "Let agents meet (--link-token, --peer-host" in found.message
    await world.step("job", 25)
    assert world.job().status.progress.kept == []
    assert where_checkpoints_are(world) == "NotCopied"


@in_world(kind=CopiesWorld)
async def test_what_is_said_follows_the_copies(world: CopiesWorld) -> None:
    await world.submit(replicas=4, spares=1)
    await world.until(lambda: where_checkpoints_are(world) == "NotCopiedYet")
    await world.until(lambda: where_checkpoints_are(world) == "Copied")


@in_world(kind=CopiesWorld)
async def test_a_rank_that_comes_back_does_not_bring_an_old_history(world: CopiesWorld) -> None:
    """Its old node still has a step of a history that was given up since; others have a new one by the same number."""
    await gang(world)
    old = world.member("job", 2).node
    world.full.update(world.config.node_names())  # the newest steps are on the ranks' own nodes alone
    await world.step("job", 42)
    world.apart.add(old)
    await world.drill(DrillKind.NODE_PARTITION, node=old, seconds=60.0)
    await world.running(attempt=2, within=120.0)
    went_on_from = resumed(world)
    assert went_on_from < 40
    world.full.clear()
    world.apart.clear()
    await world.until(lambda: world.newest_safe() >= 40, 240.0)
    # The checks of the world compare what the ranks went on from, byte for byte so to say.
    for rank in range(4):
        await world.kill_launcher(rank=rank)
        await world.sleep(30.0)
    assert world.resumed[-1][1] >= 40


KINDS = ("device", "pod", "launcher", "process", "node", "reboot", "partition")


def is_paired(world: CopiesWorld) -> bool:
    """Losing any one node now loses no step that is safe."""
    status, nodes = world.job().status, world.cluster.machines.nodes
    safe = world.newest_safe()
    entries = {c.rank: c for c in status.copies}
    for member in status.members:
        entry = entries.get(member.rank)
        if entry is None or entry.home != member.node or safe == 0 or nodes[entry.copy].is_lost:
            return False
        held = world.disk(entry.copy).copies.get((world.job().uid, member.rank), {})
        if safe not in held or entry.copy in world.machines.cut_off:
            return False
    return status.barrier == "Open"


async def lose_things(world: CopiesWorld, count: int) -> None:
    chance = random.Random(world.seed)
    await world.submit(replicas=8, spares=1, rack=False, budgets=UNLIMITED)
    await world.running(within=120.0)
    for _ in range(count):
        await world.sleep(chance.uniform(1.0, 40.0))
        kind, rank = chance.choice(KINDS), chance.randrange(8)
        if kind in ("node", "reboot", "partition", "device"):
            await world.until(lambda: is_paired(world), 600.0, "every rank has a copy elsewhere")
        await world.until(lambda: len(world.job().status.members) == 8, 300.0)
        attempt, member = world.job().status.attempt, world.member("job", rank)
        if kind == "node":
            await world.lose_node(member.node)
        elif kind == "reboot":
            await world.drill(DrillKind.NODE_REBOOT, node=member.node, may_be_refused=True)
        elif kind == "partition":
            await world.drill(DrillKind.NODE_PARTITION, node=member.node, seconds=chance.uniform(5.0, 60.0))
        elif kind == "device":
            await world.drill(
                DrillKind.DEVICE_FAIL, node=member.node, device=member.devices[0], code="xid-79", may_be_refused=True
            )
        elif kind == "pod":
            await world.drill(DrillKind.POD_DELETE, pod=member.pod, namespace=NAMESPACE, may_be_refused=True)
        else:
            drill = DrillKind.LAUNCHER_KILL if kind == "launcher" else DrillKind.PROCESS_KILL
            await world.drill(drill, pod=member.pod, namespace=NAMESPACE, may_be_refused=True)
        if kind in ("node", "device"):
            await world.running(attempt=attempt + 1, within=600.0)
    await world.sleep(90.0)
    await world.running(attempt=world.job().status.attempt, within=600.0)
    assert any(safe for safe, _ in world.resumed)


@pytest.mark.parametrize(
    ("seed", "losses"), [(2, 10), *(pytest.param(seed, 50, marks=pytest.mark.slow) for seed in range(3, 8))]
)
def test_losses_never_cost_a_step_that_was_safe(seed: int, losses: int, request: pytest.FixtureRequest) -> None:
    """One again, alone: --seed N. What fails names its seed."""
    if (one := request.config.getoption("--seed")) is not None:
        seed = one
    behaviour = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, jitter=0.2)
    play(lambda world: lose_things(world, losses), kind=CopiesWorld, nodes=48, racks=4, seed=seed, behaviour=behaviour)

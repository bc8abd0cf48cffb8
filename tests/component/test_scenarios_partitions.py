"""The leader and nodes on one side, the API and the next leader on the other: nobody runs twice, few are replaced.

With the terms unchecked (`checks_terms=False`) the old leader goes on promising, and a rank runs twice: the tests can fail.
"""

from __future__ import annotations

import pytest

from remuda.kube.runtime.leader_lease import LeaseTiming
from tests.builders.led_cluster import Election
from tests.builders.stalled_world import StalledWorld
from tests.builders.world import in_world, play

TIMING = LeaseTiming(15, 10.0, 2.0)


async def gang_at_work(world: StalledWorld) -> str:
    """Who leads."""
    await world.submit("job", replicas=4, spares=1, rack=False)
    await world.running("job")
    await world.parked("job")
    await world.step("job", 12)
    return world.leader


async def parted_with_one_node(world: StalledWorld) -> None:
    old = await gang_at_work(world)
    before = world.gang()
    victim = before[1]
    async with world.parted([victim.node]):
        await world.until(lambda: world.leader not in ("", old), 60.0, "the other one leads")
        await world.running("job", attempt=2)
        assert world.recovery().reason == "NodeLost"
    await world.sleep(20.0)
    world.assert_kept(before, but=[1])
    assert world.job().status.attempt == 2


@in_world(kind=StalledWorld, election=Election(TIMING))
async def test_a_node_with_the_old_leader_has_stopped_before_its_rank_is_handed_on(world: StalledWorld) -> None:
    await parted_with_one_node(world)


def test_without_terms_the_old_leader_keeps_it_running_and_a_rank_runs_twice() -> None:
    with pytest.raises(AssertionError, match=r"a rank runs once|everyone has stopped|goes after its processes"):
        play(parted_with_one_node, kind=StalledWorld, election=Election(TIMING, checks_terms=False))


@pytest.mark.parametrize("lease_s", [5.0, 5.1, 8.0, 10.0])
def test_all_nodes_with_the_old_leader_are_held_by_the_new_one(lease_s: float) -> None:
    """Their leases run out at one moment: that of its first look, and one lease. Nobody is lost a moment before all are."""

    async def story(world: StalledWorld) -> None:
        old = await gang_at_work(world)
        before, pods = world.gang(), {pod.uid for pod in world.pods()}
        async with world.parted(world.rack_of):
            await world.until(lambda: world.leader not in ("", old), 60.0, "the other one leads")
            await world.sleep(40.0)
            assert {pod.uid for pod in world.pods()} == pods, world.describe()
        await world.running("job", attempt=2)
        world.assert_kept(before)

    play(story, kind=StalledWorld, election=Election(TIMING), lease_s=lease_s)

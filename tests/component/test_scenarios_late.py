"""News that comes late: the control plane and the nodes act on an old picture, as they do on every real network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from remuda.api.kubernetes.core_v1 import Lease, Pod
from remuda.api.names import RESOURCE_GPU, SCHEDULER
from remuda.api.training import Remedy
from tests.builders import rank_faults
from tests.builders.world import NAMESPACE, World, in_world

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

LAG_S = 0.2


async def gang_at_work(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    await world.step("job", 25)


@pytest.mark.parametrize("seed", range(4))
def test_every_pod_is_made_once(seed: int) -> None:
    """Pods that were made but are not in the picture yet must not be made again under other names."""

    @in_world(seed=seed, lag_s=LAG_S)
    async def story(world: World) -> None:
        await world.submit("job", replicas=4, spares=2)
        await world.running("job")
        await world.parked("job", 2)
        assert sorted(pod.name for pod in world.pods()) == [f"job-worker-{n}" for n in range(6)]
        assert world.job().status.pods_created == 6
        assert {seat.pod for seat in world.gang().values()} == {f"job-worker-{n}" for n in range(4)}, (
            "spares stay spares"
        )

    story()


FAULTS: dict[str, tuple[Callable[[World], Awaitable[None]], Remedy, dict[str, int]]] = {
    "process": (rank_faults.process, Remedy.RESTART_IN_PLACE, {"code": 1}),
    "launcher": (rank_faults.launcher, Remedy.RESTART_IN_PLACE, {"infra": 1}),
    "device": (rank_faults.device, Remedy.PROMOTE_SPARE, {"device": 1}),
    "pod": (rank_faults.pod, Remedy.PROMOTE_SPARE, {"infra": 1}),
    "node": (rank_faults.node, Remedy.PROMOTE_SPARE, {"infra": 1}),
}


@pytest.mark.parametrize("name", FAULTS)
@in_world(lag_s=LAG_S)
async def test_faults_are_cured_all_the_same(world: World, name: str) -> None:
    fault, remedy, used = FAULTS[name]
    await gang_at_work(world)
    before = world.gang()
    await fault(world)
    await world.running("job", attempt=2)
    await world.parked("job", 1)
    await world.sleep(3.0)
    assert (world.recovery().remedy, world.job().status.used) == (remedy, used)
    world.assert_kept(before, but=[1] if remedy is Remedy.PROMOTE_SPARE else [])
    assert world.job().status.interruptions == 1


@in_world()
async def test_old_news_of_a_lease_does_not_bury_the_living(world: World) -> None:
    """Half a minute without news of any lease: by the picture every node is dead, by the API none is."""
    await gang_at_work(world)
    before = world.gang()
    world.manager.deaf.add(Lease)
    await world.sleep(30.0)
    assert world.job().status.attempt == 1
    world.assert_kept(before)


@in_world()
async def test_a_lost_node_is_found_although_no_news_of_leases_comes(world: World) -> None:
    await gang_at_work(world)
    before = world.gang()
    world.manager.deaf.add(Lease)
    await world.sleep(10.0)
    await world.lose_node(before[2].node)
    await world.running("job", attempt=2)
    assert world.recovery().reason == "NodeLost"
    world.assert_kept(before, but=[2])


@in_world()
async def test_pods_made_while_deaf_are_not_made_again(world: World) -> None:
    world.manager.deaf.add(Pod)
    await world.submit("job", replicas=3, spares=1)
    await world.sleep(5.0)
    assert sorted(pod.name for pod in world.pods()) == [f"job-worker-{n}" for n in range(4)]
    world.manager.deaf.clear()
    await world.running("job")
    assert len(world.pods()) == 4


@in_world(nodes=6, lag_s=LAG_S, write_lag_s=0.0)
async def test_a_binding_that_has_not_come_back_counts_as_taken(world: World) -> None:
    """The scheduler's next look comes long before the news of its last bindings. The cluster has room for exactly these."""
    container = {"name": "main", "command": ["serve"], "resources": {"limits": {RESOURCE_GPU: 2}}}
    for n in range(24):
        meta = {"name": f"single-{n}", "namespace": NAMESPACE}
        await world.cluster.api.create(
            Pod, {"metadata": meta, "spec": {"schedulerName": SCHEDULER, "containers": [container]}}
        )
        await world.sleep(0.03)
    await world.until(lambda: [pod.status.phase for pod in world.all_pods()] == ["Running"] * 24)


@in_world(lease_s=8.0)
async def test_a_node_that_is_cut_off_stops_its_ranks_before_they_are_handed_on(world: World) -> None:
    """Its leases do not get through, so it fences itself at two thirds of one; its ranks go to others after a whole one."""
    await gang_at_work(world)
    before = world.gang()
    victim = before[1]
    world.machines.cut_off.add(victim.node)
    await world.until(lambda: victim.uid not in dict(world.children()), 8.0)
    fenced_at = world.now
    assert world.job().status.attempt == 1, "fenced before anyone knows that it is gone"
    await world.running("job", attempt=2)
    assert world.recovery().reason == "NodeLost"
    world.assert_kept(before, but=[1])
    assert 1.0 <= world.now - fenced_at <= 8.0
    assert world.pod(victim.pod) is None

    world.machines.cut_off.clear()
    await world.until(lambda: victim.uid not in world.holders().values())
    await world.sleep(20.0)
    assert world.job().status.attempt == 2
    assert world.job().status.used == {"infra": 1}


@in_world(lease_s=8.0)
async def test_a_short_cut_is_not_noticed(world: World) -> None:
    await gang_at_work(world)
    world.machines.cut_off.update(world.rack_of)
    await world.sleep(3.0)
    world.machines.cut_off.clear()
    await world.sleep(20.0)
    assert world.job().status.attempt == 1


@in_world(lease_s=8.0)
async def test_a_cut_long_enough_to_fence_but_not_to_die_costs_one_restart(world: World) -> None:
    """The fenced rank is stopped for good: its launcher waits for a higher attempt, and gets one."""
    await gang_at_work(world)
    before = world.gang()
    world.machines.cut_off.add(before[1].node)
    await world.until(lambda: before[1].uid not in dict(world.children()), 8.0)
    world.machines.cut_off.clear()
    await world.running("job", attempt=2)
    await world.sleep(10.0)
    world.assert_kept(before)
    assert world.job().status.used == {"infra": 1}
    assert world.job().status.attempt == 2


@in_world(nodes=4, lease_s=8.0)
async def test_every_node_cut_off_and_back(world: World) -> None:
    """Silent all at once: nobody is replaced, their nodes stop the ranks, and the gang runs again when they are back."""
    await world.submit("job", replicas=2, spares=0)
    await world.running("job")
    await world.step("job", 25)
    before = world.gang()
    world.machines.cut_off.update(world.rack_of)
    await world.until(lambda: not world.children(), 30.0)
    await world.sleep(20.0)
    assert not world.children()
    assert world.job().status.attempt == 1
    world.machines.cut_off.clear()
    await world.running("job", attempt=2)
    world.assert_kept(before)
    assert world.recovery().resume_step >= 20

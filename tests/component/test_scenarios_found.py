"""Stories that random schedules found, told alone."""

from __future__ import annotations

from remuda.api.conditions import find_condition
from remuda.api.drills import DrillKind
from remuda.api.kubernetes.apps_v1 import Deployment
from remuda.api.kubernetes.policy_v1 import ResourceQuota
from tests.builders.foreign import deploy, read
from tests.builders.recoveries import quota_body
from tests.builders.world import NAMESPACE, World, in_world
from tests.component.world_rig import drain_at_once, fail, free_on, until_done


@in_world(nodes=4, racks=1, lease_s=8.0)
async def test_a_kubelet_that_restarts_while_it_is_cut_off_still_gives_its_ranks_up_in_time(world: World) -> None:
    """Otherwise its rank runs twice: the manager hands it on when the lease is over. The world's invariants would tell."""
    await world.submit(replicas=2)
    await world.running()
    node = world.member("job", 1).node
    await world.drill(DrillKind.NODE_PARTITION, node=node, seconds=25.0)
    await world.drill(DrillKind.KUBELET_RESTART, node=node)
    await world.running(attempt=2, within=40.0)
    assert world.member("job", 1).node != node
    name = "drill-001"
    await world.until(lambda: world._drill(name).status.phase == "Undone", 60.0, "the partition ends")
    await world.until(lambda: not world.devices(node).observed.holdings, 30.0, "the node is heard again, and empty")


@in_world(nodes=2, racks=1, admits=True)
async def test_a_deployment_over_its_quota_is_tried_again_ever_more_seldom(world: World) -> None:
    """Each refusal names another pod. Told anew each time it was a change of the set, which asked for the next try at once."""
    await world.cluster.api.create(ResourceQuota, quota_body(1, NAMESPACE))
    await deploy(world, "web", 2, gpus=1)

    def is_told() -> bool:
        return find_condition(read(world, Deployment, "web").status.conditions, "ReplicaFailure") is not None

    await world.until(is_told, 30.0, "the refusal is told")
    before = world.journal.commits
    await world.sleep(20.0)
    leases = 2 * 20.0 / (8.0 / 4) * 2
    proofs = 2 * 20.0  # that the API takes writes: the manager's and the server's own
    assert world.journal.commits - before < leases + proofs + 20


@in_world(nodes=6)
async def test_a_gang_is_not_asked_to_move_for_a_drain_that_is_not_written_down_yet(world: World) -> None:
    """Others write the incident, too. The gang moved for a drain that was decided again and again meanwhile, each time with
    another deadline, and that might not have come at all. The world's invariants would tell."""
    await drain_at_once(world, 30.0, 300.0)
    await world.submit("job", replicas=2, gpus=4, rack=False)
    await world.running("job")
    seat = world.gang("job")[0]
    await fail(world, "xid-79", seat.node, free_on(world, seat.node, seat.devices))
    await until_done(world, "probe-reboot-1", 600.0)
    await world.running("job", attempt=2, within=120.0)


@in_world(nodes=2, racks=1)
async def test_a_launcher_that_dies_while_its_gang_waits_for_room_comes_back_in_its_pod(world: World) -> None:
    """It had reached the barrier long ago, and the time to do so was over: it was called late at once, and its pod replaced."""
    await world.submit(replicas=2, start_deadline_seconds=20.0)
    await world.running()
    await world.lose_node(world.member("job", 1).node)
    await world.until(lambda: len(world.job().status.members) == 1, 30.0, "the gang waits")
    await world.sleep(60.0)
    before, used = world.gang(), world.job().status.used
    await world.kill_launcher("job", 0)
    await world.sleep(30.0)
    assert world.gang() == before, world.describe()
    assert world.job().status.used == used

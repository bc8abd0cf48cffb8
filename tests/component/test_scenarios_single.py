"""One fault at a time: what breaks, what is replaced, what is kept, where training resumes and who is charged."""

from __future__ import annotations

import pytest

from remuda.api.meta import to_seconds
from remuda.api.training import Cause, Remedy
from remuda.embedded.node.training_model import SimulatedBehaviour
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.world import World, in_world
from tests.component.world_rig import gang_at_work


@in_world()
async def test_process_killed_restarts_everyone_in_place(world: World) -> None:
    await gang_at_work(world)
    before, spare = world.gang(), world.parked_spares()
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)

    recovery = world.recovery()
    assert (recovery.remedy, recovery.cause, recovery.reason) == (
        Remedy.RESTART_IN_PLACE,
        Cause.CODE,
        "ProcessExited",
    )
    assert recovery.members == [before[2].pod]
    assert recovery.replaced == []
    assert recovery.resume_step == 20
    assert world.job().status.attempt == 2
    assert world.job().status.used == {"code": 1}
    world.assert_kept(before)
    assert world.parked_spares() == spare


@in_world()
async def test_device_failed_costs_exactly_one_pod(world: World) -> None:
    await gang_at_work(world)
    before, (spare,) = world.gang(), world.parked_spares()
    await world.fail_device(rank=1, code="xid-79")
    await world.running("job", attempt=2)

    recovery = world.recovery()
    assert (recovery.remedy, recovery.cause, recovery.reason) == (Remedy.PROMOTE_SPARE, Cause.DEVICE, "Xid79")
    assert recovery.members == [before[1].pod]
    assert recovery.replaced == [spare]
    assert recovery.resume_step == 20
    assert any(text.startswith("RestartInPlace: ") for text in recovery.why_not)
    assert world.job().status.used == {"device": 1}
    world.assert_kept(before, but=[1])
    assert world.gang()[1].pod == spare
    await world.parked("job", 1)
    assert world.parked_spares() != [spare]
    world.assert_racks(world.rack_of[before[0].node])


@in_world()
async def test_a_failed_device_is_never_handed_out_again(world: World) -> None:
    await gang_at_work(world)
    broken = world.gang()[1]
    await world.fail_device(rank=1)
    await world.running("job", attempt=2)
    await world.submit("other", replicas=7, gpus=1, rack=False)
    await world.running("other")
    places = {(m.node, device) for m in world.job("other").status.members for device in m.devices}
    assert places
    assert (broken.node, broken.devices[0]) not in places
    assert world.pod(broken.pod) is None


@in_world()
async def test_a_fault_of_the_application_leaves_the_device_alone(world: World) -> None:
    await gang_at_work(world)
    before = world.gang()
    await world.fail_device(rank=1, code="xid-13")  # the vendor's word for it: restart the application
    await world.sleep(5.0)
    assert world.job().status.attempt == 1
    world.assert_kept(before)


@in_world()
async def test_pod_deleted_is_replaced_by_the_spare(world: World) -> None:
    await gang_at_work(world)
    before, (spare,) = world.gang(), world.parked_spares()
    await world.delete_pod(before[3].pod)
    await world.running("job", attempt=2)

    recovery = world.recovery()
    assert (recovery.remedy, recovery.cause, recovery.reason) == (Remedy.PROMOTE_SPARE, Cause.INFRA, "PodDeleted")
    assert recovery.replaced == [spare]
    assert recovery.resume_step == 20
    assert world.job().status.used == {"infra": 1}
    world.assert_kept(before, but=[3])
    await world.parked("job", 1)


@in_world(lease_s=8.0)
async def test_node_lost_is_handed_on_only_when_it_is_dead(world: World) -> None:
    await gang_at_work(world)
    before, (spare,) = world.gang(), world.parked_spares()
    lost_at = world.now
    await world.lose_node(before[0].node)
    await world.running("job", attempt=2)

    recovery = world.recovery()
    assert (recovery.remedy, recovery.cause, recovery.reason) == (Remedy.PROMOTE_SPARE, Cause.INFRA, "NodeLost")
    assert recovery.detected_at is not None
    waited = to_seconds(recovery.detected_at) - EPOCH - lost_at
    assert 8.0 - 2.0 <= waited <= 8.1, "the lease is renewed every quarter of its length and must run out in full"
    assert recovery.replaced == [spare]
    assert world.job().status.used == {"infra": 1}
    world.assert_kept(before, but=[0])
    assert world.pod(before[0].pod) is None
    # The survivors trained on until the node was dead: what they all could save meanwhile, rank 0 could not.
    assert recovery.resume_step == 20


@in_world()
async def test_node_lost_takes_all_its_members(world: World) -> None:
    await world.submit("job", replicas=4, gpus=4, spares=2)
    await world.running("job")
    await world.parked("job", 2)
    await world.step("job", 12)
    before = world.gang()
    await world.lose_node(before[0].node)
    await world.running("job", attempt=2)
    gone = [rank for rank, seat in before.items() if seat.node == before[0].node]
    assert len(gone) == 2
    world.assert_kept(before, but=gone)
    assert sorted(world.recovery().members) == sorted(before[rank].pod for rank in gone)
    assert world.job().status.used == {"infra": 1}, "one lost node is one interruption"


@in_world()
async def test_launcher_killed_restarts_in_the_same_pod(world: World) -> None:
    await gang_at_work(world)
    before = world.gang()
    await world.kill_launcher(rank=1)
    await world.running("job", attempt=2)

    recovery = world.recovery()
    assert (recovery.remedy, recovery.cause, recovery.reason) == (
        Remedy.RESTART_IN_PLACE,
        Cause.INFRA,
        "LauncherDied",
    )
    assert recovery.members == [before[1].pod]
    assert recovery.resume_step == 20
    world.assert_kept(before)
    pod = world.pod(before[1].pod)
    assert pod is not None
    assert pod.status.container_statuses[0].restart_count == 1


@in_world()
async def test_rank_that_hangs_is_found_by_its_missing_steps(world: World) -> None:
    await gang_at_work(world, hang_after_seconds=3.0)
    before = world.gang()
    hung_at = world.now
    await world.hang_process(rank=0)
    await world.running("job", attempt=2)

    recovery = world.recovery()
    assert (recovery.remedy, recovery.cause, recovery.reason) == (Remedy.RESTART_IN_PLACE, Cause.HANG, "NoProgress")
    assert recovery.members == [before[0].pod]
    assert recovery.detected_at is not None
    assert 2.5 <= to_seconds(recovery.detected_at) - EPOCH - hung_at <= 3.5
    assert recovery.resume_step == 20, "the rank that hung has no later checkpoint, whatever the others saved"
    assert world.job().status.used == {"hang": 1}
    world.assert_kept(before)


@in_world()
async def test_without_a_limit_a_hang_is_not_looked_for(world: World) -> None:
    await gang_at_work(world, hang_after_seconds=0.0)
    await world.hang_process(rank=0)
    await world.sleep(60.0)
    assert world.job().status.attempt == 1


@pytest.mark.parametrize("rank", [0, 2])
@in_world()
async def test_corrupt_newest_checkpoint_falls_back_one(world: World, rank: int) -> None:
    await gang_at_work(world)
    before = world.gang()
    assert world.corrupt_newest("job", rank) == 20
    await world.kill_process(rank=1)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 10
    world.assert_kept(before)
    await world.step("job", 31)
    await world.kill_process(rank=1)
    await world.running("job", attempt=3)
    assert world.recovery().resume_step == 30, "checkpoints made after the fall-back count again"


@in_world()
async def test_no_good_checkpoint_at_one_rank_starts_over(world: World) -> None:
    await gang_at_work(world)
    assert [world.corrupt_newest("job", 3) for _ in range(2)] == [20, 10]
    await world.kill_process(rank=1)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 0


@in_world(behaviour=SimulatedBehaviour(step_s=0.5, checkpoint_every=0))
async def test_job_without_checkpoints_starts_over(world: World) -> None:
    await gang_at_work(world)
    await world.kill_process(rank=1)
    await world.running("job", attempt=2)
    recovery = world.recovery()
    assert recovery.resume_step == 0
    assert recovery.step_at_fault >= 24


@in_world()
async def test_spare_fails_and_the_gang_never_notices(world: World) -> None:
    await gang_at_work(world)
    before, (spare,) = world.gang(), world.parked_spares()
    await world.fail_device_of(spare)
    await world.until(lambda: world.parked_spares() not in ([], [spare]))
    status = world.job().status
    assert (status.attempt, status.phase, status.used) == (1, "Running", {})
    world.assert_kept(before)
    await world.until(lambda: world.pod(spare) is None)


@in_world()
async def test_spare_deleted_is_made_anew(world: World) -> None:
    await gang_at_work(world)
    (spare,) = world.parked_spares()
    await world.delete_pod(spare)
    await world.until(lambda: world.parked_spares() not in ([], [spare]))
    assert world.job().status.attempt == 1


@in_world()
async def test_spare_fails_first_then_a_member(world: World) -> None:
    await gang_at_work(world)
    before, (spare,) = world.gang(), world.parked_spares()
    await world.fail_device_of(spare)
    await world.until(lambda: world.parked_spares() not in ([], [spare]))
    (second,) = world.parked_spares()
    await world.fail_device(rank=0)
    await world.running("job", attempt=2)
    assert world.recovery().replaced == [second]
    world.assert_kept(before, but=[0])
    assert world.job().status.used == {"device": 1}


@in_world(behaviour=SimulatedBehaviour(step_s=0.5, checkpoint_every=10, steps=30))
async def test_job_that_is_done_succeeds_and_frees_everything(world: World) -> None:
    await gang_at_work(world)
    await world.until(lambda: world.job().status.phase == "Succeeded")
    await world.until(lambda: not world.pods() and not world.holders())
    assert world.job().status.progress.step == 30


@in_world(behaviour=SimulatedBehaviour(step_s=0.5, checkpoint_every=10, stop_s=60.0))
async def test_ranks_that_ignore_the_signal_are_killed_after_the_grace(world: World) -> None:
    await gang_at_work(world, stop_grace_seconds=2.0)
    before = world.gang()
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    recovery = world.recovery()
    assert recovery.stopped_at is not None
    assert recovery.detected_at is not None
    assert 2.0 <= (recovery.stopped_at - recovery.detected_at).total_seconds() <= 2.1
    world.assert_kept(before)


@in_world()
async def test_goodput_counts_the_stand_still_and_the_steps_done_again(world: World) -> None:
    await gang_at_work(world)
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    recovery, goodput = world.recovery(), world.job().status.goodput
    assert recovery.signal_at is not None
    assert recovery.first_step_at is not None
    idle = (recovery.first_step_at - recovery.signal_at).total_seconds()
    again = (recovery.step_at_fault - recovery.resume_step) * 0.5
    assert recovery.lost_gpu_seconds == pytest.approx((idle + again) * 32, rel=0.01)
    assert goodput.lost_gpu_seconds == {"code": recovery.lost_gpu_seconds}
    assert goodput.ettr == pytest.approx(1 - goodput.lost_seconds / goodput.wall_seconds, abs=0.01)

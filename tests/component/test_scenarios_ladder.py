"""The ladder, rung by rung: which remedy is taken when the cheaper ones are not possible, what it says, and where it ends."""

from __future__ import annotations

import pytest

from remuda.api.training import Budgets, Remedy, TrainingJob
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import NAMESPACE, World, in_world

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes


async def gang_at_work(world: World, name: str = "job", **options: object) -> None:
    await world.submit(name, **options)
    await world.running(name)
    await world.step(name, 25)


def why_not(world: World, remedy: Remedy) -> str:
    return next((text for text in world.recovery().why_not if text.startswith(f"{remedy}: ")), "")


# --- no spare ---------------------------------------------------------------------------------------------------------


@in_world()
async def test_no_spare_left_replaces_the_pod(world: World) -> None:
    await gang_at_work(world, replicas=4, spares=0)
    before = world.gang()
    await world.fail_device(rank=1)
    await world.running("job", attempt=2)
    assert world.recovery().remedy is Remedy.REPLACE_POD
    assert why_not(world, Remedy.PROMOTE_SPARE) == "PromoteSpare: 0 spares parked in rack-1, 1 needed"
    assert "cannot be used again" in why_not(world, Remedy.RESTART_IN_PLACE)
    assert world.recovery().resume_step == 20
    world.assert_kept(before, but=[1])
    world.assert_racks("rack-1")


@in_world()
async def test_spare_not_ready_yet_is_waited_for_when_nothing_is_nearer(world: World) -> None:
    """The spare is on its way up: it is not parked, so a pod is asked for, and whoever is ready first gets the rank."""
    world.behaviours["job-worker-4"] = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, start_s=20.0)
    await gang_at_work(world, replicas=4, spares=1)
    before = world.gang()
    assert world.parked_spares() == []
    await world.fail_device(rank=1)
    await world.running("job", attempt=2)
    assert why_not(world, Remedy.PROMOTE_SPARE).startswith("PromoteSpare: 0 spares parked")
    world.assert_kept(before, but=[1])
    await world.parked("job", 1)


@in_world(nodes=4)
async def test_rack_full_moves_the_gang_whole(world: World) -> None:
    await gang_at_work(world, replicas=2, spares=0)
    before = world.gang()
    world.assert_racks("rack-1")
    await world.fail_device(rank=0)
    await world.running("job", attempt=2)
    assert world.recovery().remedy is Remedy.REPLACE_GANG
    assert why_not(world, Remedy.REPLACE_POD)
    assert world.recovery().resume_step == 20
    world.assert_kept(before, but=[0, 1])
    world.assert_racks("rack-2")
    assert world.job().status.placement.domain == "rack-2"
    assert world.job().status.used == {"device": 1}


@in_world(nodes=4)
async def test_a_spare_saves_the_move(world: World) -> None:
    await gang_at_work(world, replicas=1, spares=1)
    await world.parked("job", 1)
    before = world.gang()
    await world.fail_device(rank=0)
    await world.running("job", attempt=2)
    assert world.recovery().remedy is Remedy.PROMOTE_SPARE
    world.assert_kept(before, but=[0])
    world.assert_racks(world.rack_of[before[0].node])


# --- nowhere ----------------------------------------------------------------------------------------------------------


@in_world(nodes=4)
async def test_nowhere_to_go_waits_with_a_reason_and_goes_on_when_there_is_room(world: World) -> None:
    await gang_at_work(world, replicas=2, spares=0)
    await gang_at_work(world, "other", replicas=2, spares=0)
    assert world.job("other").status.placement.domain == "rack-2"
    await world.until(lambda: world.common_checkpoint() >= 30)
    newest = world.common_checkpoint()
    await world.fail_device(rank=0)
    await world.until(lambda: world.job().status.phase == "Recovering" and world.job().status.reason == "DomainFull")
    assert "rack-1" in world.job().status.message
    await world.sleep(30.0)
    status = world.job().status
    assert (status.phase, status.reason, status.barrier) == ("Recovering", "DomainFull", "Closed")
    assert status.used == {"device": 1}
    assert world.job("other").status.attempt == 1

    await world.cluster.api.delete(TrainingJob, "other", NAMESPACE)
    await world.running("job", attempt=2)
    world.assert_racks("rack-2")
    assert world.recovery().remedy is Remedy.REPLACE_GANG
    assert world.recovery().resume_step == newest
    assert world.job().status.used == {"device": 1}, "waiting for room is not another interruption"


@in_world(nodes=2, racks=1)
async def test_a_job_that_never_fitted_waits_and_starts_when_there_is_room(world: World) -> None:
    await gang_at_work(world, "first", replicas=2, spares=0)
    await world.submit("job", replicas=2, spares=1)
    await world.until(lambda: world.job().status.reason == "InsufficientDevices")
    await world.sleep(10.0)
    assert world.job().status.phase == "Pending"
    assert not world.job().status.members
    await world.cluster.api.delete(TrainingJob, "first", NAMESPACE)
    await world.running("job")
    assert world.job().status.attempt == 1


@in_world(nodes=2, racks=1)
async def test_more_devices_than_any_node_has_says_so(world: World) -> None:
    await world.submit("job", replicas=1, gpus=16)
    await world.until(lambda: world.job().status.reason == "NoNodeHasThatManyGpus")
    assert "8" in world.job().status.message


# --- the end ----------------------------------------------------------------------------------------------------------


@in_world()
async def test_code_budget_exhausted_fails_with_a_named_reason(world: World) -> None:
    await gang_at_work(world, replicas=4, spares=1, budgets=Budgets(code=2))
    for attempt in (2, 3):
        await world.kill_process(rank=1)
        await world.running("job", attempt=attempt)
    await world.kill_process(rank=1)
    await world.until(lambda: world.job().status.phase == "Failed")
    status = world.job().status
    assert status.reason == "CodeBudgetExhausted"
    assert "Failed 3 times because of its own code" in status.message
    assert "(limit 2)" in status.message
    assert status.used == {"code": 3}
    assert status.recoveries[-1].remedy is Remedy.FAIL
    await world.until(world.has_ended)
    assert not world.children()


@in_world()
async def test_other_causes_do_not_eat_the_codes_budget(world: World) -> None:
    await gang_at_work(world, replicas=4, spares=1, budgets=Budgets(code=0, device=1, infra=1))
    await world.parked("job", 1)
    await world.kill_launcher(rank=0)
    await world.running("job", attempt=2)
    await world.parked("job", 1)
    await world.fail_device(rank=1)
    await world.running("job", attempt=3)
    assert world.job().status.used == {"device": 1, "infra": 1}
    await world.kill_process(rank=1)
    await world.until(lambda: world.job().status.phase == "Failed")
    assert world.job().status.reason == "CodeBudgetExhausted"


@in_world()
async def test_hang_budget_exhausted(world: World) -> None:
    await gang_at_work(world, replicas=2, spares=0, hang_after_seconds=3.0, budgets=Budgets(hang=0))
    await world.hang_process(rank=0)
    await world.until(lambda: world.job().status.phase == "Failed")
    assert world.job().status.reason == "HangBudgetExhausted"
    await world.until(world.has_ended)


@in_world()
async def test_progress_refills_the_budget(world: World) -> None:
    await gang_at_work(world, replicas=2, spares=0, budgets=Budgets(code=1, refill_after_steps=20))
    for attempt in (2, 3, 4):
        await world.kill_process(rank=1)
        await world.running("job", attempt=attempt)
        await world.step("job", world.recovery().resume_step + 45)
        await world.until(lambda: world.job().status.used == {})
    assert world.job().status.phase == "Running"


@in_world()
async def test_a_pod_that_keeps_crashing_is_moved_before_the_job_is_given_up(world: World) -> None:
    """Restarting in place did not cure it, twice; elsewhere it might: that is what the price says. Where it fails there too, at
    the same step, it is not the hardware's fault."""
    await gang_at_work(world, replicas=4, spares=1, budgets=Budgets(code=10))
    await world.parked("job", 1)
    before = world.gang()

    async def crash() -> None:
        await world.until(lambda: world.child("job", 2) is not None)
        child = world.child("job", 2)
        assert child is not None
        child.fail(1, "assertion failed")

    seen: list[Remedy] = []
    while Remedy.PROMOTE_SPARE not in seen and len(seen) < 6:
        await crash()
        await world.running("job", attempt=len(seen) + 2)
        seen.append(world.recovery().remedy)
    assert seen[:2] == [Remedy.RESTART_IN_PLACE] * 2
    assert seen[-1] is Remedy.PROMOTE_SPARE
    assert world.gang()[2].uid != before[2].uid
    world.assert_kept(before, but=[2])
    assert {r.reason for r in world.job().status.recoveries} == {"ProcessExited"}
    for attempt in range(len(seen) + 2, len(seen) + 6):
        await crash()
        await world.until(lambda: world.is_running("job", attempt) or world.job().is_finished)  # noqa: B023
        if world.job().is_finished:
            break
    assert (world.job().status.phase, world.job().status.reason) == ("Failed", "SameStepFailing")


@pytest.mark.parametrize(("code", "reason"), [(127, "CommandNotFound"), (126, "CommandNotExecutable")])
@in_world()
async def test_a_command_that_cannot_run_fails_at_once(world: World, code: int, reason: str) -> None:
    await world.submit("job", replicas=2, spares=1)
    await world.until(lambda: world.child("job", 1) if world.gang() else None)
    child = world.child("job", 1)
    assert child is not None
    child.fail(code, "train: command not found")
    await world.until(lambda: world.job().status.phase == "Failed")
    assert world.job().status.reason == reason
    assert world.job().status.used == {}
    await world.until(world.has_ended)


# --- a member that does not stop --------------------------------------------------------------------------------------


@in_world()
async def test_the_rank_of_a_deleted_pod_is_not_handed_on_before_its_process_is_gone(world: World) -> None:
    """Two processes of one rank would write the same checkpoints. The old one ignores its signal until it is killed."""
    world.behaviours["job-worker-1"] = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, stop_s=60.0)
    await gang_at_work(world, replicas=4, spares=1)
    await world.parked("job", 1)
    before = world.gang()
    rank = next(rank for rank, seat in before.items() if seat.pod == "job-worker-1")
    await world.delete_pod("job-worker-1")
    await world.running("job", attempt=2)
    world.assert_kept(before, but=[rank])
    assert world.pod("job-worker-1") is None


@in_world()
async def test_the_rank_of_a_failed_device_is_not_handed_on_before_its_process_is_gone(world: World) -> None:
    world.behaviours["job-worker-1"] = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, stop_s=60.0)
    await gang_at_work(world, replicas=4, spares=1)
    await world.parked("job", 1)
    before = world.gang()
    rank = next(rank for rank, seat in before.items() if seat.pod == "job-worker-1")
    await world.fail_device(rank=rank)
    await world.running("job", attempt=2)
    world.assert_kept(before, but=[rank])


@pytest.mark.slow
@in_world(nodes=16)
async def test_a_member_that_cannot_be_stopped_is_given_up_and_its_devices_with_it(world: World) -> None:
    """A process in the kernel's hands (D state) outlives every signal. The barrier must not wait for it for ever."""
    world.behaviours["job-worker-1"] = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, stop_s=60.0, kill_s=300.0)
    await gang_at_work(world, replicas=4, spares=1, stop_grace_seconds=2.0, stop_deadline_seconds=10.0)
    await world.parked("job", 1)
    before = world.gang()
    rank = next(rank for rank, seat in before.items() if seat.pod == "job-worker-1")
    await world.kill_process(rank=(rank + 1) % 4)
    await world.running("job", attempt=3)
    world.assert_kept(before, but=[rank])
    assert any(r.reason == "MemberNotStopped" for r in world.job().status.recoveries)
    stuck = before[rank]
    await world.until(lambda: set(world.devices(stuck.node).quarantine) == set(stuck.devices))
    await world.submit("other", replicas=1, gpus=1, rack=False)
    await world.running("other")
    assert world.gang("other")[0].node != stuck.node
    await world.until(lambda: world.pod(stuck.pod) is None, 400.0)
    assert set(world.devices(stuck.node).quarantine) == set(stuck.devices), "only a person takes the order back"


@in_world(nodes=16)
async def test_a_deleted_member_that_cannot_be_stopped_does_not_hold_up_the_gang(world: World) -> None:
    world.behaviours["job-worker-1"] = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, stop_s=60.0, kill_s=300.0)
    await gang_at_work(world, replicas=4, spares=1, stop_grace_seconds=2.0, stop_deadline_seconds=10.0)
    await world.parked("job", 1)
    before = world.gang()
    rank = next(rank for rank, seat in before.items() if seat.pod == "job-worker-1")
    await world.delete_pod("job-worker-1")
    await world.running("job", attempt=2, within=30.0)
    world.assert_kept(before, but=[rank])
    await world.until(lambda: set(world.devices(before[rank].node).quarantine) == set(before[rank].devices))


@in_world()
async def test_deleted_job_frees_everything(world: World) -> None:
    await gang_at_work(world, replicas=4, spares=1)
    await world.cluster.api.delete(TrainingJob, "job", NAMESPACE)
    await world.until(lambda: not world.pods() and not world.holders())
    assert not world.children()


@in_world()
async def test_deleted_job_in_mid_recovery_frees_everything(world: World) -> None:
    await gang_at_work(world, replicas=4, spares=1)
    await world.fail_device(rank=1)
    await world.cluster.api.delete(TrainingJob, "job", NAMESPACE)
    await world.until(lambda: not world.pods() and not world.holders())
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    assert world.job().status.attempt == 1

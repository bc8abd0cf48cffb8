"""Rows 60, 61, 63, 68, 69: the program fails, or its device does, and the gang goes on by the cheapest way that cures."""

from __future__ import annotations

from remuda.api.drills import DrillKind
from remuda.api.training import Budgets, Cause, Remedy
from remuda.embedded.node.container_record import RestartBackoff
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.evidence import note
from tests.builders.world import World, in_world


@in_world(nodes=10, racks=1)
async def test_row_60_one_of_64_dies_and_all_pass_one_barrier(world: World) -> None:
    await world.submit("job", replicas=64, gpus=1)
    await world.running("job", within=120.0)
    await world.step("job", 12)
    before = world.gang()
    await world.kill_process(rank=17)
    await world.running("job", attempt=2, within=120.0)
    world.assert_kept(before)
    attempts = {child.attempt for _, child in world.children()}
    assert attempts == {2}
    assert len(world.children()) == 64
    recovery = world.recovery()
    assert recovery.remedy is Remedy.RESTART_IN_PLACE

    await world.delete_pod(world.gang()[40].pod)
    await world.running("job", attempt=3, within=120.0)
    world.assert_kept(before, but=[40])
    assert {child.attempt for _, child in world.children()} == {3}
    note(
        "64 pods: process killed, 64 kept pod and devices, attempt 2; pod deleted, 63 kept theirs, 1 replaced, attempt 3"
    )


@in_world()
async def test_row_61_no_restart_in_place_on_a_bad_device(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job")
    await world.step("job", 12)
    before = world.gang()
    await world.fail_device(rank=1, code="xid-79")
    await world.running("job", attempt=2)
    recovery = world.recovery()
    assert recovery.remedy is Remedy.PROMOTE_SPARE
    refused = next(text for text in recovery.why_not if text.startswith(Remedy.RESTART_IN_PLACE.value))
    assert before[1].pod in refused
    world.assert_kept(before, but=[1])
    note(f"{recovery.remedy}; {refused}")


@in_world()
async def test_row_63_each_cause_has_its_own_budget(world: World) -> None:
    budgets = Budgets(code=1, device=2, infra=2)
    await world.submit("job", replicas=4, spares=2, budgets=budgets)
    await world.running("job")
    await world.parked("job", 2)
    await world.step("job", 12)
    await world.kill_process(rank=0)
    await world.running("job", attempt=2)
    await world.step("job", 14)
    await world.fail_device(rank=1)
    await world.running("job", attempt=3)
    await world.sleep(30.0)
    await world.delete_pod(world.gang()[2].pod)
    await world.running("job", attempt=4)
    await world.sleep(30.0)
    used = dict(world.job().status.used)
    assert used == {"code": 1, "device": 1, "infra": 1}
    await world.kill_process(rank=3)
    await world.until(lambda: world.job().is_finished)
    status = world.job().status
    assert (status.phase, status.reason) == ("Failed", "CodeBudgetExhausted")
    assert status.used == {"code": 2, "device": 1, "infra": 1}
    assert [r.cause for r in status.recoveries] == [Cause.CODE, Cause.DEVICE, Cause.INFRA, Cause.CODE]
    note(f"charged {used}; the second crash of a budget of one: {status.reason}")


@in_world()
async def test_row_68_a_planned_restart_waits_for_no_crash_loop(world: World) -> None:
    await world.submit("job", replicas=4, budgets=Budgets(code=20))
    await world.running("job")
    times = []
    for attempt in range(2, 7):
        await world.step(
            "job", 12 * (attempt - 1)
        )  # past another checkpoint: failing at one step would be a cause of its own
        begun = world.now
        await world.kill_process(rank=attempt % 4)
        await world.running("job", attempt=attempt)
        times.append(world.now - begun)
    assert max(times) < 10.0, "the kubelet's back-off starts at 10 s"
    assert all(pod.status.container_statuses[0].restart_count == 0 for pod in world.pods())
    capped = RestartBackoff(base_s=10.0, cap_s=30.0, good_s=600.0)
    assert [capped.delay(n) for n in (1, 2, 3, 4, 9)] == [0.0, 10.0, 20.0, 30.0, 30.0]
    note(
        f"five crashes in a row, each running again within {max(times):.1f} s; container restarts 0; a cap of 30 s holds"
    )


@in_world(behaviour=SimulatedBehaviour(step_s=0.5, checkpoint_every=10))
async def test_row_69_resumes_from_the_last_checkpoint_and_reports_what_was_lost(world: World) -> None:
    await world.submit("job", replicas=4)
    await world.running("job")
    await world.step("job", 27)
    saved = world.common_checkpoint()
    await world.drill(DrillKind.PROCESS_KILL, pod=world.gang()[2].pod, namespace="default")
    await world.running("job", attempt=2)
    recovery = world.recovery()
    assert recovery.resume_step == saved == 20
    assert recovery.step_at_fault >= 27
    lost = recovery.step_at_fault - recovery.resume_step
    assert {child.resumed_at for _, child in world.children()} == {20}
    note(f"fault at step {recovery.step_at_fault}, resumed at {recovery.resume_step}: {lost} steps lost, in the record")

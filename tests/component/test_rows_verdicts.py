"""Rows of the checklist about what signals mean: whose fault it was, what a code asks for, who may have a degraded device."""

from __future__ import annotations

import pytest

from remuda.api.devices import DeviceState
from remuda.api.names import ANNOTATION_TOLERATE_DEGRADED
from remuda.core.devices.fault_codes import DeviceRemedy, classify_device_fault_code
from tests.builders.evidence import note
from tests.builders.world import World, in_world
from tests.component.world_rig import agent, create, gpus, held_by, only_observe, run_pods, screen, state_is, the_pod


@in_world(nodes=4, racks=1)
async def test_row_33_a_crash_whose_device_is_reported_bad_seconds_later_is_the_devices(world: World) -> None:
    await only_observe(world)
    await world.submit("job", replicas=2, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    member = world.gang("job")[1]
    await world.kill_process("job", rank=1)
    await world.running("job", attempt=2)
    assert world.job("job").status.used == {"code": 1}
    agent(world, member.node).inject_fault(member.devices[0], "xid-79")
    await world.running("job", attempt=3)
    assert world.job("job").status.used == {"device": 1}
    assert "The cause was Xid79" in world.job("job").status.recoveries[0].message
    note("charged to code 1 at first; Xid79 seconds later: charged to device 1, 'The cause was Xid79'")


@in_world(nodes=4, racks=1)
async def test_row_33_the_look_back_is_the_jobs_to_set(world: World) -> None:
    await only_observe(world)
    await world.submit("job", replicas=2, spares=1, look_back_seconds=0.0)
    await world.running("job")
    await world.parked("job", 1)
    member = world.gang("job")[1]
    await world.kill_process("job", rank=1)
    await world.running("job", attempt=2)
    agent(world, member.node).inject_fault(member.devices[0], "xid-79")
    await world.running("job", attempt=3)
    assert world.job("job").status.used == {"code": 1, "device": 1}
    note("look-back 0: the crash stays the code's")


@pytest.mark.parametrize(
    ("code", "state", "remedy"),
    [
        ("xid-13", DeviceState.HEALTHY, DeviceRemedy.RESTART_APP),
        ("xid-48", DeviceState.UNHEALTHY, DeviceRemedy.RESET_DEVICE),
        ("xid-79", DeviceState.UNHEALTHY, DeviceRemedy.REBOOT_NODE),
        ("row-remap-failed", DeviceState.UNHEALTHY, DeviceRemedy.REPLACE),
        ("xid-99999", DeviceState.UNHEALTHY, DeviceRemedy.NONE),  # known to nobody: out of use until somebody looks
    ],
)
def test_row_40_a_code_says_what_it_does_to_the_device_and_what_cures_it(
    code: str, state: DeviceState, remedy: DeviceRemedy
) -> None:
    assert classify_device_fault_code("kmsg", code).remedy is remedy

    @in_world(nodes=1, racks=1)
    async def story(world: World) -> None:
        await only_observe(world)
        await state_is(world, "gpu-2", DeviceState.HEALTHY)
        agent(world).inject_fault("gpu-2", code)
        await world.sleep(2.0)
        await state_is(world, "gpu-2", state)
        await run_pods(world, gpus("seven", 7))
        assert ("gpu-2" in held_by(world, "seven")) is False or state is DeviceState.HEALTHY
        note(f"{code}: {state}, {remedy}")

    story()


@in_world(nodes=1, racks=1)
async def test_row_79_a_degraded_device_is_avoided_unless_it_is_tolerated(world: World) -> None:
    await only_observe(world)
    await state_is(world, "gpu-0", DeviceState.HEALTHY)
    agent(world).inject_fault("gpu-0", "xid-92")
    await state_is(world, "gpu-0", DeviceState.DEGRADED)
    await run_pods(world, gpus("careful", 6))
    assert "gpu-0" not in held_by(world, "careful")
    await create(world, gpus("two", 2))
    await world.sleep(10.0)
    assert the_pod(world, "two").spec.node_name == ""
    easy = gpus("easy", 2)
    easy["metadata"].setdefault("annotations", {})[ANNOTATION_TOLERATE_DEGRADED] = "true"
    await run_pods(world, easy)
    assert "gpu-0" in held_by(world, "easy")
    assert "Degraded" in screen(world)
    note("degraded gpu-0: avoided by a pod of 6, one of 2 waits; a pod that tolerates it gets it")

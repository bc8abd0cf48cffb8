"""Checklist rows 30, 36-38, 48-52, 54, 55: one device goes bad, and everybody is told exactly that."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from remuda.agent.agent_lease import AgentLease
from remuda.agent.hardware.signal_intake import SilenceWatch
from remuda.api.devices import DeviceState
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.core.health.device_holders import DeviceCounts, device_health_counts
from remuda.core.health.ledger import judge_node
from remuda.core.state.snapshot import build_snapshot
from tests.builders.evidence import note
from tests.builders.gangs import a_held_pod, a_node
from tests.builders.world import World, in_world
from tests.component.world_rig import (
    GPU,
    NODE,
    STATUS_S,
    agent,
    count_of,
    counts,
    counts_are,
    create,
    events,
    gpus,
    hardware,
    health,
    held_by,
    is_up,
    kept,
    listed,
    machine,
    node_object,
    notices,
    run_pods,
    scheduled,
    screen,
    shown,
    state_is,
    the_pod,
    verdict,
)

SLICE = "nvidia.com/mig-3g.40gb"


@in_world(nodes=1, racks=1)
async def test_row_30_one_unhealthy_device_is_one_less_and_names_pod_container_and_device(world: World) -> None:
    await run_pods(world, gpus("a", 2), gpus("b", 2))
    device = held_by(world, "b")[1]
    begun = world.now
    agent(world).inject_fault(device, "xid-79")
    await counts_are(world, 8, 7)
    await state_is(world, device, DeviceState.UNHEALTHY)
    assert world.now - begun <= STATUS_S
    found = shown(world, device)
    assert (found["holder"], found["container"], found["reason"]) == ("default/b", "main", "Xid79")
    line = next(line for line in screen(world).splitlines() if device in line)
    assert "Held by default/b (main)." in line
    await world.until(lambda: ("main", GPU, device, "Unhealthy") in health(the_pod(world, "b")))
    assert world.now - begun <= STATUS_S
    assert {h for *_, h in health(the_pod(world, "a"))} == {"Healthy"}
    note(f"allocatable 7, capacity 8, {device} of default/b (main) named after {world.now - begun:.1f} s")


@in_world(nodes=2, racks=1)
async def test_row_36_a_failed_device_nobody_uses_is_removed_alone(world: World) -> None:
    before = await run_pods(world, gpus("a", 3))
    node = before[0].spec.node_name
    device = next(d["device"] for d in listed(world)["devices"] if d["node"] == node and not d["holder"])
    agent(world, node).inject_fault(device, "xid-79")
    await counts_are(world, 8, 7, node)
    await run_pods(world, gpus("rest", 4, select={"kubernetes.io/hostname": node}))
    assert device not in held_by(world, "rest")
    assert kept(before, world)
    found = node_object(world, node)
    assert (found.spec.unschedulable, found.spec.taints) == (False, [])
    assert count_of(world, node) == {
        "node": node,
        "resource": GPU,
        "total": 8,
        "healthy": 7,
        "unfit": 1,
        "held": 7,
        "free": 0,
    }
    note("1 idle device failed: the node's other 7 are held by pods, it is neither cordoned nor tainted")


@in_world(nodes=1, racks=1)
async def test_row_37_a_held_and_unhealthy_device_is_subtracted_once(world: World) -> None:
    await run_pods(world, gpus("a", 3))
    for device in (*held_by(world, "a"), "gpu-7"):
        agent(world).inject_fault(device, "xid-79")
    await counts_are(world, 8, 4)
    found = count_of(world)
    assert (found["healthy"], found["unfit"], found["held"], found["free"]) == (4, 4, 3, 4)
    await run_pods(world, gpus("b", 4))  # and the scheduler counts the same
    await create(world, gpus("c", 1))
    await world.until(lambda: scheduled(the_pod(world, "c"))[0])
    assert count_of(world)["free"] == 0
    note("8 devices, 3 held and bad, 1 bad: healthy 4, unfit 4, held 3, free 4; a pod of 4 fits, one more does not")


@pytest.mark.parametrize("seed", range(25))
def test_row_37_free_is_never_negative_and_is_what_placement_sees(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    node, pods = a_node(), list[Pod]()
    for number in range(8):
        device = f"gpu-{number}"
        if chance.random() < 0.4:
            node = node.signal(device, "xid-79")
        if chance.random() < 0.6:
            pods.append(a_held_pod(f"p{number}", node.name, [device], phase=chance.choice(["Running", "Failed"])))
    devices = node.devices()
    devices = msgspec.structs.replace(devices, verdicts=judge_node(devices, pods, 1000.0))
    found = device_health_counts(devices, pods)[GPU]
    snapshot = build_snapshot([node.node()], [devices], pods)
    assert found.free == snapshot.free[0].bit_count()
    assert 0 <= found.free <= found.healthy <= found.total == found.healthy + found.unfit
    assert found != DeviceCounts()
    if seed == 0:
        note("25 random nodes: free is what placement sees, never negative")


@in_world(nodes=2, racks=1)
async def test_row_38_a_short_flap_evicts_nobody_and_too_many_are_a_quarantine(world: World) -> None:
    await world.submit("job", replicas=1)
    await world.running("job")
    gang = world.gang("job")
    node, device = gang[0].node, gang[0].devices[0]
    for flap in range(3):
        hardware(world, node).inject(device, "health-lost")
        found = await state_is(world, device, DeviceState.UNKNOWN, node)
        assert found.holder == f"default/{gang[0].pod}"
        await world.sleep(2.0)  # shorter than the debounce
        hardware(world, node).inject(device, "health-back")
        await state_is(world, device, DeviceState.HEALTHY, node)
        await world.sleep(30.0)
        assert world.devices(node).quarantine == {}, flap
    world.assert_kept(gang)
    assert world.job("job").status.recoveries == []
    hardware(world, node).flap(device)
    await world.until(lambda: device in world.devices(node).quarantine)
    assert world.devices(node).quarantine[device].reason == "DeviceFlapping"
    found = await state_is(world, device, DeviceState.QUARANTINED, node)
    await world.running("job", attempt=2)
    assert device not in world.gang("job")[0].devices or world.gang("job")[0].node != node
    note(
        "3 flaps of 2 s: same pod and devices, no recovery; the 4th: DeviceFlapping, quarantined, the gang moved off it"
    )


@in_world(nodes=2, racks=1)
async def test_row_48_a_device_nothing_is_heard_of_is_unknown_and_nobody_is_taken_off_it(world: World) -> None:
    await world.submit("job", replicas=1, gpus=2)
    await world.running("job")
    seat = world.gang("job")[0]
    node, mine = seat.node, seat.devices[0]
    other = next(d["device"] for d in listed(world)["devices"] if d["node"] == node and not d["holder"])
    begun = world.now
    hardware(world, node).mute(mine)
    hardware(world, node).mute(other)
    await state_is(world, mine, DeviceState.UNKNOWN, node)
    found = await state_is(world, other, DeviceState.UNKNOWN, node)
    took = world.now - begun
    assert 30.0 <= took <= 45.0
    assert found.reason == "NoReport"
    assert f"No report about {other} for more than 30 s." in screen(world)
    await world.sleep(120.0)
    await run_pods(world, gpus("rest", 5, select={"kubernetes.io/hostname": node}))
    assert other not in held_by(world, "rest")
    world.assert_kept({0: seat})
    assert world.job("job").status.recoveries == []
    hardware(world, node).mute(mine, False)
    hardware(world, node).mute(other, False)
    await state_is(world, mine, DeviceState.HEALTHY, node)
    await state_is(world, other, DeviceState.HEALTHY, node)
    note(
        f"two silent devices Unknown (NoReport) after {took:.0f} s; the holder of one stays for 120 s; back when heard"
    )


@in_world(nodes=1, racks=1)
async def test_row_48_the_timeout_can_be_set_for_each_device(world: World) -> None:
    patient = msgspec.structs.replace(agent(world).config, report_timeouts={"gpu-1": 300.0, "gpu-2": 0.0, "gpu-3": 5.0})
    agent(world).signal_intake.watch = SilenceWatch(patient.report_timeout_s, patient.report_timeouts)
    begun = world.now
    for device in ("gpu-0", "gpu-1", "gpu-2", "gpu-3"):
        hardware(world).mute(device)
    when: dict[str, float] = {}
    while world.now - begun < 400.0:
        await world.sleep(1.0)
        for device in ("gpu-0", "gpu-1", "gpu-2", "gpu-3"):
            if verdict(world, device).state is DeviceState.UNKNOWN:
                when.setdefault(device, world.now - begun)
    assert sorted(when) == ["gpu-0", "gpu-1", "gpu-3"]
    assert 5.0 <= when["gpu-3"] <= 20.0
    assert 30.0 <= when["gpu-0"] <= 45.0
    assert 300.0 <= when["gpu-1"] <= 315.0
    note(
        f"timeouts of 5, 30, 300 s and none: Unknown after {when['gpu-3']:.0f}, {when['gpu-0']:.0f}, {when['gpu-1']:.0f} s"
    )


@in_world(nodes=2, racks=1)
async def test_row_48_a_silent_agent_makes_every_device_of_its_node_unknown(world: World) -> None:
    await world.submit("job", replicas=1, gpus=4)
    await world.running("job")
    gang, node = world.gang("job"), world.gang("job")[0].node
    broken = next(d["device"] for d in listed(world)["devices"] if d["node"] == node and not d["holder"])
    lease = AgentLease(world.cluster.api, node, world.loop.clock)
    renewing = asyncio.create_task(lease.run())
    await world.sleep(120.0)
    assert {v.state for v in world.devices(node).verdicts} == {DeviceState.HEALTHY}
    agent(world, node).inject_fault(broken, "xid-79")  # what was known before outlasts the silence
    renewing.cancel()
    begun = world.now
    await state_is(world, gang[0].devices[0], DeviceState.UNKNOWN, node)
    took = world.now - begun
    assert 20.0 <= took <= 31.0
    states = {v.device: (v.state, v.reason) for v in world.devices(node).verdicts}
    assert states.pop(broken) == (DeviceState.UNHEALTHY, "Xid79")
    assert set(states.values()) == {(DeviceState.UNKNOWN, "AgentSilent")}
    assert "AgentSilent" in notices(world, node)
    assert {v.state for n in world.rack_of if n != node for v in world.devices(n).verdicts} == {DeviceState.HEALTHY}
    await world.sleep(60.0)
    world.assert_kept(gang)
    assert world.job("job").status.recoveries == []
    again = asyncio.create_task(lease.run())
    await state_is(world, gang[0].devices[0], DeviceState.HEALTHY, node)
    await world.until(lambda: "AgentSilent" not in notices(world, node))
    again.cancel()
    note(f"agent silent: 7 devices Unknown (AgentSilent) after {took:.0f} s, a known fault stays, the gang stays")


@in_world(nodes=1, racks=1)
async def test_row_49_health_entries_use_the_upstream_names(world: World) -> None:
    await run_pods(world, gpus("a", 2))
    mine = held_by(world, "a")
    assert health(the_pod(world, "a")) == [("main", GPU, device, "Healthy") for device in mine]
    hardware(world).report(mine[0], "nvml", "xid-79", "x" * 5000)
    await state_is(world, mine[0], DeviceState.UNHEALTHY)
    await world.until(lambda: ("main", GPU, mine[0], "Unhealthy") in health(the_pod(world, "a")))
    assert len(verdict(world, mine[0]).message) == 1024
    await world.sleep(5.0)
    assert all(len(message) <= 1024 for _, _, message in events(world, NODE))
    note(f"entries ({GPU}, {mine[0]}, Unhealthy) in container main; a message of 5000 characters is told with 1024")


def sidecar(count: int) -> JsonObject:
    return {
        "name": "watcher",
        "command": ["watch"],
        "restartPolicy": "Always",
        "resources": {"limits": {GPU: count}},
    }


def init(count: int) -> JsonObject:
    return {"name": "prepare", "command": ["prepare"], "resources": {"limits": {GPU: count}}}


@in_world(nodes=1, racks=1)
async def test_row_50_devices_of_sidecars_and_init_containers_are_covered(world: World) -> None:
    await run_pods(world, gpus("a", 2, inits=[init(1), sidecar(1)]))
    told = {container: device for container, _, device, _ in health(the_pod(world, "a"))}
    assert {"watcher", "main", "prepare"} <= told.keys()
    assert len(held_by(world, "a")) >= 3
    device = told["watcher"]
    agent(world).inject_fault(device, "xid-79")
    found = await state_is(world, device, DeviceState.UNHEALTHY)
    assert found.holder == "default/a"
    assert (shown(world, device)["holder"], shown(world, device)["container"]) == ("default/a", "watcher")
    await world.until(lambda: ("watcher", GPU, device, "Unhealthy") in health(the_pod(world, "a")))
    assert count_of(world)["free"] == 5
    note(
        f"init container, sidecar and main each with their devices; the sidecar's {device} failed: default/a (watcher) named"
    )


@in_world(nodes=1, racks=1)
async def test_row_51_one_device_off_the_bus_leaves_the_others_allocatable(world: World) -> None:
    before = await run_pods(world, gpus("a", 2))
    hardware(world).drop("gpu-7")
    await counts_are(world, 8, 7)
    await run_pods(world, gpus("b", 3))
    await machine(world).restart()  # nor after a restart of anything
    await counts_are(world, 8, 7)
    await run_pods(world, gpus("c", 2))
    assert "gpu-7" not in held_by(world, "b") + held_by(world, "c")
    assert kept(before, world)
    note("gpu-7 off the bus: allocatable 7 of 8, also after a kubelet restart; two more pods started, the first kept")


@in_world(nodes=1, racks=1)
async def test_row_52_a_device_with_leftovers_is_withheld_until_it_is_clean(world: World) -> None:
    await run_pods(world, gpus("a", 8))
    hardware(world).leave_behind("gpu-3")
    await world.cluster.api.delete(Pod, "a", "default")
    await world.until(lambda: world.pod("a") is None)
    found = await state_is(world, "gpu-3", DeviceState.UNKNOWN)
    assert found.reason == "LeftoverProcesses"
    assert "pid 4242" in shown(world, "gpu-3")["message"]
    await run_pods(world, gpus("b", 7))
    await create(world, gpus("c", 1))
    await world.sleep(60.0)
    assert not the_pod(world, "c").spec.node_name
    with pytest.raises(Refusal, match="DeviceNotHealthy"):
        await agent(world).plugins()[GPU].allocate(["gpu-3"])  # nor by somebody who asks the plugin past the scheduler
    hardware(world).clean("gpu-3")
    await world.until(lambda: is_up(world, "c"))
    assert held_by(world, "c") == ["gpu-3"]
    note("gpu-3 Unknown (LeftoverProcesses, pid 4242) for 60 s with a pod waiting; given out once it was clean")


@in_world(nodes=1, racks=1)
async def test_row_54_a_device_takes_its_slices_along_and_a_slice_nobody(world: World) -> None:
    for device in ("gpu-0", "gpu-1"):
        await agent(world).slicer.cut(device, ["3g.40gb", "3g.40gb"])
    await world.until(lambda: counts(world, resource=SLICE) == ("4", "4"))
    await world.until(lambda: count_of(world, resource=SLICE)["free"] == 4)
    pods = await run_pods(world, *(gpus(name, 1, resource=SLICE) for name in "abcd"))
    by_device: dict[str, list[str]] = {}
    for pod in pods:
        [piece] = held_by(world, pod.name)
        by_device.setdefault(shown(world, piece)["slice"]["of"], []).append(piece)
    first, second = by_device["gpu-0"], by_device["gpu-1"]
    agent(world).inject_fault(first[0], "xid-94")
    await world.until(lambda: verdict(world, first[0]).state is not DeviceState.HEALTHY)
    states = {d["device"]: d["state"] for d in listed(world)["devices"]}
    assert [states[d] for d in (first[1], *second, "gpu-0", "gpu-1")] == ["Healthy"] * 5
    agent(world).inject_fault("gpu-1", "xid-79")
    for piece in second:
        found = await state_is(world, piece, DeviceState.UNHEALTHY)
        assert (found.reason, found.holder != "") == ("Xid79", True)
    assert verdict(world, first[1]).state is DeviceState.HEALTHY
    await world.until(lambda: counts(world, resource=SLICE)[0] == "4")
    assert kept(pods, world)
    note(
        "xid-94 on one slice: its sibling, both devices and the other slices Healthy; xid-79 on gpu-1: its 2 slices failed"
    )


@in_world(nodes=1, racks=1)
async def test_row_55_slices_never_exceed_their_device_and_are_given_back_once(world: World) -> None:
    for layout in (["3g.40gb"] * 3, ["7g.80gb", "1g.10gb"], ["1g.10gb"] * 8):
        with pytest.raises(Refusal, match="IllegalMigLayout"):
            await agent(world).slicer.cut("gpu-0", layout)
    await agent(world).slicer.cut("gpu-0", ["3g.40gb", "3g.40gb"])
    await world.until(lambda: counts(world, resource=SLICE) == ("2", "2"))
    await world.until(lambda: counts(world) == ("7", "7"))
    await run_pods(world, gpus("a", 1, resource=SLICE), gpus("b", 1, resource=SLICE))
    await create(world, gpus("c", 1, resource=SLICE))
    await world.sleep(30.0)
    assert not the_pod(world, "c").spec.node_name
    with pytest.raises(Refusal, match="DeviceInUse"):
        await agent(world).slicer.cut("gpu-0", [])
    await world.cluster.api.delete(Pod, "a", "default")
    await world.until(lambda: is_up(world, "c"))
    assert len(set(held_by(world, "b") + held_by(world, "c"))) == 2
    await create(world, gpus("d", 1, resource=SLICE))
    await agent(world).release(
        the_pod(world, "c").uid.replace("uid", "nobody")
    )  # a release of nobody gives nothing back
    await world.sleep(30.0)
    assert not the_pod(world, "d").spec.node_name
    for name in "bcd":
        await world.cluster.api.delete(Pod, name, "default")
    await world.until(lambda: count_of(world, resource=SLICE)["free"] == 2)
    await agent(world).slicer.cut("gpu-0", [])
    await world.until(lambda: counts(world) == ("8", "8"))
    assert counts(world, resource=SLICE) == ("0", "0")
    note("3 layouts too large refused; 2 slices, 3 pods: the third waits; all given back, gpu-0 whole again: 8 of 8")

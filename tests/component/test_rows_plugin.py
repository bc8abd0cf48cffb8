"""Checklist rows 1-6 and 13-18: the chain device -> plugin -> kubelet breaks, and what Remuda makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.devices import DeviceState
from remuda.api.errors import Unavailable
from remuda.api.incidents import SubjectKind
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node.devices.plugin_connections import PluginDeadlines
from remuda.link.allocation_port import HANG, KILL, MEND
from tests.builders.evidence import note
from tests.builders.world import World, in_world
from tests.component.world_rig import (
    FPGA,
    GPU,
    NODE,
    STATUS_S,
    agent,
    counts,
    counts_are,
    create,
    events,
    gpus,
    hardware,
    health,
    held_by,
    incidents,
    kept,
    listed,
    machine,
    notices,
    only_observe,
    run_pods,
    scheduled,
    screen,
    shown,
    state_is,
    stock_plugin,
    the_pod,
    verdict,
)


def lose_plugin(world: World, node: str = NODE) -> float:
    agent(world, node).inject_plugin_fault(GPU, KILL)
    return world.now


def mend_plugin(world: World, node: str = NODE) -> None:
    agent(world, node).inject_plugin_fault(GPU, MEND)


@in_world(nodes=1, racks=1)
async def test_row_01_a_lost_plugin_takes_the_counts_in_two_steps_lets_nobody_in_and_touches_nobody(
    world: World,
) -> None:
    before = await run_pods(world, gpus("a", 2), gpus("b", 1))
    lost = lose_plugin(world)
    await counts_are(world, 8, 0)
    assert world.now - lost <= STATUS_S
    await create(world, gpus("late", 1))
    await world.until(lambda: scheduled(the_pod(world, "late"))[0])
    await counts_are(world, 0, 0, within=400.0)  # the key is kept
    took = world.now - lost
    assert 300.0 <= took <= 300.0 + 2 * STATUS_S
    await world.sleep(600.0)
    assert not the_pod(world, "late").spec.node_name
    assert kept(before, world)
    assert {p.status.phase for p in before} == {"Running"}
    note(
        f"capacity 8, allocatable 0 within {STATUS_S:g} s; both 0 after {took:.0f} s; 2 pods untouched, a third never bound"
    )


@in_world(nodes=1, racks=1)
async def test_row_02_a_lost_plugin_is_told_from_failed_devices(world: World) -> None:
    await run_pods(world, gpus("a", 2), gpus("b", 1))
    lose_plugin(world)
    await world.until(lambda: "PluginLost" in notices(world))
    await world.sleep(70.0)  # the hold-down is over, and its Event is out
    said = f"The plugin for {GPU} is lost. None of its 8 devices failed; 3 held by default/a, default/b."
    assert notices(world)["PluginLost"].startswith(said)
    assert said in screen(world)
    assert {d["state"] for d in listed(world)["devices"]} == {"Healthy"}
    told = [e for e in events(world, NODE) if e[1] == "PluginLost"]
    assert [(kind, message.startswith(said)) for kind, _, message in told] == [("Warning", True)]
    assert not [e for e in events(world, NODE) if e[1].startswith("Device")]
    [lost] = incidents(world)
    assert (lost.spec.subject.kind, lost.status.verdict.reason) == (SubjectKind.NODE, "PluginLost")
    mend_plugin(world)
    await counts_are(world, 8, 8)
    device = held_by(world, "b")[0]
    agent(world).inject_fault(device, "xid-79")
    await counts_are(world, 8, 7)
    await world.sleep(5.0)
    assert notices(world) == {}
    failed = [message for _, reason, message in events(world, NODE) if reason == "DeviceUnhealthy"]
    assert len(failed) == 1
    assert failed[0].startswith(f"{device} failed (Xid79), held by default/b.")
    [own] = [i for i in incidents(world) if i.name != lost.name]
    assert (own.spec.subject.kind, own.spec.subject.device) == (SubjectKind.DEVICE, device)
    note(
        f"plugin killed: a {lost.spec.subject.kind} incident, {said} Then {device} fails: a {own.spec.subject.kind} incident"
    )
    assert "PluginLost" not in screen(world)


@in_world(nodes=4, racks=1)
async def test_row_03_a_plugin_back_within_the_grace_costs_nothing(world: World) -> None:
    await world.submit("job", replicas=2, spares=1)
    await world.running("job")
    gang, pods = world.gang("job"), world.pods("job")
    lose_plugin(world, gang[0].node)
    await counts_are(world, 8, 0, gang[0].node)
    await world.sleep(40.0)
    mend_plugin(world, gang[0].node)
    await counts_are(world, 8, 8, gang[0].node)
    await world.sleep(60.0)
    world.assert_kept(gang)
    assert kept(pods, world)
    assert world.job("job").status.recoveries == []
    assert all(not d.quarantine and not d.orders and not d.notices for d in map(world.devices, world.rack_of))
    assert not [e for e in events(world, gang[0].node) if e[0] == "Warning"]
    assert incidents(world) == []
    note("plugin away for 40 s: allocatable 8, 0, 8; 0 restarts, 0 incidents, 0 tickets")


@in_world(nodes=4, racks=1)
async def test_row_04_a_device_missing_when_the_plugin_comes_back_is_a_device_failure_of_its_holder(
    world: World,
) -> None:
    await world.submit("job", replicas=2, spares=1)
    await world.running("job")
    await world.parked("job", 1)
    gang = world.gang("job")
    node, device = gang[1].node, gang[1].devices[3]
    lose_plugin(world, node)
    await counts_are(world, 8, 0, node)
    hardware(world, node).drop(device)
    mend_plugin(world, node)
    await world.running("job", attempt=2)
    world.assert_kept(gang, but=[1])
    recovery = world.recovery("job")
    assert (recovery.cause, recovery.reason) == ("device", "DeviceMissing")
    await counts_are(world, 8, 7, node)  # better than a kubelet's 7 of 7: our plugin goes on listing it
    assert verdict(world, device, node).reason == "DeviceMissing"
    failed = [message for _, reason, message in events(world, node) if reason == "DeviceUnhealthy"]
    assert [f"held by default/{gang[1].pod}" in message for message in failed] == [True]
    [incident] = incidents(world)
    assert (incident.spec.subject.node, incident.spec.subject.device) == (node, device)
    [hit] = [a for a in incident.status.affected if a.uid == gang[1].uid]
    assert (hit.pod, hit.rank) == (f"default/{gang[1].pod}", 1)
    note(f"{device} not listed any more: {recovery.reason}, {recovery.remedy} of rank 1, one incident names {hit.pod}")


@in_world(nodes=4, racks=1)
async def test_row_05_a_kubelet_restart_is_held_down_and_nothing_is_made_of_it(world: World) -> None:
    await world.submit("job", replicas=2)
    await world.running("job")
    gang, free = world.gang("job"), listed(world)["counts"]
    await machine(world, gang[0].node).restart()
    await counts_are(world, 0, 0, gang[0].node)
    await world.until(lambda: "PluginLost" in notices(world, gang[0].node))
    [notice] = listed(world)["notices"]
    assert notice["holdingUntil"] is not None
    assert "It may pass: nothing is done before" in screen(world)
    assert listed(world)["counts"] == free  # by the ledger nobody gave anything back
    await counts_are(world, 8, 8, gang[0].node)
    await world.sleep(120.0)
    world.assert_kept(gang)
    assert world.job("job").status.recoveries == []
    assert listed(world)["notices"] == []
    assert listed(world)["counts"] == free
    assert not [e for node in world.rack_of for e in events(world, node) if e[0] == "Warning"]
    assert incidents(world) == []
    note("kubelet restart: 8, 0, 8 in the node's counts, held down; ledger unchanged, 0 incidents")


@in_world(nodes=1, racks=1)
async def test_row_06_a_kubelet_restart_leaves_pods_on_their_devices(world: World) -> None:
    before = await run_pods(world, gpus("a", 2), gpus("b", 3))
    held = {pod.name: held_by(world, pod.name) for pod in before}
    for _ in range(3):
        await machine(world).restart()
        await counts_are(world, 0, 0)
        await counts_are(world, 8, 8)
    assert kept(before, world)
    assert {pod.name: held_by(world, pod.name) for pod in before} == held
    assert all(s.restart_count == 0 for pod in before for s in the_pod(world, pod.name).status.container_statuses)
    [third] = await run_pods(world, gpus("c", 3))
    assert not set(held_by(world, "c")) & {d for devices in held.values() for d in devices}
    assert third.status.phase == "Running"
    note("3 kubelet restarts: 2 pods on the same 5 devices, restart count 0; a third pod gets 3 others")


def test_row_13_a_node_that_boots_with_seven_of_eight_is_flagged_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.runtime.machines.FakeBackend", partial(FakeBackend, missing=[5]))
    in_world(nodes=1, racks=1)(_boots_short)()


async def _boots_short(world: World) -> None:
    await only_observe(world)
    await world.until(lambda: "DevicesMissing" in notices(world))
    assert "gpu-5" in notices(world)["DevicesMissing"]
    assert "DevicesMissing" in screen(world)
    assert (await state_is(world, "gpu-5", DeviceState.UNHEALTHY)).reason == "DeviceMissing"
    await run_pods(world, gpus("seven", 7))
    assert "gpu-5" not in held_by(world, "seven")
    hardware(world).restore("gpu-5")
    await state_is(world, "gpu-5", DeviceState.HEALTHY)
    assert "DevicesMissing" not in notices(world)
    note("7 of 8 at boot: DevicesMissing names gpu-5; a pod of 7 runs; taken back when it is there")


@in_world(nodes=1, racks=1)
async def test_row_04_a_held_device_that_a_vendors_plugin_drops_is_reported_with_its_holders(world: World) -> None:
    plugin = await stock_plugin(world, "fpga-0", "fpga-1")
    pods = await run_pods(world, gpus("a", 1, resource=FPGA), gpus("b", 1, resource=FPGA))
    assert sorted(device for pod in pods for _, _, device, _ in health(pod)) == ["fpga-0", "fpga-1"]
    plugin.say("fpga-1", None)
    await world.until(lambda: counts(world, resource=FPGA) == ("1", "1"))
    assert {h for pod in pods for *_, h in health(the_pod(world, pod.name))} == {"Healthy"}  # the kubelet's own flaw
    await world.until(lambda: "DevicesNotListed" in notices(world))
    said = f"The node has 2 usable devices of {FPGA}, and its plugin lists 1. Its devices are held by default/a, default/b."
    assert notices(world)["DevicesNotListed"] == said
    assert said in screen(world)
    await world.sleep(70.0)
    assert ("Warning", "DevicesNotListed", said) in events(world, NODE)
    plugin.say("fpga-1", "Healthy")
    await world.until(lambda: notices(world) == {})
    note(f"a vendor's plugin drops a held device: '{said}'")


# --- 14-18: registration and calls --------------------------------------------------------------------------------------


@in_world(nodes=2, racks=1)
async def test_row_17_a_hung_allocate_hits_its_deadline_and_others_start(world: World) -> None:
    await stock_plugin(world, "fpga-0")
    agent(world).inject_plugin_fault(GPU, HANG)
    pin = {"kubernetes.io/hostname": NODE}
    await create(world, gpus("stuck", 1, select=pin), gpus("next", 1, select=pin))
    await world.until(lambda: the_pod(world, "next").spec.node_name == NODE)
    begun = world.now
    await run_pods(world, gpus("plain", 0, select=pin), gpus("fpga", 1, resource=FPGA, select=pin))
    assert world.now - begun < 1.0
    await world.until(lambda: the_pod(world, "stuck").status.phase == "Failed")
    failed = the_pod(world, "stuck").status
    assert failed.reason == "UnexpectedAdmissionError"
    assert "context deadline exceeded" in failed.message
    took = world.now - begun
    assert took <= 2 * PluginDeadlines().call_s
    agent(world).inject_plugin_fault(GPU, MEND)
    await run_pods(world, gpus("fine", 1, select=pin))
    assert len(held_by(world, "fine")) == 1
    note(f"Allocate hangs: its pod is refused after {took:.0f} s (context deadline exceeded); others start within 1 s")


@pytest.mark.parametrize("broken", ["best set", "pods", "both"])
def test_row_18_a_choice_that_fails_falls_back_to_any_valid_set(broken: str) -> None:
    @in_world(nodes=1, racks=1)
    async def story(world: World) -> None:
        def no_set(*_: object) -> Sequence[str]:
            raise RuntimeError("the table is gone")

        async def no_pods() -> Sequence[Pod]:
            raise Unavailable("the API does not answer")

        plugin_set = agent(world).plugin_set
        assert plugin_set is not None
        if broken != "pods":
            plugin_set.prefer(no_set)
        if broken != "best set":
            agent(world).pods = no_pods
        await run_pods(world, gpus("a", 3), gpus("b", 2))
        mine = held_by(world, "a") + held_by(world, "b")
        assert len(set(mine)) == 5
        assert {verdict(world, device).state for device in mine} == {DeviceState.HEALTHY}
        note(f"{broken} fails: 2 pods run on 5 healthy devices, none twice")

    story()


@in_world(nodes=1, racks=1)
async def test_row_28_the_same_id_in_two_resources_is_two_devices(world: World) -> None:
    plugin = await stock_plugin(world, "gpu-0", "gpu-1")
    ours, other = await run_pods(world, gpus("ours", 8), gpus("other", 2, resource=FPGA))
    assert held_by(world, "other") == []
    assert shown(world, "gpu-0")["holder"] == "default/ours"
    plugin.say("gpu-0", "Unhealthy")
    await world.until(lambda: ("main", FPGA, "gpu-0", "Unhealthy") in health(the_pod(world, "other")))
    await world.sleep(5.0)
    assert {h for *_, h in health(the_pod(world, "ours"))} == {"Healthy"}
    assert verdict(world, "gpu-0").state is DeviceState.HEALTHY
    agent(world).inject_fault("gpu-1", "xid-79")
    await world.until(lambda: ("main", GPU, "gpu-1", "Unhealthy") in health(the_pod(world, "ours")))
    assert ("main", FPGA, "gpu-1", "Healthy") in health(the_pod(world, "other"))
    assert verdict(world, "gpu-1").holder == "default/ours"
    assert (ours.uid, other.uid) == (the_pod(world, "ours").uid, the_pod(world, "other").uid)
    note(f"gpu-0 of {FPGA} Unhealthy: gpu-0 of {GPU} Healthy; gpu-1 of {GPU} failed: gpu-1 of {FPGA} Healthy")

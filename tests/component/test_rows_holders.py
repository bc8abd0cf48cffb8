"""Checklist rows 19, 20, 26, 27: who may have a device, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from remuda.agent.allocation.cdi_specs import LOOK_S, CdiSpecs, keep_cdi_specs
from remuda.api.drills import DrillKind
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.health.device_holders import device_holders_on
from remuda.embedded.node.devices.device_service import KubeletDeviceSettings
from remuda.embedded.node.pod_worker import PREPARE_S
from remuda.embedded.node.runtime_port import ContainerKey
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.evidence import note
from tests.builders.world import NAMESPACE, World, in_world
from tests.component.world_rig import (
    FPGA,
    NODE,
    agent,
    count_of,
    counts_are,
    create,
    gpus,
    hardware,
    held_by,
    is_up,
    machine,
    node_object,
    run_pods,
    scheduled,
    screen,
    shown,
    stock_plugin,
    the_pod,
)


@in_world(nodes=1, racks=1, behaviour=SimulatedBehaviour(stop_s=10.0))
async def test_row_19_a_device_whose_holder_is_terminating_is_draining_and_nobody_elses(world: World) -> None:
    await run_pods(world, gpus("old", 8))
    uid = the_pod(world, "old").uid
    begun = world.now
    await world.cluster.api.delete(Pod, "old", NAMESPACE)
    await create(world, gpus("new", 8))
    await world.sleep(8.0)  # its container still runs
    assert all(d["draining"] and d["holder"] == "default/old" for d in _devices(world))
    assert "8 draining" in screen(world)
    assert count_of(world)["free"] == 0
    assert not the_pod(world, "new").spec.node_name
    assert set(agent(world).holders().values()) == {uid}
    await world.until(lambda: is_up(world, "new"))
    assert world.now - begun >= 10.0
    assert not any(d["draining"] for d in _devices(world))
    note(f"8 draining, free 0 while the old pod stops for 10 s; the next one runs after {world.now - begun:.1f} s")


def _devices(world: World) -> list[dict[str, object]]:
    return [shown(world, f"gpu-{n}") for n in range(8)]


@in_world(nodes=2, racks=1)
async def test_row_20_a_holder_deleted_by_force_on_an_unreachable_node_keeps_its_devices(world: World) -> None:
    here = {"kubernetes.io/hostname": NODE}
    await run_pods(world, gpus("a", 3, select=here))
    uid = the_pod(world, "a").uid
    world.machines.cut_off.add(NODE)  # the checks of this world ask nobody who cannot be asked
    machine(world).partition()
    await world.cluster.api.delete(Pod, "a", NAMESPACE, grace_s=0)
    assert world.pod("a") is None
    await create(world, gpus("eight", 8, select=here), gpus("five", 5, select=here))
    await world.until(lambda: the_pod(world, "five").spec.node_name)
    await world.sleep(3.0)
    assert not the_pod(world, "eight").spec.node_name
    fenced = [d for d in _devices(world) if d["holder"] == "default/a"]
    assert [(d["draining"], d["container"]) for d in fenced] == [(True, "main")] * 3
    assert {holder.uid for d in fenced for holder in device_holders_on(world.devices(NODE), [])[str(d["device"])]} == {
        uid
    }
    assert set(agent(world).holders().values()) == {uid}  # it still runs there
    await world.cluster.api.delete(Pod, "five", NAMESPACE, grace_s=0)
    machine(world).heal()
    world.machines.cut_off.discard(NODE)
    await world.until(lambda: is_up(world, "eight"))  # the node has answered
    assert len(held_by(world, "eight")) == 8
    note("pod removed by force: its 3 devices stay fenced, a pod of 5 is placed, one of 8 waits until the node answers")


@in_world(nodes=2, racks=1)
async def test_row_20_and_when_the_node_is_dead_its_devices_count_for_nothing(world: World) -> None:
    await run_pods(world, gpus("a", 3, select={"kubernetes.io/hostname": NODE}))
    world.machines.cut_off.add(NODE)
    machine(world).partition()
    await world.cluster.api.delete(Pod, "a", NAMESPACE, grace_s=0)
    await world.sleep(20.0)  # the lease is over
    pods = await run_pods(world, gpus("b", 8))
    assert pods[0].spec.node_name == "node-02"
    await create(world, gpus("c", 1, select={"kubernetes.io/hostname": NODE}))
    await world.sleep(10.0)
    assert not the_pod(world, "c").spec.node_name
    assert "1 node dead" in scheduled(the_pod(world, "c"))[1]
    note("node declared dead: its devices count for nothing, refusals say '1 node dead'")


@in_world(nodes=2, racks=1)
async def test_row_27_a_pod_is_never_bound_where_the_resource_is_not_named(world: World) -> None:
    await create(world, gpus("tpu", 1, resource="example.com/tpu"), gpus("fpga", 1, resource=FPGA))
    await world.sleep(30.0)
    for name, resource in (("tpu", "example.com/tpu"), ("fpga", FPGA)):
        assert not the_pod(world, name).spec.node_name
        assert resource in scheduled(the_pod(world, name))[1]
    await stock_plugin(world, "fpga-0", node="node-02")
    await world.until(lambda: is_up(world, "fpga"))
    assert the_pod(world, "fpga").spec.node_name == "node-02"
    assert FPGA not in node_object(world, NODE).status.allocatable
    await create(world, gpus("second", 1, resource=FPGA))
    await world.sleep(30.0)
    assert not the_pod(world, "second").spec.node_name  # node-01 has room for anything but this
    note(f"{FPGA}: unbound for 30 s and named in the refusal; bound to node-02 once its plugin named it")


# --- CDI ----------------------------------------------------------------------------------------------------------------


async def with_cdi(world: World, node: str, directory: Path) -> CdiSpecs:
    """The node's runtime reads specs from `directory`, and its agent names devices by them."""
    specs = agent(world, node).grants.cdi = CdiSpecs(str(directory), hardware(world, node).device_files)
    found = machine(world, node)
    found._device_settings = KubeletDeviceSettings(None, cdi_dirs=(str(directory),))
    await found.restart()
    await counts_are(world, 0, 0, node)
    await counts_are(world, 8, 8, node)
    return specs


def wipe(directory: Path) -> None:
    """As a reboot does with a tmpfs."""
    for path in directory.iterdir():
        path.unlink()


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def waiting(world: World, name: str) -> tuple[str, str]:
    pod = world.pod(name)
    state = pod.status.container_statuses[0].state.waiting if pod and pod.status.container_statuses else None
    return (state.reason, state.message) if state is not None else ("", "")


def test_row_26_a_container_whose_cdi_specs_vanished_starts_once_the_agent_has_made_them_again(tmp_path: Path) -> None:
    @in_world(nodes=1, racks=1)
    async def story(world: World) -> None:
        specs = await with_cdi(world, NODE, tmp_path)
        [pod] = await run_pods(world, gpus("a", 2))
        mine = held_by(world, "a")
        assert names_in(tmp_path) == [f"remuda.dev-gpu_{device}.json" for device in mine]
        body = msgspec.json.decode((tmp_path / f"remuda.dev-gpu_{mine[0]}.json").read_bytes())
        assert (body["kind"], body["devices"][0]["name"]) == ("remuda.dev/gpu", mine[0])
        wipe(tmp_path)
        begun = world.now
        machine(world).runtime.kill(ContainerKey(pod.uid, "main"))
        names = ", ".join(f"remuda.dev/gpu={device}" for device in mine)
        want = ("CreateContainerError", f"unresolvable CDI devices {names}")
        await world.until(lambda: waiting(world, "a") == want)
        keeping = asyncio.create_task(
            keep_cdi_specs(specs, lambda: agent(world).inventory.rows, NODE)
        )  # the agent starts
        await world.until(lambda: is_up(world, "a"))
        assert world.now - begun <= LOOK_S + 2 * PREPARE_S
        assert (the_pod(world, "a").uid, held_by(world, "a")) == (pod.uid, mine)
        wipe(tmp_path)  # and while it runs, a look finds it
        await world.sleep(LOOK_S + 1.0)
        assert len(names_in(tmp_path)) == 8
        keeping.cancel()
        note("unresolvable CDI devices after the wipe; specs made anew, the same pod runs on the same devices")

    story()


def test_row_26_a_member_whose_cdi_specs_never_come_back_is_replaced_within_a_bound(tmp_path: Path) -> None:
    @in_world(nodes=3, racks=1)
    async def story(world: World) -> None:
        for node in world.rack_of:
            (tmp_path / node).mkdir()
            await with_cdi(world, node, tmp_path / node)
        await world.submit("job", replicas=2, spares=1, start_deadline_seconds=40.0)
        await world.running("job")
        await world.parked("job", 1)
        gang = world.gang("job")
        wipe(tmp_path / gang[1].node)
        await world.drill(DrillKind.LAUNCHER_KILL, pod=gang[1].pod, namespace=NAMESPACE)
        await world.until(lambda: waiting(world, gang[1].pod)[0] == "CreateContainerError")
        begun = world.now
        await world.until(lambda: world.gang("job")[1].uid != gang[1].uid, 120.0, "the member is replaced")
        took = world.now - begun
        assert took <= 60.0
        await world.until(lambda: world.is_running("job", world.job("job").status.attempt), 60.0, "the gang runs")
        world.assert_kept(gang, but=[1])
        note(f"specs that never come back: the member is replaced after {took:.0f} s")

    story()

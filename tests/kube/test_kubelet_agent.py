"""Our device plugin on a real kubelet: it registers, gives what the scheduler chose, and outlives restarts of everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest_asyncio

from remuda.api.devices import NodeDevices
from remuda.kube.client.http_cluster import HttpCluster
from tests.builders.evidence import note
from tests.builders.waiting import until
from tests.kube.real_node import RealNode
from tests.kube.real_node_agent import agent_command, api_of, install_kinds, running_agent
from tests.kube.real_node_rig import RealRig
from tests.kubelet_rows.rig import (
    Body,
    container_status,
    counts,
    devices_of,
    health,
    is_running,
    pod_body,
    restarts,
    see_counts,
    see_healthy,
    see_held,
    see_pod,
)

GPU = "nvidia.com/gpu"
DEVICES = "remuda.dev/devices"


@pytest_asyncio.fixture
async def rig(real_node: RealNode) -> AsyncIterator[RealRig]:
    await install_kinds(real_node.plane)
    made = RealRig(real_node, real_node.fresh_namespace())
    await made.open()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def api(rig: RealRig) -> AsyncIterator[HttpCluster]:
    async with api_of(rig.plane) as cluster:
        yield cluster


async def see_ledger(rig: RealRig, api: HttpCluster, what: str, holds: Callable[[NodeDevices], bool]) -> NodeDevices:
    last: NodeDevices | None = None

    async def there() -> bool:
        nonlocal last
        last = next((n for n in (await api.list(NodeDevices)).items if n.name == rig.name), None)
        return last is not None and holds(last)

    try:
        await until(what, there)
    except AssertionError as error:
        raise AssertionError(
            f"{error}; it says {last and last.observed.plugins} {last and last.observed.holdings}"
        ) from None
    assert last is not None
    return last


def is_registered(ledger: NodeDevices) -> bool:
    return [(p.resource, p.state) for p in ledger.observed.plugins] == [(GPU, "Registered")]


def held_by(ledger: NodeDevices, pod: str) -> set[str]:
    return {d for h in ledger.observed.holdings if h.pod.endswith(f"/{pod}") for d in h.devices}


async def run_chosen(rig: RealRig, name: str, *devices: str) -> Body:
    await rig.bind_pod(pod_body(name, GPU, len(devices)), {DEVICES: ",".join(devices)})
    return await see_pod(rig, name, "running", is_running)


async def test_it_registers_and_a_container_gets_the_chosen_devices(
    rig: RealRig, api: HttpCluster, tmp_path: Path
) -> None:
    async with agent_command(rig.real, tmp_path / "agent.log"):
        await see_counts(rig, GPU, 8, 8)
        await see_ledger(rig, api, "the plugin to be registered", is_registered)
        await run_chosen(rig, "odd", "gpu-5", "gpu-2")
        await run_chosen(rig, "even", "gpu-7")
        assert devices_of(await rig.pod_resources(), "odd") == ("gpu-2", "gpu-5")
        assert devices_of(await rig.pod_resources(), "even") == ("gpu-7",)

        async def shown() -> bool:
            output = await rig.output("odd")
            return "REMUDA_VISIBLE_DEVICES=gpu-2,gpu-5" in output and "CUDA_VISIBLE_DEVICES=2,5" in output

        await until("the container to show its devices", shown)
        ledger = await see_ledger(rig, api, "the holder", lambda n: held_by(n, "odd") == {"gpu-2", "gpu-5"})
        assert held_by(ledger, "even") == {"gpu-7"}


async def test_without_a_choice_any_valid_set_will_do(rig: RealRig, api: HttpCluster, tmp_path: Path) -> None:
    async with agent_command(rig.real, tmp_path / "agent.log"):
        await see_counts(rig, GPU, 8, 8)
        await rig.create_pod(pod_body("plain", GPU, 3))
        await see_pod(rig, "plain", "running", is_running)
        assert len(devices_of(await rig.pod_resources(), "plain")) == 3


async def test_row_30_an_unhealthy_device_lowers_allocatable_and_reaches_the_pod(
    rig: RealRig, api: HttpCluster
) -> None:
    async with running_agent(rig.real, api) as agent:
        await see_healthy(rig, GPU, 8)  # the node's status may still count those of the agent before
        await see_counts(rig, GPU, 8, 8)
        await run_chosen(rig, "holder", "gpu-3", "gpu-4")
        agent.inject_fault("gpu-3", "xid-79")
        await see_counts(rig, GPU, 8, 7)
        pod = await see_pod(rig, "holder", "told", lambda p: health(p, GPU).get("gpu-3") == "Unhealthy")
        assert health(pod, GPU)["gpu-4"] == "Healthy"
        assert is_running(pod)
        assert restarts(pod) == 0
        ledger = await see_ledger(rig, api, "the holder", lambda n: held_by(n, "holder") == {"gpu-3", "gpu-4"})
        assert [s.code for d in ledger.observed.devices if d.id == "gpu-3" for s in d.signals] == ["xid-79"]
    note(
        "kubelet: xid-79 on gpu-3, allocatable 7, capacity 8; holder, container and device named in pod status and ledger"
    )
    await forget_faults(rig, api)


async def forget_faults(rig: RealRig, api: HttpCluster) -> None:
    """The ledger outlives its agents; the next test has new devices."""
    await api.delete(NodeDevices, rig.name)


async def test_row_6_a_kubelet_restart_keeps_devices_and_restart_count(
    rig: RealRig, api: HttpCluster, tmp_path: Path
) -> None:
    async with agent_command(rig.real, tmp_path / "agent.log"):
        await see_counts(rig, GPU, 8, 8)
        before = await run_chosen(rig, "holder", "gpu-1", "gpu-6")
        await see_ledger(rig, api, "the holder", lambda n: held_by(n, "holder") == {"gpu-1", "gpu-6"})
        await rig.stop_kubelet()
        await rig.start_kubelet()
        await see_counts(rig, GPU, 8, 8)
        await see_healthy(rig, GPU, 8)  # nobody but the agent itself has registered it again
        await see_held(rig, "holder", ("gpu-1", "gpu-6"))
        after = await rig.pod("holder")
        assert is_running(after)
        assert restarts(after) == 0
        assert container_status(after)["state"] == container_status(before)["state"]
        ledger = await see_ledger(rig, api, "the plugin to be registered", is_registered)
        assert held_by(ledger, "holder") == {"gpu-1", "gpu-6"}
        await run_chosen(rig, "rest", "gpu-0", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-7")
        note("kubelet restarted: holder kept gpu-1 and gpu-6, restartCount 0; 8 of 8 registered again by the agent")


async def test_an_agent_that_died_and_came_back_knows_what_is_held(
    rig: RealRig, api: HttpCluster, tmp_path: Path
) -> None:
    async with agent_command(rig.real, tmp_path / "first.log") as first:
        await see_counts(rig, GPU, 8, 8)
        before = await run_chosen(rig, "holder", "gpu-1", "gpu-6")
        await see_ledger(rig, api, "the holder", lambda n: held_by(n, "holder") == {"gpu-1", "gpu-6"})
        await first.kill()
    await see_counts(rig, GPU, 8, 0)
    async with agent_command(rig.real, tmp_path / "second.log"):
        await see_counts(rig, GPU, 8, 8)
        await see_ledger(rig, api, "the holder", lambda n: held_by(n, "holder") == {"gpu-1", "gpu-6"})
        after = await rig.pod("holder")
        assert restarts(after) == 0
        assert container_status(after)["state"] == container_status(before)["state"]
        await run_chosen(rig, "rest", "gpu-0", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-7")


async def test_an_upgrade_of_the_agent_never_dips(rig: RealRig, api: HttpCluster, tmp_path: Path) -> None:
    """The new one registers before the old one ends, as a rolling update with surge does."""
    seen: set[tuple[str | None, str | None]] = set()

    async def look() -> None:
        while True:
            seen.add(counts(await rig.node(), GPU))
            await asyncio.sleep(0.05)

    async with agent_command(rig.real, tmp_path / "old.log") as old:
        await see_counts(rig, GPU, 8, 8)
        before = await run_chosen(rig, "holder", "gpu-1", "gpu-6")
        looking = asyncio.create_task(look())
        sockets = set(plugin_sockets(rig))
        async with agent_command(rig.real, tmp_path / "new.log") as new:

            async def both() -> bool:
                return set(plugin_sockets(rig)) > sockets

            await until("each instance to have a socket of its own", both)
            await new.has_said("Registered")
            await old.stop()
            await run_chosen(rig, "second", "gpu-0")
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            assert seen == {("8", "8")}
            after = await rig.pod("holder")
            assert restarts(after) == 0
            assert container_status(after)["state"] == container_status(before)["state"]


def plugin_sockets(rig: RealRig) -> list[str]:
    return [path.name for path in rig.plugin_directory.iterdir() if path.is_socket()]

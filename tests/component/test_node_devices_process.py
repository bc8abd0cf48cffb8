"""A node with real processes and a stock plugin on its sockets: what a container is given, and what survives a restart."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node import process_tree
from remuda.embedded.node.container_environment import CONTAINER_ID
from remuda.embedded.node.devices.device_service import PLUGINS, KubeletDeviceSettings
from tests.builders.nodes import until
from tests.builders.pods import pod_wire
from tests.builders.runtimes import ProcessMachine
from tests.builders.stock_plugin import StockPlugin, healthy

GPU = "nvidia.com/gpu"
SLEEP = ["sh", "-c", "echo up; exec sleep 600"]


class Machine(ProcessMachine):
    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.home = state / "nodes" / "node-01"
        self.plugins: list[StockPlugin] = []

    def device_settings(self) -> KubeletDeviceSettings:
        return KubeletDeviceSettings(str(self.home))

    async def plugin(self, socket: str = "stock.sock") -> StockPlugin:
        plugin = StockPlugin(self.home / PLUGINS, devices=healthy("gpu-0", "gpu-1", "gpu-2"), socket=socket)
        self.plugins.append(plugin)
        await plugin.serve()
        await plugin.register()
        await self.counts(3)
        return plugin

    async def counts(self, number: int) -> None:
        await self.rig.node_object(lambda n: n.status.allocatable.get(GPU) == str(number))


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    found = Machine(tmp_path)
    yield found
    for plugin in found.plugins:
        await plugin.stop()
    ids = {f"{path.parent.name}/{path.name}" for path in found.home.glob("pods/*/*")}
    for pid in process_tree.processes_tagged(CONTAINER_ID, ids).pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def gpus(name: str, count: int, command: list[str], **options: object) -> dict[str, object]:
    return pod_wire(name, command, limits={GPU: count}, **options)  # type: ignore[arg-type]


async def test_a_container_gets_the_plugins_variables_with_the_machines_paths(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        plugin = await machine.plugin()
        plugin.answers = [
            {
                "envs": {"VISIBLE": "gpu-0", "ALLOC": "/run/alloc/agent", "OTHER": "/run/allocation"},
                "mounts": [{"container_path": "/run/alloc", "host_path": "/state/alloc/gpu-0", "read_only": False}],
            }
        ]
        await rig.create(gpus("one", 1, ["sh", "-c", "echo $VISIBLE $ALLOC $OTHER"], policy="Never"))
        pod = await rig.pod("one", lambda p: p.status.phase == "Succeeded")
        assert machine.log(pod) == "gpu-0 /state/alloc/gpu-0/agent /run/allocation\n"
        await rig.create(pod_wire("none", ["sh", "-c", "echo [$VISIBLE]"], policy="Never"))
        pod = await rig.pod("none", lambda p: p.status.phase == "Succeeded")
        assert machine.log(pod) == "[]\n"


async def test_a_container_without_a_command_logs_the_devices_it_would_see(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        await machine.plugin()
        await rig.create(gpus("vector-add", 2, [], image="vector-add:1"))
        pod = await rig.running_pod("vector-add")
        assert pod.status.reason == "NoLocalCommand"
        assert "vector-add:1" in machine.log(pod)
        assert "gpu-0, gpu-1" in machine.log(pod)


async def test_row_6_a_restart_of_the_kubelet_leaves_the_process_alone(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        await machine.plugin()
        await rig.create(gpus("worker-0", 2, SLEEP))
        pod = await rig.running_pod()
        await until(lambda: machine.log(pod) == "up\n")
        # The shim and the program: for a moment, while that becomes `sleep`, nobody can read whose it is.
        await until(lambda: len(machine.processes(pod.uid)) == 2)
        before = machine.processes(pod.uid)
        await rig.node.restart()
        await machine.counts(0)
        assert not (machine.home / PLUGINS / "stock.sock").exists()  # every plugin has to come again
        await machine.plugin("again.sock")
        after = await rig.cluster.get(Pod, "worker-0", "default")
        assert machine.processes(pod.uid) == before
        assert after.status.container_statuses == pod.status.container_statuses
        await rig.create(gpus("worker-1", 1, SLEEP))
        other = await rig.running_pod("worker-1")
        assert [device for device, uid in rig.agent.held.items() if uid == other.uid] == ["gpu-2"]


async def test_row_7_a_reboot_ends_every_process_and_fails_what_comes_before_its_plugin(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        await machine.plugin()
        await rig.create(gpus("worker-0", 2, SLEEP))
        await rig.create(pod_wire("plain", SLEEP))
        pod, plain = await rig.running_pod(), await rig.running_pod("plain")
        await until(lambda: machine.log(pod) == machine.log(plain) == "up\n")
        before = machine.processes(plain.uid)
        await rig.node.reboot()
        failed = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
        assert "no healthy devices present" in failed.status.message
        await rig.running_pod("plain", restarts=1)
        await until(lambda: machine.log(plain) == "up\nup\n")
        assert not set(before) & set(machine.processes(plain.uid))
        assert not machine.processes(pod.uid)


async def test_a_node_that_was_killed_finds_its_containers_and_their_devices(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        await machine.plugin()
        await rig.create(gpus("worker-0", 2, SLEEP))
        pod = await rig.running_pod()
        await until(lambda: machine.log(pod) == "up\n")
    before = machine.processes(pod.uid)
    async with machine.boot().running() as rig:
        assert rig.node.devices is not None
        await until(lambda: ("attach", "worker-0", "main", GPU, ("gpu-0", "gpu-1"), False) in rig.agent.calls)
        after = await rig.cluster.get(Pod, "worker-0", "default")
        assert machine.processes(pod.uid) == before
        assert (after.uid, after.status.phase) == (pod.uid, "Running")
        assert after.status.container_statuses[0].restart_count == 0
        await rig.cluster.delete(Pod, "worker-0", "default", grace_s=0)
        await until(lambda: not machine.processes(pod.uid))


async def test_without_its_checkpoint_a_node_leaves_running_containers_alone(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        await machine.plugin()
        await rig.create(gpus("worker-0", 2, SLEEP))
        pod = await rig.running_pod()
    (machine.home / PLUGINS / "kubelet_internal_checkpoint").write_text("{}")
    async with machine.boot().running() as rig:
        assert rig.node.devices is not None
        assert rig.node.devices.manager.grants(pod.uid) == ()
        await until(lambda: ("attach", "worker-0", "main", GPU, ("gpu-0", "gpu-1"), False) in rig.agent.calls)
        after = await rig.cluster.get(Pod, "worker-0", "default")
        assert after.status.phase == "Running"
        assert machine.processes(pod.uid)


async def test_an_init_container_runs_to_its_end_before_the_others_begin(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        inits = [
            {"name": "first", "command": ["sh", "-c", "echo made > made"]},
            {"name": "beside", "command": ["sh", "-c", "exec sleep 600"], "restartPolicy": "Always"},
        ]
        await rig.create(pod_wire("worker-0", ["cat", "made"], inits=inits, policy="Never"))
        pod = await rig.pod("worker-0", lambda p: p.status.phase == "Succeeded")
        assert machine.log(pod) == "made\n"
        ended = [s.state.terminated is not None for s in pod.status.init_container_statuses]
        assert ended == [True, True]


async def test_a_node_without_power_takes_no_registrations(machine: Machine) -> None:
    async with machine.boot().running() as rig:
        plugin = await machine.plugin()
        rig.node.lose()
        await until(lambda: not (machine.home / PLUGINS / "kubelet.sock").exists())
        with pytest.raises(grpc.aio.AioRpcError):
            await plugin.register(socket="other.sock")

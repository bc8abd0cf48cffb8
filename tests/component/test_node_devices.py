"""The node and its device manager in virtual time: what a kubelet does to pods when plugins and devices come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import ContainerStatus, Node, Pod
from remuda.api.meta import JsonObject
from remuda.embedded.node.devices.device_service import KubeletDeviceSettings
from remuda.embedded.node.runtime_port import ContainerKey
from remuda.embedded.node.training_model import SimulatedBehaviour
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.nodes import Rig, until
from tests.builders.plugins import PlainPlugin
from tests.builders.pods import pod_wire
from tests.builders.runtimes import simulated

GPU = "nvidia.com/gpu"
STATUS_S = 2.0  # a quarter of the lease: the node's status period
Scenario = Callable[[Rig, PlainPlugin], Coroutine[Any, Any, None]]


def play(scenario: Scenario, behaviour: SimulatedBehaviour = SimulatedBehaviour(), **plugin: Any) -> None:  # noqa: B008 (a value)
    loop = VirtualLoop()

    async def main() -> None:
        rig = Rig(loop.clock, deadline_s=3600.0)
        served = PlainPlugin(*(f"gpu-{n}" for n in range(4)), **plugin)
        rig.add_node(simulated(loop.clock, behaviour), devices=KubeletDeviceSettings(), plugins={GPU: served})
        async with rig.running():
            await scenario(rig, served)

    run_virtual(main(), loop)


def gpus(name: str = "worker-0", count: int = 1, **options: Any) -> JsonObject:
    return pod_wire(name, limits={GPU: count}, **options)


async def counts(rig: Rig, capacity: int, allocatable: int) -> Node:
    want = (str(capacity), str(allocatable))
    return await rig.node_object(lambda n: (n.status.capacity.get(GPU), n.status.allocatable.get(GPU)) == want)


def held(rig: Rig, uid: str) -> list[str]:
    return [device for device, holder in rig.agent.held.items() if holder == uid]


def health(status: ContainerStatus) -> list[tuple[str, str, str]]:
    return [(r.name, d.resource_id, d.health) for r in status.allocated_resources_status for d in r.resources]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_row_30_one_bad_device_lowers_allocatable_and_reaches_its_pod() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await counts(rig, 4, 4)
        await rig.create(gpus(count=2))
        pod = await rig.running_pod()
        assert health(pod.status.container_statuses[0]) == [(GPU, "gpu-0", "Healthy"), (GPU, "gpu-1", "Healthy")]
        assert held(rig, pod.uid) == ["gpu-0", "gpu-1"]
        begun = now()
        plugin.say("gpu-1", "Unhealthy")
        await counts(rig, 4, 3)
        said = await rig.pod("worker-0", lambda p: "Unhealthy" in str(health(p.status.container_statuses[0])))
        assert health(said.status.container_statuses[0])[1] == (GPU, "gpu-1", "Unhealthy")
        assert now() - begun <= STATUS_S
        assert said.status.container_statuses[0].restart_count == 0
        plugin.say("gpu-1", "Healthy")
        await counts(rig, 4, 4)

    play(scenario)


def test_row_4_a_device_that_leaves_the_list_is_called_healthy() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus())
        await rig.running_pod()
        plugin.say("gpu-0", None)
        await counts(rig, 3, 3)
        pod = await rig.cluster.get(Pod, "worker-0", "default")
        assert health(pod.status.container_statuses[0]) == [(GPU, "gpu-0", "Healthy")]

    play(scenario)


@pytest.mark.parametrize(
    ("break_it", "count", "words"),
    [
        pytest.param(
            lambda plugin: None,
            5,
            "requested number of devices unavailable for nvidia.com/gpu. Requested: 5, Available: 4",
            id="too many",
        ),
        pytest.param(
            lambda plugin: setattr(plugin, "refusal", Refusal("DriverGone", "The driver does not answer.", "Reboot.")),
            1,
            "rpc error: code = Unknown desc = DriverGone: The driver does not answer.",
            id="Allocate fails",
        ),
        pytest.param(
            lambda plugin: setattr(plugin, "is_hung", True),
            1,
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            id="Allocate hangs",
        ),
    ],
)
def test_a_pod_that_cannot_have_its_devices_is_rejected(
    break_it: Callable[[PlainPlugin], None], count: int, words: str
) -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        break_it(plugin)
        await rig.create(gpus(count=count))
        await rig.create(pod_wire("other"))
        await rig.running_pod("other")
        assert now() < 1.0  # whatever the plugin does, pods without devices do not wait
        pod = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
        assert pod.status.reason == "UnexpectedAdmissionError"
        assert pod.status.message == f"Pod was rejected: Allocate failed due to {words}, which is unexpected"
        assert rig.agent.held == {}
        plugin.refusal, plugin.is_hung = None, False
        await rig.create(gpus("next", 4))
        assert len(held(rig, (await rig.running_pod("next")).uid)) == 4

    play(scenario)


def test_row_27_a_resource_the_node_never_had_is_stripped_and_the_pod_starts_without() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(pod_wire(limits={"example.com/tpu": 2}))
        pod = await rig.running_pod()
        assert pod.status.container_statuses[0].allocated_resources_status == []
        assert plugin.calls == []

    play(scenario)


def test_a_resource_the_node_says_none_of_lets_no_pod_in() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        plugin.kill()
        await counts(rig, 0, 0)
        await rig.create(gpus())
        pod = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
        assert pod.status.reason == f"OutOf{GPU}"
        assert pod.status.message == (
            f"Pod was rejected: Node didn't have enough resource: {GPU}, requested: 1, used: 0, capacity: 0"
        )

    play(scenario)


def test_row_1_a_lost_plugin_takes_the_counts_in_two_steps_and_no_pod() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus(count=2))
        uid = (await rig.running_pod()).uid
        lost = now()
        plugin.kill()
        await counts(rig, 4, 0)
        assert now() - lost <= STATUS_S
        await counts(rig, 0, 0)
        assert 300.0 <= now() - lost <= 300.0 + 2 * STATUS_S
        pod = await rig.cluster.get(Pod, "worker-0", "default")
        assert (pod.uid, pod.status.phase, pod.status.container_statuses[0].restart_count) == (uid, "Running", 0)
        assert health(pod.status.container_statuses[0])[0][2] == "Healthy"  # a kubelet's text does not change
        plugin.mend()
        await counts(rig, 4, 4)

    play(scenario)


def test_row_3_a_plugin_back_within_the_grace_costs_nothing() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus(count=2))
        before = await rig.running_pod()
        plugin.kill()
        await counts(rig, 4, 0)
        await asyncio.sleep(200)
        plugin.mend()
        await counts(rig, 4, 4)
        after = await rig.cluster.get(Pod, "worker-0", "default")
        assert (after.uid, after.status) == (before.uid, before.status)
        assert [c for c in plugin.calls if c[0] == "allocate"] == [("allocate", ("gpu-0", "gpu-1"))]

    play(scenario)


def test_a_container_restarts_without_its_plugin_until_the_resource_is_dropped() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus())
        uid = (await rig.running_pod()).uid
        plugin.kill()
        await counts(rig, 4, 0)
        rig.node.runtime.kill(ContainerKey(uid, "main"))
        await rig.running_pod(restarts=1)
        await counts(rig, 0, 0)
        rig.node.runtime.kill(ContainerKey(uid, "main"))

        def is_stuck(pod: Pod) -> bool:
            waiting = pod.status.container_statuses[0].state.waiting
            return waiting is not None and waiting.reason == "CreateContainerConfigError"

        pod = await rig.pod("worker-0", is_stuck)
        waiting = pod.status.container_statuses[0].state.waiting
        assert waiting is not None
        assert waiting.message == f"endpoint not found in cache for a registered resource: {GPU}"
        plugin.mend()
        pod = await rig.running_pod(restarts=2)
        assert pod.uid == uid

    play(scenario)


def test_pre_start_comes_before_every_start() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus())
        uid = (await rig.running_pod()).uid
        rig.node.runtime.kill(ContainerKey(uid, "main"))
        await rig.running_pod(restarts=1)
        assert [c[0] for c in plugin.calls] == ["allocate", "pre_start", "pre_start"]

    play(scenario, pre_start=True)


def test_devices_of_an_ended_pod_go_to_the_next() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        for number in range(6):  # more in a row than there are devices
            await rig.create(gpus(f"pod-{number}", 3, policy="Never"))
            await rig.pod(f"pod-{number}", lambda p: p.status.phase == "Succeeded")
            assert rig.agent.held == {}

    play(scenario, SimulatedBehaviour(run_s=5.0))


def test_row_19_a_pod_removed_by_force_keeps_its_devices_until_it_is_dead() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus("old", 4))
        old = await rig.running_pod("old")
        await rig.cluster.delete(Pod, "old", "default", grace_s=0)
        await rig.create(gpus("new", 4))
        new = await rig.running_pod("new")
        assert set(rig.agent.held.values()) == {new.uid}
        releases = [i for i, c in enumerate(rig.agent.calls) if c == ("release", old.uid)]
        attached = next(i for i, c in enumerate(rig.agent.calls) if c[:2] == ("attach", "new"))
        assert releases[0] < attached

    play(scenario)


# --- restarts -----------------------------------------------------------------------------------------------------------


def test_row_6_a_restart_of_the_kubelet_moves_nothing_and_shows_as_a_dip() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus("a", 2))
        await rig.create(gpus("b", 1))
        before = {name: await rig.running_pod(name) for name in ("a", "b")}
        devices = dict(rig.agent.held)
        await rig.node.restart()
        await counts(rig, 0, 0)
        await counts(rig, 4, 4)
        for name, pod in before.items():
            after = await rig.cluster.get(Pod, name, "default")
            assert (after.uid, after.status) == (pod.uid, pod.status)
        assert rig.agent.held == devices
        await rig.create(gpus("c", 1))
        assert held(rig, (await rig.running_pod("c")).uid) == ["gpu-3"]
        uid = before["a"].uid
        rig.node.runtime.kill(ContainerKey(uid, "main"))  # and it is watched as before
        await rig.running_pod("a", restarts=1)

    play(scenario)


def test_row_7_after_a_reboot_a_pod_that_comes_before_its_plugin_fails() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus("gpu-pod", 2))
        await rig.create(pod_wire("plain"))
        await rig.running_pod("gpu-pod")
        await rig.running_pod("plain")
        await rig.node.reboot()
        failed = await rig.pod("gpu-pod", lambda p: p.status.phase == "Failed")
        assert failed.status.reason == "UnexpectedAdmissionError"
        assert "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu" in failed.status.message
        again = await rig.running_pod("plain", restarts=1)
        assert again.status.phase == "Running"
        await counts(rig, 4, 4)
        await rig.create(gpus("late", 4))
        assert len(held(rig, (await rig.running_pod("late")).uid)) == 4

    play(scenario)


def test_a_pod_that_comes_in_the_middle_of_a_restart_is_taken_on_once() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus("holder", 2))
        await rig.running_pod("holder")
        restart = asyncio.create_task(rig.node.restart())
        await rig.create(pod_wire("plain"))
        await rig.create(gpus("early"))
        await restart
        await rig.running_pod("plain")
        assert [c[:2] for c in rig.agent.calls].count(("allocate", "plain")) == 1
        early = await rig.pod("early", lambda p: p.status.phase == "Failed")  # before the plugin was back
        assert "no healthy devices present" in early.status.message
        assert len(held(rig, (await rig.cluster.get(Pod, "holder", "default")).uid)) == 2

    play(scenario)


def test_a_restart_in_the_middle_of_a_deletion_ends_it_all_the_same() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus("worker-0", 2))
        await rig.running_pod()
        await rig.cluster.delete(Pod, "worker-0", "default")
        await asyncio.sleep(1.0)
        await rig.node.restart()
        await rig.gone("worker-0")
        await until(lambda: rig.agent.held == {})

    play(scenario, SimulatedBehaviour(stop_s=5.0))


def test_a_node_made_anew_leaves_what_its_object_says() -> None:
    """As a kubelet does, whatever it means to do: docs/kubelet-behaviour.md."""

    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        node = await counts(rig, 4, 4)
        assert node.status.capacity.get("example.com/fpga") == "2"
        assert node.status.capacity.get("cpu") == "8"

    loop = VirtualLoop()

    async def main() -> None:
        rig = Rig(loop.clock, deadline_s=600.0)
        old = {"cpu": "8", "example.com/fpga": "2"}
        await rig.cluster.create(
            Node, {"metadata": {"name": "node-01"}, "status": {"capacity": old, "allocatable": old}}
        )
        await rig.cluster.patch(
            Node, "node-01", {"status": {"capacity": old, "allocatable": old}}, subresource="status"
        )
        plugin = PlainPlugin(*(f"gpu-{n}" for n in range(4)))
        rig.add_node(
            simulated(loop.clock),
            devices=KubeletDeviceSettings(),
            plugins={GPU: plugin},
        )
        async with rig.running():
            await scenario(rig, plugin)

    run_virtual(main(), loop)


def test_a_simulated_node_that_starts_again_has_the_statuses_of_its_pods_for_a_checkpoint() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        rig = Rig(loop.clock, deadline_s=600.0)
        plugin = PlainPlugin(*(f"gpu-{n}" for n in range(6)))
        rig.add_node(simulated(loop.clock), devices=KubeletDeviceSettings(), plugins={GPU: plugin})
        async with rig.running():
            for name in "abc":
                await rig.create(gpus(name, 2))
                await rig.running_pod(name)
        plugin.devices["gpu-3"] = "Unhealthy"
        rig.add_node(simulated(loop.clock), devices=KubeletDeviceSettings(), plugins={GPU: plugin})
        async with rig.running():
            lost = await rig.pod("b", lambda p: p.status.phase == "Failed")
            assert "previously allocated devices are no longer healthy" in lost.status.message
            for name, devices in (("a", ["gpu-0", "gpu-1"]), ("c", ["gpu-4", "gpu-5"])):
                pod = await rig.running_pod(name, restarts=1)
                assert held(rig, pod.uid) == devices

    run_virtual(main(), loop)


# --- init containers and sidecars -----------------------------------------------------------------------------------------


def init(name: str, count: int = 0, *, sidecar: bool = False) -> JsonObject:
    body: JsonObject = {"name": name, "command": [name]}
    if count:
        body["resources"] = {"limits": {GPU: count}}
    if sidecar:
        body["restartPolicy"] = "Always"
    return body


def test_row_50_init_containers_run_in_turn_and_sidecars_stay_with_devices_of_their_own() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        inits = [init("prepare", 2), init("watcher", 1, sidecar=True), init("check")]
        await rig.create(gpus(count=2, inits=inits, policy="Never"))
        first = await rig.pod("worker-0", lambda p: bool(p.status.init_container_statuses))
        assert first.status.phase == "Pending"
        pod = await rig.running_pod()
        prepare, watcher, check = pod.status.init_container_statuses
        assert prepare.state.terminated is not None
        assert prepare.ready
        assert watcher.state.running is not None
        assert check.state.terminated is not None
        assert prepare.state.terminated.finished_at is not None
        assert watcher.state.running.started_at is not None
        assert prepare.state.terminated.finished_at <= watcher.state.running.started_at
        assert [d for _, d, _ in health(prepare)] == ["gpu-0", "gpu-1"]
        assert [d for _, d, _ in health(watcher)] == ["gpu-0"]
        main = pod.status.container_statuses[0]
        assert [d for _, d, _ in health(main)] == ["gpu-1", "gpu-2"]  # one taken over from init, one more
        plugin.say("gpu-0", "Unhealthy")
        said = await rig.pod("worker-0", lambda p: "Unhealthy" in str(health(p.status.init_container_statuses[1])))
        assert said.status.phase == "Running"
        rig.node.runtime.kill(ContainerKey(pod.uid, "watcher"))  # a sidecar restarts whatever the pod's policy is
        back = await rig.pod("worker-0", lambda p: p.status.init_container_statuses[1].restart_count == 1)
        assert back.status.container_statuses[0].restart_count == 0
        done = await rig.pod("worker-0", lambda p: p.status.phase == "Succeeded")
        assert done.status.init_container_statuses[1].state.terminated is not None
        assert rig.agent.held == {}

    play(scenario, SimulatedBehaviour(run_s=60.0, init_s=1.0))


def test_a_failed_init_container_fails_a_pod_that_must_not_restart() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus(inits=[init("prepare", 1)], policy="Never"))
        pod = await rig.pod("worker-0", lambda p: any(s.state.running for s in p.status.init_container_statuses))
        rig.node.runtime.kill(ContainerKey(pod.uid, "prepare"))
        failed = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
        assert failed.status.container_statuses[0].state.waiting is not None
        assert rig.agent.held == {}

    play(scenario, SimulatedBehaviour(init_s=60.0))


def test_a_failed_init_container_is_run_again_otherwise() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus(inits=[init("prepare", 1)]))
        pod = await rig.pod("worker-0", lambda p: any(s.state.running for s in p.status.init_container_statuses))
        rig.node.runtime.kill(ContainerKey(pod.uid, "prepare"))
        pod = await rig.running_pod()
        assert pod.status.init_container_statuses[0].restart_count == 1

    play(scenario, SimulatedBehaviour(init_s=5.0))


def test_a_deleted_pod_stops_its_sidecars_last() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        await rig.create(gpus(inits=[init("watcher", 1, sidecar=True)]))
        await rig.running_pod()
        await rig.cluster.delete(Pod, "worker-0", "default")
        half = await rig.pod("worker-0", lambda p: p.status.container_statuses[0].state.terminated is not None)
        assert half.status.init_container_statuses[0].state.running is not None
        await rig.gone("worker-0")
        await until(lambda: rig.agent.held == {})

    play(scenario, SimulatedBehaviour(stop_s=3.0))


# --- whose devices --------------------------------------------------------------------------------------------------------


def test_pods_of_one_shape_are_shown_to_the_agent_one_at_a_time() -> None:
    async def scenario(rig: Rig, plugin: PlainPlugin) -> None:
        seen: list[list[str]] = []
        calls = plugin.allocate

        async def allocate(devices: Any) -> Any:
            seen.append([p.name for p in rig.node.bound_pods()])
            await asyncio.sleep(0.1)  # time enough for the others to arrive
            return await calls(devices)

        plugin.allocate = allocate  # type: ignore[method-assign]
        for name in ("c", "a", "b"):
            await rig.create(gpus(name))
        await rig.create(gpus("d"))
        for name in "abcd":
            await rig.running_pod(name)
        assert [names[-1] for names in seen] == ["c", "a", "b", "d"]
        assert len(seen[0]) == 1

    play(scenario)

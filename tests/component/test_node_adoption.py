"""A node that starts on a machine where things have happened: what the runtime found, what the API says, and both."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.embedded.node.container_record import STATUS_UNKNOWN, ContainerExit
from remuda.embedded.node.runtime_port import (
    AdoptedContainer,
    ContainerFault,
    ContainerKey,
    ContainerLaunch,
    ExitListener,
)
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.nodes import BookkeepingAgent, Rig, until
from tests.builders.pods import pod_wire


class ScriptedRuntime:
    """Runs nothing: says what the test tells it to and writes down what it is asked for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.found: list[AdoptedContainer] = []
        self.starts: list[tuple[str, int]] = []
        self.killed: list[ContainerKey] = []
        self.forgotten: list[str] = []
        self.exit: ExitListener = lambda key, run, end: None

    def on_exit(self, listener: ExitListener) -> None:
        self.exit = listener

    def is_simulated(self, pod: Pod) -> bool:
        return False

    def notice(self, pod: Pod) -> str:
        return ""

    async def adopt(self) -> list[AdoptedContainer]:
        return self.found

    async def start(self, launch: ContainerLaunch) -> float:
        self.starts.append((launch.pod.name, launch.run))
        return self.clock()

    def stop(self, key: ContainerKey, grace_s: float) -> None:
        pass

    def set_speed(self, key: ContainerKey, speed: float) -> None:
        """Nothing here is slow."""

    def kill(self, key: ContainerKey) -> None:
        self.killed.append(key)

    def inject_fault(self, key: ContainerKey, fault: ContainerFault) -> None:
        pass

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    def power_off(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Stage:
    def __init__(self, loop: VirtualLoop) -> None:
        self.rig = Rig(loop.clock, deadline_s=600.0)
        self.runtime = ScriptedRuntime(loop.clock)
        self.rig.add_node(self._runtime)

    def _runtime(self, name: str, agent: BookkeepingAgent) -> ScriptedRuntime:
        return self.runtime

    def found(
        self, pod: Pod, *, run: int = 0, end: ContainerExit | None = None, previous: ContainerExit | None = None
    ) -> ContainerKey:
        key = ContainerKey(pod.uid, "main")
        at = self.rig.clock() - 100
        self.runtime.found.append(AdoptedContainer(key, run, "127.1.0.9", at, end, previous))
        return key

    async def pod(self, status: JsonObject | None = None, **options: Any) -> Pod:
        """A pod from the life before."""
        pod = await self.rig.create(pod_wire(**options))
        if status is None:
            return pod
        return await self.rig.cluster.patch(Pod, pod.name, {"status": status}, "default", subresource="status")


def ran(run: int = 0) -> JsonObject:
    state = {"running": {"startedAt": "2027-01-15T07:00:00Z"}}
    container = {"name": "main", "restartCount": run, "ready": True, "state": state}
    return {"phase": "Running", "podIP": "127.1.0.9", "containerStatuses": [container]}


def play(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        await scenario(Stage(loop))

    run_virtual(main(), loop)


def test_a_live_container_is_adopted_and_its_device_asked_for_again() -> None:
    async def scenario(stage: Stage) -> None:
        pod = await stage.pod(ran(2), devices=("gpu-1",))
        stage.found(pod, run=2)
        async with stage.rig.running() as rig:
            await until(lambda: rig.agent.held == {"gpu-1": pod.uid})
            assert stage.runtime.starts == []
            now = await rig.cluster.get(Pod, "worker-0", "default")
            assert now.status.pod_ip == "127.1.0.9"

    play(scenario)


def test_a_start_the_api_never_heard_of_counts() -> None:
    """The node died between a restart and the status that tells of it."""

    async def scenario(stage: Stage) -> None:
        pod = await stage.pod(ran(2))
        stage.found(pod, run=3, previous=ContainerExit(9, 5.0, message="why"))
        async with stage.rig.running() as rig:
            told = await rig.running_pod(restarts=3)
            (container,) = told.status.container_statuses
            assert container.restart_count == 3
            assert container.last_state.terminated is not None
            assert (container.last_state.terminated.exit_code, container.last_state.terminated.message) == (9, "why")
            assert stage.runtime.starts == []

    play(scenario)


def test_an_exit_between_finding_a_container_and_meeting_its_pod_is_not_lost() -> None:
    async def scenario(stage: Stage) -> None:
        pod = await stage.pod(ran(), policy="Never")
        key = stage.found(pod)
        rig = stage.rig
        start = rig.node.start

        async def start_and_exit() -> None:
            await start()
            stage.runtime.exit(key, 0, ContainerExit(6, rig.clock()))

        rig.node.start = start_and_exit  # type: ignore[method-assign]
        async with rig.running():
            ended = await rig.pod("worker-0", lambda p: p.is_terminal)
            assert ended.status.container_statuses[0].state.terminated is not None
            assert ended.status.container_statuses[0].state.terminated.exit_code == 6
            assert stage.runtime.starts == []

    play(scenario)


@pytest.mark.parametrize(("policy", "starts"), [("Always", [("worker-0", 3)]), ("Never", [])])
def test_a_container_the_machine_knows_nothing_of_is_an_unknown_end(policy: str, starts: list[tuple[str, int]]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.pod(ran(2), policy=policy, devices=("gpu-1",))
        async with stage.rig.running() as rig:
            await until(lambda: any(call[0] in ("exited", "release") for call in rig.agent.calls))
            if policy == "Never":
                pod = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
                state = pod.status.container_statuses[0].state.terminated
            else:
                pod = await rig.running_pod(restarts=3)
                state = pod.status.container_statuses[0].last_state.terminated
            assert state is not None
            assert (state.exit_code, state.reason) == (137, STATUS_UNKNOWN)
            assert stage.runtime.starts == starts

    play(scenario)


def test_what_runs_is_not_stopped_because_the_agent_refuses_it_now() -> None:
    async def scenario(stage: Stage) -> None:
        pod = await stage.pod(ran(), devices=("gpu-1",))
        key = stage.found(pod)
        rig = stage.rig
        rig.agent.held["gpu-1"] = "somebody"
        async with rig.running():
            await until(lambda: bool(rig.agent.calls))
            stage.runtime.exit(key, 0, ContainerExit(1, rig.clock()))
            failed = await rig.pod("worker-0", lambda p: p.status.phase == "Failed")
            assert failed.status.reason == "UnexpectedAdmissionError"
            assert "DeviceHeld" in failed.status.message
            assert stage.runtime.starts == []

    play(scenario)


def test_a_container_without_a_pod_is_killed_then_released_then_forgotten() -> None:
    async def scenario(stage: Stage) -> None:
        pod = await stage.pod(ran())
        key = stage.found(pod)
        await stage.rig.cluster.delete(Pod, "worker-0", "default", grace_s=0)
        async with stage.rig.running() as rig:
            await until(lambda: stage.runtime.killed == [key])
            assert rig.agent.calls == []
            stage.runtime.exit(key, 0, ContainerExit(137, rig.clock(), 9))
            await until(lambda: stage.runtime.forgotten == [pod.uid])
            assert rig.agent.calls == [("release", pod.uid)]

    play(scenario)


def test_a_finished_pod_is_left_alone() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.pod({**ran(), "phase": "Succeeded"}, policy="Never")
        async with stage.rig.running() as rig:
            await rig.create(pod_wire("other"))
            await rig.running_pod("other")
            assert stage.runtime.starts == [("other", 0)]
            assert [call for call in rig.agent.calls if call[0] == "release"] == []

    play(scenario)


def test_devices_of_a_pod_deleted_before_its_first_status_are_released() -> None:
    """The node died between the agent's answer and the first status; then the pod was deleted."""

    async def scenario(stage: Stage) -> None:
        pod = await stage.pod(devices=("gpu-1",))
        stage.rig.agent.held["gpu-1"] = pod.uid
        await stage.rig.cluster.delete(Pod, "worker-0", "default")
        async with stage.rig.running() as rig:
            await rig.gone("worker-0")
            assert rig.agent.held == {}

    play(scenario)

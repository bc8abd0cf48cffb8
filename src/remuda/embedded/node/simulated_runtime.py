"""`SimulatedRuntime`: pods without processes, on the loop's time alone.

A pod that runs under the launcher gets the real launcher's decisions (`remuda.launch.launcher_machine`) around a model of
training (`training_model`), talking to the agent in process; any other pod simply lives for a while. Hundreds of them fit
into one process, and under a virtual-time loop with a seeded generator a run repeats exactly.

Nothing survives the process: a node that starts again finds none of them (`adopt` is empty), as after a power loss.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from remuda.api.codec import decode_json_with_codec, encode
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG
from remuda.embedded.node.container_record import (
    ContainerExit,
    is_sidecar_container,
    kubelet_sidecar_container_names,
    node_runs_container_under_launcher,
)
from remuda.embedded.node.runtime_port import (
    AdoptedContainer,
    ContainerFault,
    ContainerKey,
    ContainerLaunch,
    ExitListener,
)
from remuda.embedded.node.training_model import Job, SimulatedBehaviour, SimulatedCheckpoints, SimulatedTraining
from remuda.launch import actions, protocol
from remuda.launch.launcher_machine import LauncherIdentity, LaunchMachine
from remuda.link.allocation_port import Deliver, NodeAgentLink

_TERM = protocol.SIGNALS["TERM"]
_KILLED = 137
DEFAULT_BEHAVIOUR = SimulatedBehaviour()

Ended = Callable[[int, str], None]  # exit code, message


class SimulatedRuntime:
    """`checkpoints` is shared by all nodes of the cluster; `behaviour` says how each pod behaves."""

    def __init__(
        self,
        agent: NodeAgentLink,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        checkpoints: SimulatedCheckpoints,
        behaviour: Callable[[Pod], SimulatedBehaviour] = lambda pod: DEFAULT_BEHAVIOUR,
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._rng = rng
        self._checkpoints = checkpoints
        self._behaviour = behaviour
        self._running: dict[ContainerKey, SimulatedContainer | SimulatedLaunchedContainer] = {}
        self._listener: ExitListener = lambda key, run, end: None
        self._pids = 1

    def on_exit(self, listener: ExitListener) -> None:
        self._listener = listener

    def is_simulated(self, pod: Pod) -> bool:
        return True

    def notice(self, pod: Pod) -> str:
        return ""

    async def adopt(self) -> list[AdoptedContainer]:
        return []

    async def start(self, launch: ContainerLaunch) -> float:
        key, run = launch.key, launch.run
        loop = asyncio.get_running_loop()

        def ended(code: int, message: str) -> None:
            if self._running.pop(key, None) is not None:
                end = ContainerExit(code, self._clock(), code - 128 if code > 128 else 0, message=message)
                loop.call_soon(self._tell, key, run, end)

        behaviour = self._behaviour(launch.pod)
        if node_runs_container_under_launcher(launch.pod, launch.container):
            self._pids += 1
            container = SimulatedLaunchedContainer(
                launch, behaviour, self._agent, self._clock, self._rng, self._checkpoints, self._pids, ended
            )
            self._running[key] = container
        else:
            is_init = any(
                c.name == key.container and not is_sidecar_container(c) for c in launch.pod.spec.init_containers
            )
            is_beside = key.container in kubelet_sidecar_container_names(launch.pod)
            run_s = behaviour.init_s if is_init else None if is_beside else behaviour.run_s
            self._running[key] = SimulatedContainer(behaviour, run_s, ended)
        return self._clock()

    def stop(self, key: ContainerKey, grace_s: float) -> None:
        container = self._running.get(key)
        if container is not None:
            container.terminate()

    def kill(self, key: ContainerKey) -> None:
        container = self._running.get(key)
        if container is not None:
            container.kill()

    def inject_fault(self, key: ContainerKey, fault: ContainerFault) -> None:
        container = self._running.get(key)
        if container is None:
            raise Refusal("NotRunning", "The container is not running.", "Wait until it runs.")
        if fault is ContainerFault.KILL_LAUNCHER:
            container.kill()
            return
        child = container.child
        if child is None:
            raise Refusal("NotRunning", "The pod runs no user process now.", "Wait until it runs.")
        if fault is ContainerFault.KILL_PROCESS:
            child.kill()
        elif fault is ContainerFault.HANG_PROCESS:
            child.hang()
        else:
            child.resume()

    def set_speed(self, key: ContainerKey, speed: float) -> None:
        container = self._running.get(key)
        if container is not None:
            container.set_speed(speed)

    def child(self, uid: str) -> SimulatedTraining | None:
        """The pod's running child, for scenarios that need more than a drill (say, fail with a code)."""
        found = (c.child for key, c in self._running.items() if key.uid == uid)
        return next((c for c in found if c is not None), None)

    def children(self) -> list[tuple[str, SimulatedTraining]]:
        """(pod uid, running child) of every pod that has one."""
        return [(key.uid, c.child) for key, c in self._running.items() if c.child is not None]

    def forget(self, uid: str) -> None:
        pass

    def power_off(self) -> None:
        running, self._running = self._running, {}
        for container in running.values():
            container.vanish()

    async def close(self) -> None:
        self.power_off()

    def _tell(self, key: ContainerKey, run: int, end: ContainerExit) -> None:
        self._listener(key, run, end)


class SimulatedContainer:
    """A program nobody knows anything about: it lives until it is told to go, or for `run_s`."""

    child: SimulatedTraining | None = None

    def set_speed(self, speed: float) -> None:
        """It does nothing that could be slow."""

    def __init__(self, behaviour: SimulatedBehaviour, run_s: float | None, ended: Ended) -> None:
        self._behaviour = behaviour
        self._ended = ended
        self._timer: asyncio.TimerHandle | None = None
        if run_s is not None:
            self._timer = asyncio.get_running_loop().call_later(run_s, ended, 0, "")

    def terminate(self) -> None:
        self.vanish()
        self._timer = asyncio.get_running_loop().call_later(self._behaviour.stop_s, self._ended, 128 + _TERM, "")

    def kill(self) -> None:
        self.vanish()
        self._ended(_KILLED, "")

    def vanish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class SimulatedLaunchedContainer:
    """The launcher's machine and its child. Carries out the machine's actions in order, one queue, as its shell does."""

    def __init__(
        self,
        launch: ContainerLaunch,
        behaviour: SimulatedBehaviour,
        agent: NodeAgentLink,
        clock: Callable[[], float],
        rng: random.Random,
        checkpoints: SimulatedCheckpoints,
        pid: int,
        ended: Ended,
    ) -> None:
        pod = launch.pod
        self._uid = pod.uid
        self._job: Job = (pod.namespace, pod.labels.get(LABEL_GANG, pod.name))
        self._behaviour = behaviour
        self._agent = agent
        self._clock = clock
        self._rng = rng
        self._checkpoints = checkpoints
        self._ended = ended
        self._machine = LaunchMachine(LauncherIdentity(pod.name, pod.uid, pid))
        self._queue: deque[actions.Action] = deque()
        self._working = False
        self._alive = True
        self._code = 0
        self._speed = 1.0
        self._child: SimulatedTraining | None = None
        self._to_agent: Deliver | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(behaviour.start_s, self._begin)

    @property
    def child(self) -> SimulatedTraining | None:
        return self._child if self._child is not None and self._child.is_alive else None

    def set_speed(self, speed: float) -> None:
        self._speed = speed
        if self._child is not None:
            self._child.speed = speed

    def terminate(self) -> None:
        self._input(self._machine.terminate(self._clock()))

    def kill(self) -> None:
        self._finish(_KILLED)

    def vanish(self) -> None:
        self._silence()
        if self._child is not None:
            self._child.vanish()

    def _finish(self, code: int) -> None:
        """The launcher ends, and what it started with it; the container lives as long as anything in it."""
        self._code = code
        self._silence()
        if self.child is not None:
            self.child.kill()
        else:
            self._ended(code, "")

    def _silence(self) -> None:
        self._alive = False
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._input(self._machine.begin(self._clock()))

    def _input(self, new: list[actions.Action]) -> None:
        self._queue.extend(new)
        if self._working:
            return
        self._working = True
        try:
            while self._queue and self._alive:
                self._do(self._queue.popleft())
        finally:
            self._working = False

    def _do(self, action: actions.Action) -> None:
        machine, now = self._machine, self._clock()
        if isinstance(action, actions.Send):
            if self._to_agent is not None:
                self._to_agent(decode_json_with_codec(protocol.encode_launch_message(action.message)))
        elif isinstance(action, actions.SetTimer):
            self._set_timer(action.at, now)
        elif isinstance(action, actions.Connect):
            self._connect(now)
        elif isinstance(action, actions.SpawnChild):
            self._spawn(action)
        elif isinstance(action, actions.SignalChild):
            if action.signal == _TERM and self._child is not None:
                self._child.terminate()
        elif isinstance(action, actions.KillChild):
            if self._child is not None:
                self._child.kill()
            self._input(machine.tree_gone(now))
        elif isinstance(action, actions.LookForManager):
            self._input(machine.manager_looked_for(now, is_there=True))
        elif isinstance(action, actions.ScanCheckpoints):
            self._input(machine.scanned(now, action, *self._checkpoints.look(self._job, action.rank)))
        elif isinstance(action, actions.WriteCheckpointRequest):
            if self._child is not None:
                self._child.save(action.step)
        elif isinstance(action, actions.Exit):
            self._finish(action.code)

    def _connect(self, now: float) -> None:
        try:
            self._to_agent = self._agent.connect(self._uid, self._deliver)
        except Refusal:  # the agent does not know the pod (yet): the machine tries again
            self._input(self._machine.disconnected(now))
        else:
            self._input(self._machine.connected(now))

    def _spawn(self, action: actions.SpawnChild) -> None:
        attempt = action.attempt

        def report(progress: protocol.Progress) -> None:
            self._input(self._machine.progress(self._clock(), progress))

        def ended(code: int, signal: int | None, message: str) -> None:
            self._child = None
            if not self._alive:
                self._ended(self._code, "")
                return
            self._input(self._machine.child_exited(self._clock(), attempt, code, signal, message))

        self._child = SimulatedTraining(
            self._behaviour, action.env, self._job, self._checkpoints, self._rng, report, ended
        )
        self._child.speed = self._speed
        self._input(self._machine.child_started(self._clock(), attempt, self._machine.identity.pid + 1))

    def _deliver(self, message: Mapping[str, Any]) -> None:
        # Later, never inside the agent's own call: a socket would not answer from within a write either.
        self._loop.call_soon(self._received, message)

    def _received(self, message: Mapping[str, Any]) -> None:
        if not self._alive:
            return
        known = protocol.decode_launch_message(encode(message))
        if known is not None:
            self._input(self._machine.received(self._clock(), known))

    def _set_timer(self, at: float | None, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if at is not None:
            self._timer = self._loop.call_later(max(0.0, at - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._input(self._machine.timer(self._clock()))

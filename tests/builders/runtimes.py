"""Runtimes for the nodes of a `Rig`: simulated pods, or real processes below a state directory."""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node import process_tree
from remuda.embedded.node.container_environment import CONTAINER_ID, base_process_environment
from remuda.embedded.node.devices.device_service import KubeletDeviceSettings
from remuda.embedded.node.process_runtime import ProcessRuntime
from remuda.embedded.node.runtime_port import PodRuntime
from remuda.embedded.node.simulated_runtime import SimulatedRuntime
from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints
from remuda.launch.zipapp import build_zipapp
from remuda.link.rank_logs import rank_log_path
from tests.builders.nodes import BookkeepingAgent, Rig, RuntimeOf


def simulated(
    clock: Callable[[], float],
    behaviour: SimulatedBehaviour = SimulatedBehaviour(),  # noqa: B008 - an immutable value
    checkpoints: SimulatedCheckpoints | None = None,
) -> RuntimeOf:
    """Pods that all behave like this. `checkpoints`: nodes that share a disk; each has its own unless told."""

    def runtime(name: str, agent: BookkeepingAgent) -> PodRuntime:
        return SimulatedRuntime(
            agent,
            clock=clock,
            rng=random.Random(1),
            checkpoints=checkpoints if checkpoints is not None else SimulatedCheckpoints(),
            behaviour=lambda pod: behaviour,
        )

    return runtime


def processes(state: Path, launcher: Path) -> RuntimeOf:
    def runtime(name: str, agent: BookkeepingAgent) -> PodRuntime:
        return ProcessRuntime(
            name,
            state=state,
            clock=time.time,
            base_env=base_process_environment(os.environ, str(Path(sys.executable).parent)),
            launcher=launcher,
            simulated=SimulatedRuntime(
                agent, clock=time.time, rng=random.Random(1), checkpoints=SimulatedCheckpoints()
            ),
        )

    return runtime


class ProcessMachine:
    """A state directory; each `boot` is a new life of the node on it, with the same API and agent books."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.launcher = build_zipapp(state / "launch.pyz")
        # Processes are found by their pod's uid, on a machine where other tests may run.
        self.rig = Rig(time.time, uid_prefix=uuid.uuid4().hex)

    def boot(self) -> Rig:
        runtime = processes(self.state, self.launcher)
        self.rig.add_node(runtime, directory=str(self.state / "alloc"), devices=self.device_settings())
        return self.rig

    def device_settings(self) -> KubeletDeviceSettings | None:
        return None

    def processes(self, uid: str) -> list[int]:
        return process_tree.processes_tagged(CONTAINER_ID, {f"{uid}/main"}).pids

    def log(self, pod: Pod) -> str:
        path = rank_log_path(self.state / "logs", pod, "main")
        return path.read_text() if path.exists() else ""

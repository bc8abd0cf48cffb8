"""Runtimes for the nodes of a `Rig`: simulated pods, or real processes below a state directory."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from remuda.embedded.node.container_environment import base_process_environment
from remuda.embedded.node.process_runtime import ProcessRuntime
from remuda.embedded.node.runtime_port import PodRuntime
from remuda.embedded.node.simulated_runtime import SimulatedRuntime
from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints
from tests.builders.nodes import BookkeepingAgent, RuntimeOf


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

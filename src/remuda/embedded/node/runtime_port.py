"""The port between a node and whatever runs its containers: real processes (`process_runtime`) or a model of them
(`simulated_runtime`).

A runtime belongs to one node. It never decides: the node says start, stop and kill; the runtime says when a container has
ended, exactly once per run, also for containers it found when it started (`adopt`). Until `forget` it keeps what it knows of
a pod, so that a node that dies between an exit and the status that tells of it finds the exit again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.embedded.node.container_record import ContainerExit
from remuda.link.allocation_port import Allocation

NO_LOCAL_COMMAND = "NoLocalCommand"


class ContainerKey(NamedTuple):
    uid: str
    container: str


class ContainerLaunch(msgspec.Struct, frozen=True):
    """Everything one run of a container is made of."""

    pod: Pod
    container: Container
    run: int
    address: str
    allocation: Allocation

    @property
    def key(self) -> ContainerKey:
        return ContainerKey(self.pod.uid, self.container.name)


class AdoptedContainer(msgspec.Struct, frozen=True):
    """The newest run of a container found on the machine; `exit` when it ended while nobody watched."""

    key: ContainerKey
    run: int
    address: str
    started_at: float
    exit: ContainerExit | None = None
    previous: ContainerExit | None = None  # of the run before, when it is still on record


class ContainerFault(StrEnum):
    """What a drill does to a running container."""

    KILL_PROCESS = "process-kill"
    HANG_PROCESS = "process-hang"
    RESUME_PROCESS = "process-resume"  # takes a hang back
    KILL_LAUNCHER = "launcher-kill"


ExitListener = Callable[[ContainerKey, int, ContainerExit], None]


class PodRuntime(Protocol):
    def on_exit(self, listener: ExitListener) -> None:
        """`listener(key, run, exit)`: one listener, set before anything else is asked."""
        ...

    def is_simulated(self, pod: Pod) -> bool:
        """The pod will have no process: its launcher talks to the agent in process."""
        ...

    def notice(self, pod: Pod) -> str:
        """A reason the user should see in the pod's status for how it runs here, or ""."""
        ...

    async def adopt(self) -> list[AdoptedContainer]:
        """What is there already, from an earlier life of this node. Asked once, before the first start."""
        ...

    async def start(self, launch: ContainerLaunch) -> float:
        """Start a run and return when that was. Does not wait for the program to get anywhere."""
        ...

    def stop(self, key: ContainerKey, grace_s: float) -> None:
        """Ask it to end (TERM). The node follows up with `kill` after the grace."""
        ...

    def kill(self, key: ContainerKey) -> None:
        """End it and everything it started, now."""
        ...

    def inject_fault(self, key: ContainerKey, fault: ContainerFault) -> None:
        """A drill. Raises Refusal when there is nothing to hit."""
        ...

    def set_speed(self, key: ContainerKey, speed: float) -> None:
        """Hold the user's process back to a fraction of its speed, for this run of the container; 1.0 lets it go."""
        ...

    def forget(self, uid: str) -> None:
        """The API knows the end of the pod: nothing of it is needed any more."""
        ...

    def power_off(self) -> None:
        """Drill node-lost: everything dies at once and nothing is reported ever again."""
        ...

    async def close(self) -> None:
        """Let go without touching what runs."""
        ...

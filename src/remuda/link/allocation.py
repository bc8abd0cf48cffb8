"""What an embedded node asks of the agent on it: the kubelet's Allocate, plus the channel of simulated launchers.

The node owns pods and processes; the agent owns devices, their signals, and the launchers' side of the barrier. They meet
here only, so that on a real cluster the kubelet takes the node's place and nothing in the agent changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from remuda.api.core_v1 import Pod

Message = Mapping[str, Any]
Deliver = Callable[[Message], None]


class Allocation(msgspec.Struct, frozen=True):
    """The devices a container gets and what must be in its environment. `directory` holds the launcher's socket."""

    devices: tuple[str, ...]
    directory: str
    env: dict[str, str]


class NodeAgent(Protocol):
    async def allocate(self, pod: Pod, devices: Sequence[str], *, simulated: bool = False) -> Allocation:
        """Hand `devices` to `pod`. Idempotent per pod uid (a restart of the node finds its allocation again).

        Raises Refusal UnknownDevice, DeviceHeld (naming the holder) or DeviceNotHealthy: the node rejects the pod.
        """
        ...

    def connect(self, uid: str, deliver: Deliver) -> Deliver:
        """The in-process stand-in of the socket for a simulated pod: give messages *to* the agent by calling the result."""
        ...

    def container_exited(self, uid: str, code: int) -> None:
        """The container of the pod ended, launcher and all."""
        ...

    async def release(self, uid: str) -> None:
        """The pod's processes are confirmed gone: its devices are free and its directory is removed."""
        ...

    def inject_fault(self, device: str, code: str) -> None:
        """Drill device-fail: make the fake backend report `code` (say "xid-79") for the device."""
        ...

    def fence(self) -> None:
        """The API has been out of reach for too long: stop every launcher's child before the manager hands on its rank, and
        start none until `unfence`."""
        ...

    def unfence(self) -> None:
        """The node's lease is good again."""
        ...

"""Containers whose pod was removed while the node was not there to see it: devices and processes must not outlive it.

An orphan's containers are killed; when the last is gone its devices, its address and what the runtime keeps of it are given
back (`bury`), in that order. Until then it is known here, so that the ends of its containers are nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from remuda.embedded.node.pod_addresses import PodAddresses
from remuda.embedded.node.runtime_port import AdoptedContainer, ContainerKey, PodRuntime
from remuda.link.allocation_port import NodeAgentLink


class OrphanedPods:
    """`spawn`: runs the burials, and ends them when the node's process ends."""

    def __init__(
        self,
        agent: NodeAgentLink,
        runtime: PodRuntime,
        addresses: PodAddresses,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._agent = agent
        self._runtime = runtime
        self._addresses = addresses
        self._spawn = spawn
        self._waiting: dict[str, set[str]] = {}  # uid -> containers still to die

    def __contains__(self, uid: str) -> bool:
        return uid in self._waiting

    def end(self, uid: str, found: Iterable[AdoptedContainer]) -> None:
        live = {a.key.container for a in found if a.exit is None}
        self._waiting[uid] = live
        for container in live:
            self._runtime.kill(ContainerKey(uid, container))
        if not live:
            self._spawn(self._bury(uid))

    def exited(self, key: ContainerKey) -> None:
        waiting = self._waiting[key.uid]
        waiting.discard(key.container)
        if not waiting:
            self._spawn(self._bury(key.uid))

    def resume(self) -> None:
        """Burials that were broken off with the node's process."""
        for uid in [uid for uid, waiting in self._waiting.items() if not waiting]:
            self._spawn(self._bury(uid))

    async def _bury(self, uid: str) -> None:
        await self._agent.release(uid)
        self._addresses.release(uid)
        self._runtime.forget(uid)
        self._waiting.pop(uid, None)

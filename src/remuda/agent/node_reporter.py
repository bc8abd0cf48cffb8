"""The agent's half of NodeDevices: its status, written as merge patches, one at a time.

Transitions come in bursts: a gang of eight on this node gets ready within milliseconds. Whoever has news marks the part that
changed; one write is under way at most, and everything marked meanwhile goes into the next one. So the API gets the newest
state, in order, in as few writes as its own speed allows. A write that fails is tried again with the news of then; it goes
through the status subresource, so the manager's half cannot be harmed. The object itself is the manager's to make; an agent that
has no manager apart from it (an embedded node's) makes it by itself. In an object that is not the one written to before,
everything is written anew.

`ReportRenderer` keeps nothing. Whenever a part is asked for, whoever knows it is asked, so what is reported is always the newest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import structlog

from remuda.agent.allocation.device_grants import AllocationGrants
from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.signal_intake import HardwareSignalIntake
from remuda.agent.inventory import Inventory
from remuda.agent.launchers.launcher_registry import LauncherRegistry
from remuda.agent.plugin.kubelet_holdings import KubeletHoldings
from remuda.agent.plugin.plugin_set import PluginSet
from remuda.api.codec import to_wire
from remuda.api.devices import Holding, NodeDevices
from remuda.api.errors import AlreadyExists, NotFound
from remuda.api.meta import JsonObject
from remuda.kube.client.request_pacing import Rate, RequestTokenBucket
from remuda.kube.cluster import Cluster

log = structlog.get_logger(__name__)

MODEL, BOOT, DEVICES, LINKS, LAUNCHERS, PLUGINS, HOLDINGS, SIGNALS, DOOR = PARTS = (
    "model",
    "boot",
    "devices",
    "links",
    "launchers",
    "plugins",
    "holdings",
    "signals",
    "door",
)

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 2.0
WRITES = Rate(per_s=5.0, burst=100)

Render = Callable[[str], Any]  # part -> its JSON-ready content


class NodeReporter:
    def __init__(self, cluster: Cluster, node: str, render: Render, *, makes_object: bool = True) -> None:
        self._cluster = cluster
        self._node = node
        self._render = render
        self._makes_object = makes_object
        self._uid = ""  # of the object that has what is `_written`
        self._dirty: set[str] = set()
        self._written: JsonObject = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        # A launcher that changes its state all the time costs the API no more than so much.
        self._pace = RequestTokenBucket(WRITES)
        self.writes = 0

    async def load(self) -> NodeDevices | None:
        """What an earlier agent left behind; waits for an API that does not answer yet. Where the object is ours to make, it is
        there before the node offers a device: nothing is placed on devices that an empty object has yet to name."""
        delay = RETRY_FIRST_S
        while True:
            try:
                found = await self._read()
                if found is None:
                    return None
                if found.is_observed_before:
                    # Whole and in one write: answers to orders are in it, and without its answer an order is begun again.
                    await self._patch(to_wire(found.observed))
            except Exception as error:
                log.warning("report.unreadable", node=self._node, error=str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
            else:
                empty: JsonObject = {part: "" if part in (MODEL, BOOT, DOOR) else [] for part in PARTS}
                self._written = {**empty, **to_wire(found.observed)}
                self._uid = found.uid
                return found

    async def _read(self) -> NodeDevices | None:
        try:
            return await self._cluster.get(NodeDevices, self._node)
        except NotFound:
            await self._make()
            return None

    async def _make(self) -> None:
        if self._makes_object:
            with contextlib.suppress(AlreadyExists):
                await self._cluster.create(NodeDevices, {"metadata": {"name": self._node}})

    def mark(self, *parts: str) -> None:
        """These parts have changed; they will be written."""
        self._dirty.update(parts)
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._drain(), name=f"report {self._node}")

    async def flush(self) -> None:
        """Returns once everything marked so far is written."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Write nothing any more. What was not written is told anew by the next agent."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        delay = RETRY_FIRST_S
        try:
            while self._dirty:
                await asyncio.sleep(0)  # the rest of this turn of the loop often has more news
                parts, self._dirty = self._dirty, set()
                body = {part: self._render(part) for part in sorted(parts)}
                body = {part: value for part, value in body.items() if value != self._written.get(part)}
                if not body:
                    continue
                if (pause_s := self._pace.reserve(asyncio.get_running_loop().time())) > 0:
                    self._pace.give_back()  # what is written after the pause is the newest of then
                    self._dirty |= parts
                    await asyncio.sleep(pause_s)
                    continue
                try:
                    await self._write(body)
                except Exception as error:  # whatever the transport raises: the news stays news
                    log.warning("report.retry", node=self._node, error=str(error))
                    self._dirty |= parts
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, RETRY_MAX_S)
                else:
                    delay = RETRY_FIRST_S
                    self._written.update(body)
        finally:
            self._task = None

    async def _write(self, body: JsonObject) -> None:
        self.writes += 1
        if not self._uid:
            await self._make()
        try:
            found = await self._patch(body)
        except NotFound:
            self._uid = ""
            self._forget_written()
            raise
        if self._uid and found.uid != self._uid:
            self._forget_written()
        self._uid = found.uid

    async def _patch(self, body: JsonObject) -> NodeDevices:
        return await self._cluster.patch(NodeDevices, self._node, {"status": body}, subresource="status")

    def _forget_written(self) -> None:
        self._written = {}
        self._dirty.update(PARTS)


class ReportRenderer:
    """`plugin_set`: None when others hand devices out. `found`: what the kubelet says of holders; None when the node says so."""

    def __init__(
        self,
        backend: DeviceBackend,
        inventory: Inventory,
        launchers: LauncherRegistry,
        grants: AllocationGrants,
        plugin_set: PluginSet | None,
        found: KubeletHoldings | None,
        signal_intake: HardwareSignalIntake,
    ) -> None:
        self._backend = backend
        self._inventory = inventory
        self._launchers = launchers
        self._grants = grants
        self._plugin_set = plugin_set
        self._found = found
        self._intake = signal_intake
        self.door = ""  # where peers ask for copies

    def render(self, part: str) -> Any:
        """JSON-ready, for `NodeReporter`."""
        match part:
            case "launchers":
                return [to_wire(report) for report in self._launchers.reports()]
            case "devices":
                return [to_wire(device) for device in self._inventory.rows.values()]
            case "links":
                return [to_wire(link) for link in self._backend.links()]
            case "plugins":
                return [to_wire(report) for report in (self._plugin_set.reports() if self._plugin_set else ())]
            case "holdings":
                return [to_wire(holding) for holding in self.holdings()]
            case "signals":
                return [to_wire(signal) for signal in self._intake.signals]
            case "door":
                return self.door
            case "boot":
                return self._backend.boot
        return self._backend.model

    def holdings(self) -> list[Holding]:
        foreign = self._found.foreign() if self._found else []
        named = {(h.uid, h.container, h.resource) for h in foreign}
        # What an agent before this one said of a pod, and podresources says again, is one holding.
        own = [h for h in self._grants.holdings() if (h.uid, h.container, h.resource) not in named]
        return [*own, *foreign]

    def held(self) -> list[Holding]:
        """The same, and what was handed out to a pod that has not said its name yet."""
        nobodys = [g for g in self._grants.table.grants.values() if g.devices and not g.uid]
        return [*self.holdings(), *(Holding("", "", g.resource, list(g.rows)) for g in nobodys)]

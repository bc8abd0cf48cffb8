"""The plugins a device manager is connected to: each one's list is heard into the ledger until it ends.

A plugin that breaks the contract is disconnected and named (`complaints`); the others never notice. Every call has a deadline.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from remuda.api.errors import Refusal
from remuda.embedded.node.devices.device_ledger import KubeletDeviceLedger
from remuda.embedded.node.devices.plugin_endpoint import device_manager_error_words, is_plugin_gone
from remuda.link.device_plugin_port import PluginDevice, PluginPort

log = structlog.get_logger(__name__)

T = TypeVar("T")
Gone = Callable[[], Awaitable[None]]

MAX_ID = 63  # documented for device ids; longer ones are served and named
# A kubelet takes any number, and of duplicates the last. No machine has so many devices and no device is two: such a list is a
# fault of the plugin, and what it means nobody can tell.
MAX_DEVICES = 4096
KEPT_COMPLAINTS = 64


class PluginDeadlines(msgspec.Struct, frozen=True):
    """Seconds. The kubelet has the first and the last and waits for ever in between."""

    dial_s: float = 10.0
    call_s: float = 10.0
    pre_start_s: float = 30.0


class PluginComplaint(msgspec.Struct, frozen=True):
    """What a plugin did wrong."""

    time: float
    resource: str
    endpoint: str
    reason: str
    message: str


class PluginConnections:
    """`save` puts the ledger on disk; `counts_changed` and `health_changed(uids)` are told."""

    def __init__(
        self,
        node: str,
        ledger: KubeletDeviceLedger,
        *,
        clock: Callable[[], float],
        deadlines: PluginDeadlines,
        save: Callable[[], None],
        counts_changed: Callable[[], None],
        health_changed: Callable[[frozenset[str]], None],
    ) -> None:
        self.complaints: deque[PluginComplaint] = deque(maxlen=KEPT_COMPLAINTS)
        self._node = node
        self._ledger = ledger
        self._clock = clock
        self._deadlines = deadlines
        self._save = save
        self._counts_changed = counts_changed
        self._health_changed = health_changed
        self._ports: dict[tuple[str, str], PluginPort] = {}
        self._watches: dict[asyncio.Task[None], None] = {}  # in order: a simulated run must repeat exactly
        self._listed: dict[str, asyncio.Event] = {}

    async def connect(self, resource: str, key: str, port: PluginPort, gone: Gone) -> None:
        """A plugin has registered. Raises Refusal. `gone` is awaited when it has ended, or we let it go."""
        try:
            options = await within_device_manager_deadline(self._deadlines.call_s, port.options())
        except Exception as error:
            raise Refusal(
                "PluginFailed", f"failed to get device plugin options: {device_manager_error_words(error)}"
            ) from error
        self._ledger.connect(resource, key, options)
        self._ports[resource, key] = port
        task = asyncio.get_running_loop().create_task(self._watch(resource, key, port, gone))
        self._watches[task] = None
        task.add_done_callback(self._watches.pop)

    def port(self, resource: str, key: str) -> PluginPort | None:
        """None: it has ended."""
        return self._ports.get((resource, key))

    async def listed(self, resource: str) -> None:
        """Returns when a plugin has said what it has of the resource in this life of the node."""
        await self._listed.setdefault(resource, asyncio.Event()).wait()

    async def close(self) -> None:
        watches = list(self._watches)
        self.silence()
        await asyncio.gather(*watches, return_exceptions=True)

    def silence(self) -> None:
        """Nothing is heard or asked from here on."""
        for task in self._watches:
            task.cancel()

    async def _watch(self, resource: str, key: str, port: PluginPort, gone: Gone) -> None:
        try:
            why = await self._hear(resource, key, port)
            self._ledger.disconnect(resource, key, self._clock())
            log.warning("devices.plugin_gone", node=self._node, resource=resource, endpoint=key, why=why)
            self._counts_changed()
        finally:
            self._ports.pop((resource, key), None)
            await gone()

    async def _hear(self, resource: str, key: str, port: PluginPort) -> str:
        """Until the list ends; returns why."""
        stream = port.list_and_watch()
        try:
            async for devices in stream:
                self._receive(resource, key, devices)
        except Refusal as refusal:
            self._complain(resource, key, refusal.reason, refusal.message)
            return refusal.message
        except Exception as error:
            why = device_manager_error_words(error)
            if not is_plugin_gone(error):
                self._complain(resource, key, "ListAndWatchFailed", f"ListAndWatch ended unexpectedly: {why}")
            return why
        finally:
            if isinstance(
                stream, AsyncGenerator
            ):  # the port promises an iterator; the ones that hold something are this
                await stream.aclose()
        return "the plugin ended its list"

    def _receive(self, resource: str, key: str, devices: Sequence[PluginDevice]) -> None:
        self._check(resource, key, [d.id for d in devices])
        before = self._ledger.counts()
        affected = self._ledger.receive(resource, devices)
        try:
            self._save()
        except OSError as error:  # as the kubelet: told, and gone on
            log.error("devices.checkpoint_not_written", node=self._node, error=str(error))
        self._listed.setdefault(resource, asyncio.Event()).set()
        if self._ledger.counts() != before:
            self._counts_changed()
        if affected:
            self._health_changed(affected)

    def _check(self, resource: str, key: str, ids: list[str]) -> None:
        """Raises Refusal for a list that cannot be used at all; the rest is used as far as it goes, and named."""
        if "" in ids:
            raise Refusal("InvalidDeviceList", f"{resource}: the plugin lists a device without an id")
        if len(ids) > MAX_DEVICES:
            raise Refusal(
                "TooManyDevices", f"{resource}: the plugin lists {len(ids)} devices; {MAX_DEVICES} are taken."
            )
        if len(set(ids)) < len(ids):
            seen: set[str] = set()
            twice = next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise Refusal("DuplicateDevices", f"{resource}: the list names {twice:.63} more than once.")
        long = next((i for i in ids if len(i) > MAX_ID), None)
        if long is not None:
            self._complain(resource, key, "DeviceIdTooLong", f"{long[:MAX_ID]}... is over {MAX_ID} characters.")

    def _complain(self, resource: str, key: str, reason: str, message: str) -> None:
        self.complaints.append(PluginComplaint(self._clock(), resource, key, reason, message))
        log.warning(
            "devices.complaint", node=self._node, resource=resource, endpoint=key, reason=reason, message=message
        )


async def within_device_manager_deadline(seconds: float, call: Awaitable[T]) -> T:
    async with asyncio.timeout(seconds):
        return await call

"""Quarantine where devices are given by claims: a DeviceTaintRule for every device that an order keeps out of use.

One key per node. The orders in NodeDevices are the record, whoever gave them (an incident, an operator, the rule for flapping),
and the rules follow: made while an order is there, removed when it is lifted, and with the node. What stands from an earlier
life is read from the rules themselves. Nothing waits for a rule: a cluster that does not serve them, or does not let us, has
its orders all the same, and no ladder is held up.
"""

from __future__ import annotations

import msgspec
import structlog

from remuda.api.devices import NodeDevices
from remuda.api.errors import ApiError, Refusal
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.taint_rules import TaintRules
from remuda.core.remedies.taint_rules import NO_SCHEDULE, RulePlan, TaintedDevice, plan_rules, taint_value
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

EVERY = ""  # the key that looks over what an earlier life has left
REFUSED_S = 600.0  # between two tries of what the API does not let us do


class Seen(msgspec.Struct, frozen=True):
    node: str
    devices: NodeDevices | None


class Rules(msgspec.Struct, frozen=True):
    node: str
    plan: RulePlan


class TaintController:
    """A `Reconciler` keyed by node name."""

    def __init__(
        self, view: ClusterView, queue: WorkQueue[str], rules: TaintRules, *, events: EventSink = SILENCE
    ) -> None:
        self._view = view
        self._queue = queue
        self._rules = rules
        self._events = events
        self._standing: dict[TaintedDevice, str] | None = None  # what each rule of ours says; None = not read yet
        view.devices.subscribe(self._on_devices)

    def begin(self) -> None:
        """Called when the informers are synced."""
        self._queue.add(EVERY)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        devices = new or old
        assert devices is not None
        if (old.quarantine if old is not None else {}) != (new.quarantine if new is not None else {}):
            self._queue.add(devices.name)

    async def observe(self, key: str) -> Seen | None:
        if self._standing is None and not await self._read():
            return None
        return Seen(key, self._view.devices.get(key)) if key != EVERY else None

    async def _read(self) -> bool:
        """What stands. False when there are no rules here, or we may not see them: asked again with the next order."""
        try:
            if not await self._rules.version():
                return False
            self._standing = await self._rules.ours()
        except ApiError as error:
            if error.code not in (401, 403):
                raise
            log.warning("quarantine.taint_rules", error=str(error))
            return False
        ordered = {devices.name for devices in self._view.devices.items() if devices.quarantine}
        for node in sorted(ordered | {device.node for device in self._standing}):
            self._queue.add(node)
        return True

    def plan(self, observed: Seen | None, now: float) -> Rules | None:
        if observed is None:
            return None
        return Rules(observed.node, plan_rules(observed.node, observed.devices, self._standing or {}))

    async def apply(self, planned: Rules | None) -> float | None:
        if planned is None or self._standing is None:
            return None
        is_refused = False
        for device, reason in planned.plan.make.items():
            if await self._do(device, reason):
                self._standing[device] = taint_value(reason)
            else:
                is_refused = True
        for device in planned.plan.remove:
            if await self._do(device, ""):
                self._standing.pop(device, None)
            else:
                is_refused = True
        return REFUSED_S if is_refused else None

    async def _do(self, device: TaintedDevice, reason: str) -> bool:
        """Makes the rule, or without a reason removes it. False when that is not ours to do."""
        try:
            if reason:
                await self._rules.make(device, reason, NO_SCHEDULE)
            else:
                await self._rules.remove(device)
        except (ApiError, Refusal) as error:
            if isinstance(error, ApiError) and (error.code >= 500 or error.code in (409, 429)):
                raise
            log.warning("quarantine.taint_rule", node=device.node, device=device.device, error=str(error))
            return False
        node = self._view.nodes.get(device.node)
        if node is not None:
            is_kept = "is kept from claims by a DeviceTaintRule" if reason else "may be claimed again"
            self._events.normal(node, "DeviceTainted" if reason else "DeviceUntainted", f"{device.device} {is_kept}.")
        return True

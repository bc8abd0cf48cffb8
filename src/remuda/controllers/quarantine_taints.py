"""Quarantine where devices are given by claims: a DeviceTaintRule for every device that an order keeps out of use.

One key per node. The orders in NodeDevices are the record, whoever gave them (an incident, an operator, the rule for flapping),
and the rules follow: made while an order is there, removed when it is lifted, and with the node. What stands from an earlier
life is read from the rules themselves. Nothing waits for a rule: a cluster that does not serve them, or does not let us, has
its orders all the same, and no ladder is held up.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import structlog

from remuda.api.devices import NodeDevices
from remuda.api.errors import AlreadyExists, ApiError, NotFound, Refusal
from remuda.api.meta import KObject, Resource
from remuda.controllers.cluster_view import ClusterView
from remuda.core.remedies.taint_rules import (
    GROUP,
    KIND,
    NO_SCHEDULE,
    OURS,
    PLURAL,
    VERSIONS,
    TaintedDevice,
    TaintRulePlan,
    plan_taint_rules,
    taint_rule_body,
    taint_rule_name,
    taint_value,
)
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

EVERY = ""  # the key that looks over what an earlier life has left
REFUSED_S = 600.0  # between two tries of what the API does not let us do


class TaintNodeView(msgspec.Struct, frozen=True):
    node: str
    devices: NodeDevices | None


class NodeTaintPlan(msgspec.Struct, frozen=True):
    node: str
    plan: TaintRulePlan


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

    async def observe(self, key: str) -> TaintNodeView | None:
        if self._standing is None and not await self._read_rules():
            return None
        return TaintNodeView(key, self._view.devices.get(key)) if key != EVERY else None

    async def _read_rules(self) -> bool:
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

    def plan(self, observed: TaintNodeView | None, now: float) -> NodeTaintPlan | None:
        if observed is None:
            return None
        return NodeTaintPlan(observed.node, plan_taint_rules(observed.node, observed.devices, self._standing or {}))

    async def apply(self, planned: NodeTaintPlan | None) -> float | None:
        if planned is None or self._standing is None:
            return None
        is_refused = False
        for device, reason in planned.plan.make.items():
            if await self._write_rule(device, reason):
                self._standing[device] = taint_value(reason)
            else:
                is_refused = True
        for device in planned.plan.remove:
            if await self._write_rule(device, ""):
                self._standing.pop(device, None)
            else:
                is_refused = True
        return REFUSED_S if is_refused else None

    async def _write_rule(self, device: TaintedDevice, reason: str) -> bool:
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


# --- the rules --------------------------------------------------------------------------------------------------------


class TaintRule(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """DeviceTaintRule, as far as it is looked at."""

    resource: ClassVar[Resource] = Resource(GROUP, VERSIONS[0], KIND, PLURAL, namespaced=False)
    spec: dict[str, Any] = {}


_KINDS: dict[str, type[TaintRule]] = {
    version: type(
        KIND,
        (TaintRule,),
        {"resource": Resource(GROUP, version, KIND, PLURAL, namespaced=False), "__annotations__": {}},
        frozen=True,
        kw_only=True,
    )
    for version in VERSIONS
}


class TaintRules:
    """Makes, changes and removes the rule of one device, where the API serves the kind.

    Which version is served is found out once by asking for each. A cluster that serves none has no claims to keep away, and says
    so (Refusal TaintRulesNotServed). The port in process takes any kind, so this is for clusters over HTTP: the embedded one
    has no claims."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version: str | None = None  # "" = none is served

    async def version(self) -> str:
        """The newest served; "" when none is."""
        if self._version is None:
            self._version = await self._find_version()
        return self._version

    async def _find_version(self) -> str:
        for version, kind in _KINDS.items():
            try:
                await self._cluster.list(kind)
            except NotFound:
                continue
            return version
        return ""

    async def ours(self) -> dict[TaintedDevice, str]:
        """The rules that carry our label, and what each says."""
        found = (await self._cluster.list(_KINDS[await self._served_version()])).items
        return {
            device: _value_of_taint_rule(rule) for rule in found if (device := _device_of_taint_rule(rule)) is not None
        }

    async def make(self, device: TaintedDevice, reason: str, effect: str) -> None:
        """The rule stands and says this. Refusal TaintRulesNotServed, NotOurs."""
        version = await self._served_version()
        kind, body = _KINDS[version], taint_rule_body(device, reason, effect, version)
        name = taint_rule_name(device)
        try:
            await self._cluster.create(kind, body)
        except AlreadyExists:
            found = await self._cluster.get(kind, name)
            if found.labels.get(OURS) != "remuda":
                raise Refusal("NotOurs", f"The {KIND} {name} was not made by Remuda.", "Remove or rename it.") from None
            if found.spec != {**found.spec, **body["spec"]}:
                when = Preconditions(found.uid, found.metadata.resource_version)
                await self._cluster.patch(kind, name, {"spec": body["spec"]}, when=when)

    async def remove(self, device: TaintedDevice) -> bool:
        """No rule of ours stands. Whether there was one."""
        version = await self._served_version()
        kind, name = _KINDS[version], taint_rule_name(device)
        try:
            found = await self._cluster.get(kind, name)
            if found.labels.get(OURS) != "remuda":
                return False
            await self._cluster.delete(kind, name, when=Preconditions(uid=found.uid))
        except NotFound:
            return False
        return True

    async def _served_version(self) -> str:
        version = await self.version()
        if not version:
            raise Refusal(
                "TaintRulesNotServed",
                f"This cluster does not serve {PLURAL}.{GROUP}.",
                "Devices from a device plugin need no rule. For ResourceClaims turn this API on.",
            )
        return version


def _device_of_taint_rule(rule: TaintRule) -> TaintedDevice | None:
    """Whose rule it is; None when it is not ours, or not as we write them."""
    selector = rule.spec.get("deviceSelector")
    if rule.labels.get(OURS) != "remuda" or not isinstance(selector, dict):
        return None
    pool, device, driver = (str(selector.get(part) or "") for part in ("pool", "device", "driver"))
    found = TaintedDevice(pool, device, driver)
    return found if taint_rule_name(found) == rule.name else None


def _value_of_taint_rule(rule: TaintRule) -> str:
    taint = rule.spec.get("taint")
    return str(taint.get("value") or "") if isinstance(taint, dict) else ""

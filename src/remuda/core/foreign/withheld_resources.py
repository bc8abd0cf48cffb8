"""A node that refuses pod after pod of one resource (a black hole): the resource is withheld there until it works again. Pure.

Such a node is always free, so everything is sent there. Refusals are noted in `NodeDevices.rejections` one by one, which outlives
the pods and restarts. After MOST_REFUSALS within WINDOW_S, `NodeDevices.withheld` takes the resource out of placement with
the refused pods as evidence. Those of before the resource's plugin was last started count no more, and none count while it is
away: that passes by itself.

It never comes back by itself. An operator releases it (`remuda release NODE --resource X`), or a probe passes: the agent
is asked to test every Healthy device of the resource, the resource's plugin is registered and the node offers it. The first
probe is ordered FIRST_PROBE_S after the resource was withheld, and the time between two doubles, to a day at most.
The number of the try is part of the order's id: a restart asks for nothing twice, and an answer to an older try lifts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from remuda.api.codec import to_wire
from remuda.api.devices import DeviceOrder, DeviceState, NodeDevices, PluginReport, QuarantineOrder, Rejection
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.api.meta import JsonObject, to_seconds, to_time
from remuda.core.foreign.refused_pods import OUT_OF, is_foreign_pod_refusal_recorded, pod_refused_at
from remuda.core.state.pod_requests import is_extended_resource, requests_of_pod

BLACK_HOLE = "BlackHole"
WITHHELD_BY = "remuda/rejections"
MOST_REFUSALS = 5
WINDOW_S = 600.0
FIRST_PROBE_S = 600.0
LONGEST_S = 86_400.0
PROBE_LIMIT_S = 120.0
_ENDED = ("Succeeded", "Failed", "TimedOut", "Refused")


class WithheldResourcesPlan(msgspec.Struct, frozen=True):
    """`notes`: what NodeDevices.rejections should hold, by resource. `orders`: None takes one away. `lift`: resource -> why."""

    notes: dict[str, list[Rejection]] = {}
    withhold: dict[str, QuarantineOrder] = {}
    orders: dict[str, DeviceOrder | None] = {}
    lift: dict[str, str] = {}
    look_again_s: float | None = None

    def patch(self) -> JsonObject:
        """Of the node's NodeDevices; {} when nothing changes."""
        lifted = dict.fromkeys(self.lift)
        parts: JsonObject = {
            "rejections": {name: [to_wire(entry) for entry in found] for name, found in self.notes.items()} | lifted,
            "withheld": {name: to_wire(order) for name, order in self.withhold.items()} | lifted,
            "orders": {id: order and to_wire(order) for id, order in self.orders.items()},
        }
        return {field: part for field, part in parts.items() if part}


def plan_withheld_resources(
    node: NodeDevices, refused: Iterable[Pod], offers: Node | None, now: float
) -> WithheldResourcesPlan:
    """`refused`: pods that the node refused, also those that are gone by now and were not noted."""
    notes = note_refused_foreign_pods(node, refused, now)
    orders: dict[str, DeviceOrder | None] = {}
    lift: dict[str, str] = {}
    waits: list[float] = []
    outcome = {a.id: a.outcome for a in node.observed.answers}
    standing: set[str] = set()
    for resource, order in sorted(node.withheld.items()):
        if order.by != WITHHELD_BY:
            continue  # what an operator withheld, only an operator gives back
        since = to_seconds(order.since) if order.since is not None else now
        number, next_at = _withheld_resource_probe_due(since, now)
        waits.append(next_at - now + 0.001)
        devices = _healthy_withheld_devices(node, resource) if number else []
        start = f"withheld-{resource.replace('/', '.')}-{int(since) if order.since else 0:x}-{number}"
        asked = {f"{start}-{device}".lower(): device for device in devices}
        standing |= asked.keys()
        if asked and all(outcome.get(id) == "Succeeded" for id in asked):
            if _is_withheld_resource_offered(node, offers, resource):
                named = ", ".join(asked.values())
                lift[resource] = f"A probe of {named} passed and the plugin of {resource} serves it."
            continue
        for id, device in asked.items():
            if id not in node.orders and outcome.get(id) not in _ENDED:
                since_, deadline = to_time(now), to_time(now + PROBE_LIMIT_S)
                orders[id] = DeviceOrder("probe", device, by=WITHHELD_BY, since=since_, deadline=deadline)
    for id, given in node.orders.items():
        if given.by == WITHHELD_BY and (id not in standing or outcome.get(id) in _ENDED):
            orders[id] = None
    return WithheldResourcesPlan(notes, resources_to_withhold(node, notes, now), orders, lift, min(waits, default=None))


def note_refused_foreign_pods(node: NodeDevices, refused: Iterable[Pod], now: float) -> dict[str, list[Rejection]]:
    """For the resources that change. Each pod is noted once: one that is recorded was noted before."""
    known = {entry.uid for entries in node.rejections.values() for entry in entries}
    found: dict[str, list[Rejection]] = {}
    for pod in sorted(refused, key=lambda p: (pod_refused_at(p), p.name)):
        resource = resource_of_refused_pod(pod)
        if resource and pod.uid not in known and not is_foreign_pod_refusal_recorded(pod):
            at = to_time(min(pod_refused_at(pod), now))
            entry = Rejection(f"{pod.namespace}/{pod.name}", pod.uid, pod.status.message[:256], at)
            before = found.get(resource, node.rejections.get(resource, []))
            found[resource] = [*before, entry][-MOST_REFUSALS:]
    return found


def resource_of_refused_pod(pod: Pod) -> str:
    """The extended resource it was refused for; "" when it was none, or nobody can tell."""
    reason = pod.status.reason
    if reason.startswith(OUT_OF):
        resource = reason.removeprefix(OUT_OF)
        return resource if is_extended_resource(resource) else ""
    if reason != "UnexpectedAdmissionError":
        return ""
    asked = sorted((r for r in requests_of_pod(pod) if is_extended_resource(r)), key=len, reverse=True)
    named = [r for r in asked if r in pod.status.message]
    return named[0] if named else asked[0] if len(asked) == 1 else ""


def resources_to_withhold(
    node: NodeDevices, notes: Mapping[str, list[Rejection]], now: float
) -> dict[str, QuarantineOrder]:
    """Those refused too often that are not withheld yet."""
    found: dict[str, QuarantineOrder] = {}
    for resource, entries in {**node.rejections, **notes}.items():
        plugin = _plugin_of_resource(node, resource)
        if resource in node.withheld or (plugin is not None and plugin.state != "Registered"):
            continue
        since = max(now - WINDOW_S, to_seconds(plugin.started_at) if plugin and plugin.started_at else 0.0)
        counted = [e for e in entries if e.time is None or to_seconds(e.time) >= since]
        if len(counted) >= MOST_REFUSALS:
            pods = ", ".join(e.pod for e in counted)
            what = f"{len(counted)} pods that asked for {resource} were refused here within {WINDOW_S / 60:g} min"
            words = f"{what}: {pods}. Last: {counted[-1].message}"[:1024]
            found[resource] = QuarantineOrder(reason=BLACK_HOLE, message=words, by=WITHHELD_BY, since=to_time(now))
    return found


def _withheld_resource_probe_due(since: float, now: float) -> tuple[int, float]:
    """The number of the try that is due (0: none yet) and when the next one is."""
    number, next_at = 0, since + FIRST_PROBE_S
    while next_at <= now:
        number, next_at = number + 1, next_at + min(LONGEST_S, next_at - since)
    return number, next_at


def _healthy_withheld_devices(node: NodeDevices, resource: str) -> list[str]:
    good = {v.device for v in node.verdicts if v.state is DeviceState.HEALTHY} - set(node.quarantine)
    return [d.id for d in node.observed.devices if d.resource == resource and d.id in good]


def _plugin_of_resource(node: NodeDevices, resource: str) -> PluginReport | None:
    return next((p for p in node.observed.plugins if p.resource == resource), None)


def _is_withheld_resource_offered(node: NodeDevices, offers: Node | None, resource: str) -> bool:
    plugin = _plugin_of_resource(node, resource)
    is_served = plugin is None or plugin.state == "Registered"
    return is_served and offers is not None and parse_whole_quantity(offers.status.allocatable.get(resource, 0)) > 0


def release_withheld_resource(node: NodeDevices, resource: str) -> JsonObject:
    """The patch by which an operator gives a resource back, with the evidence against it."""
    if resource not in node.withheld:
        held = ", ".join(sorted(node.withheld)) or "nothing"
        message = f"{resource} is not withheld on {node.name}."
        raise Refusal("NotWithheld", message, f"Withheld there: {held}.", "resource")
    return {"withheld": {resource: None}, "rejections": {resource: None}}

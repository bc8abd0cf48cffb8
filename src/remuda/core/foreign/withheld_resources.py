"""A resource withheld on a node (a black hole): how it comes back. Pure.

Never by itself. An operator takes it back (`remuda release NODE --resource X`), or a probe passes: the agent is asked to test
every Healthy device of the resource, the resource's plugin is registered and the node offers it. The first probe is ordered
FIRST_PROBE_S after the resource was withheld, and after each that fails the time since doubles, to a day at most.

The number of the try follows from the clock and the order's `since`, and is part of the order's id: a restart asks for nothing
twice, and an answer to an older try lifts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, log2

import msgspec

from remuda.api.devices import DeviceOrder, DeviceState, NodeDevices, QuarantineOrder
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import JsonObject, to_seconds, to_time
from remuda.api.quantity import whole
from remuda.core.foreign.rejections import BY

FIRST_PROBE_S = 600.0
LONGEST_S = 86_400.0
PROBE_LIMIT_S = 120.0
_ENDED = ("Succeeded", "Failed", "TimedOut", "Refused")


class WithheldPlan(msgspec.Struct, frozen=True):
    """Orders to add (None: to take away), and resources to give back, each with why."""

    orders: dict[str, DeviceOrder | None] = {}
    lift: dict[str, str] = {}
    look_again_s: float | None = None


def plan_withheld(node: NodeDevices, offers: Node | None, now: float) -> WithheldPlan:
    """What an operator withheld, only an operator gives back."""
    orders: dict[str, DeviceOrder | None] = {}
    lift: dict[str, str] = {}
    waits: list[float] = []
    mine = {resource: order for resource, order in node.withheld.items() if order.by == BY}
    outcome = {a.id: a.outcome for a in node.observed.answers}
    standing: set[str] = set()
    for resource, order in sorted(mine.items()):
        since = to_seconds(order.since) if order.since is not None else now
        number, next_at = _try(since, now)
        waits.append(next_at - now + 0.001)
        if number < 0:
            continue
        asked = {_id(order, resource, number, device): device for device in _healthy(node, resource)}
        standing |= asked.keys()
        answered = [outcome.get(id, "") for id in asked]
        if asked and all(word == "Succeeded" for word in answered):
            if _is_offered(node, offers, resource):
                lift[resource] = (
                    f"A probe of {', '.join(asked.values())} passed and the plugin of {resource} serves it."
                )
            continue
        for id, device in asked.items():
            if id not in node.orders and outcome.get(id, "") not in _ENDED:
                orders[id] = DeviceOrder(
                    "probe", device, by=BY, since=to_time(now), deadline=to_time(now + PROBE_LIMIT_S)
                )
    for id, given in node.orders.items():
        if given.by == BY and (id not in standing or outcome.get(id) in _ENDED):
            orders[id] = None
    return WithheldPlan(orders, lift, min(waits, default=None))


def _try(since: float, now: float) -> tuple[int, float]:
    """The number of the try that is due (-1: none yet) and when the next one is. Tries are at 1, 2, 4 ... times FIRST_PROBE_S."""
    passed = (now - since) / FIRST_PROBE_S
    if passed < 1:
        return -1, since + FIRST_PROBE_S
    most = floor(log2(LONGEST_S / FIRST_PROBE_S))
    number = min(floor(log2(passed)), most)
    if number == most:
        number += floor((now - since - FIRST_PROBE_S * 2.0**most) / LONGEST_S)
        return number, since + FIRST_PROBE_S * 2.0**most + (number - most + 1) * LONGEST_S
    return number, since + FIRST_PROBE_S * 2.0 ** (number + 1)


def _id(order: QuarantineOrder, resource: str, number: int, device: str) -> str:
    since = int(to_seconds(order.since)) if order.since is not None else 0
    return f"withheld-{resource.replace('/', '.')}-{since:x}-{number}-{device}".lower()


def _healthy(node: NodeDevices, resource: str) -> Iterable[str]:
    good = {v.device for v in node.verdicts if v.state is DeviceState.HEALTHY} - set(node.quarantine)
    return [d.id for d in node.observed.devices if d.resource == resource and d.id in good]


def _is_offered(node: NodeDevices, offers: Node | None, resource: str) -> bool:
    plugin = next((p for p in node.observed.plugins if p.resource == resource), None)
    if plugin is not None and plugin.state != "Registered":
        return False
    return offers is not None and whole(offers.status.allocatable.get(resource, 0)) > 0


def release(node: NodeDevices, resource: str) -> JsonObject:
    """The patch by which an operator gives a resource back, with the evidence against it."""
    if resource not in node.withheld:
        held = ", ".join(sorted(node.withheld)) or "nothing"
        raise Refusal(
            "NotWithheld", f"{resource} is not withheld on {node.name}.", f"Withheld there: {held}.", "resource"
        )
    return {"withheld": {resource: None}, "rejections": {resource: None}}

"""What is wrong with a node as a whole, told apart from what is wrong with a device.

A lost plugin and n failed devices look alike in Kubernetes: allocatable falls. Here the ledger says which it is: while its
devices are healthy and the node offers none of them, it is the chain in between that broke, and the notice names who still
holds devices (they run on). Every such notice is *held down* first: a kubelet or plugin that restarts takes its counts to
nothing and back, and nothing must be made of that. Placement does not wait for the hold-down: what is not allocatable is not
given away meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remuda.api.core_v1 import Node, Pod
from remuda.api.devices import DeviceState, NodeDevices, Notice
from remuda.api.meta import to_seconds, to_time
from remuda.api.quantity import whole
from remuda.core.failure.ledger import holders
from remuda.core.failure.timers import Timers

PLUGIN_LOST = "PluginLost"
LOST = "Lost"  # PluginReport.state


def judge_notices(
    devices: NodeDevices, node: Node | None, pods: Iterable[Pod], now: float, timers: Timers
) -> list[Notice]:
    """The notices the node should carry; equal to `devices.notices` means no write."""
    old = {(n.reason, n.resource): n for n in devices.notices}
    found = [*_lost_plugins(devices, node, list(pods)), *_node_signals(devices)]
    return [_dated(notice, old.get((notice.reason, notice.resource)), now, timers) for notice in found]


def holds_until(devices: NodeDevices, now: float) -> float | None:
    """When to look again because a hold-down ends."""
    ends = (to_seconds(n.holding_until) for n in devices.notices if n.holding_until is not None)
    return min((end for end in ends if end > now), default=None)


def is_held_down(notice: Notice, now: float) -> bool:
    return notice.holding_until is not None and now < to_seconds(notice.holding_until)


def _lost_plugins(devices: NodeDevices, node: Node | None, pods: list[Pod]) -> list[Notice]:
    rows = [d for d in devices.observed.devices if d.resource]
    usable = {v.device for v in devices.verdicts if v.state in (DeviceState.HEALTHY, DeviceState.DEGRADED)}
    said = {p.resource: p for p in devices.observed.plugins if p.state == LOST}
    held = holders(pods)
    notices: list[Notice] = []
    for resource in sorted({d.resource for d in rows}):
        mine = [d.id for d in rows if d.resource == resource]
        if resource not in said and not (_offers_none(node, resource) and usable.intersection(mine)):
            continue
        users = {f"{p.namespace}/{p.name}": None for d in mine for p in held.get((devices.name, d), [])}
        count = sum(bool(held.get((devices.name, d))) for d in mine)
        who = f"{count} held by {', '.join(users)}" if users else "none held"
        why = said[resource].message if resource in said else ""
        notices.append(
            Notice(
                reason=PLUGIN_LOST,
                message=f"The plugin for {resource} is lost; none of its {len(mine)} devices failed, {who}."
                + (f" {why}" if why else ""),
                resource=resource,
                since=said[resource].since if resource in said else None,
            )
        )
    return notices


def _offers_none(node: Node | None, resource: str) -> bool:
    """The node has published the resource once and offers nothing of it now."""
    if node is None:
        return False
    return resource in node.status.allocatable and _count(node.status.allocatable, resource) == 0


def _count(quantities: Mapping[str, str | int], resource: str) -> int:
    return whole(quantities.get(resource, 0))


def _node_signals(devices: NodeDevices) -> list[Notice]:
    """Signals of the node as a whole, newest of each code."""
    newest = {s.code: s for s in devices.observed.signals}
    return [
        Notice(reason="".join(part.capitalize() for part in code.split("-")), message=s.message, since=s.time)
        for code, s in sorted(newest.items())
    ]


def _dated(notice: Notice, before: Notice | None, now: float, timers: Timers) -> Notice:
    since = before.since if before is not None else (notice.since or to_time(now))
    until = None
    if notice.reason == PLUGIN_LOST and since is not None:
        until = to_time(to_seconds(since) + timers.hold_down_s)
    return Notice(notice.reason, notice.message, notice.resource, since, until)

"""What is wrong with a node as a whole, told apart from what is wrong with a device.

A lost plugin and n failed devices look alike in Kubernetes: allocatable falls. Here the ledger says which it is: while its
devices are healthy and the node offers none of them, it is the chain in between that broke, and the notice names who still
holds devices (they run on). Every such notice is *held down* first: a kubelet or plugin that restarts takes its counts to
nothing and back, and nothing must be made of that. Placement does not wait for the hold-down: what is not allocatable is not
given away meanwhile.

A plugin of somebody else's may also drop a device from its list: capacity falls together with allocatable, and the kubelet goes
on calling the device Healthy to its holder. What the node offers is therefore held against what the ledger (or, without rows of
ours, the pods' own statuses) says there is: DevicesNotListed, with the holders it may concern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from remuda.api.devices import DeviceState, NodeDevices, Notice
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.api.meta import to_seconds, to_time
from remuda.core.health.device_holders import HoldersByDevice, device_holders_on
from remuda.core.health.ledger import AGENT_SILENT, LONGEST_MESSAGE
from remuda.core.health.timers import HealthTimers

PLUGIN_LOST, NOT_LISTED = "PluginLost", "DevicesNotListed"
LOST = "Lost"  # PluginReport.state


def judge_node_notices(
    devices: NodeDevices,
    node: Node | None,
    pods: Iterable[Pod],
    now: float,
    timers: HealthTimers,
    *,
    silent_since: float | None = None,
) -> list[Notice]:
    """The notices the node should carry; equal to `devices.notices` means no write."""
    old = {(n.reason, n.resource): n for n in devices.notices}
    live = [pod for pod in pods if pod.is_live and pod.spec.node_name == devices.name]

    @cache
    def held() -> HoldersByDevice:  # hardly ever asked for: only what is wrong has to name its holders
        return device_holders_on(devices, live)

    found = [
        *_lost_plugin_notices(devices, node, held),
        *_unlisted_device_notices(devices, node, live, held),
        *_node_signal_notices(devices),
    ]
    if silent_since is not None:
        words = "The node's agent has not renewed its lease. The state of its devices is unknown until it does."
        found.append(Notice(AGENT_SILENT, words, since=to_time(silent_since)))
    return [_dated_notice(notice, old.get((notice.reason, notice.resource)), now, timers) for notice in found]


def notice_hold_ends_at(devices: NodeDevices, now: float) -> float | None:
    """When to look again because a hold-down ends."""
    ends = (to_seconds(n.holding_until) for n in devices.notices if n.holding_until is not None)
    return min((end for end in ends if end > now), default=None)


def is_node_notice_held_down(notice: Notice, now: float) -> bool:
    return notice.holding_until is not None and now < to_seconds(notice.holding_until)


def _lost_plugin_notices(devices: NodeDevices, node: Node | None, held: Callable[[], HoldersByDevice]) -> list[Notice]:
    rows = [d for d in devices.observed.devices if d.resource]
    usable = {v.device for v in devices.verdicts if v.state in (DeviceState.HEALTHY, DeviceState.DEGRADED)}
    said = {p.resource: p for p in devices.observed.plugins if p.state == LOST}
    notices: list[Notice] = []
    for resource in sorted({d.resource for d in rows}):
        mine = [d.id for d in rows if d.resource == resource]
        if resource not in said and not (_node_offers_none(node, resource) and usable.intersection(mine)):
            continue
        users = _pods_holding(held(), mine)
        count = sum(device in held() for device in mine)
        who = f"{count} held by {', '.join(users)}" if users else "none held"
        why = said[resource].message if resource in said else ""
        notices.append(
            Notice(
                reason=PLUGIN_LOST,
                message=f"The plugin for {resource} is lost. None of its {len(mine)} devices failed; {who}."
                + (f" {why}" if why else ""),
                resource=resource,
                since=said[resource].since if resource in said else None,
            )
        )
    return notices


def _unlisted_device_notices(
    devices: NodeDevices, node: Node | None, pods: list[Pod], held: Callable[[], HoldersByDevice]
) -> list[Notice]:
    """Fewer devices published than there are. Those the ledger knows to be bad explain as many; a resource that offers nothing
    at all is a lost plugin's."""
    if node is None:
        return []
    fit = {v.device for v in devices.verdicts if v.state in (DeviceState.HEALTHY, DeviceState.DEGRADED)}
    there = _device_holders_in_statuses(pods)
    for resource in {d.resource for d in devices.observed.devices if d.resource}:
        mine = [d.id for d in devices.observed.devices if d.resource == resource and d.id in fit]
        is_short = 0 < _resource_count(node.status.capacity, resource) < len(mine)
        there[resource] = {device: _pods_holding(held(), [device]) for device in mine} if is_short else {}
    notices: list[Notice] = []
    for name, users_of in sorted(there.items()):
        listed = _resource_count(node.status.capacity, name)
        if 0 < listed < len(users_of):
            users = list(dict.fromkeys(user for some in users_of.values() for user in some))
            who = f"Its devices are held by {', '.join(users)}." if users else "No pod holds its devices."
            words = f"The node has {len(users_of)} usable devices of {name}, and its plugin lists {listed}. {who}"
            notices.append(Notice(NOT_LISTED, words, name))
    return notices


def _device_holders_in_statuses(pods: Iterable[Pod]) -> dict[str, dict[str, list[str]]]:
    """Resource -> device -> holders, as the statuses of the node's pods have them."""
    there: dict[str, dict[str, list[str]]] = {}
    for pod in pods:
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            for told in status.allocated_resources_status:
                for device in told.resources:
                    users = there.setdefault(told.name, {}).setdefault(device.resource_id, [])
                    users.append(f"{pod.namespace}/{pod.name}")
    return there


def _pods_holding(held: HoldersByDevice, devices: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(holder.pod for device in devices for holder in held.get(device, ())))


def _node_offers_none(node: Node | None, resource: str) -> bool:
    """The node has published the resource once and offers nothing of it now."""
    if node is None:
        return False
    return resource in node.status.allocatable and _resource_count(node.status.allocatable, resource) == 0


def _resource_count(quantities: Mapping[str, str | int], resource: str) -> int:
    return parse_whole_quantity(quantities.get(resource, 0))


def _node_signal_notices(devices: NodeDevices) -> list[Notice]:
    """Signals of the node as a whole, newest of each code."""
    newest = {s.code: s for s in devices.observed.signals}
    return [
        Notice(reason="".join(part.capitalize() for part in code.split("-")), message=s.message, since=s.time)
        for code, s in sorted(newest.items())
    ]


def _dated_notice(notice: Notice, before: Notice | None, now: float, timers: HealthTimers) -> Notice:
    since = before.since if before is not None else (notice.since or to_time(now))
    until = None
    if notice.reason in (PLUGIN_LOST, NOT_LISTED) and since is not None:
        until = to_time(to_seconds(since) + timers.hold_down_s)
    return Notice(notice.reason, notice.message[:LONGEST_MESSAGE], notice.resource, since, until)

"""The ledger: one row per device — state, why, since when, who said so, who holds it. Counts are an output of it.

Rows are derived from two sources of record, NodeDevices (signals, quarantine orders, earlier verdicts, who holds what) and live
pods; nothing is counted up or down, so nothing can drift. A verdict moves only when its state or reason does, which keeps
NodeDevices a record of transitions.

An agent that has fallen silent (`silent_since`) makes every device of its node Unknown: nothing new is placed there and nobody
is taken off. What was known against a device before outlasts the silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from remuda.api.core_v1 import Pod
from remuda.api.devices import DeviceState, NodeDevices, ObservedDevice, QuarantineOrder, Verdict
from remuda.api.meta import to_time
from remuda.core.devices.faults import classify
from remuda.core.failure.holding import held_on
from remuda.core.failure.timers import DEFAULT, Timers, believed_at

AGENT_SILENT = "AgentSilent"
LONGEST_MESSAGE = 1024  # as in a pod's status

# Worst first: with several signals on one device the gravest decides.
_GRAVITY = [
    DeviceState.QUARANTINED,
    DeviceState.UNHEALTHY,
    DeviceState.UNKNOWN,
    DeviceState.DEGRADED,
    DeviceState.HEALTHY,
]


class Row(msgspec.Struct, frozen=True):
    """One device as users see it."""

    node: str
    device: str
    type: str
    state: DeviceState
    reason: str = ""
    message: str = ""
    holder: str = ""
    draining: bool = False  # the holder is on its way out; the device is not free before its processes are gone
    container: str = ""  # of the holder, once its node has told


class Judgement(msgspec.Struct, frozen=True):
    """What is known against a device. `at`: when the deciding signal was seen, None when nobody said."""

    state: DeviceState = DeviceState.HEALTHY
    reason: str = ""
    message: str = ""
    source: str = ""
    at: datetime | None = None


def judge_device(device: ObservedDevice, order: QuarantineOrder | None, now: float, timers: Timers) -> Judgement:
    """What the device's signals and a quarantine order add up to."""
    if order is not None:
        return Judgement(DeviceState.QUARANTINED, order.reason, order.message, order.by or "operator", order.since)
    worst, decisive = _GRAVITY.index(DeviceState.HEALTHY), None
    for signal in device.signals:
        fault = classify(signal.source, signal.code)
        is_young = fault.debounced and now < believed_at(signal, timers)
        gravity = _GRAVITY.index(DeviceState.UNKNOWN if is_young else fault.effect)
        # <=: of two equally grave signals the newer one speaks; evidence of health silences what came before it.
        if fault.clears or gravity <= worst:
            worst, decisive = gravity, signal
    if decisive is None or _GRAVITY[worst] is DeviceState.HEALTHY:
        return Judgement()
    fault = classify(decisive.source, decisive.code)
    return Judgement(
        state=_GRAVITY[worst],
        reason=fault.reason,
        message=decisive.message or fault.message,
        source=f"{decisive.source}/{decisive.code}",
        at=decisive.time,
    )


def judge_node(
    node: NodeDevices,
    pods: Iterable[Pod],
    now: float,
    timers: Timers = DEFAULT,
    *,
    silent_since: float | None = None,
) -> list[Verdict]:
    """The verdicts `node` should carry; equal to `node.verdicts` means no write.

    `since` is when the deciding signal was seen, not when it was judged: recovery times are counted from it. Unchanged rows
    keep theirs. A slice is as bad as its device, never the other way round.
    """
    held = held_on(node, pods)
    old = {v.device: v for v in node.verdicts}
    verdicts: list[Verdict] = []
    judged = {d.id: judge_device(d, node.quarantine.get(d.id), now, timers) for d in node.observed.devices}
    if silent_since is not None:
        silence = _silence(silent_since)
        judged = {id: _worse(found, silence) for id, found in judged.items()}
    for device in node.observed.devices:
        found = _worse(judged[device.id], judged.get(device.parent, Judgement()))
        before = old.get(device.id)
        same = before is not None and (before.state, before.reason, before.source) == (
            found.state,
            found.reason,
            found.source,
        )
        holder = next(iter(held.get(device.id, ())), None)
        verdicts.append(
            Verdict(
                device=device.id,
                state=found.state,
                reason=found.reason,
                message=found.message[:LONGEST_MESSAGE],
                source=found.source,
                since=before.since if same and before is not None else min(found.at or to_time(now), to_time(now)),
                holder=holder.pod if holder else "",
                holder_uid=holder.uid if holder else "",
            )
        )
    return verdicts


def _worse(one: Judgement, other: Judgement) -> Judgement:
    """The graver of the two; of equals the first."""
    return other if _GRAVITY.index(other.state) < _GRAVITY.index(one.state) else one


def _silence(since: float) -> Judgement:
    return Judgement(
        DeviceState.UNKNOWN,
        AGENT_SILENT,
        "The node's agent has fallen silent, so nothing is known of the device.",
        "lease/agent",
        to_time(since),
    )


def rows(nodes: Iterable[NodeDevices], pods: Iterable[Pod]) -> list[Row]:
    """The whole ledger, for people: verdicts of the manager beside live holders."""
    bound: dict[str, list[Pod]] = {}
    for pod in pods:
        bound.setdefault(pod.spec.node_name, []).append(pod)
    table: list[Row] = []
    for node in sorted(nodes, key=lambda n: n.name):
        held = held_on(node, bound.get(node.name, ()))
        verdict_of = {v.device: v for v in node.verdicts}
        for device in node.observed.devices:
            verdict = verdict_of.get(device.id, Verdict(device=device.id, state=DeviceState.UNKNOWN))
            holder = next(iter(held.get(device.id, ())), None)
            table.append(
                Row(
                    node=node.name,
                    device=device.id,
                    type=device.type,
                    state=verdict.state,
                    reason=verdict.reason,
                    message=verdict.message,
                    holder=holder.pod if holder else "",
                    draining=holder is not None and holder.draining,
                    container=holder.container if holder else "",
                )
            )
    return table

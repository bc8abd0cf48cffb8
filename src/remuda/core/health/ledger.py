"""The ledger: one row per device — state, why, since when, who reported it, who holds it. Counts are an output of it.

Rows are derived from two sources of record, NodeDevices (signals, quarantine orders, earlier verdicts, who holds what) and live
pods; nothing is counted up or down, so nothing can drift. A verdict moves only when its state or reason does, which keeps
NodeDevices a record of transitions.

An agent that has fallen silent (`silent_since`) makes every device of its node Unknown: nothing new is placed there and nobody
is taken off. What was known against a device before outlasts the silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from remuda.api.devices import DeviceState, NodeDevices, Verdict, api_signal_origin
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_time
from remuda.core.health.device_holders import device_holders_on
from remuda.core.health.signal_fusion import (
    RANK,
    ClassifiedDevices,
    classify_device_signals,
    judge_signals,
    verdict_under_quarantine,
)
from remuda.core.health.timers import DEFAULT_TIMERS, HealthTimers

AGENT_SILENT = "AgentSilent"
LONGEST_MESSAGE = 1024  # as in a pod's status


class LedgerRow(msgspec.Struct, frozen=True):
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


def judge_node(
    node: NodeDevices,
    pods: Iterable[Pod],
    now: float,
    timers: HealthTimers = DEFAULT_TIMERS,
    *,
    silent_since: float | None = None,
    judged: Mapping[str, Verdict] | None = None,
) -> list[Verdict]:
    """The verdicts `node` should carry; equal to `node.verdicts` means no write.

    `since` is when the deciding signal was seen, not when it was judged: recovery times are counted from it. It moves when the
    state does and never backwards; another fault of the same gravity does not restart it. A slice is as bad as its device,
    never the other way round. `judged`: of `judge_devices`, when that was asked already.
    """
    held = device_holders_on(node, pods)
    old = {v.device: v for v in node.verdicts}
    if judged is None:
        judged = judge_devices(node, now, timers)
    if silent_since is not None:
        judged = {id: _graver_verdict(found, _silent_verdict(id, silent_since)) for id, found in judged.items()}
    verdicts: list[Verdict] = []
    for device in node.observed.devices:
        found = judged[device.id]
        if device.parent in judged:
            found = _graver_verdict(found, judged[device.parent])
        holder = next(iter(held.get(device.id, ())), None)
        verdicts.append(
            msgspec.structs.replace(
                found,
                device=device.id,
                message=found.message[:LONGEST_MESSAGE],
                since=_verdict_since(found, old.get(device.id), now),
                holder=holder.pod if holder else "",
                holder_uid=holder.uid if holder else "",
            )
        )
    return verdicts


def judge_devices(
    node: NodeDevices, now: float, timers: HealthTimers = DEFAULT_TIMERS, classified: ClassifiedDevices | None = None
) -> dict[str, Verdict]:
    """Each device by what is known against itself: its parent's fault, the agent's silence and its holder are not in it."""
    known = classify_device_signals(node) if classified is None else classified
    before = {v.device: v for v in node.verdicts}
    judged: dict[str, Verdict] = {}
    for id in (d.id for d in node.observed.devices):
        found = judge_signals(id, known.get(id, ()), now, timers, node.findings.get(id, ()), before.get(id))
        judged[id] = verdict_under_quarantine(found, node.quarantine.get(id))
    return judged


def _verdict_since(found: Verdict, before: Verdict | None, now: float) -> datetime:
    seen = min(found.since, to_time(now)) if found.since is not None else to_time(now)
    if before is None or before.since is None:
        return seen
    return before.since if before.state is found.state else max(seen, before.since)


def _graver_verdict(one: Verdict, other: Verdict) -> Verdict:
    """The graver of the two; of equals the first."""
    return other if RANK[other.state] < RANK[one.state] else one


def _silent_verdict(device: str, since: float) -> Verdict:
    return Verdict(
        device,
        DeviceState.UNKNOWN,
        AGENT_SILENT,
        "The node's agent is silent: the state of the device is unknown.",
        api_signal_origin("lease", "agent"),
        to_time(since),
    )


def verdicts_summary(verdicts: Sequence[Verdict]) -> str:
    """For a column of a table: how many are healthy, and the first that is not."""
    bad = [v for v in verdicts if v.state is not DeviceState.HEALTHY]
    healthy = f"{len(verdicts) - len(bad)} of {len(verdicts)} healthy"
    if not bad:
        return healthy
    first = min(bad, key=lambda v: RANK[v.state])
    why = f" ({first.reason})" if first.reason else ""
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"{healthy}; {first.device} {first.state.value}{why}{more}"


def health_verdicts_with_holders(nodes: Iterable[NodeDevices], pods: Iterable[Pod]) -> list[LedgerRow]:
    """The whole ledger, for people: verdicts of the manager beside live holders."""
    bound: dict[str, list[Pod]] = {}
    for pod in pods:
        bound.setdefault(pod.spec.node_name, []).append(pod)
    table: list[LedgerRow] = []
    for node in sorted(nodes, key=lambda n: n.name):
        held = device_holders_on(node, bound.get(node.name, ()))
        verdict_of = {v.device: v for v in node.verdicts}
        for device in node.observed.devices:
            verdict = verdict_of.get(device.id, Verdict(device=device.id, state=DeviceState.UNKNOWN))
            holder = next(iter(held.get(device.id, ())), None)
            table.append(
                LedgerRow(
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

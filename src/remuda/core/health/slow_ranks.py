"""From a slow rank to the device under it: rank -> pod -> node -> device, and what to write into NodeDevices.findings.

The finding is a Signal (straggler/straggler) on the device, which the ledger turns into Degraded. It is durable, and written
once: when a rank turns slow. It is taken away when a rank on that device runs at normal speed again, or a probe of the device
has passed since.

A rank of several devices says that one of them is slow, not which. All are named, unless some show a reason of their own
(throttling, memory errors, a degraded link): then only those. A rank that was moved off a slow device and is slow again on the
next carries more work than its peers: no second device is blamed for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from remuda.api.devices import DeviceState, NodeDevices, Signal
from remuda.api.meta import to_time
from remuda.api.training import Member, TrainingJob
from remuda.core.health.signals import classify_signals, cure_times
from remuda.core.health.step_samples import GangSlow
from remuda.core.health.stragglers import RankSpeeds, SlowRank

SOURCE = CODE = "straggler"
SLOW_RANK = "SlowRank"  # the verdict's reason, and a recovery's that moved a rank for it
UNEVEN = "UnevenWork"


class SlowRankFindings(msgspec.Struct, frozen=True):
    """New lists for `NodeDevices.findings` of one node, by device; an empty list takes the device's entry away."""

    node: str
    version: str  # of the object they were made on
    devices: Mapping[str, list[Signal]]
    told: tuple[str, ...] = ()  # a sentence for each new finding


def has_slow_finding(node: NodeDevices | None, devices: Iterable[str]) -> bool:
    return node is not None and any(_slow_finding(node, device) is not None for device in devices)


def plan_slow_rank_findings(
    job: TrainingJob, speeds: RankSpeeds, nodes: Mapping[str, NodeDevices], now: float
) -> tuple[list[SlowRankFindings], GangSlow | None]:
    """What to write for one gang, and what is to be said of the gang when a slow rank is not its device's fault."""
    members = {m.rank: m for m in job.status.members}
    moved = _pods_replacing_stragglers(job)
    changes: dict[str, dict[str, list[Signal]]] = {}
    told: dict[str, list[str]] = {}
    uneven: GangSlow | None = None
    for slow in speeds.slow:
        member = members.get(slow.rank)
        node = nodes.get(member.node) if member is not None else None
        if member is None or node is None or has_slow_finding(node, member.devices):
            continue
        suspects, why = _suspect_devices(node, member.devices)
        if member.pod in moved and not why:
            uneven = _uneven_gang(job, member, slow)
            continue
        words = _slow_rank_words(job, member, slow, suspects, why)
        for device in suspects:
            kept = [*node.findings.get(device, ()), Signal(SOURCE, CODE, words, to_time(now))]
            changes.setdefault(node.name, {})[device] = kept
        told.setdefault(node.name, []).append(words)
    for rank in speeds.normal:
        member = members.get(rank)
        node = nodes.get(member.node) if member is not None else None
        for device in member.devices if member is not None and node is not None else ():
            if node is not None and _slow_finding(node, device) is not None:
                changes.setdefault(node.name, {})[device] = _without_slow_finding(node, device)
    found = [
        SlowRankFindings(name, nodes[name].metadata.resource_version, devices, tuple(told.get(name, ())))
        for name, devices in sorted(changes.items())
    ]
    return found, uneven


def answered_slow_findings(node: NodeDevices) -> SlowRankFindings | None:
    """Findings that a probe which passed since has answered."""
    gone: dict[str, list[Signal]] = {}
    for device in node.observed.devices:
        finding = _slow_finding(node, device.id)
        if finding is not None and _is_slowness_cleared(finding, device.signals):
            gone[device.id] = _without_slow_finding(node, device.id)
    return SlowRankFindings(node.name, node.metadata.resource_version, gone) if gone else None


def _is_slowness_cleared(finding: Signal, signals: Sequence[Signal]) -> bool:
    if finding.time is None:
        return False
    return any(cure > finding.time for cure in cure_times(classify_signals(signals)))


def _slow_finding(node: NodeDevices, device: str) -> Signal | None:
    return next((s for s in node.findings.get(device, ()) if s.source == SOURCE), None)


def _without_slow_finding(node: NodeDevices, device: str) -> list[Signal]:
    return [s for s in node.findings.get(device, ()) if s.source != SOURCE]


def _suspect_devices(node: NodeDevices, devices: Sequence[str]) -> tuple[list[str], str]:
    """(devices to name, what speaks against them beside the rank's speed)."""
    why: dict[str, str] = {}
    for device in node.observed.devices:
        if device.id in devices:
            known = classify_signals((*device.signals, *node.findings.get(device.id, ())))
            faults = [k.fault for k in known if k.fault.effect is DeviceState.DEGRADED and not k.fault.clears]
            reasons = [fault.reason for fault in faults]
            if reasons:
                why[device.id] = reasons[-1]
    if not why:
        return list(devices), ""
    return [d for d in devices if d in why], ", ".join(f"{d} reports {why[d]}" for d in devices if d in why)


def _slow_rank_words(job: TrainingJob, member: Member, slow: SlowRank, suspects: Sequence[str], why: str) -> str:
    where = f"Rank {member.rank} of {job.namespace}/{job.name} (pod {member.pod}, node {member.node})"
    pace = f"takes {slow.factor:.2f} x as long as its peers for its own work, over {slow.steps} steps"
    if why and len(suspects) < len(member.devices):
        return f"{where} {pace}. Of its {len(member.devices)} devices {why}."
    if len(suspects) > 1:
        return f"{where} {pace}. One of its devices is slow: {', '.join(suspects)}{f'; {why}' if why else ''}."
    return f"{where} {pace}. Its device is {suspects[0] if suspects else 'none'}{f'; {why}' if why else ''}."


def _pods_replacing_stragglers(job: TrainingJob) -> set[str]:
    """Pods that took over from one on a slow device."""
    return {pod for recovery in job.status.recoveries if recovery.reason == SLOW_RANK for pod in recovery.replaced}


def _uneven_gang(job: TrainingJob, member: Member, slow: SlowRank) -> GangSlow:
    words = (
        f"Rank {member.rank} takes {slow.factor:.2f} x as long as its peers on the devices it was moved to, too "
        f"({member.node}). It has more work than they have: even the work out."
    )
    return GangSlow(UNEVEN, words, slow.factor)

"""Incidents of a node as a whole: lost, silent, or with a chain between its devices and its pods that broke.

Everything here is held down first, because a kubelet, a plugin or an agent that restarts looks for a moment like one that died:
a notice opens an incident only when its hold-down is over, a lease that ran out only when it stays so for `hold_down` more
seconds (counted anew by a manager that just started: with everything down for a while, every lease has run out). What comes
back earlier opens nothing.

One node has one open incident; the gravest trouble names it, and what comes on top is evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.incidents import Affected, Evidence, Incident, IncidentStatus, IncidentVerdict
from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Cause
from remuda.core.health.device_holders import HoldersByDevice, device_holders_on
from remuda.core.incidents.closing import SubjectHealth, conclude_incident, incident_ends_at
from remuda.core.incidents.evidence import with_affected, with_evidence
from remuda.core.incidents.names import (
    IncidentPlan,
    IncidentTimes,
    blank_incident,
    incident_name,
    incidents_of,
    node_subject,
)
from remuda.core.incidents.pods import (
    NodeIncidentView,
    affected_pods,
    follow_affected_pods,
    incident_evidence_of_container_exit,
)

NODE_LOST = "NodeLost"
WELL_AGAIN = "WellAgain"
# Notices that are failures, gravest first; others (a gap in the kernel's log) only lower what can be known.
_GRAVE = (NODE_LOST, "DriverHang", "DevicesMissing", "PluginLost", "DevicesNotListed", "AgentSilent")


class NodeTrouble(msgspec.Struct, frozen=True):
    reason: str
    message: str
    since: datetime
    due: float  # when the hold-down is over


def plan_node_incidents(
    sight: NodeIncidentView,
    incidents: Sequence[Incident],
    now: float,
    times: IncidentTimes,
    watching_since: float = 0.0,
) -> IncidentPlan:
    """`incidents`: those of this node, closed ones too. `watching_since`: when this manager began to look."""
    subject = node_subject(sight.name)
    past = incidents_of((i for i in incidents if not i.spec.subject.device), subject)
    troubles = _node_troubles(sight, now, times, watching_since)
    due = [t for t in troubles if now >= t.due]
    looks = [t.due for t in troubles if t.due > now]
    standing = next((i for i in past if i.is_open), None)
    opened: tuple[Incident, ...] = ()
    if standing is None and due and sight.node_uid:
        fresh = blank_incident(subject, due[0].since)
        last = past[-1].status if past else None
        is_told = last is not None and last.closed_at is not None and due[0].since <= last.closed_at
        if not is_told and not any(i.name == incident_name(subject, due[0].since) for i in past):
            opened, standing = (fresh,), fresh
    if standing is None:
        return IncidentPlan(look_again_s=_wait_for_incident_look(looks, now))
    # A trouble on top of one that stands needs no hold-down of its own, and one that is held down is not over yet.
    status, health = _look_at_node(sight, standing, troubles, now)
    status = conclude_incident(standing, status, health, times.settle, now)
    end = incident_ends_at(status, health, times.settle)
    if end is not None and status.closed_at is None:
        looks.append(end)
    amended = ((standing, status),) if status != standing.status else ()
    return IncidentPlan(opened, amended, look_again_s=_wait_for_incident_look(looks, now))


def _wait_for_incident_look(looks: Sequence[float], now: float) -> float | None:
    again = min((at for at in looks if at >= now), default=None)
    return None if again is None else again - now + 0.01


def _node_troubles(
    sight: NodeIncidentView, now: float, times: IncidentTimes, watching_since: float
) -> list[NodeTrouble]:
    """Gravest first."""
    found: list[NodeTrouble] = []
    if sight.dead_since is not None:
        due = max(sight.dead_since, watching_since) + times.hold_down
        words = f"{sight.name} has not renewed its lease."
        found.append(NodeTrouble(NODE_LOST, words, to_time(sight.dead_since), due))
    for notice in sight.devices.notices if sight.devices is not None else ():
        if notice.reason not in _GRAVE:
            continue
        since = notice.since or to_time(now)
        held = to_seconds(notice.holding_until) if notice.holding_until is not None else None
        due = held if held is not None else max(to_seconds(since), watching_since) + times.hold_down
        found.append(NodeTrouble(notice.reason, notice.message, since, due))
    return sorted(found, key=lambda t: (_GRAVE.index(t.reason), t.since))


def _look_at_node(
    sight: NodeIncidentView, incident: Incident, troubles: Sequence[NodeTrouble], now: float
) -> tuple[IncidentStatus, SubjectHealth]:
    status, held = incident.status, device_holders_on(sight.devices or NodeDevices(), sight.pods)
    if status.opened_at is None:
        rows = [d for d in sight.devices.observed.devices if not d.parent] if sight.devices is not None else []
        status = msgspec.structs.replace(
            status,
            opened_at=to_time(now),
            first_signal_at=min([t.since for t in troubles], default=to_time(now)),
            devices=len(rows),
            node_uid=sight.node_uid,
        )
    evidence: list[Evidence] = []
    if troubles:
        worst = troubles[0]
        status = msgspec.structs.replace(
            status,
            verdict=IncidentVerdict(
                state=DeviceState.UNKNOWN,
                reason=worst.reason,
                message=worst.message,
                source="lease" if worst.reason == NODE_LOST else "notice",
                cause=Cause.INFRA.value,
            ),
        )
        status = with_affected(status, _affected_by_node(sight, held))
        # One that began before the last one was over comes after it all the same: the newest piece says how the node is.
        over = max((e.time for e in status.evidence if e.code == WELL_AGAIN and e.time is not None), default=None)
        evidence = [
            Evidence("node", t.message, max(t.since, over or t.since), code=t.reason, node=sight.name) for t in troubles
        ]
    elif last := _newest_node_trouble(status):
        text = f"{last.code} is over."
        evidence = [Evidence("node", text, to_time(now), code=WELL_AGAIN, node=sight.name)]
    status = with_affected(status, follow_affected_pods(status.affected, sight, held, None, now))
    began = to_seconds(status.first_signal_at) if status.first_signal_at is not None else now
    uids = {a.uid for a in status.affected if a.uid}
    evidence += incident_evidence_of_container_exit(sight.pods, uids, began, sight.ranks)
    status = with_evidence(status, evidence)
    return status, SubjectHealth(None if troubles else _node_well_since(status, now), sight.node_uid)


def is_node_well_again(status: IncidentStatus) -> bool:
    """The node's trouble is over, and the incident only waits whether it stays so."""
    return any(e.kind == "node" for e in status.evidence) and _newest_node_trouble(status) is None


def _newest_node_trouble(status: IncidentStatus) -> Evidence | None:
    """The trouble that stood until now; None when its end was noted already."""
    news = [e for e in status.evidence if e.kind == "node"]
    return news[-1] if news and news[-1].code != WELL_AGAIN else None


def _node_well_since(status: IncidentStatus, now: float) -> float:
    over = [e.time for e in status.evidence if e.code == WELL_AGAIN and e.time is not None]
    return to_seconds(over[-1]) if over else now


def _affected_by_node(sight: NodeIncidentView, held: HoldersByDevice) -> list[Affected]:
    """Whoever holds devices of the node."""
    of: dict[str, list[str]] = {}
    for device, holders in held.items():
        for holder in holders:
            of.setdefault(holder.uid, []).append(device)
    return affected_pods(sight, of, [holder for holders in held.values() for holder in holders])

"""What an incident keeps of what was seen: evidence, oldest first, and the pods that were hit.

Evidence is copied when it is seen, because pods, their statuses and a device's signals go. It is bounded: the first ones (how it
began) and the newest ones are kept, what falls out between is counted. Taking the same evidence twice changes nothing, also
when it has fallen out meanwhile, so a look may be repeated at will.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from remuda.api.devices import DeviceState
from remuda.api.incidents import Affected, Evidence, IncidentStatus
from remuda.api.meta import to_seconds

FIRST, NEWEST = 16, 32
MAX_AFFECTED = 256
REPEAT_S = 60.0  # the same signal again within this time says nothing new of a failure that is known
LONGEST_MESSAGE = 512

_EVERY_TIME = ("signal", "probe")  # kinds that are evidence again when they come again; others are told once


def with_evidence(status: IncidentStatus, found: Iterable[Evidence]) -> IncidentStatus:
    """The same object when nothing is new."""
    kept, dropped = list(status.evidence), status.evidence_dropped
    is_changed = False
    for piece in found:
        if not _is_known_evidence(piece, kept, dropped):
            short = piece.message[:LONGEST_MESSAGE]
            kept.append(msgspec.structs.replace(piece, message=short) if short != piece.message else piece)
            is_changed = True
    if not is_changed:
        return status
    kept.sort(key=_evidence_time)
    if (extra := len(kept) - FIRST - NEWEST) > 0:
        dropped += extra
        kept = [*kept[:FIRST], *kept[FIRST + extra :]]
    return msgspec.structs.replace(status, evidence=kept, evidence_dropped=dropped)


def _is_known_evidence(piece: Evidence, kept: list[Evidence], dropped: int) -> bool:
    if dropped and len(kept) > FIRST and _evidence_time(piece) <= _evidence_time(kept[FIRST]):
        return True  # as old as what fell out: it was seen then
    same = [e for e in kept if _evidence_identity(e) == _evidence_identity(piece)]
    if piece.kind not in _EVERY_TIME:
        return bool(same)
    return any(abs(_evidence_time(e) - _evidence_time(piece)) < REPEAT_S for e in same)


def _evidence_identity(piece: Evidence) -> tuple[object, ...]:
    words = piece.message if piece.kind in ("verdict", "operator", "correlation") else ""
    return (
        piece.kind,
        piece.source,
        piece.code,
        piece.node,
        piece.device,
        piece.pod,
        piece.container,
        piece.exit_code,
        words,
        piece.time if piece.kind in ("exit", "verdict", "node") else None,
    )


def _evidence_time(piece: Evidence) -> float:
    return to_seconds(piece.time) if piece.time is not None else 0.0


def with_affected(status: IncidentStatus, found: Iterable[Affected]) -> IncidentStatus:
    """Pods by uid: new ones are added, of known ones what was learnt since is filled in, and what was known stays."""
    kept = {a.uid or a.pod: a for a in status.affected}
    for pod in found:
        key = pod.uid or pod.pod
        before = kept.get(key)
        if before is None:
            if len(kept) < MAX_AFFECTED:
                kept[key] = pod
        else:
            kept[key] = _merged_affected(before, pod)
    after = list(kept.values())
    return status if after == status.affected else msgspec.structs.replace(status, affected=after)


def _merged_affected(before: Affected, now: Affected) -> Affected:
    return Affected(
        pod=before.pod,
        uid=before.uid,
        node=before.node or now.node,
        devices=[*before.devices, *(d for d in now.devices if d not in before.devices)],
        container=before.container or now.container,
        gang=before.gang or now.gang,
        rank=before.rank if before.rank is not None else now.rank,
        exit_code=before.exit_code if before.exit_code is not None else now.exit_code,
        restarts=max(before.restarts, now.restarts),
        ended_at=before.ended_at or now.ended_at,
        ended=before.ended or now.ended,
        state=before.state or now.state,
    )


def affected_pod_ended(pod: Affected, how: str, at: datetime, state: DeviceState | None) -> Affected:
    """The pod is over; what its device was then is kept with it."""
    if pod.ended:
        return pod
    return msgspec.structs.replace(pod, ended=how, ended_at=at, state=state)

"""Records of a ladder after the manager's clock was set back.

Their times are the manager's own. Ahead of the clock by more than clocks differ, they are of a clock that was wrong: a deadline
or a soak counted from them would end in a day, or in a century. They are counted anew from now, so that nothing waits for ever,
and nothing is given back sooner than it would have been. Pure.
"""

from __future__ import annotations

import msgspec

from remuda.api.incidents import RemedyRecord
from remuda.api.meta import to_seconds, to_time
from remuda.core.health.timers import SKEW_S


def rebased(records: dict[str, RemedyRecord], now: float) -> dict[str, RemedyRecord]:
    return {key: _rebased(record, now) for key, record in records.items()}


def _rebased(record: RemedyRecord, now: float) -> RemedyRecord:
    limit, moment = now + SKEW_S, to_time(now)
    started, ended, deadline = record.started_at, record.ended_at, record.deadline
    if started is not None and to_seconds(started) > limit:
        allowed = to_seconds(deadline) - to_seconds(started) if deadline is not None else 0.0
        deadline = to_time(now + max(0.0, allowed)) if deadline is not None else None
        record = msgspec.structs.replace(record, started_at=moment, deadline=deadline)
    if ended is not None and to_seconds(ended) > limit:
        record = msgspec.structs.replace(record, ended_at=moment)
    return record

"""How long a job may run, and how long its record is kept.

`activeDeadlineSeconds` counts from the first start; time in which the job was suspended does not count, and waiting for a place
before the first start does not either. `ttlSecondsAfterFinished` counts from the end; then the controller deletes the job.
What was learnt from it stays where it belongs: incidents are objects of their own.
"""

from __future__ import annotations

from remuda.api.meta import to_seconds
from remuda.core.training.planning_context import Look

DEADLINE_EXCEEDED = "DeadlineExceeded"


def deadline_of(look: Look) -> float | None:
    """When the job has run for as long as it may; None without a limit, before the first start, and while it is suspended."""
    status, limit = look.status, look.spec.active_deadline_seconds
    if limit <= 0 or status.started_at is None or status.suspended_at is not None:
        return None
    return to_seconds(status.started_at) + status.suspended_seconds + limit


def is_past_deadline(look: Look) -> bool:
    at = deadline_of(look)
    return at is not None and look.now > at


def kept_s(look: Look) -> float | None:
    """Seconds for which the record of a finished job is still kept; None = until somebody deletes it."""
    ttl, ended = look.spec.ttl_seconds_after_finished, look.status.finished_at
    if ttl is None or ended is None or not look.is_finished:
        return None
    return max(0.0, to_seconds(ended) + ttl - look.now)

"""Held and not used: when a device turns idle, and when it is used again.

A device is idle once its holder has kept it below `low` for `after_s` on end, and since the first of those samples; it is used
again at one sample above `high`, or when nobody holds it. Between the two nothing changes, so that a job that reads data now and
then does not come and go. No answer is no evidence: it neither makes a device idle nor takes it back.
"""

from __future__ import annotations

import msgspec


class IdleRule(msgspec.Struct, frozen=True):
    low: float = 0.05
    high: float = 0.15
    after_s: float = 300.0
    sample_s: float = 15.0


class IdleTrack(msgspec.Struct, frozen=True):
    """What is remembered of one device between samples. `since`: the first of the low samples; None = it is used."""

    since: float | None = None
    is_idle: bool = False
    busy: float = 0.0  # sum of the samples since then
    samples: int = 0

    @property
    def utilisation(self) -> float | None:
        """The mean of the samples that made it idle; None when there are none."""
        return round(self.busy / self.samples, 4) if self.samples else None


def with_usage_sample(before: IdleTrack, share: float | None, is_held: bool, now: float, rule: IdleRule) -> IdleTrack:
    if not is_held:
        return IdleTrack()
    if share is None:
        return before
    if share > (rule.high if before.since is not None else rule.low):
        return IdleTrack()
    since = before.since if before.since is not None else now
    return IdleTrack(since, before.is_idle or now - since >= rule.after_s, before.busy + share, before.samples + 1)

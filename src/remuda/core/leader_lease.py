"""Who leads: the rules for taking, keeping and giving up a Lease, as a pure state machine. Times are local seconds.

Model: a *record* is what the Lease says. A contender remembers the record and the moment at which it last saw it change, by
its own clock; nobody ever compares its clock with another's, so clocks may differ by any amount. The record is free when it
names no holder, or when it has not changed for as long as it says it lasts.

Invariants, if clocks run at about the same speed (the margin is `lease_s - renew_s`) and writes are guarded by version:
- A leader's term counts from when its last successful write was *sent*. It ends `renew_s` later unless renewed before.
- Another may take over `lease_s` after it *saw* that write, which is never earlier than the sending. So the old leader has
  stopped `lease_s - renew_s` before the new one starts.
- A write whose fate is unknown counts as failed; the next step is to look.
- Every term has a larger `transitions` than the one before: the fencing token.

The shell asks `decide` what to do, does it, and tells the outcome by one of `looked`, `wrote`, `lost_race`, `failed`,
`rested`.
"""

from __future__ import annotations

import msgspec

from remuda.api.errors import Refusal


class Timing(msgspec.Struct, frozen=True):
    """`lease_s`: after so long without a change others may take over. `renew_s`: after so long without a successful renewal the
    leader stops. `retry_s`: between two tries."""

    lease_s: int = 15
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_s < self.lease_s:
            raise Refusal(
                "InvalidLeaseTiming",
                f"Lease {self.lease_s:g} s, renew {self.renew_s:g} s and retry {self.retry_s:g} s do not fit together.",
                "Choose retry < renew < lease; the leader has lease - renew to stop before another starts.",
            )


class Record(msgspec.Struct, frozen=True):
    """`beat` changes with every renewal, `version` with every write whatsoever."""

    holder: str
    lease_s: float
    transitions: int
    beat: str
    version: str


class Standing(msgspec.Struct, frozen=True):
    """What one contender knows. `sent_at`: when it leads, the sending of its last successful write."""

    identity: str
    timing: Timing = Timing()
    record: Record | None = None
    seen_at: float = 0.0
    is_fresh: bool = False  # the record was read (or written by us) since the last failure or rest
    sent_at: float | None = None
    not_before: float = float("-inf")

    @property
    def is_leading(self) -> bool:
        return self.sent_at is not None

    @property
    def ends_at(self) -> float:
        """When the term ends unless it is renewed; before all time for who does not lead."""
        return float("-inf") if self.sent_at is None else self.sent_at + self.timing.renew_s


class Look(msgspec.Struct, frozen=True):
    """Read the lease."""


class Write(msgspec.Struct, frozen=True):
    """Put our name on the lease, guarded by `over` (None: create it). `is_new`: a new term, else a renewal."""

    over: Record | None
    transitions: int
    is_new: bool


class Wait(msgspec.Struct, frozen=True):
    seconds: float


class StepDown(msgspec.Struct, frozen=True):
    reason: str
    message: str


Action = Look | Write | Wait | StepDown


def decide(standing: Standing, now: float) -> Action:
    return _decide_leader(standing, now) if standing.is_leading else _decide_follower(standing, now)


def _decide_leader(standing: Standing, now: float) -> Action:
    record, timing = standing.record, standing.timing
    if now >= standing.ends_at:
        return StepDown("CannotRenew", f"The lease could not be renewed for {timing.renew_s:g} s.")
    if standing.is_fresh and record is not None and record.holder != standing.identity:
        return StepDown("Superseded", f"The lease is held by {record.holder or 'nobody'}.")
    if now < standing.not_before:
        return Wait(min(standing.not_before, standing.ends_at) - now)
    if not standing.is_fresh:
        return Look()
    return Write(record, record.transitions if record is not None else 0, is_new=False)


def _decide_follower(standing: Standing, now: float) -> Action:
    record, timing = standing.record, standing.timing
    if now < standing.not_before:
        return Wait(standing.not_before - now)
    if not standing.is_fresh:
        return Look()
    if record is None:
        return Write(None, 0, is_new=True)
    if record.holder in ("", standing.identity) or now >= standing.seen_at + record.lease_s:
        return Write(record, record.transitions + 1, is_new=True)
    return Wait(min(timing.retry_s, standing.seen_at + record.lease_s - now))


def looked(standing: Standing, record: Record | None, now: float) -> Standing:
    """The lease was read; None: there is none."""
    old = standing.record
    is_same = old is not None and record is not None and _state(old) == _state(record)
    seen_at = standing.seen_at if is_same else now
    return msgspec.structs.replace(standing, record=record, seen_at=seen_at, is_fresh=True, not_before=now)


def wrote(standing: Standing, record: Record, sent_at: float, now: float) -> Standing:
    """Our write was acknowledged: we lead, counted from when it was sent."""
    if now >= sent_at + standing.timing.renew_s:
        return failed(standing, now)  # acknowledged too late to be worth anything
    return msgspec.structs.replace(
        standing,
        record=record,
        seen_at=now,
        is_fresh=True,
        sent_at=sent_at,
        not_before=sent_at + standing.timing.retry_s,
    )


def lost_race(standing: Standing, now: float) -> Standing:
    """Somebody wrote before us: look at once."""
    return msgspec.structs.replace(standing, is_fresh=False, not_before=now)


def failed(standing: Standing, now: float) -> Standing:
    """No answer, or an error: nothing is known any more."""
    return msgspec.structs.replace(standing, is_fresh=False, not_before=now + standing.timing.retry_s)


def rested(standing: Standing) -> Standing:
    """A wait is over. A leader goes on from its own last write; a follower has to look."""
    return standing if standing.is_leading else msgspec.structs.replace(standing, is_fresh=False)


def stepped_down(standing: Standing, now: float) -> Standing:
    """No leader any more: contend like everybody, after a pause that lets another go first."""
    return msgspec.structs.replace(
        standing, sent_at=None, is_fresh=False, seen_at=now, not_before=now + standing.timing.retry_s
    )


def _state(record: Record) -> tuple[str, int, str]:
    """What makes a record the same: a write that only labels the lease does not prolong it."""
    return record.holder, record.transitions, record.beat

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

The shell asks `decide_lease_action` what to do, does it, and says what came of it: `lease_was_read`, `lease_was_written`,
`lease_race_was_lost`, `lease_request_failed` or `lease_wait_is_over`.
"""

from __future__ import annotations

import msgspec

from remuda.api.errors import Refusal


class LeaseTiming(msgspec.Struct, frozen=True):
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


class LeaseRecord(msgspec.Struct, frozen=True):
    """`beat` changes with every renewal, `version` with every write whatsoever."""

    holder: str
    lease_s: float
    transitions: int
    beat: str
    version: str


class Candidacy(msgspec.Struct, frozen=True):
    """What one contender knows. `sent_at`: when it leads, the sending of its last successful write."""

    identity: str
    timing: LeaseTiming = LeaseTiming()
    record: LeaseRecord | None = None
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


class ReadLease(msgspec.Struct, frozen=True):
    """Read the lease."""


class WriteLease(msgspec.Struct, frozen=True):
    """Put our name on the lease, guarded by `over` (None: create it). `is_new`: a new term, else a renewal."""

    over: LeaseRecord | None
    transitions: int
    is_new: bool


class WaitForLease(msgspec.Struct, frozen=True):
    seconds: float


class StepDownAsLeader(msgspec.Struct, frozen=True):
    reason: str
    message: str


LeaseAction = ReadLease | WriteLease | WaitForLease | StepDownAsLeader


def decide_lease_action(standing: Candidacy, now: float) -> LeaseAction:
    return _decide_as_leader(standing, now) if standing.is_leading else _decide_as_follower(standing, now)


def _decide_as_leader(standing: Candidacy, now: float) -> LeaseAction:
    record, timing = standing.record, standing.timing
    if now >= standing.ends_at:
        return StepDownAsLeader("CannotRenew", f"The lease could not be renewed for {timing.renew_s:g} s.")
    if standing.is_fresh and record is not None and record.holder != standing.identity:
        return StepDownAsLeader("Superseded", f"The lease is held by {record.holder or 'nobody'}.")
    if now < standing.not_before:
        return WaitForLease(min(standing.not_before, standing.ends_at) - now)
    if not standing.is_fresh:
        return ReadLease()
    return WriteLease(record, record.transitions if record is not None else 0, is_new=False)


def _decide_as_follower(standing: Candidacy, now: float) -> LeaseAction:
    record, timing = standing.record, standing.timing
    if now < standing.not_before:
        return WaitForLease(standing.not_before - now)
    if not standing.is_fresh:
        return ReadLease()
    if record is None:
        return WriteLease(None, 0, is_new=True)
    if record.holder in ("", standing.identity) or now >= standing.seen_at + record.lease_s:
        return WriteLease(record, record.transitions + 1, is_new=True)
    return WaitForLease(min(timing.retry_s, standing.seen_at + record.lease_s - now))


def lease_was_read(standing: Candidacy, record: LeaseRecord | None, now: float) -> Candidacy:
    """The lease was read; None: there is none."""
    old = standing.record
    is_same = old is not None and record is not None and _lease_claim(old) == _lease_claim(record)
    seen_at = standing.seen_at if is_same else now
    return msgspec.structs.replace(standing, record=record, seen_at=seen_at, is_fresh=True, not_before=now)


def lease_was_written(standing: Candidacy, record: LeaseRecord, sent_at: float, now: float) -> Candidacy:
    """Our write was acknowledged: we lead, counted from when it was sent."""
    if now >= sent_at + standing.timing.renew_s:
        return lease_request_failed(standing, now)  # acknowledged too late to be worth anything
    return msgspec.structs.replace(
        standing,
        record=record,
        seen_at=now,
        is_fresh=True,
        sent_at=sent_at,
        not_before=sent_at + standing.timing.retry_s,
    )


def lease_race_was_lost(standing: Candidacy, now: float) -> Candidacy:
    """Somebody wrote before us: look at once."""
    return msgspec.structs.replace(standing, is_fresh=False, not_before=now)


def lease_request_failed(standing: Candidacy, now: float) -> Candidacy:
    """No answer, or an error: nothing is known any more."""
    return msgspec.structs.replace(standing, is_fresh=False, not_before=now + standing.timing.retry_s)


def lease_wait_is_over(standing: Candidacy) -> Candidacy:
    """A wait is over. A leader goes on from its own last write; a follower has to look."""
    return standing if standing.is_leading else msgspec.structs.replace(standing, is_fresh=False)


def leader_stepped_down(standing: Candidacy, now: float) -> Candidacy:
    """No leader any more: contend like everybody, after a pause that lets another go first."""
    return msgspec.structs.replace(
        standing, sent_at=None, is_fresh=False, seen_at=now, not_before=now + standing.timing.retry_s
    )


def _lease_claim(record: LeaseRecord) -> tuple[str, int, str]:
    """What makes a record the same: a write that only labels the lease does not prolong it."""
    return record.holder, record.transitions, record.beat

"""The scratch pad of one look at one ladder: the records as they become, and what has to stand because of them. Pure.

A `LadderState` is made for one call of `climb_ladder` and thrown away with it. The moves (`admission`,
`execution`) write on it; `step` gives what is on it as the answer. Each move either goes on (GO), leaves the stage
(NEXT) or has to wait (WAIT); what it waits for is in `looks`, when it is a time. A record that says what it said before
stays as it was, so a look that changes nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from remuda.api.devices import DeviceOrder, QuarantineOrder
from remuda.api.incidents import (
    IncidentOutcome,
    IncidentPhase,
    IncidentStatus,
    RemedyOutcome,
    RemedyRecord,
    SubjectKind,
)
from remuda.api.meta import Condition, to_seconds, to_time
from remuda.api.remedies import Action, Rung
from remuda.core.health.timers import SKEW_S
from remuda.core.remedies.drain import DrainPlan, DrainRequest
from remuda.core.remedies.hook_objects import HookCall
from remuda.core.remedies.ladder.types import LadderCase, LadderStep
from remuda.core.remedies.limits import HeldBack
from remuda.core.remedies.remedy_keys import is_workload_remedy_key
from remuda.core.remedies.rungs import NODE_TAKEN, RECYCLES, device_remedies

HELD_S = 30.0  # between two looks at what is held back; whoever makes room wakes it sooner


class LadderMove(Enum):
    GO = "go"
    NEXT = "next"
    WAIT = "wait"
    CURED = "cured"


GO, NEXT, WAIT, CURED = LadderMove.GO, LadderMove.NEXT, LadderMove.WAIT, LadderMove.CURED


class LadderState:
    def __init__(self, case: LadderCase, now: float) -> None:
        self.case = case
        self.now = now
        self.workload = [r for r in case.incident.status.remedies if is_workload_remedy_key(r.key)]
        self.records = rebase_remedy_records(device_remedies(case.incident.status.remedies), now)
        self.looks: list[float] = []
        self.why_not: list[str] = []
        self.soak_until: float | None = None
        self.is_given_back = False
        self.hold: set[str] = set()
        self.cordon: set[str] = set()
        self.request: DrainRequest | None = None
        self.orders: dict[str, dict[str, DeviceOrder]] = {}
        self.drain: DrainPlan | None = None
        self.call: HookCall | None = None
        self.ticket = ""

    @property
    def has_begun(self) -> bool:
        return any(r.started_at is not None for r in self.records.values())

    @property
    def opened(self) -> float:
        """When the incident began. A time ahead of the clock is no time: then the object's own counts, or it was long ago."""
        status, meta = self.case.incident.status, self.case.incident.metadata
        if status.opened_at is None:
            return self.now
        times = [to_seconds(t) for t in (status.opened_at, meta.creation_timestamp) if t is not None]
        return next((t for t in times if t <= self.now + SKEW_S), 0.0)

    def targets(self, action: Action) -> tuple[str, ...]:
        """The nodes an action is done on. One that recycles takes the whole domain."""
        domain, drain = self.case.domain, self.case.policy.spec.drain
        if action in RECYCLES and drain.whole_domain and domain.name:
            return domain.nodes
        return (self.case.subject.node,) if self.case.subject.node else ()

    def target(self, action: Action) -> str:
        subject, domain = self.case.subject, self.case.domain
        if action in RECYCLES:
            return domain.name or subject.node
        return f"{subject.node}/{subject.device}" if subject.device else subject.node or subject.domain

    @property
    def how_it_is_left(self) -> str:
        """How the subject is left when nothing more is done to it."""
        subject = self.case.subject
        match subject.kind:
            case SubjectKind.DEVICE:
                return "The device stays out of use."
            case SubjectKind.NODE:
                return f"{subject.node} is back in use when it is healthy again."
        return "What its parts share needs people to look at it; none of its nodes is recycled automatically."

    def has_ended(self, key: str) -> bool:
        return (
            key in self.records
            and self.records[key].outcome is not RemedyOutcome.RUNNING
            and not is_rung_open(self.records[key])
        )

    def keep_empty(self, targets: Sequence[str]) -> None:
        self.hold.update(targets)
        self.cordon.update(targets)

    # --- records ------------------------------------------------------------------------------------------------------

    def record(self, key: str, rung: Rung, outcome: RemedyOutcome, reason: str, message: str) -> None:
        """A step that is not under way. Said again it stays as it was: only what changes is written."""
        before = self.records.get(key)
        if before is not None and (before.outcome, before.reason) == (outcome, reason):
            return
        started = before.started_at if before is not None else None
        is_final = outcome in (RemedyOutcome.REFUSED, RemedyOutcome.SKIPPED) and reason != NODE_TAKEN
        self.records[key] = RemedyRecord(
            key=key,
            action=rung.action,
            target=self.target(rung.action),
            outcome=outcome,
            reason=reason,
            message=message,
            why_not=self.why_not,
            started_at=started,
            ended_at=to_time(self.now) if is_final else None,
        )

    def hold_back(self, key: str, rung: Rung, held: HeldBack) -> None:
        self.record(key, rung, RemedyOutcome.HELD_BACK, held.reason, held.message)
        self.looks.append(self.now + HELD_S)

    def amend(self, key: str, outcome: RemedyOutcome, reason: str, message: str, at: float | None = None) -> None:
        """The end of a step, or another one."""
        moment = to_time(self.now if at is None else at)
        self.records[key] = msgspec.structs.replace(
            self.records[key], outcome=outcome, reason=reason, message=message, ended_at=moment
        )

    def start(self, key: str, action: str, target: str, seconds: float, via: str, message: str = "") -> RemedyRecord:
        record = RemedyRecord(
            key=key,
            action=action,
            target=target,
            outcome=RemedyOutcome.RUNNING,
            message=message,
            why_not=self.why_not,
            started_at=to_time(self.now),
            deadline=to_time(self.now + seconds),
            via=via,
        )
        self.records[key] = record
        return record

    # --- the answer ---------------------------------------------------------------------------------------------------

    def changed_status(
        self,
        status: IncidentStatus,
        phase: IncidentPhase,
        records: list[RemedyRecord],
        conditions: list[Condition],
        *,
        is_cure_owed: bool,
    ) -> IncidentStatus:
        # A domain is over with its parts, so how it stands is theirs to say.
        is_owed = is_cure_owed and self.case.subject.kind is not SubjectKind.DOMAIN
        return msgspec.structs.replace(
            status,
            phase=phase,
            outcome=IncidentOutcome.NOT_CURED if is_owed else None,
            remedies=records if records != status.remedies else status.remedies,
            soak_until=to_time(self.soak_until) if self.soak_until is not None else None,
            ticket=self.ticket or status.ticket,
            conditions=conditions,
        )

    def step(self, status: IncidentStatus, quarantine: QuarantineOrder | None) -> LadderStep:
        ahead = [at for at in self.looks if at > self.now]
        return LadderStep(
            status=status,
            quarantine=quarantine,
            hold=frozenset(self.hold),
            cordon=frozenset(self.cordon),
            request=self.request,
            orders=self.orders,
            drain=self.drain,
            call=self.call,
            look_again_s=min(ahead) - self.now + 0.001 if ahead else None,
        )


def is_rung_open(record: RemedyRecord) -> bool:
    """It binds nobody and is looked at anew each time."""
    is_taken = record.outcome is RemedyOutcome.REFUSED and record.reason == NODE_TAKEN
    return is_taken or record.outcome in (RemedyOutcome.HELD_BACK, RemedyOutcome.WAITING, RemedyOutcome.OBSERVED)


def rebase_remedy_records(records: dict[str, RemedyRecord], now: float) -> dict[str, RemedyRecord]:
    """Records after the manager's clock was set back. Their times are the manager's own. Ahead of the clock by more than clocks
    differ, they are of a clock that was wrong: a deadline or a soak counted from them would end in a day, or in a century.
    They are counted anew from now, so that nothing waits for ever, and nothing comes back sooner than it would have."""
    return {key: _rebase_remedy_record(record, now) for key, record in records.items()}


def _rebase_remedy_record(record: RemedyRecord, now: float) -> RemedyRecord:
    limit, moment = now + SKEW_S, to_time(now)
    started, ended, deadline = record.started_at, record.ended_at, record.deadline
    if started is not None and to_seconds(started) > limit:
        allowed = to_seconds(deadline) - to_seconds(started) if deadline is not None else 0.0
        deadline = to_time(now + max(0.0, allowed)) if deadline is not None else None
        record = msgspec.structs.replace(record, started_at=moment, deadline=deadline)
    if ended is not None and to_seconds(ended) > limit:
        record = msgspec.structs.replace(record, ended_at=moment)
    return record

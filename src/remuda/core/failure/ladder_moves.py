"""One look at one ladder, move by move: the records as they become, and what has to stand because of them. Pure.

`Climber` is the scratch pad of one call of `climb`. Each move either goes on (GO), leaves the stage (NEXT) or has to
wait (WAIT); what it waits for is in `looks`, when it is a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from remuda.api.devices import DeviceOrder, OrderAnswer, QuarantineOrder
from remuda.api.incidents import IncidentPhase, IncidentStatus, RemedyOutcome, RemedyRecord, SubjectKind
from remuda.api.meta import Condition, to_seconds, to_time
from remuda.api.remedies import Action, Hook, Rung
from remuda.core.failure.drain import DrainPlan, DrainRequest, other_actor, owners_of, plan_drain
from remuda.core.failure.holding import Holder, held_on
from remuda.core.failure.incidents import is_workload_key
from remuda.core.failure.ladder_case import Case, ObjectCall, Step, order_id
from remuda.core.failure.ladder_clock import rebased
from remuda.core.failure.ladder_hooks import hook_body
from remuda.core.failure.limits import Held
from remuda.core.failure.rungs import DEVICE_IN_USE, NODE_IN_USE, NODE_TAKEN, RECYCLES, VERIFY_S, Stage, device_records
from remuda.core.failure.timers import SKEW_S

GRACE_S = 10.0  # after a deadline: the agent's own word of it may be on its way
POLL_S = 5.0  # between two looks at an object of a hook
HELD_S = 30.0  # between two looks at what is held back; whoever makes room wakes it sooner
WAITS_S = 10.0

AGENT, COMMAND, OBJECT, RECORD, CORDON = "agent order", "command hook", "object hook", "record", "cordon and eviction"


class Move(Enum):
    GO = "go"
    NEXT = "next"
    WAIT = "wait"
    CURED = "cured"


GO, NEXT, WAIT, CURED = Move.GO, Move.NEXT, Move.WAIT, Move.CURED


class Climber:
    def __init__(self, case: Case, now: float) -> None:
        self.case = case
        self.now = now
        self.workload = [r for r in case.incident.status.remedies if is_workload_key(r.key)]
        self.records = rebased(device_records(case.incident.status.remedies), now)
        self.looks: list[float] = []
        self.why_not: list[str] = []
        self.soak_until: float | None = None
        self.is_given_back = False
        self._hold: set[str] = set()
        self._cordon: set[str] = set()
        self._request: DrainRequest | None = None
        self._orders: dict[str, dict[str, DeviceOrder]] = {}
        self._drain: DrainPlan | None = None
        self._call: ObjectCall | None = None
        self._ticket = ""

    @property
    def has_begun(self) -> bool:
        return any(r.started_at is not None for r in self.records.values())

    def targets(self, action: Action) -> tuple[str, ...]:
        """The nodes an action is done on. One that recycles takes the whole domain."""
        domain, drain = self.case.domain, self.case.policy.spec.drain
        if action in RECYCLES and drain.whole_domain and domain.name:
            return domain.nodes
        return (self.case.subject.node,) if self.case.subject.node else ()

    # --- records ------------------------------------------------------------------------------------------------------

    def record(self, key: str, rung: Rung, outcome: RemedyOutcome, reason: str, message: str) -> None:
        """A step that is not under way. Said again it stays as it was: only what changes is written."""
        before = self.records.get(key)
        if before is not None and (before.outcome, before.reason) == (outcome, reason):
            return
        started = before.started_at if before is not None else None
        is_final = outcome in (RemedyOutcome.REFUSED, RemedyOutcome.SKIPPED) and reason != NODE_TAKEN
        self._put(
            RemedyRecord(
                key=key,
                action=rung.action,
                target=self._target(rung.action),
                outcome=outcome,
                reason=reason,
                message=message,
                why_not=self.why_not,
                started_at=started,
                ended_at=to_time(self.now) if is_final else None,
            )
        )

    def hold_back(self, key: str, rung: Rung, held: Held) -> None:
        self.record(key, rung, RemedyOutcome.HELD_BACK, held.reason, held.message)
        self.looks.append(self.now + HELD_S)

    def amend(self, key: str, outcome: RemedyOutcome, reason: str, message: str, at: float | None = None) -> None:
        """The end of a step, or another one."""
        moment = to_time(self.now if at is None else at)
        self._put(
            msgspec.structs.replace(self.records[key], outcome=outcome, reason=reason, message=message, ended_at=moment)
        )

    def _start(self, key: str, action: str, target: str, seconds: float, via: str, message: str = "") -> RemedyRecord:
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
        self._put(record)
        return record

    def _put(self, record: RemedyRecord) -> None:
        self.records[record.key] = record

    def _target(self, action: Action) -> str:
        subject, domain = self.case.subject, self.case.domain
        if action in RECYCLES:
            return domain.name or subject.node
        return f"{subject.node}/{subject.device}" if subject.device else subject.node or subject.domain

    # --- moves --------------------------------------------------------------------------------------------------------

    def impossible(self, stage: Stage) -> tuple[RemedyOutcome, str, str] | None:
        """Why this rung cannot be done here at all: outcome, reason, sentence."""
        case, action, hook = self.case, stage.rung.action, stage.rung.hook
        kind, domain = case.subject.kind, case.domain
        if kind is not SubjectKind.DEVICE and action in (Action.PROBE, Action.RESET) and hook is None:
            return RemedyOutcome.SKIPPED, "NotADevice", f"A {kind.value.lower()} cannot be {_DONE_TO[action]}."
        if not case.subject.node and (action is not Action.TICKET or (hook is not None and hook.command)):
            return RemedyOutcome.SKIPPED, "NoNode", f"{action} needs a node; {case.subject.domain} is none."
        if action is Action.REPLACE and hook is None:
            words = f"Policy {case.policy.name} has no hook for replace, and Remuda cannot replace a node by itself."
            return RemedyOutcome.REFUSED, "NoHook", words
        if action in RECYCLES and case.policy.spec.drain.whole_domain and domain.name and domain.missing:
            known = f"{len(domain.nodes)} of its {len(domain.nodes) + domain.missing} nodes are known"
            words = f"{case.subject.node} is part of {domain.name} and is not recycled alone; {known}."
            return RemedyOutcome.REFUSED, "DomainIncomplete", words
        return None

    def may_have(self, key: str, rung: Rung, targets: Sequence[str]) -> Move:
        """Whether the nodes are free to be worked on: of other actors, and of our own incidents."""
        for name in targets:
            node = self.case.nodes.get(name)
            if node is None:
                self.hold_back(key, rung, Held("NodeGone", f"There is no node {name} now."))
                return WAIT
            if words := other_actor(node, take_over=self.case.policy.spec.drain.take_over):
                self.record(key, rung, RemedyOutcome.REFUSED, NODE_TAKEN, words)
                self.looks.append(self.now + HELD_S)
                return WAIT
            busy = sorted((owners_of(node) - {self.case.incident.name}) & self.case.at_work)
            if busy:
                self.hold_back(key, rung, Held("NodeBusy", f"{name} is being worked on for {busy[0]}."))
                return WAIT
        return GO

    def emptied(self, key: str, stage: Stage) -> Move:
        """Drain the nodes."""
        targets, drain = self.targets(stage.rung.action), self.case.policy.spec.drain
        record = self.records.get(key)
        if record is None:
            words = f"For {stage.key}: {', '.join(targets)}."
            record = self._start(key, "drain", ", ".join(targets), drain.deadline_seconds + GRACE_S, CORDON, words)
        if record.outcome is not RemedyOutcome.RUNNING:
            return GO if record.outcome is RemedyOutcome.SUCCEEDED else NEXT
        started = to_seconds(record.started_at or to_time(self.now))
        plan = plan_drain({n: self.case.pods.get(n, ()) for n in targets}, drain, started, self.now)
        self.keep_empty(targets)
        if not plan.is_done:
            self._request = DrainRequest(self.case.incident.name, started + drain.checkpoint_seconds)
            self._drain = plan
            self.looks.append(self.now + (plan.look_again_s or WAITS_S))
            return WAIT
        self.amend(key, RemedyOutcome.SUCCEEDED, "", plan.message)
        return GO

    def has_ended(self, key: str) -> bool:
        return (
            key in self.records
            and self.records[key].outcome is not RemedyOutcome.RUNNING
            and not is_open(self.records[key])
        )

    def keep_empty(self, targets: Sequence[str]) -> None:
        self._hold.update(targets)
        self._cordon.update(targets)

    def done(self, key: str, rung: Rung, targets: Sequence[str], *, is_waiting_for_device: bool) -> Move:
        """The rung itself: begun once, waited for, ended."""
        record = self.records.get(key)
        if record is None or is_open(record):
            if rung.action is Action.TICKET and rung.hook is None:
                words = "Recorded here; the policy's webhooks are told. The device stays out of use."
                self._start(key, rung.action, self._target(rung.action), rung.timeout_seconds, RECORD)
                self.amend(key, RemedyOutcome.SUCCEEDED, "", words)
                return GO
            if is_waiting_for_device and rung.action is not Action.TICKET:
                move = self._free_device(key, rung)
                if move is not GO:
                    return move
            is_free = rung.action is Action.TICKET or self._hold >= set(targets)
            if not is_free and self.may_have(key, rung, targets) is not GO:
                return WAIT
            record = self._start(key, rung.action, self._target(rung.action), rung.timeout_seconds, _via(rung.hook))
        if record.outcome is RemedyOutcome.RUNNING:
            return self._follow(record, rung, targets)
        return GO if record.outcome is RemedyOutcome.SUCCEEDED else NEXT

    def verified(self, stage: Stage) -> Move:
        """The probe after a rung. The nodes stay ours and, when they were drained, empty until it has ended."""
        key, node = stage.verify_key, self.case.subject.node
        if stage.drain_key and not self.has_ended(key):
            self.keep_empty(self.targets(stage.rung.action))
        if self.case.subject.kind is not SubjectKind.DEVICE:
            if key not in self.records:
                self._start(key, Action.PROBE, node, VERIFY_S, RECORD)
                self.amend(key, RemedyOutcome.SUCCEEDED, "", "The node came back; the soak decides.")
            return GO if self.records[key].outcome is RemedyOutcome.SUCCEEDED else NEXT
        return self.done(key, Rung(Action.PROBE, timeout_seconds=VERIFY_S), (node,), is_waiting_for_device=False)

    def _free_device(self, key: str, rung: Rung) -> Move:
        """Nobody's process may be on a device that is tested or reset. A holder that is to stay is waited for as long
        as it stays; one that was told to go and does not, for as long as the rung may take."""
        holders = self._holders()
        if not holders:
            return GO
        named = ", ".join(sorted({h.pod for h in holders}))
        ends = self._opened + rung.timeout_seconds
        if all(h.draining for h in holders):
            if self.now >= ends:
                words = f"{named} was told to go and still holds it."
                self.record(key, rung, RemedyOutcome.HELD_BACK, DEVICE_IN_USE, words)
                self.amend(key, RemedyOutcome.TIMED_OUT, DEVICE_IN_USE, words)
                return NEXT
            self.looks.append(ends)
        self.record(
            key, rung, RemedyOutcome.HELD_BACK, DEVICE_IN_USE, f"{self.case.subject.device} is held by {named}."
        )
        return WAIT

    @property
    def _opened(self) -> float:
        """When the incident began. A time ahead of the clock is no time: then the object's own counts, or it was long ago."""
        status, meta = self.case.incident.status, self.case.incident.metadata
        if status.opened_at is None:
            return self.now
        times = [to_seconds(t) for t in (status.opened_at, meta.creation_timestamp) if t is not None]
        return next((t for t in times if t <= self.now + SKEW_S), 0.0)

    def _holders(self) -> list[Holder]:
        devices, name = self.case.devices, self.case.subject.device
        if devices is None or not name:
            return []
        held = held_on(devices, self.case.pods.get(devices.name, ()))
        rows = [name, *(d.id for d in devices.observed.devices if d.parent == name)]
        return [holder for row in rows for holder in held.get(row, ())]

    def disturbs(self, key: str, rung: Rung, targets: Sequence[str]) -> Move:
        """One failed device is not worth the work on the other seven: it is waited for a time when nobody has them."""
        patience = self._opened + self.case.policy.spec.drain.patience_seconds
        if rung.action not in RECYCLES or self.now >= patience:
            return GO
        pods: set[str] = set()
        for name in targets:
            ledger = self.case.ledgers.get(name)
            if ledger is not None:
                held = held_on(ledger, self.case.pods.get(name, ()))
                pods |= {h.pod for holders in held.values() for h in holders if not h.draining}
        if not pods:
            return GO
        named = ", ".join(sorted(pods)[:3]) + (" ..." if len(pods) > 3 else "")
        words = f"{named} would have to leave for it; left in peace until {to_time(patience):%H:%M:%S}."
        self.record(key, rung, RemedyOutcome.HELD_BACK, NODE_IN_USE, words)
        self.looks.append(patience)
        return WAIT

    # --- doing --------------------------------------------------------------------------------------------------------

    def _follow(self, record: RemedyRecord, rung: Rung, targets: Sequence[str]) -> Move:
        self._hold.update(targets)
        deadline = to_seconds(record.deadline) if record.deadline is not None else self.now
        if record.via == OBJECT and rung.hook is not None:
            return self._follow_objects(record, rung.hook, targets, deadline)
        id = order_id(self.case.incident, record.key)
        answers = {name: self._answer(name, id) for name in targets}
        ended = [a for a in answers.values() if a is not None and a.outcome != RemedyOutcome.RUNNING]
        bad = next((a for a in ended if a.outcome != RemedyOutcome.SUCCEEDED), None)
        if bad is not None:
            self.amend(record.key, _outcome(bad.outcome), bad.reason, bad.message)
            return NEXT
        if len(ended) == len(targets):
            started = to_seconds(record.started_at) if record.started_at is not None else self.now
            times = [at for a in ended if a.time is not None and started <= (at := to_seconds(a.time)) <= self.now]
            words = " ".join(dict.fromkeys(a.message for a in ended if a.message))
            self.amend(record.key, RemedyOutcome.SUCCEEDED, "", words, max(times, default=self.now))
            if record.action == Action.TICKET:
                self._ticket = words.strip().split("\n")[0][:200]
            return GO
        if self.now >= deadline + GRACE_S:
            silent = ", ".join(name for name in targets if answers[name] not in ended)
            self.amend(record.key, RemedyOutcome.TIMED_OUT, "DeadlinePassed", f"{silent} did not answer in time.")
            return NEXT
        for name in targets:
            self._orders.setdefault(name, {})[id] = self._order_for(name, record, rung)
        self.looks.append(deadline + GRACE_S)
        return WAIT

    def _answer(self, node: str, id: str) -> OrderAnswer | None:
        ledger = self.case.ledgers.get(node)
        return next((a for a in ledger.observed.answers if a.id == id), None) if ledger is not None else None

    def _order_for(self, node: str, record: RemedyRecord, rung: Rung) -> DeviceOrder:
        command = rung.hook.command if rung.hook is not None else []
        is_about_device = node == self.case.subject.node and (bool(command) or rung.action not in RECYCLES)
        env = {f"REMUDA_{name.upper()}": value for name, value in self._facts(node, rung.action).items()}
        return DeviceOrder(
            action="command" if command else rung.action.value,
            device=self.case.subject.device if is_about_device else "",
            command=command,
            env=env if command else {},
            by=self.case.incident.name,
            since=record.started_at,
            deadline=record.deadline,
        )

    def _facts(self, node: str, action: Action) -> dict[str, str]:
        """What a hook is told."""
        is_subject = node == self.case.subject.node
        return {
            "node": node,
            "device": self.case.subject.device if is_subject else "",
            "uuid": self.case.seen.uuid if is_subject and self.case.seen is not None else "",
            "incident": self.case.incident.name,
            "action": action.value,
        }

    def _follow_objects(self, record: RemedyRecord, hook: Hook, targets: Sequence[str], deadline: float) -> Move:
        made = self.case.made if self.case.made is not None and self.case.made.key == record.key else None
        if made is not None and made.outcome:
            self.amend(
                record.key, _outcome(made.outcome), "" if made.outcome == "Succeeded" else "HookFailed", made.message
            )
            if record.action == Action.TICKET and made.outcome == "Succeeded":
                self._ticket = ", ".join(made.names)
            return GO if made.outcome == "Succeeded" else NEXT
        if self.now >= deadline:
            self.amend(record.key, RemedyOutcome.TIMED_OUT, "DeadlinePassed", "The hook's object did not end in time.")
            return NEXT
        action = Action(record.action)
        bodies = tuple(
            hook_body(hook, self._facts(name, action), f"{self.case.incident.name}-{record.key}", index, len(targets))
            for index, name in enumerate(targets or ("",))
        )
        self._call = ObjectCall(record.key, bodies, hook.success_condition, hook.failure_condition)
        self.looks.append(min(self.now + POLL_S, deadline))
        return WAIT

    # --- the answer ---------------------------------------------------------------------------------------------------

    def changed(
        self,
        status: IncidentStatus,
        phase: IncidentPhase,
        records: list[RemedyRecord],
        conditions: list[Condition],
    ) -> IncidentStatus:
        return msgspec.structs.replace(
            status,
            phase=phase,
            remedies=records if records != status.remedies else status.remedies,
            soak_until=to_time(self.soak_until) if self.soak_until is not None else None,
            ticket=self._ticket or status.ticket,
            conditions=conditions,
        )

    def step(self, status: IncidentStatus, quarantine: QuarantineOrder | None) -> Step:
        ahead = [at for at in self.looks if at > self.now]
        return Step(
            status=status,
            quarantine=quarantine,
            hold=frozenset(self._hold),
            cordon=frozenset(self._cordon),
            request=self._request,
            orders=self._orders,
            drain=self._drain,
            call=self._call,
            look_again_s=min(ahead) - self.now + 0.001 if ahead else None,
        )


_DONE_TO = {Action.PROBE: "probed", Action.RESET: "reset"}


def is_open(record: RemedyRecord) -> bool:
    """It binds nobody and is looked at anew each time."""
    is_taken = record.outcome is RemedyOutcome.REFUSED and record.reason == NODE_TAKEN
    return is_taken or record.outcome in (RemedyOutcome.HELD_BACK, RemedyOutcome.WAITING, RemedyOutcome.OBSERVED)


def _via(hook: Hook | None) -> str:
    return AGENT if hook is None else COMMAND if hook.command else OBJECT


def _outcome(word: str) -> RemedyOutcome:
    known = {o.value: o for o in (RemedyOutcome.SUCCEEDED, RemedyOutcome.TIMED_OUT, RemedyOutcome.REFUSED)}
    return known.get(word, RemedyOutcome.FAILED)

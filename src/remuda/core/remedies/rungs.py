"""A ladder laid out: every step that may be taken, in order, under the key its record has. Pure.

A rung of n attempts is n *stages*; a stage is up to three *steps*, each with a record of its own:

    drain-reboot-1    the node is emptied           (reboot and replace)
    reboot-1          the rung itself
    probe-reboot-1    whether it has cured          (reset, reboot and replace)

The keys depend on the ladder alone, so a record always says which step it is of, and a step that has one is never taken
twice. Ladders only go up: a stage below one that was begun is not looked at again, also when a repeat offender is none
any more by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.devices import NodeDevices
from remuda.api.incidents import Incident, IncidentPhase, RemedyOutcome, RemedyRecord, Subject, SubjectKind
from remuda.api.meta import to_seconds
from remuda.api.remedies import Action, Ladder, Offender, Rung
from remuda.core.remedies.remedy_keys import drain_rung_key, is_workload_remedy_key, remedy_key_of_probe, rung_key

# Condition of an incident: True while its ladder is climbed (the reason says which), False once it has ended without a cure.
LADDER = "Ladder"
ENDED = "LadderEnded"
NODE_TAKEN = "NodeTakenByOther"
DEVICE_IN_USE = "DeviceInUse"
NODE_IN_USE = "NodeInUse"
TOO_EARLY = "TooEarly"
PART_OF_DOMAIN = "PartOfDomain"
NO_LADDER = "NoLadder"  # reason of the condition `Ladder`, which is Unknown then: there is none for this fault
VERIFY_S = 120.0
OWN_TIME = (TOO_EARLY, PART_OF_DOMAIN)  # held back by what no room in the limits would end

RECYCLES = (Action.REBOOT, Action.REPLACE)  # the node goes down, so it is drained first
_CHANGES = (Action.RESET, *RECYCLES)  # something was done to the device, so a probe follows
_HEIGHT = {action: number for number, action in enumerate(Action)}


class LadderStage(msgspec.Struct, frozen=True):
    """One attempt of one rung."""

    key: str
    rung: Rung
    before: tuple[str, ...] = ()  # the rung's earlier attempts

    @property
    def drain_rung_key(self) -> str:
        return drain_rung_key(self.key) if self.rung.action in RECYCLES else ""

    @property
    def verify_key(self) -> str:
        return remedy_key_of_probe(self.key) if self.rung.action in _CHANGES else ""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.drain_rung_key, self.key, self.verify_key)))


def lay_out_remedy_stages(ladder: Ladder) -> list[LadderStage]:
    taken: dict[Action, int] = {}
    stages = []
    for rung in ladder.rungs:
        before: tuple[str, ...] = ()
        for _ in range(rung.attempts):
            number = taken[rung.action] = taken.get(rung.action, 0) + 1
            stages.append(LadderStage(rung_key(rung.action, number), rung, before))
            before = (*before, stages[-1].key)
    return stages


def ladder_rungs_in_words(ladder: Ladder) -> str:
    """probe, reset x2, reboot, ticket"""
    return ", ".join(f"{r.action}{f' x{r.attempts}' if r.attempts > 1 else ''}" for r in ladder.rungs)


def first_ladder_stage(
    stages: Sequence[LadderStage], records: Mapping[str, RemedyRecord], is_offender: bool, action: Action
) -> int:
    """Where to start: at the last stage that was begun, or where repeat offenders begin."""
    begun = [n for n, stage in enumerate(stages) if any(_has_rung_begun(records.get(key)) for key in stage.keys)]
    start = begun[-1] if begun else 0
    if is_offender and not begun:
        high = (n for n, stage in enumerate(stages) if _HEIGHT[stage.rung.action] >= _HEIGHT[action])
        return next(high, max(0, len(stages) - 1))
    return start


def is_repeat_offender_by_policy(devices: NodeDevices | None, subject: Subject, offender: Offender, now: float) -> bool:
    if devices is None or subject.kind is not SubjectKind.DEVICE or subject.device not in devices.history:
        return False
    failures = devices.history[subject.device].failures
    return sum(now - to_seconds(f) <= offender.window_seconds for f in failures) > offender.incidents


# --- what the records say ---------------------------------------------------------------------------------------------


def device_remedies(records: Iterable[RemedyRecord]) -> dict[str, RemedyRecord]:
    """Those of the device ladder, by key."""
    return {r.key: r for r in records if not is_workload_remedy_key(r.key)}


def _has_rung_begun(record: RemedyRecord | None) -> bool:
    return record is not None and record.started_at is not None


def first_remedy_began_at(incident: Incident) -> float | None:
    """When the first rung was taken; None when none was."""
    starts = [r.started_at for r in device_remedies(incident.status.remedies).values() if r.started_at is not None]
    return to_seconds(min(starts)) if starts else None


def are_remedies_exhausted(incident: Incident) -> bool:
    condition = find_condition(incident.status.conditions, LADDER)
    return condition is not None and condition.status == "False"


def is_under_remedy(incident: Incident) -> bool:
    """Something is being done, or the soak after it is not over. What waits for its next rung has to pass the limits again."""
    if not incident.is_open:
        return False
    records = device_remedies(incident.status.remedies).values()
    is_soaking = incident.status.phase is IncidentPhase.VERIFYING and first_remedy_began_at(incident) is not None
    return is_soaking or any(r.outcome is RemedyOutcome.RUNNING for r in records)


def is_remedy_held_back(incident: Incident) -> bool:
    records = device_remedies(incident.status.remedies).values()
    return incident.is_open and any(r.outcome is RemedyOutcome.HELD_BACK and r.reason not in OWN_TIME for r in records)


def remedy_needs_approval(record: RemedyRecord) -> bool:
    """Only an operator's yes or no gets it on."""
    is_part = record.outcome is RemedyOutcome.HELD_BACK and record.reason == PART_OF_DOMAIN
    return is_part or record.outcome is RemedyOutcome.WAITING

"""The job's own rules: which one a failure matches. First match wins.

Only faults that explain the interruption are asked: ranks that die beside a broken device, or of one another, end with codes that
say nothing. A rule names an exit code, a pattern in the end of the rank's log, a fault (its reason, say NodeLost or Xid79, or
its class in the table of device faults, say ecc); all that it names must hold of one and the same fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import msgspec

from remuda.api.patterns import is_in_log
from remuda.api.training import FailureRule
from remuda.core.devices.fault_codes import fault_table
from remuda.core.gang.gang_remedy import Fault, causes_of

ASKED = 32  # so many faults are held against patterns: a gang that dies whole dies of one thing


class Ruling(msgspec.Struct, frozen=True):
    """The rule that decides, by the name it is told by, and the faults it matches."""

    rule: FailureRule
    name: str
    matched: tuple[Fault, ...]


def find_rule(rules: Sequence[FailureRule], faults: Sequence[Fault]) -> Ruling | None:
    if not rules:
        return None
    causes = set(causes_of(faults))
    asked = [f for f in faults if f.cause in causes]
    for index, rule in enumerate(rules):
        matched = tuple(f for f in _worth_asking(rule, asked) if matches(rule, f))
        if matched:
            return Ruling(rule, rule.name or f"rules[{index}]", matched)
    return None


def _worth_asking(rule: FailureRule, faults: Sequence[Fault]) -> Iterable[Fault]:
    return faults[:ASKED] if rule.log_pattern else faults


def matches(rule: FailureRule, fault: Fault) -> bool:
    if rule.exit_codes and fault.code not in rule.exit_codes:
        return False
    if rule.faults and not {fault.reason.lower(), _class_of(fault.reason)} & {name.lower() for name in rule.faults}:
        return False
    return not rule.log_pattern or is_in_log(rule.log_pattern, fault.tail or fault.message)


def known_classes() -> frozenset[str]:
    return frozenset(_classes().values())


def _class_of(reason: str) -> str:
    return _classes().get(reason, "")


@cache
def _classes() -> dict[str, str]:
    return {fault.reason: fault.cls for fault in fault_table().by_code.values()}

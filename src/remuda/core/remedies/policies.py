"""Which RemedyPolicy a device is under, and which ladder a fault climbs. Pure.

Of the policies whose selector matches, the highest `priority` decides, then the most selective, then the first name. The policy
named `default`, or without one the built-in, applies to all other devices. Two policies that only their names tell apart
*overlap*: the choice stays the same on every look, and a condition on both says that it was made by name.

A ladder is found by the verdict's reason first, then by the remedy the fault table asks for, then `*`. A policy that names
ladders has those and no others; one that names none has the built-in ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.errors import Refusal
from remuda.api.incidents import IncidentVerdict
from remuda.api.meta import ObjectMeta, to_seconds
from remuda.api.remedies import (
    DEFAULT_POLICY,
    Action,
    Ladder,
    Mode,
    Pause,
    PolicySelector,
    RemedyPolicy,
    RemedyPolicySpec,
    Rung,
)
from remuda.api.validation.remedy_policies import MAX_PATTERN, MAX_PATTERNS, check_policy
from remuda.core.devices.fault_codes import DeviceRemedy, fault_table

ANY_FAULT = "*"
BY_JOB = "job "  # how the name begins of a job that keeps a device out, because something of it may still run there
BY_OPERATOR = "ByOperator"  # reason of a quarantine that an operator gave by hand: an order, and no fault
OVERLAPS = "Overlaps"

# Reasons that are no fault code's.
OWN_REASONS = frozenset(
    "UnknownFaultCode DeviceFlapping RepeatOffender AgentSilent NodeLost SlowRank RackSuspect NvlinkDomainSuspect PowerEvent "
    "DomainSuspect MassSilence NvswitchFailed NodeSuspect DriverHang DevicesMissing PluginLost DevicesNotListed".split()
)
# What several nodes share has failed. No node of them is worked on for that by itself: somebody has to look at it first.
SHARED_REASONS = ("RackSuspect", "NvlinkDomainSuspect", "PowerEvent", "DomainSuspect", "MassSilence")


def _build_rungs(*said: tuple[Action, int, float]) -> list[Rung]:
    return [Rung(action, timeout_seconds=seconds, attempts=attempts) for action, attempts, seconds in said]


_PROBE = (Action.PROBE, 1, 120.0)
_REBOOT_S, _REPLACE_S, _TICKET_S = 1200.0, 86_400.0, 300.0
_LAST = ((Action.REPLACE, 1, _REPLACE_S), (Action.TICKET, 1, _TICKET_S))

BUILT_IN_LADDERS: tuple[Ladder, ...] = (
    Ladder(DeviceRemedy.RESTART_APP, []),  # the device is fine
    Ladder(
        DeviceRemedy.RESET_DEVICE, _build_rungs(_PROBE, (Action.RESET, 2, 300.0), (Action.REBOOT, 1, _REBOOT_S), *_LAST)
    ),
    Ladder(DeviceRemedy.REBOOT_NODE, _build_rungs(_PROBE, (Action.REBOOT, 2, _REBOOT_S), *_LAST)),
    Ladder(DeviceRemedy.REPLACE, _build_rungs(*_LAST)),
    # It passes every probe when it is there, so a probe proves nothing before something was done to it.
    Ladder("DeviceFlapping", _build_rungs((Action.RESET, 1, 300.0), (Action.REBOOT, 1, _REBOOT_S), *_LAST)),
    Ladder("RepeatOffender", _build_rungs(*_LAST)),
    Ladder("UnknownFaultCode", _build_rungs(_PROBE, (Action.TICKET, 1, _TICKET_S))),
    # Most come back by themselves, and nobody on the node can be told anything: only hooks that reach it from outside help.
    Ladder(
        "NodeLost",
        [
            Rung(Action.REBOOT, timeout_seconds=_REBOOT_S, after_seconds=600.0),
            Rung(Action.REPLACE, timeout_seconds=_REPLACE_S, after_seconds=1800.0),
            Rung(Action.TICKET, timeout_seconds=_TICKET_S, after_seconds=1800.0),
        ],
    ),
    *(Ladder(reason, _build_rungs((Action.TICKET, 1, _TICKET_S))) for reason in SHARED_REASONS),
)

BUILT_IN = RemedyPolicy(metadata=ObjectMeta(name=DEFAULT_POLICY))


INVALID = "Invalid"
_NO_TYPE = "\0"  # matches no device


def remedy_policy_refusal(policy: RemedyPolicy) -> Refusal | None:
    """Why it would not have been let in. Where the API checks types alone, one that contradicts itself may be there."""
    try:
        check_policy(policy)
    except Refusal as refusal:
        return refusal
    return None


def policy_in_force(policy: RemedyPolicy) -> RemedyPolicy:
    """The policy as it is acted on. One that would not have been let in still has its nodes, so that no milder policy gets
    them by somebody's slip, but nothing is done to them: it observes."""
    if remedy_policy_refusal(policy) is None:
        return policy
    asked, selector = policy.spec.selector, PolicySelector()
    if policy.name != DEFAULT_POLICY:
        patterns = [p for p in asked.device_types if len(p) <= MAX_PATTERN][:MAX_PATTERNS]
        selector = PolicySelector(patterns or ([_NO_TYPE] if asked.device_types else []), asked.nodes)
    spec = RemedyPolicySpec(selector=selector, priority=policy.spec.priority, mode=Mode.OBSERVE)
    return msgspec.structs.replace(policy, spec=spec)


class PolicyOverlap(msgspec.Struct, frozen=True):
    """Two policies that would both be right. `winner` is the one that is taken."""

    winner: str
    loser: str


def policy_selects(selector: PolicySelector, device_type: str, labels: Mapping[str, str]) -> bool:
    if selector.device_types and not any(fnmatchcase(device_type, pattern) for pattern in selector.device_types):
        return False
    return all(labels.get(name) == value for name, value in selector.nodes.items())


def policy_selectivity(selector: PolicySelector) -> tuple[int, int]:
    """How much it asks for: labels first, then how much of the type's name is spelt out."""
    spelt = [len(p.replace("*", "").replace("?", "")) for p in selector.device_types]
    return len(selector.nodes), min(spelt, default=-1)


def remedy_policy_for(device_type: str, labels: Mapping[str, str], policies: Iterable[RemedyPolicy]) -> RemedyPolicy:
    """The policy of a device of that type on a node with those labels. There always is one."""
    fallback = BUILT_IN
    best: RemedyPolicy | None = None
    for policy in policies:
        if policy.is_deleting:
            continue
        if policy.name == DEFAULT_POLICY:
            fallback = policy
        elif policy_selects(policy.spec.selector, device_type, labels) and (
            best is None or _policy_rank(policy) < _policy_rank(best)
        ):
            best = policy
    return best or fallback


def device_type_for_remedy_policy(devices: NodeDevices) -> str:
    """A node goes by the policy of its first device."""
    return next((d.type for d in devices.observed.devices if not d.parent), "")


def _policy_rank(policy: RemedyPolicy) -> tuple[int, int, int, str]:
    """Smaller is better."""
    spec = policy.spec
    labels, spelt = policy_selectivity(spec.selector)
    return -spec.priority, -labels, -spelt, policy.name


def policy_overlaps(policy: RemedyPolicy, others: Iterable[RemedyPolicy]) -> list[PolicyOverlap]:
    """Those that only the name decides between. Whether a device is under both is not asked: one may come."""
    found = []
    for other in sorted(others, key=lambda p: p.name):
        if DEFAULT_POLICY in (other.name, policy.name) or other.name == policy.name or other.is_deleting:
            continue
        if _policy_rank(policy)[:3] == _policy_rank(other)[:3] and _can_policies_meet(
            policy.spec.selector, other.spec.selector
        ):
            first, second = sorted((policy, other), key=_policy_rank)
            found.append(PolicyOverlap(first.name, second.name))
    return found


def _can_policies_meet(one: PolicySelector, other: PolicySelector) -> bool:
    if any(other.nodes.get(name, value) != value for name, value in one.nodes.items()):
        return False
    if not one.device_types or not other.device_types:
        return True
    return any(policy_patterns_meet(a, b) for a in one.device_types for b in other.device_types)


def policy_patterns_meet(one: str, other: str) -> bool:
    """Whether a text may fit both shell patterns. `*` and `?` are known; what is in brackets is taken to fit anything."""
    if "[" in one or "[" in other:
        return True
    rows = [[False] * (len(other) + 1) for _ in range(len(one) + 1)]
    for a in range(len(one), -1, -1):
        for b in range(len(other), -1, -1):
            rows[a][b] = _policy_patterns_meet_from(one, a, other, b, rows)
    return rows[0][0]


def _policy_patterns_meet_from(one: str, a: int, other: str, b: int, rest: Sequence[Sequence[bool]]) -> bool:
    x, y = one[a : a + 1], other[b : b + 1]
    if not x and not y:
        return True
    if x == "*":
        return rest[a + 1][b] or (bool(y) and rest[a][b + 1])
    if y == "*":
        return rest[a][b + 1] or (bool(x) and rest[a + 1][b])
    return bool(x and y) and (x == y or "?" in (x, y)) and rest[a + 1][b + 1]


def policy_ladders(policy: RemedyPolicy) -> Sequence[Ladder]:
    return policy.spec.ladders or BUILT_IN_LADDERS


def remedy_policy_ladder_for_verdict(policy: RemedyPolicy, verdict: IncidentVerdict) -> Ladder | None:
    """None: nothing is done to the device. One that is merely slow, about which nothing is known, or that an operator keeps out
    for reasons of their own, is only worked on when the policy names its reason, or the fault table asks for more than a
    restart of the application."""
    by_name = {ladder.when: ladder for ladder in policy_ladders(policy)}
    if verdict.reason in by_name:
        return _climbable_ladder(by_name[verdict.reason])
    if verdict.remedy in by_name:
        return _climbable_ladder(by_name[verdict.remedy])
    if (
        verdict.state in (DeviceState.DEGRADED, DeviceState.UNKNOWN, DeviceState.HEALTHY)
        or verdict.reason == BY_OPERATOR
    ):
        return None
    return _climbable_ladder(by_name[ANY_FAULT]) if ANY_FAULT in by_name else None


def _climbable_ladder(ladder: Ladder) -> Ladder | None:
    return ladder if ladder.rungs else None


def remedy_reasons_matching_no_fault(policy: RemedyPolicy) -> list[str]:
    """What its ladders wait for and no fault of this build has as its reason."""
    known = {f.reason for f in fault_table().by_code.values()} | OWN_REASONS | {r.value for r in DeviceRemedy}
    return sorted({ladder.when for ladder in policy.spec.ladders} - known - {ANY_FAULT})


def is_policy_paused(pause: Pause | None, now: float) -> bool:
    return pause is not None and (pause.until is None or now < to_seconds(pause.until))

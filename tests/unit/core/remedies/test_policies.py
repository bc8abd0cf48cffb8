"""Which policy a device is under, which ladder a fault climbs, and what is odd about a policy."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.devices import DeviceState
from remuda.api.incidents import IncidentVerdict
from remuda.api.meta import to_time
from remuda.api.remedies import Action, Pause, PolicySelector
from remuda.core.devices.fault_codes import DeviceRemedy, classify_device_fault_code, fault_table
from remuda.core.remedies.policies import (
    BUILT_IN,
    PolicyOverlap,
    is_policy_paused,
    policy_overlaps,
    policy_patterns_meet,
    remedy_policy_for,
    remedy_policy_ladder_for_verdict,
    remedy_reasons_matching_no_fault,
)
from remuda.core.remedies.rungs import ladder_rungs_in_words
from tests.builders.remedies import ladder, remedy_policy

H100, LABELS = "NVIDIA H100 80GB HBM3", {"pool": "a", "rack": "r1"}


def selecting(name: str, *types: str, priority: int = 0, **nodes: str) -> Any:
    return remedy_policy(name, priority=priority, selector=PolicySelector(list(types), nodes))


def chosen(*policies: Any, labels: dict[str, str] | None = None) -> str:
    return remedy_policy_for(H100, LABELS if labels is None else labels, policies).name


def test_the_built_in_takes_what_no_other_does() -> None:
    assert remedy_policy_for(H100, {}, []) is BUILT_IN
    assert chosen(selecting("amd", "AMD*")) == "default"
    mine = remedy_policy("default", priority=100)
    assert remedy_policy_for(H100, {}, [mine]) is mine
    assert chosen(mine, selecting("z", "NVIDIA*")) == "z", "default never competes, whatever its priority"


def test_priority_then_selectivity_then_name() -> None:
    wide, narrow = selecting("wide", "NVIDIA*"), selecting("narrow", "NVIDIA H100*")
    assert chosen(wide, narrow) == "narrow"
    assert chosen(selecting("wide", "NVIDIA*", priority=1), narrow) == "wide"
    assert chosen(narrow, selecting("pool", pool="a")) == "pool", "labels are more selective than types"
    assert chosen(narrow, selecting("pool", pool="a"), labels={}) == "narrow"
    assert chosen(selecting("pool", pool="a"), selecting("both", pool="a", rack="r1")) == "both"
    same = [selecting("b", "NVIDIA*"), selecting("a", "NVIDIA*")]
    assert chosen(*same) == chosen(*reversed(same)) == "a"


def test_overlaps_are_told_on_both_sides() -> None:
    a, b = selecting("a", "NVIDIA H*"), selecting("b", "*A H200")
    assert policy_overlaps(a, [a, b]) == []  # more is spelt out in one of them
    b = selecting("b", "*H200 gpu")
    assert policy_overlaps(a, [b]) == policy_overlaps(b, [a]) == [PolicyOverlap("a", "b")]
    assert policy_overlaps(selecting("a", pool="a"), [selecting("b", pool="b")]) == []
    assert policy_overlaps(selecting("a", pool="a"), [selecting("b", rack="b")]) == [PolicyOverlap("a", "b")]
    assert policy_overlaps(selecting("a", "AMD MI3*"), [selecting("b", "AMD MI2*")]) == []
    assert policy_overlaps(selecting("a"), [selecting("b", priority=1)]) == []
    assert policy_overlaps(selecting("a"), [remedy_policy("default")]) == []


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("*", "x", True),
        ("a*", "*b", True),
        ("a*c", "ab*", True),
        ("a?", "a", False),
        ("ab", "a?", True),
        ("a*", "b*", False),
        ("", "*", True),
        ("*x*", "*y*", True),
        ("[ab]", "c", True),  # not looked into: told rather than missed
    ],
)
def test_whether_two_patterns_can_fit_one_text(one: str, other: str, meet: bool) -> None:
    assert policy_patterns_meet(one, other) is meet
    assert policy_patterns_meet(other, one) is meet


def ladder_of(code: str, source: str = "kmsg") -> str:
    fault = classify_device_fault_code(source, code)
    found = remedy_policy_ladder_for_verdict(
        BUILT_IN, IncidentVerdict(state=fault.effect, reason=fault.reason, remedy=fault.remedy.value)
    )
    return ladder_rungs_in_words(found) if found is not None else ""


def test_row_40_codes_become_ladders() -> None:
    assert ladder_of("xid-31") == "", "a fault of the application leaves the device alone"
    assert ladder_of("xid-48") == "probe, reset x2, reboot, replace, ticket"
    assert ladder_of("xid-79") == "probe, reboot x2, replace, ticket"
    assert ladder_of("xid-54") == "replace, ticket"
    assert ladder_of("xid-9999") == "probe, ticket", "an unknown code takes the conservative class"


def test_every_code_that_takes_a_device_out_and_asks_for_something_has_a_ladder() -> None:
    asks = (DeviceRemedy.RESET_DEVICE, DeviceRemedy.REBOOT_NODE, DeviceRemedy.REPLACE)
    for fault in fault_table().by_code.values():
        if fault.effect is DeviceState.UNHEALTHY and fault.remedy in asks:
            assert ladder_of(fault.code), fault.code


def test_the_reason_goes_before_the_remedy_and_that_before_anything() -> None:
    policy = remedy_policy(
        "p", ladders=[ladder("*", Action.TICKET), ladder("ResetDevice", Action.RESET), ladder("Xid48", Action.PROBE)]
    )

    def when(reason: str, remedy: str, state: DeviceState = DeviceState.UNHEALTHY) -> str:
        found = remedy_policy_ladder_for_verdict(policy, IncidentVerdict(state=state, reason=reason, remedy=remedy))
        return found.when if found is not None else ""

    assert when("Xid48", "ResetDevice") == "Xid48"
    assert when("Xid62", "ResetDevice") == "ResetDevice"
    assert when("Xid79", "RebootNode") == "*"
    assert when("Straggler", "", DeviceState.DEGRADED) == ""
    assert when("DeviceFlapping", "", DeviceState.QUARANTINED) == "*"
    assert when("ByOperator", "", DeviceState.QUARANTINED) == "", "an operator's order is no fault"


def test_reasons_no_fault_has_are_told() -> None:
    policy = remedy_policy("p", ladders=[ladder("Xid79", Action.PROBE), ladder("Xid7999", Action.PROBE)])
    assert remedy_reasons_matching_no_fault(policy) == ["Xid7999"]


def test_a_pause_ends_by_itself() -> None:
    assert not is_policy_paused(None, 5.0)
    assert is_policy_paused(Pause(), 5.0)
    assert is_policy_paused(Pause(until=to_time(10.0)), 5.0)
    assert not is_policy_paused(Pause(until=to_time(10.0)), 10.0)

"""Fusion: many signals, one judgement; replays, repeats and wrong clocks change nothing."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import DeviceState, NodeDevices, Observed, ObservedDevice, Signal, Verdict
from remuda.api.meta import ObjectMeta, to_time
from remuda.core.health.ledger import judge_node
from remuda.core.health.signal_fusion import AHEAD, classify_device_signals, health_signal_debounce_ends_at
from remuda.core.health.signals import with_signal
from remuda.core.health.timers import HealthTimers

NOW = 10_000.0
DEGRADED, HEALTHY, UNHEALTHY, UNKNOWN = (
    DeviceState.DEGRADED,
    DeviceState.HEALTHY,
    DeviceState.UNHEALTHY,
    DeviceState.UNKNOWN,
)


def said(code: str, at: float | None = None, source: str = "kmsg", message: str = "") -> Signal:
    return Signal(source, code, message, None if at is None else to_time(at))


def a_record(*signals: Signal, findings: list[Signal] | None = None, before: Verdict | None = None) -> NodeDevices:
    return NodeDevices(
        metadata=ObjectMeta(name="n1"),
        observed=Observed(devices=[ObservedDevice("gpu-0", "H100", signals=list(signals))]),
        findings={"gpu-0": findings} if findings else {},
        verdicts=[before] if before else [],
    )


def verdict(*signals: Signal, now: float = NOW, **options: object) -> Verdict:
    [found] = judge_node(a_record(*signals, **options), [], now)  # type: ignore[arg-type]
    return found


def judged_on(record: NodeDevices, now: float) -> NodeDevices:
    return msgspec.structs.replace(record, verdicts=judge_node(record, [], now))


# --- findings -----------------------------------------------------------------------------------------------------------


def test_a_straggler_makes_its_device_degraded_and_says_why() -> None:
    found = verdict(findings=[said("straggler", 9000, "straggler", "Rank 3 takes 1.6 x its peers.")])
    assert (found.state, found.reason, found.source) == (DEGRADED, "SlowRank", "straggler/straggler")
    assert found.message == "Rank 3 takes 1.6 x its peers."
    assert found.since == to_time(9000)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ecc-trend", (DEGRADED, "EccTrend")),
        ("minor-faults", (DEGRADED, "MinorFaults")),
        ("switch-suspect", (DEGRADED, "SwitchSuspect")),
        ("repeat-offender", (UNHEALTHY, "RepeatOffender")),
    ],
)
def test_what_the_manager_finds_is_judged_like_a_signal(code: str, expected: tuple[DeviceState, str]) -> None:
    found = verdict(findings=[said(code, 9000, "trend")])
    assert (found.state, found.reason) == expected


def test_a_fault_of_the_device_speaks_before_a_finding() -> None:
    assert verdict(said("xid-79", 9000), findings=[said("straggler", 9500, "straggler")]).reason == "Xid79"


def test_evidence_of_health_clears_findings_and_not_later_ones() -> None:
    cure = said("probe-passed", 9100, "agent")
    assert verdict(cure, findings=[said("straggler", 9000, "straggler")]).state is HEALTHY
    assert verdict(cure, findings=[said("straggler", 9200, "straggler")]).state is DEGRADED


# --- one fact -----------------------------------------------------------------------------------------------------------


def test_two_sources_of_one_code_are_one_fact() -> None:
    first = judged_on(a_record(said("xid-79", 9000)), 9001)
    both = msgspec.structs.replace(
        first, observed=a_record(said("xid-79", 9000), said("xid-79", 9003, "nvml")).observed
    )
    [found] = judge_node(both, [], 9004)
    assert (found.since, found.source) == (to_time(9000), "kmsg/xid-79")
    assert "Reported by kmsg, nvml." in found.message


def test_a_repeat_of_the_other_fault_does_not_change_the_reason() -> None:
    record = judged_on(a_record(said("xid-62", 9000)), 9001)
    assert record.verdicts[0].reason == "Xid62"
    for signals in ([said("xid-62", 9000), said("xid-119", 9010)], [said("xid-119", 9010), said("xid-62", 9020)]):
        record = msgspec.structs.replace(record, observed=a_record(*signals).observed)
        record = judged_on(record, 9030)
        assert (record.verdicts[0].reason, record.verdicts[0].since) == ("Xid62", to_time(9000))


def test_the_more_drastic_remedy_speaks() -> None:
    found = verdict(said("row-remap-failed", 9000), said("xid-62", 9500))
    assert found.reason == "RowRemapFailed"


def test_a_failed_probe_confirms_a_fault_and_does_not_rename_it() -> None:
    assert verdict(said("xid-62", 9000), said("probe-failed", 9500, "probe")).reason == "Xid62"
    assert verdict(said("probe-failed", 9500, "probe")).reason == "ProbeFailed"


# --- order and replay ---------------------------------------------------------------------------------------------------


def test_a_signal_said_again_after_the_cure_does_not_count() -> None:
    assert verdict(said("probe-passed", 9100, "agent"), said("xid-79", 9000)).state is HEALTHY
    assert verdict(said("probe-passed", 9100, "agent"), said("xid-79", 9101)).state is UNHEALTHY


def test_a_fault_right_after_a_replayed_one_is_news() -> None:
    device = ObservedDevice("gpu-0", "H100", signals=[said("probe-passed", 9100, "agent")])
    device = with_signal(device, said("xid-79", 9099))
    device = with_signal(device, said("xid-79", 9101))
    assert verdict(*device.signals).state is UNHEALTHY


def test_an_older_report_of_the_same_fault_changes_nothing() -> None:
    device = ObservedDevice("gpu-0", "H100", signals=[said("xid-79", 9000)])
    assert with_signal(device, said("xid-79", 8000)) is device


def test_evidence_of_health_is_not_pushed_out_by_noise() -> None:
    device = ObservedDevice("gpu-0", "H100", signals=[said("probe-passed", 9000, "agent")])
    for number in range(40):
        device = with_signal(device, said(f"xid-{90_000 + number}", 9100 + number))
    assert device.signals[0].code == "probe-passed"


# --- clocks -------------------------------------------------------------------------------------------------------------


def test_a_fault_from_the_future_counts_from_when_it_was_judged_and_says_so() -> None:
    record = judged_on(a_record(said("xid-79", NOW + 7200)), NOW)
    assert record.verdicts[0].since == to_time(NOW)
    assert AHEAD in record.verdicts[0].message
    assert judge_node(record, [], NOW + 60) == record.verdicts


def test_evidence_of_health_from_the_future_hides_no_later_fault() -> None:
    """The clock was wrong when the probe passed and is right when the device fails."""
    record = a_record(said("probe-passed", NOW + 3600, "agent"), said("xid-79", NOW + 10))
    record = judged_on(record, NOW + 11)
    assert record.verdicts[0].state is UNHEALTHY
    assert judge_node(record, [], NOW + 7200) == record.verdicts  # and does not begin to when the clock catches up


def test_a_debounce_ends_although_the_clock_of_the_node_is_ahead() -> None:
    timers = HealthTimers(debounce_s=5.0)
    record = a_record(said("health-lost", NOW + 7200, "nvml"))
    record = msgspec.structs.replace(record, verdicts=judge_node(record, [], NOW, timers))
    assert record.verdicts[0].state is UNKNOWN
    assert health_signal_debounce_ends_at(record, classify_device_signals(record), NOW + 1, timers) == pytest.approx(
        NOW + 5
    )
    [found] = judge_node(record, [], NOW + 5.1, timers)
    assert found.state is UNHEALTHY


def test_since_never_runs_backwards() -> None:
    """A signal years old: the node came up with no clock."""
    healthy = Verdict("gpu-0", since=to_time(9000))
    assert verdict(said("xid-79", 12.0), before=healthy).since == to_time(9000)

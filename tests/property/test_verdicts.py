"""Verdicts whatever the order, the repeats and the clocks: what was heard decides, not how."""

from __future__ import annotations

from datetime import datetime

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.api.devices import DeviceState, Holding, NodeDevices, Observed, ObservedDevice, QuarantineOrder, Signal
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.remedies import Offender
from remuda.core.health.device_holders import device_health_counts
from remuda.core.health.findings import NodeFindings, find_findings
from remuda.core.health.ledger import judge_devices, judge_node
from remuda.core.health.signal_fusion import classify_device_signals
from remuda.core.health.signals import with_signal
from remuda.core.health.streamed_signals import StreamedSignals
from tests.builders.gangs import a_held_pod

NOW = 100_000.0
CODES = (
    "xid-79",
    "xid-48",
    "xid-92",
    "xid-13",
    "thermal",
    "row-remap-failed",
    "probe-passed",
    "xid-99999",
    "no-report",
)
FINDINGS = (("straggler", "straggler"), ("trend", "ecc-trend"), ("history", "repeat-offender"))

times = st.integers(min_value=1, max_value=3000).map(lambda n: NOW - n)
signals = st.builds(
    lambda source, code, at: Signal(source, code, time=to_time(at)),
    st.sampled_from(("kmsg", "nvml")),
    st.sampled_from(CODES),
    times,
)
stories = st.lists(signals, max_size=10, unique_by=lambda s: s.time)
COMES_AND_GOES = (*CODES, "health-lost", "health-back", "report-resumed", "device-missing", "device-back")
fresh = st.builds(
    lambda source, code, ago: Signal(source, code, time=to_time(NOW - ago)),
    st.sampled_from(("kmsg", "nvml")),
    st.sampled_from(COMES_AND_GOES),
    st.floats(min_value=0.5, max_value=20),
)


def a_record(heard: list[Signal], findings: list[Signal] | None = None) -> NodeDevices:
    device = ObservedDevice("gpu-0", "H100", signals=heard)
    return NodeDevices(
        metadata=ObjectMeta(name="n1"),
        observed=Observed(devices=[device]),
        findings={"gpu-0": findings} if findings else {},
    )


@given(stories, st.randoms(use_true_random=False))
def test_the_order_of_hearing_does_not_matter_where_times_are_given(story: list[Signal], chance: object) -> None:
    mixed = list(story)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert judge_node(a_record(story), [], NOW) == judge_node(a_record(mixed), [], NOW)


@given(stories, st.lists(st.tuples(st.sampled_from(FINDINGS), times), max_size=3))
def test_a_verdict_is_the_gravest_that_no_evidence_of_health_is_newer_than(
    story: list[Signal], found: list[tuple[tuple[str, str], float]]
) -> None:
    """Said a second time, plainly."""
    effect = {
        "xid-79": 3, "xid-48": 3, "row-remap-failed": 3, "xid-99999": 3, "repeat-offender": 3,
        "no-report": 2, "xid-92": 1, "thermal": 1, "straggler": 1, "ecc-trend": 1, "xid-13": 0,
    }  # fmt: skip
    findings = [Signal(source, code, time=to_time(at)) for (source, code), at in found]
    cures = [s.time for s in story if s.code == "probe-passed" and s.time is not None]
    cured = max(cures, default=to_time(0))
    both = [s for s in (*story, *findings) if s.code != "probe-passed" and s.time is not None]
    worst = max((effect[s.code] for s in both if s.time is not None and s.time > cured), default=0)
    [verdict] = judge_node(a_record(story, findings), [], NOW)
    # A finding of the very moment of the cure may fall on either side.
    if cured not in [f.time for f in findings]:
        states = [DeviceState.HEALTHY, DeviceState.DEGRADED, DeviceState.UNKNOWN, DeviceState.UNHEALTHY]
        assert verdict.state is states[worst]


@given(stories, st.data())
def test_a_replay_changes_no_verdict(story: list[Signal], data: st.DataObject) -> None:
    """An agent that hears everything once more, in any order, says and means the same."""
    device = ObservedDevice("gpu-0", "H100")
    for signal in sorted(story, key=_time):
        device = with_signal(device, signal)
    record = a_record(device.signals)
    record = msgspec.structs.replace(record, verdicts=judge_node(record, [], NOW))
    again = device
    for signal in data.draw(st.permutations([s for s in story if s.code != "probe-passed"])):
        again = with_signal(again, signal)
    replayed = msgspec.structs.replace(record, observed=a_record(again.signals).observed)
    assert judge_node(replayed, [], NOW + 1) == record.verdicts


@given(
    st.lists(fresh, max_size=10, unique_by=lambda s: s.time),
    st.integers(min_value=0, max_value=2),
    st.randoms(use_true_random=False),
)
def test_a_stream_that_repeats_what_the_record_has_changes_nothing(
    story: list[Signal], told: int, chance: object
) -> None:
    device = ObservedDevice("gpu-0", "H100")
    for signal in sorted(story, key=_time):
        device = with_signal(device, signal)
    record = a_record(device.signals)
    record = msgspec.structs.replace(record, verdicts=judge_node(record, [], NOW))
    overlay = StreamedSignals()
    again = [s for s in story for _ in range(1 + told)]
    chance.shuffle(again)  # type: ignore[attr-defined]
    for signal in again:
        overlay.hear("n1", "gpu-0", signal, NOW)
    [verdict] = judge_node(overlay.merged(record, NOW), [], NOW)
    assert (verdict.state, verdict.reason) == (record.verdicts[0].state, record.verdicts[0].reason)


@given(st.lists(signals, max_size=12))
def test_since_is_monotone_and_never_ahead(story: list[Signal]) -> None:
    device, before = ObservedDevice("gpu-0", "H100"), to_time(0)
    record = a_record([])
    for step, signal in enumerate(story):
        device = with_signal(device, signal)
        now = NOW + step
        record = msgspec.structs.replace(record, observed=a_record(device.signals).observed)
        record = msgspec.structs.replace(record, verdicts=judge_node(record, [], now))
        since = record.verdicts[0].since
        assert since is not None
        assert before <= since <= to_time(now)
        before = since


def found_in(record: NodeDevices, now: float) -> NodeFindings:
    return find_findings(
        record, classify_device_signals(record), judge_devices(record, now), now, Offender(incidents=2)
    )


@settings(max_examples=50)
@given(st.lists(signals, max_size=12))
def test_what_is_remembered_is_bounded_and_the_same_when_looked_at_twice(story: list[Signal]) -> None:
    record, device = a_record([]), ObservedDevice("gpu-0", "H100", uuid="u1")
    for step, signal in enumerate(story):
        device = with_signal(device, signal)
        now = NOW + step
        observed = Observed(devices=[device])
        record = msgspec.structs.replace(record, observed=observed)
        for _ in range(2):
            found = found_in(record, now)
            record = found.on(record)
            record = msgspec.structs.replace(record, verdicts=judge_node(record, [], now))
        assert found_in(record, now).history == {}
        history = record.history.get("gpu-0")
        assert history is None or (len(history.failures) <= 32 and len(history.minor) <= 32)
        assert history is None or history.failures == sorted(set(history.failures))


device_names = st.sampled_from([f"gpu-{n}" for n in range(4)])


@given(
    st.dictionaries(device_names, st.sampled_from(CODES)),
    st.lists(st.tuples(device_names, st.booleans()), max_size=8),
    st.sets(device_names),
)
def test_free_is_healthy_minus_held_and_never_negative(
    faults: dict[str, str], held: list[tuple[str, bool]], quarantined: set[str]
) -> None:
    names = [f"gpu-{n}" for n in range(4)]
    devices = [
        ObservedDevice(name, "H100", signals=[Signal("kmsg", faults[name])] if name in faults else []) for name in names
    ]
    reported = [Holding(f"default/p{n}", "main", "nvidia.com/gpu", [d]) for n, (d, told) in enumerate(held) if told]
    pods = [a_held_pod(f"p{n}", "n1", [d]) for n, (d, _) in enumerate(held)]
    node = NodeDevices(
        metadata=ObjectMeta(name="n1"),
        observed=Observed(devices=devices, holdings=reported),
        quarantine={name: QuarantineOrder("Suspect") for name in quarantined},
    )
    node = msgspec.structs.replace(node, verdicts=judge_node(node, pods, NOW))
    counts = device_health_counts(node, pods)["nvidia.com/gpu"]
    good = {v.device for v in node.verdicts if v.state is DeviceState.HEALTHY} - quarantined
    taken = {d for d, _ in held}
    assert counts.free == len(good - taken)
    assert 0 <= counts.free <= counts.healthy <= counts.total == 4
    assert counts.healthy + counts.unfit == counts.total


def _time(signal: Signal) -> datetime:
    assert signal.time is not None
    return signal.time

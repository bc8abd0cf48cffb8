"""From a slow rank to its device: who is named, who else's findings stay, and when nobody is."""

from __future__ import annotations

from remuda.api.devices import NodeDevices, Observed, ObservedDevice, Signal
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.training import Cause, Member, Recovery, Remedy, TrainingJob, TrainingJobStatus
from remuda.core.health.slow_ranks import CODE, SOURCE, UNEVEN, answered_slow_findings, plan_slow_rank_findings
from remuda.core.health.stragglers import RankSpeeds, SlowRank

NOW = 1000.0
SLOW = RankSpeeds((SlowRank(1, 1.8, 12, 9.0),))
TREND = Signal("trend", "ecc-trend", "more each day", to_time(10.0))


def job(*devices: str, recoveries: tuple[Recovery, ...] = ()) -> TrainingJob:
    members = [Member(0, "w", "p-0", "u0", "n0", ["gpu-0"]), Member(1, "w", "p-1", "u1", "n1", list(devices))]
    status = TrainingJobStatus(members=members, recoveries=list(recoveries))
    return TrainingJob(metadata=ObjectMeta(name="job", namespace="ns"), status=status)


def node(findings: dict[str, list[Signal]] | None = None, **signals: list[Signal]) -> NodeDevices:
    devices = [
        ObservedDevice(id=d, type="H100", signals=signals.get(d.replace("-", "_"), [])) for d in ("gpu-2", "gpu-3")
    ]
    meta = ObjectMeta(name="n1", resource_version="7")
    return NodeDevices(metadata=meta, observed=Observed(devices=devices), findings=findings or {})


def found(at: float = NOW) -> Signal:
    return Signal(SOURCE, CODE, "slow", to_time(at))


def test_the_device_is_named_and_findings_of_others_stay() -> None:
    [plan], uneven = plan_slow_rank_findings(job("gpu-2"), SLOW, {"n1": node({"gpu-2": [TREND]})}, NOW)
    assert uneven is None
    assert (plan.node, plan.version) == ("n1", "7")
    [kept, signal] = plan.devices["gpu-2"]
    assert kept == TREND
    assert (signal.source, signal.code, signal.time) == (SOURCE, CODE, to_time(NOW))
    for word in ("Rank 1 of ns/job", "pod p-1", "node n1", "1.80 x", "12 steps", "gpu-2"):
        assert word in signal.message


def test_what_is_found_is_written_once() -> None:
    assert plan_slow_rank_findings(job("gpu-2"), SLOW, {"n1": node({"gpu-2": [found()]})}, NOW) == ([], None)


def test_of_several_devices_the_one_with_a_sign_of_its_own_is_named() -> None:
    [both], _ = plan_slow_rank_findings(job("gpu-2", "gpu-3"), SLOW, {"n1": node()}, NOW)
    assert set(both.devices) == {"gpu-2", "gpu-3"}
    degraded = Signal("nvml", "pcie-degraded", "x4", to_time(5.0))
    [one], _ = plan_slow_rank_findings(job("gpu-2", "gpu-3"), SLOW, {"n1": node(gpu_3=[degraded])}, NOW)
    assert set(one.devices) == {"gpu-3"}
    assert "gpu-3 reports PcieDegraded" in one.told[0]


def test_normal_speed_takes_the_finding_away_and_nothing_else() -> None:
    normal = RankSpeeds(normal=frozenset({0, 1}))
    [plan], _ = plan_slow_rank_findings(
        job("gpu-2"), normal, {"n1": node({"gpu-2": [TREND, found()], "gpu-3": [found()]})}, NOW
    )
    assert plan.devices == {"gpu-2": [TREND]}
    assert plan_slow_rank_findings(job("gpu-2"), RankSpeeds(), {"n1": node({"gpu-2": [found()]})}, NOW) == ([], None)


def test_a_rank_that_is_slow_wherever_it_goes_carries_more_work() -> None:
    moved = Recovery(2, Cause.DEVICE, Remedy.PROMOTE_SPARE, "SlowRank", members=["p-9"], replaced=["p-1"])
    plans, uneven = plan_slow_rank_findings(job("gpu-2", recoveries=(moved,)), SLOW, {"n1": node()}, NOW)
    assert plans == []
    assert uneven is not None
    assert uneven.reason == UNEVEN


def test_only_a_probe_that_passed_since_takes_the_finding_away() -> None:
    passed = Signal("probe", "probe-passed", "", to_time(500.0))
    assert answered_slow_findings(node({"gpu-2": [found(400.0)]}, gpu_2=[passed])) is not None
    assert answered_slow_findings(node({"gpu-2": [found(600.0)]}, gpu_2=[passed])) is None
    assert answered_slow_findings(node({"gpu-2": [found(400.0)]}, gpu_3=[passed])) is None
    assert answered_slow_findings(node({"gpu-2": [TREND]}, gpu_2=[passed])) is None

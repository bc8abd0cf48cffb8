"""Faults, remedies and who is charged: interruptions that belong together, and those that do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.kubernetes.core_v1 import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Toleration,
)
from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Cause, Progress, Remedy
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, NodeBuilder, a_job, racks

JOB = a_job().replicas(3).gpus(8).spares(1).in_one_rack()


def running(job: JobBuilder = JOB, nodes: list[NodeBuilder] | None = None) -> GangModel:
    return a_gang(job, nodes or racks(6, 6)).start()


def with_status(gang: GangModel, **fields: Any) -> None:
    gang.job = msgspec.structs.replace(gang.job, status=msgspec.structs.replace(gang.status, **fields))


# --- what belongs together --------------------------------------------------------------------------------------------


def test_pods_deleted_one_after_another_are_one_interruption() -> None:
    """`kubectl delete pods -l` reaches the controller as one event after another."""
    gang = running(JOB.spares(3))
    for rank in (0, 1, 2):
        gang.delete_pod(gang.member(rank).uid)
        gang.deliver()
        gang.look()
    gang.recover()
    assert gang.status.attempt == 4
    assert (gang.status.used, gang.status.interruptions) == ({"infra": 1}, 1)
    (record,) = gang.status.recoveries
    assert record.members == ["job-worker-0", "job-worker-1", "job-worker-2"]
    assert record.attempt == 4


def test_a_rack_that_loses_power_node_by_node_is_one_interruption() -> None:
    gang = running()
    gang.lose_node(0)
    gang.look()
    gang.advance(3.0)
    gang.lose_node(1)
    gang.recover()
    assert (gang.status.used, gang.status.interruptions) == ({"infra": 1}, 1)


def test_the_same_cause_much_later_is_another_interruption() -> None:
    gang = running(JOB.spares(0), racks(4))
    gang.occupy("node-04")
    gang.break_device(0)
    gang.settle(3)
    gang.advance(20.0)  # still waiting for room
    gang.break_device(1)
    gang.settle(3)
    assert (gang.status.used, gang.status.interruptions) == ({"device": 2}, 2)


def test_another_cause_during_a_recovery_is_an_interruption_of_its_own() -> None:
    gang = running(JOB.spares(2))
    gang.break_device(0)
    gang.look()
    gang.delete_pod(gang.member(1).uid)
    gang.recover()
    assert gang.status.used == {"device": 1, "infra": 1}
    assert [r.cause for r in gang.status.recoveries] == [Cause.DEVICE, Cause.INFRA]


def test_two_causes_in_one_look_are_both_charged() -> None:
    gang = running(JOB.spares(2))
    gang.break_device(0)
    gang.lose_node(1)
    gang.recover()
    assert gang.status.attempt == 2
    assert gang.status.used == {"device": 1, "infra": 1}
    assert gang.recovery.cause is Cause.DEVICE


# --- what explains what -----------------------------------------------------------------------------------------------


def test_a_peer_that_crashed_of_a_broken_device_is_not_charged_to_the_code() -> None:
    gang = running()
    gang.crash(gang.member(2).uid)  # its neighbour's device died; it noticed first
    gang.round()
    assert gang.status.used == {"code": 1}
    gang.break_device(0)
    gang.recover()
    assert gang.status.used == {"device": 1}


def test_while_the_gang_still_stands_the_explanation_joins_the_interruption() -> None:
    gang = running()
    gang.crash(gang.member(0).uid)
    gang.deliver()
    gang.look()
    gang.break_device(0)
    gang.look()
    assert (gang.status.attempt, gang.status.interruptions) == (3, 1)
    assert (gang.recovery.cause, gang.recovery.reason) == (Cause.DEVICE, "Xid79")
    assert gang.recovery.remedy is Remedy.PROMOTE_SPARE
    gang.recover()
    assert set(gang.status.goodput.lost_gpu_seconds) == {"device"}


def test_a_node_that_dies_after_its_neighbours_crashed_explains_them() -> None:
    gang = running()
    victim = gang.member(0)
    gang.power_off(victim.node)
    gang.crash(gang.member(1).uid)
    gang.settle(3)
    assert gang.status.used == {"code": 1}
    gang.advance(8.0)  # its lease runs out
    gang.expire(victim.node)
    gang.recover()
    assert (gang.status.used, gang.status.interruptions) == ({"infra": 1}, 1)


def test_a_device_reported_after_training_went_on_takes_charge_and_loss_along() -> None:
    gang = running()
    gang.crash(gang.member(0).uid)
    gang.recover()
    lost = gang.status.goodput.lost_gpu_seconds["code"]
    gang.break_device(0)
    gang.look()
    assert gang.status.used == {"device": 1}
    assert gang.status.goodput.lost_gpu_seconds == {"device": lost}
    first, second = gang.status.recoveries
    assert (first.cause, second.cause) == (Cause.DEVICE, Cause.DEVICE)
    assert "The cause was Xid79 of job-worker-0" in first.message


@pytest.mark.parametrize("pause", [11.0, 100.0])
def test_a_device_reported_much_later_excuses_nobody(pause: float) -> None:
    gang = running()
    gang.crash(gang.member(0).uid)
    gang.recover()
    gang.advance(pause)
    gang.break_device(0)
    gang.recover()
    assert gang.status.used == {"code": 1, "device": 1}


def test_a_pod_that_took_over_after_the_crash_explains_nothing() -> None:
    gang = running(JOB.spares(2))
    gang.crash(gang.member(0).uid)
    gang.deliver()
    gang.look()
    record = msgspec.structs.replace(gang.recovery, replaced=[gang.member(1).pod])
    with_status(gang, recoveries=[record])
    gang.break_device(1)
    gang.look()
    assert gang.status.used == {"code": 1, "device": 1}


# --- no second is lost twice ------------------------------------------------------------------------------------------


def test_an_interruption_that_overtakes_another_takes_over_its_clock() -> None:
    gang = running(JOB.spares(2))
    gang.break_device(0)
    gang.look()
    began = to_seconds(gang.recovery.signal_at or to_time(0))
    gang.advance(4.0)
    gang.delete_pod(gang.member(1).uid)
    gang.advance(2.0)
    gang.recover()
    first, second = gang.status.recoveries
    ended = to_seconds(second.first_step_at or to_time(0))
    idle = ended - began
    again = second.step_at_fault - second.resume_step
    assert gang.status.goodput.lost_seconds == pytest.approx(idle + again, abs=0.01)
    assert first.lost_gpu_seconds + second.lost_gpu_seconds == pytest.approx((idle + again) * 24, abs=0.1)


def test_a_signal_older_than_the_last_first_step_counts_from_there() -> None:
    gang = running()
    member = gang.member(1)
    gang.fail_device(member.node, member.devices[0])  # nobody judges it yet
    gang.deliver()
    gang.crash(gang.member(0).uid)
    gang.look()
    for _ in range(5):
        gang.round_without_verdicts()
    gang.train(1)
    gang.look()
    went_on = gang.recovery.first_step_at
    assert went_on is not None
    gang.advance(20.0)
    gang.recover()
    assert gang.recovery.reason == "Xid79"
    assert gang.recovery.signal_at == went_on


# --- which rung -------------------------------------------------------------------------------------------------------


def test_a_long_way_back_to_the_checkpoint_does_not_make_drastic_remedies_cheap() -> None:
    gang = running()
    with_status(gang, progress=Progress(step=7, checkpoint_time=to_time(gang.now - 100_000)))
    gang.beats.clear()
    gang.crash(gang.member(0).uid)
    gang.deliver()
    gang.look()
    assert gang.recovery.remedy is Remedy.RESTART_IN_PLACE


def test_only_the_pod_that_keeps_failing_is_replaced() -> None:
    gang = running(JOB.budgets(code=20))
    before = {m.rank: m.uid for m in gang.status.members}
    for _ in range(2):
        gang.crash(gang.member(2).uid)
        gang.settle()
        gang.advance(1.0)
    gang.crash(gang.member(0).uid)  # earlier, but for the first time
    gang.advance(0.1)
    gang.crash(gang.member(2).uid)
    gang.recover()
    remedies = [r.remedy for r in gang.status.recoveries]
    assert remedies == [Remedy.RESTART_IN_PLACE, Remedy.RESTART_IN_PLACE, Remedy.PROMOTE_SPARE]
    assert [r for r in before if gang.member(r).uid != before[r]] == [2]


def test_progress_in_between_makes_a_failure_the_first_again() -> None:
    gang = running(JOB.budgets(code=20))
    for _ in range(3):
        gang.crash(gang.member(2).uid)
        gang.settle()
        assert gang.recovery.remedy is Remedy.RESTART_IN_PLACE
        gang.train(10)
        gang.settle(2)


def test_a_spare_of_the_first_role_is_no_spare_for_another() -> None:
    gang = running(a_job().replicas(1).gpus(4).spares(1).role("ps", replicas=1, gpus=2), racks(3))
    gang.break_device(1)
    gang.look()
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    assert "PromoteSpare: 0 spares parked in the cluster, 1 needed" in gang.recovery.why_not
    gang.recover()
    assert [m.role for m in gang.status.members] == ["worker", "ps"]


def test_room_is_looked_for_where_the_template_may_go() -> None:
    big = [n.label("kind", "big") for n in racks(2)]
    small = [NodeBuilder(f"small-{i}").rack("rack-1") for i in range(4)]
    job = a_job().replicas(2).gpus(8).in_one_rack().template(nodeSelector={"kind": "big"})
    gang = running(job, [*big, *small])
    gang.break_device(0)
    gang.look()
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    waits = next(text for text in gang.recovery.why_not if text.startswith("ReplacePod at once: "))
    assert "has room for 0 (4 nodes not selected)" in waits


def test_tainted_nodes_count_as_room_for_those_that_tolerate_them() -> None:
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    job = a_job().replicas(2).gpus(8).in_one_rack().template(tolerations=tolerations)
    gang = running(job, [n.tainted("gpu") for n in racks(3)])
    assert Toleration(key="gpu", operator="Exists") in gang.gang[0].spec.tolerations
    gang.break_device(0)
    gang.look()
    assert not any("at once" in text for text in gang.recovery.why_not), gang.recovery.why_not


def test_the_devices_of_a_deleted_pod_are_waited_for_rather_than_moving_everyone() -> None:
    gang = running(JOB.spares(0), racks(3, 3))
    victim = gang.member(0)
    gang.delete_pod(victim.uid)
    gang.lagging = {victim.uid}  # it takes its grace
    gang.settle(5)
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    assert gang.status.reason == "PodDeleted", "its old place is free in a moment"
    assert [m.pod for m in gang.status.members] == ["job-worker-1", "job-worker-2"]
    gang.lagging.clear()
    gang.recover()
    assert gang.status.placement.domain == "rack-1"
    assert (gang.member(0).node, gang.recovery.remedy) == (victim.node, Remedy.REPLACE_POD)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_devices_that_never_come_back_are_not_waited_for(is_stopped: bool) -> None:
    gang = running(JOB.spares(0), racks(3, 3))
    victim = gang.member(0)
    if is_stopped:
        gang.kill_launcher(victim.uid)  # nothing runs there, but its node does not let the pod go
    gang.delete_pod(victim.uid)
    gang.lagging = {victim.uid}
    gang.settle(5)
    gang.advance(30.0)  # its grace is long over
    gang.settle()
    assert gang.recovery.remedy is Remedy.REPLACE_GANG
    assert gang.status.placement.domain == "rack-2"
    assert any(text.startswith("ReplacePod: Needs 1 pod of 8 GPUs") for text in gang.recovery.why_not)


def test_a_replacement_whose_room_was_taken_moves_the_gang_when_another_rack_fits() -> None:
    gang = running(JOB.spares(0), racks(4, 4))
    gang.break_device(0)
    gang.look()
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    gang.occupy("node-04")
    gang.recover()
    assert (gang.recovery.remedy, gang.status.placement.domain) == (Remedy.REPLACE_GANG, "rack-2")
    assert (gang.status.used, gang.status.interruptions) == ({"device": 1}, 1)
    assert len(gang.recovery.replaced) == 3


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_a_member_fenced_in_this_attempt_is_raised_over() -> None:
    gang = running()
    gang.crash(gang.member(1).uid)
    gang.deliver()
    gang.look()
    gang.settle(1)
    fenced = gang.launcher(0)
    fenced.state = "parked"
    gang._report(fenced.uid)
    gang.deliver()
    gang.look()
    assert (gang.recovery.reason, gang.status.attempt) == ("LauncherFenced", 3)
    assert gang.recover().member(0).uid == fenced.uid


def test_the_newest_recoveries_are_kept() -> None:
    gang = running(JOB.budgets(code=100))
    for _ in range(25):
        gang.crash(gang.member(0).uid)
        gang.settle(5)
        gang.train(6)
        gang.settle(2)
    assert gang.status.interruptions == 25
    assert [r.attempt for r in gang.status.recoveries] == list(range(7, 27))
    assert gang.status.used == {"code": 25}


def test_times_of_a_recovery_are_in_order() -> None:
    gang = running()
    gang.break_device(1)
    gang.recover()
    r = gang.recovery
    times = [r.signal_at, r.detected_at, r.stopped_at, r.opened_at, r.first_step_at]
    known = [t for t in times if t is not None]
    assert len(known) == 5
    assert known == sorted(known)
    assert (r.step_at_fault, r.resume_step) == (7, 5)


# --- a launcher that cannot start -------------------------------------------------------------------------------------

NO_PYTHON = ContainerStatus(
    "main",
    state=ContainerState(
        terminated=ContainerStateTerminated(
            128, reason="StartError", message='exec: "python3": executable file not found'
        )
    ),
)


def without_python(gang: GangModel) -> None:
    """Every pod's container ends before its launcher says a word."""
    for pod in list(gang.pods.now.values()):
        gang.launchers.pop(pod.uid, None)
        gang.reports.put(pod.uid, None)
        if pod.spec.node_name and not pod.status.container_statuses:
            spec = msgspec.structs.replace(pod.spec, containers=[Container("main")])
            status = msgspec.structs.replace(pod.status, container_statuses=[NO_PYTHON])
            gang.pods.put(pod.uid, msgspec.structs.replace(pod, spec=spec, status=status))


def test_a_launcher_that_cannot_start_is_named_paused_charged_and_given_up() -> None:
    gang = a_gang(a_job().replicas(2).gpus(8).budgets(code=2), racks(4))
    pauses: list[float] = []
    reasons = set()
    for _ in range(400):
        gang.round_without_verdicts()
        without_python(gang)
        gang.deliver()
        gang.look()
        gang.advance(0.1)
        until = [to_seconds(r.until) - gang.now for r in gang.status.retired if r.until is not None]
        if until:
            pauses.append(round(max(until), 1))
        reasons.add((gang.status.phase, gang.status.reason))
        if gang.job.is_finished:
            break
    assert (gang.status.phase, gang.status.reason) == ("Failed", "CodeBudgetExhausted")
    assert "NoPython: the image of job-worker-" in gang.status.message
    assert 'exec: "python3"' in gang.status.message
    assert gang.status.used == {"code": 3}
    assert [r.reason for r in gang.status.recoveries] == ["NoPython"] * 3
    assert ("Starting", "NoPython") in reasons
    assert max(pauses) > 1.5, "each further try waits longer"
    assert gang.made < 12, "not at the kubelet's pace"

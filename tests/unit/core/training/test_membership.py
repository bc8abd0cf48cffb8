"""Who has which rank: first placement, spares, retired pods, and what a crash between two writes must not undo."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.names import ANNOTATION_DOMAIN, ANNOTATION_SPARE
from remuda.api.training import Remedy
from remuda.core.foreign.refused_pods import ADMISSION_BUDGET, LONGEST_RETRY_S
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import a_job, racks

JOB = a_job().replicas(2).gpus(8).in_one_rack().failure(stop_deadline_seconds=10.0, start_deadline_seconds=30.0)


def running(spares: int = 1, *sizes: int) -> GangModel:
    return a_gang(JOB.spares(spares), racks(*(sizes or (4, 4)))).start()


def with_spares(gang: GangModel, count: int) -> None:
    """Somebody has edited the job."""
    gang.job = msgspec.structs.replace(gang.job, spec=JOB.spares(count).build().spec)


def names(gang: GangModel) -> list[str]:
    return sorted(p.name for p in gang.gang)


def break_rank(gang: GangModel, rank: int) -> str:
    """The rank's device fails. The name of its pod."""
    pod = gang.member(rank).pod
    gang.break_device(rank)
    return pod


# --- fewer replicas ------------------------------------------------------------------------------------------------------


def reduce(gang: GangModel, *sizes: int) -> None:
    """Somebody has edited the job: that many of each role."""
    roles = zip(gang.job.spec.roles, sizes, strict=True)
    gang.edit(roles=[msgspec.structs.replace(role, replicas=size) for role, size in roles])


def test_a_gang_that_waits_is_placed_once_it_asks_for_what_there_is() -> None:
    """It said "ask for 2 fewer replicas", and then that the two were being created, for ever."""
    gang = a_gang(a_job().replicas(4).gpus(8), racks(2)).settle()
    assert "ask for 2 fewer replicas" in gang.status.message
    reduce(gang, 2)
    gang.settle()
    assert gang.is_running
    assert len(gang.gang) == 2


@pytest.mark.parametrize("lost", [0, 5])
def test_a_gang_with_fewer_replicas_has_ranks_without_gaps_from_the_next_attempt_on(lost: int) -> None:
    """Ranks 1 to 5 of 3 were started, and none of them was the first."""
    gang = a_gang(a_job().replicas(6).gpus(8), racks(8)).start()
    reduce(gang, 3)
    gang.settle()
    assert [m.rank for m in gang.status.members] == list(range(6)), "a running gang is not stopped for it"
    assert gang.status.message == "6 ranks run attempt 1. The next attempt has 3."
    gang.lose_node(lost)
    gang.settle()
    assert gang.is_running
    assert [m.rank for m in gang.status.members] == [0, 1, 2]
    assert names(gang) == sorted(m.pod for m in gang.status.members), "nobody is made, and the others go"


def test_a_role_with_fewer_replicas_moves_the_ranks_of_the_others() -> None:
    gang = a_gang(a_job().replicas(3).gpus(8).role("ps", replicas=2), racks(8)).start()
    reduce(gang, 2, 2)
    gang.lose_node(4)
    gang.settle()
    assert gang.is_running
    assert [(m.rank, m.role) for m in gang.status.members] == [(0, "worker"), (1, "worker"), (2, "ps"), (3, "ps")]


# --- first placement --------------------------------------------------------------------------------------------------


def test_pods_are_asked_for_members_first() -> None:
    plan = a_gang(JOB.spares(2), racks(4)).plan()
    made = [(b["metadata"]["name"], b["metadata"]["annotations"].get(ANNOTATION_SPARE)) for b in plan.create]
    assert made == [
        ("job-worker-0", None),
        ("job-worker-1", None),
        ("job-worker-2", "true"),
        ("job-worker-3", "true"),
    ]


def test_every_role_gets_its_pods_and_only_the_first_gets_spares() -> None:
    plan = a_gang(a_job().replicas(2).spares(1).role("ps", replicas=1), racks(4)).plan()
    assert [b["metadata"]["name"] for b in plan.create] == ["job-worker-0", "job-worker-1", "job-worker-2", "job-ps-3"]


def test_asking_again_asks_for_the_same_pods() -> None:
    gang = a_gang(JOB.spares(1), racks(4))
    first = gang.look(writes=3)  # died after the status and two pods
    gang.deliver(1)  # and the next one sees one of them
    again = gang.look()
    assert [b["metadata"]["name"] for b in again.create] == [b["metadata"]["name"] for b in first.create][1:]
    gang.settle(1)
    assert names(gang) == ["job-worker-0", "job-worker-1", "job-worker-2"]


def test_no_rank_is_given_before_all_pods_are_placed() -> None:
    gang = a_gang(JOB, racks(4))
    gang.look()
    gang.schedule(binds=1)
    gang.deliver()
    gang.look()
    assert gang.status.members == []
    assert gang.status.phase == "Pending"


def test_ranks_follow_the_order_of_nodes_and_devices() -> None:
    gang = a_gang(a_job().replicas(4).gpus(4), racks(2)).settle()
    seats = [(m.node, m.devices[0]) for m in gang.status.members]
    assert seats == [("node-01", "gpu-0"), ("node-01", "gpu-4"), ("node-02", "gpu-0"), ("node-02", "gpu-4")]


def test_ranks_of_several_roles_are_unique_and_in_the_order_of_the_roles() -> None:
    gang = a_gang(a_job().replicas(2).role("ps", replicas=2, gpus=1), racks(2)).settle()
    assert gang.is_running
    assert [(m.rank, m.role) for m in gang.status.members] == [(0, "worker"), (1, "worker"), (2, "ps"), (3, "ps")]


def test_the_barrier_waits_for_the_last_one() -> None:
    gang = a_gang(JOB, racks(4))
    gang.settle(1)
    gang.lagging = {gang.gang[1].uid}
    gang.settle(5)
    assert gang.status.barrier == "Closed"
    assert gang.status.phase == "Starting"
    assert gang.status.message == "1 of 2 ranks are ready for attempt 1."
    gang.lagging.clear()
    assert gang.settle(5).is_running


def test_a_gang_that_waited_long_for_room_has_its_whole_time_to_start() -> None:
    gang = a_gang(JOB, racks(2))
    gang.occupy("node-01")
    gang.settle(5, seconds=100.0)
    assert (gang.status.phase, gang.status.reason) == ("Pending", "InsufficientDevices")
    gang.vacate()
    assert gang.settle(6).is_running
    assert (gang.status.attempt, gang.status.used) == (1, {})


def test_a_pod_lost_before_it_had_a_rank_is_made_again_without_an_attempt() -> None:
    gang = a_gang(JOB, racks(4))
    gang.look()
    gang.schedule()
    gang.deliver()
    gang.delete_pod(gang.gang[0].uid)
    assert gang.settle().is_running
    assert (gang.status.attempt, gang.status.used) == (1, {})
    assert names(gang) == ["job-worker-1", "job-worker-2"]


def test_a_spare_stands_in_for_a_member_whose_room_it_took() -> None:
    gang = a_gang(JOB.spares(1), racks(3))
    gang.look()
    gang.schedule()
    gang.deliver()
    first = next(p for p in gang.gang if p.name == "job-worker-0")
    gang.fail_device(first.spec.node_name, "gpu-0")
    gang.judge()
    gang.deliver()
    assert gang.settle().is_running, gang.status.message
    assert sorted(m.pod for m in gang.status.members) == ["job-worker-1", "job-worker-2"]


def test_a_gang_that_never_ran_moves_when_its_rack_lost_the_room() -> None:
    gang = a_gang(JOB, racks(2, 3))
    gang.look()
    gang.schedule()
    gang.deliver()
    assert {gang.nodes[p.spec.node_name].labels["topology.remuda.dev/rack"] for p in gang.gang} == {"rack-1"}
    gang.fail_device("node-01", "gpu-0")
    assert gang.settle().is_running, gang.status.message
    assert gang.status.placement.domain == "rack-2"
    assert gang.status.interruptions == 0


# --- pods without a rank ----------------------------------------------------------------------------------------------


def test_a_pod_that_its_node_refuses_is_made_again_after_a_pause_and_costs_no_budget() -> None:
    gang = a_gang(JOB, racks(4))
    gang.look()
    gang.schedule()
    for pod in gang.gang:
        gang.kubelet(pod.uid, refuse=True)
    gang.deliver()
    plan = gang.look()
    assert plan.create == ()
    assert gang.status.used == {"admission": 1}
    assert plan.look_again_s == pytest.approx(1.0)  # a vacant rank is looked at every second; the pause ends after two
    gang.advance(2.1)
    assert gang.settle().is_running
    assert gang.status.used == {"admission": 1}


def test_a_pod_that_is_always_refused_fails_the_job_by_name() -> None:
    gang = a_gang(JOB.budgets(infra=2), racks(4))
    for _ in range(3 * ADMISSION_BUDGET):
        assert gang.status.phase != "Failed" or gang.status.used["admission"] > ADMISSION_BUDGET
        gang.deliver()
        gang.look()
        gang.schedule()
        for pod in gang.gang:
            gang.kubelet(pod.uid, refuse=True)
        gang.advance(LONGEST_RETRY_S + 1)
    assert (gang.status.phase, gang.status.reason) == ("Failed", "AdmissionBudgetExhausted")
    assert "UnexpectedAdmissionError" in gang.status.message


def test_a_refused_pod_costs_no_budget_beside_a_device_that_broke_either() -> None:
    gang = running(0)
    gang.kubelet(gang.member(1).uid, refuse=True)
    gang.break_device(0)
    gang.deliver()
    gang.look()
    assert gang.recovery.cause == "device"
    assert gang.status.used == {"device": 1, "admission": 1}


def test_a_refused_pod_whose_own_device_broke_is_charged_to_the_device_beside_others() -> None:
    gang = running(0)
    gang.kubelet(gang.member(1).uid, refuse=True)
    gang.kill_launcher(gang.member(0).uid)
    gang.break_device(1)
    gang.look()
    assert gang.status.used == {"device": 1, "infra": 1, "admission": 1}


def test_a_rank_that_dies_beside_a_refused_pod_is_not_charged_to_the_code() -> None:
    gang = running(0)
    gang.kubelet(gang.member(1).uid, refuse=True)
    gang.crash(gang.member(0).uid)
    gang.deliver()
    gang.look()
    assert gang.status.used == {"admission": 1}


def test_a_refused_spare_costs_nothing() -> None:
    gang = running(0)
    with_spares(gang, 1)
    gang.look()
    gang.schedule()
    spare = next(p for p in gang.gang if p.name == "job-worker-2")
    gang.kubelet(spare.uid, refuse=True)
    gang.settle(40)
    assert gang.is_running
    assert (gang.status.used, gang.status.attempt) == ({}, 1)
    assert [s.parked for s in gang.status.spares] == [True]


def test_a_spare_that_never_speaks_is_made_again() -> None:
    gang = running(0)
    with_spares(gang, 1)
    gang.look()
    gang.schedule()
    gang.deliver()
    silent = next(p for p in gang.gang if p.name == "job-worker-2")
    gang.lagging = {silent.uid}
    plan = gang.look()
    assert plan.look_again_s is not None
    gang.advance(30.1)
    gang.look()
    gang.lagging.clear()
    gang.settle()
    assert [(s.pod, s.parked) for s in gang.status.spares] == [("job-worker-3", True)]


def test_more_spares_than_asked_for_are_let_go() -> None:
    gang = running(2)
    with_spares(gang, 1)
    gang.settle(5)
    assert names(gang) == ["job-worker-0", "job-worker-1", "job-worker-2"]
    assert gang.is_running


def test_a_pod_made_for_a_rank_that_a_spare_has_taken_is_not_kept_as_a_spare() -> None:
    """The scheduler would place it as a member: the gang could wait for room it does not need."""
    gang = running(1, 3)  # no room for a second spare
    spare = gang.status.spares[0].uid
    gang.lagging = {spare}
    gang.kill_launcher(spare)  # not parked any more
    break_rank(gang, 0)
    gang.look()
    assert gang.recovery.remedy is Remedy.REPLACE_POD, "it sits where a new pod would have to go"
    gang.lagging.clear()
    gang.settle()
    assert gang.is_running
    assert gang.member(0).uid == spare
    waiting = [p for p in gang.gang if not p.spec.node_name]
    assert [p.annotations.get(ANNOTATION_SPARE) for p in waiting] == ["true"]


# --- retired ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_pod_that_lost_its_rank_never_gets_it_back_whenever_the_controller_dies(writes: int) -> None:
    gang = running(1)
    lost = break_rank(gang, 0)
    gang.look(writes=writes)
    gang.ledger.put("node-01", gang.ledger.seen["node-01"])
    gang.settle()
    assert gang.is_running
    assert lost not in [m.pod for m in gang.status.members]
    assert lost not in names(gang)
    assert (gang.status.attempt, gang.status.used) == (2, {"device": 1})
    assert gang.status.retired == []


def test_a_gang_that_moves_does_not_come_back_when_the_controller_dies_between_the_writes() -> None:
    gang = running(0, 2, 2)
    break_rank(gang, 0)
    gang.look(writes=1)  # the status says: move; nothing was deleted
    assert gang.recovery.remedy is Remedy.REPLACE_GANG
    assert len(gang.gang) == 2
    gang.settle()
    assert gang.is_running, gang.status.message
    assert gang.status.placement.domain == "rack-2"
    assert gang.status.attempt == 2


def test_a_pod_made_for_a_domain_that_the_gang_has_left_is_let_go() -> None:
    """It was made before the move and seen after it; it would tie the whole gang to the old rack."""
    gang = running(0, 3, 3)
    break_rank(gang, 0)
    gang.look()  # asks for job-worker-2 in rack-1, which is not seen yet
    made = next(p for p in gang.gang if p.name == "job-worker-2")
    assert made.annotations[ANNOTATION_DOMAIN] == "rack-1"
    gang.occupy("node-03")
    break_rank(gang, 1)
    gang.pods.seen.pop(made.uid, None)
    gang.look()
    assert gang.status.placement.domain == ""
    gang.pods.put(made.uid, made)
    gang.settle()
    assert gang.is_running, gang.status.message
    assert gang.status.placement.domain == "rack-2"
    assert "job-worker-2" not in names(gang) or gang.pod("job-worker-2") is not made


def test_the_barrier_waits_until_the_one_that_lost_its_rank_has_stopped() -> None:
    gang = running(1)
    uid = gang.member(0).uid
    break_rank(gang, 0)
    gang.lagging = {uid}  # neither its agent nor its node has done anything yet
    gang.settle(10)
    assert gang.status.barrier == "Closed"
    assert gang.launchers[uid].state == "running"
    gang.lagging.clear()
    gang.settle(3)
    assert gang.is_running
    assert gang.status.used == {"device": 1}


def test_ready_for_an_older_attempt_is_not_stopped() -> None:
    """The barrier was open; this rank's agent has not started it yet, and is the last to hear that it lost its rank."""
    gang = a_gang(JOB.spares(1), racks(4))
    while gang.status.barrier == "Closed":
        gang.round()
    gang.settle(1)
    late = gang.member(0)
    gang.launchers[late.uid].state = "ready"
    gang._report(late.uid)
    gang.deliver()
    break_rank(gang, 0)
    gang.lagging = {late.uid}
    gang.settle(5)
    assert gang.status.barrier == "Closed", "it could still be started, and run a rank that was handed on"
    gang.lagging.clear()
    assert gang.settle(3).is_running


def test_one_that_never_stops_is_given_up_and_its_devices_with_it() -> None:
    gang = running(1)
    stuck = gang.member(0)
    gang.launcher(0).cannot_stop = True
    gang.crash(gang.member(1).uid)
    gang.settle(5)
    assert gang.status.barrier == "Closed"
    gang.advance(10.0)
    gang.settle()
    assert gang.is_running
    assert gang.member(0).uid != stuck.uid
    assert gang.recovery.reason == "MemberNotStopped"
    assert set(gang.ledger.now[stuck.node].quarantine) == set(stuck.devices)
    assert gang.plan().quarantine == (), "ordered until the order is seen, not for ever"


def test_quarantine_is_ordered_again_when_the_controller_died_before_it_could() -> None:
    gang = running(1)
    stuck = gang.member(0)
    gang.launcher(0).cannot_stop = True
    gang.crash(gang.member(1).uid)
    gang.settle(2)
    gang.advance(10.0)
    gang.deliver()
    gang.look(writes=1)
    assert gang.ledger.now[stuck.node].quarantine == {}
    gang.settle()
    assert set(gang.ledger.now[stuck.node].quarantine) == set(stuck.devices)
    assert gang.is_running

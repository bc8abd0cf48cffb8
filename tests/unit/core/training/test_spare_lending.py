"""When a spare is lent, to whom, what becomes of the loan, and when it is called back."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_PREEMPTIBLE, LABEL_GANG, RESOURCE_GPU
from remuda.api.training import Loan, Remedy
from remuda.core.training.lent_spares import is_preemptible_pod
from remuda.core.training.spare_lending import LEND_EVERY_S, SETTLED_S, TAKE_S
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, a_job, racks

JOB = a_job().replicas(2).gpus(2).spares(1).in_one_rack().spec(lend_spares=True)


def train(gang: GangModel, seconds: float) -> GangModel:
    """One round a second, with a step."""
    end = gang.now + seconds
    while gang.now < end:
        before = gang.now
        gang.train(1)
        gang.round(0.0 if gang.now > before else 1.0)
    return gang


def running(job: JobBuilder = JOB, nodes: int = 3) -> GangModel:
    gang = a_gang(job, racks(nodes, gpus=2)).settle()
    assert gang.is_running, gang.status.message
    return train(gang, SETTLED_S + 5.0)


def lending(gpus: int = 2, job: JobBuilder = JOB, nodes: int = 3) -> tuple[GangModel, str]:
    """A gang whose spare is lent, and the borrower's uid."""
    gang = running(job, nodes)
    uid = gang.ask_preemptibly(gpus)
    train(gang, 20.0)
    assert gang.status.loans, gang.status
    return gang, uid


def loan_of(gang: GangModel) -> Loan:
    (loan,) = gang.status.loans
    return loan


def spares(gang: GangModel) -> list[str]:
    return [s.pod for s in gang.status.spares if s.parked]


@pytest.mark.parametrize(
    ("annotations", "priority", "labels", "is_so"),
    [
        ({}, 0, {}, False),
        ({}, None, {}, False),
        ({ANNOTATION_PREEMPTIBLE: "true"}, 0, {}, True),
        ({ANNOTATION_PREEMPTIBLE: "True"}, 1000, {}, True),
        ({ANNOTATION_PREEMPTIBLE: "yes"}, 0, {}, False),
        ({}, -1, {}, True),
        ({ANNOTATION_PREEMPTIBLE: "false"}, -1, {}, False),
        ({ANNOTATION_PREEMPTIBLE: "true"}, 0, {LABEL_GANG: "job"}, False),
        ({ANNOTATION_PREEMPTIBLE: "true"}, 0, {"jobset.sigs.k8s.io/jobset-name": "set"}, False),
    ],
)
def test_who_is_preemptible(
    annotations: Mapping[str, str], priority: int | None, labels: Mapping[str, str], is_so: bool
) -> None:
    spec = {} if priority is None else {"priority": priority}
    pod = from_wire(Pod, {"metadata": {"name": "p", "annotations": annotations, "labels": labels}, "spec": spec})
    assert is_preemptible_pod(pod) is is_so


def test_a_spare_goes_and_its_place_is_written_down() -> None:
    gang = running()
    spare = gang.status.spares[0]
    uid = gang.ask_preemptibly(2)
    train(gang, 20.0)
    loan = loan_of(gang)
    assert (loan.spare, loan.node, loan.devices, loan.role) == (spare.pod, spare.node, spare.devices, "worker")
    assert [b.uid for b in loan.borrowers] == [uid]
    assert gang.pods.now[uid].spec.node_name == spare.node
    assert (gang.status.attempt, gang.status.used, spares(gang), len(gang.gang)) == (1, {}, [], 2)


def test_nothing_is_lent_before_the_gang_has_settled_nor_to_one_that_has_just_come() -> None:
    gang = a_gang(JOB, racks(3, gpus=2)).settle()
    gang.ask_preemptibly(2)
    train(gang, SETTLED_S - 5.0)
    assert not gang.status.loans
    train(gang, 10.0)
    assert gang.status.loans
    late = running()
    late.ask_preemptibly(2)
    train(late, 5.0)
    assert not late.status.loans


def test_nothing_is_lent_by_a_job_that_does_not_say_so_or_where_there_is_room() -> None:
    proud = running(JOB.spec(lend_spares=False))
    proud.ask_preemptibly(2)
    roomy = running(nodes=4)
    roomy.ask_preemptibly(2)
    for gang in (proud, roomy):
        train(gang, 60.0)
        assert not gang.status.loans
        assert spares(gang)


def test_a_gang_with_a_slow_device_lends_nothing() -> None:
    gang = running(JOB.failure(straggler=msgspec.structs.replace(JOB.job.spec.failure.straggler, policy="CarryOn")))
    gang.slow_device(gang.member(0).node, gang.member(0).devices[0])
    gang.ask_preemptibly(2)
    train(gang, 60.0)
    assert not gang.status.loans


def test_one_loan_at_a_time() -> None:
    gang = running(JOB.spares(2), nodes=4)
    first, second = gang.ask_preemptibly(2), gang.ask_preemptibly(2)
    train(gang, 20.0)
    assert [b.uid for b in loan_of(gang).borrowers] == [first]
    train(gang, LEND_EVERY_S)
    assert [b.uid for loan in gang.status.loans for b in loan.borrowers] == [first, second]


def test_small_borrowers_share_a_place() -> None:
    gang, first = lending(gpus=1)
    second = gang.ask_preemptibly(1)
    train(gang, 15.0)
    assert [b.uid for b in loan_of(gang).borrowers] == [first, second]
    assert gang.pods.now[second].spec.node_name == loan_of(gang).node


def test_the_spare_is_made_again_when_the_borrower_ends() -> None:
    gang, uid = lending()
    place = loan_of(gang).node
    gang.delete_pod(uid)
    train(gang, 10.0)
    assert not gang.status.loans
    assert [s.node for s in gang.status.spares if s.parked] == [place]
    gang.ask_preemptibly(2)
    train(gang, 30.0)
    assert not gang.status.loans, "not at once again"
    train(gang, LEND_EVERY_S)
    assert gang.status.loans


def test_a_borrower_that_never_takes_its_place_loses_it() -> None:
    gang = running()
    uid = gang.ask_preemptibly(2)
    gang.schedule()
    gang.lagging.add(gang.status.spares[0].uid)
    train(gang, 15.0)
    loan = loan_of(gang)
    gang.nodes[loan.node] = msgspec.structs.replace(
        gang.nodes[loan.node], spec=msgspec.structs.replace(gang.nodes[loan.node].spec, unschedulable=True)
    )
    gang.lagging.clear()
    train(gang, TAKE_S + 5.0)
    assert not gang.pods.now[uid].spec.node_name
    assert all(found.returned_at for found in gang.status.loans)


def test_a_lost_member_calls_the_borrower_back_and_takes_its_place() -> None:
    gang, uid = lending()
    place, node = loan_of(gang).node, gang.member(1).node
    gang.fail_device(node, gang.member(1).devices[0])
    gang.judge()
    gang.deliver()
    plan = gang.look()
    assert [r.pod.uid for r in plan.recall] == [uid]
    assert plan.recall[0].reason == "Xid79"
    assert plan.recall[0].message.startswith("default/job needs the devices of its spare back: ")
    assert [body["metadata"]["annotations"]["remuda.dev/prefer-node"] for body in plan.create] == [place]
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.RECALL_SPARE
    assert gang.member(1).node == place
    assert uid not in gang.pods.now
    assert not gang.status.loans
    assert gang.status.used == {"device": 1}


def test_room_elsewhere_is_cheaper_than_calling_back() -> None:
    gang, uid = lending()
    free = gang.member(0).node
    gang.nodes["node-99"] = msgspec.structs.replace(
        gang.nodes[free], metadata=msgspec.structs.replace(gang.nodes[free].metadata, name="node-99")
    )
    ledger = gang.ledger.now[free]
    gang.ledger.put(
        "node-99", msgspec.structs.replace(ledger, metadata=msgspec.structs.replace(ledger.metadata, name="node-99"))
    )
    gang.fail_device(gang.member(1).node, gang.member(1).devices[0])
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    assert any(why.startswith("RecallSpare: costs ") for why in gang.recovery.why_not)
    assert uid in gang.pods.now
    assert loan_of(gang).recalled_at is None


def test_two_are_lost_and_one_is_lent_so_the_borrower_stays_until_that_is_enough() -> None:
    gang, uid = lending()
    first, second = gang.member(0), gang.member(1)
    gang.fail_device(first.node, first.devices[0])
    gang.fail_device(second.node, second.devices[0])
    gang.settle()
    assert gang.status.barrier == "Closed"
    assert uid in gang.pods.now, "one place for two would cure nothing"
    assert loan_of(gang).recalled_at is None
    old = gang.ledger.now[first.node]
    cured = [msgspec.structs.replace(d, signals=[]) for d in old.observed.devices]
    observed = msgspec.structs.replace(old.observed, devices=cured)
    gang.ledger.put(first.node, msgspec.structs.replace(old, observed=observed))
    gang.settle(60, 1.0)
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.RECALL_SPARE
    assert uid not in gang.pods.now


def test_a_lent_place_that_breaks_is_no_loan_any_more() -> None:
    gang, uid = lending()
    gang.fail_device(loan_of(gang).node, loan_of(gang).devices[0])
    train(gang, 3.0)
    assert not gang.status.loans
    assert uid in gang.pods.now, "what to do about the borrower's device is not the gang's business"
    assert gang.status.attempt == 1


@pytest.mark.parametrize("change", ["suspend", "finish"])
def test_a_gang_that_goes_leaves_the_borrower_what_it_has(change: str) -> None:
    gang, uid = lending()
    if change == "suspend":
        gang.edit(suspend=True)
        train(gang, 30.0)
        assert gang.status.phase == "Suspended"
    else:
        gang.edit(active_deadline_seconds=1.0)
        train(gang, 3.0)
        assert gang.job.is_finished
    assert not gang.status.loans
    assert gang.pods.now[uid].spec.node_name
    assert not gang.pods.now[uid].is_deleting


def test_a_gang_that_moves_whole_leaves_the_borrower_what_it_has() -> None:
    gang = a_gang(JOB, racks(3, 3, gpus=2)).settle()
    for node in ("node-04", "node-05", "node-06"):
        gang.occupy(node)
    train(gang, SETTLED_S + 5.0)
    uid = gang.ask_preemptibly(2)
    train(gang, 20.0)
    assert gang.status.loans
    for other in [u for u in gang.pods.now if u.startswith("other")]:
        gang.delete_pod(other)
        gang.kubelet(other)
    first, second = gang.member(0), gang.member(1)
    gang.fail_device(first.node, first.devices[0])
    gang.fail_device(second.node, second.devices[0])
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.REPLACE_GANG
    assert not gang.status.loans
    assert not gang.pods.now[uid].is_deleting


def test_a_loan_outlives_the_wish_to_lend() -> None:
    gang, uid = lending()
    gang.edit(lend_spares=False)
    train(gang, 5.0)
    assert [b.uid for b in loan_of(gang).borrowers] == [uid]
    gang.delete_pod(uid)
    train(gang, 10.0)
    assert not gang.status.loans
    assert spares(gang)


# -- cpu, memory and slots ---------------------------------------------------------------------------------------------

HOST = JOB.template(containers=[{"name": "main", "resources": {"requests": {"cpu": "6", "memory": "8Gi"}}}])
ROOM: dict[str, int | str] = {"cpu": "8", "memory": "16Gi", "pods": 3}


def lending_with_cpu(cpu: str) -> tuple[GangModel, str]:
    gang = a_gang(HOST, racks(3, gpus=2))
    gang.offer(**ROOM)
    gang.settle()
    train(gang, SETTLED_S + 5.0)
    uid = gang.ask_preemptibly(2, cpu=cpu)
    train(gang, 20.0)
    assert gang.pods.now[uid].spec.node_name, gang.status
    return gang, uid


def test_a_loan_says_all_that_its_spare_asked_for() -> None:
    gang, _ = lending_with_cpu("1")
    assert loan_of(gang).requests == {"cpu": "6000m", "memory": str(8 << 30), RESOURCE_GPU: "2"}


@pytest.mark.parametrize("many", [{"cpu": "3"}, {"memory": "9Gi"}])
def test_what_a_borrower_leaves_of_a_place_is_for_nobody_else(many: dict[str, str]) -> None:
    """Else the spare would find its devices there and no processor beside them."""
    gang, guest = lending_with_cpu("1")
    place = loan_of(gang).node
    big, small = gang.ask(0, "stranger", None, **many), gang.ask(0, "stranger", cpu="2", memory="1Gi")
    for other in [node for node in gang.nodes if node != place]:
        gang.nodes[other] = msgspec.structs.replace(
            gang.nodes[other], spec=msgspec.structs.replace(gang.nodes[other].spec, unschedulable=True)
        )
    train(gang, 15.0)
    assert not gang.pods.now[big].spec.node_name
    assert gang.pods.now[small].spec.node_name == place, "two of eight were nobody's before, either"
    gang.fail_device(gang.member(1).node, gang.member(1).devices[0])
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.RECALL_SPARE
    assert (gang.member(1).node, guest in gang.pods.now) == (place, False)
    assert not gang.pods.now[big].spec.node_name


def test_a_second_borrower_has_what_the_first_left() -> None:
    gang = a_gang(HOST, racks(3, gpus=2))
    gang.offer(**ROOM)
    gang.settle()
    train(gang, SETTLED_S + 5.0)
    first = gang.ask_preemptibly(1, cpu="4")
    train(gang, 20.0)
    late, second = gang.ask_preemptibly(1, cpu="5"), gang.ask_preemptibly(1, cpu="4")
    train(gang, 15.0)
    assert [b.uid for b in loan_of(gang).borrowers] == [first, second]
    assert gang.pods.now[second].spec.node_name == loan_of(gang).node
    assert not gang.pods.now[late].spec.node_name


def test_the_spare_returns_to_a_place_that_its_borrower_left() -> None:
    gang, guest = lending_with_cpu("1")
    place = loan_of(gang).node
    stranger = gang.ask(0, "stranger", cpu="3")
    train(gang, 5.0)
    gang.delete_pod(guest)
    train(gang, 10.0)
    assert not gang.status.loans
    assert [s.node for s in gang.status.spares if s.parked] == [place]
    assert not gang.pods.now[stranger].spec.node_name

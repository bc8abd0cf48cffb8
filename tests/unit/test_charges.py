"""The rule of `tests.builders.charges` can fail: a charge needs a stop of its own cause, place and time."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.training import Cause, Member, Recovery, Remedy, TrainingJob, TrainingJobStatus
from tests.builders.charges import Charge, ChargeBook, Stop, unexplained
from tests.builders.world import training_job

replace = msgspec.structs.replace
REBOOT = Stop("node-reboot n1", frozenset({Cause.INFRA}), since=10.0, until=40.0, node="n1")
KILL = Stop("process-kill job-0", frozenset({Cause.CODE}), since=10.0, until=40.0, job="job")


def charge(cause: Cause, at: float = 20.0, *nodes: str) -> Charge:
    return Charge(at, "job", cause, "Why", frozenset(nodes or ("n1",)))


@pytest.mark.parametrize(
    ("made", "left"),
    [
        ([charge(Cause.INFRA)], 0),
        ([charge(Cause.CODE)], 0),
        ([charge(Cause.INFRA), charge(Cause.CODE)], 0),
        ([charge(Cause.INFRA), charge(Cause.INFRA, 21.0)], 1),
        ([charge(Cause.DEVICE)], 1),
        ([charge(Cause.MAINTENANCE)], 1),
        ([charge(Cause.INFRA, 9.0)], 1),
        ([charge(Cause.INFRA, 41.0)], 1),
        ([charge(Cause.INFRA, 20.0, "n2")], 1),
    ],
)
def test_a_charge_needs_a_stop_of_its_own(made: list[Charge], left: int) -> None:
    assert len(unexplained(made, [REBOOT, KILL])) == left


def test_charges_are_matched_as_well_as_can_be() -> None:
    """The first charge could have either stop, the second only one of them."""
    late = replace(REBOOT, since=30.0, until=60.0)
    assert unexplained([charge(Cause.INFRA, 35.0), charge(Cause.INFRA, 20.0)], [REBOOT, late]) == []
    assert unexplained([charge(Cause.INFRA), charge(Cause.INFRA)], [replace(REBOOT, times=2)]) == []


def test_a_charge_that_moves_is_one_of_the_other_cause() -> None:
    book = ChargeBook()
    crashed = told({"code": 1}, Cause.CODE, "n1")
    book.see(crashed, TrainingJobStatus(), 10.0, ["n1", "n2"])
    assert [(c.cause, c.nodes) for c in book.made] == [("code", frozenset({"n1"}))]
    book.see(told({"device": 1}, Cause.DEVICE, "n2"), crashed.status, 11.0, ["n1", "n2"])
    assert [(c.cause, c.nodes) for c in book.made] == [("device", frozenset({"n2"}))]


def told(used: dict[str, int], cause: Cause, node: str) -> TrainingJob:
    seat = Member(0, "worker", "job-worker-0", "uid-0", node)
    last = Recovery(2, cause, Remedy.RESTART_IN_PLACE, "Why", seats=[seat])
    job = training_job("job")
    return replace(job, status=replace(job.status, used=used, recoveries=[last]))

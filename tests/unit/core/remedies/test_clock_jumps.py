"""Clocks that are wrong: a node's, or the manager's own. Nothing is given back at once, nothing waits for ever."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import NodeDevices
from remuda.api.incidents import IncidentPhase, RemedyOutcome, RemedyRecord
from remuda.api.kubernetes.core_v1 import Lease, LeaseSpec
from remuda.api.meta import ObjectMeta, to_seconds, to_time
from remuda.api.remedies import Breaker
from remuda.core.health.agent_liveness import AgentLeaseRenewals
from remuda.core.remedies.breaker import NodeFailure, breaker_status
from remuda.core.remedies.ladder.state import rebase_remedy_records
from tests.builders.remedies import DEVICE, NODE, T0, Bench, incident

HOUR = 3600.0
YEAR_1970, YEAR_2100 = 60.0, 4_102_444_800.0
OFF = [YEAR_1970 - T0, -HOUR, -5.0, 5.0, HOUR, YEAR_2100 - T0]


def with_node_clock(bench: Bench, off_s: float) -> None:
    """What the agent has answered so far says its own time."""
    ledger: NodeDevices = bench.ledgers[NODE]
    answers = [
        msgspec.structs.replace(a, time=to_time(max(1.0, T0 + off_s))) for a in ledger.observed.answers if a.time
    ]
    observed = msgspec.structs.replace(ledger.observed, answers=answers)
    bench.ledgers[NODE] = msgspec.structs.replace(ledger, observed=observed)


@pytest.mark.parametrize("off_s", OFF)
def test_the_soak_is_counted_by_the_managers_clock(off_s: float) -> None:
    """Bench: a soak of 60 s."""
    bench = Bench(incident())
    bench.look(T0 + 1)
    with_node_clock(bench, off_s)
    for second in range(2, 62):
        bench.look(T0 + second)
    assert bench.outcomes() == {"probe-1": "Succeeded"}
    assert bench.phase is IncidentPhase.VERIFYING
    assert bench.quarantined == [DEVICE], "given back although the soak is not over"
    bench.look(T0 + 64)
    assert bench.quarantined == [], "the soak is over"


@pytest.mark.parametrize("wrong", [T0 + HOUR, YEAR_2100])
def test_a_manager_whose_clock_is_set_back_counts_the_soak_anew(wrong: float) -> None:
    bench = Bench(incident())
    bench.look(wrong)
    bench.look(wrong + 1)
    assert bench.outcomes() == {"probe-1": "Succeeded"}
    for second in range(0, 60, 5):
        bench.look(T0 + second)
        assert bench.quarantined == [DEVICE]
    bench.look(T0 + 61)
    bench.look(T0 + 62)
    assert bench.quarantined == []


@pytest.mark.parametrize("wrong", [T0 + HOUR, YEAR_2100])
def test_a_rung_begun_by_a_clock_that_was_set_back_still_ends(wrong: float) -> None:
    bench = Bench(incident(), answers={"probe-1": "", "reset-1": ""})
    bench.look(wrong)
    bench.look(T0)
    assert bench.outcomes() == {"probe-1": "Running"}
    bench.run(until=200)
    assert bench.outcomes() == {"probe-1": "TimedOut", "reset-1": "Running"}


def test_only_times_that_cannot_be_true_are_counted_anew() -> None:
    fine = RemedyRecord("probe-1", "probe", started_at=to_time(T0 + 30), deadline=to_time(T0 + 150))
    ahead = RemedyRecord(
        "reset-1",
        "reset",
        outcome=RemedyOutcome.SUCCEEDED,
        started_at=to_time(T0 + 500),
        ended_at=to_time(T0 + 520),
        deadline=to_time(T0 + 800),
    )
    after = rebase_remedy_records({"probe-1": fine, "reset-1": ahead}, T0)
    assert after["probe-1"] == fine
    moved = after["reset-1"]
    assert [moved.started_at, moved.ended_at, moved.deadline] == [to_time(T0), to_time(T0), to_time(T0 + 300)]


@pytest.mark.parametrize("ahead_s", [10.0, HOUR, YEAR_2100 - T0])
def test_failures_ahead_of_the_clock_do_not_hold_the_breaker_open_for_ever(ahead_s: float) -> None:
    breaker = Breaker(share="10%", at_least=1, window_seconds=300, cooldown_seconds=600)
    failures = [NodeFailure(T0 + ahead_s, f"n{i}") for i in range(5)]
    later = T0 + min(ahead_s, HOUR) + 601
    assert not breaker_status(breaker, failures, 10, later).open
    assert breaker_status(breaker, [NodeFailure(T0, f"n{i}") for i in range(5)], 10, T0 + 1).open


# --- leases -----------------------------------------------------------------------------------------------------------


def lease(renewed: float, length: int = 40) -> Lease:
    return Lease(
        metadata=ObjectMeta(name=NODE), spec=LeaseSpec(renew_time=to_time(renewed), lease_duration_seconds=length)
    )


@pytest.mark.parametrize("off_s", [YEAR_1970 - T0, -HOUR, -30.0, 30.0, HOUR, YEAR_2100 - T0])
def test_a_node_is_heard_when_its_renewal_is_seen_whatever_its_clock_says(off_s: float) -> None:
    renewals = AgentLeaseRenewals()
    for second in range(0, 100, 10):
        renewed = lease(T0 + off_s + second)
        renewals.see(renewed, T0 + second)
        assert renewals.renewed_at(renewed) == T0 + second
        renewals.see(renewed, T0 + second + 5)  # told again: a relist
        assert renewals.renewed_at(renewed) == T0 + second, "the same renewal told again is none"


def test_clocks_that_agree_are_believed() -> None:
    renewals = AgentLeaseRenewals()
    renewed = lease(T0)
    renewals.see(renewed, T0 + 3)
    assert renewals.renewed_at(renewed) == T0, "a slow watch does not keep a dead node alive"


def test_a_lease_that_is_old_at_first_sight_gets_one_more_length() -> None:
    renewals = AgentLeaseRenewals()
    old = lease(T0 - HOUR)
    renewals.see(old, T0)
    heard = renewals.renewed_at(old)
    assert heard == T0
    renewals.forget(NODE)
    assert renewals.renewed_at(old) == to_seconds(to_time(T0 - HOUR))

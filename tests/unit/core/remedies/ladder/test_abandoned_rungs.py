"""A policy that is changed or deleted in the middle of a remedy: what is under way ends, and nothing is left hanging."""

from __future__ import annotations

import pytest

from remuda.api.incidents import IncidentPhase
from remuda.api.remedies import Action, Hook, Mode, RemedyPolicy, Rung, Soak
from remuda.core.remedies.rungs import are_remedies_exhausted, is_remedy_held_back, is_under_remedy
from tests.builders.remedies import DEVICE, NODE, Bench, incident, ladder, remedy_policy

SOAK = Soak(seconds=60.0)
REPAIR = Hook(object={"apiVersion": "dc.example/v1", "kind": "Repair"})


def _policy(*rungs: Rung, **spec: object) -> RemedyPolicy:
    return remedy_policy("mine", ladders=[ladder("*", *rungs)], soak=SOAK, **spec)


def test_a_reset_under_way_is_followed_to_its_soak_when_its_policy_goes() -> None:
    bench = Bench(incident(), _policy(Rung(Action.RESET)), answers={"reset-1": ""})
    bench.look()
    assert bench.outcomes() == {"reset-1": "Running"}
    orders = bench.ledgers[NODE].orders
    bench.policy = _policy(Rung(Action.REBOOT))
    bench.look()
    assert bench.ledgers[NODE].orders == orders, "the agent's order stands as it was"
    bench.answers = {}
    bench.run(until=30)
    assert bench.outcomes() == {"reset-1": "Succeeded", "probe-reset-1": "Succeeded"}
    assert bench.phase is IncidentPhase.VERIFYING
    bench.run(until=100)
    assert bench.quarantined == []
    assert not any("reboot" in key for key in bench.begun), "what was cured is not rebooted for another policy"


def test_one_that_does_not_cure_goes_on_with_the_ladder_of_today() -> None:
    bench = Bench(incident(), _policy(Rung(Action.RESET)), answers={"reset-1": ""})
    bench.look()
    bench.policy = _policy(Rung(Action.PROBE), Rung(Action.TICKET))
    bench.answers = dict.fromkeys(("reset-1", "probe-1"), "Failed")
    bench.run(until=30)
    assert bench.outcomes() == {"reset-1": "Failed", "probe-1": "Failed", "ticket-1": "Succeeded"}
    assert are_remedies_exhausted(bench.incident)


@pytest.mark.parametrize("later", [(Rung(Action.REBOOT),), (Rung(Action.REPLACE),)], ids=["no-such-rung", "no-hook"])
def test_a_hook_that_nobody_knows_any_more_holds_no_place_in_the_limits(later: tuple[Rung, ...]) -> None:
    bench = Bench(incident(), _policy(Rung(Action.REPLACE, hook=REPAIR)))
    bench.run(until=5)
    assert bench.outcomes() == {"drain-replace-1": "Succeeded", "replace-1": "Running"}
    bench.policy = _policy(*later)
    bench.answers = dict.fromkeys(("reboot-1",), "Failed")
    bench.run(until=30)
    assert bench.outcomes()["replace-1"] == "Failed"
    assert bench.reason("replace-1") == "PolicyChanged"
    assert not is_under_remedy(bench.incident)
    assert bench.quarantined == [DEVICE]
    assert not bench.nodes[NODE].spec.unschedulable
    assert f"{NODE}/replace-1" not in bench.begun


def test_a_question_that_no_ladder_asks_any_more_is_forgotten() -> None:
    bench = Bench(incident(), _policy(Rung(Action.RESET), mode=Mode.APPROVE))
    bench.look()
    assert bench.outcomes() == {"reset-1": "AwaitingApproval"}
    bench.policy = _policy(Rung(Action.REBOOT), mode=Mode.APPROVE)
    bench.look()
    assert bench.outcomes() == {"reboot-1": "AwaitingApproval"}


def test_what_is_held_back_is_so_by_the_ladder_of_today_alone() -> None:
    bench = Bench(incident(), _policy(Rung(Action.RESET)))
    bench.shut()
    bench.look()
    assert is_remedy_held_back(bench.incident)
    bench.policy = _policy(Rung(Action.TICKET))
    bench.gate = None
    bench.run(until=5)
    assert bench.outcomes() == {"ticket-1": "Succeeded"}
    assert not is_remedy_held_back(bench.incident)

"""Most nodes silent at once: held, not lost; by zone, for as long as the rule says, unless an operator gives them up."""

from __future__ import annotations

import pytest

from remuda.api.errors import Refusal
from remuda.core.health.mass_silence import (
    MassSilenceRule,
    MassSilences,
    NodeSilence,
    check_mass_silence_rule,
    find_mass_silences,
)

RULE = MassSilenceRule(window_s=30.0, hold_s=600.0)
NOW = 1000.0


def nodes(*ends: float, zone: str = "", first: int = 1) -> list[NodeSilence]:
    """One for each moment at which a lease runs out."""
    return [NodeSilence(f"{zone}n{n}", zone, end, 8.0) for n, end in enumerate(ends, first)]


@pytest.mark.parametrize(
    ("ends", "held"),
    [
        pytest.param((NOW + 7, NOW + 6, NOW + 8), 0, id="all renew"),
        pytest.param((NOW - 1, NOW + 6, NOW + 8), 0, id="one of three is lost"),
        pytest.param((NOW - 1, NOW - 2, NOW + 8), 2, id="two of three at once"),
        pytest.param((NOW - 1, NOW - 2, NOW + 8, NOW + 8), 0, id="half is not most"),
        pytest.param((NOW - 0.1, NOW + 1, NOW + 2, NOW + 8), 3, id="the first to run out, the others about to"),
        pytest.param((NOW - 1, NOW - 200, NOW + 8), 0, id="two, one after the other"),
        pytest.param((NOW - 500, NOW - 500, NOW - 1, NOW - 2), 2, id="half before, and then all that were left"),
        pytest.param((NOW - 1,), 0, id="one that is alone"),
        pytest.param((NOW + 1, NOW + 1, NOW + 1), 0, id="late, and nobody silent yet"),
    ],
)
def test_most_at_once(ends: tuple[float, ...], held: int) -> None:
    found = find_mass_silences(nodes(*ends), NOW, RULE)
    assert sum(len(s.nodes) for s in found) == held


def test_each_zone_by_itself() -> None:
    there = [*nodes(NOW - 1, NOW - 1, NOW + 8, zone="a"), *nodes(*(NOW + 8,) * 9, zone="b")]
    (found,) = find_mass_silences(there, NOW, RULE)
    assert (found.zone, found.nodes, found.of) == ("a", ("an1", "an2"), 3)


def test_they_are_held_until_they_answer_and_the_last_ones_a_lease_longer() -> None:
    silences = MassSilences(RULE)
    assert silences.look(nodes(NOW - 1, NOW - 2, NOW - 3, NOW + 8), NOW) == {"n1", "n2", "n3"}
    at = NOW + 5000
    assert silences.look(nodes(NOW - 1, NOW - 2, NOW - 3, at + 8), at) == {"n1", "n2", "n3"}, "wait means wait"
    at += 1
    assert silences.look(nodes(at + 8, at + 8, NOW - 3, at + 8), at) == {"n3"}
    at += 9
    assert silences.look(nodes(at + 8, at + 8, NOW - 3, at + 8), at) == frozenset(), "it was really lost"


def test_by_the_rule_they_are_replaced_after_the_hold() -> None:
    silences = MassSilences(MassSilenceRule(hold_s=60.0, then="replace"))
    there = nodes(NOW - 1, NOW - 2, NOW - 3)
    assert len(silences.look(there, NOW)) == 3
    assert len(silences.look(there, NOW + 50)) == 3
    assert silences.look(there, NOW + 60) == frozenset()


def test_what_is_given_up_is_lost_until_it_is_heard_of() -> None:
    silences = MassSilences(RULE)
    gone = NodeSilence("n1", "", NOW - 1, 8.0, given_up_at=NOW)
    others = nodes(NOW - 1, NOW - 1, first=2)
    assert silences.look([gone, *others], NOW + 1) == {"n2", "n3"}
    back = NodeSilence("n1", "", NOW + 100, 8.0, given_up_at=NOW)
    again = nodes(NOW + 100, NOW + 100, first=2)
    assert silences.look([back, *again], NOW + 101) == {"n1", "n2", "n3"}


def test_a_guard_that_is_off_holds_nobody() -> None:
    assert MassSilences(MassSilenceRule(is_on=False)).look(nodes(NOW - 1, NOW - 2), NOW) == frozenset()


@pytest.mark.parametrize(
    "rule", [MassSilenceRule(then="panic"), MassSilenceRule(window_s=0.0), MassSilenceRule(hold_s=-1.0)]
)
def test_a_rule_that_means_nothing_is_refused(rule: MassSilenceRule) -> None:
    with pytest.raises(Refusal, match="InvalidMassSilence"):
        check_mass_silence_rule(rule)

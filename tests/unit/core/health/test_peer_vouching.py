"""Peers: what a node says to others, when it is vouched for, whom it asks, and what its renewals carry."""

from __future__ import annotations

import pytest

from remuda.core.health.mass_silence import MassSilenceRule
from remuda.core.health.peer_vouching import (
    ANNOTATION_PEERS,
    ANNOTATION_SAID_CUT,
    CUT,
    LONGEST_S,
    MOST_PEERS,
    NO_PEERS,
    REACHES,
    UNSURE,
    PeerList,
    PeerMap,
    PeerPlace,
    PeerStanding,
    is_vouched_by_peers,
    peers_speak_for_s,
    read_vouching_peers,
    write_vouching_peers,
)

LEASE_S = 30.0
FOUR = PeerList(("a", "b", "c", "d"), 600.0)


def standing(*tries: tuple[float, bool]) -> PeerStanding:
    """After tries to renew that began then and got through, or not; each took a second."""
    found = PeerStanding(LEASE_S, 0.0)
    found.want_list(FOUR)
    for at, got_through in tries:
        found.begin_try(at)
        found.end_try(got_through=got_through)
    return found


@pytest.mark.parametrize(
    ("tries", "now", "word"),
    [
        pytest.param((), 1.0, UNSURE, id="nothing tried yet"),
        pytest.param([(0.0, True)], 1.0, REACHES, id="got through just now"),
        pytest.param([(0.0, True)], 9.0, UNSURE, id="got through a while ago"),
        pytest.param([(0.0, True), (3.0, False)], 4.0, UNSURE, id="one try failed soon after"),
        pytest.param([(0.0, True), (10.0, False)], 11.0, CUT, id="the newest failed, the last that got through is old"),
        pytest.param([(0.0, True), (10.0, False), (12.0, True)], 13.0, REACHES, id="back again"),
    ],
)
def test_what_a_node_says(tries: list[tuple[float, bool]], now: float, word: str) -> None:
    assert standing(*tries).say(now, is_fenced=False) == word


def test_a_try_that_hangs_is_cut_after_a_while_and_who_woke_up_is_unsure() -> None:
    hanging = standing((0.0, True))
    hanging.begin_try(10.0)
    assert [hanging.say(at, is_fenced=False) for at in (10.5, 12.0, 13.0)] == [UNSURE, UNSURE, CUT]
    asleep = standing((0.0, True))
    assert asleep.say(500.0, is_fenced=False) == UNSURE


def test_who_is_fenced_is_unsure() -> None:
    assert standing((0.0, True), (10.0, False)).say(11.0, is_fenced=True) == UNSURE


@pytest.mark.parametrize(
    ("answers", "vouched"),
    [
        pytest.param({"a": CUT, "b": CUT, "c": CUT}, True, id="most of the list"),
        pytest.param({"a": CUT, "b": CUT}, False, id="half is not most"),
        pytest.param({"a": CUT, "b": CUT, "c": CUT, "d": REACHES}, False, id="one reaches the API"),
        pytest.param({"a": CUT, "b": CUT, "c": UNSURE, "d": UNSURE}, False, id="unsure is not cut"),
        pytest.param({"a": CUT, "b": CUT, "x": CUT, "y": CUT}, False, id="others were not to be asked"),
        pytest.param({}, False, id="nobody answers"),
    ],
)
def test_most_are_cut_and_none_reaches(answers: dict[str, str], vouched: bool) -> None:
    assert is_vouched_by_peers(FOUR, answers) is vouched


@pytest.mark.parametrize("of", range(5, MOST_PEERS + 1))
def test_from_five_peers_on_one_that_lies_does_not_tip_the_scales(of: int) -> None:
    """The manager holds a node while more than half of its list may have said `cut`. Who lies leaves no note there."""
    peers = PeerList(tuple(f"n{i}" for i in range(of)), 600.0)
    honest = dict.fromkeys(peers.nodes[: of // 2], CUT)
    liar = {peers.nodes[-1]: CUT}
    assert not is_vouched_by_peers(peers, honest | liar)
    enough = dict.fromkeys(peers.nodes[: of // 2 + 1], CUT)
    assert is_vouched_by_peers(peers, enough | liar)
    assert is_vouched_by_peers(peers, dict.fromkeys(peers.nodes[1:], CUT)), "one that does not answer costs nothing"


def test_of_fewer_than_five_more_than_half_are_enough() -> None:
    """Else one peer that is down would stop every gang of a small zone, whenever the API is away."""
    for of, enough in ((2, 2), (3, 2), (4, 3)):
        peers = PeerList(tuple(f"n{i}" for i in range(of)), 600.0)
        said = [dict.fromkeys(peers.nodes[:count], CUT) for count in range(of + 1)]
        assert [is_vouched_by_peers(peers, words) for words in said] == [count >= enough for count in range(of + 1)]


def test_too_few_peers_vouch_for_nothing() -> None:
    assert not is_vouched_by_peers(PeerList(("a",), 600.0), {"a": CUT})
    assert not is_vouched_by_peers(NO_PEERS, {})
    assert not is_vouched_by_peers(PeerList(("a", "b"), 0.0), {"a": CUT, "b": CUT})


def test_who_is_asked_tries_soon_a_few_times_and_then_less_often() -> None:
    found, tries = standing((0.0, True)), list[float]()
    for now in range(1, 121):
        if found.is_try_due(now):
            tries.append(now)
            found.begin_try(now)
            found.end_try(got_through=True)
    assert tries[:7] == [2, 4, 6, 8, 13, 18, 23]
    found.begin_try(121.0)
    found.end_try(got_through=False)
    assert found.is_try_due(123.0), "after one that failed it is always soon"
    assert standing((0.0, True), (400.0, True)).is_try_due(402.0)


ALL_CUT = dict.fromkeys(FOUR.nodes, CUT)


def test_only_who_is_cut_itself_is_vouched_for_and_only_for_so_long() -> None:
    assert standing((0.0, True)).vouched_s(1.0, ALL_CUT, 1.0) == 0.0
    found = standing((0.0, True), (10.0, False))
    assert found.vouched_s(11.0, ALL_CUT, 11.0) == 589.0
    assert found.vouched_s(700.0, ALL_CUT, 700.0) == 0.0


def test_a_list_is_asked_only_when_the_api_has_it_and_both_while_that_is_in_doubt() -> None:
    found = PeerStanding(LEASE_S, 0.0)
    found.want_list(FOUR)
    assert found.begin_try(1.0)[ANNOTATION_PEERS] == write_vouching_peers(FOUR)
    found.end_try(got_through=False)
    assert found.vouched_s(11.0, ALL_CUT, 11.0) == 0.0, "the API may not have it"
    found.begin_try(12.0)
    found.end_try(got_through=True)
    assert list(found.lists) == [FOUR]
    newer = PeerList(("a", "b", "e", "f"), 600.0)
    found.want_list(newer)
    found.begin_try(22.0)
    found.end_try(got_through=False)
    assert list(found.lists) == [FOUR, newer], "the API may have either"
    assert found.vouched_s(30.0, ALL_CUT, 30.0) == 0.0
    assert found.vouched_s(30.0, ALL_CUT | {"e": CUT}, 30.0) > 0
    found.want_list(PeerList(("x", "y"), 600.0))
    found.begin_try(31.0)
    assert list(found.lists) == [FOUR, newer], "one doubt at a time"
    found.end_try(got_through=True)
    assert list(found.lists) == [newer]


def test_every_renewal_after_it_notes_when_cut_was_last_said() -> None:
    found = standing((0.0, True), (10.0, False))
    assert found.begin_try(11.0)[ANNOTATION_SAID_CUT] == "11.000", "a process that begins may follow one that said it"
    found.end_try(got_through=False)
    assert found.say(12.0, is_fenced=False) == CUT
    assert found.begin_try(14.5)[ANNOTATION_SAID_CUT] == "2.500"
    found.end_try(got_through=True)
    assert found.begin_try(24.5)[ANNOTATION_SAID_CUT] == "12.500"
    found.end_try(got_through=True)
    assert found.begin_try(5000.0)[ANNOTATION_SAID_CUT] is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"nodes": 1}', '{"nodes": ["a"], "seconds": -1}', '{"seconds": 1e300}']
)
def test_a_list_that_cannot_be_read_names_nobody(text: str) -> None:
    assert read_vouching_peers(text) == NO_PEERS
    assert read_vouching_peers(write_vouching_peers(FOUR) or "") == FOUR
    assert write_vouching_peers(NO_PEERS) is None


def test_how_long_peers_may_speak_follows_from_the_rule() -> None:
    assert peers_speak_for_s(MassSilenceRule(then="wait"), 30.0) == LONGEST_S
    assert peers_speak_for_s(MassSilenceRule(hold_s=600.0, then="replace"), 30.0) == 570.0
    assert peers_speak_for_s(MassSilenceRule(hold_s=10.0, then="replace"), 30.0) == 0.0
    assert peers_speak_for_s(MassSilenceRule(is_on=False), 30.0) == 0.0


def peer_map(count: int, racks: int = 1, zones: int = 1) -> tuple[PeerMap, list[str]]:
    names = [f"n{i:04}" for i in range(count)]
    labels = {
        name: {"topology.remuda.dev/rack": f"r{i % racks}", "topology.kubernetes.io/zone": f"z{i % zones}"}
        for i, name in enumerate(names)
    }
    return PeerMap([PeerPlace(name, "10.0.0.1", 1) for name in names], labels), names


def test_all_of_a_small_zone_are_asked_and_nobody_of_another() -> None:
    peers, names = peer_map(20, racks=3, zones=2)
    assert [p.node for p in peers.choose("n0004")] == [n for n in names[::2] if n != "n0004"]


@pytest.mark.parametrize(("count", "racks"), [(33, 1), (34, 5), (400, 8), (400, 100)])
def test_of_a_large_zone_a_sample_over_all_racks_and_each_about_equally_often(count: int, racks: int) -> None:
    peers, names = peer_map(count, racks)
    chosen: dict[str, int] = {}
    for name in names:
        mine = [p.node for p in peers.choose(name)]
        assert len(mine) == len(set(mine)) == MOST_PEERS
        assert name not in mine
        assert len({int(n[1:]) % racks for n in mine}) >= min(racks, MOST_PEERS) - 1
        for node in mine:
            chosen[node] = chosen.get(node, 0) + 1
    assert max(chosen.values()) <= 2 * MOST_PEERS


def test_a_node_that_is_not_there_has_no_peers() -> None:
    peers, _ = peer_map(5)
    assert peers.choose("stranger") == ()

"""Limits are never exceeded and the breaker always closes by itself, whatever fails and in whichever order."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.api.meta import to_seconds
from remuda.api.remedies import Breaker, Limits
from remuda.core.remedies.breaker import NodeFailure, RemedyBreakerWatch, breaker_status, with_last_breaker_opening
from remuda.core.remedies.limits import HOUR_S, RemedyPool, limit_of_share, limit_reached
from remuda.core.remedies.occupancy import POOL as ALL
from remuda.core.remedies.occupancy import RemedyFootprint, RemedyOccupancy, remedy_limits_for_footprint
from tests.builders.remedies import T0, Bench, incident

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

NODES = [f"n{i}" for i in range(20)]
RACK_OF = {name: f"rack-{i // 5}" for i, name in enumerate(NODES)}
POOL = RemedyPool(nodes=20, racks={f"rack-{i}": 5 for i in range(4)}, tenants={"a": 8, "b": 3}, reservations={"r": 6})

bounds = st.sampled_from(["", "0", "1", "2", "3", "0%", "5%", "20%", "50%", "100%"])
KINDS = ("pool", "rack", "tenant", "reservation", "cause", "per_hour")
several = st.builds(Limits, **dict.fromkeys(KINDS, bounds))
# Alone: with several, one that lets nothing through hides the others.
alone = st.builds(lambda kind, text: Limits(**{"pool": "", kind: text}), st.sampled_from(KINDS), bounds)
limits = st.one_of(alone, several)


@st.composite
def footprints(draw: st.DrawFn) -> RemedyFootprint:
    node = draw(st.sampled_from(NODES))
    return RemedyFootprint(
        incident=f"{node}-{draw(st.integers(0, 7))}",
        policy=draw(st.sampled_from(["p", "q"])),
        nodes=(node,),
        began=0.0,
        rack=RACK_OF[node],
        tenants=tuple(sorted(draw(st.sets(st.sampled_from(["a", "b"]))))),
        reservation=draw(st.sampled_from(["", "r"])),
        cause=draw(st.sampled_from(["Xid79", "Xid48"])),
    )


# Begin one, end one (the n-th), or let time pass.
moves = st.one_of(footprints(), st.integers(0, 30), st.floats(1.0, 2 * HOUR_S))


@given(limits, st.lists(moves, max_size=60))
def test_no_sequence_of_failures_and_cures_exceeds_a_limit(
    limit: Limits, sequence: list[RemedyFootprint | int | float]
) -> None:
    known: dict[str, RemedyFootprint] = {}
    occupancy = RemedyOccupancy()
    now = T0
    for move in sequence:
        if isinstance(move, float):
            now += move
        elif isinstance(move, int):
            active = [f for f in known.values() if f.is_active]
            if active:
                over = active[move % len(active)]
                known[over.incident] = msgspec.structs.replace(over, is_active=False)
                occupancy.put(known[over.incident])
        elif not (move.incident in known and known[move.incident].is_active):
            new = msgspec.structs.replace(move, began=now, is_active=False)
            if limit_reached(new, occupancy, limit, POOL, now) is None:
                known[move.incident] = msgspec.structs.replace(new, is_active=True)
                occupancy.put(known[move.incident])
        _check(limit, [f for f in known.values() if f.policy == "p"], now)
        _check(limit, [f for f in known.values() if f.policy == "q"], now)


def _check(limit: Limits, known: list[RemedyFootprint], now: float) -> None:
    active = [f for f in known if f.is_active]

    def within(text: str, of: int, some: list[RemedyFootprint]) -> None:
        most = limit_of_share(text, of)
        nodes = {n for f in some for n in f.nodes}
        assert most is None or len(nodes) <= most, f"{text} of {of}: {sorted(nodes)}"

    within(limit.pool, POOL.nodes, active)
    for rack, size in POOL.racks.items():
        within(limit.rack, size, [f for f in active if f.rack == rack])
    for tenant, size in POOL.tenants.items():
        within(limit.tenant, size, [f for f in active if tenant in f.tenants])
    within(limit.reservation, POOL.reservations["r"], [f for f in active if f.reservation == "r"])
    for cause in ("Xid79", "Xid48"):
        within(limit.cause, POOL.nodes, [f for f in active if f.cause == cause])
    an_hour = limit_of_share(limit.per_hour, POOL.nodes)
    assert an_hour is None or sum(now - f.began < HOUR_S for f in known) <= an_hour


@st.composite
def any_footprints(draw: st.DrawFn) -> RemedyFootprint:
    found = draw(footprints())
    nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True))
    began, is_active = draw(st.floats(0.0, 9.0)), draw(st.booleans())
    name = f"i{draw(st.integers(0, 6))}"
    return msgspec.structs.replace(found, incident=name, nodes=tuple(nodes), began=began, is_active=is_active)


@given(st.lists(st.one_of(any_footprints(), st.integers(0, 6)), max_size=30), any_footprints(), st.floats(0.0, 9.0))
def test_what_is_counted_as_it_comes_and_goes_is_what_one_would_count_at_the_end(
    moves: list[RemedyFootprint | int], new: RemedyFootprint, since: float
) -> None:
    occupancy, known = RemedyOccupancy(), dict[str, RemedyFootprint]()
    for move in moves:
        if isinstance(move, int):
            occupancy.drop(f"i{move}")
            known.pop(f"i{move}", None)
        else:
            occupancy.put(move)
            known[move.incident] = move
    rest = [f for f in known.values() if f.policy == new.policy and f.incident != new.incident]
    for kind in {ALL, *remedy_limits_for_footprint(new)}:
        there = {n for f in rest if f.is_active and kind in remedy_limits_for_footprint(f) for n in f.nodes}
        assert occupancy.beside(new, kind) == (len(there), len(set(new.nodes) - there))
        assert sorted(occupancy.named(new, kind, 99)) == sorted(there)
    assert occupancy.begun_since(new, since) == sum(f.began > since for f in rest)
    assert {f.incident: f for f in occupancy} == known


@given(footprints(), st.lists(footprints(), max_size=20), limits)
def test_what_is_held_back_says_which_limit_and_how_full_it_is(
    new: RemedyFootprint, others: list[RemedyFootprint], limit: Limits
) -> None:
    held = limit_reached(msgspec.structs.replace(new, is_active=False), RemedyOccupancy(others), limit, POOL, T0)
    if held is not None:
        assert held.reason.endswith("Limit")
        assert any(c.isdigit() for c in held.message)


def test_a_whole_domain_may_go_alone_and_nothing_beside_it() -> None:
    domain = RemedyFootprint("rack", "p", tuple(NODES[:18]), T0)
    one = RemedyFootprint("one", "p", (NODES[19],), T0)
    assert limit_reached(domain, RemedyOccupancy(), Limits(pool="10%"), POOL, T0) is None
    assert limit_reached(domain, RemedyOccupancy([one]), Limits(pool="10%"), POOL, T0) is not None
    assert limit_reached(one, RemedyOccupancy([domain]), Limits(pool="10%"), POOL, T0) is not None
    assert limit_reached(domain, RemedyOccupancy(), Limits(pool="0"), POOL, T0) is not None


def test_so_many_may_be_begun_within_an_hour() -> None:
    begun = [RemedyFootprint(f"i{n}", "p", (NODES[n],), T0 + n, is_active=False) for n in range(3)]
    new, limit = RemedyFootprint("new", "p", (NODES[9],), 0.0, is_active=False), Limits(pool="", per_hour="3")
    assert limit_reached(new, RemedyOccupancy(begun), limit, POOL, T0 + HOUR_S - 1) is not None
    assert limit_reached(new, RemedyOccupancy(begun), limit, POOL, T0 + HOUR_S) is None
    assert limit_reached(new, RemedyOccupancy(begun[1:]), limit, POOL, T0 + 10) is None
    going_on = msgspec.structs.replace(new, is_active=True)
    assert limit_reached(going_on, RemedyOccupancy(begun), limit, POOL, T0 + 10) is None, (
        "the next rung of one that was begun is none that begins"
    )


def test_shares_are_rounded_down_and_let_at_least_one_through() -> None:
    assert [limit_of_share(text, 25) for text in ("", "0", "3", "0%", "1%", "10%", "100%")] == [None, 0, 3, 0, 1, 2, 25]


# --- the breaker ------------------------------------------------------------------------------------------------------

breakers = st.builds(
    Breaker,
    share=st.sampled_from(["0", "2", "10%", "30%"]),
    at_least=st.integers(0, 5),
    window_seconds=st.sampled_from([10.0, 300.0]),
    cooldown_seconds=st.sampled_from([5.0, 600.0]),
)
failures = st.lists(st.builds(NodeFailure, at=st.floats(T0, T0 + 3000.0), node=st.sampled_from(NODES)), max_size=40)


@given(breakers, failures)
def test_the_breaker_always_closes_by_itself(breaker: Breaker, failed: list[NodeFailure]) -> None:
    last = max((f.at for f in failed), default=T0)
    status = breaker_status(breaker, failed, len(NODES), last)
    if status.open:
        assert status.closes_at is not None
        assert not breaker_status(breaker, failed, len(NODES), to_seconds(status.closes_at) + 0.01).open
    over = last + breaker.cooldown_seconds + 0.01
    closed = with_last_breaker_opening(breaker_status(breaker, failed, len(NODES), over), status, over)
    assert (closed.open, closed.since, closed.message) == (False, status.since, "")
    assert with_last_breaker_opening(closed, closed, over + 1.0) == closed, "said once"


@given(breakers, failures, st.randoms())
def test_the_breaker_opens_for_too_many_at_once_and_for_nothing_less(
    breaker: Breaker, failed: list[NodeFailure], chance: object
) -> None:
    most = max(breaker.at_least, limit_of_share(breaker.share, len(NODES)) or 0)
    now = T0 + 3000.0
    is_ever = any(
        len({f.node for f in failed if at - breaker.window_seconds < f.at <= at}) > most
        for at in (f.at for f in failed)
    )
    # Told of only what lay before, as a manager is: later failures change nothing about what was.
    past = [breaker_status(breaker, [g for g in failed if g.at <= f.at], len(NODES), f.at) for f in failed]
    assert any(s.open for s in past) == is_ever
    shuffled = list(failed)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert breaker_status(breaker, shuffled, len(NODES), now) == breaker_status(breaker, failed, len(NODES), now)


@given(breakers, failures)
def test_a_breaker_told_failure_by_failure_says_the_same_at_every_one(
    breaker: Breaker, failed: list[NodeFailure]
) -> None:
    watch = RemedyBreakerWatch(breaker, len(NODES))
    known: list[NodeFailure] = []
    for one in sorted(failed):
        watch.add(one)
        known.append(one)
        assert watch.status(one.at) == breaker_status(breaker, known, len(NODES), one.at)


def test_a_clock_that_was_set_back_does_not_keep_the_breaker_open() -> None:
    ahead = [NodeFailure(T0 + 86_400.0, name) for name in NODES]
    status = breaker_status(Breaker(), ahead, len(NODES), T0)
    assert status.open
    assert status.closes_at is not None
    assert to_seconds(status.closes_at) <= T0 + Breaker().cooldown_seconds


@given(st.lists(st.sampled_from(["Succeeded", "Failed", "TimedOut", "Refused", ""]), min_size=12, max_size=12))
def test_whatever_an_agent_answers_the_ladder_comes_to_rest_and_no_order_is_given_twice(said: list[str]) -> None:
    keys = (
        "probe-1 reset-1 probe-reset-1 reset-2 probe-reset-2 reboot-1 probe-reboot-1 replace-1 probe-replace-1 ticket-1 x y"
    ).split()
    bench = Bench(incident(), answers=dict(zip(keys, said, strict=True)))
    bench.run(until=200_000)
    assert len(bench.begun) == len(set(bench.begun))
    assert not any(outcome == "Running" for outcome in bench.outcomes().values())
    node = next(iter(bench.nodes.values()))
    assert (node.spec.unschedulable, node.annotations) == (False, {}), "nothing is kept that is not needed"
    cured = bench.incident.status.phase == "Verifying"
    assert (bench.quarantined == []) is cured

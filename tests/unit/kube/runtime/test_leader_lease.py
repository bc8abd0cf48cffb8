"""The rules of a lease: single steps, then a random world in which two must never lead at once."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from random import Random

import msgspec
import pytest

from remuda.api.errors import Refusal
from remuda.kube.runtime.leader_lease import (
    Candidacy,
    LeaseRecord,
    LeaseTiming,
    ReadLease,
    StepDownAsLeader,
    WaitForLease,
    WriteLease,
    decide_lease_action,
    leader_stepped_down,
    lease_race_was_lost,
    lease_request_failed,
    lease_wait_is_over,
    lease_was_read,
    lease_was_written,
)

TIMING = LeaseTiming(lease_s=15, renew_s=10.0, retry_s=2.0)
ME = Candidacy("me", TIMING)


def a_record(holder: str = "other", beat: str = "1", version: str = "1", transitions: int = 3) -> LeaseRecord:
    return LeaseRecord(holder, 15.0, transitions, beat, version)


def leading(sent_at: float = 100.0) -> Candidacy:
    return lease_was_written(lease_was_read(ME, None, sent_at), a_record("me"), sent_at, sent_at)


# A follower.


def test_who_knows_nothing_looks() -> None:
    assert decide_lease_action(ME, 0.0) == ReadLease()


def test_a_lease_that_does_not_exist_is_made() -> None:
    assert decide_lease_action(lease_was_read(ME, None, 5.0), 5.0) == WriteLease(None, 0, is_new=True)


@pytest.mark.parametrize("holder", ["", "me"])
def test_a_lease_that_is_released_or_our_own_is_taken_at_once(holder: str) -> None:
    record = a_record(holder)
    assert decide_lease_action(lease_was_read(ME, record, 5.0), 5.0) == WriteLease(record, 4, is_new=True)


def test_a_held_lease_is_waited_for_and_looked_at_again() -> None:
    seen = lease_was_read(ME, a_record(), 5.0)
    assert decide_lease_action(seen, 5.0) == WaitForLease(2.0)
    assert decide_lease_action(lease_wait_is_over(seen), 7.0) == ReadLease()


def test_a_lease_that_does_not_change_runs_out_by_our_own_clock() -> None:
    seen = lease_was_read(ME, a_record(), 5.0)
    again = lease_was_read(
        lease_wait_is_over(seen), a_record(version="9"), 19.0
    )  # somebody labelled it: that is no renewal
    assert decide_lease_action(again, 19.0) == WaitForLease(1.0)
    again = lease_was_read(lease_wait_is_over(again), a_record(version="9"), 20.0)
    assert decide_lease_action(again, 20.0) == WriteLease(a_record(version="9"), 4, is_new=True)


def test_a_renewed_lease_does_not_run_out() -> None:
    seen = lease_was_read(lease_wait_is_over(lease_was_read(ME, a_record(beat="1"), 5.0)), a_record(beat="2"), 19.0)
    assert decide_lease_action(seen, 20.0) == WaitForLease(2.0)


def test_the_holder_decides_how_long_its_lease_lasts() -> None:
    record = LeaseRecord("other", 60.0, 0, "1", "1")
    assert decide_lease_action(lease_was_read(ME, record, 0.0), 0.0) == WaitForLease(2.0)
    assert decide_lease_action(
        lease_was_read(lease_wait_is_over(lease_was_read(ME, record, 0.0)), record, 59.0), 59.0
    ) == WaitForLease(1.0)


def test_whoever_loses_a_race_looks_at_once_and_whoever_fails_waits() -> None:
    seen = lease_was_read(ME, None, 5.0)
    assert decide_lease_action(lease_race_was_lost(seen, 6.0), 6.0) == ReadLease()
    assert decide_lease_action(lease_request_failed(seen, 6.0), 6.0) == WaitForLease(2.0)
    assert decide_lease_action(lease_request_failed(seen, 6.0), 8.0) == ReadLease()


def test_a_write_that_is_acknowledged_too_late_gives_no_term() -> None:
    assert not lease_was_written(lease_was_read(ME, None, 5.0), a_record("me"), 5.0, 15.0).is_leading


# A leader.


def test_a_leader_renews_after_the_retry_period() -> None:
    assert decide_lease_action(leading(100.0), 100.5) == WaitForLease(1.5)
    assert decide_lease_action(leading(100.0), 102.0) == WriteLease(a_record("me"), 3, is_new=False)


def test_a_term_counts_from_the_sending() -> None:
    standing = lease_was_written(lease_was_read(ME, None, 100.0), a_record("me"), 100.0, 103.0)
    assert standing.ends_at == 110.0
    assert decide_lease_action(standing, 109.9) == WriteLease(a_record("me"), 3, is_new=False)
    assert isinstance(decide_lease_action(standing, 110.0), StepDownAsLeader)


def test_a_leader_that_cannot_renew_steps_down_in_time() -> None:
    standing = lease_request_failed(leading(100.0), 109.0)
    assert decide_lease_action(standing, 109.0) == WaitForLease(1.0)  # not the whole retry period: the term ends before
    action = decide_lease_action(standing, 110.0)
    assert isinstance(action, StepDownAsLeader)
    assert action.reason == "CannotRenew"


def test_a_leader_that_fails_once_looks_before_it_writes() -> None:
    standing = lease_request_failed(leading(100.0), 103.0)
    assert decide_lease_action(standing, 105.0) == ReadLease()
    standing = lease_was_read(standing, a_record("me", version="7"), 105.0)
    assert decide_lease_action(standing, 105.0) == WriteLease(a_record("me", version="7"), 3, is_new=False)


def test_a_leader_that_finds_another_name_steps_down() -> None:
    action = decide_lease_action(
        lease_was_read(lease_race_was_lost(leading(100.0), 101.0), a_record("other"), 101.0), 101.0
    )
    assert isinstance(action, StepDownAsLeader)
    assert action.reason == "Superseded"
    assert "other" in action.message


def test_a_leader_makes_a_deleted_lease_anew() -> None:
    standing = lease_was_read(lease_race_was_lost(leading(100.0), 101.0), None, 101.0)
    assert decide_lease_action(standing, 101.0) == WriteLease(None, 0, is_new=False)


def test_who_stepped_down_lets_others_go_first() -> None:
    standing = leader_stepped_down(leading(100.0), 110.0)
    assert not standing.is_leading
    assert decide_lease_action(standing, 110.0) == WaitForLease(2.0)
    assert decide_lease_action(standing, 112.0) == ReadLease()


@pytest.mark.parametrize(
    ("lease", "renew", "retry"), [(15, 15.0, 2.0), (15, 10.0, 10.0), (15, 10.0, 0.0), (5, 9.0, 1.0)]
)
def test_timing_that_cannot_work_is_refused(lease: int, renew: float, retry: float) -> None:
    with pytest.raises(Refusal, match="do not fit together"):
        LeaseTiming(lease, renew, retry)


# A world.


class World:
    """A lease on a server, contenders whose clocks differ in offset and speed, and a network that delays and loses."""

    def __init__(self, seed: int, contenders: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.version = 0
        self.record: LeaseRecord | None = None
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self.order = itertools.count()
        self.cut: set[int] = set()
        self.beats = itertools.count()
        self.names = [f"c{number}" for number in range(contenders)]
        # The margin of 5 s in 15 allows for clocks that differ by a quarter in speed; these differ by a fifth.
        self.speed = [self.random.uniform(0.91, 1.09) for _ in self.names]
        self.offset = [self.random.uniform(-1e6, 1e6) for _ in self.names]
        self.standing = [Candidacy(name, TIMING) for name in self.names]
        self.terms: list[tuple[int, str]] = []

    def clock(self, who: int) -> float:
        return self.offset[who] + self.now * self.speed[who]

    def at(self, delay: float, what: Callable[[], object]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), what))

    def valid_until(self, who: int) -> float:
        """In true time."""
        return (self.standing[who].ends_at - self.offset[who]) / self.speed[who]

    def leaders(self) -> list[str]:
        return [name for who, name in enumerate(self.names) if self.now < self.valid_until(who)]

    def step(self, who: int) -> None:
        standing, now = self.standing[who], self.clock(who)
        action = decide_lease_action(standing, now)
        if isinstance(action, StepDownAsLeader):
            self.standing[who] = leader_stepped_down(standing, now)
            self.at(0.0, lambda: self.step(who))
        elif isinstance(action, WaitForLease):
            self.at(action.seconds / self.speed[who], lambda: self.rest(who))
        else:
            self.ask(who, action, now)

    def rest(self, who: int) -> None:
        self.standing[who] = lease_wait_is_over(self.standing[who])
        self.step(who)

    def ask(self, who: int, action: ReadLease | WriteLease, sent_at: float) -> None:
        """The request arrives later or never, and so does the answer; then the contender has waited in vain."""
        there, back = (self.random.expovariate(2.0) for _ in range(2))
        chance = self.random.random()
        if who not in self.cut and chance > 0.1:
            self.at(there, lambda: self.arrive(who, action, sent_at, back))
            return
        if chance < 0.5:  # on its way for so long that nobody waits for it any more
            self.at(self.random.uniform(4.0, 40.0), lambda: self.take(who, action))
        self.at(4.0 / self.speed[who], lambda: self.give_up(who))

    def give_up(self, who: int) -> None:
        self.standing[who] = lease_request_failed(self.standing[who], self.clock(who))
        self.step(who)

    def take(self, who: int, action: ReadLease | WriteLease) -> tuple[str, LeaseRecord | None]:
        """What the server does."""
        if isinstance(action, ReadLease):
            return "seen", self.record
        if (action.over.version if action.over else None) != (self.record.version if self.record else None):
            return "lost", None
        self.version += 1
        self.record = LeaseRecord(self.names[who], 15.0, action.transitions, str(next(self.beats)), str(self.version))
        if action.is_new:
            self.terms.append((action.transitions, self.names[who]))
        return "written", self.record

    def arrive(self, who: int, action: ReadLease | WriteLease, sent_at: float, back: float) -> None:
        answer = self.take(who, action)
        if self.random.random() < 0.05 or who in self.cut:
            self.at(4.0 / self.speed[who], lambda: self.give_up(who))
        else:
            self.at(back, lambda: self.hear(who, answer, sent_at))

    def hear(self, who: int, answer: tuple[str, LeaseRecord | None], sent_at: float) -> None:
        standing, now = self.standing[who], self.clock(who)
        kind, record = answer
        if kind == "seen":
            self.standing[who] = lease_was_read(standing, record, now)
        elif kind == "lost":
            self.standing[who] = lease_race_was_lost(standing, now)
        else:
            assert record is not None
            self.standing[who] = lease_was_written(standing, record, sent_at, now)
        self.step(who)

    def shake(self) -> None:
        """Networks break and mend."""
        self.cut = {who for who in range(len(self.names)) if self.random.random() < 0.3}
        self.at(self.random.uniform(5.0, 60.0), self.shake)


@pytest.mark.parametrize("seed", range(40))
def test_two_never_lead_at_once(seed: int) -> None:
    print(f"seed {seed}")
    world = World(seed, contenders=2 + seed % 3)
    for who in range(len(world.names)):
        world.at(world.random.uniform(0, 3), partial(world.step, who))
    world.at(30.0, world.shake)
    led = 0.0
    while world.now < 3_600.0:
        moment, _, what = heapq.heappop(world.events)
        if world.leaders():
            led += moment - world.now
        world.now = moment
        what()
        assert len(world.leaders()) <= 1, f"two lead at {world.now}: {world.leaders()}"
    tokens = [token for token, _ in world.terms]
    assert tokens == sorted(set(tokens)), "a fencing token was used twice or went back"
    assert len(world.terms) > 3, "nothing ever changed hands: the test tests nothing"
    assert led > 1_200, f"somebody led for {led:.0f} s of an hour only"


def test_the_world_notices_a_leader_that_does_not_stop() -> None:
    """The check above can fail: without the leader's own deadline two lead soon."""
    for seed in range(20):
        world = World(seed, contenders=2)
        late = msgspec.structs.replace(TIMING, renew_s=14.9)
        world.standing = [Candidacy(name, late) for name in world.names]
        world.speed = [0.5, 1.5]
        for who in range(2):
            world.at(world.random.uniform(0, 3), partial(world.step, who))
        world.at(30.0, world.shake)
        while world.now < 3_600.0:
            world.now, _, what = heapq.heappop(world.events)
            what()
            if len(world.leaders()) > 1:
                return
    pytest.fail("clocks this different must break it")

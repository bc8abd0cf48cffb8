"""No rank twice by a peer's word: whatever nodes, networks and managers do, a node that runs is never handed on.

Nodes of one zone, drawn at random in steps of half a second: cut off alone and together, from the API, from each other, from
answers only (renewals are written, and their holders do not hear of it); writes that land late; lists that change; agents that
start anew; managers that come new; clocks that are off. Nodes are the real `PeerStanding` and `FenceCountdown`, the manager the
real `PeerHolds` and `AgentLeaseRenewals`; renewals are guarded by the lease's version, as `AgentLease` does it. Some nodes fence,
and renew, at the pace of a shorter lease than they write. With the hold, or the notes in renewals, switched off, the same stories
run ranks twice. In other stories one node of a zone lies: it says `cut` to everybody, always, and notes nothing.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.api.kubernetes.core_v1 import Lease, LeaseSpec
from remuda.api.meta import ObjectMeta, to_time
from remuda.core.health import peer_vouching
from remuda.core.health.agent_liveness import AgentLeaseRenewals, liveness_lease_name
from remuda.core.health.fence_bounds import FenceCountdown, fence_after_s
from remuda.core.health.peer_holds import PeerHolds
from remuda.core.health.peer_vouching import ANNOTATION_SAID_CUT, CUT, TRY_SHARE, PeerList, PeerStanding

BEGIN, LEASE_S, TICK_S = 1_800_000_000.0, 30, 0.5


class Node:
    def __init__(self, name: str, chance: random.Random, now: float, pace_s: float) -> None:
        self.name, self.skew = name, chance.choice([0.0, 0.0, 3.0, -7.0, 7.0, 500.0, -3600.0])
        self.pace_s, self.fence_s = pace_s, fence_after_s(pace_s)
        self.lies = False
        self.standing, self.countdown = PeerStanding(self.pace_s, now), FenceCountdown()
        self.countdown.vouched(now, self.fence_s)
        self.renewed = self.sent = now
        self.trying, self.next_try, self.next_look = False, now + chance.uniform(0, 10), now
        self.acked_at = math.inf
        self.writes: list[
            tuple[float, Lease, int, float]
        ] = []  # on their way: when they land, after which version, sent when
        self.version = 0  # of its lease, as it knows it
        self.is_fenced = False
        self.hears_api = self.reaches_api = True
        self.island = 0
        self.by_peers = 0


class Zone:
    def __init__(
        self, seed: int, *, holds: bool = True, notes: bool = True, liar: bool = False, pace_s: float = 21.0
    ) -> None:
        """`pace_s`: of some of the nodes."""
        self.chance = chance = random.Random(seed)
        self.now = BEGIN
        self.holds_on, self.notes_on = holds, notes
        self.versions: dict[str, int] = {}  # of each node's lease
        self.least = peer_vouching.DOUBTED_FROM if liar else peer_vouching.LEAST_PEERS
        paces = (LEASE_S, LEASE_S, LEASE_S, pace_s)
        count = chance.randint(self.least + 1, 7)
        self.nodes = [Node(f"n{i}", chance, self.now, chance.choice(paces)) for i in range(count)]
        self.nodes[-1].lies = liar
        self.lists = [PeerList(tuple(p.name for p in self.nodes if p is not n), 86_400.0) for n in self.nodes]
        self.leases: dict[str, Lease] = {}
        self.handed_on: list[tuple[str, float]] = []
        self.twice: list[tuple[str, float]] = []
        for node in self.nodes:  # nobody is in a list who has no lease yet
            self.leases[liveness_lease_name(node.name)] = self.lease_of(node, {})
        self.come_new()

    def lease_of(self, node: Node, notes: dict[str, str]) -> Lease:
        spec = LeaseSpec(lease_duration_seconds=LEASE_S, renew_time=to_time(self.now + node.skew))
        return Lease(metadata=ObjectMeta(name=liveness_lease_name(node.name), annotations=notes), spec=spec)

    def come_new(self) -> None:
        self.holds, self.renewals = PeerHolds(), AgentLeaseRenewals()
        for lease in self.leases.values():
            self.see(lease)

    def see(self, lease: Lease) -> None:
        self.holds.see(lease, self.now)
        self.renewals.see(lease, self.now)

    def run(self, seconds: float) -> Zone:
        while self.now < BEGIN + seconds:
            self.now += TICK_S
            if self.chance.random() < 0.02:
                self.change()
            for node, peers in zip(self.nodes, self.lists, strict=True):
                node.standing.want_list(peers)
                self.land(node)
                self.renew(node)
            for node in self.chance.sample(self.nodes, len(self.nodes)):
                self.look(node)
            self.manage()
        return self

    def change(self) -> None:
        chance, some = self.chance, self.chance.sample(self.nodes, self.chance.randint(1, len(self.nodes)))
        what = chance.choice(["cut", "cut", "deaf", "heal", "heal", "islands", "restart", "new manager", "lists"])
        for node in some:
            if what in ("cut", "deaf"):
                node.hears_api, node.reaches_api = False, what == "deaf"
            elif what == "heal":
                node.hears_api = node.reaches_api = True
            elif what == "islands":
                node.island = chance.randint(0, 1)
            elif what == "restart" and node.hears_api and node.reaches_api:
                node.standing, node.trying, node.next_try = PeerStanding(node.pace_s, self.now), False, self.now
            elif what == "lists":
                others = [p.name for p in self.nodes if p is not node]
                chosen = chance.sample(others, chance.randint(self.least, len(others)))
                self.lists[self.nodes.index(node)] = PeerList(tuple(sorted(chosen)), 86_400.0)
        if what == "new manager":
            self.come_new()

    def renew(self, node: Node) -> None:
        standing, chance = node.standing, self.chance
        if node.trying and (self.now >= node.acked_at or self.now >= node.sent + node.pace_s * TRY_SHARE):
            got_through = self.now >= node.acked_at
            standing.end_try(got_through=got_through)
            node.trying, node.next_try = False, self.now + node.pace_s / (3 if got_through else 12)
            if got_through:
                node.renewed = node.sent
                node.countdown.vouched(node.sent, node.fence_s)
                node.is_fenced = node.is_fenced and node.countdown.is_over(self.now)
        if node.trying or self.now < node.next_try:
            return
        notes = standing.begin_try(self.now)
        if not self.notes_on or node.lies:
            notes[ANNOTATION_SAID_CUT] = None
        node.trying, node.sent, node.acked_at = True, self.now, math.inf
        takes = chance.choice([0.0, 0.0, 0.0, 0.0, 1.0, 3.0])
        lease = self.lease_of(node, {key: value for key, value in notes.items() if value is not None})
        if node.reaches_api:
            if node.hears_api:
                node.version = self.versions.get(node.name, 0)
            node.writes.append((self.now + takes, lease, node.version, self.now))
        elif chance.random() < 0.2:  # lands when everybody has given it up
            node.writes.append((self.now + chance.uniform(5, 40), lease, node.version, self.now))

    def land(self, node: Node) -> None:
        for write in [w for w in node.writes if w[0] <= self.now]:
            node.writes.remove(write)
            _, lease, version, sent = write
            newest = self.versions.get(node.name, 0)
            if version != newest:
                continue
            self.versions[node.name] = newest + 1
            self.leases[lease.name] = lease
            self.see(lease)
            if node.hears_api and node.trying and node.sent == sent:
                node.acked_at = self.now + TICK_S

    def look(self, node: Node) -> None:
        standing = node.standing
        if node.is_fenced or self.now < node.next_look:
            return
        node.next_look = self.now + self.chance.choice([1.0, 1.5, 2.5])
        peers = [p for p in self.nodes if p is not node and p.island == node.island]
        if self.now - node.renewed >= 0.4 * node.fence_s and standing.may_be_cut(self.now):
            for peer in peers:
                if peer.standing.is_try_due(self.now):
                    peer.next_try = self.now
            answers = {p.name: CUT if p.lies else p.standing.say(self.now, is_fenced=p.is_fenced) for p in peers}
            seconds = min(node.fence_s, standing.vouched_s(self.now, answers, self.now))
            node.by_peers += seconds > 0
            node.countdown.vouched(self.now, seconds)
        node.is_fenced = node.countdown.is_over(self.now)

    def manage(self) -> None:
        held = self.holds.look(self.now) if self.holds_on else frozenset()
        for node in self.nodes:
            lease = self.leases.get(liveness_lease_name(node.name))
            heard = self.renewals.renewed_at(lease) if lease is not None else None
            if heard is not None and self.now > heard + LEASE_S and node.name not in held:
                self.handed_on.append((node.name, self.now - BEGIN))
                if not node.lies and not node.is_fenced and not node.countdown.is_over(self.now):
                    self.twice.append((node.name, self.now - BEGIN))


@given(st.integers(0, 2**32))
def test_no_node_is_handed_on_while_it_runs_by_its_peers_word(seed: int) -> None:
    assert Zone(seed).run(400.0).twice == []


@given(st.integers(0, 2**32))
def test_no_node_is_handed_on_while_it_runs_by_the_word_of_one_that_lies(seed: int) -> None:
    assert Zone(seed, liar=True).run(400.0).twice == []


def test_if_the_liar_were_believed_a_node_would_be_handed_on_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    zones = [Zone(seed, liar=True) for seed in range(300)]
    monkeypatch.setattr(peer_vouching, "DOUBTED_FROM", 99)
    assert any(zone.run(400.0).twice for zone in zones)


def test_the_stories_have_peers_that_vouch_and_nodes_that_are_handed_on() -> None:
    zones = [Zone(seed).run(400.0) for seed in range(30)]
    assert sum(node.by_peers for zone in zones for node in zone.nodes) > 100
    assert sum(len(zone.handed_on) > 0 for zone in zones) > 5
    assert [zone.twice for zone in zones if zone.twice] == []


@pytest.mark.parametrize("guard", ["holds", "notes"])
def test_without_a_guard_a_node_is_handed_on_while_it_runs(guard: str) -> None:
    off = {guard: False}
    assert any(Zone(seed, **off).run(400.0).twice for seed in range(200))


@pytest.mark.parametrize("seed", range(20))
def test_a_zone_that_is_cut_as_a_whole_runs_on(seed: int) -> None:
    zone = Zone(seed, pace_s=LEASE_S)
    zone.change = lambda: None  # type: ignore[method-assign]
    zone.run(60.0)
    for node in zone.nodes:
        node.reaches_api = node.hears_api = False
    zone.run(400.0)
    assert [node.name for node in zone.nodes if node.is_fenced] == []
    assert {node.standing.own_word(zone.now) for node in zone.nodes} == {CUT}
    assert zone.handed_on == []

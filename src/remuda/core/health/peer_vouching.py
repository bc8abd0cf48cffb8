"""Peers: without the API and without its manager a node runs on while most of its peers are cut off, too. The node's side.

A node cannot tell "the API is gone" from "I am alone" by itself; its peers can. A peer that is asked tries to renew, and says

    reaches   the newest try got through
    cut       none got through for a while and the newest failed, or hangs
    unsure    anything else; always while it is fenced itself

A node that is cut itself is vouched for when it asked every peer of its list, none reaches the API, and more than half of the
*whole list* are cut: who does not answer counts against it. Such words are worth `fence_after_s` from the question, as any
other, and all of them together no more than `PeerList.seconds` since the last renewal. Of a list of `DOUBTED_FROM` or more it
takes one more than that: one peer may lie, and what it said is noted nowhere. The others are still more than half, and the
manager knows of them. In a smaller list one that is down would then be enough to stop everybody.

That is safe because the manager can work out afterwards who may have vouched for whom (`core.health.peer_holds`), from what each
renewal of an agent's lease carries in annotations: the list that the node asks, and how long ago the node last said `cut`. So

    a word is noted in every renewal that is sent after it was said; a process that begins counts as having said it just before
    a list is asked only when the API has taken it; while it may have taken a newer one, both must be content
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from remuda.core.health.correlation import LABEL_POWER, LABEL_RACK
from remuda.core.health.mass_silence import WAIT, ZONE_LABEL, MassSilenceRule

REACHES, CUT, UNSURE = "reaches", "cut", "unsure"
WORDS = (REACHES, CUT, UNSURE)
MOST_PEERS, LEAST_PEERS = 32, 2
LONGEST_S = 86_400.0  # on peers' words alone
DOUBTED_FROM = 5
# Shares of the lease. A try to renew is given up after the first; a round of questions takes no longer than the third.
TRY_SHARE, HANGS_SHARE, ROUND_SHARE = 1 / 6, 1 / 12, 1 / 24
# Being asked makes a node try again, this soon after a try that got through: who renewed just before the API fell says `cut` in
# time for those who renewed a while before and must stop. That often a few times only, then less often: whoever asks all day
# makes a node renew a little more than twice as often as it would, and no more.
QUICK_SHARE, TRY_AGAIN_SHARE = 1 / 15, 1 / 6
QUICK_TRIES, QUICK_LEASES = 4, 4  # so many in so many leases
FRESH_SHARE = 1 / 4  # a try that got through no longer ago than this shows that the API can be reached
NOTED_S = 3600.0  # a word that old matters to nobody any more: who relied on it has long been renewed, or fenced

ANNOTATION_PEERS = "remuda.dev/peers"  # of an agent's lease: whom it asks, and for how long that may go on
ANNOTATION_SAID_CUT = (
    "remuda.dev/said-cut"  # of an agent's lease: so many seconds before this renewal it last said `cut`
)


class PeerList(msgspec.Struct, frozen=True):
    """Whom a node asks. `seconds`: how long, counted from its last renewal, it may run on their words."""

    nodes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_enough(self) -> bool:
        return len(self.nodes) >= LEAST_PEERS and self.seconds > 0


NO_PEERS = PeerList()


def write_vouching_peers(peers: PeerList) -> str | None:
    """As the annotation has it; None: there is none."""
    return msgspec.json.encode(peers).decode() if peers.nodes else None


def read_vouching_peers(text: str) -> PeerList:
    """What cannot be read names nobody."""
    try:
        found = msgspec.json.decode(text, type=PeerList)
    except msgspec.DecodeError:
        return NO_PEERS
    return found if len(found.nodes) <= MOST_PEERS and 0 <= found.seconds <= LONGEST_S else NO_PEERS


def peers_speak_for_s(rule: MassSilenceRule, lease_s: float) -> float:
    """For how long after its last renewal a node may run on its peers' words: it has stopped before the rule replaces it."""
    if not rule.is_on:
        return 0.0
    return LONGEST_S if rule.then == WAIT else min(LONGEST_S, max(0.0, rule.hold_s - lease_s))


class PeerPlace(msgspec.Struct, frozen=True):
    """Where a peer listens."""

    node: str
    host: str
    port: int


class PeerMap:
    """Who listens, by zone and rack. Made now and then, asked for each node. `labels`: of each node that is there."""

    def __init__(self, places: Iterable[PeerPlace], labels: Mapping[str, Mapping[str, str]]) -> None:
        self._labels = labels
        self._zones: dict[str, dict[str, list[PeerPlace]]] = {}
        for place in sorted(places, key=lambda p: p.node):
            if (mine := labels.get(place.node)) is not None:
                racks = self._zones.setdefault(mine.get(ZONE_LABEL, ""), {})
                racks.setdefault(mine.get(LABEL_RACK, ""), []).append(place)
        self._racks = {zone: sorted(racks) for zone, racks in self._zones.items()}

    def choose(self, node: str) -> tuple[PeerPlace, ...]:
        """Of the node's own zone all, or `MOST_PEERS` of them: one of each rack in turn, from the racks and names behind its own
        on. Each is chosen about equally often, and a list changes only with those in it and their neighbours."""
        mine = self._labels.get(node)
        zone = mine.get(ZONE_LABEL, "") if mine is not None else ""
        if mine is None or zone not in self._zones:
            return ()
        racks, first = self._racks[zone], bisect.bisect_right(self._racks[zone], mine.get(LABEL_RACK, ""))
        rows = [self._zones[zone][rack] for rack in (*racks[first:], *racks[:first])[: MOST_PEERS + 1]]
        begins = [bisect.bisect_right(row, node, key=lambda p: p.node) for row in rows]
        chosen: list[PeerPlace] = []
        for turn in range(MOST_PEERS + 1):
            if len(chosen) == MOST_PEERS:
                break
            for row, begin in zip(rows, begins, strict=True):
                if turn < len(row) and len(chosen) < MOST_PEERS and row[(begin + turn) % len(row)].node != node:
                    chosen.append(row[(begin + turn) % len(row)])
        return tuple(sorted(chosen, key=lambda p: p.node))

    def apart_from(self, node: str, places: Iterable[PeerPlace]) -> tuple[str, ...]:
        """Of those, the nodes in another failure domain: another rack, and not on the same power. Who has no rack is nowhere."""
        mine = self._labels.get(node, {})
        if not mine.get(LABEL_RACK):
            return ()
        labels = {place.node: self._labels.get(place.node, {}) for place in places}
        return tuple(
            name
            for name, other in sorted(labels.items())
            if other.get(LABEL_RACK)
            and not any(other.get(d) == mine[d] for d in (LABEL_RACK, LABEL_POWER) if mine.get(d))
        )


class PeerStanding:
    """How one node stands: its tries to renew, what it last said to others, and whom it asks. Times are of a clock that never
    goes back and also runs while the machine sleeps. `lease_s`: the lease by whose pace it renews (`fence_bounds`)."""

    def __init__(self, lease_s: float, now: float) -> None:
        self.lease_s = lease_s
        self._renewed = now  # when the last try that got through was sent
        self._failed = False  # the newest try that ended did not get through
        self._trying: float | None = None  # since when
        self._tried = -math.inf
        self._quick: tuple[float, ...] = ()  # when it tried sooner than it would have, lately
        self._said_cut = now
        self._wanted = NO_PEERS
        self._known = [NO_PEERS]  # lists that the API may have; the last was sent last

    @property
    def lists(self) -> tuple[PeerList, ...]:
        """Each of them must be content."""
        return tuple(self._known)

    def want_list(self, peers: PeerList) -> None:
        self._wanted = peers if peers.is_enough else NO_PEERS

    def begin_try(self, now: float) -> dict[str, str | None]:
        """A try to renew begins: the annotations that it carries."""
        if not self._failed and now - self._tried < self.lease_s * TRY_AGAIN_SHARE:
            self._quick = (*self._quick, now)[-QUICK_TRIES:]
        self._trying = self._tried = now
        if len(self._known) == 1 and self._known[0] != self._wanted:
            self._known.append(self._wanted)
        ago = now - self._said_cut
        return {
            ANNOTATION_PEERS: write_vouching_peers(self._known[-1]),
            ANNOTATION_SAID_CUT: f"{max(0.0, ago):.3f}" if ago < NOTED_S else None,
        }

    def end_try(self, *, got_through: bool) -> None:
        sent, self._trying = self._trying, None
        self._failed = not got_through
        if got_through and sent is not None:
            self._renewed = sent
            self._known = self._known[-1:]

    @property
    def is_trying(self) -> bool:
        return self._trying is not None

    def is_try_due(self, now: float) -> bool:
        """Somebody asks: whether to try at once, so that the answer is fresh."""
        used = len(self._quick) == QUICK_TRIES and now - self._quick[0] < self.lease_s * QUICK_LEASES
        share = TRY_AGAIN_SHARE if used and not self._failed else QUICK_SHARE
        return self._trying is None and now - self._tried >= self.lease_s * share

    def may_be_cut(self, now: float) -> bool:
        """Whether there is any reason to ask peers."""
        return self._failed or self._hangs(now, ROUND_SHARE)

    def own_word(self, now: float) -> str:
        if not self._failed and self._trying is None:
            return REACHES if now - self._tried <= self.lease_s * FRESH_SHARE else UNSURE
        is_late = now - self._renewed >= self.lease_s * TRY_SHARE
        return CUT if is_late and (self._failed or self._hangs(now, HANGS_SHARE)) else UNSURE

    def say(self, now: float, *, is_fenced: bool) -> str:
        """The answer to a peer; it is noted."""
        word = UNSURE if is_fenced else self.own_word(now)
        if word == CUT:
            self._said_cut = now
        return word

    def vouched_s(self, asked_at: float, answers: Mapping[str, str], now: float) -> float:
        """For how many seconds from the question the peers' answers vouch for this node; 0 = not at all. `answers`: by node."""
        if self.own_word(now) != CUT or not all(is_vouched_by_peers(peers, answers) for peers in self._known):
            return 0.0
        return max(0.0, self._renewed + min(peers.seconds for peers in self._known) - asked_at)

    def _hangs(self, now: float, share: float) -> bool:
        return self._trying is not None and now - self._trying >= self.lease_s * share


def is_vouched_by_peers(peers: PeerList, answers: Mapping[str, str]) -> bool:
    words: Sequence[str] = [answers.get(node, "") for node in peers.nodes]
    believed = words.count(CUT) - (len(words) >= DOUBTED_FROM)
    return peers.is_enough and REACHES not in answers.values() and 2 * believed > len(words)

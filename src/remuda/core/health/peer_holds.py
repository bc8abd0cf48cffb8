"""Nodes whose peers may have vouched for them: held until that is surely over. The manager's side of `core.health.peer_vouching`.

Nobody tells the manager that peers vouched: those who could are cut off. So it works out until when each node may run, from what
renewals of the agents' leases carry. A peer may have said `cut` at any moment

    up to when it last did, as its newest renewal notes
    after its newest renewal was sent, until it had surely stopped itself: who is fenced says nothing

and at no other. A node may run for `fence_after_s` after it was last heard of, and after each moment before that is over at which
more than half of its list may have said `cut`. Until then, and a margin to stop in, it is held. In health that costs a few
seconds at most: most peers renew soon after the node would have stopped, and so show that they vouched for nobody.

When a renewal was *sent* follows from its time on the holder's clock and from how far that clock was off lately: the least of
the last few differences. A renewal that was on its way, or unheard by us, for long is thus known as old. One of these few must
have been heard within an eighth of the lease. What is found at first sight shows nothing: it may be of any age.

A node whose lease is gone speaks for nobody: to remove it is an operator's word that the node is no more.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from remuda.api.kubernetes.core_v1 import Lease
from remuda.api.meta import to_seconds
from remuda.core.health.agent_liveness import node_of_liveness_lease
from remuda.core.health.fence_bounds import LONGEST_LEASE_S, MARGIN_SHARE, fence_after_s
from remuda.core.health.peer_vouching import (
    ANNOTATION_PEERS,
    ANNOTATION_SAID_CUT,
    NO_PEERS,
    TRY_SHARE,
    PeerList,
    read_vouching_peers,
)

KEPT = 4  # differences of the clocks
AGAIN_S = (
    1.0  # who is held is looked at anew after one to two of these: a whole cluster may be held, and each has many peers
)


class HeardAgent(msgspec.Struct, frozen=True):
    """An agent by its newest renewal. `stamp`: its time on the holder's clock; `seen`: on ours. `cut_until`: when it last said
    `cut`, at the latest."""

    seen: float
    stamp: float
    lease_s: float
    peers: PeerList
    cut_until: float
    silent_from: float  # from then on nothing is known of what it said
    offs: tuple[float, ...]  # seen - stamp, of the last renewals


class PeerHolds:
    """From renewal to renewal, and from look to look."""

    def __init__(self) -> None:
        self._heard: dict[str, HeardAgent] = {}  # by node
        # By node: it has surely stopped itself by then, and was not heard of since.
        self._stopped: dict[str, float] = {}
        self._held_until: dict[str, float] = {}  # by node: when it is looked at anew

    def see(self, lease: Lease, now: float) -> None:
        node, renewed = node_of_liveness_lease(lease.name), lease.spec.renew_time
        if not node or renewed is None or not lease.spec.lease_duration_seconds:
            return
        stamp, old = to_seconds(renewed), self._heard.get(node)
        if old is not None and old.stamp == stamp:
            return
        self._heard_anew(node)
        noted, lease_s = lease.metadata.annotations, float(min(lease.spec.lease_duration_seconds, LONGEST_LEASE_S))
        offs = ((*old.offs, now - stamp) if old is not None else (now - stamp,))[-KEPT:]
        self._heard[node] = HeardAgent(
            now,
            stamp,
            lease_s,
            read_vouching_peers(noted.get(ANNOTATION_PEERS, "")),
            _said_cut_until(noted.get(ANNOTATION_SAID_CUT), now),
            min(now, stamp + min(offs)) - lease_s * TRY_SHARE if old is not None else -math.inf,
            offs,
        )

    def forget(self, lease: str) -> None:
        self._heard.pop(node_of_liveness_lease(lease), None)
        self._heard_anew(node_of_liveness_lease(lease))

    def _heard_anew(self, node: str) -> None:
        self._stopped.pop(node, None)
        self._held_until.pop(node, None)

    def look(self, now: float, promised: Mapping[str, float] | None = None) -> frozenset[str]:
        """Nodes that are held. `promised`: when a node was last told to run on by us."""
        held, stopped = set[str](), dict[str, float]()
        for node, agent in self._heard.items():
            if agent.seen > now:  # our clock went back: it was heard of just now, for all we know
                self._heard[node] = agent = msgspec.structs.replace(agent, seen=now, silent_from=-math.inf)
                self._heard_anew(node)
            heard = max(agent.seen, min(now, (promised or {}).get(node, -math.inf)))
            if now < heard + fence_after_s(agent.lease_s):
                self._heard_anew(node)  # a promise is a word, too
            elif node not in self._stopped:
                if 0 < self._held_until.get(node, now) - now <= 2 * AGAIN_S:
                    held.add(node)
                elif now < self._runs_until(agent, heard, now) + agent.lease_s * MARGIN_SHARE:
                    held.add(node)
                    self._held_until[node] = now + AGAIN_S * (1 + zlib.crc32(node.encode()) % 16 / 16)
                else:
                    stopped[node] = now
        self._stopped |= stopped
        return frozenset(node for node in held if self._heard[node].peers != NO_PEERS)

    def _runs_until(self, agent: HeardAgent, heard: float, now: float) -> float:
        alone = until = heard + fence_after_s(agent.lease_s)
        for since, last in self._majority_times(agent.peers, now):
            if since <= until:
                until = max(until, last + fence_after_s(agent.lease_s))
        return max(alone, min(until, agent.seen + agent.peers.seconds))

    def _majority_times(self, peers: PeerList, now: float) -> Iterator[tuple[float, float]]:
        """From when to when more than half of the list may have said `cut`, in order."""
        steps: list[tuple[float, int]] = []  # -1: one more may, 1: one fewer; at one moment those who begin come first
        for node in peers.nodes if peers.is_enough else ():
            if (agent := self._heard.get(node)) is None:
                continue
            since, until = agent.silent_from, self._stopped.get(node, now)
            if since <= agent.cut_until:
                since, until = -math.inf, max(agent.cut_until, until)
            elif agent.cut_until > -math.inf:
                steps += [(-math.inf, -1), (agent.cut_until, 1)]
            steps += [(since, -1), (max(since, until), 1)]
        count, began = 0, math.inf
        for when, step in sorted(steps):
            was, count = 2 * count > len(peers.nodes), count - step
            if 2 * count > len(peers.nodes):
                began = began if was else when
            elif was:
                yield began, when


def _said_cut_until(text: str | None, seen: float) -> float:
    """What cannot be read may have been just now."""
    if text is None:
        return -math.inf
    try:
        ago = float(text)
    except ValueError:
        return seen
    return seen - ago if 0 <= ago < math.inf else seen

"""The manager's book of peers: which node listens where, certificates for them, and who asks whom.

It is filled by the nodes' own streams and kept in memory: agents come again every few minutes and with each new stream. A node
that the cluster no longer has is forgotten. A node says where *it* listens and nothing about others; one that names another's
address gains nothing, because its certificate names it. It names an address of a machine, no name: names need a server that may
be away when peers are asked, and lead wherever somebody lets them. Nor an address by which each node means itself, or many.

A node that moves (its agent has another address after each restart) is told to those that know its old place: they are to ask
again (`outdated`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping

from remuda.api.errors import Refusal
from remuda.core.health.peer_vouching import PeerMap, PeerPlace
from remuda.link.peer_certificates import PeerAuthority
from remuda.link.stream_messages import LinkAskPeers, LinkPeers

MAX_NODES = 20_000
MAX_ADDRESS = 45  # characters of the longest there is
MAP_S = 5.0  # a map is good for so long: making one costs a look at every node, and so does looking who is outdated
RENEW_S = 3600.0  # the same key gets the same certificate for so long
SIGN_S = 10.0  # a node gets one signature in so long: each costs the manager a third of a millisecond

Labels = Callable[[], Mapping[str, Mapping[str, str]]]


_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def is_peer_address(host: str) -> bool:
    """Whether all machines mean the same one by it."""
    try:
        found = ipaddress.ip_address(host[: MAX_ADDRESS + 1])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            return False
        found = found.ipv4_mapped or found
    if isinstance(found, ipaddress.IPv4Address) and (found.packed[0] == 0 or found == _BROADCAST):
        return False
    return not (found.is_loopback or found.is_unspecified or found.is_multicast or found.is_link_local)


class PeerRegistry:
    """`labels`: of every node of the cluster. `seconds`: how long after its last renewal a node may run on peers' words."""

    def __init__(
        self,
        labels: Labels,
        seconds: Callable[[str], float],
        clock: Callable[[], float],
        is_address: Callable[[str], bool] = is_peer_address,
    ) -> None:
        self._labels = labels
        self._seconds = seconds
        self._clock = clock
        self._is_address = is_address
        self._authority = PeerAuthority(clock)
        self._places: dict[str, PeerPlace] = {}
        self._issued: dict[str, tuple[str, str, float]] = {}  # by node: request, certificate, when
        self._map = PeerMap((), {})
        self._mapped_at = 0.0
        self._told: dict[str, tuple[str, ...]] = {}  # by node: of whom
        self._moved: set[str] = set()
        self._looked_at = 0.0

    def introduce(self, node: str, asked: LinkAskPeers) -> LinkPeers:
        """The stream has proved which node it is."""
        now = self._clock()
        try:
            self._check_place(asked)
            certificate = self._certificate(node, asked.csr, now)
        except Refusal as refusal:
            return LinkPeers(asked.id, error=refusal.message)
        self._note_place(PeerPlace(node, asked.host, asked.port))
        chosen = self._peer_map(now).choose(node)
        peers = tuple(self._places.get(place.node, place) for place in chosen)  # a map may be older than a place
        if node in self._places:
            self._told[node] = tuple(place.node for place in peers)
        apart = self._peer_map(now).apart_from(node, peers)
        return LinkPeers(asked.id, certificate, self._authority.ca, peers, self._seconds(node), apart=apart)

    def outdated(self) -> frozenset[str]:
        """Nodes that were told of one that has moved since. Each is named once, and gets the new place when it asks."""
        now = self._clock()
        if not self._moved or 0 <= now - self._looked_at < MAP_S:
            return frozenset()
        found = frozenset(node for node, peers in self._told.items() if not self._moved.isdisjoint(peers))
        self._looked_at, self._moved = now, set()
        for node in found:
            del self._told[node]
        return found

    def _check_place(self, asked: LinkAskPeers) -> None:
        if not self._is_address(asked.host):
            raise Refusal(
                "InvalidPeerAddress",
                f"`{asked.host[:64]}` is not an address where peers can ask this node.",
                "Give --peer-host the node's, or its pod's, own IP address.",
            )
        if not 0 < asked.port <= 65535:
            raise Refusal("InvalidPeerAddress", f"{asked.port} is not a port.", "Give --peer-port one up to 65535.")

    def _note_place(self, place: PeerPlace) -> None:
        before = self._places.get(place.node)
        if before is not None and before != place:
            self._moved.add(place.node)
        if before is not None or len(self._places) < MAX_NODES:
            self._places[place.node] = place

    def _certificate(self, node: str, csr: str, now: float) -> str:
        known = self._issued.get(node)
        if known is not None and known[0] == csr and 0 <= now - known[2] < RENEW_S:
            return known[1]
        if known is not None and 0 <= now - known[2] < SIGN_S:
            raise Refusal(
                "AskedTooOften",
                f"Node {node} got a certificate for peers less than {SIGN_S:g} s ago.",
                "Ask again later; agents do so by themselves.",
            )
        certificate = self._authority.sign(node, csr)
        if len(self._issued) < MAX_NODES or node in self._issued:
            self._issued[node] = csr, certificate, now
        return certificate

    def _peer_map(self, now: float) -> PeerMap:
        if not 0 <= now - self._mapped_at < MAP_S:
            labels = self._labels()
            self._places = {node: place for node, place in self._places.items() if node in labels}
            self._issued = {node: issued for node, issued in self._issued.items() if node in labels}
            self._told = {node: peers for node, peers in self._told.items() if node in labels}
            self._moved &= labels.keys()
            self._map, self._mapped_at = PeerMap(self._places.values(), labels), now
        return self._map

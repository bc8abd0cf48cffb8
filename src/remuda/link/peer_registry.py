"""The manager's book of peers: which node listens where, certificates for them, and who asks whom.

It is filled by the nodes' own streams and kept in memory: agents come again every few minutes and with each new stream. A node
that the cluster no longer has is forgotten. A node says where *it* listens and nothing about others; one that names another's
address gains nothing, because its certificate names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from remuda.api.errors import Refusal
from remuda.core.health.peer_vouching import PeerMap, PeerPlace
from remuda.link.peer_certificates import PeerAuthority
from remuda.link.stream_messages import LinkAskPeers, LinkPeers

MAX_NODES = 20_000
MAX_HOST = 253
MAP_S = 5.0  # a map is good for so long: making one costs a look at every node
RENEW_S = 3600.0  # the same key gets the same certificate for so long
SIGN_S = 10.0  # a node gets one signature in so long: each costs the manager a third of a millisecond

Labels = Callable[[], Mapping[str, Mapping[str, str]]]


class PeerRegistry:
    """`labels`: of every node of the cluster. `seconds`: how long after its last renewal a node may run on peers' words."""

    def __init__(self, labels: Labels, seconds: Callable[[str], float], clock: Callable[[], float]) -> None:
        self._labels = labels
        self._seconds = seconds
        self._clock = clock
        self._authority = PeerAuthority(clock)
        self._places: dict[str, PeerPlace] = {}
        self._issued: dict[str, tuple[str, str, float]] = {}  # by node: request, certificate, when
        self._map = PeerMap((), {})
        self._mapped_at = 0.0

    def introduce(self, node: str, asked: LinkAskPeers) -> LinkPeers:
        """The stream has proved which node it is."""
        now = self._clock()
        try:
            certificate = self._certificate(node, asked.csr, now)
        except Refusal as refusal:
            return LinkPeers(asked.id, error=refusal.message)
        if 0 < asked.port <= 65535 and 0 < len(asked.host) <= MAX_HOST and len(self._places) < MAX_NODES:
            self._places[node] = PeerPlace(node, asked.host, asked.port)
        peers = self._peer_map(now).choose(node)
        return LinkPeers(asked.id, certificate, self._authority.ca, peers, self._seconds(node))

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
            self._map, self._mapped_at = PeerMap(self._places.values(), labels), now
        return self._map

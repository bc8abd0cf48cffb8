"""Where the agents of a zone meet when neither API nor manager can be reached (`core.health.peer_vouching`).

While the stream to the manager stands, the agent asks there for its certificate and its peers, with each new stream, every few
minutes, and soon after one of them has moved; the list is taken from the second answer on, since a manager that has just begun
does not know everybody yet. It answers peers on a port of its own, and asks them when its fence asks for somebody who vouches.
Nothing waits for it: for as long as there is no certificate, port or peer, the node fences as it would without. Under a manager
that knows of no peers (an older release) it asks none: that manager would not hold it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import msgspec
import structlog

from remuda.agent.agent_fence import AgentFence
from remuda.agent.agent_lease import AgentLease
from remuda.core.health.peer_vouching import NO_PEERS, ROUND_SHARE, PeerList, PeerPlace, PeerStanding
from remuda.kube.runtime.backoff import Jitter, no_jitter
from remuda.link.peer_certificates import PeerKey
from remuda.link.peer_door import PeerDoor, ask_peer_doors
from remuda.link.stream_client import LinkClient
from remuda.link.stream_messages import LinkPeers

log = structlog.get_logger(__name__)

PEER_PORT = 9444
ANSWER_S = 10.0  # how long the manager may take
AGAIN_S = (20.0, 300.0)  # after the first answer on a stream, and after each that follows
FAILED_S = 30.0
MOVED_AGAIN_S, MOVED_SPREAD_S = 30.0, 5.0  # peers that move make a node ask once in so long; when exactly, chance says
DOOR_AGAIN_S = 2.0
CAS = 2  # those of the manager that leads and of the one before: not all nodes come to a new one at the same moment


class PeerEndpoint:
    def __init__(
        self,
        standing: PeerStanding,
        lease: AgentLease,
        fence: AgentFence,
        elapsed: Callable[[], float],
        *,
        is_ours: Callable[[], bool] = lambda: True,
        jitter: Jitter = no_jitter,
    ) -> None:
        """`is_ours`: no newer agent of the node has begun. What this one said before counts as said by that one, and no more."""
        self._is_ours = is_ours
        self._jitter = jitter
        self._standing = standing
        self._lease = lease
        self._fence = fence
        self._elapsed = elapsed
        self._round_s = 0.75 * min(
            fence.ask_s, standing.lease_s * ROUND_SHARE
        )  # the fence waits longer than a round takes
        self._key = PeerKey()
        self._cas: list[str] = []
        self._asker: ssl.SSLContext | None = None
        self._places: dict[str, PeerPlace] = {}
        self.apart: frozenset[str] = frozenset()  # of the places, those in another failure domain
        self.introduced: list[Callable[[], None]] = []  # called with each word of the manager
        self.door = PeerDoor(self.answer)

    @property
    def asker(self) -> ssl.SSLContext | None:
        """For the doors of others; None while there is no certificate."""
        return self._asker

    @property
    def places(self) -> dict[str, PeerPlace]:
        return self._places

    @property
    def csr(self) -> str:
        return self._key.csr

    def take(self, told: LinkPeers, *, takes_list: bool = True) -> None:
        """What the manager says. ssl.SSLError or ValueError when it makes no sense."""
        cas = [*(ca for ca in self._cas if ca != told.ca), told.ca][-CAS:]
        self.door.tls, self._asker = self._key.contexts(told.certificate, cas)
        self._cas = cas
        self._places |= {place.node: place for place in told.peers}
        self.apart = frozenset(told.apart)
        if takes_list:
            self._standing.want_list(PeerList(tuple(place.node for place in told.peers), told.seconds))
            listed = {node for peers in self._standing.lists for node in peers.nodes}
            told_of = {place.node for place in told.peers}
            self._places = {node: place for node, place in self._places.items() if node in listed | told_of}
        for hear in self.introduced:
            hear()

    async def answer(self) -> str:
        await self._lease.try_for_peer(self._round_s / 2)
        return self._standing.say(self._elapsed(), is_fenced=self._fence.is_over or not self._is_ours())

    async def vouch(self) -> float:
        """A `Voucher` of the fence."""
        asked, tls = self._elapsed(), self._asker
        lists = self._standing.lists
        if tls is None or not all(peers.is_enough for peers in lists) or not self._standing.may_be_cut(asked):
            return 0.0
        nodes = {node for peers in lists for node in peers.nodes}
        places = [self._places[node] for node in sorted(nodes) if node in self._places]
        answers = await ask_peer_doors(places, tls, self._round_s)
        seconds = self._standing.vouched_s(asked, answers, self._elapsed())
        log.info("peers.asked", of=len(nodes), answers=sorted(answers.values()), seconds=round(seconds, 1))
        return seconds

    async def keep_introduced(self, client: LinkClient, host: str, port: int) -> None:
        """Until cancelled."""
        answers, refused = 0, ""
        while True:
            if client.connected.is_set():
                client.connected.clear()
                answers = 0
            client.peers_moved.clear()
            if client.knows_no_peers:
                self._standing.want_list(NO_PEERS)
            pause_s = FAILED_S
            try:
                async with asyncio.timeout(ANSWER_S):
                    told = await client.ask_peers(self.csr, host, port)
                if told.error and told.error != refused:
                    log.warning("peers.refused", why=told.error)
                refused = told.error
                if not told.error:
                    self.take(told, takes_list=answers > 0)
                    pause_s = AGAIN_S[min(answers, 1)]
                    answers += 1
            except (OSError, TimeoutError, ValueError) as error:  # an SSLError is an OSError
                log.debug("peers.not_introduced", error=str(error) or type(error).__name__)
            await self._until_due(client, pause_s)

    async def _until_due(self, client: LinkClient, pause_s: float) -> None:
        """Since it last asked. A new stream is a reason to ask at once. A peer that has moved is one after a while, and not at
        the same moment as everybody else: agents restart in crowds."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if await _is_set_within(pause_s, client.connected, client.peers_moved) and not client.connected.is_set():
            again_s = max(clock() - began, min(pause_s, MOVED_AGAIN_S)) + MOVED_SPREAD_S * self._jitter()
            await _is_set_within(min(pause_s, again_s) - (clock() - began), client.connected)


async def _is_set_within(seconds: float, *events: asyncio.Event) -> bool:
    """Whether one of them is, once one is or the time is over."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waiting, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return bool(done)


class PeerConfig(msgspec.Struct, frozen=True):
    """Where this node answers its peers; `host` "" or `port` 0: it does not, and asks nobody."""

    host: str = ""
    port: int = PEER_PORT

    @property
    def is_on(self) -> bool:
        return bool(self.host) and self.port > 0


async def serve_peer_endpoint(
    endpoint: PeerEndpoint, fence: AgentFence, client: LinkClient, config: PeerConfig
) -> None:
    """Until cancelled: the fence has its peers, and they have this node. A port that is taken is tried again: an agent that is
    being replaced lets it go soon."""
    await _open_peer_door(endpoint.door, config)
    fence.vouchers.append(endpoint.vouch)
    try:
        await endpoint.keep_introduced(client, config.host, config.port)
    finally:
        fence.vouchers.remove(endpoint.vouch)
        endpoint.door.stop()


async def _open_peer_door(door: PeerDoor, config: PeerConfig) -> None:
    failures = 0
    while True:
        try:
            await door.start(config.host, config.port)
            return
        except OSError as error:
            failures += 1
            said = log.warning if failures == 1 else log.debug
            said("peers.no_door", host=config.host, port=config.port, error=str(error))
        await asyncio.sleep(DOOR_AGAIN_S)

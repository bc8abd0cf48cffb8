"""How nodes of a split cluster on one machine find each other for copies of checkpoints: a door each on loopback, certificates
and peers from the manager over the node's stream, as on a real cluster. Nobody vouches for anybody here: who cannot reach the
API reaches no manager either."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

import structlog

from remuda.core.health.peer_vouching import UNSURE, PeerPlace
from remuda.link.peer_certificates import PeerKey
from remuda.link.peer_door import PeerDoor
from remuda.link.stream_client import LinkClient
from remuda.runtime.background_tasks import run_beside
from remuda.runtime.copies_endpoint import NodeCopies

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
ANSWER_S = 10.0
AGAIN_S = (2.0, 6.0, 30.0)  # a manager that has just begun does not know everybody yet
CAS = 2


class CopyPeers:
    def __init__(self) -> None:
        self._key = PeerKey()
        self._cas: list[str] = []
        self.asker: ssl.SSLContext | None = None
        self.places: dict[str, PeerPlace] = {}
        self.apart: frozenset[str] = frozenset()
        self.introduced: list[Callable[[], None]] = []
        self.door = PeerDoor(self._answer)

    async def _answer(self) -> str:
        return UNSURE

    async def keep_introduced(self, client: LinkClient, port: int) -> None:
        """Until cancelled."""
        answers = 0
        while True:
            pause_s = AGAIN_S[0]
            try:
                async with asyncio.timeout(ANSWER_S):
                    told = await client.ask_peers(self._key.csr, HOST, port)
                if told.error:
                    raise OSError(told.error)
                cas = [*(ca for ca in self._cas if ca != told.ca), told.ca][-CAS:]
                self.door.tls, self.asker = self._key.contexts(told.certificate, cas)
                self._cas = cas
                is_news = {p.node: p for p in told.peers} != self.places
                self.places, self.apart = {place.node: place for place in told.peers}, frozenset(told.apart)
                if is_news:
                    for hear in self.introduced:
                        hear()
                pause_s = AGAIN_S[min(answers, len(AGAIN_S) - 1)]
                answers += 1
            except (OSError, TimeoutError, ValueError) as error:
                log.debug("copies.not_introduced", error=str(error) or type(error).__name__)
            client.connected.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await client.connected.wait()
                    answers = 0


@contextlib.asynccontextmanager
async def copy_peers_served(copies: NodeCopies, client: LinkClient) -> AsyncIterator[None]:
    """For as long as the block lasts the node gives copies to others, and takes theirs."""
    peers = CopyPeers()
    port = await peers.door.start(HOST, 0)
    copies.meet(peers, HOST, port)

    def end() -> None:
        peers.door.stop()
        copies.service.stop()

    copies.care.silenced = end
    try:
        async with run_beside(peers.keep_introduced(client, port), "copies-peers"):
            yield
    finally:
        peers.door.stop()
        copies.close()

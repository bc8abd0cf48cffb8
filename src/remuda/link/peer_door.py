"""Peers ask each other, over TLS with certificates on both sides, whether the API can be reached.

    asker -> door   "reach?\\n"
    door -> asker   "reaches\\n" | "cut\\n" | "unsure\\n"

Another first line may be the begin of another talk (`further`, by its first line; see `link.copy_wire`). Once it is said, the
connection is out of this door's bounds and under those of whoever talks: it takes nobody's place who asks `reach?`.

Whoever has no certificate of a CA that the manager named gets no word, and makes this node do nothing but one handshake.
Everything is bounded: connections in all and of one address, the time for all of it, the line. The asker takes only the word of
who proves to be the node that was meant; nothing, too late, too much and anything else are no answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import structlog

from remuda.core.health.peer_vouching import WORDS, PeerPlace

log = structlog.get_logger(__name__)

QUESTION = b"reach?\n"
MAX_LINE = 64
MAX_OPEN, MAX_OPEN_FROM_ONE = 256, 8
DOOR_S = 5.0  # for one connection, from first to last byte

Answer = Callable[[], Awaitable[str]]
Talk = Callable[
    [asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]
]  # the last: the node that its certificate names


class PeerDoor:
    """`answer`: this node's word. Nobody is let in before `tls` is set; it is replaced with each new certificate."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.tls: ssl.SSLContext | None = None
        self.further: dict[bytes, Talk] = {}
        self._open: Counter[str] = Counter()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. OSError when that cannot be."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_LINE)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Nobody is let in any more, nor answered."""
        self.tls = None
        if self._server is not None:
            self._server.close()

    @property
    def is_busy(self) -> bool:
        """Somebody is at the door."""
        return bool(self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str((writer.get_extra_info("peername") or ("",))[0])
        tls = self.tls
        if tls is None or self._open.total() >= MAX_OPEN or self._open[host] >= MAX_OPEN_FROM_ONE:
            writer.transport.abort()
            return
        self._open[host] += 1
        talk: Talk | None = None
        try:
            async with asyncio.timeout(DOOR_S):
                await writer.start_tls(tls, ssl_handshake_timeout=DOOR_S)
                line = await reader.readline()
                talk = self.further.get(line)
                if line == QUESTION:
                    word = await self._answer()
                    if self.tls is not None:
                        writer.write(f"{word}\n".encode())
                        await writer.drain()
                        writer.close()
                        await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            log.debug("peers.not_answered", host=host, error=str(error) or type(error).__name__)
        finally:
            if talk is None:
                writer.transport.abort()
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]
        if talk is not None:
            try:
                await talk(reader, writer, node_of_peer(writer))
            finally:
                writer.transport.abort()


def node_of_peer(writer: asyncio.StreamWriter) -> str:
    """Whom the other side's certificate names; "" when it names nobody, or several."""
    shown = writer.get_extra_info("peercert") or {}
    names = [name for kind, name in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    return names[0] if len(names) == 1 else ""


async def ask_peer_doors(places: Iterable[PeerPlace], tls: ssl.SSLContext, within_s: float) -> dict[str, str]:
    """The words of those who answered in time, by node."""
    tasks = {asyncio.ensure_future(_ask_peer(place, tls)): place.node for place in places}
    if not tasks:
        return {}
    try:
        done, _ = await asyncio.wait(tasks, timeout=within_s)
    finally:
        for task in tasks:
            task.cancel()
    return {tasks[task]: word for task in done if not task.cancelled() and (word := task.result())}


async def _ask_peer(place: PeerPlace, tls: ssl.SSLContext) -> str:
    """One of the words; "" when there is no answer that counts."""
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(
            place.host, place.port, ssl=tls, server_hostname=place.node, limit=MAX_LINE
        )
        writer.write(QUESTION)
        await writer.drain()
        word = (await reader.readline()).decode("ascii").removesuffix("\n")
    except (
        OSError,
        EOFError,
        ValueError,
    ) as error:  # ValueError: a line over the limit, or a name that TLS cannot have
        log.debug("peers.no_answer", peer=place.node, error=str(error) or type(error).__name__)
        return ""
    finally:
        if writer is not None:
            writer.transport.abort()
    return word if word in WORDS else ""

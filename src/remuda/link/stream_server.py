"""The manager's end of the streams: one per node, authenticated and bound to it.

A stream speaks for exactly one node, the one its credentials prove; an agent that claims another is refused by name. A newer
stream of a node replaces the older one (an agent that restarted is faster than its predecessor's timeout). News of pods that
are not on the node, or not of the gang it names, is dropped, and so are numbers that cannot be: who lies can harm the numbers
of its own gang only. A line that is too long or cannot be read ends its stream and nobody else's; the limits bound what one
agent can make the manager hold.

What an agent tells of the past of its pods is held until their next heartbeat when the pods are not known yet: a manager that has
just started hears of them from the API a moment later.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from remuda.api.devices import Signal
from remuda.api.errors import Refusal
from remuda.api.number_bounds import MAX_COUNT, are_plausible_seconds, is_count_within_number_bounds
from remuda.link.progress_board import MAX_PODS, Heartbeat, PodPast, ProgressBoard
from remuda.link.step_window import KEPT
from remuda.link.stream_messages import (
    ASK_AGAIN,
    MAX_LINE,
    VERSION,
    LinkAsk,
    LinkAskPeers,
    LinkHello,
    LinkNews,
    LinkPeers,
    LinkPromise,
    LinkRefused,
    LinkWelcome,
    link_message_line,
    read_upward_link_message,
)

log = structlog.get_logger(__name__)

HELLO_S = 10.0
TLS_BUFFER = 16 * 1024  # as long as the longest TLS record
MAX_UNREAD = 64 * 1024
MAX_WORD, MAX_MESSAGE = 253, 1024  # characters of a name or code, and of a sentence

Authenticate = Callable[
    [str, str], Awaitable[None]
]  # (token, node): Refusal when the token does not speak for the node
Hear = Callable[[str, str, Signal], None]  # node, device, signal
IsOn = Callable[[str, Heartbeat], bool]  # whether the heartbeat's pod is on the node, and of the gang it names
Promise = Callable[[str], float]  # for how many seconds nothing of the node is handed on; 0 = nothing is promised


class PeerBook(Protocol):
    """`link.peer_registry.PeerRegistry`, as the streams need it."""

    def introduce(self, node: str, asked: LinkAskPeers) -> LinkPeers: ...

    def outdated(self) -> frozenset[str]: ...


def no_link_stream_promise(node: str) -> float:
    return 0.0


class LinkServer:
    def __init__(
        self,
        authenticate: Authenticate,
        board: ProgressBoard,
        hear: Hear,
        is_on: IsOn,
        promise: Promise = no_link_stream_promise,
        peers: PeerBook | None = None,
    ) -> None:
        self._promise = promise
        self._peers = peers
        self._authenticate = authenticate
        self._board = board
        self._hear = hear
        self._is_on = is_on
        self._streams: dict[str, asyncio.StreamWriter] = {}
        self._held: dict[str, dict[str, PodPast]] = {}  # by node and pod: of pods that are not known yet
        self._server: asyncio.Server | None = None

    @property
    def nodes(self) -> list[str]:
        """Nodes with a stream."""
        return sorted(self._streams)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._serve, host, port, ssl=tls, limit=MAX_LINE)
        return int(self._server.sockets[0].getsockname()[1])

    async def start_unix(self, path: str) -> None:
        """Listen on a socket of this machine; who may open it is the file system's business."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=MAX_LINE)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._streams.values():
            writer.close()
        self._streams.clear()
        self._held.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = ""
        shrink_stream_tls_buffer(writer)
        try:
            async with asyncio.timeout(HELLO_S):
                node = await self._greet(reader)
                writer.write(link_message_line(LinkWelcome(promises=True, peers=self._peers is not None)))
                await writer.drain()
            older, self._streams[node] = self._streams.get(node), writer
            self._held.pop(node, None)
            if older is not None:
                older.close()
            while line := await reader.readline():
                answer = self._take(node, line)
                if answer is not None:
                    writer.write(link_message_line(answer))
                    await writer.drain()
        except Refusal as refusal:
            log.warning("link.refused", node=node, reason=refusal.reason, why=refusal.message)
            writer.write(link_message_line(LinkRefused(refusal.reason, refusal.message, refusal.fix or "")))
        except (OSError, EOFError, TimeoutError, ValueError) as error:  # ValueError: a line over the limit
            log.debug("link.ended", node=node, error=str(error))
        finally:
            if self._streams.get(node) is writer:
                del self._streams[node]
                self._held.pop(node, None)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader) -> str:
        hello = read_upward_link_message(await reader.readuntil(b"\n"))
        if not isinstance(hello, LinkHello) or not hello.node:
            raise Refusal("NoHello", "The first line of a stream must be a hello with a node.", "Use a Remuda agent.")
        if hello.version != VERSION:
            raise Refusal(
                "WrongVersion",
                f"The agent of {hello.node} speaks version {hello.version}, this manager {VERSION}.",
                "Update the older of the two; until then everything goes through the API.",
            )
        await self._authenticate(hello.token, hello.node)
        return hello.node

    def _take(self, node: str, line: bytes) -> LinkPromise | LinkPeers | None:
        news = read_upward_link_message(line)
        if isinstance(news, LinkAskPeers) and self._peers is not None:
            answer = self._peers.introduce(node, news)
            self._tell_outdated(self._peers.outdated())
            return answer
        if isinstance(news, LinkAsk):
            return LinkPromise(news.id, self._promise(node))
        if not isinstance(news, LinkNews):
            raise Refusal("MalformedMessage", "A second hello on one stream.", "Open another stream.")
        for past in news.past:
            self._recall(node, past)
        for beat in news.beats:
            if _is_plausible_streamed_heartbeat(beat) and self._is_on(node, beat):
                if (held := self._held.get(node)) and (known := held.pop(beat.uid, None)) is not None:
                    self._recall(node, known)
                self._board.report(beat)
        for found in news.signals:
            self._hear(node, found.device[:MAX_WORD], _shortened_streamed_signal(found.signal))
        return None

    def _tell_outdated(self, nodes: frozenset[str]) -> None:
        """A peer of theirs has moved. Who takes nothing off its stream is not told: it asks by itself in a while."""
        line = link_message_line(LinkPeers(ASK_AGAIN))
        for writer in [self._streams[node] for node in nodes if node in self._streams]:
            if not writer.is_closing() and writer.transport.get_write_buffer_size() < MAX_UNREAD:
                writer.write(line)

    def _recall(self, node: str, past: PodPast) -> None:
        if not _is_plausible_streamed_past(past):
            return
        if self._is_on(node, past.beat):
            self._board.recall(past)
        elif len(held := self._held.setdefault(node, {})) < MAX_PODS:
            held[past.beat.uid] = past


def _is_plausible_streamed_past(past: PodPast) -> bool:
    """Steps that a board would have kept of the pod's heartbeats, under names that can be."""
    words = (past.beat.namespace, past.beat.gang, past.beat.pod, past.beat.uid)
    if len(past.steps) > KEPT or not _is_plausible_streamed_heartbeat(past.beat) or max(map(len, words)) > MAX_WORD:
        return False
    last = -1
    for s in past.steps:
        spans = (s.self_seconds, s.step_seconds, s.time)
        if not last < s.step <= MAX_COUNT or not all(map(are_plausible_seconds, spans)):
            return False
        last = s.step
    return True


MAX_SAFE = 16  # steps that a heartbeat names; agents name half of that


def _is_plausible_streamed_heartbeat(beat: Heartbeat) -> bool:
    spans = (beat.step_seconds, beat.self_seconds, beat.checkpoint_seconds, beat.time)
    safe = beat.safe or ()
    counts = (beat.step, beat.attempt, beat.checkpoint, beat.total_steps, beat.kept, *safe)
    return (
        len(safe) <= MAX_SAFE
        and all(map(are_plausible_seconds, spans))
        and all(map(is_count_within_number_bounds, counts))
    )


def _shortened_streamed_signal(signal: Signal) -> Signal:
    """What an agent of ours sends is never that long; whatever else sends is not to fill the manager."""
    if len(signal.message) <= MAX_MESSAGE and len(signal.code) <= MAX_WORD and len(signal.source) <= MAX_WORD:
        return signal
    return Signal(signal.source[:MAX_WORD], signal.code[:MAX_WORD], signal.message[:MAX_MESSAGE], signal.time)


def shrink_stream_tls_buffer(writer: asyncio.StreamWriter) -> bool:
    """Whether the stream has a small buffer now. Not to be called from within its callbacks: the buffer is empty between them.

    asyncio gives every TLS connection a read buffer of 256 KiB and writes zeros into all of it. A manager has one stream for
    each node, so 5,000 nodes are 1.25 GiB for messages of a few hundred bytes. There is no public way to say so: neither
    servers, connections nor `start_tls` take a size, and doing TLS here with `ssl.MemoryBIO` would be handshake, shutdown and
    flow control written a second time for one number. So three fields are set, after a look whether they are there. Where this
    Python has other names for them, streams stay as they are: larger, and right.
    """
    protocol: Any = getattr(writer.transport, "_ssl_protocol", None)
    if not all(hasattr(protocol, name) for name in ("max_size", "_ssl_buffer", "_ssl_buffer_view")):
        return False
    protocol.max_size = TLS_BUFFER
    protocol._ssl_buffer = bytearray(TLS_BUFFER)
    protocol._ssl_buffer_view = memoryview(protocol._ssl_buffer)
    return True

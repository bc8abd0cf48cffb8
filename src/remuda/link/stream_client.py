"""The agent's end of the stream: dials the manager, says who it is, and sends what its outbox holds.

It keeps trying for as long as it runs; nothing waits for it. What was sent and not received when a connection broke is lost,
which is all right: the next heartbeat is newer, the last steps are told again on the next connection, and signals are in the
API. A refusal is said once per reason and tried again slowly, since a token may be renewed and a node's name does not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from remuda.api.devices import Signal
from remuda.api.errors import Refusal
from remuda.kube.runtime.backoff import Backoff, Jitter, no_jitter
from remuda.link.progress_board import Heartbeat, PodPast
from remuda.link.stream_messages import (
    ASK_AGAIN,
    MAX_LINE,
    LinkAsk,
    LinkAskPeers,
    LinkHello,
    LinkNews,
    LinkOutbox,
    LinkPeers,
    LinkPromise,
    LinkRefused,
    LinkWelcome,
    link_message_line,
    read_downward_link_message,
)

log = structlog.get_logger(__name__)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[], Awaitable[Connection]]

PAUSE_S = 0.05  # between two messages: what comes meanwhile is reduced into one
REFUSED_S = 30.0
HELLO_S = 10.0


class LinkClient:
    """`dial` opens the connection (TLS, address and trust are its business), `token` is asked before each hello, `past` for
    what a manager that may be new is told of the pods' last steps."""

    def __init__(
        self,
        node: str,
        dial: Dial,
        token: Callable[[], str],
        *,
        past: Callable[[], Iterable[PodPast]] = list,
        jitter: Jitter = no_jitter,
    ) -> None:
        self._node = node
        self._dial = dial
        self._token = token
        self._past = past
        self._jitter = jitter
        self._outbox = LinkOutbox()
        self._some = asyncio.Event()
        self._refused = ""
        self._asked: dict[int, tuple[LinkAsk | LinkAskPeers, asyncio.Future[LinkPromise | LinkPeers]]] = {}
        self._ids = 0
        self._may_ask = self._may_ask_peers = False
        self.is_connected = False
        self.connected = asyncio.Event()  # set with each stream; who waits for the next one clears it
        self.peers_moved = asyncio.Event()  # some are elsewhere than was told; who asks again clears it

    async def ask_promise(self) -> float:
        """For how many seconds the manager hands nothing of this node on, counted from the call; OSError when it cannot be
        asked now. The caller says how long it waits."""
        if not self.is_connected or not self._may_ask:
            raise OSError("no stream to a manager that promises anything")
        self._ids += 1
        answer = await self._ask(LinkAsk(self._ids))
        return answer.seconds if isinstance(answer, LinkPromise) else 0.0

    @property
    def knows_no_peers(self) -> bool:
        """The manager at the other end is of a release that has never heard of peers."""
        return self.is_connected and not self._may_ask_peers

    async def ask_peers(self, csr: str, host: str, port: int) -> LinkPeers:
        """A certificate for the key of `csr`, and who this node's peers are, or the `error` that says why not; OSError when there
        is nobody to ask."""
        if not self.is_connected or not self._may_ask_peers:
            raise OSError("no stream to a manager that knows of peers")
        self._ids += 1
        answer = await self._ask(LinkAskPeers(self._ids, csr, host, port))
        if not isinstance(answer, LinkPeers):
            raise OSError("another answer than was asked for")
        return answer

    async def _ask(self, question: LinkAsk | LinkAskPeers) -> LinkPromise | LinkPeers:
        answer: asyncio.Future[LinkPromise | LinkPeers] = asyncio.get_running_loop().create_future()
        self._asked[question.id] = question, answer
        self._some.set()
        try:
            return await answer
        finally:
            self._asked.pop(question.id, None)

    def beat(self, beat: Heartbeat) -> None:
        self._outbox.beat(beat)
        self._some.set()

    def signal(self, device: str, signal: Signal) -> None:
        self._outbox.signal(device, signal)
        self._some.set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff, failures = Backoff(0.2, 15.0), 0
        while True:
            try:
                await self._session()
                failures = 0
            except Refusal as refusal:
                if self._refused != refusal.reason:
                    self._refused = refusal.reason
                    log.warning("link.refused", node=self._node, reason=refusal.reason, why=refusal.message)
                await asyncio.sleep(REFUSED_S)
                continue
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                log.debug("link.lost", node=self._node, error=str(error))
            finally:
                self.is_connected = False
                for _, answer in self._asked.values():
                    if not answer.done():
                        answer.set_exception(OSError("the stream to the manager broke"))
            failures += 1
            await asyncio.sleep(backoff.delay(failures, self._jitter))

    async def _session(self) -> None:
        async with asyncio.timeout(HELLO_S):
            reader, writer = await self._dial()
        try:
            async with asyncio.timeout(HELLO_S):
                writer.write(link_message_line(LinkHello(self._node, self._token())))
                await writer.drain()
                welcome = _unless_link_refused(await reader.readuntil(b"\n"))
            self._may_ask = isinstance(welcome, LinkWelcome) and welcome.promises
            self._may_ask_peers = isinstance(welcome, LinkWelcome) and welcome.peers
            self.is_connected, self._refused = True, ""
            self.connected.set()
            for past in self._past():
                writer.write(link_message_line(LinkNews(past=[past])))
                await writer.drain()
            await self._talk(reader, writer)
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send until the other side says that it is over, or goes away."""
        ending = asyncio.ensure_future(self._listen(reader))
        sent = 0
        try:
            while not ending.done():
                some = asyncio.ensure_future(self._some.wait())
                await asyncio.wait((some, ending), return_when=asyncio.FIRST_COMPLETED)
                some.cancel()
                self._some.clear()
                for question in [q for number, (q, _) in self._asked.items() if number > sent]:
                    sent = question.id
                    writer.write(link_message_line(question))
                    await writer.drain()
                while (news := self._outbox.take()) is not None:
                    writer.write(link_message_line(news))
                    await writer.drain()
                await asyncio.sleep(PAUSE_S)
            ending.result()
        finally:
            ending.cancel()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Answers, until the other side goes away; Refusal when it says why."""
        while line := await reader.readline():
            message = _unless_link_refused(line)
            if isinstance(message, LinkPeers) and message.id == ASK_AGAIN:
                self.peers_moved.set()
            elif isinstance(message, LinkPromise | LinkPeers) and message.id in self._asked:
                _, answer = self._asked[message.id]
                if not answer.done():
                    answer.set_result(message)


def _unless_link_refused(line: bytes) -> LinkWelcome | LinkPromise | LinkPeers:
    message = read_downward_link_message(line)
    if isinstance(message, LinkRefused):
        raise Refusal(message.reason, message.message, message.fix)
    return message


def dial_link_tcp(host: str, port: int, **tls: object) -> Dial:
    """`tls`: `ssl` and `server_hostname` as asyncio takes them."""

    async def dial() -> Connection:
        return await asyncio.open_connection(host, port, limit=MAX_LINE, **tls)  # type: ignore[arg-type]

    return dial


def dial_link_unix(path: str) -> Dial:
    async def dial() -> Connection:
        return await asyncio.open_unix_connection(path, limit=MAX_LINE)

    return dial

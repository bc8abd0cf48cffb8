"""The agent's stream to the manager: what is reduced, who may speak for whom, and what one bad stream can do to others."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from remuda.api.devices import Signal
from remuda.api.errors import Refusal
from remuda.api.meta import to_time
from remuda.link.certificates import LinkCertificates
from remuda.link.progress_board import Heartbeat, ProgressBoard
from remuda.link.stream_client import LinkClient, dial_link_tcp
from remuda.link.stream_messages import (
    MAX_BATCH,
    MAX_LINE,
    MAX_WAITING,
    DeviceSignal,
    LinkHello,
    LinkNews,
    LinkOutbox,
    LinkRefused,
    LinkWelcome,
    link_message_line,
    read_downward_link_message,
    read_upward_link_message,
)
from remuda.link.stream_server import MAX_WORD, LinkServer
from tests.builders.waiting import PATIENCE_S


def a_beat(uid: str = "u1", step: int = 1, attempt: int = 1, checkpoint: int | None = None, **more: float) -> Heartbeat:
    beat = Heartbeat("default", "job", f"pod-{uid}", uid, attempt, step, checkpoint=checkpoint, time=abs(float(step)))
    return msgspec.structs.replace(beat, **more)


def a_signal(code: str = "xid-79", at: float = 1.0) -> Signal:
    return Signal("kmsg", code, time=to_time(at))


# --- the outbox -------------------------------------------------------------------------------------------------------


def test_of_a_pods_heartbeats_the_newest_is_told_and_no_checkpoint_is_lost() -> None:
    outbox = LinkOutbox()
    for beat in (a_beat(step=1), a_beat(step=2, checkpoint=2), a_beat(step=3), a_beat("u2", step=9)):
        outbox.beat(beat)
    news = outbox.take()
    assert news is not None
    assert [(b.uid, b.step, b.checkpoint) for b in news.beats] == [("u1", 3, 2), ("u2", 9, None)]
    assert outbox.take() is None


def test_a_checkpoint_of_an_older_attempt_is_not_carried_over() -> None:
    outbox = LinkOutbox()
    outbox.beat(a_beat(step=9, checkpoint=8))
    outbox.beat(a_beat(step=1, attempt=2))
    news = outbox.take()
    assert news is not None
    assert news.beats[0].checkpoint is None


def test_signals_keep_the_order_of_their_newest_time() -> None:
    outbox = LinkOutbox()
    for code in ("health-lost", "health-back", "health-lost"):
        outbox.signal("gpu-0", a_signal(code))
    news = outbox.take()
    assert news is not None
    assert [s.signal.code for s in news.signals] == ["health-back", "health-lost"]


def test_an_outbox_is_bounded_and_taken_in_batches() -> None:
    outbox = LinkOutbox()
    for number in range(MAX_WAITING + 10):
        outbox.signal(f"gpu-{number}", a_signal())
        outbox.beat(a_beat(f"u{number}"))
    assert outbox.dropped == 20
    sizes = []
    while (news := outbox.take()) is not None:
        sizes.append((len(news.beats), len(news.signals)))
        assert len(link_message_line(news)) < MAX_LINE
    assert sizes == [(MAX_BATCH, MAX_BATCH)] * (MAX_WAITING // MAX_BATCH)


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"type":"hello"}', b'{"type":"news","beats":[1]}', b"\xff\xfe"])
def test_what_cannot_be_read_is_refused(line: bytes) -> None:
    with pytest.raises(Refusal, match="MalformedMessage"):
        read_upward_link_message(line)


# --- over TLS ---------------------------------------------------------------------------------------------------------


class Manager:
    """A link server as a manager has it; the token of node n is `token-n`."""

    def __init__(self, directory: Path) -> None:
        self.board = ProgressBoard()
        self.heard: list[tuple[str, str, str]] = []
        self.news = asyncio.Event()
        self.server = LinkServer(self._check, self.board, self._hear, lambda node, beat: beat.uid.endswith(f"@{node}"))
        certificates = LinkCertificates(directory)
        self._tls = certificates.prepare([], time.time())
        self.trust = ssl.create_default_context(cafile=str(certificates.ca))
        self.port = 0

    async def start(self) -> None:
        self.port = await self.server.start("127.0.0.1", 0, self._tls)
        self.board.subscribe(lambda namespace, gang, notable: self.news.set())

    async def _check(self, token: str, node: str) -> None:
        if token != f"token-{node}":
            raise Refusal("WrongNode", f"The token is not {node}'s.", "Use its own.")

    def _hear(self, node: str, device: str, signal: Signal) -> None:
        self.heard.append((node, device, signal.code))
        self.news.set()

    def client(self, node: str, token: str | None = None) -> LinkClient:
        dial = dial_link_tcp("127.0.0.1", self.port, ssl=self.trust, server_hostname="localhost")
        return LinkClient(node, dial, lambda: token or f"token-{node}")

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust, server_hostname="localhost")

    async def told(self) -> None:
        await self.news.wait()
        self.news.clear()


@pytest_asyncio.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    found = Manager(tmp_path)
    await found.start()
    async with asyncio.timeout(PATIENCE_S):
        yield found
    await found.server.stop()


async def test_beats_and_signals_arrive_and_other_nodes_pods_are_dropped(manager: Manager) -> None:
    client = manager.client("n1")
    running = asyncio.create_task(client.run())
    client.beat(a_beat("mine@n1", step=7))
    client.beat(a_beat("theirs@n2", step=8))
    client.signal("gpu-3", a_signal())
    while not (manager.heard and manager.board.of_gang("default", "job")):
        await manager.told()
    running.cancel()
    assert manager.heard == [("n1", "gpu-3", "xid-79")]
    assert list(manager.board.of_gang("default", "job")) == ["mine@n1"]


async def test_an_agent_that_claims_another_node_is_refused_and_told_why(manager: Manager) -> None:
    reader, writer = await manager.raw()
    writer.write(link_message_line(LinkHello("n2", "token-n1")))
    answer = read_downward_link_message(await reader.readline())
    assert isinstance(answer, LinkRefused)
    assert answer.reason == "WrongNode"
    assert await reader.read() == b""
    writer.close()
    assert manager.server.nodes == []


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"type":"news"}\n',
        link_message_line(LinkHello("n1", "token-n1", version=99)),
        b"x" * (MAX_LINE + 10) + b"\n",
    ],
)
async def test_a_bad_stream_ends_alone(manager: Manager, line: bytes) -> None:
    good = manager.client("n9")
    running = asyncio.create_task(good.run())
    reader, writer = await manager.raw()
    writer.write(line)
    answer = await reader.read()
    assert answer == b"" or isinstance(read_downward_link_message(answer), LinkRefused)
    writer.close()
    good.signal("gpu-0", a_signal())
    await manager.told()
    assert manager.heard == [("n9", "gpu-0", "xid-79")]
    running.cancel()


async def test_a_stream_that_breaks_is_opened_again_and_the_newer_one_counts(manager: Manager) -> None:
    first_reader, first = await manager.raw()
    first.write(link_message_line(LinkHello("n1", "token-n1")))
    assert isinstance(read_downward_link_message(await first_reader.readline()), LinkWelcome)
    client = manager.client("n1")  # the agent restarted; its predecessor's connection is still open
    running = asyncio.create_task(client.run())
    assert await first_reader.read() == b""
    first.close()
    client.signal("gpu-0", a_signal("xid-48"))
    await manager.told()
    assert manager.heard == [("n1", "gpu-0", "xid-48")]
    assert manager.server.nodes == ["n1"]
    running.cancel()


async def test_numbers_that_cannot_be_are_dropped_and_long_words_are_cut(manager: Manager) -> None:
    reader, writer = await manager.raw()
    writer.write(link_message_line(LinkHello("n1", "token-n1")))
    await reader.readline()
    lies = [
        a_beat("lies@n1", step=-1),
        a_beat("lies@n1", step=1, step_seconds=-1.0),
        a_beat("lies@n1", step=1, self_seconds=1e300),
        a_beat("lies@n1", step=1, checkpoint=1 << 70),
        a_beat("lies@n1", step=1, attempt=-3),
        a_beat("lies@n1", step=1, total_steps=1 << 62),
        a_beat("lies@n1", step=1, time=1e14),
    ]
    long = Signal("kmsg" * 500, "xid-79" * 500, "x" * 500_000, a_signal().time)
    writer.write(link_message_line(LinkNews(lies, [DeviceSignal("gpu-0" * 500, long)])))
    writer.write(link_message_line(LinkNews([a_beat("fine@n1", step=3)])))
    while not manager.board.of_gang("default", "job"):
        await manager.told()
    assert list(manager.board.of_gang("default", "job")) == ["fine@n1"]
    [(node, device, code)] = manager.heard
    assert (node, len(device), len(code)) == ("n1", MAX_WORD, MAX_WORD)
    writer.close()

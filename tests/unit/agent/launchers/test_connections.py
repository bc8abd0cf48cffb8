"""The launchers' sockets: who is let in, who is thrown out, and that nobody can do the agent harm."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.agent.launchers import connections as module
from remuda.agent.launchers.connections import LauncherConnections
from remuda.launch import jsonline
from remuda.launch.protocol import Fence, Heartbeat, Hello, Ready, Start, Stop, ToAgent, encode_launch_message
from tests.builders.waiting import PATIENCE_S


class Desk:
    """Notes what the launchers say."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ToAgent]] = []
        self.lost: list[str] = []
        self.changed = asyncio.Condition()
        self.links = LauncherConnections("node-01", self._hear, self._lose)

    def _hear(self, uid: str, message: ToAgent) -> None:
        self.heard.append((uid, message))
        self._wake()

    def _lose(self, uid: str) -> None:
        self.lost.append(uid)
        self._wake()

    def _wake(self) -> None:
        async def wake() -> None:
            async with self.changed:
                self.changed.notify_all()

        task = asyncio.get_running_loop().create_task(wake())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(condition)


tasks: set[asyncio.Task[None]] = set()


class Client:
    """A small launcher: lines in, lines out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def dial(cls, directory: Path) -> Client:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return cls(*await asyncio.open_unix_connection(f"/proc/self/fd/{fd}/agent.sock"))
        finally:
            os.close(fd)

    def say(self, *messages: ToAgent) -> None:
        self.raw(b"".join(encode_launch_message(m) for m in messages))

    def raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def read(self) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return jsonline.parse_json_line(await self._reader.readline())

    async def ended(self) -> bool:
        """Waits for the other side to hang up."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.read() == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        """At once, whatever has not been sent."""
        self._writer.transport.abort()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


def hello(uid: str = "a", pid: int = 1) -> Hello:
    return Hello(f"pod-{uid}", uid, pid, "parked", 0)


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk()
    await desk.links.listen("a", str(tmp_path))
    yield desk
    desk.links.close_all()


@pytest_asyncio.fixture
async def client(desk: Desk, tmp_path: Path) -> AsyncIterator[Client]:
    client = await Client.dial(tmp_path)
    yield client
    await client.close()


async def test_a_conversation(desk: Desk, client: Client) -> None:
    client.say(hello(), Ready(1, (5,)))
    await desk.until(lambda: len(desk.heard) == 2)
    assert desk.heard == [("a", hello()), ("a", Ready(1, (5,)))]
    desk.links.send("a", Stop(2, "TERM", 2.0, 0, "/ckpt"))
    desk.links.send("a", Start(2, {"RANK": "0"}))
    assert await client.read() == {
        "type": "stop",
        "attempt": 2,
        "signal": "TERM",
        "grace": 2.0,
        "rank": 0,
        "checkpointDir": "/ckpt",
    }
    assert await client.read() == {"type": "start", "attempt": 2, "env": {"RANK": "0"}}
    await client.close()
    await desk.until(lambda: desk.lost == ["a"])


async def test_the_socket_is_its_owner_s_alone(desk: Desk, tmp_path: Path) -> None:
    mode = (tmp_path / "agent.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert os.listdir(tmp_path) == ["agent.sock"]


async def test_a_path_longer_than_sockets_allow(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    desk = Desk()
    await desk.links.listen("a", str(deep))
    client = await Client.dial(deep)
    client.say(hello())
    await desk.until(lambda: len(desk.heard) == 1)
    await client.close()
    desk.links.close_all()


async def test_a_new_agent_takes_the_place_of_the_old_socket(tmp_path: Path) -> None:
    async def meet() -> None:
        desk = Desk()
        await desk.links.listen("a", str(tmp_path))
        await desk.links.listen("a", str(tmp_path))  # again is nothing new
        client = await Client.dial(tmp_path)
        client.say(hello())
        await desk.until(lambda: len(desk.heard) == 1)
        desk.links.close_all()  # as a killed process would: the file stays
        assert await client.ended()
        await client.close()
        assert (tmp_path / "agent.sock").exists()

    await meet()
    await meet()


async def test_a_newer_connection_replaces_the_older(desk: Desk, client: Client, tmp_path: Path) -> None:
    client.say(hello(pid=1))
    await desk.until(lambda: len(desk.heard) == 1)
    second = await Client.dial(tmp_path)
    second.say(hello(pid=2))
    assert await client.ended()
    second.say(Ready(1))
    await desk.until(lambda: len(desk.heard) == 3)
    assert desk.lost == []
    desk.links.send("a", Fence())
    assert await second.read() == {"type": "fence"}
    await second.close()
    await desk.until(lambda: desk.lost == ["a"])


async def test_one_that_only_connects_replaces_nobody(desk: Desk, client: Client, tmp_path: Path) -> None:
    client.say(hello())
    await desk.until(lambda: len(desk.heard) == 1)
    stranger = await Client.dial(tmp_path)
    client.say(Ready(1))
    await desk.until(lambda: len(desk.heard) == 2)
    await stranger.close()
    desk.links.send("a", Fence())
    assert await client.read() == {"type": "fence"}


HELLO = encode_launch_message(hello())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"not json\n", id="not JSON"),
        pytest.param(b"[1]\n", id="not an object"),
        pytest.param(b'{"attempt":1}\n', id="no type"),
        pytest.param(encode_launch_message(Ready(1)), id="no hello"),
        pytest.param(encode_launch_message(hello("b")), id="another pod"),
        pytest.param(HELLO + b'{"type":"ready","attempt":-1}\n', id="bad field"),
        pytest.param(HELLO + b'{"type":"running"}\n', id="missing field"),
        pytest.param(HELLO + b"x" * 70_000, id="endless line"),
        pytest.param(b"\xff\xfe\n", id="not text"),
        pytest.param(b'{"type":"hello","a":' + b"[" * 60_000 + b"\n", id="nested"),
        pytest.param(HELLO + b'{"type":"ready","attempt":1,"checkpoints":[1e400]}\n', id="infinite"),
    ],
)
async def test_malformed_input_ends_the_connection_and_nothing_else(
    desk: Desk, client: Client, tmp_path: Path, data: bytes
) -> None:
    client.raw(data)
    assert await client.ended()
    again = await Client.dial(tmp_path)
    before = len(desk.heard)
    again.say(hello(pid=7))
    await desk.until(lambda: len(desk.heard) == before + 1)
    await again.close()


async def test_what_a_newer_launcher_says_is_ignored(desk: Desk, client: Client) -> None:
    client.raw(
        b'{"type":"sing","song":1}\n\n'
        + encode_launch_message(hello())
        + b'{"type":"ready","attempt":1,"mood":"fine"}\n'
    )
    client.raw(encode_launch_message(Fence()))  # ours, come back
    client.say(Ready(2))
    await desk.until(lambda: len(desk.heard) == 3)
    assert [m for _, m in desk.heard] == [hello(), Ready(1), Ready(2)]


async def test_lines_may_come_in_pieces(desk: Desk, client: Client) -> None:
    for byte in encode_launch_message(hello()):
        client.raw(bytes([byte]))
        await client.drain()
        await asyncio.sleep(0)
    await desk.until(lambda: len(desk.heard) == 1)


async def test_silence_after_connecting_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELLO_WITHIN_S", 0.01)
    desk = Desk()
    await desk.links.listen("a", str(tmp_path))
    client = await Client.dial(tmp_path)
    assert await client.ended()
    await client.close()
    desk.links.close_all()


async def test_too_many_strangers_are_sent_away(desk: Desk, tmp_path: Path) -> None:
    strangers = [await Client.dial(tmp_path) for _ in range(module.MAX_STRANGERS + 1)]
    async with asyncio.timeout(PATIENCE_S):
        ends = [asyncio.create_task(s.ended()) for s in strangers]
        done, waiting = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for stranger in strangers:
        await stranger.close()


async def test_a_flood_fills_the_flooder_s_own_buffer(desk: Desk, client: Client) -> None:
    """Reading stops until the launcher has tokens again; nothing is lost, nothing piles up here."""
    client.say(hello())
    total = 20_000
    beat = b"".join(encode_launch_message(Heartbeat(1, step)) for step in range(total))
    client.raw(beat)
    writing = asyncio.create_task(client.drain())
    await desk.until(lambda: len(desk.heard) >= module.BURST)
    before = len(desk.heard)
    await desk.until(lambda: len(desk.heard) >= before + 40)
    assert len(desk.heard) < total / 4, "a socket carries all of them in this time"
    assert not writing.done(), "the flooder waits"
    steps = [m.step for _, m in desk.heard if isinstance(m, Heartbeat)]
    assert steps == list(range(len(steps)))
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def test_the_others_are_heard_during_a_flood(desk: Desk, client: Client, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    await desk.links.listen("b", str(other))
    client.say(hello())
    client.raw(b"".join(encode_launch_message(Heartbeat(1, step)) for step in range(20_000)))
    quiet = await Client.dial(other)
    quiet.say(hello("b"), Ready(1))
    await desk.until(lambda: ("b", Ready(1)) in desk.heard)
    await quiet.close()


async def test_a_launcher_that_does_not_read_is_cut_off(
    desk: Desk, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.say(hello())
    await desk.until(lambda: len(desk.heard) == 1)
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 1000)
    for attempt in range(1000):
        desk.links.send("a", Start(attempt, {"FILL": "x" * 10_000}))
    await desk.until(lambda: desk.lost == ["a"])


async def test_what_does_not_fit_a_line_is_not_sent(desk: Desk, client: Client) -> None:
    client.say(hello())
    await desk.until(lambda: len(desk.heard) == 1)
    desk.links.send("a", Start(1, {"HOSTS": "x" * 70_000}))
    desk.links.send("a", Fence())
    assert await client.read() == {"type": "fence"}


async def test_nothing_is_heard_after_hanging_up(desk: Desk, client: Client) -> None:
    client.say(hello())
    await desk.until(lambda: len(desk.heard) == 1)
    desk.links.hang_up("a")
    assert await client.ended()
    assert desk.lost == []
    desk.links.send("a", Fence())  # to nobody


# --- simulated pods ----------------------------------------------------------------------------------------------------


async def test_a_simulated_launcher_speaks_without_a_socket(tmp_path: Path) -> None:
    desk = Desk()
    got: list[Any] = []
    say = desk.links.connect("a", got.append)
    say({"type": "ready", "attempt": 1})  # before hello: nobody's
    say({"type": "hello", "version": 1, "pod": "pod-a", "uid": "a", "pid": 1, "state": "parked", "attempt": 0})
    say({"type": "heartbeat", "attempt": 1, "step": 3, "stepTime": 0.5, "time": 9.0})
    say({"type": "unheard-of"})
    assert [m for _, m in desk.heard] == [hello(), Heartbeat(1, 3, 0.5, time=9.0)]
    desk.links.send("a", Stop(1, "TERM", 2.0, None, None))
    assert got[0]["checkpointDir"] is None
    second = desk.links.connect("a", got.append)
    second({"type": "hello", "pod": "pod-a", "uid": "a", "pid": 2, "state": "parked", "attempt": 0})
    say({"type": "ready", "attempt": 1})  # the old one is dead
    assert len(desk.heard) == 3
    desk.links.close("a")
    second({"type": "ready", "attempt": 1})
    assert len(desk.heard) == 3
    assert os.listdir(tmp_path) == []

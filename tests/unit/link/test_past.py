"""What agents remember of their pods' last steps, and how a manager that is new comes to know it. Virtual time, no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.api.errors import Refusal
from remuda.core.health.step_samples import WARM_UP, WINDOW, StepSample
from remuda.link.progress_board import MAX_PODS, Heartbeat, PodPast, ProgressBoard
from remuda.link.stream_client import Connection, LinkClient
from remuda.link.stream_messages import MAX_LINE, LinkNews, link_message_line, read_upward_link_message
from remuda.link.stream_server import MAX_WORD, LinkServer
from remuda.runtime.link_endpoint import RelayBoard
from remuda.sim.virtual_time_loop import run_virtual

NODES, STEP_S = ("n1", "n2"), 0.5


def a_beat(step: int, uid: str = "u@n1", attempt: int = 1, own: float = 0.1, **more: Any) -> Heartbeat:
    time = attempt * 10_000.0 + step
    return msgspec.structs.replace(Heartbeat("ns", "g", uid, uid, attempt, step, 0.5, own, time=time), **more)


def kept(board: ProgressBoard, attempt: int = 1) -> dict[str, list[int]]:
    return {uid: [s.step for s in row] for uid, row in board.samples.of_gang("ns", "g", attempt).items()}


# --- the board --------------------------------------------------------------------------------------------------------


def test_a_new_board_that_is_told_the_past_knows_the_same_window() -> None:
    old, new = ProgressBoard(), ProgressBoard()
    for step in range(1, 200):
        old.report(a_beat(step, own=step / 7.0))
    [past] = old.past()
    new.recall(msgspec.json.decode(msgspec.json.encode(past), type=PodPast))
    assert kept(new) == {"u@n1": list(range(200 - WINDOW, 200))}
    assert new.of_gang("ns", "g")["u@n1"].last == old.of_gang("ns", "g")["u@n1"].last
    new.report(a_beat(200))
    assert kept(new)["u@n1"][-2:] == [199, 200], "no second warm-up"


def test_the_past_of_an_older_attempt_is_past() -> None:
    old, new = ProgressBoard(), ProgressBoard()
    for step in range(1, 20):
        old.report(a_beat(step))
    new.report(a_beat(1, uid="other@n2", attempt=2))
    for past in old.past():
        new.recall(past)
    assert kept(new, 2) == {"other@n2": []}


@given(st.data())
def test_whatever_is_told_again_and_again_a_step_counts_once(data: st.DataObject) -> None:
    """Pieces of the past, overlapping, repeated and late, amid heartbeats: always steps in order, each once, each as it was."""
    whole = {step: StepSample(step, 0.1 * step, 1.0, float(step)) for step in range(WARM_UP + 1, 41)}
    board = ProgressBoard()
    for _ in range(data.draw(st.integers(1, 6))):
        first = data.draw(st.integers(WARM_UP + 1, 40))
        last = data.draw(st.integers(first, 40))
        if data.draw(st.booleans()):
            steps = [whole[s] for s in range(first, last + 1)]
            board.recall(PodPast(a_beat(last, own=0.1 * last, time=float(last)), steps))
        else:
            board.report(a_beat(last, own=0.1 * last, time=float(last)))
    for rows in board.samples.of_gang("ns", "g", 1).values():
        assert [s.step for s in rows] == sorted({s.step for s in rows})
    everything = PodPast(a_beat(40, own=4.0, time=40.0), list(whole.values()))
    board.recall(everything)
    assert kept(board) == {"u@n1": list(whole)}


def test_an_agent_remembers_the_pods_that_spoke_last() -> None:
    board = RelayBoard()
    for number in range(MAX_PODS + 10):
        for step in range(1, 10):
            board.report(a_beat(step, uid=f"u{number}", gang=f"g{number // 8}"))
    assert [p.beat.uid for p in board.past()] == [f"u{n}" for n in range(10, MAX_PODS + 10)]
    assert board.of_gang("ns", "g0") == {}


def test_the_past_of_a_pod_is_a_small_message() -> None:
    board = ProgressBoard()
    for step in range(1, 1000):
        board.report(a_beat(step + 10**6, own=0.1 + step / 7.7e3, time=1.8e9 + step / 3.0))
    line = link_message_line(LinkNews(past=board.past()))
    assert len(line) < 4096 < MAX_LINE / MAX_PODS
    assert read_upward_link_message(line) == LinkNews(past=board.past())


# --- the stream -------------------------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """One direction of a connection in memory."""

    def __init__(self, own: asyncio.StreamReader, other: asyncio.StreamReader) -> None:
        super().__init__()
        self._own, self._other, self._is_closed = own, other, False

    def write(self, data: Any) -> None:
        if not self._is_closed and not self._other.at_eof():
            self._other.feed_data(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._own.feed_eof()
            self._other.feed_eof()


def pipe() -> tuple[Connection, Connection]:
    loop = asyncio.get_running_loop()
    readers = asyncio.StreamReader(limit=MAX_LINE), asyncio.StreamReader(limit=MAX_LINE)

    def end(own: asyncio.StreamReader, other: asyncio.StreamReader) -> Connection:
        protocol = asyncio.StreamReaderProtocol(own)
        return own, asyncio.StreamWriter(Wire(own, other), protocol, own, loop)

    return end(*readers), end(*reversed(readers))


class Manager:
    """A link server as a manager has it. `knows`: whether it has heard of its pods from the API."""

    def __init__(self, knows: bool = True) -> None:
        self.board, self.knows, self.is_up = ProgressBoard(), knows, True
        self.server = LinkServer(self._any, self.board, lambda *_: None, self._is_on)
        self.streams: list[asyncio.Task[None]] = []

    async def _any(self, token: str, node: str) -> None: ...

    def _is_on(self, node: str, beat: Heartbeat) -> bool:
        return self.knows and beat.uid.endswith(f"@{node}")

    async def dial(self) -> Connection:
        if not self.is_up:
            raise OSError("nobody listens")
        ours, theirs = pipe()
        self.streams.append(asyncio.create_task(self.server._serve(*theirs)))
        return ours

    async def die(self) -> None:
        self.is_up = False
        await self.server.stop()
        await asyncio.gather(*self.streams)


class Cluster:
    """Agents of two nodes with two ranks each; rank 3 turns slow at step 50. `manager` is who they find when they dial."""

    def __init__(self) -> None:
        self.manager, self.step = Manager(), 0
        self.boards = {node: RelayBoard() for node in NODES}
        self.clients: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for node, board in self.boards.items():
            client = LinkClient(node, self._dial, str, past=board.past)
            board.tell = client.beat
            self.clients.append(asyncio.create_task(client.run()))

    async def _dial(self) -> Connection:
        return await self.manager.dial()

    async def train(self, to: int) -> None:
        while self.step < to:
            self.step += 1
            for rank in range(4):
                node = NODES[rank % 2]
                own = 0.2 if rank == 3 and self.step > 50 else 0.1
                self.boards[node].report(a_beat(self.step, f"rank-{rank}@{node}", own=own, time=STEP_S * self.step))
            await asyncio.sleep(STEP_S)

    async def end(self) -> None:
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)
        await self.manager.die()


def play(story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        cluster = Cluster()
        await cluster.start()
        await story(cluster)
        await cluster.end()

    run_virtual(main())


@pytest.mark.parametrize("knows", [True, False])
def test_a_new_manager_is_told_the_window_even_before_it_knows_the_pods(knows: bool) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.train(58)
        first = cluster.manager
        await first.die()
        assert kept(first.board)["rank-3@n2"] == list(range(WARM_UP + 1, 59))
        cluster.manager = Manager(knows)
        await asyncio.sleep(20.0)
        assert bool(kept(cluster.manager.board)) is knows, "nothing is believed of pods that nobody knows"
        cluster.manager.knows = True
        await cluster.train(60)
        expected = list(range(WARM_UP + 1, 61))
        assert kept(cluster.manager.board) == {f"rank-{r}@{NODES[r % 2]}": expected for r in range(4)}
        rows = cluster.manager.board.samples.of_gang("ns", "g", 1)["rank-3@n2"]
        assert [s.self_seconds for s in rows][-12:] == [0.1, 0.1, *[0.2] * 10]

    play(story)


def test_a_stream_that_was_cut_off_leaves_no_gap() -> None:
    """What was reduced to the newest heartbeat while the manager could not be reached is told with the past."""

    async def story(cluster: Cluster) -> None:
        await cluster.train(10)
        manager = cluster.manager
        manager.is_up = False
        for writer in list(manager.server._streams.values()):
            writer.close()
        await cluster.train(20)
        manager.is_up = True
        await asyncio.sleep(20.0)
        assert kept(manager.board)["rank-0@n1"] == list(range(WARM_UP + 1, 21))

    play(story)


LIES = [
    PodPast(a_beat(9, uid="u@n2"), [StepSample(9, 0.1, 0.5, 9.0)]),  # a pod of another node
    PodPast(a_beat(9), [StepSample(9, -0.1, 0.5, 9.0)]),
    PodPast(a_beat(9), [StepSample(9, 0.1, 1e300, 9.0)]),
    PodPast(a_beat(9), [StepSample(1 << 70, 0.1, 0.5, 9.0)]),
    PodPast(a_beat(9), [StepSample(9, 0.1, 0.5, 9.0), StepSample(8, 0.1, 0.5, 8.0)]),
    PodPast(a_beat(9), [StepSample(s, 0.1, 0.5, 8.0) for s in range(1000)]),
    PodPast(a_beat(-9), [StepSample(9, 0.1, 0.5, 9.0)]),
    PodPast(a_beat(9, uid="x" * MAX_WORD + "@n1"), [StepSample(9, 0.1, 0.5, 9.0)]),
]


@pytest.mark.parametrize("past", LIES)
def test_a_past_that_cannot_have_been_is_dropped(past: PodPast) -> None:
    manager = Manager()
    manager.server._take("n1", link_message_line(LinkNews(past=[past])))
    assert manager.board.of_gang("ns", "g") == {}
    assert kept(manager.board) == {}


def test_what_is_held_for_pods_that_nobody_knows_is_bounded() -> None:
    manager = Manager(knows=False)
    for number in range(MAX_PODS + 10):
        manager.server._take("n1", link_message_line(LinkNews(past=[PodPast(a_beat(9, uid=f"u{number}@n1"))])))
    assert len(manager.server._held["n1"]) == MAX_PODS


@pytest.mark.parametrize("line", [b'{"type":"news","past":[1]}', b'{"type":"news","past":[{"beat":{},"steps":[]}]}'])
def test_a_past_that_cannot_be_read_is_refused(line: bytes) -> None:
    with pytest.raises(Refusal, match="MalformedMessage"):
        read_upward_link_message(line)

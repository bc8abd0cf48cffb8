"""Agents that vouch for each other over real TLS on loopback, with a clock that the test turns: leases, fences, doors and the
manager's book are the real ones; only the API is a stand-in that takes renewals or does not."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest
import pytest_asyncio

from remuda.agent.agent_fence import AgentFence
from remuda.agent.agent_lease import AgentLease
from remuda.api.kubernetes.core_v1 import Lease, LeaseSpec
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.core.health.peer_holds import PeerHolds
from remuda.core.health.peer_vouching import CUT, UNSURE, PeerPlace, PeerStanding
from remuda.kube.cluster import Cluster
from remuda.link.peer_certificates import PeerAuthority, PeerKey
from remuda.link.peer_door import MAX_OPEN_FROM_ONE, QUESTION, PeerDoor, ask_peer_doors
from remuda.link.peer_registry import PeerRegistry
from remuda.link.progress_board import ProgressBoard
from remuda.link.stream_client import Connection, LinkClient
from remuda.link.stream_messages import LinkAskPeers, LinkPeers
from remuda.link.stream_server import LinkServer
from remuda.runtime import peer_endpoint
from remuda.runtime.peer_endpoint import MOVED_AGAIN_S, PeerConfig, PeerEndpoint, serve_peer_endpoint
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.waiting import PATIENCE_S, until
from tests.unit.link.test_past import pipe

LEASE_S, FENCE_S, STEP_S = 30.0, 20.0, 2.5
BEGIN = time.time()  # certificates have dates


class Renewals:
    """The API, as far as one agent's lease needs it."""

    def __init__(self, zone: Zone) -> None:
        self.is_away = False
        self._zone = zone

    async def patch(self, kind: type[Lease], name: str, change: JsonObject, namespace: str) -> Lease:
        if self.is_away:
            raise OSError("the API is away")
        noted = {key: value for key, value in change["metadata"]["annotations"].items() if value is not None}
        spec = LeaseSpec(lease_duration_seconds=int(LEASE_S), renew_time=to_time(self._zone.clock()))
        lease = Lease(metadata=ObjectMeta(name=name, annotations=noted), spec=spec)
        self._zone.holds.see(lease, self._zone.clock())
        return lease

    async def get(self, kind: type[Lease], name: str, namespace: str) -> Lease:
        if self.is_away:
            raise OSError("the API is away")
        return Lease(metadata=ObjectMeta(name=name, resource_version="1"))


async def shut(door: PeerDoor) -> None:
    """Until everybody has left: what is under way at the end of a test is left behind otherwise."""
    door.stop()

    async def is_idle() -> bool:
        return not door.is_busy

    await until("nobody is at the door", is_idle)
    for _ in range(5):  # and asyncio has let go of the sockets
        await asyncio.sleep(0)


class PatientFence(AgentFence):
    """This machine may be busy. The clock that counts stands still while somebody is asked."""

    async def _ask(self, timeout: float) -> None:
        await super()._ask(PATIENCE_S)


class Agent:
    def __init__(self, zone: Zone, name: str) -> None:
        self.name, self.zone, self.api = name, zone, Renewals(zone)
        self.fenced_at: float | None = None
        self.fence = PatientFence(self._stop, lambda: None, FENCE_S, zone.elapsed)
        self.standing = PeerStanding(LEASE_S, zone.elapsed())
        self.lease = AgentLease(
            cast(Cluster, self.api),
            name,
            zone.clock,
            lease_s=LEASE_S,
            elapsed=zone.elapsed,
            renewed=self.fence.renewed,
            standing=self.standing,
        )
        self.is_ours = True
        self.peers = PeerEndpoint(self.standing, self.lease, self.fence, zone.elapsed, is_ours=lambda: self.is_ours)
        self.peers._round_s = PATIENCE_S
        self.fence.vouchers.append(self.peers.vouch)
        self.port = 0

    @property
    def question(self) -> LinkAskPeers:
        return LinkAskPeers(1, self.peers.csr, "127.0.0.1", self.port)

    def _stop(self) -> None:
        self.fenced_at = self.zone.elapsed()


class Zone:
    def __init__(self) -> None:
        self.now = 0.0
        self.agents: dict[str, Agent] = {}
        self.holds = PeerHolds()
        labels = {f"n{i}": {"topology.remuda.dev/rack": f"r{i % 2}"} for i in range(9)}
        # All of them are on this machine.
        self.registry = PeerRegistry(lambda: labels, lambda node: 86_400.0, self.clock, is_address=bool)
        self._running: list[asyncio.Task[None]] = []

    def elapsed(self) -> float:
        return self.now

    def clock(self) -> float:
        return BEGIN + self.now

    async def begin(self, count: int) -> list[Agent]:
        for i in range(count):
            agent = self.agents[f"n{i}"] = Agent(self, f"n{i}")
            agent.port = await agent.peers.door.start("127.0.0.1", 0)
            self._running.append(asyncio.create_task(agent.lease.run()))
        await self.introduce()
        await self.pass_time(15.0)
        return list(self.agents.values())

    async def introduce(self) -> None:
        for agent in self.agents.values():
            self.registry.introduce(agent.name, agent.question)
        self.now += 6.0  # the book's map is made anew
        for agent in self.agents.values():
            agent.peers.take(self.registry.introduce(agent.name, agent.question))

    async def pass_time(self, seconds: float, step_s: float = STEP_S) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += step_s
            for agent in self.agents.values():
                await agent.lease.try_for_peer(PATIENCE_S)
            for agent in self.agents.values():
                await agent.fence.look()

    async def end(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for agent in self.agents.values():
            await shut(agent.peers.door)

    def cut(self, *names: str) -> float:
        """They reach the API no more; when that was."""
        for name in names:
            self.agents[name].api.is_away = True
        return self.now

    @property
    def fenced(self) -> list[str]:
        return [agent.name for agent in self.agents.values() if agent.fenced_at is not None]


@pytest_asyncio.fixture
async def zone() -> AsyncIterator[Zone]:
    made = Zone()
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            yield made
    finally:
        await made.end()


async def test_nobody_fences_while_all_are_cut_off_and_nobody_is_handed_on(zone: Zone) -> None:
    names = [agent.name for agent in await zone.begin(4)]
    zone.cut(*names)
    await zone.pass_time(300.0, 5.0)
    assert zone.fenced == []
    assert zone.holds.look(zone.clock()) == set(names)
    for agent in zone.agents.values():
        agent.api.is_away = False
    await zone.pass_time(30.0)
    assert zone.fenced == []
    assert zone.holds.look(zone.clock()) == frozenset()


async def test_without_peers_they_fence(zone: Zone) -> None:
    agents = await zone.begin(5)
    for agent in agents:
        agent.fence.vouchers.clear()
    zone.cut(*zone.agents)
    await zone.pass_time(25.0)
    assert zone.fenced == [*zone.agents]


async def test_a_node_that_is_cut_off_alone_fences_in_time_and_is_handed_on(zone: Zone) -> None:
    agents = await zone.begin(5)
    at = zone.cut("n0")
    await zone.pass_time(60.0)
    assert zone.fenced == ["n0"]
    fenced_at = agents[0].fenced_at
    assert fenced_at is not None
    assert at + FENCE_S - STEP_S <= fenced_at <= at + FENCE_S + STEP_S
    assert zone.holds.look(zone.clock()) == frozenset()


async def test_one_peer_that_reaches_the_api_is_enough_to_fence(zone: Zone) -> None:
    await zone.begin(5)
    zone.cut("n0", "n1", "n2", "n3")
    await zone.pass_time(30.0)
    assert zone.fenced == ["n0", "n1", "n2", "n3"]


async def test_half_of_the_peers_are_not_enough(zone: Zone) -> None:
    agents = await zone.begin(5)
    zone.cut(*zone.agents)
    for agent in agents[3:]:
        agent.peers.door.stop()
    await zone.pass_time(30.0)
    assert "n0" in zone.fenced, "two of its four peers answer"


async def test_two_nodes_have_too_few_peers(zone: Zone) -> None:
    await zone.begin(2)
    zone.cut("n0", "n1")
    await zone.pass_time(30.0)
    assert zone.fenced == ["n0", "n1"]


async def test_who_is_fenced_itself_says_nothing(zone: Zone) -> None:
    """Else the dead would speak for the living: the manager counts on it that they do not."""
    agents = await zone.begin(4)
    zone.cut("n1", "n2")
    await zone.pass_time(60.0)
    assert zone.fenced == ["n1", "n2"]
    zone.cut("n0", "n3")
    await zone.pass_time(30.0)
    assert zone.fenced == [*zone.agents]
    assert await agents[1].peers.answer() == "unsure"


async def test_the_words_are_good_for_as_long_as_the_manager_said(zone: Zone) -> None:
    agents = await zone.begin(4)
    for agent in agents:
        told = zone.registry.introduce(agent.name, agent.question)
        agent.peers.take(type(told)(1, told.certificate, told.ca, told.peers, 100.0))
    await zone.pass_time(5.0)
    at = zone.cut(*zone.agents)
    await zone.pass_time(90.0)
    assert zone.fenced == []
    await zone.pass_time(20.0)
    assert zone.fenced == [*zone.agents]
    assert all(agent.fenced_at is not None and agent.fenced_at <= at + 100.0 + STEP_S for agent in agents)


# --- who is believed, and what strangers can do -------------------------------------------------------------------------


class Peer:
    """A door that always says cut, and the context to ask others with."""

    def __init__(self, node: str, authority: PeerAuthority, *also: PeerAuthority, says: str = CUT) -> None:
        self.node, key, self.says = node, PeerKey(), says
        self.asked = 0
        cas = [a.ca for a in (authority, *also)]
        tls, self.asker = key.contexts(authority.sign(node, key.csr), cas)
        self.door = PeerDoor(self._answer)
        self.door.tls = tls

    async def _answer(self) -> str:
        self.asked += 1
        return self.says

    async def open(self, name: str = "") -> PeerPlace:
        return PeerPlace(name or self.node, "127.0.0.1", await self.door.start("127.0.0.1", 0))


@pytest.fixture
def authority() -> PeerAuthority:
    return PeerAuthority(time.time)


async def test_only_the_word_of_the_node_that_was_meant_counts(authority: PeerAuthority) -> None:
    other = PeerAuthority(authority._clock)
    me, good, odd = Peer("me", authority), Peer("good", authority), Peer("odd", authority, says="sure, run on")
    named, foreign = Peer("bad", authority), Peer("foreign", other, authority)
    places = [await good.open(), await odd.open(), await named.open("victim"), await foreign.open()]
    answers = await ask_peer_doors(places, me.asker, PATIENCE_S)
    assert answers == {"good": CUT}
    assert (named.asked, foreign.asked) == (0, 0), "they did not even learn that they were asked"
    for peer in (good, odd, named, foreign):
        await shut(peer.door)


async def test_garbage_and_silence_are_no_answers_and_take_no_longer_than_a_round(authority: PeerAuthority) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"x" * 100_000)
            await writer.drain()
            writer.close()

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    me, good = Peer("me", authority), Peer("good", authority)
    servers = [await asyncio.start_server(what, "127.0.0.1", 0) for what in (garbage, silence)]
    places = [PeerPlace(f"p{s}", "127.0.0.1", server.sockets[0].getsockname()[1]) for s, server in enumerate(servers)]
    assert await ask_peer_doors([places[0], await good.open()], me.asker, PATIENCE_S) == {"good": CUT}
    assert await ask_peer_doors([places[1]], me.asker, 0.2) == {}
    await shut(good.door)
    for server in servers:
        server.close()


async def test_without_a_certificate_of_the_managers_ca_there_is_no_word(authority: PeerAuthority) -> None:
    good, stranger = Peer("good", authority), Peer("stranger", PeerAuthority(authority._clock), authority)
    place = await good.open()
    bare = ssl.create_default_context(cadata=authority.ca)
    for tls in (bare, stranger.asker):
        assert await ask_peer_doors([place], tls, PATIENCE_S) == {}
    assert good.asked == 0
    await shut(good.door)


@pytest.mark.parametrize("line", [b"\n", b"please\n", b"x" * 1000 + b"\n", QUESTION * 2])
async def test_the_door_answers_one_question_only(authority: PeerAuthority, line: bytes) -> None:
    good, me = Peer("good", authority), Peer("me", authority)
    place = await good.open()
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(place.host, place.port, ssl=me.asker, server_hostname=place.node)
        with contextlib.suppress(OSError):
            writer.write(line)
            await writer.drain()
        said = b""
        with contextlib.suppress(OSError):
            said = await reader.read()
    assert said == (b"cut\n" if line.startswith(QUESTION) else b"")
    writer.transport.abort()
    await shut(good.door)


async def test_connections_that_say_nothing_are_bounded_and_given_up(authority: PeerAuthority) -> None:
    good, me = Peer("good", authority), Peer("me", authority)
    place = await good.open()
    async with asyncio.timeout(PATIENCE_S):
        bare = [await asyncio.open_connection(place.host, place.port) for _ in range(MAX_OPEN_FROM_ONE + 3)]
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in bare]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)  # those over the limit at once
        with contextlib.suppress(OSError):
            await asyncio.gather(*ends, return_exceptions=True)  # and the rest when their time is over
        assert await ask_peer_doors([place], me.asker, PATIENCE_S) == {"good": CUT}
    for _, writer in bare:
        writer.transport.abort()
    await shut(good.door)


async def test_an_agent_whose_port_is_still_taken_gets_its_door_when_the_one_before_lets_it_go(
    zone: Zone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_endpoint, "DOOR_AGAIN_S", 0.01)
    (old,) = await zone.begin(1)
    new = Agent(zone, "n0")
    new.fence.vouchers.clear()
    client = LinkClient("n0", nobody_there, str)
    config = PeerConfig("127.0.0.1", old.port)
    joining = asyncio.create_task(serve_peer_endpoint(new.peers, new.fence, client, config))
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not joining.done()
    assert new.fence.vouchers == [], "without a door it has no peers"
    await shut(old.peers.door)

    async def is_joined() -> bool:
        return new.fence.vouchers == [new.peers.vouch]

    await until("the new agent to have its peers", is_joined)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    assert new.fence.vouchers == []


async def nobody_there() -> Connection:
    raise OSError("no manager")


async def test_who_was_replaced_by_a_newer_agent_gives_no_word(zone: Zone) -> None:
    """The newer one could not note it."""
    agents = await zone.begin(3)
    zone.cut(*zone.agents)
    await zone.pass_time(10.0)
    assert await agents[0].peers.answer() == CUT
    agents[0].is_ours = False
    assert await agents[0].peers.answer() == UNSURE


# --- introduced over the stream -----------------------------------------------------------------------------------------


async def anybody(token: str, node: str) -> None: ...


class Introduced:
    """A manager and agents that are introduced over their streams, in virtual time."""

    def __init__(self, *nodes: str) -> None:
        self.loop = VirtualLoop()
        self.labels: dict[str, dict[str, str]] = {node: {} for node in nodes}
        registry = PeerRegistry(lambda: self.labels, lambda node: 600.0, self.clock)
        self._server = LinkServer(anybody, ProgressBoard(), lambda *_: None, lambda *_: True, peers=registry)
        self.standings: dict[str, PeerStanding] = {}
        self.endpoints: dict[str, PeerEndpoint] = {}
        self.questions: Counter[str] = Counter()  # by node: how often it asked
        self._tasks: list[asyncio.Task[None]] = []
        self._of: dict[str, list[asyncio.Task[None]]] = {}
        introduce = registry.introduce

        def count(node: str, asked: LinkAskPeers) -> LinkPeers:
            self.questions[node] += 1
            return introduce(node, asked)

        registry.introduce = count  # type: ignore[method-assign]

    def clock(self) -> float:
        return BEGIN + self.loop.time()

    async def _dial(self) -> Connection:
        ours, theirs = pipe()
        self._tasks.append(asyncio.create_task(self._server._serve(*theirs)))
        return ours

    async def start(self, node: str, host: str) -> None:
        """Its agent; the one before it ends."""
        for task in self._of.get(node, []):
            task.cancel()
        time = self.loop.time
        fence = AgentFence(lambda: None, lambda: None, FENCE_S, time)
        standing = self.standings[node] = PeerStanding(LEASE_S, time())
        lease = AgentLease(cast(Cluster, None), node, time, elapsed=time, standing=standing)
        endpoint = self.endpoints[node] = PeerEndpoint(standing, lease, fence, time)
        client = LinkClient(node, self._dial, str)
        asking = endpoint.keep_introduced(client, host, 9444)
        self._of[node] = [asyncio.create_task(client.run()), asyncio.create_task(asking)]
        self._tasks += self._of[node]

    def knows(self, node: str, peer: str) -> str:
        return self.endpoints[node]._places[peer].host

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            for number, node in enumerate(self.labels):
                await self.start(node, f"10.0.0.{number + 1}")
            await story()
            await self._server.stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        run_virtual(main(), self.loop)


def test_agents_are_introduced_over_their_streams_and_take_their_list_from_the_second_answer_on() -> None:
    all_three = Introduced("n0", "n1", "n2")

    async def story() -> None:
        standings = all_three.standings
        await asyncio.sleep(5.0)
        assert [wanted(s) for s in standings.values()] == [[], [], []], "a manager that begins knows nobody yet"
        await asyncio.sleep(60.0)
        assert wanted(standings["n0"]) == ["n1", "n2"]
        del all_three.labels["n2"]
        await asyncio.sleep(400.0)
        assert wanted(standings["n0"]) == [], "one peer is too few"

    all_three.play(story)


def test_where_a_restarted_agent_is_its_peers_learn_at_once() -> None:
    four = Introduced("n0", "n1", "n2", "n3")

    async def story() -> None:
        await asyncio.sleep(100.0)
        assert four.knows("n0", "n2") == "10.0.0.3"
        await four.start("n2", "10.0.7.7")
        await asyncio.sleep(1.0)
        assert [four.knows(node, "n2") for node in ("n0", "n1", "n3")] == ["10.0.7.7"] * 3
        await asyncio.sleep(10.0)
        await four.start("n3", "10.0.7.8")
        await asyncio.sleep(60.0)
        assert [four.knows(node, "n3") for node in ("n0", "n1", "n2")] == ["10.0.7.8"] * 3, "a little later"

    four.play(story)


def test_an_agent_that_restarts_all_the_time_makes_the_others_ask_now_and_then() -> None:
    four = Introduced("n0", "n1", "n2", "n3")

    async def story() -> None:
        await asyncio.sleep(30.0)
        before = four.questions["n0"]
        for number in range(60):
            await four.start("n2", f"10.0.8.{number}")
            await asyncio.sleep(10.0)
        assert four.questions["n0"] - before <= 600.0 / MOVED_AGAIN_S + 1

    four.play(story)


def wanted(standing: PeerStanding) -> list[str]:
    """Whom the node's next renewal would name."""
    standing.begin_try(0.0)
    standing.end_try(got_through=True)
    return list(standing.lists[0].nodes)

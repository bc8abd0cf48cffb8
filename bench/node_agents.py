"""The agents' side of the signal benchmark: many `LinkClient`s in one process, each with signals at its own moments.

Noise is what an application that crashes makes drivers say: several application codes on all GPUs of one node at a time, again
and again. Every code is on every device once per burst and nodes take turns, so that the outbox has nothing to reduce and all of
it travels. A small part of the signals are transitions instead: a GPU that falls off the bus, each of another device.

Every signal carries the moment it was said. Cumulative counts by tenth of a second go to the parent: what was said less what was
heard by the same moment is the backlog.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
import sys
import time
from pathlib import Path

import msgspec

from bench.onerun import answer, quiet
from remuda.api.devices import Signal
from remuda.api.meta import to_time
from remuda.link.stream_client import LinkClient, dial_link_tcp

GPUS = 8
NOISE = ("xid-13", "xid-31")
BURST = GPUS * len(NOISE)
FATAL = "xid-79"
BIN_S = 0.1


class AgentsAsk(msgspec.Struct, frozen=True):
    """When the streams are open, the manager's side says on stdin at which unix second the first signal is due: counts of both
    sides have the same bins then."""

    port: int
    ca: str
    nodes: int
    rate: float
    transitions: float  # part of the signals
    seconds: float
    seed: int


class AgentsRun(msgspec.Struct, frozen=True):
    said: list[int]  # cumulative, at the end of each bin
    transitions: int
    cpu: float
    connected: int


def node_name(number: int) -> str:
    return f"node-{number + 1:04d}"


async def run_agents(root: Path, ask: AgentsAsk) -> AgentsRun:
    trust = ssl.create_default_context(cafile=ask.ca)
    dial = dial_link_tcp("127.0.0.1", ask.port, ssl=trust, server_hostname="localhost")
    clients = [LinkClient(node_name(n), dial, lambda n=n: f"token-{node_name(n)}") for n in range(ask.nodes)]  # type: ignore[misc]
    running: list[asyncio.Task[None]] = []
    for number, client in enumerate(clients):
        running.append(asyncio.create_task(client.run()))
        if number % 16 == 15:  # handshakes cost the manager a millisecond each: not all at the same moment
            await asyncio.sleep(0.02)
    start_at = float(await asyncio.to_thread(sys.stdin.readline))
    connected = sum(c.is_connected for c in clients)
    try:
        said, transitions = await _talk(clients, ask, start_at)
        await asyncio.sleep(1.0)  # the last batches are under way
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return AgentsRun(said, transitions, time.process_time(), connected)


async def _talk(clients: list[LinkClient], ask: AgentsAsk, start_at: float) -> tuple[list[int], int]:
    chance = random.Random(ask.seed)
    fresh = [(n, d) for n in range(ask.nodes) for d in range(GPUS)]
    chance.shuffle(fresh)
    turns = itertools.cycle(chance.sample(range(ask.nodes), ask.nodes))
    said: list[int] = []
    total = transitions = 0
    debt = 0.0
    tick_s = 0.01
    ticks = round(ask.seconds / tick_s)
    for tick in range(ticks):
        await asyncio.sleep(max(0.0, start_at + tick * tick_s - time.time()))
        debt += ask.rate * tick_s
        while debt >= 1.0:
            node = next(turns)
            told = 0
            while fresh and transitions < (total + BURST) * ask.transitions:
                number, device = fresh.pop()
                clients[number].signal(f"gpu-{device}", _signal(FATAL))
                transitions += 1
                told += 1
            for device in range(GPUS):
                for code in NOISE:
                    clients[node].signal(f"gpu-{device}", _signal(code))
            told += BURST
            total += told
            debt -= told
        if (tick + 1) % round(BIN_S / tick_s) == 0:
            said.append(total)
    return said, transitions


def _signal(code: str) -> Signal:
    return Signal("kmsg", code, time=to_time(time.time()))


if __name__ == "__main__":
    quiet()
    sys.exit(answer(AgentsAsk, run_agents))

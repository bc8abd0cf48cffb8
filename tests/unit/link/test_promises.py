"""A node that asks the manager beside the API: it is told what the manager says, and nothing by who is not there."""

from __future__ import annotations

import asyncio

import pytest

from remuda.link.progress_board import ProgressBoard
from remuda.link.stream_client import Connection, LinkClient
from remuda.link.stream_messages import LinkWelcome, link_message_line
from remuda.link.stream_server import LinkServer
from remuda.sim.virtual_time_loop import run_virtual
from tests.unit.link.test_past import pipe


async def anybody(token: str, node: str) -> None: ...


def test_it_is_told_what_the_manager_says_and_each_answer_is_of_its_question() -> None:
    async def main() -> None:
        server = LinkServer(
            anybody, ProgressBoard(), lambda *_: None, lambda *_: True, lambda node: {"n1": 5.0}.get(node, 0.0)
        )
        served: list[asyncio.Task[None]] = []

        async def dial() -> Connection:
            ours, theirs = pipe()
            served.append(asyncio.create_task(server._serve(*theirs)))
            return ours

        clients = {node: LinkClient(node, dial, str) for node in ("n1", "n2")}
        with pytest.raises(OSError, match="no stream"):
            await clients["n1"].ask_promise()
        running = [asyncio.create_task(client.run()) for client in clients.values()]
        await asyncio.sleep(1.0)
        assert await asyncio.gather(*(clients["n1"].ask_promise() for _ in range(3))) == [5.0] * 3
        assert await clients["n2"].ask_promise() == 0.0
        asking = asyncio.ensure_future(clients["n1"].ask_promise())
        await server.stop()
        with pytest.raises(OSError, match="broke"):
            await asking
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *served, return_exceptions=True)

    run_virtual(main())


def test_a_manager_of_an_older_release_is_not_asked() -> None:
    async def main() -> None:
        ends: list[Connection] = []

        async def dial() -> Connection:
            ours, theirs = pipe()
            ends.append(theirs)
            theirs[1].write(link_message_line(LinkWelcome()))
            return ours

        client = LinkClient("n1", dial, str)
        running = asyncio.create_task(client.run())
        await asyncio.sleep(1.0)
        assert client.is_connected
        with pytest.raises(OSError, match="promises"):
            await client.ask_promise()
        for _, writer in ends:
            writer.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtual(main())

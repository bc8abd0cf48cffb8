"""What a crowd of clients took from the server's process goes back to the machine when they have gone."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from remuda.embedded.apiserver.connections import ConnectionLimits
from tests.builders.tls_api import HEAD, Streams, TlsApi
from tests.builders.waiting import PATIENCE_S

CROWD = 120  # each holds 256 KiB in the server, and as much in the client, which is in this process too
LIMITS = ConnectionLimits(most=200, of_address=200, new=100, streams=200, of_tenant=200)


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def crowd(server: TlsApi) -> float:
    """Watches, and what lives longer than they do. The memory while they are there."""
    streams: list[Streams] = []
    for number in range(CROWD):
        streams.append(await server.connect())
        reader, writer = streams[-1]
        writer.write(f"GET /api/v1/pods?watch=1 HTTP/1.1\r\n{HEAD}\r\n".encode())
        assert b" 200 OK" in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        body = b'{"metadata":{"name":"m%d"},"data":{"a":"%b"}}' % (number, b"x" * 1_000)
        head = f"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\n{HEAD}connection: close\r\n"
        assert b" 201 " in await server.ask(f"{head}content-length: {len(body)}\r\n\r\n{body.decode()}")
    most = rss_mib()
    for _, writer in streams:
        writer.transport.abort()
    return most


async def measure(directory: Path) -> None:
    server = TlsApi(directory, LIMITS)
    await server.start()
    before = rss_mib()
    most = await crowd(server)
    async with asyncio.timeout(PATIENCE_S):
        while server.app._watching._seats._remote._sum:  # noqa: ASYNC110 - the server has to see the end of each
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    gc.collect()
    print(most - before, rss_mib() - before)
    await server.stop()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has to be told")
def test_the_memory_of_a_crowd_goes_back_to_the_machine(tmp_path: Path) -> None:
    """In a process of its own: how memory is handled is the whole process's matter, and so is what it has."""
    command = [sys.executable, "-m", "tests.component.test_memory_given_back", str(tmp_path)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True)
    taken, kept = map(float, ended.stdout.split())
    assert taken > CROWD * 0.4, "the crowd took nothing, so nothing was tried"
    assert kept < taken / 3, f"{kept:.0f} of {taken:.0f} MiB stayed"


if __name__ == "__main__":
    asyncio.run(measure(Path(sys.argv[1])))

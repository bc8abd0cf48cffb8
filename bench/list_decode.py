"""`python -m bench.list_decode`: a list of 100,000 pods of 5.8 KB each, over HTTP in pages, into projections.

Three processes, so that none pays for another's memory: a server that holds the pages ready made; one that lists with
`HttpCluster`; one that reads the same bytes and gives them to `json.loads`, the peer of the same run. Printed: seconds, CPU
seconds, growth of resident memory, the pause of a full garbage collection with all that in memory, and the ratio of the two. An
informer does the same once more: it freezes the heap after its first list, so its pause is short. Exit code 0 also on MISS.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from rich.console import Console

from bench.bars import Bar, describe, print_lines, render, this_machine
from bench.pods import pod_bytes
from remuda.api.kubernetes.core_v1 import Pod
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.transport import Request, TransportOptions
from remuda.kube.runtime.informer import Informer

PODS, PAGE = 100_000, 500
SEED = 2026
DISTINCT = 5_000  # pods that are generated; the others are these under other names, of the same size


class Measured(msgspec.Struct):
    seconds: float
    cpu: float
    grown_mb: float
    peak_mb: float
    objects: int
    collecting: float


# The server.


def make_pages(pods: int, compress: bool) -> tuple[list[bytes], float]:
    """Ready made bodies, and the seconds it took to compress them."""
    random = Random(SEED)
    models = [pod_bytes(number, random) for number in range(min(pods, DISTINCT))]
    pages, spent = [], 0.0
    for first in range(0, pods, PAGE):
        last = min(first + PAGE, pods)
        items = [
            models[number % len(models)].replace(b"pretrain-", b"pre-%04d-" % (number // len(models)))
            for number in range(first, last)
        ]
        more = b',"continue":"%d","remainingItemCount":%d' % (last, pods - last) if last < pods else b""
        body = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"99"%b},"items":[%b]}' % (
            more,
            b",".join(items),
        )
        if compress:
            began = time.process_time()
            body = gzip.compress(body, 1)  # the level kube-apiserver uses
            spent += time.process_time() - began
        pages.append(body)
    return pages, spent


async def serve(pods: int, compress: bool) -> None:
    pages, spent = make_pages(pods, compress)
    encoding = b"Content-Encoding: gzip\r\n" if compress else b""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                query = parse_qs(urlsplit(head.split(b" ", 2)[1].decode()).query)
                if "watch" in query:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
                    continue
                body = pages[int(query.get("continue", ["0"])[0]) // PAGE]
                size = b"Content-Length: %d\r\n" % len(body)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + encoding + size + b"\r\n")
                writer.write(body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    said = {
        "port": server.sockets[0].getsockname()[1],
        "megabytes": sum(map(len, pages)) / 1e6,
        "compressing": spent,
    }
    print(json.dumps(said), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until whoever started it is gone


# The clients.


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def pause() -> float:
    began = time.perf_counter()
    gc.collect()
    return time.perf_counter() - began


async def measure(what: str, port: int, compress: bool) -> Measured:
    options = TransportOptions(page_size=PAGE, has_compression=compress, timeout_s=60.0)
    async with HttpCluster(base_url=f"http://127.0.0.1:{port}", options=options) as cluster:
        await cluster.transport.call(Request(method="GET", path="/warm", query={"continue": "0"}))
        gc.collect()
        before, began, cpu = resident_mb(), time.perf_counter(), time.process_time()
        kept: Any
        if what == "list":
            kept = (await cluster.list(Pod)).items
        elif what == "json":
            kept = await _plain(cluster)
        else:
            kept = informer = Informer(cluster, Pod)
            task = asyncio.create_task(informer.run())
            await informer.synced()
            task.cancel()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        grown = resident_mb() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Measured(seconds, cpu, grown, peak, len(kept), pause())


async def _plain(cluster: HttpCluster) -> list[Any]:
    kept: list[Any] = []
    query = {"limit": str(PAGE)}
    while True:
        body = await cluster.transport.call(Request(method="GET", path="/api/v1/pods", query=query))
        page = json.loads(body)
        kept += page["items"]
        if not page["metadata"].get("continue"):
            return kept
        query["continue"] = page["metadata"]["continue"]


# The run.


@contextmanager
def a_server(pods: int, compress: bool) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.list_decode", "serve", f"--pods={pods}", *(["--gzip"] if compress else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def measured(what: str, port: int, compress: bool) -> Measured:
    command = [sys.executable, "-m", "bench.list_decode", what, f"--port={port}", *(["--gzip"] if compress else [])]
    return msgspec.json.decode(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout, type=Measured)


def run(pods: int, repeat: int, compress: bool) -> None:
    console = Console()
    console.print(describe(this_machine()), highlight=False, soft_wrap=True)
    with a_server(pods, compress) as server:
        console.print(
            f"{pods} pods, {server['megabytes']:.0f} MB in pages of {PAGE}, seed {SEED}",
            highlight=False,
            soft_wrap=True,
        )
        if compress:
            console.print(
                f"gzip level 1: {server['compressing']:.1f} CPU seconds of the server", highlight=False, soft_wrap=True
            )
        runs = {
            what: [measured(what, server["port"], compress) for _ in range(repeat)]
            for what in ("list", "json", "informer")
        }
    bars = []
    for what, found in runs.items():
        assert {each.objects for each in found} == {pods}
        is_bar = what == "list" and pods == PODS
        bars += [
            Bar(what, "wall", [each.seconds for each in found], 8.0 if is_bar else None),
            Bar(what, "cpu", [each.cpu for each in found]),
            Bar(what, "memory grown", [each.grown_mb for each in found], 1000.0 if is_bar else None, "MB"),
            Bar(what, "memory peak", [each.peak_mb for each in found], None, "MB"),
            Bar(what, "a full collection", [each.collecting for each in found]),
        ]
    console.print(render(bars))
    times, memory = (
        sum(getattr(each, field) for each in runs["list"]) / sum(getattr(each, field) for each in runs["json"])
        for field in ("cpu", "grown_mb")
    )
    console.print(
        f"  list + decode against fetch + json.loads: {times:.2f} x the CPU, {memory:.2f} x the memory", soft_wrap=True
    )
    print_lines(console, bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="run", choices=["run", "serve", "list", "json", "informer"])
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--gzip", action="store_true", help="compressed answers")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    if given.what == "run":
        run(given.pods, given.repeat, given.gzip)
    elif given.what == "serve":
        asyncio.run(serve(given.pods, given.gzip))
    else:
        sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(measure(given.what, given.port, given.gzip))))


if __name__ == "__main__":
    main()

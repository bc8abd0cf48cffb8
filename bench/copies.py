"""`make bench-copies`: a checkpoint of 1 GiB goes to another node while a rank trains. What does the rank feel, and how fast is
it?

Three processes on this machine: a rank that computes steps, the node that gives the copy, and the node that takes it (its door,
its digest, its disk). All three share these cores, so the slow-down is more than a real node would see: there the taker is
elsewhere. Each round measures the steps alone, then during a copy at the default bandwidth; then the copy as fast as it goes,
and the same bytes over a bare TLS connection that nobody hashes or writes. Figures gate nothing.

--size MIB    of the checkpoint       --rounds N   --json FILE  every sample
--quick       32 MiB, one round: it shows that it works
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from bench.bars import Bar, report
from bench.onerun import scratch
from remuda.agent.copies.byte_pace import BytePace
from remuda.agent.copies.copy_dialler import CopyDialler
from remuda.agent.copies.copy_ports import JobKey
from remuda.agent.copies.copy_service import CopyService
from remuda.agent.copies.copy_store import CopyLimits, CopyStore
from remuda.agent.copies.job_files import JobCheckpointFiles
from remuda.api.meta import ObjectMeta
from remuda.api.training import Member, TrainingJob, TrainingJobSpec, TrainingJobStatus
from remuda.core.health.peer_vouching import PeerPlace
from remuda.kube.cluster import Cluster
from remuda.link.copy_wire import BUFFER, CHUNK, VERB, widen_copy_wire_streams
from remuda.link.peer_certificates import PeerAuthority, PeerKey
from remuda.link.peer_door import PeerDoor
from remuda.runtime.copies_endpoint import CopyConfig

KEY = JobKey("default", "job", "0123456789ab")
GIVER, TAKER = "giver", "taker"
STEP_BYTES = 8 << 20
BARE = b"bare\n"
ALONE_S = 4.0


def the_job() -> TrainingJob:
    member = Member(0, "worker", "pod", "uid", GIVER)
    return TrainingJob(
        metadata=ObjectMeta(name=KEY.name, namespace=KEY.namespace, uid=KEY.uid),
        spec=TrainingJobSpec(roles=[]),
        status=TrainingJobStatus(attempt=10**6, members=[member]),
    )


def parts(root: Path, node: str, bandwidth: float) -> tuple[CopyService, BytePace]:
    files = JobCheckpointFiles(root / "checkpoints", ThreadPoolExecutor(4))
    files.prepare()
    store = CopyStore(root / "copies", CopyLimits(1 << 50, 1 << 40))
    store.open()
    pace = BytePace(bandwidth)
    return CopyService(node, files, store, lambda namespace, name: the_job(), BytePace(0), pace), pace


# --- the other processes ------------------------------------------------------------------------------------------------


async def take_copies(root: Path) -> None:
    """The taker. Says its request, is told its certificate, says its port."""
    service, _ = parts(root, TAKER, 0)
    key = PeerKey()
    print(json.dumps({"csr": key.csr}), flush=True)
    told = json.loads(sys.stdin.readline())

    async def nobody() -> str:
        return "unsure"

    async def bare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str) -> None:
        reader, writer = await widen_copy_wire_streams(reader, writer)
        writer.write(b"go\n")
        while await reader.read(CHUNK):
            pass

    door = PeerDoor(nobody)
    door.further = {VERB: service.serve, BARE: bare}
    door.tls, _ = key.contexts(told["certificate"], [told["ca"]])
    print(json.dumps({"port": await door.start("127.0.0.1", 0)}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def train() -> None:
    """The rank: steps of some milliseconds of computing, each told with its moment."""
    data = os.urandom(STEP_BYTES)
    while True:
        began = time.monotonic()
        hashlib.sha256(data).digest()
        print(f"{began:.6f} {time.monotonic() - began:.6f}", flush=True)


# --- the giver, and who measures ------------------------------------------------------------------------------------------


class Rank:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.copies", "--part=train"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._steps: list[tuple[float, float]] = []

    async def read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, stream.readline):
            began, took = line.split()
            self._steps.append((float(began), float(took)))

    def between(self, begin: float, end: float) -> list[float]:
        return [took for began, took in self._steps if begin <= began <= end]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


async def bare_copy(file: Path, port: int, tls: ssl.SSLContext) -> float:
    """Seconds for the same bytes over the same door, and nothing done with them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=TAKER, limit=BUFFER)
    writer.write(BARE)
    await reader.readline()
    began = time.monotonic()
    with file.open("rb") as source:
        while chunk := await asyncio.to_thread(source.read, CHUNK):
            writer.write(chunk)
            await writer.drain()
    took = time.monotonic() - began
    writer.transport.abort()
    return took


async def measure_copies(root: Path, size: int, rounds: int, console: Console) -> list[Bar]:
    taker = subprocess.Popen(  # noqa: ASYNC220 - nothing is measured yet
        [sys.executable, "-m", "bench.copies", "--part=take", f"--root={root / TAKER}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    rank: Rank | None = None
    try:
        assert taker.stdin is not None
        assert taker.stdout is not None
        authority, key = PeerAuthority(time.time), PeerKey()
        csr = json.loads(await asyncio.to_thread(taker.stdout.readline))["csr"]
        certificate = authority.sign(TAKER, csr)
        taker.stdin.write(json.dumps({"certificate": certificate, "ca": authority.ca}) + "\n")
        taker.stdin.flush()
        port = json.loads(await asyncio.to_thread(taker.stdout.readline))["port"]
        _, asker = key.contexts(authority.sign(GIVER, key.csr), [authority.ca])
        diallers = {}
        for name, bandwidth in (("default", CopyConfig().bandwidth), ("free", 0.0)):
            service, pace = parts(root / GIVER, GIVER, bandwidth)
            places = {TAKER: PeerPlace(TAKER, "127.0.0.1", port)}
            diallers[name] = CopyDialler(service, cast(Cluster, None), lambda: asker, lambda: places, pace)  # noqa: B023
        rank = Rank()
        reading = asyncio.ensure_future(rank.read())
        ratios, default_s, free_s, bare_s, step_s = [], [], [], [], []
        for number in range(rounds):
            file = write_checkpoint(root / GIVER / "checkpoints" / KEY.directory, number, size)
            begin = time.monotonic()
            await asyncio.sleep(ALONE_S)
            alone = rank.between(begin, time.monotonic())
            begin = time.monotonic()
            await diallers["default"].put(TAKER, KEY, 0, 3 * number, 1)
            default_s.append(time.monotonic() - begin)
            beside = rank.between(begin, time.monotonic())
            ratios.append(statistics.mean(beside) / statistics.mean(alone))
            step_s += alone
            rank.stop()
            await reading
            write_checkpoint(root / GIVER / "checkpoints" / KEY.directory, number, size, offset=1)
            begin = time.monotonic()
            await diallers["free"].put(TAKER, KEY, 0, 3 * number + 1, 1)
            free_s.append(time.monotonic() - begin)
            bare_s.append(await bare_copy(file, port, asker))
            rank = Rank()
            reading = asyncio.ensure_future(rank.read())
            console.print(f"round {number + 1} of {rounds}: {len(alone)} steps alone, {len(beside)} beside the copy")
        rank.stop()
        await reading
    finally:
        if rank is not None:
            rank.stop()
        taker.terminate()
        taker.wait()
    mib = size / (1 << 20)

    def speed(seconds: list[float]) -> list[float]:
        return [mib / s for s in seconds]

    group = f"a checkpoint of {mib:g} MiB"
    return [
        Bar(group, "step beside the copy / step alone", ratios, None, "x"),
        Bar(group, "step alone", step_s, None, "s"),
        Bar(group, "copy beside the rank, default bandwidth", speed(default_s), None, "MiB/s"),
        Bar(group, "copy alone, no bound", speed(free_s), None, "MiB/s"),
        Bar(group, "bare TLS alone", speed(bare_s), None, "MiB/s"),
        Bar(group, "copy alone / bare TLS alone", [b / f for b, f in zip(bare_s, free_s, strict=True)], None, "x"),
    ]


def write_checkpoint(folder: Path, number: int, size: int, offset: int = 0) -> Path:
    step, block = 3 * number + offset, os.urandom(1 << 20)
    place = folder / "rank-0"
    place.mkdir(parents=True, exist_ok=True)
    digest, file = hashlib.sha256(), place / f"step-{step}.ckpt"
    with file.open("wb") as data:
        for index in range(size >> 20):
            piece = index.to_bytes(8, "big") + block[8:]
            digest.update(piece)
            data.write(piece)
    body = {"step": step, "bytes": size, "sha256": digest.hexdigest()}
    (place / f"step-{step}.json").write_text(json.dumps(body), encoding="ascii")
    return file


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, metavar="MIB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, default=Path(), help=argparse.SUPPRESS)
    asked: Any = parser.parse_args(words)
    if asked.part == "train":
        train()
    elif asked.part == "take":
        asyncio.run(take_copies(asked.root))
    else:
        size, rounds = (32, 1) if asked.quick else (asked.size, asked.rounds)
        with scratch() as root:
            return report(lambda c: asyncio.run(measure_copies(root, size << 20, rounds, c)), asked.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

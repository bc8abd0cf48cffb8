"""`make bench-hostile`: a healthy gang trains while a second tenant does harm. Does anybody notice?

On a cluster of its own (`remuda up`, a process with 1,024 descriptors and bounded memory) 8 ranks train as processes in one
namespace. From another one, a second process does one abuse at a time (`hostile_abuses`) for 60 s; the first tenant measures
beside it (`hostile_watch`), and the same before any abuse. Exit code 0 also on MISS; 1 when something that must hold did not
(the cluster died).

Bars: no lease older than the age at which a node fences itself, no pod of the gang replaced, p99 of a 1 KB write below 0.5 s,
memory bounded while it lasts and given back after.

--only ABUSE  one abuse alone       --quick      5 s each: it shows that it works
--seconds N   of each abuse         --json FILE  every sample
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from rich.console import Console

from bench.bars import Bar, report
from bench.gang import make_job
from bench.hostile_abuses import ABUSES
from bench.hostile_targets import open_target
from bench.hostile_watch import FirstTenant, Noticed
from bench.marks import Broken
from bench.node import at
from bench.onerun import scratch

RANKS, NODES = 8, 2
LEASE_S = 8.0
DESCRIPTORS = 1_024
MEMORY = 8 << 30  # of address space: an abuse that eats memory ends the cluster, not the machine
PEAK_MIB, KEPT_MIB = 512, 128
SETTLE_S = 15.0
START_S = 180.0


class Run(msgspec.Struct, frozen=True):
    abuse: str
    noticed: Noticed
    before_mib: float
    after_mib: float
    replaced: int
    steps: int
    answers: dict[str, int]


def start_cluster(state: Path) -> subprocess.Popen[bytes]:
    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    remuda = str(Path(sys.executable).with_name("remuda"))
    command = [remuda, "--state", str(state), "up", "--nodes", str(NODES), "--lease", f"{LEASE_S:g}", "--port", "0"]
    with (state.parent / "up.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=bound, start_new_session=True)


def start_abuse(kubeconfig: Path, namespace: str, abuse: str, seconds: float, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.hostile_abuses", str(kubeconfig), namespace, abuse, str(seconds)]
    with log.open("wb") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)


@asynccontextmanager
async def running_cluster(state: Path) -> AsyncIterator[int]:
    """The pid of `remuda up` on that directory."""
    up = start_cluster(state)
    try:
        ends = time.monotonic() + START_S
        while not (state / "kubeconfig").exists():
            if up.poll() is not None or time.monotonic() > ends:
                raise Broken(f"remuda up did not start: {(state.parent / 'up.log').read_text()[-2000:]}")
            await asyncio.sleep(0.1)
        yield up.pid
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(60)
        except subprocess.TimeoutExpired:
            up.kill()


async def measure_abuse(
    tenant: FirstTenant, kubeconfig: Path, number: int, abuse: str, seconds: float, root: Path
) -> Run:
    before, mib = await tenant.gang(), tenant.rss_mib()
    namespace = f"hostile-{number}"
    harm: subprocess.Popen[bytes] | None = None
    if abuse:
        await tenant.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        harm = start_abuse(kubeconfig, namespace, abuse, seconds, root / f"{abuse}.log")
    ends = time.monotonic() + seconds
    try:
        noticed = await tenant.notice(lambda: time.monotonic() > ends)
        answers: dict[str, int] = {}
        if harm is not None:
            said = (await asyncio.to_thread(harm.communicate, None, 150))[0].splitlines()
            answers = json.loads(said[-1]) if said else {}
            if not answers:  # nothing was tried, so nothing was noticed
                raise Broken(f"{abuse} was not carried out: {(root / f'{abuse}.log').read_text()[-2000:]}")
    finally:
        if harm is not None and harm.poll() is None:
            harm.kill()
            harm.wait()
    await asyncio.sleep(SETTLE_S if abuse else 0)
    after = await tenant.gang()
    replaced = sum(a != b for a, b in zip(before.uids, after.uids, strict=True)) + (after.attempt - before.attempt)
    return Run(abuse, noticed, mib, tenant.rss_mib(), replaced, after.step - before.step, answers)


def bars_of(run: Run, calm: Run) -> list[Bar]:
    group = f"{run.abuse}: " + (
        ", ".join(f"{code} x{count}" for code, count in sorted(run.answers.items())) or "no answer"
    )
    noticed, quiet = run.noticed, calm.noticed
    return [
        Bar(group, "oldest lease of a node (it fences itself there)", [noticed.oldest_lease_s], LEASE_S * 2 / 3),
        Bar(group, "pods of the gang replaced, attempts raised", [float(run.replaced)], 1, "pods"),
        Bar(group, "1 KB write, p99", [at(noticed.writes, 0.99)], 0.5),
        Bar(group, "that, against the calm before", [at(noticed.writes, 0.99) / at(quiet.writes, 0.99)], None, "x"),
        Bar(group, "memory above what it was, at most", [noticed.peak_mib - run.before_mib], PEAK_MIB, "MiB"),
        Bar(group, "memory above what it was, after", [run.after_mib - run.before_mib], KEPT_MIB, "MiB"),
        Bar(group, "longest stall", [max(noticed.livez)]),
        Bar(group, "heartbeat, p99", [at(noticed.heartbeats, 0.99)]),
        Bar(group, "own requests that failed", [float(noticed.failures)], None, ""),
        Bar(group, "steps the gang took", [float(run.steps)], None, ""),
    ]


def calm_bars(calm: Run) -> list[Bar]:
    noticed = calm.noticed
    return [
        Bar("without abuse", "oldest lease of a node", [noticed.oldest_lease_s]),
        Bar("without abuse", "1 KB write, p99", [at(noticed.writes, 0.99)]),
        Bar("without abuse", "longest stall", [max(noticed.livez)]),
        Bar("without abuse", "heartbeat, p99", [at(noticed.heartbeats, 0.99)]),
        Bar("without abuse", "resident memory", [calm.before_mib], None, "MiB"),
    ]


async def run_all(root: Path, abuses: Sequence[str], seconds: float, say: Any) -> list[Bar]:
    state = root / "state"
    async with running_cluster(state) as pid, open_target(state / "kubeconfig") as target:
        connector = aiohttp.UnixConnector(str(state / "api.sock"))
        async with aiohttp.ClientSession("http://remuda", connector=connector) as local:
            tenant = FirstTenant(target, local, pid)
            await tenant.prepare()
            await tenant.start_gang(make_job(RANKS, root / "marks"), START_S)
            calm = await measure_abuse(tenant, state / "kubeconfig", 0, "", min(seconds, 20.0), root)
            bars = calm_bars(calm)
            for number, abuse in enumerate(abuses, start=1):
                run = await measure_abuse(tenant, state / "kubeconfig", number, abuse, seconds, root)
                p99 = at(run.noticed.writes, 0.99)
                say(
                    f"{abuse}: write p99 {p99 * 1000:.0f} ms, oldest lease {run.noticed.oldest_lease_s:.1f} s, longest stall "
                    f"{max(run.noticed.livez) * 1000:.0f} ms, {run.replaced} replaced, memory {run.before_mib:.0f} -> "
                    f"{run.noticed.peak_mib:.0f} -> {run.after_mib:.0f} MiB; load {os.getloadavg()[0]:.2f}"
                )
                bars += bars_of(run, calm)
            return bars


def measure(options: argparse.Namespace, console: Console) -> list[Bar]:
    abuses = [options.only] if options.only else list(ABUSES)
    seconds = 5.0 if options.quick else options.seconds

    def say(words: str) -> None:
        console.print(words, highlight=False, soft_wrap=True)

    with scratch() as root:
        return asyncio.run(run_all(root, abuses, seconds, say))


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-hostile", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=tuple(ABUSES), help="one abuse alone")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each abuse (default 60)")
    parser.add_argument("--quick", action="store_true", help="5 s each: does it work at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    options = parser.parse_args()
    return report(lambda console: measure(options, console), options.json)


if __name__ == "__main__":
    sys.exit(main())

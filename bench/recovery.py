"""`make bench-recovery`: how fast a gang is back after a fault, against bars and against its peers in the same run.

  real        64 standard-library ranks as processes, one GPU each: a process is killed; a device fails and a spare takes over;
              beside it the same 64 commands started bare, and all pods of the same gang deleted and made again
  simulated   512 pods on 65 nodes in this process (64 full ones, and one for the spare)

Each repetition starts from nothing: its own cluster, its own bare start, so that no number profits from the one before. Exit
code 0 also on MISS; 1 when something that must hold did not (a pod that changed, a rank that ran twice).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

import msgspec
import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.bars import Bar, report
from bench.gang import Gang, Times, make_cluster, make_job, rank_command
from bench.marks import Broken, start_bare, wait_for_marks
from bench.onerun import scratch
from remuda.embedded.node.container_environment import base_process_environment
from remuda.runtime.up_config import ClusterConfig

RANKS, NODES = 64, 16
PODS = 512
TIMEOUT_S = 60.0
KILLED, FAILED = "process killed", "device failed (spare)"


class RealRun(msgspec.Struct, frozen=True):
    """One repetition on real processes; seconds from the fault signal to the last rank's mark of the new attempt."""

    bare: float
    killed: Times
    killed_up: float
    failed: Times
    failed_up: float
    recreated: float


class SimulatedRun(msgspec.Struct, frozen=True):
    killed: Times
    failed: Times


def run_real(root: Path, ranks: int) -> RealRun:
    killed, killed_up, failed, failed_up, recreated = asyncio.run(_run_gang(root, ranks))
    # After the cluster has ended: the bare start has the machine to itself.
    folder = root / "bare"
    folder.mkdir()
    env = base_process_environment(os.environ, os.path.dirname(sys.executable))
    env["PYTHONPATH"] = str(root / "bin" / "remuda-launch.pyz" / "remuda" / "launch" / "pythonpath")
    bare = start_bare(rank_command(), env, folder, ranks, TIMEOUT_S)
    return RealRun(bare, killed, killed_up, failed, failed_up, recreated)


async def _run_gang(root: Path, ranks: int) -> tuple[Times, float, Times, float, float]:
    marks = root / "marks"
    async with make_cluster(ClusterConfig(nodes=NODES), root) as cluster:
        gang = Gang(cluster, TIMEOUT_S)
        await gang.start(make_job(ranks, marks))
        killed = await gang.kill_process(ranks // 3)
        killed_up = await _all_up(marks, killed.began, killed.attempt, ranks)
        await gang.settle()
        failed = await gang.fail_device(ranks // 2)
        failed_up = await _all_up(marks, failed.began, failed.attempt, ranks)
        await gang.settle()
        began, attempt = await gang.recreate()
        recreated = await _all_up(marks, began, attempt, ranks)
        return killed, killed_up, failed, failed_up, recreated


async def _all_up(marks: Path, began: float, attempt: int, ranks: int) -> float:
    found = await wait_for_marks(marks, attempt, ranks, TIMEOUT_S)
    steps = {mark.resumed for mark in found}
    if len(steps) != 1:
        raise Broken(f"ranks of attempt {attempt} resumed from different steps: {sorted(steps)}")
    return max(mark.time for mark in found) - began


async def run_simulated(root: Path, pods: int) -> SimulatedRun:
    nodes = -(-pods // 8) + 1
    async with make_cluster(ClusterConfig(nodes=nodes, runtime="simulated"), root) as cluster:
        gang = Gang(cluster, TIMEOUT_S)
        await gang.start(make_job(pods, root / "marks"))
        killed = await gang.kill_process(pods // 3)
        await gang.settle()
        failed = await gang.fail_device(pods // 2)
        return SimulatedRun(killed, failed)


def real_bars(runs: list[RealRun], ranks: int) -> list[Bar]:
    def bars(fault: str, times: list[Times], up: list[float]) -> list[Bar]:
        group = f"{ranks} ranks, {fault}"
        return [
            Bar(group, "signal -> all stopped", [t.stopped for t in times], 1.0),
            Bar(group, "signal -> barrier open", [t.opened for t in times]),
            Bar(group, "signal -> all run the new attempt", up, 5.0),
            Bar(group, "that, against a bare start", [s / r.bare for s, r in zip(up, runs, strict=True)], 2.0, "x"),
        ]

    peers = f"{ranks} ranks, beside it"
    return [
        *bars(KILLED, [r.killed for r in runs], [r.killed_up for r in runs]),
        *bars(FAILED, [r.failed for r in runs], [r.failed_up for r in runs]),
        Bar(peers, "the same commands started bare", [r.bare for r in runs]),
        Bar(peers, "pods deleted and made again", [r.recreated for r in runs]),
        Bar(peers, "that, against the restart in place", [r.recreated / r.killed_up for r in runs], None, "x"),
    ]


def simulated_bars(runs: list[SimulatedRun], pods: int) -> list[Bar]:
    bars: list[Bar] = []
    for fault, times in ((KILLED, [r.killed for r in runs]), (FAILED, [r.failed for r in runs])):
        group = f"{pods} simulated pods, {fault}"
        bars += [
            Bar(group, "signal -> barrier open", [t.opened for t in times], 3.0),
            Bar(group, "of that: detect", [t.detected for t in times]),
            Bar(group, "of that: stop", [t.stopped - t.detected for t in times]),
            Bar(group, "of that: open", [t.opened - t.stopped for t in times]),
        ]
    return bars


def measure(options: argparse.Namespace, console: Console) -> list[Bar]:
    real: list[RealRun] = []
    simulated: list[SimulatedRun] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        if not options.only or options.only == "real":
            task = shown.add_task(f"{options.ranks} real ranks", total=options.repeat)
            for number in range(options.repeat):
                with scratch() as root:
                    real.append(run_real(root, options.ranks))
                shown.advance(task)
                run = real[-1]
                console.print(
                    f"real {number + 1}/{options.repeat}: bare {run.bare:.2f} s, process killed {run.killed_up:.2f} s, "
                    f"device failed {run.failed_up:.2f} s, recreated {run.recreated:.2f} s; load {os.getloadavg()[0]:.2f}",
                    highlight=False,
                    soft_wrap=True,
                )
        if not options.only or options.only == "simulated":
            task = shown.add_task(f"{options.pods} simulated pods", total=options.repeat)
            for number in range(options.repeat):
                with scratch() as root:
                    simulated.append(asyncio.run(run_simulated(root, options.pods)))
                shown.advance(task)
                last = simulated[-1]
                console.print(
                    f"simulated {number + 1}/{options.repeat}: process killed {last.killed.opened * 1000:.0f} ms, "
                    f"device failed {last.failed.opened * 1000:.0f} ms; load {os.getloadavg()[0]:.2f}",
                    highlight=False,
                    soft_wrap=True,
                )
    return (real_bars(real, options.ranks) if real else []) + (
        simulated_bars(simulated, options.pods) if simulated else []
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-recovery", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of each part (default 5)")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"real ranks (default {RANKS})")
    parser.add_argument("--pods", type=int, default=PODS, help=f"simulated pods (default {PODS})")
    parser.add_argument("--only", choices=("real", "simulated"), help="one part alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return report(lambda console: measure(options, console), options.json)


if __name__ == "__main__":
    sys.exit(main())

"""`make bench-node`: what nodes cost, how fast a device is handed out, how many signals a manager takes. Against bars.

  fleet       1,000 simulated nodes x 8 GPUs with 8,000 pods in one process: CPU, memory, leases (`node_fleet`)
  allocate    Allocate over the plugin's gRPC socket, beside an empty call on the same one (`node_allocate`)
  signals     10,000 signals/s from agents' streams to durable verdicts, the manager on one core (`node_signals`)

Each repetition is a process of its own. Exit code 0 also on MISS; 1 when something that must hold did not (a pod that does not
run, a device held twice, a transition lost). `--quick` runs all of it in small: it shows that it works, and measures nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec

from bench.bars import Bar
from bench.marks import Broken
from bench.node_agents import BIN_S
from bench.node_allocate import AllocateAsk, AllocateRun
from bench.node_fleet import FleetAsk, FleetRun
from bench.node_signals import SignalsAsk, SignalsRun
from bench.parts import Parts, main

PARTS = ("fleet", "allocate", "signals")


class Sizes(msgspec.Struct, frozen=True):
    fleet: FleetAsk
    allocate: AllocateAsk
    signals: SignalsAsk


FULL = Sizes(
    FleetAsk(nodes=1000, window_s=30.0),
    AllocateAsk(calls=1000),
    SignalsAsk(nodes=1000, rate=10_000, seconds=20.0),
)
QUICK = Sizes(
    FleetAsk(nodes=4, window_s=3.0, lease_s=8.0, timeout_s=300.0),
    AllocateAsk(calls=20),
    SignalsAsk(nodes=8, rate=400, seconds=1.0, transitions=0.05),
)


def at(samples: Sequence[float], part: float) -> float:
    """The sample below which that part of them lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def fleet_bars(runs: list[FleetRun]) -> list[Bar]:
    first = runs[0]
    group = f"{first.nodes:,} simulated nodes, {first.pods:,} pods"
    filling = f"{group}: from nothing"
    fence = first.lease_s * 2 / 3
    return [
        Bar(group, "CPU while nothing happens", [r.cores for r in runs], 1.0, "cores"),
        Bar(group, "resident memory", [r.rss_mib for r in runs], 1536, "MiB"),
        Bar(group, "most it ever was", [r.peak_mib for r in runs], None, "MiB"),
        Bar(group, f"leases that ran out ({first.lease_s:g} s)", [r.expired for r in runs], 1, "leases"),
        Bar(group, "oldest lease (a node fences itself there)", [r.lease_age for r in runs], fence),
        Bar(group, f"latest renewal, against every {first.lease_s / 4:g} s", [r.late for r in runs]),
        Bar(group, "renewals", [r.renewals / r.window for r in runs], None, "/s"),
        Bar(group, "longest garbage collection", [r.gc_pause for r in runs]),
        Bar(filling, "nodes registered, GPUs offered", [r.registered for r in runs]),
        Bar(filling, "pods made -> all Running (by the scheduler)", [r.running for r in runs]),
        Bar(filling, "CPU of that, per pod", [r.running_cpu / r.pods * 1000 for r in runs], None, "ms"),
        Bar(filling, "oldest lease meanwhile", [r.filling_lease_age for r in runs]),
        Bar(filling, "leases that ran out meanwhile", [r.filling_expired for r in runs], None, "leases"),
        Bar(filling, "store on disk", [r.store_mib for r in runs], None, "MiB"),
    ]


def allocate_bars(runs: list[AllocateRun]) -> list[Bar]:
    group = "Allocate over the socket"

    def ms(name: str, part: float, samples: Callable[[AllocateRun], list[float]], limit: float | None = None) -> Bar:
        return Bar(group, name, [at(samples(r), part) * 1000 for r in runs], limit, "ms")

    return [
        ms("round trip, median", 0.5, lambda r: r.allocate, 2.0),
        ms("round trip, p99", 0.99, lambda r: r.allocate),
        ms("empty call, median", 0.5, lambda r: r.empty),
        ms("empty call, p99", 0.99, lambda r: r.empty),
        Bar(
            group,
            "round trip, against an empty call",
            [at(r.allocate, 0.5) / at(r.empty, 0.5) for r in runs],
            None,
            "x",
        ),
        ms("a pod admitted, median", 0.5, lambda r: r.admit),
        ms("a pod admitted, p99", 0.99, lambda r: r.admit),
    ]


def signals_bars(runs: list[SignalsRun], ask: SignalsAsk) -> list[Bar]:
    group = f"{ask.rate:,.0f} signals/s from {ask.nodes:,} nodes"
    second = round(1 / BIN_S)

    def growth(run: SignalsRun) -> float:
        """What the last third of the time has more of a backlog than the first, in signals."""
        third = max(1, len(run.backlog) // 3)
        return (sum(run.backlog[-third:]) - sum(run.backlog[:third])) / third

    return [
        Bar(group, "offered", [r.offered for r in runs], None, "/s"),
        Bar(group, "heard and queued to be judged", [r.heard for r in runs], None, "/s"),
        Bar(group, "manager's CPU at that rate", [r.cpu_per_signal * ask.rate for r in runs], 1.0, "cores"),
        Bar(group, "CPU per signal", [r.cpu_per_signal * 1e6 for r in runs], None, "us"),
        Bar(group, "backlog, the most", [max(r.backlog) for r in runs], None, "signals"),
        Bar(group, "backlog grew by (a tenth of a second's)", [growth(r) for r in runs], ask.rate / second, "signals"),
        Bar(group, "nodes waiting to be judged, the most", [max(r.waiting) for r in runs], None, "nodes"),
        Bar(group, "transitions that did not get durable", [r.transitions - r.durable for r in runs], 1, "of them"),
        Bar(group, "transitions", [r.durable / r.window for r in runs], None, "/s"),
        Bar(group, "said -> durable, median", [at(r.latency, 0.5) * 1000 for r in runs], None, "ms"),
        Bar(group, "said -> durable, p99", [at(r.latency, 0.99) * 1000 for r in runs], None, "ms"),
        Bar(group, "a bare fsync there, median", [at(r.fsync, 0.5) * 1000 for r in runs], None, "ms"),
        Bar(group, "a bare fsync there, p99", [at(r.fsync, 0.99) * 1000 for r in runs], None, "ms"),
        Bar(group, "manager's resident memory", [r.rss_mib for r in runs], None, "MiB"),
    ]


def said_fleet(run: FleetRun) -> str:
    return (
        f"{run.cores:.2f} cores, {run.rss_mib:.0f} MiB, oldest lease {run.lease_age:.1f} s, "
        f"registered {run.registered:.1f} s, all Running {run.running:.1f} s"
    )


def said_allocate(run: AllocateRun) -> str:
    return f"median {at(run.allocate, 0.5) * 1000:.2f} ms, an empty call {at(run.empty, 0.5) * 1000:.2f} ms"


def said_signals(run: SignalsRun) -> str:
    tenths = run.backlog[:: max(1, len(run.backlog) // 10)]
    return (
        f"offered {run.offered:,.0f}/s, heard {run.heard:,.0f}/s, {run.window_cpu / run.window:.2f} cores, "
        f"durable after {at(run.latency, 0.5) * 1000:.0f} ms, backlog over time {' '.join(map(str, tenths))}"
    )


def check_signals(run: SignalsRun, ask: SignalsAsk) -> SignalsRun:
    if run.streams != ask.nodes:
        raise Broken(f"only {run.streams} of {ask.nodes} streams were open when the first signal was said")
    if not run.latency:
        raise Broken("no transition became durable")
    return run


def measure(parts: Parts) -> list[Bar]:
    sizes = QUICK if parts.is_quick else FULL
    fleet = parts.run("fleet", "bench.node_fleet", sizes.fleet, FleetRun, said_fleet, 900.0)
    allocate = parts.run("allocate", "bench.node_allocate", sizes.allocate, AllocateRun, said_allocate, 300.0)
    signals = parts.run("signals", "bench.node_signals", sizes.signals, SignalsRun, said_signals, 300.0)
    for run in signals:
        check_signals(run, sizes.signals)
    return [
        *(fleet_bars(fleet) if fleet else ()),
        *(allocate_bars(allocate) if allocate else ()),
        *(signals_bars(signals, sizes.signals) if signals else ()),
    ]


if __name__ == "__main__":
    sys.exit(main("bench-node", __doc__, PARTS, 3, measure))

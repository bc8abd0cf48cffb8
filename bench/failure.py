"""`make bench-failure`: what a storm of failures costs the manager, and how fast it takes nodes out of use. Against bars.

  signals       10,000 signals/s for a minute from 5,000 nodes' streams to durable verdicts, the whole manager on one core: every
                transition is an incident, and a policy lets a tenth of the nodes be under remedy (`node_signals`)
  quarantine    a device on each of 750 of 1,500 nodes fails at once, through a real kube-apiserver (`failure_quarantine`),
                under a policy that lets all of them be taken out, and
  limit         under one that lets a tenth of the 1,500: never more at any time, the rest held back with the reason

Each repetition is a process of its own. Exit code 0 also on MISS; 1 when something that must hold did not (a transition lost, a
limit exceeded, a device with two incidents, an order given twice). The last two need `make kube` and are left out without it.
`--quick` runs all of it in small: it shows that it works, and measures nothing.
"""

from __future__ import annotations

import statistics
import sys

import msgspec

from bench.bars import Bar
from bench.failure_quarantine import QuarantineAsk, QuarantineRun
from bench.marks import Broken
from bench.node import at, check_signals, said_signals
from bench.node_signals import SignalsAsk, SignalsRun, WholeRun
from bench.parts import Parts, main
from tests.kube.control_plane import binaries_dir

PARTS = ("signals", "quarantine", "limit")


class Sizes(msgspec.Struct, frozen=True):
    signals: SignalsAsk
    quarantine: QuarantineAsk
    limit: QuarantineAsk


FULL = Sizes(
    SignalsAsk(nodes=5000, rate=10_000, seconds=60.0, lead_s=180.0, whole=True),
    QuarantineAsk(nodes=1500, failed=750, pool="50%"),
    QuarantineAsk(nodes=1500, failed=750, pool="10%"),
)
QUICK = Sizes(
    SignalsAsk(nodes=20, rate=400, seconds=1.5, transitions=0.05, whole=True),
    QuarantineAsk(nodes=12, failed=6, pool="50%", still_s=0.5, timeout_s=60.0),
    QuarantineAsk(nodes=12, failed=6, pool="25%", still_s=0.5, timeout_s=60.0),
)


def thirds(run: SignalsRun) -> tuple[list[int], list[int]]:
    """The backlog of the first and of the last third of the time, tenth of a second by tenth of a second."""
    third = max(1, len(run.backlog) // 3)
    return run.backlog[:third], run.backlog[-third:]


def growth(run: SignalsRun) -> float:
    """How much larger the backlog was in the last third than in the first, in signals."""
    first, last = thirds(run)
    return statistics.fmean(last) - statistics.fmean(first)


def noise(run: SignalsRun, ask: SignalsAsk) -> float:
    """What growth means nothing: the spread within the first third, and at least what comes in a tenth of a second."""
    first, _ = thirds(run)
    return max(statistics.pstdev(first), ask.rate / 10)


def whole_of(run: SignalsRun) -> WholeRun:
    assert run.whole is not None
    return run.whole


def signals_bars(runs: list[SignalsRun], ask: SignalsAsk) -> list[Bar]:
    group = f"{ask.rate:,.0f} signals/s from {ask.nodes:,} nodes for {ask.seconds:g} s, the whole manager"

    def ms(samples: list[float], part: float) -> float:
        return at(samples, part) * 1000

    return [
        Bar(group, "offered", [r.offered for r in runs], None, "/s"),
        Bar(group, "heard", [r.heard for r in runs], None, "/s"),
        Bar(group, "manager's CPU", [r.window_cpu / r.window for r in runs], 1.0, "cores"),
        Bar(group, "CPU per signal", [r.cpu_per_signal * 1e6 for r in runs], None, "us"),
        Bar(group, "backlog, the most", [max(r.backlog) for r in runs], None, "signals"),
        Bar(group, "backlog, median", [statistics.median(r.backlog) for r in runs], None, "signals"),
        Bar(group, "backlog grew, against its noise", [growth(r) / noise(r, ask) for r in runs], 1.0, "x"),
        Bar(group, "nodes waiting to be judged, the most", [max(r.waiting) for r in runs], None, "nodes"),
        Bar(group, "transitions", [r.transitions for r in runs], None, ""),
        Bar(group, "transitions lost", [r.transitions - r.durable for r in runs], 1, ""),
        Bar(group, "said -> durable, median", [ms(r.latency, 0.5) for r in runs], 1000, "ms"),
        Bar(group, "said -> durable, p99", [ms(r.latency, 0.99) for r in runs], 5000, "ms"),
        Bar(group, "a bare fsync there, median", [ms(r.fsync, 0.5) for r in runs], None, "ms"),
        Bar(group, "a bare fsync there, p99", [ms(r.fsync, 0.99) for r in runs], None, "ms"),
        Bar(group, "incidents", [whole_of(r).incidents for r in runs], None, ""),
        Bar(group, "devices with two incidents", [whole_of(r).twice for r in runs], 1, ""),
        Bar(group, "all have an incident and what is done, after", [whole_of(r).behind_s for r in runs]),
        Bar(group, "nodes under remedy, the most", [whole_of(r).most_under_remedy for r in runs], None, "nodes"),
        Bar(group, "manager's resident memory", [r.rss_mib for r in runs], 3072, "MiB"),
        Bar(group, "the same before the first signal", [r.filled_mib for r in runs], None, "MiB"),
    ]


def quarantine_bars(runs: list[QuarantineRun], ask: QuarantineAsk) -> list[Bar]:
    group = f"{ask.failed} of {ask.nodes:,} nodes fail at once, {ask.pool} may be under remedy, kube-apiserver"
    return [
        Bar(group, "faults written by the agents", [r.said for r in runs]),
        Bar(group, f"{runs[0].allowed} have an incident and their order", [r.quarantined for r in runs]),
        Bar(group, "all have an incident and what is done, or why not", [r.told for r in runs]),
        Bar(group, "nodes taken out", [r.allowed / r.quarantined for r in runs], None, "/s"),
        Bar(group, f"{ask.failed} bare guarded patches", [r.bound_s for r in runs]),
        Bar(group, "all, against that", [max(r.quarantined, r.told) / r.bound_s for r in runs], None, "x"),
        Bar(group, "API calls of the manager", [r.calls for r in runs], None, ""),
        Bar(group, "API calls for each failed node", [r.calls / ask.failed for r in runs], None, ""),
        Bar(group, "of them refused, somebody was faster", [r.conflicts for r in runs], None, ""),
        Bar(group, "CPU", [r.cpu for r in runs]),
        Bar(group, "resident memory", [r.rss_mib for r in runs], None, "MiB"),
        Bar(
            group, "under remedy beyond the limit", [max(0, r.most_under_remedy - r.allowed) for r in runs], 1, "nodes"
        ),
        Bar(group, "held back with the reason", [r.held_back for r in runs], None, ""),
        Bar(group, "done twice", [r.twice for r in runs], 1, ""),
    ]


def said_storm(run: SignalsRun) -> str:
    whole = whole_of(run)
    return (
        f"{said_signals(run)}; {whole.incidents} incidents, {whole.held_back} held back, "
        f"{whole.most_under_remedy} nodes under remedy at most ({whole.limit} may be), {run.rss_mib:.0f} MiB"
    )


def said_quarantine(run: QuarantineRun) -> str:
    return (
        f"{run.allowed} taken out after {run.quarantined:.1f} s, {run.held_back} held back, {run.calls} API calls, "
        f"bare patches {run.bound_s:.1f} s, {run.most_under_remedy} nodes under remedy at most"
    )


def check_storm(run: SignalsRun, ask: SignalsAsk) -> SignalsRun:
    check_signals(run, ask)
    whole = whole_of(run)
    if run.durable < run.transitions:
        raise Broken(f"{run.transitions - run.durable} of {run.transitions} transitions were lost")
    if whole.twice:
        raise Broken(f"{whole.twice} devices have two incidents")
    if whole.most_under_remedy > whole.limit:
        raise Broken(f"{whole.most_under_remedy} nodes were under remedy; {whole.limit} may be")
    return run


def measure(parts: Parts) -> list[Bar]:
    sizes = QUICK if parts.is_quick else FULL
    signals = parts.run("signals", "bench.node_signals", sizes.signals, SignalsRun, said_storm, 900.0)
    for run in signals:
        check_storm(run, sizes.signals)

    def quarantined(part: str, ask: QuarantineAsk) -> list[QuarantineRun]:
        if parts.is_asked(part) and not binaries_dir().is_dir():
            parts.say(f"{part}: left out, there is no kube-apiserver; `make kube` builds one")
            return []
        return parts.run(part, "bench.failure_quarantine", ask, QuarantineRun, said_quarantine, 900.0)

    quarantine = quarantined("quarantine", sizes.quarantine)
    limit = quarantined("limit", sizes.limit)
    return [
        *(signals_bars(signals, sizes.signals) if signals else ()),
        *(quarantine_bars(quarantine, sizes.quarantine) if quarantine else ()),
        *(quarantine_bars(limit, sizes.limit) if limit else ()),
    ]


if __name__ == "__main__":
    sys.exit(main("bench-failure", __doc__, PARTS, 1, measure))

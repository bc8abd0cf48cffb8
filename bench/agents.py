"""`make bench-agents`: what a cluster full of agents costs a real kube-apiserver, idle and when a device of every node fails.

Each repetition is a process of its own (`agents_fleet`). Exit code 0 also on MISS. It needs `make kube`. `--quick` runs it in
small: it shows that it works, and measures nothing.
"""

from __future__ import annotations

import sys

from bench.agents_fleet import FleetAsk, FleetRun
from bench.bars import Bar
from bench.marks import Broken
from bench.parts import Parts, main
from tests.kube.control_plane import binaries_dir

FULL, QUICK = FleetAsk(agents=1000, idle_s=120.0), FleetAsk(agents=8, idle_s=15.0, settle_s=5.0, timeout_s=120.0)
MOST_PER_MINUTE = 8.0


def own_requests(run: FleetRun, ask: FleetAsk) -> float:
    """A minute and agent, without the manager's."""
    return sum(run.idle.values()) - run.idle_calls / ask.agents


def said_fleet(run: FleetRun, ask: FleetAsk) -> str:
    return (
        f"{own_requests(run, ask):.1f} requests a minute and agent idle, {run.idle_cores:.2f} cores; storm "
        f"{run.storm_s:.1f} s, {sum(run.storm.values()):.1f} requests a node, {run.conflicts} conflicts"
    )


def fleet_bars(runs: list[FleetRun], ask: FleetAsk) -> list[Bar]:
    idle = f"{ask.agents:,} agents with nothing to do, {ask.idle_s:g} s, kube-apiserver"
    storm = f"a device of each of the {ask.agents:,} nodes fails at once"

    def kinds(counts: list[dict[str, float]]) -> list[str]:
        return sorted({name for count in counts for name in count}, key=lambda n: -counts[0].get(n, 0.0))

    return [
        Bar(idle, "requests a minute and agent", [own_requests(r, ask) for r in runs], MOST_PER_MINUTE, ""),
        *(
            Bar(idle, f"  {name}", [r.idle.get(name, 0.0) for r in runs], None, "")
            for name in kinds([r.idle for r in runs])
        ),
        Bar(idle, "bytes sent for each agent", [r.idle_bytes / ask.agents for r in runs], None, "B/s"),
        Bar(idle, "CPU of kube-apiserver and etcd", [r.idle_cores for r in runs], None, "cores"),
        Bar(
            idle,
            "API calls of the manager a minute; the lines above have them, too",
            [r.idle_calls for r in runs],
            None,
            "",
        ),
        Bar(idle, "API calls of the manager until here", [r.start_calls for r in runs], None, ""),
        Bar(idle, "of them refused, somebody was faster", [r.start_conflicts for r in runs], None, ""),
        Bar(storm, "until every verdict says so", [r.verdicts_s for r in runs]),
        Bar(storm, "until every incident says what is done, or why nothing", [r.storm_s for r in runs]),
        Bar(storm, "requests for each node", [sum(r.storm.values()) for r in runs], None, ""),
        *(
            Bar(storm, f"  {name}", [r.storm.get(name, 0.0) for r in runs], None, "")
            for name in kinds([r.storm for r in runs])
        ),
        Bar(storm, "bytes sent for each node", [r.storm_bytes / 1024 for r in runs], None, "KiB"),
        Bar(storm, "CPU of kube-apiserver and etcd", [r.storm_cpu for r in runs]),
        Bar(storm, "refused because somebody was faster", [r.conflicts for r in runs], None, ""),
        Bar(storm, "API calls of the manager", [r.manager_calls for r in runs], None, ""),
        Bar(storm, "of them refused, somebody was faster", [r.manager_conflicts for r in runs], None, ""),
        Bar(storm, "memory of agents and manager together", [r.rss_mib for r in runs], None, "MiB"),
    ]


def measure(parts: Parts) -> list[Bar]:
    if not binaries_dir().is_dir():
        raise Broken("there is no kube-apiserver; `make kube` builds one")
    ask = QUICK if parts.is_quick else FULL

    def said(run: FleetRun) -> str:
        return said_fleet(run, ask)

    return fleet_bars(parts.run("fleet", "bench.agents_fleet", ask, FleetRun, said, ask.timeout_s + 300), ask)


if __name__ == "__main__":
    sys.exit(main("bench-agents", __doc__, ("fleet",), 1, measure))

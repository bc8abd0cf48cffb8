"""`make bench-straggler`: who is found slow, how surely and how soon, on gangs whose stragglers are known.

Every number but the last group is a pure function of `straggler.yaml`: seeds are split into those the detector was tuned on and
those it is judged on (`--tuning` shows the former). Beside it, on the same runs, the naive rule of checklists. Exit code 0
also on MISS.

  precision     verdicts on a rank that was slow at that time, of all verdicts
  recall        stragglers named while they were slow, of all that were
  to verdict    steps from the first slow one to the look that named it
  false alarms  verdicts on ranks that were not slow, per million steps of such ranks
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console

from bench.bars import Bar, report
from bench.straggler_gang import Run, World, make
from remuda.core.health.step_samples import WARM_UP, WINDOW
from remuda.core.health.stragglers import RankSpeeds, judge_rank_speeds

PARAMETERS = Path(__file__).with_name("straggler.yaml")

Looks = Callable[[NDArray[np.float64], Sequence[int]], set[int]]  # (window, known slow) -> slow now


class Seeds(msgspec.Struct, frozen=True):
    first: int
    count: int

    def all(self) -> range:
        return range(self.first, self.first + self.count)


class Split(msgspec.Struct, frozen=True, rename="camel"):
    tuning: Seeds
    held_out: Seeds


class Naive(msgspec.Struct, frozen=True):
    window: int
    factor: float


class Bars(msgspec.Struct, frozen=True, rename="camel"):
    precision: float
    recall: float
    recall_from: float


class Parameters(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    seeds: Split
    factor: float
    look_every: int
    grace: int
    naive: Naive
    world: World
    bars: Bars


class Found(msgspec.Struct):
    """Counted over many runs."""

    right: int = 0
    wrong: int = 0
    healthy_steps: int = 0
    was: dict[float, int] = {}
    named: dict[float, int] = {}
    delays: dict[float, list[int]] = {}
    seconds: list[float] = []  # a look at the largest gangs

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + self.wrong)

    def recall(self, least: float, most: float = 1e9) -> float:
        was = sum(n for f, n in self.was.items() if least <= f <= most)
        return sum(n for f, n in self.named.items() if least <= f <= most) / max(1, was)

    def delay(self, least: float, q: float) -> float:
        all_of = [d for f, delays in self.delays.items() if f >= least for d in delays]
        return float(np.quantile(all_of, q)) if all_of else 0.0

    @property
    def alarms(self) -> float:
        return self.wrong / max(1, self.healthy_steps) * 1e6


def load(path: Path = PARAMETERS) -> Parameters:
    return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Parameters)


def ours(parameters: Parameters) -> Looks:
    def look(window: NDArray[np.float64], known: Sequence[int]) -> set[int]:
        found: RankSpeeds = judge_rank_speeds(window, parameters.factor, known)
        return {slow.rank for slow in found.slow}

    return look


def naive(parameters: Parameters) -> Looks:
    rule = parameters.naive

    def look(window: NDArray[np.float64], known: Sequence[int]) -> set[int]:
        newest = window[:, -rule.window :]
        if newest.shape[1] < rule.window:
            return set()
        there = np.isfinite(newest)
        means = np.where(there, newest, 0.0).sum(axis=1) / np.maximum(1, there.sum(axis=1))
        means[there.sum(axis=1) == 0] = np.nan
        return {int(r) for r in np.flatnonzero(means > rule.factor * np.nanmedian(means))}

    return look


def measure(parameters: Parameters, seeds: Sequence[int], look: Looks) -> Found:
    found = Found(was={}, named={}, delays={}, seconds=[])
    for seed in seeds:
        _follow(parameters, make(parameters.world, seed), look, found)
    return found


def _follow(parameters: Parameters, run: Run, look: Looks, found: Found) -> None:
    for one in run.slow:
        found.was[one.factor] = found.was.get(one.factor, 0) + 1
    slow_at = np.zeros(run.own.shape, dtype=bool)
    for one in run.slow:
        slow_at[one.rank, one.begin : one.end + parameters.grace] = True
    here = np.isfinite(run.own)
    found.healthy_steps += int((here & ~slow_at).sum())
    known: set[int] = set()
    named: set[tuple[int, int]] = set()
    since = 0
    for step in range(run.own.shape[1]):
        if step in run.fresh:
            since, known = step, set()
        if (step + 1) % parameters.look_every or step - since < WARM_UP:
            continue
        rows = np.array([r for r in range(run.size) if run.gone.get(r, step + 1) > step])
        window = run.own[rows, max(since + WARM_UP, step + 1 - WINDOW) : step + 1]
        place = {int(r): i for i, r in enumerate(rows)}
        began = time.process_time()
        now = {int(rows[i]) for i in look(window, [place[r] for r in sorted(known) if r in place])}
        if run.size >= 512:
            found.seconds.append(time.process_time() - began)
        for rank in now - known:
            if slow_at[rank, step]:
                found.right += 1
            else:
                found.wrong += 1
        for one in run.slow:
            if one.rank in now and one.begin <= step < one.end and (one.rank, one.begin) not in named:
                named.add((one.rank, one.begin))
                found.named[one.factor] = found.named.get(one.factor, 0) + 1
                found.delays.setdefault(one.factor, []).append(step - max(one.begin, since) + 1)
        known = now


def percent(share: float) -> float:
    return round(100.0 * share, 6)


def bars_of(parameters: Parameters, found: Found, simple: Found, which: str) -> list[Bar]:
    """Shares are judged as what is missing to 1, so that less is better as for every bar."""
    limit = parameters.bars
    least = limit.recall_from
    bars = [
        Bar(
            which, "wrong verdicts (100 - precision)", [percent(1 - found.precision)], percent(1 - limit.precision), "%"
        ),
        Bar(
            which,
            f"missed at >= {least:g} x (100 - recall)",
            [percent(1 - found.recall(least))],
            percent(1 - limit.recall),
            "%",
        ),
        Bar(which, f"precision (of {found.right + found.wrong} verdicts)", [percent(found.precision)], None, "%"),
    ]
    for factor in sorted(found.was):
        share, count = found.recall(factor, factor), found.was[factor]
        bars.append(Bar(which, f"recall at {factor:g} x (of {count})", [percent(share)], None, "%"))
    bars += [
        Bar(which, f"steps to verdict at >= {least:g} x, median", [found.delay(least, 0.5)], None, "steps"),
        Bar(which, f"steps to verdict at >= {least:g} x, p90", [found.delay(least, 0.9)], None, "steps"),
        Bar(which, "steps to verdict at >= 2 x, median", [found.delay(2.0, 0.5)], None, "steps"),
        Bar(which, "false alarms per million rank-steps", [found.alarms], None, ""),
    ]
    rule = f"naive {parameters.naive.factor:g} x median of {parameters.naive.window}"
    bars += [
        Bar(rule, "precision", [percent(simple.precision)], None, "%"),
        Bar(rule, f"recall at >= {least:g} x", [percent(simple.recall(least))], None, "%"),
        Bar(rule, f"steps to verdict at >= {least:g} x, median", [simple.delay(least, 0.5)], None, "steps"),
        Bar(rule, "false alarms per million rank-steps", [simple.alarms], None, ""),
        Bar("ratio to the naive rule", "wrong verdicts", [found.wrong / max(1, simple.wrong)], 1.0, "x"),
        Bar(
            "ratio to the naive rule",
            f"missed at >= {least:g} x",
            [(1 - found.recall(least)) / max(1e-9, 1 - simple.recall(least))],
            1.0,
            "x",
        ),
    ]
    if found.seconds:
        bars.append(Bar("cost", "CPU of one look at 512 ranks", found.seconds, None, "s"))
    return bars


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.straggler", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--parameters", type=Path, default=PARAMETERS, help="another straggler.yaml")
    parser.add_argument("--tuning", action="store_true", help="the seeds the detector was tuned on")
    parser.add_argument("--seeds", type=int, help="so many seeds only")
    parser.add_argument("--json", type=Path, help="every number, as JSON")
    options = parser.parse_args(arguments)
    parameters = load(options.parameters)
    chosen = parameters.seeds.tuning if options.tuning else parameters.seeds.held_out
    seeds = chosen.all()[: options.seeds] if options.seeds else chosen.all()
    which = f"{'tuning' if options.tuning else 'held-out'} seeds {seeds[0]}..{seeds[-1]}"

    def measured(console: Console) -> list[Bar]:
        found, simple = (measure(parameters, seeds, rule(parameters)) for rule in (ours, naive))
        return bars_of(parameters, found, simple, which)

    return report(measured, options.json)


if __name__ == "__main__":
    sys.exit(main())

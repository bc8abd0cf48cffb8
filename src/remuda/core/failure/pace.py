"""The pace of a whole gang against its own past: what is left to say when no single rank can be blamed.

stepTime is the same on every rank of a coupled gang, so it never names one. It does tell when the gang became slower than it
was: the median of the newest steps against the best stretch seen. selfTime, where ranks report it, tells which part grew:

  UniformSlowdown    everybody's own work takes longer: a power cap, a slow input, longer batches
  WaitingGrew        own work takes as long as ever, the rest of the step longer: the network, or the collective
  OnlyStepTimeKnown  no rank tells its own time, so the part cannot be known
  OneOfTwo           two ranks, one slower than the other, and no past that says which of them changed

`Pace` is the memory: kept by whoever looks, lost with it. A gang of another size begins a new one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from remuda.core.failure.samples import GangSlow, Sample
from remuda.core.failure.stragglers import (
    CLEAR_STEPS,
    LEAST_COVER,
    QUORUM,
    Matrix,
    SlowRank,
    Speeds,
    judge,
    table,
)

UNIFORM = "UniformSlowdown"
WAITING = "WaitingGrew"
UNKNOWN_PART = "OnlyStepTimeKnown"
ONE_OF_TWO = "OneOfTwo"


class Pace(msgspec.Struct, frozen=True):
    """Best medians so far over CLEAR_STEPS steps: of the gang's step, and of each rank's own time."""

    ranks: tuple[int, ...] = ()
    step_seconds: float = math.inf
    own_seconds: Mapping[int, float] = {}


class GangLook(msgspec.Struct, frozen=True):
    speeds: Speeds
    gang: GangSlow | None
    pace: Pace
    is_enough: bool = False  # enough steps to say that the gang is not slow


def look_at(
    groups: Sequence[Mapping[int, Sequence[Sample]]],
    factor: float,
    known: Sequence[int] = (),
    pace: Pace | None = None,
    was_slow: bool = False,
) -> GangLook:
    """`groups`: samples by rank, ranks that do the same work together. `known`: ranks called slow before; `was_slow`: the gang
    was."""
    ranks = tuple(sorted(rank for group in groups for rank in group))
    if pace is None or pace.ranks != ranks:
        pace = Pace(ranks)
    everybody = {rank: samples for group in groups for rank, samples in group.items()}
    own = _levels(everybody, steps=False)
    took = sorted(_levels(everybody, steps=True).values())
    step = took[len(took) // 2] if took else math.inf
    grown = {rank: own[rank] / pace.own_seconds[rank] for rank in own if rank in pace.own_seconds}
    speeds = _speeds(groups, factor, frozenset(known), grown)
    gang = None
    longer = step / pace.step_seconds if math.isfinite(step) and math.isfinite(pace.step_seconds) else 1.0
    line = factor if not was_slow else math.sqrt(factor)
    if longer >= line and not speeds.slow:
        gang = _why(longer, pace, own, grown, math.sqrt(factor), len(ranks))
    best = {rank: min(seconds, pace.own_seconds.get(rank, math.inf)) for rank, seconds in own.items()}
    kept = Pace(ranks, min(step, pace.step_seconds), {**pace.own_seconds, **best})
    return GangLook(speeds, gang, kept, is_enough=math.isfinite(step))


def _why(
    longer: float, pace: Pace, own: Mapping[int, float], grown: Mapping[int, float], line: float, size: int
) -> GangSlow:
    words = f"A step takes {longer:.2g} times as long as the gang's best ({pace.step_seconds:.3g} s)"
    grew = sum(1 for g in grown.values() if g >= line)
    if not own:
        return GangSlow(
            UNKNOWN_PART, f"{words}. The ranks report no selfTime, so no rank can be told from the others.", longer
        )
    if size == 2 and grew < 2:
        return GangSlow(
            ONE_OF_TWO, f"{words}. With two ranks there is no majority that says which is the slow one.", longer
        )
    if grown and grew >= QUORUM * len(grown):
        return GangSlow(
            UNIFORM, f"{words}, on {grew} of {len(grown)} ranks alike: no single device is to blame.", longer
        )
    return GangSlow(WAITING, f"{words}, the ranks' own work does not: they wait for one another.", longer)


def _levels(samples: Mapping[int, Sequence[Sample]], *, steps: bool) -> dict[int, float]:
    """Median seconds of each rank over its newest CLEAR_STEPS samples, for those that have so many."""
    found: dict[int, float] = {}
    for rank, row in samples.items():
        told = [t for s in row if (t := s.step_seconds if steps else s.self_seconds) is not None and t > 0][
            -CLEAR_STEPS:
        ]
        if len(told) >= CLEAR_STEPS * LEAST_COVER:
            found[rank] = float(np.median(told))
    return found


def _speeds(
    groups: Sequence[Mapping[int, Sequence[Sample]]], factor: float, known: frozenset[int], grown: Mapping[int, float]
) -> Speeds:
    slow: list[SlowRank] = []
    normal: set[int] = set()
    steps = 0
    for group in groups:
        ranks, own = table(group)
        rows = [i for i, rank in enumerate(ranks) if rank in known]
        found = judge(own, factor, rows) if len(ranks) != 2 else _two(ranks, own, factor, rows, grown)
        slow += [msgspec.structs.replace(s, rank=ranks[s.rank]) for s in found.slow]
        normal |= {ranks[row] for row in found.normal}
        steps = max(steps, found.steps)
    return Speeds(tuple(slow), frozenset(normal), steps)


def _two(ranks: Sequence[int], own: Matrix, factor: float, known: Sequence[int], grown: Mapping[int, float]) -> Speeds:
    """Each against the other, said three times over so that the other is the majority; believed only with a past that agrees:
    this one became slower and the other did not."""
    slow: list[SlowRank] = []
    normal: set[int] = set()
    line = math.sqrt(factor)
    for row, other in ((0, 1), (1, 0)):
        found = judge(np.vstack([own[row], own[other], own[other]]), factor, [0] if row in known else [])
        changed = grown.get(ranks[row], 1.0) >= line and grown.get(ranks[other], 1.0) < line
        normal |= {row} if 0 in found.normal else set()
        slow += [msgspec.structs.replace(s, rank=row) for s in found.slow if s.rank == 0 and (changed or row in known)]
    return Speeds(tuple(slow), frozenset(normal), int(own.shape[1]))

"""The pace of a whole gang against its own past: what is left to say when no single rank can be blamed.

stepTime is the same on every rank of a coupled gang, so it never names one. It does tell when the gang became slower than it
was: the median of the newest steps against the best stretch seen. selfTime, where ranks report it, tells which part grew:

  UniformSlowdown    everybody's own work takes longer: a power cap, a slow input, longer batches
  WaitingGrew        own work takes as long as ever, the rest of the step longer: the network, or the collective
  OnlyStepTimeKnown  no rank tells its own time, so the part cannot be known
  OneOfTwo           two ranks, one slower than the other, and no past that says which of them changed

`Pace` is the memory: kept by whoever looks. A gang of another size begins a new one, and so does who looks for the first time:
with the best stretch that the samples still have, so that a slow-down which began within them is seen as one. Of a gang that was
slow before, the job's status keeps the best step: whoever takes over knows when it is not slow any more, and until then says what
was said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from remuda.core.health.step_samples import NOT_SLOW, GangSlow, StepSample
from remuda.core.health.stragglers import (
    CLEAR_STEPS,
    LEAST_COVER,
    QUORUM,
    Matrix,
    RankSpeeds,
    SlowRank,
    judge_rank_speeds,
    straggler_step_matrix,
)

UNIFORM = "UniformSlowdown"
WAITING = "WaitingGrew"
UNKNOWN_PART = "OnlyStepTimeKnown"
ONE_OF_TWO = "OneOfTwo"


class GangPace(msgspec.Struct, frozen=True):
    """Best medians so far over CLEAR_STEPS steps: of the gang's step, and of each rank's own time."""

    ranks: tuple[int, ...] = ()
    step_seconds: float = math.inf
    own_seconds: Mapping[int, float] = {}
    is_inherited: bool = False  # the step's is from before anybody here looked; the ranks' are not


class GangPaceLook(msgspec.Struct, frozen=True):
    speeds: RankSpeeds
    gang: GangSlow | None
    pace: GangPace
    is_enough: bool = False  # enough steps to say that the gang is not slow


def judge_gang_pace(
    groups: Sequence[Mapping[int, Sequence[StepSample]]],
    factor: float,
    known: Sequence[int] = (),
    pace: GangPace | None = None,
    was: GangSlow = NOT_SLOW,
) -> GangPaceLook:
    """`groups`: samples by rank, ranks that do the same work together. `known`: ranks called slow before; `was`: what was said of
    the gang."""
    ranks = tuple(sorted(rank for group in groups for rank in group))
    everybody = {rank: samples for group in groups for rank, samples in group.items()}
    if pace is None or pace.ranks != ranks:
        pace = _best_pace_within(ranks, everybody, was if pace is None else NOT_SLOW)
    own = _median_rank_seconds(everybody, steps=False)
    step = _median_level(_median_rank_seconds(everybody, steps=True))
    grown = {rank: own[rank] / pace.own_seconds[rank] for rank in own if rank in pace.own_seconds}
    speeds = _speeds_of_groups(groups, factor, frozenset(known), grown)
    gang = None
    longer = step / pace.step_seconds if math.isfinite(step) and math.isfinite(pace.step_seconds) else 1.0
    line = factor if not was.reason else math.sqrt(factor)
    if longer >= line and not speeds.slow:
        gang = was if pace.is_inherited else _slow_gang_reason(longer, pace, own, grown, math.sqrt(factor), len(ranks))
    best = {rank: min(seconds, pace.own_seconds.get(rank, math.inf)) for rank, seconds in own.items()}
    is_inherited = pace.is_inherited and (gang is not None or not math.isfinite(step))
    kept = GangPace(ranks, min(step, pace.step_seconds), {**pace.own_seconds, **best}, is_inherited)
    return GangPaceLook(speeds, gang, kept, is_enough=math.isfinite(step))


def _slow_gang_reason(
    longer: float, pace: GangPace, own: Mapping[int, float], grown: Mapping[int, float], line: float, size: int
) -> GangSlow:
    grew = sum(1 for g in grown.values() if g >= line)
    if not own:
        reason, words = (
            UNKNOWN_PART,
            ". The ranks do not report selfTime, so none can be named. Report it to find the slow one.",
        )
    elif size == 2 and grew < 2:
        reason = ONE_OF_TWO
        words = ". With two ranks there is no majority that says which is the slow one: probe the devices of both."
    elif grown and grew >= QUORUM * len(grown):
        reason, words = UNIFORM, f", on {grew} of {len(grown)} ranks alike: no single device is to blame."
        words += " Look at power caps, cooling and the input."
    else:
        reason, words = WAITING, ", the ranks' own work does not: they wait for one another. Look at the network."
    begin = f"A step takes {longer:.2g} times as long as the gang's best ({pace.step_seconds:.3g} s)"
    return GangSlow(reason, begin + words, longer, pace.step_seconds)


def _median_rank_seconds(samples: Mapping[int, Sequence[StepSample]], *, steps: bool) -> dict[int, float]:
    """Median seconds of each rank over its newest CLEAR_STEPS samples, for those that have so many."""
    found: dict[int, float] = {}
    for rank, row in samples.items():
        told = _reported_seconds(row, steps)[-CLEAR_STEPS:]
        if len(told) >= CLEAR_STEPS * LEAST_COVER:
            found[rank] = float(np.median(told))
    return found


def _best_pace_within(ranks: tuple[int, ...], samples: Mapping[int, Sequence[StepSample]], was: GangSlow) -> GangPace:
    """The pace that one would have who had looked after every step of them, and knows what was said before."""
    best: tuple[dict[int, float], dict[int, float]] = {}, {}
    for steps, found in enumerate(best):
        for rank, row in samples.items():
            told = _reported_seconds(row, bool(steps))
            if len(told) >= CLEAR_STEPS:
                found[rank] = float(np.median(sliding_window_view(told, CLEAR_STEPS), axis=1).min())
    step, before = _median_level(best[1]), was.best_seconds or math.inf
    return GangPace(ranks, min(step, before), best[0], is_inherited=before < step)


def _median_level(levels: Mapping[int, float]) -> float:
    ordered = sorted(levels.values())
    return ordered[len(ordered) // 2] if ordered else math.inf


def _reported_seconds(row: Sequence[StepSample], steps: bool) -> list[float]:
    return [t for s in row if (t := s.step_seconds if steps else s.self_seconds) is not None and t > 0]


def _speeds_of_groups(
    groups: Sequence[Mapping[int, Sequence[StepSample]]],
    factor: float,
    known: frozenset[int],
    grown: Mapping[int, float],
) -> RankSpeeds:
    slow: list[SlowRank] = []
    normal: set[int] = set()
    steps = 0
    for group in groups:
        ranks, own = straggler_step_matrix(group)
        rows = [i for i, rank in enumerate(ranks) if rank in known]
        found = (
            judge_rank_speeds(own, factor, rows)
            if len(ranks) != 2
            else _speeds_of_two_ranks(ranks, own, factor, rows, grown)
        )
        slow += [msgspec.structs.replace(s, rank=ranks[s.rank]) for s in found.slow]
        normal |= {ranks[row] for row in found.normal}
        steps = max(steps, found.steps)
    return RankSpeeds(tuple(slow), frozenset(normal), steps)


def _speeds_of_two_ranks(
    ranks: Sequence[int], own: Matrix, factor: float, known: Sequence[int], grown: Mapping[int, float]
) -> RankSpeeds:
    """Each against the other, said three times over so that the other is the majority; believed only with a past that agrees:
    this one became slower and the other did not."""
    slow: list[SlowRank] = []
    normal: set[int] = set()
    line = math.sqrt(factor)
    for row, other in ((0, 1), (1, 0)):
        found = judge_rank_speeds(np.vstack([own[row], own[other], own[other]]), factor, [0] if row in known else [])
        changed = grown.get(ranks[row], 1.0) >= line and grown.get(ranks[other], 1.0) < line
        normal |= {row} if 0 in found.normal else set()
        slow += [msgspec.structs.replace(s, rank=row) for s in found.slow if s.rank == 0 and (changed or row in known)]
    return RankSpeeds(tuple(slow), frozenset(normal), int(own.shape[1]))

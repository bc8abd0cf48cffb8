"""Which rank of a gang is slow: robust statistics on selfTime, the time of a rank's own work before it waits for the others.

In coupled steps every rank's stepTime is the same, and the straggler is the one that waits least; so only selfTime can name it.
The model of one step: own time = (what the step costs everybody) x (what this rank costs more) x noise. Dividing by the median
of the gang at that very step takes the first part out: a uniform slow-down, a stall of the whole gang or a long batch blames
nobody. What is left is compared over the newest samples of the rank, in logarithms:

  slow      the median lies well above 1, surely so (its standard error), and most samples do; a stall of a few steps cannot be
            most of them. The shortest stretch that proves it is enough, so a rank at 3 x is found sooner than one at 1.3 x.
  normal    the newest samples surely lie below half of that. Between the two a rank stays what it was.

Up to a quarter of a gang may be slow at once: the median does not move with them. Two ranks have no median, so one is blamed only
when it became slower against its own past while the other did not. With fewer, or without selfTime, nobody can be blamed: when
the gang's steps became longer than they were, the gang is slow, and why nobody is named is said.

The samples are a window in memory, which agents tell to a new manager; what was found stands in NodeDevices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from remuda.core.health.step_samples import WINDOW, StepSample

Matrix = NDArray[np.float64]

STRETCHES = (12, 16, 24, 32, 48, 64)  # newest samples tried, shortest first
CLEAR_STEPS = 16  # samples of normal speed before a rank is called normal again
QUORUM = 0.5  # of the ranks must have told a step, for its median to stand for the gang
LEAST_COVER = 0.75  # of a stretch that the rank must have samples of
SIGMAS = 4.0  # how sure the median must be; every rank is judged again and again, so rare is not rare enough
MEDIAN_ERROR = 1.2533  # standard error of a median, in standard errors of a mean
MAD_SIGMA = 1.4826
NEAR = (
    0.8  # of log(factor): so far the median may stay behind, or a rank at just the factor would be found half the time
)


class SlowRank(msgspec.Struct, frozen=True):
    """`confidence`: how many standard errors the median lies above what noise explains."""

    rank: int
    factor: float
    steps: int
    confidence: float


class RankSpeeds(msgspec.Struct, frozen=True):
    """What a look found. `normal`: ranks at normal speed over CLEAR_STEPS samples; others are undecided."""

    slow: tuple[SlowRank, ...] = ()
    normal: frozenset[int] = frozenset()
    steps: int = 0  # samples looked at


def slow_share_needed(stretch: int) -> float:
    """The part of a stretch that must lie above normal: nearly all of a short one, most of a long one."""
    return 0.9 if stretch <= 16 else 0.8 if stretch <= 24 else 0.7 if stretch <= 32 else 0.6


def judge_rank_speeds(own: Matrix, factor: float, known: Sequence[int] = ()) -> RankSpeeds:
    """Who is slow in `own`: selfTime by rank (rows) and step (columns, newest last), nan where there is no sample.

    `known`: rows called slow before; they stay so until they are normal.
    """
    ranks, columns = own.shape
    if ranks < 3 or columns < STRETCHES[0]:
        return RankSpeeds(steps=columns)
    logs = np.log(own[:, -WINDOW:])
    told = np.isfinite(logs)
    logs = np.where(told, logs, np.nan)
    logs = logs[:, told.sum(axis=0) >= max(2.0, QUORUM * ranks)]
    if logs.shape[1] < STRETCHES[0]:
        return RankSpeeds(steps=int(logs.shape[1]))
    line = math.log(factor)
    over = _relative_to_gang(logs, line / 2.0)
    return _judge_relative_speeds(over, _rank_noise(over), line, frozenset(known))


def _relative_to_gang(logs: Matrix, middle: float) -> Matrix:
    """Against the median of each step; once more without those that stand out, who pull it up when they are many."""
    over: Matrix = logs - _row_medians(logs.T)
    usual = logs[_row_medians(over[:, -CLEAR_STEPS:]) < middle]
    if len(usual) == len(logs) or len(usual) < QUORUM * len(logs) or not np.isfinite(usual).any(axis=0).all():
        return over
    again: Matrix = logs - _row_medians(usual.T)
    return again


def _rank_noise(over: Matrix) -> float:
    """The usual spread of a rank around its own level: the gang's, because one rank's few samples tell it badly."""
    centre = _row_medians(over)
    return max(float(np.nanmedian(_row_medians(np.abs(over - centre[:, None])))) * MAD_SIGMA, 1e-3)


def _row_medians(rows: Matrix) -> Matrix:
    """Of each row without its nans; nan where nothing is left. (numpy's own goes through masked arrays: ten times the time.)"""
    ordered = np.sort(rows, axis=1)  # nan last
    count = np.maximum(np.isfinite(rows).sum(axis=1), 1)
    line = np.arange(len(rows))
    found: Matrix = (ordered[line, (count - 1) // 2] + ordered[line, count // 2]) / 2.0
    return found


def _judge_relative_speeds(over: Matrix, noise: float, line: float, known: frozenset[int]) -> RankSpeeds:
    middle = line / 2.0
    normal = _ranks_at_normal_speed(over, noise, middle)
    newest = _row_medians(over[:, -STRETCHES[0] :])
    suspects = np.flatnonzero(newest > middle)  # a slow past alone is no reason
    slow: list[SlowRank] = []
    for row in sorted(({int(r) for r in suspects} | known) - normal):  # what it was longer ago does not count then
        found = _slow_stretch(over[row], noise, line)
        if found is None and row in known:
            found = _newest_slowness(over[row], noise, middle)
        if found is not None:
            factor, steps, sure = found
            slow.append(SlowRank(row, round(math.exp(factor), 3), steps, round(sure, 1)))
    return RankSpeeds(tuple(slow), frozenset(normal), int(over.shape[1]))


def _ranks_at_normal_speed(over: Matrix, noise: float, middle: float) -> set[int]:
    if over.shape[1] < CLEAR_STEPS:
        return set()
    newest = over[:, -CLEAR_STEPS:]
    told = np.isfinite(newest).sum(axis=1)
    level, error = _row_medians(newest), MEDIAN_ERROR * noise / math.sqrt(CLEAR_STEPS)
    return {int(row) for row in np.flatnonzero(level + error < middle) if told[row] >= CLEAR_STEPS * LEAST_COVER}


def _slow_stretch(row: Matrix, noise: float, line: float) -> tuple[float, int, float] | None:
    """(log factor, samples, standard errors above the middle) of the shortest stretch that proves it."""
    middle = line / 2.0
    for stretch in STRETCHES:
        if stretch > len(row):
            return None
        there = row[-stretch:]
        there = there[np.isfinite(there)]
        if len(there) < LEAST_COVER * stretch or np.mean(there > middle) < slow_share_needed(stretch):
            continue
        median = float(np.median(there))
        sure = (median - middle) / _median_error(there, median, noise)
        if median >= NEAR * line and sure >= SIGMAS:
            return median, len(there), sure
    return None


def _newest_slowness(row: Matrix, noise: float, middle: float) -> tuple[float, int, float] | None:
    there = row[np.isfinite(row)][-CLEAR_STEPS:]
    if not len(there):
        return None
    median = float(np.median(there))
    return median, len(there), max(0.0, (median - middle) / _median_error(there, median, noise))


def _median_error(there: Matrix, median: float, noise: float) -> float:
    own = float(np.median(np.abs(there - median))) * MAD_SIGMA
    return MEDIAN_ERROR * max(own, noise) / math.sqrt(len(there))


# --- from heartbeats to rows and columns ----------------------------------------------------------------------------------


def straggler_step_matrix(
    samples: Mapping[int, Sequence[StepSample]], *, steps: bool = False
) -> tuple[list[int], Matrix]:
    """(ranks, seconds by rank and step): selfTime, or stepTime with `steps`.

    Columns are steps. A rank whose newest steps are not those of the others (nothing couples them, or its launcher skips beats
    of very short steps) stands beside them by age instead, its newest sample under the newest step, as long as it is heard.
    """
    ranks = sorted(samples)
    rows = [_seconds_by_step(samples[rank], steps) for rank in ranks]
    told: dict[int, int] = {}
    for row in rows:
        for step in row:
            told[step] = told.get(step, 0) + 1
    shared = sorted(step for step, count in told.items() if count >= QUORUM * len(ranks))[-WINDOW:]
    if len(shared) < STRETCHES[0] and len(told) > len(shared):
        shared = []  # no common steps to speak of
    width = len(shared) or min(WINDOW, max((len(row) for row in rows), default=0))
    recent = _earliest_newest_step(samples, set(shared[-CLEAR_STEPS:]))
    found = np.full((len(ranks), width), math.nan)
    for line, rank, row in zip(found, ranks, rows, strict=True):
        there = [row.get(step, math.nan) for step in shared]
        newest = there[-CLEAR_STEPS:]
        if shared and sum(map(math.isfinite, newest)) >= QUORUM * len(newest):
            line[:] = there
        elif row and samples[rank][-1].time >= recent:
            by_age = list(row.values())[-width:]
            line[width - len(by_age) :] = by_age
    return ranks, found


def _earliest_newest_step(samples: Mapping[int, Sequence[StepSample]], newest: set[int]) -> float:
    """The earliest time anybody told one of the newest steps."""
    times = (s.time for row in samples.values() for s in row if s.step in newest)
    return min(times, default=0.0)


def _seconds_by_step(samples: Sequence[StepSample], steps: bool) -> dict[int, float]:
    found = ((s.step, s.step_seconds if steps else s.self_seconds) for s in samples)
    return {step: seconds for step, seconds in found if seconds is not None and seconds > 0.0}

"""A gang with coupled steps whose stragglers are known: what `bench.straggler` measures the detector on.

Own time of rank r at step s = base x (what the step costs everybody) x (the device's lasting spread) x noise x (slow factor)
x (stalls). A step ends when the last rank comes, so every rank's stepTime is the same. Everything is drawn from one seed.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray


class Stalls(msgspec.Struct, frozen=True, rename="camel"):
    """`chance` of a rank (or of the whole gang) to begin one at a step: for 1..`longest` steps, `least`..`most` times slower."""

    chance: float
    longest: int
    least: float
    most: float


class World(msgspec.Struct, frozen=True, rename="camel"):
    steps: int
    sizes: list[int]
    factors: list[float]
    noise: list[float]  # sigma of the lognormal noise of a rank's step
    step_noise: float  # sigma of what a step costs everybody
    device_spread: float  # sigma of a device's lasting difference
    healthy_share: float  # runs without any straggler
    most_stragglers: float  # part of the gang that may be slow at once
    recovers_share: float  # stragglers that become normal again
    uniform_share: float  # runs in which everybody becomes slower for a while
    uniform_most: float
    swap_share: float  # runs in which one rank is replaced: all windows begin anew
    shrink_share: float  # runs in which ranks leave
    missing: float  # chance of a sample to be lost
    writer_every: int  # steps between checkpoints that rank 0 alone writes, three times slower
    rank_stalls: Stalls
    gang_stalls: Stalls


class Slow(msgspec.Struct, frozen=True):
    """Rank `rank` is `factor` times slower in steps [begin, end)."""

    rank: int
    factor: float
    begin: int
    end: int


class Run(msgspec.Struct, frozen=True):
    size: int
    noise: float
    own: NDArray[np.float64]  # [rank, step], nan = not heard
    step_seconds: NDArray[np.float64]
    slow: tuple[Slow, ...]
    fresh: frozenset[int]  # steps at which every window begins anew
    gone: dict[int, int]  # rank -> step from which it is not there


def make(world: World, seed: int) -> Run:
    draw = np.random.default_rng(seed)
    size = int(draw.choice(world.sizes))
    steps, noise = world.steps, float(draw.choice(world.noise))
    own = np.exp(draw.normal(0.0, noise, (size, steps)))
    own *= np.exp(draw.normal(0.0, world.device_spread, (size, 1)))
    common = np.exp(draw.normal(0.0, world.step_noise, steps))
    _stall(common[None, :], world.gang_stalls, draw)
    if draw.random() < world.uniform_share:
        begin = int(draw.integers(steps // 6, steps // 2))
        common[begin : begin + int(draw.integers(40, steps // 2))] *= draw.uniform(1.1, world.uniform_most)
    _stall(own, world.rank_stalls, draw)
    own[0, world.writer_every - 1 :: world.writer_every] *= 3.0
    fresh, gone = _membership(world, size, draw)
    slow = _stragglers(world, size, fresh, gone, draw)
    for one in slow:
        own[one.rank, one.begin : one.end] *= one.factor
    own *= common
    for at in (0, *fresh):
        own[:, at] *= 10.0  # compiling
    here = own.copy()
    for rank, at in gone.items():
        here[rank, at:] = 0.0
    step_seconds = here.max(axis=0) + 0.1
    own[draw.random(own.shape) < world.missing] = np.nan
    for rank, at in gone.items():
        own[rank, at:] = np.nan
    return Run(size, noise, own, step_seconds, slow, fresh, gone)


def _stall(own: NDArray[np.float64], stalls: Stalls, draw: np.random.Generator) -> None:
    rows, columns = np.nonzero(draw.random(own.shape) < stalls.chance)
    for row, column in zip(rows, columns, strict=True):
        own[row, column : column + int(draw.integers(1, stalls.longest + 1))] *= draw.uniform(stalls.least, stalls.most)


def _membership(world: World, size: int, draw: np.random.Generator) -> tuple[frozenset[int], dict[int, int]]:
    middle = int(draw.integers(world.steps // 3, 2 * world.steps // 3))
    if draw.random() < world.swap_share:
        return frozenset({middle}), {}
    if size >= 8 and draw.random() < world.shrink_share:
        leave = draw.choice(size, size // 4, replace=False)
        return frozenset({middle}), {int(rank): middle for rank in leave}
    return frozenset(), {}


def _stragglers(
    world: World, size: int, fresh: frozenset[int], gone: dict[int, int], draw: np.random.Generator
) -> tuple[Slow, ...]:
    if draw.random() < world.healthy_share:
        return ()
    most = max(1, int(size * world.most_stragglers))
    count = int(draw.integers(1, most + 1)) if draw.random() < 0.5 else 1
    found: list[Slow] = []
    for rank in draw.choice(size, count, replace=False):
        begin = int(draw.integers(0, world.steps // 2))
        last = min([gone.get(int(rank), world.steps), *(at for at in fresh if at > begin)], default=world.steps)
        # A straggler is swapped out with the others' windows, or recovers, or stays to the end.
        end = int(draw.integers(begin + 100, begin + 200)) if draw.random() < world.recovers_share else world.steps
        end = min(end, last)
        if end - begin >= 80:
            found.append(Slow(int(rank), float(draw.choice(world.factors)), begin, end))
    return tuple(found)

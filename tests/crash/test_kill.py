"""kill -9 in every n-th write to disk, then at random moments, under concurrent writers; checked against a model each time."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.builders.waiting import PATIENCE_S
from tests.crash.model import Model, copy_state
from tests.crash.victim import Order, Told

ROOT = Path(__file__).parents[2]
EVERY, BATCH = 200, 40  # all of them; as many in one test
AT_RANDOM = 40


class Victims:
    """The warm parent, in a process of its own: this one may have threads, which a fork would lose."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.victim"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def strike(self, order: Order) -> Told:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(order) + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the victims' parent died"
        told = msgspec.json.decode(line, type=Told)
        assert told.signal == signal.SIGKILL, "the victim died by itself"
        return told

    def close(self) -> None:
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def victims() -> Iterator[Victims]:
    victims = Victims()
    yield victims
    victims.close()


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("begin", range(1, EVERY, BATCH))
async def test_killed_in_every_nth_write(victims: Victims, chance: random.Random, tmp_path: Path, begin: int) -> None:
    path, model = tmp_path / "state.db", Model()
    acked = 0
    for n in range(begin, begin + BATCH):
        order = Order(str(path), model.steps, kill_at=n, tear=chance.choice((0.0, 0.5, 0.99, 1.0)))
        told = victims.strike(order)
        acked += len(told.acks)
        model.hear(told)
        # Every other time the next victim finds the files as this one left them, without a clean close in between.
        await model.check(path if n % 2 else copy_state(path, tmp_path / "copy"))
    assert acked > BATCH
    assert model.resumed


async def test_killed_at_random_moments(victims: Victims, chance: random.Random, tmp_path: Path) -> None:
    path, model = tmp_path / "state.db", Model()
    for n in range(AT_RANDOM):
        order = Order(str(path), model.steps, acks=chance.randrange(1, 90), pause_s=chance.random() * 0.004)
        model.hear(victims.strike(order))
        await model.check(path if n % 3 else copy_state(path, tmp_path / "copy"))
    assert model.revision > AT_RANDOM
    assert model.resumed
    assert model.expired, "no victim wrote more than the history holds"

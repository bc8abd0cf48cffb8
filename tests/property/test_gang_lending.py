"""Gangs that lend their spares, under random faults in random order: the rules of `test_gang.py` hold after every step, and so do
those of lending; in the end the gang runs, has failed by name, or waits for room that it could not have by calling back either.
"""

from __future__ import annotations

import random

import pytest

from remuda.api.meta import to_seconds
from remuda.api.names import LABEL_GANG
from remuda.api.training import Cause, TrainingJobStatus
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.core.training.lent_spares import is_preemptible_pod
from remuda.core.training.spare_lending import LEND_EVERY_S
from tests.builders.gang_model import START, Applied, GangModel, a_gang
from tests.builders.gang_rules import Rules
from tests.builders.gangs import a_job, racks
from tests.property import test_gang as plain

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes


class LendingRules(Rules):
    def __init__(self, model: GangModel) -> None:
        super().__init__(model)
        self.lent = self.recalled = 0
        model.on_look.append(self._recalls_rightly)

    def _moves_rightly(self, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
        super()._moves_rightly(old, new)
        had = {loan.uid for loan in old.loans}
        made = [loan for loan in new.loans if loan.uid not in had]
        assert len(made) <= 1, "one loan at a time"
        for loan in made:
            self.lent += 1
            assert (old.attempt, old.barrier, old.phase) == (new.attempt, "Open", "Running"), (
                "lent by one that stands still"
            )
            assert loan.borrowers, "lent to nobody"
            assert old.lent_at is None or self.model.now - to_seconds(old.lent_at) >= LEND_EVERY_S, "lent again at once"
        places = [(loan.node, device) for loan in new.loans for device in loan.devices]
        assert len(places) == len(set(places)), f"lent twice: {places}"
        if old.attempt == new.attempt and old.loans != new.loans:
            assert old.used == new.used, "lending was charged for"

    def _recalls_rightly(self, applied: Applied) -> None:
        """Nobody is told to go but for a place that was called back."""
        self.recalled += len(applied.plan.recall)
        called = {b.uid for loan in applied.plan.status.loans if loan.recalled_at for b in loan.borrowers}
        assert {r.pod.uid for r in applied.plan.recall} <= called

    def check(self) -> None:
        super().check()
        status = self.model.status
        lent = {(loan.node, d): loan for loan in status.loans for d in loan.devices}
        for pod in self.model.pods.now.values():
            if LABEL_GANG in pod.labels or not is_preemptible_pod(pod):
                for device in (
                    snapshot_devices_of_pod(pod) if LABEL_GANG not in pod.labels and not pod.is_terminal else ()
                ):
                    assert (pod.spec.node_name, device) not in lent, f"{pod.name} has what was lent to others"

    def has_capacity(self) -> bool:
        """What is lent is the gang's own."""
        pods = self.model.pods
        mine = {b.uid for loan in self.model.status.loans for b in loan.borrowers}
        kept = dict(pods.now)
        pods.now = {uid: pod for uid, pod in kept.items() if uid not in mine}
        try:
            return super().has_capacity()
        finally:
            pods.now = kept


def borrow(rules: Rules, a: int, b: int) -> None:
    """A preemptible pod comes; or one of them ends."""
    guests = [uid for uid, pod in rules.model.pods.now.items() if is_preemptible_pod(pod)]
    if a % 3 or not guests:
        if len(guests) < 4:
            rules.model.ask_preemptibly(1 + a % 2)
    else:
        rules.model.delete_pod(guests[b % len(guests)])


def go_on(rules: Rules, a: int, b: int) -> None:
    """Everybody works and the gang trains, long enough to lend."""
    for _ in range(6):
        rules.model.train(3)
        for actor in plain.ROUND:
            actor(rules, 1, 0)
            rules.check()
        rules.model.advance(8.0)


ACTORS = {**plain.ACTORS, "borrow": borrow, "go_on": go_on}


def play(seed: int) -> LendingRules:
    chance = random.Random(seed)
    limits = {cause.value: 50 for cause in Cause}
    job = a_job().replicas(chance.randint(1, 3)).gpus(chance.choice([1, 2])).spares(chance.randint(1, 2))
    job = job.budgets(**limits).failure(stop_deadline_seconds=10.0, start_deadline_seconds=30.0, same_step_limit=0)
    job = job.spec(total_steps=5000, lend_spares=True)
    job = job.in_one_rack() if chance.random() < 0.7 else job
    rules = LendingRules(a_gang(job, racks(*chance.choice([(2, 2), (3, 3), (4, 2), (3,), (4,)]), gpus=2)))
    names = [
        *(a.__name__ for a in plain.WORK),
        *["everyone"] * 6,
        *["go_on"] * 8,
        *["borrow"] * 6,
        *["break_device"] * 3,
    ]
    names += [f.__name__ for f in plain.FAULTS if f.__name__ not in ("refuse", "get_stuck")] + ["occupy"] * 3
    for _ in range(4):
        plain.everyone(rules, 2, 7)
    for node in list(rules.model.nodes)[chance.randint(0, 1) :]:
        rules.model.occupy(node)
    quiet = ["borrow", "go_on", "go_on", "borrow", "go_on", "go_on"]  # until something is lent
    for number, name in enumerate([*quiet, *(chance.choice(names) for _ in range(30))]):
        a, b = chance.randint(0, 5), chance.randint(0, 7)
        try:
            ACTORS[name](rules, a, b)
            rules.check()
        except AssertionError as broken:
            text = (
                f"seed {seed} step {number} {name}({a}, {b}): {broken}\n{rules.describe()}\n{rules.model.status.loans}"
            )
            raise AssertionError(text) from broken
    try:
        plain.end_well(rules)
    except AssertionError as broken:
        raise AssertionError(f"seed {seed}: {broken}\n{rules.describe()}\n{rules.model.status.loans}") from broken
    return rules


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_a_gang_that_lends_keeps_the_rules_and_ends_well(first: int) -> None:
    played = [play(seed) for seed in range(first, first + 6)]
    assert sum(rules.lent for rules in played) >= 3, "the stories are about lending"
    assert sum(rules.recalled for rules in played) >= 1, "and about calling back"


def test_planning_again_on_what_was_lent_changes_nothing() -> None:
    model = a_gang(a_job().replicas(1).gpus(2).spares(1).spec(lend_spares=True), racks(2, gpus=2)).settle()
    model.ask_preemptibly(2)
    while not model.status.loans:
        model.train(1)
        model.round(0.0)
        assert model.now < START + 200.0, "nothing was lent"
    assert model.plan().status.loans == model.status.loans

"""Gangs that shrink, grow, sit in segments and are moved on notice, under random faults in random order: the rules of
`test_gang.py` hold after every step, and in the end the gang runs, has failed by name, or waits for room that there is not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import pytest

from remuda.api.training import Cause, DegradedPolicy, Straggler, Topology, TrainingJobStatus
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gang_rules import Rules
from tests.builders.gangs import RACK, JobBuilder, a_job, racks
from tests.property import test_gang as plain

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

ROUNDS = 150


@dataclass(frozen=True)
class Shape:
    replicas: int
    least: int
    segment: int
    spares: int
    sizes: tuple[int, ...]
    policy: DegradedPolicy

    def job(self) -> JobBuilder:
        limits = {cause.value: 50 for cause in Cause}
        job = a_job().replicas(self.replicas).gpus(2).spares(self.spares).budgets(**limits).least(self.least)
        job = job.failure(
            stop_deadline_seconds=10.0, start_deadline_seconds=30.0, straggler=Straggler(policy=self.policy)
        ).failure(same_step_limit=0)
        return job.spec(topology=Topology(required=RACK, segment_size=self.segment))


def slow(rules: Rules, a: int, b: int) -> None:
    """A device of some pod becomes slow."""
    pod = rules.model.pods.now.get(plain._pick(rules.model, b))
    held = pod.annotations.get("remuda.dev/devices", "").split(",") if pod is not None else [""]
    if pod is None or not held[0]:
        return
    rules.model.slow_device(pod.spec.node_name, held[a % len(held)], 1.5 + a)
    _may_be_charged(rules, pod.spec.node_name, Cause.DEVICE)


def go_on(rules: Rules, a: int, b: int) -> None:
    """Everybody works and the gang trains; now and then long enough to grow again."""
    if not a:
        rules.model.advance(130.0)
    for _ in range(4 + 2 * b):
        rules.model.train(1)
        for actor in plain.ROUND:
            actor(rules, 1, 0)
            rules.check()
        rules.model.advance(0.1)


def announce(rules: Rules, a: int, b: int) -> None:
    """A node is said to go; not more than one of them."""
    nodes = list(rules.model.nodes)
    node = nodes[b % len(nodes)]
    if any(c.type != "Ready" for n in rules.model.nodes.values() for c in n.status.conditions):
        return
    kind, cause = (("MaintenancePlanned", Cause.MAINTENANCE), ("SpotTermination", Cause.PREEMPTION))[a % 2]
    rules.model.announce(node, kind, (None, 20.0, 200.0)[a % 3])
    _may_be_charged(rules, node, cause)


def _may_be_charged(rules: Rules, node: str, cause: Cause) -> None:
    """Whoever sits there, now or later, may be moved away for that: once for each of them."""
    assert isinstance(rules, MovingRules)
    rules.moved[node] = rules.moved.get(node, set()) | {cause}


class MovingRules(Rules):
    """Also knows which nodes pods may be moved away from, and that a gang may grow."""

    def __init__(self, model: GangModel) -> None:
        super().__init__(model)
        self.moved: dict[str, set[Cause]] = {}

    def _note_what_befell_them(self) -> None:
        super()._note_what_befell_them()
        for uid, pod in self.model.pods.now.items():
            for cause in self.moved.get(pod.spec.node_name, ()):
                self._note_once(uid, cause, f"had better go: {cause}")
        if self.model.status.sizes:
            key = ("gang", f"grows from attempt {self.model.status.attempt}")
            if key not in self.befell:
                self.befell.add(key)
                self.allowed["maintenance"] = self.allowed.get("maintenance", 0) + 1

    def _is_charged_rightly(self, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
        if len(new.recoveries) > len(old.recoveries) and new.recoveries[-1].remedy == "Grow":
            assert old.sizes, "grew without having been small"
            assert not new.recoveries[-1].members
            return
        super()._is_charged_rightly(old, new)


def come_back(rules: Rules, a: int, b: int) -> None:
    """What went is there again: a node, or what was said of one."""
    model = rules.model
    for gone in sorted(model.dead)[:1]:
        if not any(p.spec.node_name == gone for p in model.pods.now.values()):
            model.dead.discard(gone)
            model.off.discard(gone)
    for name, node in list(model.nodes.items()):
        kept = [c for c in node.status.conditions if c.type == "Ready"]
        model.nodes[name] = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=kept))


ACTORS = {**plain.ACTORS, "slow": slow, "announce": announce, "go_on": go_on, "come_back": come_back}
FAULTS = [f.__name__ for f in plain.FAULTS if f.__name__ not in ("suspend", "refuse")]


def play(shape: Shape, story: list[plain.Step]) -> MovingRules:
    rules = MovingRules(a_gang(shape.job(), racks(*shape.sizes, gpus=2)))
    for number, (name, a, b) in enumerate(story):
        try:
            ACTORS[name](rules, a, b)
            rules.check()
        except AssertionError as broken:
            raise AssertionError(f"{shape} step {number} {name}({a}, {b}): {broken}\n{rules.describe()}") from broken
    return rules


def end_well(rules: MovingRules) -> str:
    model = rules.model
    for node in list(model.off):
        model.expire(node)
    model.lagging.clear()
    quiet = 0
    for _ in range(ROUNDS):
        before = model.status
        for actor in plain.ROUND:
            actor(rules, 1, 0)
            rules.check()
        model.advance(1.0)
        quiet = quiet + 1 if model.status == before else 0
        if model.job.is_finished or quiet > 80 or (model.is_running and not model.status.retired):
            break
    status = model.status
    if model.job.is_finished:
        assert status.reason.endswith("BudgetExhausted"), rules.describe()
        return "failed"
    if model.is_running:
        assert status.reason in ("BarrierOpen", "FewerRanks"), rules.describe()
        return "runs"
    assert not rules.has_capacity(), rules.describe()
    assert status.reason in ("DomainFull", "InsufficientDevices", "NoRoomForAll"), rules.describe()
    return "waits for room"


@pytest.mark.parametrize("kind", ["elastic", "segments", "plain"])
@pytest.mark.parametrize("seed", range(10))
def test_stories_of_moves(kind: str, seed: int) -> None:
    """The seed is the whole story."""
    chance = random.Random(f"{kind} {seed}")
    replicas = chance.randint(2, 4)
    shape = Shape(
        replicas=replicas,
        least=chance.randint(1, replicas) if kind == "elastic" else 0,
        segment=chance.choice([1, 2]) if kind == "segments" else 0,
        spares=chance.randint(0, 2),
        sizes=chance.choice([(2, 2), (3, 3), (4, 2), (5, 5), (2, 2, 2)]),
        policy=chance.choice(list(DegradedPolicy)),
    )
    names = [
        *(w.__name__ for w in plain.WORK),
        *["everyone", "go_on"] * 6,
        *FAULTS,
        *["slow", "announce", "come_back"] * 2,
    ]
    story = [(chance.choice(names), chance.randint(0, 5), chance.randint(0, 7)) for _ in range(80)]
    end_well(play(shape, story))

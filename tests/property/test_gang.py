"""A gang under random faults in random order: the rules hold after every step, and in the end it runs or says why not.

A story is a shape of job and cluster and a list of steps; hypothesis makes the story up, and prints the shortest one that
breaks a rule together with the line that replays it (`@reproduce_failure`). Each step lets one actor do one thing, so that
everything may happen between any two: a controller that dies between its writes, informers that lag, agents that hear of an
attempt last, a scheduler that dies in the middle of a gang.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from remuda.api.training import Cause, DeviceFailedPolicy, FailureRule, RuleAction
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gang_rules import Rules
from tests.builders.gangs import JobBuilder, a_job, racks

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

SETTLE_ROUNDS = 150
QUIET_ROUNDS = 45  # no deadline is longer
STEPS = settings(
    max_examples=250,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)


@dataclass(frozen=True)
class Shape:
    """The job and its cluster."""

    replicas: int
    spares: int
    gpus: int
    sizes: tuple[int, ...]
    is_pinned: bool
    budget: int
    device_failed: DeviceFailedPolicy = DeviceFailedPolicy.CHEAPEST
    same_step_limit: int = 0
    action: RuleAction | None = None  # of a rule about the code that crashes end with

    def job(self) -> JobBuilder:
        limits = {cause.value: self.budget for cause in Cause}
        job = a_job().replicas(self.replicas).gpus(self.gpus).spares(self.spares).budgets(**limits)
        rules = [FailureRule(self.action, exit_codes=[1])] if self.action is not None else []
        job = job.failure(
            stop_deadline_seconds=10.0,
            start_deadline_seconds=30.0,
            device_failed=self.device_failed,
            same_step_limit=self.same_step_limit,
            rules=rules,
        ).spec(total_steps=1000)
        return job.in_one_rack() if self.is_pinned else job


SHAPES = st.builds(
    Shape,
    replicas=st.integers(1, 3),
    spares=st.integers(0, 2),
    gpus=st.sampled_from([1, 2]),
    sizes=st.sampled_from([(2, 2), (3, 3), (4, 2), (3,), (2, 2, 2)]),
    is_pinned=st.booleans(),
    budget=st.sampled_from([2, 50, 50, 50]),
    device_failed=st.sampled_from(DeviceFailedPolicy),
    same_step_limit=st.sampled_from([0, 0, 1, 3]),
    action=st.sampled_from([None, None, None, *RuleAction]),
)

Step = tuple[str, int, int]


def _pick(model: GangModel, number: int) -> str:
    """A pod, members first: most numbers mean something and small ones mean the same thing in most stories."""
    members = [m.uid for m in model.status.members if m.uid in model.pods.now]
    uids = [*members, *(p.uid for p in model.gang if p.uid not in members)]
    return uids[number % len(uids)] if uids else ""


# --- who may do something ---------------------------------------------------------------------------------------------


def look(rules: Rules, a: int, b: int) -> None:
    rules.look(None if a % 3 else b)


def deliver(rules: Rules, a: int, b: int) -> None:
    rules.model.deliver(None if a % 2 else b)


def schedule(rules: Rules, a: int, b: int) -> None:
    rules.model.schedule(None if a % 3 else b)


def judge(rules: Rules, a: int, b: int) -> None:
    rules.model.judge()


def tell(rules: Rules, a: int, b: int) -> None:
    nodes = list(rules.model.nodes)
    for node in nodes if a % 3 else nodes[b % len(nodes) :][:1]:
        rules.model.tell(node)


def kubelet(rules: Rules, a: int, b: int) -> None:
    for uid in list(rules.model.pods.now) if a % 3 else [_pick(rules.model, b)]:
        rules.model.kubelet(uid)


def agents(rules: Rules, a: int, b: int) -> None:
    for uid in list(rules.model.launchers) if a % 3 else [_pick(rules.model, b)]:
        rules.model.agent(uid)
        rules.check()


def train(rules: Rules, a: int, b: int) -> None:
    rules.model.train(1 + b)


def wait(rules: Rules, a: int, b: int) -> None:
    rules.model.advance((0.1, 1.0, 3.0, 12.0, 40.0)[b % 5])


ROUND = (judge, deliver, look, schedule, tell, kubelet, agents)


def everyone(rules: Rules, a: int, b: int) -> None:
    """Fair rounds, looked at step by step; one of the actors may sleep through them."""
    asleep = ROUND[b] if b in (0, 1, 3, 4) else None
    for _ in range(1 + a % 3):
        for actor in ROUND:
            if actor is not asleep:
                actor(rules, 1, 0)
                rules.check()
        rules.model.advance(0.1)


def lag(rules: Rules, a: int, b: int) -> None:
    """One pod's node and agent fall behind the others; or have caught up."""
    rules.model.lagging.clear()
    if a % 3:
        rules.model.lagging.add(_pick(rules.model, b))


# --- what may break ---------------------------------------------------------------------------------------------------


def crash(rules: Rules, a: int, b: int) -> None:
    uid = _pick(rules.model, b)
    if rules.model.crash(uid):
        rules.note(uid, Cause.CODE)


def hang(rules: Rules, a: int, b: int) -> None:
    uid = _pick(rules.model, b)
    if rules.model.hang(uid):
        rules.note(uid, Cause.HANG)


def kill_launcher(rules: Rules, a: int, b: int) -> None:
    uid = _pick(rules.model, b)
    if rules.model.kill_launcher(uid):
        rules.note(uid, Cause.INFRA)


def break_device(rules: Rules, a: int, b: int) -> None:
    """Of a pod that holds some; every other time its process dies of it first."""
    uid = _pick(rules.model, b)
    pod = rules.model.pods.now.get(uid)
    held = pod.annotations.get("remuda.dev/devices", "").split(",") if pod is not None else [""]
    if pod is None or not held[0]:
        return
    rules.model.fail_device(pod.spec.node_name, held[a % len(held)])
    if a % 2 and rules.model.crash(uid):
        rules.note(uid, Cause.CODE)


def delete_pod(rules: Rules, a: int, b: int) -> None:
    uid = _pick(rules.model, b)
    rules.note(uid, Cause.INFRA)
    rules.model.delete_pod(uid)


def power_off(rules: Rules, a: int, b: int) -> None:
    nodes = list(rules.model.nodes)
    node = nodes[b % len(nodes)]
    if len(rules.model.off) >= 2 or node in rules.model.off:
        return
    rules.model.power_off(node)


def expire(rules: Rules, a: int, b: int) -> None:
    for node in list(rules.model.off):
        rules.model.expire(node)


def refuse(rules: Rules, a: int, b: int) -> None:
    """A node does not take the pod it was given."""
    for uid in list(rules.model.pods.now):
        before = rules.model.pods.now[uid]
        rules.model.kubelet(uid, refuse=True)
        after = rules.model.pods.now.get(uid)
        if after is not None and after.is_terminal and not before.is_terminal:
            rules.note(uid, Cause.INFRA)
            return


def occupy(rules: Rules, a: int, b: int) -> None:
    """Others come and take room, or go and leave it."""
    nodes = list(rules.model.nodes)
    if a % 3:
        rules.model.occupy(nodes[b % len(nodes)])
    else:
        rules.model.vacate()


def suspend(rules: Rules, a: int, b: int) -> None:
    """Told to stand still, or to go on."""
    rules.model.edit(suspend=bool(a % 2))


def get_stuck(rules: Rules, a: int, b: int) -> None:
    """The process cannot be killed: it waits for a device that does not answer."""
    uid = _pick(rules.model, b)
    launcher = rules.model.launchers.get(uid)
    stuck = [r for r in rules.model.launchers.values() if r.cannot_stop]
    if launcher is not None and launcher.state == "running" and not stuck:
        launcher.cannot_stop = True
        rules.note(uid, Cause.INFRA)


WORK = (look, deliver, schedule, judge, tell, kubelet, agents, train, wait, everyone, lag)
FAULTS = (crash, hang, kill_launcher, break_device, delete_pod, power_off, expire, refuse, occupy, get_stuck, suspend)
ACTORS: dict[str, Callable[[Rules, int, int], None]] = {actor.__name__: actor for actor in (*WORK, *FAULTS)}

STORIES = st.lists(
    st.tuples(
        st.sampled_from([*(a.__name__ for a in WORK), *["everyone"] * 4, *(a.__name__ for a in FAULTS)]),
        st.integers(0, 5),
        st.integers(0, 7),
    ),
    max_size=60,
)


def play(shape: Shape, story: list[Step]) -> Rules:
    rules = Rules(a_gang(shape.job(), racks(*shape.sizes, gpus=2)))
    for number, (name, a, b) in enumerate(story):
        try:
            ACTORS[name](rules, a, b)
            rules.check()
        except AssertionError as broken:
            raise AssertionError(f"step {number} {name}({a}, {b}): {broken}\n{rules.describe()}") from broken
    return rules


def end_well(rules: Rules) -> str:
    """Nothing breaks any more: the gang runs again, or has failed by name, or waits for room that there is not. Which."""
    model = rules.model
    for node in list(model.off):
        model.expire(node)
    model.lagging.clear()
    model.edit(suspend=False)
    quiet = 0
    for _ in range(SETTLE_ROUNDS):
        before = model.status
        for actor in ROUND:
            actor(rules, 1, 0)
            rules.check()
        model.advance(1.0)
        quiet = quiet + 1 if model.status == before else 0
        if model.job.is_finished or quiet > QUIET_ROUNDS or (model.is_running and not model.status.retired):
            break
    rules.check_given_up()
    status = model.status
    if model.job.is_finished:
        assert status.phase == "Failed", rules.describe()
        named = ("RuleFail", "SameStepFailing", "DeviceFailed")
        assert status.reason.endswith("BudgetExhausted") or status.reason in named, rules.describe()
        return "failed"
    elif model.is_running:
        assert status.reason == "BarrierOpen"
        return "runs"
    else:
        assert not rules.has_capacity(), rules.describe()
        assert status.barrier == "Closed", rules.describe()
        assert status.reason in ("DomainFull", "InsufficientDevices"), rules.describe()
        assert status.message
        return "waits for room"


@STEPS
@given(shape=SHAPES, story=STORIES)
def test_a_gang_keeps_the_rules_and_ends_well(shape: Shape, story: list[Step]) -> None:
    event(end_well(play(shape, story)))


@pytest.mark.parametrize("seed", range(12))
def test_long_stories(seed: int) -> None:
    """Hypothesis prefers short stories; some trouble needs a long one. The seed is the whole story."""
    chance = random.Random(seed)
    names = [*(actor.__name__ for actor in WORK), *["everyone"] * 6, *(actor.__name__ for actor in FAULTS)]
    shape = Shape(
        replicas=chance.randint(1, 4),
        spares=chance.randint(0, 2),
        gpus=chance.choice([1, 2]),
        sizes=chance.choice([(2, 2), (3, 3), (4, 2), (5, 5)]),
        is_pinned=chance.random() < 0.7,
        budget=50,
        device_failed=chance.choice(list(DeviceFailedPolicy)[:-1]),
        action=chance.choice([None, None, *list(RuleAction)[:-1]]),
    )
    story = [(chance.choice(names), chance.randint(0, 5), chance.randint(0, 7)) for _ in range(150)]
    end_well(play(shape, story))

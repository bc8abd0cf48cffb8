"""Incidents over random stories: devices that break and heal, nodes that come and go, ranks that crash, looks in any order.

Whatever the order: a failure has one incident, a closed one stays closed under its name, a look that is repeated changes nothing
(`Book` sees to both), every GPU-hour is counted once, and every incident is closed or says what it waits for.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
import pytest

from remuda.api.devices import DeviceState, Notice, Signal, Verdict
from remuda.api.incidents import IncidentOutcome, SubjectKind
from remuda.api.training import Cause, Recovery
from remuda.core.incidents.pods import NodeIncidentView
from remuda.core.incidents.summary import summarise_incidents
from tests.builders.incidents import T0, Book, a_device_pod, a_gang, a_recovery, a_sight, a_verdict, at

NODES, DEVICES = ("node-1", "node-2"), ("gpu-0", "gpu-1")
STORIES, STEPS = 100, 120


class Story:
    """What is true, as time goes on; every step changes something, lets time pass, or has somebody look."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.book = Book()
        self.now = 0.0
        self.verdicts = {(n, d): a_verdict(d, DeviceState.HEALTHY) for n in NODES for d in DEVICES}
        self.dead: dict[str, float] = {}
        self.notices: dict[str, Notice] = {}
        self.recoveries: list[Recovery] = []
        self.step = 10
        self.failures: Counter[tuple[str, str]] = Counter()  # that stood until somebody looked

    def play(self) -> None:
        for _ in range(STEPS):
            changes = (
                self.wait,
                self.wait,
                self.fail,
                self.heal,
                self.heal,
                self.blink,
                self.crash,
                self.progress,
                self.flap,
            )
            self.chance.choice((*changes, self.look_at_node, self.look_at_node, self.look_at_gang))()

    def wait(self) -> None:
        self.now += self.chance.choice([0.1, 1.0, 5.0, 20.0, 90.0])

    def fail(self) -> None:
        place = self.chance.choice(list(self.verdicts))
        state = self.chance.choice([DeviceState.UNHEALTHY, DeviceState.UNHEALTHY, DeviceState.DEGRADED])
        reason = self.chance.choice(["Xid79", "Xid48"])
        since = self.now - self.chance.choice([0.0, 0.5])
        self.verdicts[place] = a_verdict(place[1], state, reason, since, f"kmsg/{reason.lower()}")

    def heal(self) -> None:
        place = self.chance.choice(list(self.verdicts))
        if self.verdicts[place].state is not DeviceState.HEALTHY:
            self.verdicts[place] = a_verdict(place[1], DeviceState.HEALTHY, since=self.now)

    def blink(self) -> None:
        """Its agent is silent for a moment."""
        place = self.chance.choice(list(self.verdicts))
        if self.verdicts[place].state is DeviceState.HEALTHY:
            self.verdicts[place] = a_verdict(place[1], DeviceState.UNKNOWN, "AgentSilent", self.now, "lease/agent")

    def flap(self) -> None:
        node = self.chance.choice(NODES)
        if self.dead.pop(node, None) is None:
            self.dead[node] = self.now

    def crash(self) -> None:
        if self.recoveries and self.recoveries[-1].first_step_at is None:
            return
        self.now += 0.05
        node, device = self.chance.choice(list(self.verdicts))
        is_broken = self.verdicts[node, device].state is DeviceState.UNHEALTHY
        cause, reason = (
            (Cause.DEVICE, self.verdicts[node, device].reason) if is_broken else (Cause.CODE, "ProcessExited")
        )
        attempt = len(self.recoveries) + 2
        self.recoveries.append(
            a_recovery(attempt, self.now, cause, reason, node=node, devices=[device], step=self.step, exit_code=1)
        )

    def progress(self) -> None:
        self.step += self.chance.choice([0, 1, 5])
        if self.recoveries and self.recoveries[-1].first_step_at is None:
            hours = self.chance.choice([0.25, 1.0])
            self.recoveries[-1] = msgspec.structs.replace(
                self.recoveries[-1], first_step_at=at(self.now), lost_gpu_seconds=hours * 3600
            )

    def look_at_node(self) -> None:
        node = self.chance.choice(NODES)
        before = {i.name for i in self.book.all}
        self.book.see_node(self.sight(node), self.now)
        for name in {i.name for i in self.book.all} - before:
            subject = self.book.incidents[name].spec.subject
            self.failures[subject.node, subject.device] += 1

    def look_at_gang(self) -> None:
        self.book.see_gang(a_gang(*self.recoveries, step=self.step), self.now)

    def sight(self, node: str) -> NodeIncidentView:
        mine: list[Verdict] = [v for (n, _), v in self.verdicts.items() if n == node]
        signals = {v.device: [Signal("kmsg", v.reason, "x", v.since)] for v in mine if v.reason}
        pods = [a_device_pod(f"{node}-{v.device}", (v.device,), node=node) for v in mine if self.chance.random() < 0.5]
        return a_sight(*mine, name=node, signals=signals, pods=pods, dead_since=self.dead.get(node))


@pytest.mark.parametrize("seed", range(STORIES))
def test_one_incident_per_failure_whatever_the_order(seed: int) -> None:
    story = Story(seed)
    story.play()
    book = story.book
    # One open incident per subject at a time.
    subjects = Counter(msgspec.structs.astuple(i.spec.subject) for i in book.open)
    assert not [s for s, count in subjects.items() if count > 1]
    for incident in book.all:
        assert incident.status.opened_at is not None
        assert incident.status.message, incident.name
        if incident.is_open:
            assert "aits for" in incident.status.message or "This closes" in incident.status.message, incident.status
    # Two incidents of one device never tell of the same time.
    for place in story.verdicts:
        mine = [i for i in book.all if (i.spec.subject.node, i.spec.subject.device) == place]
        mine.sort(key=lambda i: i.status.opened_at or at(0))
        for one, other in itertools.pairwise(mine):
            assert one.status.closed_at is not None
            assert other.status.opened_at is not None
            assert one.status.closed_at <= other.status.opened_at


@pytest.mark.parametrize("seed", range(STORIES))
def test_everything_ends_when_the_trouble_does(seed: int) -> None:
    story = Story(seed)
    story.play()
    story.progress()
    story.step += 1000
    story.dead.clear()
    for _, device in list(story.verdicts):
        for node in NODES:
            story.verdicts[node, device] = a_verdict(device, DeviceState.HEALTHY, since=story.now)
    for pause in (0.1, 61.0, 61.0):
        story.now += pause
        for node in NODES:
            story.book.see_node(story.sight(node), story.now)
        story.look_at_gang()
    assert not story.book.open, [i.status.message for i in story.book.open]
    # Every interruption that nobody decided is in exactly one incident that counts.
    told = Counter(
        r.started_at
        for i in story.book.all
        if i.status.outcome is not IncidentOutcome.MERGED
        for r in i.status.remedies
        if not r.via
    )
    late = {r.detected_at for r in story.recoveries}
    assert set(told) <= late
    assert max(told.values(), default=1) == 1
    assert set(told) == late
    total = summarise_incidents(story.book.all, T0 + story.now)[-1]
    lost = sum(r.lost_gpu_seconds for r in story.recoveries) / 3600
    assert total.lost_gpu_hours == pytest.approx(lost)


def test_the_stories_are_worth_telling() -> None:
    """Without merges, re-opened devices and lost nodes the tests above would prove little."""
    seen: Counter[str] = Counter()
    for seed in range(STORIES):
        story = Story(seed)
        story.play()
        seen.update(i.status.outcome.value for i in story.book.all if i.status.outcome is not None)
        seen.update(f"{i.spec.subject.kind}" for i in story.book.all)
        seen["again"] += any(count > 1 for count in story.failures.values())
    assert seen["Merged"] > 10, seen
    assert seen["Cured"] > 50, seen
    assert seen[SubjectKind.NODE.value] > 50, seen
    assert seen["again"] > 20, seen

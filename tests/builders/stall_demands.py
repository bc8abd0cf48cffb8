"""What a schedule of stalls may cost, in one place. The rest is harm.

Always, whatever comes together: every healthy pod stays, with its place and its rank; nobody starts from step 0; no intact
checkpoint is lost; in the end the gang runs and makes steps, on devices that work. Every invariant of `tests.builders.invariants`
holds throughout, "a rank runs once" among them.

Two things excuse a rank that is handed on: its device failed (`broke`), or its node was beyond the reach of whoever could tell
that it lives for as long as a lease: stopped alone, or on the far side of a partition with few others. Where most nodes fall
silent at once nobody is handed on.

Alone, most acts do not even stop a rank: same attempt, no recovery. Without anybody who could vouch for a node it fences itself,
as it must (`_may_stop`), and so when several come together; then the gang starts again where it was.

"A rank runs once" leaves out ranks of a node whose own process is stopped: see `RANKS_OUTLIVE_AGENTS` of `stalled_world`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from remuda.api.training import Member, Recovery
from tests.builders.acts import Act, pick
from tests.builders.stalled_world import StalledWorld
from tests.builders.world import NAMESPACE, Gang

if TYPE_CHECKING:
    from tests.builders.stall_schedules import StallSchedule

CALM_S = 20.0
AGAIN_S = 120.0  # a hold and a lease may have to pass before the ranks start again
Place = tuple[str, str]  # node, device


def cut_nodes(world: StalledWorld, act: Act) -> list[str]:
    names = sorted(world.rack_of)
    return names[: max(1, round(act.pick * len(names)))]


class Before(msgspec.Struct, frozen=True):
    """By job: who sat where, all pods and their nodes, and the newest checkpoint of each rank."""

    gangs: dict[str, Gang]
    pods: dict[str, dict[str, str]]
    saved: dict[str, dict[int, int]]

    @classmethod
    def of(cls, world: StalledWorld) -> Before:
        names = [job.name for job in world.jobs()]
        return cls(
            {name: world.gang(name) for name in names},
            {name: {pod.uid: pod.spec.node_name for pod in world.pods(name)} for name in names},
            {name: _newest_checkpoints(world, name) for name in names},
        )


class Excuses:
    """What is excused by the acts so far."""

    def __init__(self, world: StalledWorld, schedule: StallSchedule) -> None:
        self._world = world
        self._schedule = schedule
        self.may_stop = False
        self.gone: set[str] = set()  # nodes whose ranks may be handed on
        self.broken: list[Place] = []
        self.hit: set[str] = set()  # uids of pods on them

    def note(self, act: Act) -> None:
        world, schedule = self._world, self._schedule
        self.may_stop |= schedule.is_overlapping or self._may_stop(act)
        is_long = schedule.is_overlapping or act.count >= 0.7 * schedule.lease_s
        if act.kind == "node-stop" and is_long:
            self.gone.add(pick(sorted(world.rack_of), act))
        elif act.pick < 0.5 and (act.kind == "partition" or (act.kind == "api-cut" and self._may_lack_leader)):
            self.gone.update(cut_nodes(world, act))

    @property
    def _may_lack_leader(self) -> bool:
        """Nodes fence themselves for want of one; a fenced node asks nobody, so who leads next knows it by its lease alone. So
        does a manager that was stopped for longer than a fence waits, when it runs again."""
        schedule = self._schedule
        may_lack = schedule.timing is not None or any(act.kind == "manager-stop" for act in schedule.acts)
        return may_lack and schedule.is_overlapping

    def _may_stop(self, act: Act) -> bool:
        timing = self._schedule.timing
        if act.kind in ("cut-off", "partition"):
            return True
        if act.kind == "node-stop":
            return act.count >= 0.7 * self._schedule.lease_s
        # A manager whose term is over vouches for nobody, and the next one has to be elected first.
        is_leaderless = timing is not None and act.count + 2 * timing.retry_s > timing.renew_s
        return is_leaderless and act.kind in ("stop", "api-stop", "api-away")

    def broke(self, member: Member) -> None:
        self.broken.append((member.node, member.devices[0]))
        self.hit.add(member.uid)

    def is_excused(self, uid: str, node: str) -> bool:
        return node in self.gone or uid in self.hit


async def assert_no_harm(world: StalledWorld, before: Before, excuses: Excuses) -> None:
    jobs = list(before.gangs)
    for name in jobs:
        await _at_work(world, name)
    await world.until(lambda: not _on_broken(world, excuses), AGAIN_S, "nobody is on a device that failed")
    await world.sleep(CALM_S)
    for name in jobs:
        await _at_work(world, name)
        _assert_healthy_pods_stay(world, before, excuses, name)
        _assert_ranks_stay(world, before, excuses, name)
        _assert_work_kept(world, before, name)
        _assert_stops_are_due(world, excuses, name)
    await _assert_steps(world)


async def _at_work(world: StalledWorld, job: str) -> None:
    """A rank that ran on alone for long may be too far ahead of those that were fenced: an artefact of the model."""
    await world.until(lambda: world.is_running(job) or world.has_nowhere_to_resume(job), AGAIN_S, f"{job} runs")


def _assert_healthy_pods_stay(world: StalledWorld, before: Before, excuses: Excuses, job: str) -> None:
    there = {pod.uid for pod in world.pods(job)}
    pods = before.pods[job].items()
    lost = [uid for uid, node in pods if uid not in there and not excuses.is_excused(uid, node)]
    assert not lost, f"healthy pods of {job} were replaced: {lost}\n{world.describe()}"


def _assert_ranks_stay(world: StalledWorld, before: Before, excuses: Excuses, job: str) -> None:
    after = world.gang(job)
    assert sorted(after) == sorted(before.gangs[job]), world.describe()
    seats = before.gangs[job].items()
    moved = [rank for rank, seat in seats if after[rank] != seat and not excuses.is_excused(seat.uid, seat.node)]
    assert not moved, f"ranks {moved} of {job} were moved\n{world.describe()}"


def _assert_work_kept(world: StalledWorld, before: Before, job: str) -> None:
    recoveries = world.job(job).status.recoveries
    assert all((r.resume_step or 0) >= 10 for r in recoveries), f"{job} from step 0\n{world.describe()}"
    kept = _newest_checkpoints(world, job)
    assert all(newest <= kept[rank] for rank, newest in before.saved[job].items()), "a checkpoint was lost"


def _assert_stops_are_due(world: StalledWorld, excuses: Excuses, job: str) -> None:
    status = world.job(job).status
    if not excuses.may_stop:
        due = len(excuses.broken) if job == "job" else 0
        others = [r for r in status.recoveries if not _is_of_device(r)]
        assert not others, f"a healthy rank of {job} was stopped\n{world.describe()}"
        assert status.attempt == 1 + due, f"{job} was stopped {status.attempt - 1} times\n{world.describe()}"
    elif job != "job":
        assert not any(_is_of_device(r) for r in status.recoveries), f"nothing of {job} broke\n{world.describe()}"


def _is_of_device(recovery: Recovery) -> bool:
    return recovery.cause == "device"


async def _assert_steps(world: StalledWorld) -> None:
    steps = {uid: child.step for uid, child in world.children()}
    await world.sleep(6.0)
    for uid, child in world.children():
        assert child.step > steps.get(uid, -1), f"{uid} makes no steps\n{world.describe()}"


def _on_broken(world: StalledWorld, excuses: Excuses) -> list[int]:
    broken = set(excuses.broken)
    return [rank for rank, seat in world.gang().items() if broken & {(seat.node, d) for d in seat.devices}]


def _newest_checkpoints(world: StalledWorld, job: str) -> dict[int, int]:
    return {rank: max(world.checkpoints.usable((NAMESPACE, job), rank)) for rank in world.gang(job)}

"""Random fault schedules: a seed -> a cluster, one or two jobs, and what breaks when. All drawn before anything runs.

`draw` makes a `Schedule`, plain data that can be printed. `act_out` plays it in a world and then demands an end that can be
explained: every job runs and makes steps, or has succeeded, or failed or waits for a reason that is true. Whether it is true
is worked out here from the pods and devices alone, not from what the control plane says.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import msgspec

from remuda.api.drills import DrillKind
from remuda.api.names import LABEL_GANG
from remuda.api.training import Budgets, Cause, Member, TrainingJob
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.acts import Act, Actor, pick
from tests.builders.stops import wrong_charges
from tests.builders.world import NAMESPACE, Injected, World

CALM_S = 12.0  # longer than the look-back: what comes later is judged for itself
RECOVERY_S = 20.0  # within this a lone fault is found and cured: a lease, a stop and a start
SETTLE_S = 90.0
UNHEALTHY = ("xid-79", "xid-48", "xid-95")
HARMLESS = "xid-13"

CAUSE_OF = {
    DrillKind.PROCESS_KILL: Cause.CODE,
    DrillKind.PROCESS_HANG: Cause.HANG,
    DrillKind.DEVICE_FAIL: Cause.DEVICE,
    DrillKind.LAUNCHER_KILL: Cause.INFRA,
    DrillKind.POD_DELETE: Cause.INFRA,
    DrillKind.NODE_LOST: Cause.INFRA,
}


class JobPlan(msgspec.Struct, frozen=True):
    name: str
    replicas: int
    gpus: int
    spares: int
    rack: bool
    hang_after: float
    budgets: Budgets
    behaviour: SimulatedBehaviour


class Schedule(msgspec.Struct, frozen=True):
    seed: int
    nodes: int
    racks: int
    lease_s: float
    pull_s: float
    lag_s: float
    jobs: tuple[JobPlan, ...]
    acts: tuple[Act, ...]


KINDS = {
    "process": 4,
    "hang": 2,
    "launcher": 3,
    "device": 5,
    "idle-device": 1,
    "harmless": 1,
    "pod": 3,
    "node": 2,
    "spare-device": 2,
    "spare-pod": 1,
    "cut-off": 2,
    "corrupt": 2,
    "restart": 2,
    "restart-at-write": 3,
    "power": 1,
    "power-at-commit": 2,
}


def draw(seed: int) -> Schedule:
    rng = random.Random(seed)
    gpus = rng.choice((8, 8, 4, 2))
    count = rng.choice((1, 1, 2))
    racks = rng.choice((1, 2, 2, 3))
    jobs = tuple(_draw_job(rng, index, gpus) for index in range(count))
    needed = sum(j.replicas + j.spares for j in jobs) * gpus / 8
    nodes = max(racks, round(needed * rng.choice((0.9, 1.2, 1.3, 1.6, 2.0)) + rng.randint(0, 2)), 2)
    acts = tuple(_draw_act(rng) for _ in range(rng.randint(3, 10)))
    lease_s, pull_s, lag_s = rng.choice((5.0, 10.0)), rng.choice((0.0, 0.0, 3.0)), rng.choice((0.0, 0.0, 0.02, 0.2))
    return Schedule(seed, nodes, racks, lease_s, pull_s, lag_s, jobs, acts)


def _draw_job(rng: random.Random, index: int, gpus: int) -> JobPlan:
    behaviour = SimulatedBehaviour(
        step_s=rng.choice((0.7, 1.0)),
        jitter=rng.choice((0.0, 0.1)),
        checkpoint_every=rng.choice((3, 5, 10, 0)),
        steps=rng.choice((0, 0, 0, 30)),
        start_s=rng.choice((0.05, 0.05, 1.5)),
        child_start_s=rng.choice((0.1, 1.0)),
        stop_s=rng.choice((0.05, 0.05, 0.5, 10.0)),
    )
    tight = Budgets(code=1, device=2, infra=2, hang=1)
    return JobPlan(
        name=f"job-{index}",
        replicas=rng.randint(2, 5),
        gpus=gpus,
        spares=rng.choice((0, 1, 1, 2)),
        rack=rng.random() < 0.8,
        hang_after=rng.choice((0.0, 4.0, 4.0)),
        budgets=rng.choice((Budgets(), Budgets(code=10, device=20, infra=20, hang=10), tight)),
        behaviour=behaviour,
    )


def _draw_act(rng: random.Random) -> Act:
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    wait = rng.choice(
        (0.0, rng.uniform(0.0, 0.3), rng.uniform(0.3, 4.0), rng.uniform(0.3, 4.0), rng.uniform(20.0, 26.0))
    )
    code = HARMLESS if kind == "harmless" else rng.choice(UNHEALTHY)
    return Act(round(wait, 3), kind, rng.random(), rng.randint(1, 25), code)


# --- playing it -------------------------------------------------------------------------------------------------------


def options(schedule: Schedule) -> dict[str, object]:
    """For `play`."""
    return {
        "seed": schedule.seed,
        "nodes": schedule.nodes,
        "racks": schedule.racks,
        "lease_s": schedule.lease_s,
        "pull_s": schedule.pull_s,
        "lag_s": schedule.lag_s,
    }


async def act_out(world: World, schedule: Schedule) -> None:
    for job in schedule.jobs:
        for index in range(60):
            world.behaviours[f"{job.name}-worker-{index}"] = job.behaviour
        await world.submit(
            job.name,
            replicas=job.replicas,
            gpus=job.gpus,
            spares=job.spares,
            rack=job.rack,
            budgets=job.budgets,
            hang_after_seconds=job.hang_after,
            start_deadline_seconds=20.0,
        )
    await world.sleep(6.0)
    actor = StrictActor(world, schedule)
    for act in schedule.acts:
        await actor.perform(act)
    await actor.finish()


class StrictActor(Actor):
    """Knows what a lone fault must cost."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        super().__init__(world)
        self.plans = {job.name: job for job in schedule.jobs}
        self._last_act_at = 0.0
        self._heal_at: dict[str, float] = {}  # by node that is cut off
        self._lone: tuple[Cause | None, tuple[str, ...], dict[str, dict[str, int]]] | None = None

    async def perform(self, act: Act) -> None:
        world = self.world
        await self._pass(act.wait)
        if act.wait >= RECOVERY_S:
            self._check_lone_charge()
        self._lone = None
        calm = world.now - self._last_act_at >= CALM_S and all(self._is_at_work(job) for job in world.jobs())
        used = {job.name: job.status.used for job in world.jobs()}
        members = {m.pod: m for job in world.jobs() if not job.is_finished for m in job.status.members}
        before = len(world.injected)
        await self._do(act)
        if calm and len(world.injected) == before + 1 and world.injected[-1].is_certain:
            self._lone = (*self._expected(act, members), used)
        self._last_act_at = world.now

    def _tick(self) -> None:
        self._heal(self.world.now)

    def _power_is_back(self) -> None:
        self._lone = None

    def _heal(self, now: float) -> None:
        for node in [node for node, at in self._heal_at.items() if at <= now]:
            del self._heal_at[node]
            self.world.machines.cut_off.discard(node)

    # --- the faults ---------------------------------------------------------------------------------------------------

    async def _pod(self, act: Act) -> None:
        await self._hit_member(DrillKind.POD_DELETE, act)

    async def _harmless(self, act: Act) -> None:
        await self._device(act)

    async def _idle_device(self, act: Act) -> None:
        held = set(self.world.holders())
        await self._break([place for place in self._all() if place not in held], act)

    async def _spare_pod(self, act: Act) -> None:
        spares = [s.pod for job in self.world.jobs() for s in job.status.spares]
        if spares:
            await self._blow(DrillKind.POD_DELETE, pod=pick(spares, act), namespace=NAMESPACE)

    async def _cut_off(self, act: Act) -> None:
        """A node's leases and reports do not get through for a while: too short to matter, long enough to fence, or to die."""
        world = self.world
        node = pick(sorted(world.rack_of), act)
        world.machines.cut_off.add(node)
        self._heal_at[node] = world.now + act.count
        # Twice at most: it fences itself, and is called dead later.
        cut = Injected(DrillKind.NODE_LOST, world.now, f"{node} cut off", (), is_certain=False, seconds=act.count)
        world.injected.append(cut)

    async def _corrupt(self, act: Act) -> None:
        job = pick(self.world.jobs(), act)
        self.world.checkpoints.corrupt((NAMESPACE, job.name), act.count % self.plans[job.name].replicas)

    # --- who was charged ----------------------------------------------------------------------------------------------

    def _is_at_work(self, job: TrainingJob) -> bool:
        return job.is_finished or self.world.is_running(job.name)

    def _expected(self, act: Act, members: dict[str, Member]) -> tuple[Cause | None, tuple[str, ...]]:
        """Who has to be charged for a lone fault, and to which cause; None: nobody."""
        fault = self.world.injected[-1]
        if act.kind in ("harmless", "idle-device"):
            return None, ()
        if fault.kind is DrillKind.PROCESS_HANG:
            jobs = tuple(job for job in fault.jobs if self.plans[job].hang_after)
            return (Cause.HANG, jobs) if jobs else (None, ())
        if fault.kind is DrillKind.DEVICE_FAIL:
            node, device = fault.what.split()
            hit = [p for p, m in members.items() if m.node == node and device in m.devices]
        elif fault.kind is DrillKind.NODE_LOST:
            hit = [p for p, m in members.items() if m.node == fault.what]
        else:
            hit = [p for p in members if p == fault.what]
        return CAUSE_OF[fault.kind], tuple(sorted({p.rsplit("-worker-", 1)[0] for p in hit}))

    def _check_lone_charge(self) -> None:
        """A fault with nothing else near it is charged once, to its true cause, to the jobs it hit and to no other."""
        if self._lone is None:
            return
        cause, hit, before = self._lone
        for job in self.world.jobs():
            if job.status.phase == "Succeeded":
                continue
            expected = Counter(before[job.name])
            if cause is not None and job.name in hit:
                expected[cause.value] += 1
            assert Counter(job.status.used) == expected, (
                f"seed {self.world.seed}: {job.name} was charged {job.status.used}, expected {dict(expected)}\n"
                + self.world.describe()
            )

    # --- the end ------------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        world = self.world
        await self._pass(RECOVERY_S)
        self._check_lone_charge()
        self._no_more_crashes()
        self._heal(math.inf)
        await world.until(self._is_settled, SETTLE_S, "every job has come to an end or runs")
        steps = {uid: child.step for uid, child in world.children()}
        await world.sleep(3.0)
        for job in world.jobs():
            self._check_end(job, steps)
        wrong = wrong_charges(world)
        assert not wrong, "\n  ".join(["charged wrongly:", *wrong]) + f"\n{world.describe()}"

    def _is_settled(self) -> bool:
        world = self.world
        for job in world.jobs():
            if job.is_finished:
                is_kept = job.status.phase == "Failed"  # for their logs, ended
                if any(not (is_kept and pod.is_terminal) for pod in world.pods(job.name)):
                    return False
            elif self._hangs(job):
                if self.plans[job.name].hang_after:
                    return False  # it will be found
            elif world.has_nowhere_to_resume(job.name):
                continue
            elif not world.is_running(job.name) and (not job.status.reason or self._fits(job)):
                return False
        return True

    def _hangs(self, job: TrainingJob) -> bool:
        members = {m.uid for m in job.status.members}
        return any(child.is_hung for uid, child in self.world.children() if uid in members)

    def _check_end(self, job: TrainingJob, steps: dict[str, int]) -> None:
        world, status = self.world, job.status
        if status.phase == "Failed" and status.reason == "SameStepFailing":
            there = [r for r in status.recoveries if r.step_at_fault == status.recoveries[-1].step_at_fault]
            assert len(there) > job.spec.failure.same_step_limit, world.describe()
        elif status.phase == "Failed":
            cause = status.reason.removesuffix("BudgetExhausted").lower()
            limit = job.spec.failure.budgets.limit(Cause(cause))
            assert status.used[cause] == limit + 1, world.describe()
        elif status.phase == "Running":
            for uid, child in world.children():
                if uid in {m.uid for m in status.members} and not child.is_hung:
                    assert child.step > steps[uid], f"{uid} makes no steps\n{world.describe()}"
        elif status.phase != "Succeeded" and not world.has_nowhere_to_resume(job.name):
            assert status.reason in ("DomainFull", "GangTooLarge", "InsufficientDevices", "NoRoom"), world.describe()
            assert not self._fits(job), f"{job.name} waits although there is room\n{world.describe()}"

    def _fits(self, job: TrainingJob) -> bool:
        """Whether all members of the job would fit somewhere, if it let go of what it holds."""
        world, plan = self.world, self.plans[job.name]
        free = self._free_devices(job.name)
        places = Counter({node: count // plan.gpus for node, count in free.items()})
        if not plan.rack:
            return places.total() >= plan.replicas
        racks: Counter[str] = Counter()
        for node, count in places.items():
            racks[world.rack_of[node]] += count
        return max(racks.values(), default=0) >= plan.replicas

    def _free_devices(self, job: str) -> Counter[str]:
        """Good devices per living node that no pod of another job holds."""
        world = self.world
        free: Counter[str] = Counter()
        taken = {
            (pod.spec.node_name, device)
            for other in world.jobs()
            for pod in world.pods(other.name)
            if pod.labels.get(LABEL_GANG) != job and not pod.is_terminal
            for device in snapshot_devices_of_pod(pod)
        }
        for name, node in world.cluster.machines.nodes.items():
            if not node.is_lost:
                bad = {d for n, d in world.invariants.bad_since if n == name}
                free[name] = sum(1 for n in range(8) if f"gpu-{n}" not in bad and (name, f"gpu-{n}") not in taken)
        return free

"""Plays a schedule of `tests.builders.recoveries`: breaks things, speaks for the operators, and then demands an end."""

from __future__ import annotations

import msgspec

from remuda.api.drills import DrillKind
from remuda.api.errors import Conflict, NotFound
from remuda.api.incidents import Incident, RemedyOutcome
from remuda.api.kubernetes.core_v1 import Namespace, Node
from remuda.api.kubernetes.policy_v1 import ResourceQuota
from remuda.api.meta import JsonObject, KObject, ObjectMeta, to_time
from remuda.api.names import ANNOTATION_CORDONED_BY, LABEL_RESERVATION, RESOURCE_GPU
from remuda.api.remedies import RemedyPolicy
from remuda.api.training import Straggler, Topology, TrainingJob
from remuda.runtime.up_config import RACK_LABEL
from tests.builders import recovery_end as end
from tests.builders.acts import Act, Actor, pick
from tests.builders.foreign import bare, deploy, submit_job
from tests.builders.recoveries import GUESTS, ForeignPlan, GangPlan, RecoverySchedule, quota_body
from tests.builders.stops import wrong_charges
from tests.builders.world import NAMESPACE, World, training_job

SETTLE_S = 900.0
LOOK_S = 10.0


async def act_out(world: World, schedule: RecoverySchedule) -> None:
    api = world.cluster.api
    if schedule.policy is not None:
        await api.create(RemedyPolicy, RemedyPolicy(metadata=ObjectMeta(name="default"), spec=schedule.policy))
    await api.create(Namespace, Namespace(metadata=ObjectMeta(name=GUESTS)))
    for number, name in enumerate(sorted(world.rack_of)) if schedule.reserved else ():
        whose = "reserved" if number < schedule.reserved else "on-demand"
        await api.patch(Node, name, {"metadata": {"labels": {LABEL_RESERVATION: whose}}})
    if schedule.quota:
        await api.create(ResourceQuota, quota_body(schedule.quota, NAMESPACE))
    for gang in schedule.gangs:
        for index in range(80):
            world.behaviours[f"{gang.name}-worker-{index}"] = gang.behaviour
        await api.create(TrainingJob, job_of(gang))
    for plan in schedule.foreign:
        await _create(world, plan)
    await world.sleep(6.0)
    actor = RecoveryActor(world, schedule)
    for act in schedule.acts:
        await actor.perform(act)
    await actor.finish()


def job_of(gang: GangPlan) -> TrainingJob:
    job = training_job(
        gang.name,
        replicas=gang.replicas,
        gpus=gang.gpus,
        spares=gang.spares,
        budgets=gang.budgets,
        hang_after_seconds=gang.hang_after,
        start_deadline_seconds=20.0,
        straggler=Straggler(policy=gang.straggler),
    )
    role = msgspec.structs.replace(job.spec.roles[0], min_replicas=gang.least)
    topology = Topology(required=RACK_LABEL if gang.rack else "", segment_size=gang.segment)
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, roles=[role], topology=topology))


async def _create(world: World, plan: ForeignPlan) -> None:
    if plan.kind == "Deployment":
        await deploy(world, plan.name, plan.replicas, gpus=plan.gpus, namespace=plan.namespace)
    elif plan.kind == "Job":
        await submit_job(
            world,
            plan.name,
            gpus=plan.gpus,
            namespace=plan.namespace,
            completions=plan.replicas,
            parallelism=plan.replicas,
        )
    else:
        await bare(world, plan.name, gpus=plan.gpus, namespace=plan.namespace)


class RecoveryActor(Actor):
    look_s = 0.5

    def __init__(self, world: World, schedule: RecoverySchedule) -> None:
        super().__init__(world)
        self.schedule = schedule

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _pod(self, act: Act) -> None:
        pods = self.world.all_pods()
        if pods:
            pod = pick(pods, act)
            await self._blow(DrillKind.POD_DELETE, pod=pod.name, namespace=pod.namespace)

    # --- devices ------------------------------------------------------------------------------------------------------

    async def _any_device(self, act: Act) -> None:
        await self._break(self._all(), act)

    async def _drop(self, act: Act) -> None:
        seconds = float(act.count) if act.count % 2 else 0.0
        await self._hit_device(DrillKind.DEVICE_DROP, self._held() or self._all(), act, seconds=seconds)

    async def _flap(self, act: Act) -> None:
        await self._hit_device(DrillKind.DEVICE_FLAP, self._held() or self._all(), act, times=1 + act.count % 4)

    async def _slow(self, act: Act) -> None:
        factor = 1.5 + act.count / 10
        await self._hit_device(DrillKind.DEVICE_SLOW, self._held(), act, factor=factor, seconds=30.0 + 3 * act.count)

    async def _ecc(self, act: Act) -> None:
        await self._hit_device(DrillKind.ECC_TREND, self._held() or self._all(), act, times=500 * act.count)

    async def _idle(self, act: Act) -> None:
        await self._hit_device(DrillKind.DEVICE_IDLE, self._held(), act, seconds=30.0)

    async def _replace(self, act: Act) -> None:
        bad = [p for p in self._all() if self.world.remedies.out_since(*p) is not None]
        await self._hit_device(DrillKind.DEVICE_REPLACE, bad, act)

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def _power_cap(self, act: Act) -> None:
        await self._hit_node(DrillKind.POWER_CAP, act, factor=2.0, seconds=20.0 + act.count)

    async def _plugin(self, act: Act) -> None:
        kind = DrillKind.PLUGIN_HANG if act.count % 2 else DrillKind.PLUGIN_KILL
        await self._hit_node(kind, act, resource=RESOURCE_GPU, seconds=float(act.count))

    async def _allocate(self, act: Act) -> None:
        await self._hit_node(DrillKind.ALLOCATE_FAIL, act, resource=RESOURCE_GPU, seconds=2.0 * act.count)

    async def _kubelet(self, act: Act) -> None:
        await self._hit_node(DrillKind.KUBELET_RESTART, act)

    async def _reboot(self, act: Act) -> None:
        await self._hit_node(DrillKind.NODE_REBOOT, act)

    async def _partition(self, act: Act) -> None:
        await self._hit_node(DrillKind.NODE_PARTITION, act, seconds=float(act.count))

    async def _spot(self, act: Act) -> None:
        await self._hit_node(DrillKind.SPOT_NOTICE, act, seconds=5.0 + act.count)

    async def _maintenance(self, act: Act) -> None:
        await self._hit_node(DrillKind.MAINTENANCE_NOTICE, act, seconds=5.0 + act.count)

    # --- people -------------------------------------------------------------------------------------------------------

    async def _say(self, kind: type[KObject], name: str, patch: JsonObject, namespace: str = "") -> None:
        try:
            await self.world.cluster.api.patch(kind, name, patch, namespace)
        except (NotFound, Conflict):
            pass  # a person sees it and goes away
        await self._crashes()

    async def _answer(self, act: Act, *, granted: bool) -> None:
        asked = [
            (i, r.key)
            for i in self.world._read_all(Incident)
            for r in i.status.remedies
            if i.is_open and r.outcome is RemedyOutcome.WAITING
        ]
        if asked:
            incident, key = pick(asked, act)
            said = [*incident.spec.approvals, {"remedy": key, "by": "op", "granted": granted}]
            await self._say(Incident, incident.name, {"spec": {"approvals": msgspec.to_builtins(said)}})

    async def _approve(self, act: Act) -> None:
        await self._answer(act, granted=True)

    async def _deny(self, act: Act) -> None:
        await self._answer(act, granted=False)

    async def _pause(self, act: Act) -> None:
        if self.schedule.policy is not None:
            now = self.world.loop.clock()
            pause = {"by": "op", "message": "A change freeze", "since": to_time(now).isoformat()}
            if act.count % 2:
                pause["until"] = to_time(now + 3 * act.count).isoformat()
            await self._say(RemedyPolicy, "default", {"spec": {"pause": pause}})

    async def _unpause(self, act: Act) -> None:
        if self.schedule.policy is not None:
            await self._say(RemedyPolicy, "default", {"spec": {"pause": None}})

    async def _cordon(self, act: Act) -> None:
        free = [n.name for n in self.world._read_all(Node) if not n.spec.unschedulable]
        if not free:
            return
        name = pick(free, act)
        await self._say(Node, name, {"spec": {"unschedulable": True}})
        node = self.world._read(Node, name)
        if node is not None and node.spec.unschedulable and not node.annotations.get(ANNOTATION_CORDONED_BY):
            self.world.remedies.theirs.add(name)

    async def _uncordon(self, act: Act) -> None:
        if self.world.remedies.theirs:
            name = pick(sorted(self.world.remedies.theirs), act)
            self.world.remedies.theirs.discard(name)
            await self._say(Node, name, {"spec": {"unschedulable": None}})

    async def _suspend(self, act: Act, *, suspend: bool = True) -> None:
        jobs = [j for j in self.world.jobs() if not j.is_finished and j.spec.suspend is not suspend]
        if jobs:
            await self._say(TrainingJob, pick(jobs, act).name, {"spec": {"suspend": suspend}}, NAMESPACE)

    async def _resume(self, act: Act) -> None:
        await self._suspend(act, suspend=False)

    async def _dismiss(self, act: Act) -> None:
        there = [i for i in self.world._read_all(Incident) if i.is_open]
        if there:
            await self._say(Incident, pick(there, act).name, {"spec": {"dismiss": "Known."}})

    # --- the end ------------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        world = self.world
        await self._pass(20.0)
        self._no_more_crashes()
        until = world.now + SETTLE_S
        while world.now < until and self._open_ends():
            await world.sleep(LOOK_S)
        found = self._open_ends()
        steps = {uid: child.step for uid, child in world.children()}
        attempts = {job.name: job.status.attempt for job in world.jobs()}
        await world.sleep(8.0)
        for job in world.jobs():
            # One that began another attempt meanwhile (a slow device was swapped) runs again only when it has made steps.
            if world.is_running(job.name) and job.status.attempt == attempts[job.name]:
                children = dict(world.children())
                found += [
                    f"{m.pod} makes no steps"
                    for m in job.status.members
                    if m.uid in children
                    and not children[m.uid].is_hung
                    and children[m.uid].step <= steps.get(m.uid, -1)
                ]
        found += [*wrong_charges(world), *end.wrong_holders(world)]
        assert not found, "\n  ".join(["at the end:", *found]) + f"\n{world.describe()}"

    def _open_ends(self) -> list[str]:
        world = self.world
        return [
            *end.drills_not_over(world),
            *end.jobs_not_done(world, self.schedule),
            *end.incidents_not_done(world),
        ]

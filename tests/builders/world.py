"""`World`: a whole embedded cluster with simulated pods, in virtual time, that tests can break and watch.

    @in_world(nodes=12, racks=2)
    async def test_something(world: World) -> None:
        await world.submit("job", replicas=4, spares=1)
        await world.running("job")
        await world.kill_process("job", rank=2)
        await world.running("job", attempt=2)

Store, API, scheduler, controllers, agents, launcher decisions and the barrier are the real ones; only processes and the clock
are models. Every committed change goes past `Invariants`; a world that ends, or waits, with a violation fails the test. The
same seed and story give the same history, byte for byte.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from structlog.typing import EventDict

from remuda.agent.agent import Agent
from remuda.api.devices import NodeDevices
from remuda.api.drills import Drill, DrillKind, DrillSpec
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import KObject, ObjectMeta, to_time
from remuda.api.names import ANNOTATION_GIVEN_UP, LABEL_GANG
from remuda.api.training import (
    Budgets,
    Failure,
    Member,
    PodTemplate,
    Recovery,
    Role,
    Topology,
    TrainingJob,
    TrainingJobSpec,
)
from remuda.core.health.mass_silence import MassSilenceRule
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.store.record import StoreEvent
from remuda.embedded.node.simulated_runtime import SimulatedRuntime
from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints, SimulatedTraining
from remuda.kube.runtime.leader import lease_micro_time
from remuda.launch.protocol import MAX_CHECKPOINTS
from remuda.runtime.embedded_cluster import EmbeddedCluster
from remuda.runtime.up_config import RACK_LABEL, ClusterConfig
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.invariants import Invariants, Nothing, Place
from tests.builders.listening import listening
from tests.builders.remedy_invariants import RemedyInvariants
from tests.builders.taps import Kill, MortalCluster, WatchedJournal

K = TypeVar("K", bound=KObject)
T = TypeVar("T")
P = ParamSpec("P")

NAMESPACE = "default"
POLL_S = 0.25  # heartbeats are not in the history, so waiting looks now and then without a commit, too
STEADY = SimulatedBehaviour(step_s=0.5, checkpoint_every=10)


class Seat(msgspec.Struct, frozen=True):
    """Where a rank sits."""

    uid: str
    pod: str
    node: str
    devices: tuple[str, ...]


Gang = dict[int, Seat]  # by rank


class Injected(msgspec.Struct, frozen=True):
    """A fault that was really carried out."""

    kind: DrillKind
    at: float
    what: str  # pod, node, or node and device
    jobs: tuple[str, ...]  # that had a pod there
    is_certain: bool = True  # False: the power went before its end was on the disk, so it may happen again
    seconds: float = 0.0  # that it lasts, or until it comes true


def training_job(
    name: str,
    *,
    replicas: int = 4,
    gpus: int = 8,
    spares: int = 0,
    rack: bool = True,
    budgets: Budgets | None = None,
    **failure: Any,
) -> TrainingJob:
    """`failure`: fields of spec.failure."""
    template = PodTemplate(spec={"containers": [{"name": "main", "command": ["train"]}]})
    return TrainingJob(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE),
        spec=TrainingJobSpec(
            roles=[Role(replicas=replicas, gpus=gpus, template=template)],
            spares=spares,
            topology=Topology(required=RACK_LABEL if rack else ""),
            failure=Failure(budgets=budgets or Budgets(), **failure),
        ),
    )


class World:
    """`behaviours` (by pod name) and `behaviour` say how simulated pods behave; `lag_s`: how late, at most, the
    control plane and the nodes hear of things, and their writes arrive (unless `write_lag_s` says otherwise). `admits`: the
    API has admission, as that of `remuda up` has: quotas count. `hook_kinds`: of objects that hooks may make.
    `guards_stalls` False: nobody minds their own stalls. `vouches` False: the manager promises nobody anything."""

    checkpoints_of: Callable[[Agent], SimulatedCheckpoints] | None = None  # where nodes share no file system

    def __init__(
        self,
        loop: VirtualLoop,
        *,
        seed: int = 0,
        nodes: int = 12,
        racks: int = 2,
        model: str = "dgx-h100",
        behaviour: SimulatedBehaviour = STEADY,
        lease_s: float = 8.0,
        pull_s: float = 0.0,
        lag_s: float = 0.0,
        write_lag_s: float | None = None,
        keeps_history: bool = False,
        admits: bool = False,
        hook_kinds: tuple[str, ...] = (),
        guards_stalls: bool = True,
        mass_silence: MassSilenceRule | None = None,
        vouches: bool = True,
    ) -> None:
        self.loop = loop
        self.vouches = vouches
        self.mass_silence = mass_silence
        self.guards_stalls = guards_stalls
        self.clock_ahead_s = 0.0  # how far everybody's clock has jumped
        self.split_off: set[str] = set()  # nodes that do not hear the manager beside the API
        self.seed = seed
        self.config = ClusterConfig(
            nodes=nodes,
            racks=racks,
            model=model,
            runtime="simulated",
            lease_seconds=lease_s,
            pull_seconds=pull_s,
            allow_hook_kinds=hook_kinds,
        )
        self.rack_of = {name: self.config.rack_of(ix) for ix, name in enumerate(self.config.node_names())}
        self.behaviour = behaviour
        self.behaviours: dict[str, SimulatedBehaviour] = {}
        self.checkpoints = SimulatedCheckpoints()
        self.lag_s = lag_s
        self.write_lag_s = lag_s if write_lag_s is None else write_lag_s
        self.admits = admits
        self.invariants = Invariants(loop.time, self.rack_of, staleness_s=20 * lag_s)
        self.remedies = RemedyInvariants(loop.time, staleness_s=20 * lag_s)
        self.injected: list[Injected] = []
        self.cuts: list[float] = []  # when it started again after the power went
        self.errors: list[str] = []
        self.digest = hashlib.sha256() if keeps_history else None
        self.changed = asyncio.Event()
        self._chance = random.Random(seed)
        self._uids = 0
        self._drills = 0
        self.journal = WatchedJournal(self._see)
        self.manager = Kill()
        self.machines = Kill()
        self.cluster = self._cluster()

    def _cluster(self) -> EmbeddedCluster:
        return EmbeddedCluster(
            self.config,
            self.journal,
            root=Path("/nonexistent"),
            clock=self.clock,
            chance=self._chance,
            new_uid=self._new_uid,
            behaviour=lambda pod: self.behaviours.get(pod.name, self.behaviour),
            checkpoints=self.checkpoints,
            manager_api=lambda api: MortalCluster(api, self.manager, self._lag, self._write_lag),
            machine_api=lambda api: MortalCluster(api, self.machines, self._lag, self._write_lag),
            admission=AdmissionChain if self.admits else None,
            guards_stalls=self.guards_stalls,
            mass_silence=self.mass_silence,
            is_manager_heard=self._is_manager_heard,
            checkpoints_of=self.checkpoints_of,
        )

    def clock(self) -> float:
        return self.loop.clock() + self.clock_ahead_s

    def _is_manager_heard(self, node: str) -> bool:
        is_cut_off = node in self.split_off or node in self.machines.cut_off
        return self.vouches and not is_cut_off and not self.manager.dead.is_set()

    def _see(self, event: StoreEvent) -> None:
        self.invariants.see(event)
        self.remedies.see(event)
        self.changed.set()
        if self.digest is not None:
            record = event.record
            self.digest.update(b"%d %b %b " % (record.rv, event.type.encode(), record.key.encode()))
            self.digest.update(record.raw)

    def _lag(self) -> float:
        return self._chance.uniform(0.0, self.lag_s) if self.lag_s else 0.0

    def _write_lag(self) -> float:
        return self._chance.uniform(0.0, self.write_lag_s) if self.write_lag_s else 0.0

    def _new_uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids:06d}"

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.invariants.reality = self
        await self.cluster.start()

    async def end(self) -> None:
        """Everything off, then the verdict."""
        self.journal.is_dead = True
        self.invariants.reality = Nothing()
        await self.cluster.let_go()
        self.check()

    async def restart_control_plane(self) -> None:
        self.manager = Kill()
        await self.cluster.restart_control_plane()

    async def kill_control_plane(self, within: float = 30.0) -> bool:
        """Wait until the control plane has made as many writes as `manager.after` said, kill it right there (the answer to
        the last one is never seen) and start another. False: it never wrote that much."""
        try:
            async with asyncio.timeout(within):
                await self.manager.dead.wait()
        except TimeoutError:
            return False
        finally:
            await self.restart_control_plane()
        return True

    async def power_cut(self, *, down_s: float = 0.0, after_commits: int = 0, within: float = 30.0) -> bool:
        """The machine that runs everything loses its power, right after so many more commits (or as many as were named to
        `journal.capture_after` before); then it starts again from the bytes on its disk. False: there were not so many."""
        hit = True
        if after_commits:
            self.journal.capture_after(after_commits)
        if self.journal.is_armed:
            try:
                async with asyncio.timeout(within):
                    await self.journal.captured.wait()
            except TimeoutError:
                hit = False
        rows = self.journal.last_rows()
        self.journal.is_dead = True
        self.invariants.reality = Nothing()
        await self.cluster.let_go()
        if down_s:
            await asyncio.sleep(down_s)
        self.cuts.append(self.now)
        self.machines.cut_off.clear()
        self.journal = WatchedJournal(self._see, rows)
        self.manager = Kill()
        self.cluster = self._cluster()
        await self.start()
        return hit

    async def stop_everything(self, seconds: float) -> None:
        """As SIGSTOP, a laptop's lid or a disk that hangs would: nothing of this process runs for so long, then all timers are
        late at once."""
        self.loop.advance(seconds)
        await asyncio.sleep(0)

    async def give_up(self, *nodes: str) -> None:
        """As `remuda give-up` does."""
        said = {"metadata": {"annotations": {ANNOTATION_GIVEN_UP: lease_micro_time(to_time(self.clock()))}}}
        for node in nodes:
            await self.cluster.api.patch(Node, node, said)

    async def api_away(self, seconds: float) -> None:
        """Neither manager nor machines reach the API; they can speak to one another."""
        kills = (self.manager, self.machines)
        for kill in kills:
            kill.away = True
        await self.sleep(seconds)
        for kill in kills:
            kill.away = False

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.loop.time()

    def _read(self, kind: type[K], name: str, namespace: str = "") -> K | None:
        """The committed object."""
        record = self.cluster.store.get(kind.resource.key(name, namespace))
        return record.decode(kind) if record is not None else None

    def _read_all(self, kind: type[K]) -> list[K]:
        return [record.decode(kind) for record in self.cluster.store.scan(kind.resource.prefix)]

    def job(self, name: str = "job") -> TrainingJob:
        found = self._read(TrainingJob, name, NAMESPACE)
        assert found is not None, f"there is no job {name}"
        return found

    def jobs(self) -> list[TrainingJob]:
        return self._read_all(TrainingJob)

    def all_pods(self) -> list[Pod]:
        return self._read_all(Pod)

    def pod(self, name: str) -> Pod | None:
        return self._read(Pod, name, NAMESPACE)

    def pods(self, job: str = "job") -> list[Pod]:
        return [pod for pod in self._read_all(Pod) if pod.labels.get(LABEL_GANG) == job]

    def devices(self, node: str) -> NodeDevices:
        found = self._read(NodeDevices, node)
        assert found is not None, f"there is no node {node}"
        return found

    def member(self, job: str, rank: int) -> Member:
        return next(m for m in self.job(job).status.members if m.rank == rank)

    def gang(self, job: str = "job") -> Gang:
        return {m.rank: Seat(m.uid, m.pod, m.node, tuple(m.devices)) for m in self.job(job).status.members}

    def recovery(self, job: str = "job") -> Recovery:
        """The newest one."""
        return self.job(job).status.recoveries[-1]

    def children(self) -> list[tuple[str, SimulatedTraining]]:
        return [found for runtime in self._runtimes() for found in runtime.children()]

    def child(self, job: str, rank: int) -> SimulatedTraining | None:
        uid = self.member(job, rank).uid
        return next((child for found, child in self.children() if found == uid), None)

    def holders(self) -> dict[Place, str]:
        """In the tables of agents that can be spoken to: those of others have to wait until they can, by design."""
        machines = self.cluster.machines
        return {
            (name, device): uid
            for name, agent in machines.agents.items()
            if not machines.nodes[name].is_lost and name not in self.machines.cut_off | self.machines.api_cut
            for device, uid in agent.holders().items()
        }

    def has_ended(self, job: str = "job") -> bool:
        """Of a job that failed: the pods of its last attempt stay for their logs, but nothing runs and nothing is held."""
        return all(pod.is_terminal for pod in self.pods(job)) and not self.holders() and not self.children()

    def _runtimes(self) -> list[SimulatedRuntime]:
        found = [node.runtime for node in self.cluster.machines.nodes.values()]
        return [runtime for runtime in found if isinstance(runtime, SimulatedRuntime)]

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], within: float = 60.0, what: str = "") -> None:
        """Wait for `condition`, looked at after every commit. Virtual seconds; fails the test when they are over."""
        try:
            async with asyncio.timeout(within):
                while not condition():
                    self.changed.clear()
                    await self._change()
        except TimeoutError:
            self.check()
            waited = what or inspect.getsource(condition).strip()
            raise AssertionError(f"not within {within:g} s: {waited}\n{self.describe()}") from None
        self.check()

    async def _change(self) -> None:
        timer = self.loop.call_later(POLL_S, self.changed.set)
        try:
            await self.changed.wait()
        finally:
            timer.cancel()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.check()

    async def running(self, job: str = "job", attempt: int = 1, within: float = 60.0) -> None:
        """The gang runs that attempt or a later one, every rank has made a new step in it, and the status says so."""
        await self.until(lambda: self.is_running(job, attempt), within, f"{job} runs attempt {attempt}")

    def is_running(self, job: str, attempt: int = 1) -> bool:
        status = self.job(job).status
        if status.phase != "Running" or status.attempt < attempt:
            return False
        if status.recoveries and status.recoveries[-1].first_step_at is None:
            return False
        living = dict(self.children())
        children = [living.get(m.uid) for m in status.members]
        return all(c is not None and (c.step > c.resumed_at) for c in children)

    async def parked(self, job: str = "job", spares: int = 1, within: float = 60.0) -> None:
        """So many spares of the job wait at the barrier."""
        await self.until(lambda: len(self.parked_spares(job)) == spares, within, f"{job} has {spares} parked spares")

    def parked_spares(self, job: str = "job") -> list[str]:
        return [s.pod for s in self.job(job).status.spares if s.parked]

    async def step(self, job: str, step: int, within: float = 120.0) -> None:
        """Every rank has done that step."""

        def done() -> bool:
            living = dict(self.children())
            found = [living.get(m.uid) for m in self.job(job).status.members]
            return bool(found) and all(c is not None and c.step >= step for c in found)

        await self.until(done, within, f"{job} is at step {step}")

    # --- doing --------------------------------------------------------------------------------------------------------

    async def submit(self, name: str = "job", **options: Any) -> TrainingJob:
        return await self.cluster.api.create(TrainingJob, training_job(name, **options))

    async def drill(self, kind: DrillKind, *, may_be_refused: bool = False, **spec: Any) -> bool:
        """A Drill object, and its end. False when it was refused, or the power went before anyone could tell."""
        self._drills += 1
        name = f"drill-{self._drills:03d}"
        order = DrillSpec(type=kind, **spec)
        hit = self._jobs_hit_by(order)
        await self.cluster.api.create(Drill, Drill(metadata=ObjectMeta(name=name), spec=order))
        journal = self.journal
        await self.until(lambda: journal.is_dead or self._drill(name).status.phase != "Pending", 10.0, name)
        status = self._drill(name).status
        if status.phase == "Refused":
            assert may_be_refused, f"{kind} was refused: {status.reason}: {status.message}"
            return False
        what = order.pod or f"{order.node} {order.device}".strip()
        self.injected.append(Injected(kind, self.now, what, hit, not journal.is_dead, order.seconds))
        return not journal.is_dead

    def _drill(self, name: str) -> Drill:
        found = self._read(Drill, name)
        assert found is not None
        return found

    def _jobs_hit_by(self, order: DrillSpec) -> tuple[str, ...]:
        """Jobs that have the pod, or a pod on that device or node."""

        def is_hit(pod: Pod) -> bool:
            if order.type is DrillKind.DEVICE_FAIL:
                return pod.spec.node_name == order.node and order.device in snapshot_devices_of_pod(pod)
            return pod.name == order.pod if order.pod else pod.spec.node_name == order.node

        return tuple(sorted({p.labels.get(LABEL_GANG, "") for p in self._read_all(Pod) if is_hit(p)}))

    async def kill_process(self, job: str = "job", rank: int = 0) -> None:
        await self.drill(DrillKind.PROCESS_KILL, pod=self.member(job, rank).pod, namespace=NAMESPACE)

    async def hang_process(self, job: str = "job", rank: int = 0) -> None:
        await self.drill(DrillKind.PROCESS_HANG, pod=self.member(job, rank).pod, namespace=NAMESPACE)

    async def kill_launcher(self, job: str = "job", rank: int = 0) -> None:
        await self.drill(DrillKind.LAUNCHER_KILL, pod=self.member(job, rank).pod, namespace=NAMESPACE)

    async def delete_pod(self, name: str) -> None:
        await self.drill(DrillKind.POD_DELETE, pod=name, namespace=NAMESPACE)

    async def lose_node(self, node: str) -> None:
        await self.drill(DrillKind.NODE_LOST, node=node)

    async def fail_device(self, job: str = "job", rank: int = 0, index: int = 0, code: str = "xid-79") -> None:
        """A device of that rank's pod breaks."""
        member = self.member(job, rank)
        await self.drill(DrillKind.DEVICE_FAIL, node=member.node, device=member.devices[index], code=code)

    async def fail_device_of(self, pod: str, index: int = 0, code: str = "xid-79") -> None:
        found = self.pod(pod)
        assert found is not None, f"there is no pod {pod}"
        device = snapshot_devices_of_pod(found)[index]
        await self.drill(DrillKind.DEVICE_FAIL, node=found.spec.node_name, device=device, code=code)

    def corrupt_newest(self, job: str, rank: int) -> int:
        """The newest checkpoint of the rank cannot be read any more; which one it was."""
        step = self.checkpoints.corrupt((NAMESPACE, job), rank)
        assert step is not None, f"rank {rank} of {job} has no checkpoint"
        return step

    # --- verdict ------------------------------------------------------------------------------------------------------

    def common_checkpoint(self, job: str = "job") -> int:
        """The newest step that every rank has a good checkpoint of; 0 when there is none."""
        ranks = range(sum(role.replicas for role in self.job(job).spec.roles))
        kept = [set(self.checkpoints.usable((NAMESPACE, job), rank)) for rank in ranks]
        return max(set.intersection(*kept), default=0)

    def has_nowhere_to_resume(self, job: str = "job") -> bool:
        """The models of the other ranks go on while one stands still, as no real gang would: its last checkpoint is not among
        the newest that their launchers name. Then an operator has to say what is to be done."""
        ranks = range(sum(role.replicas for role in self.job(job).spec.roles))
        named = [set(self.checkpoints.usable((NAMESPACE, job), rank)[:MAX_CHECKPOINTS]) for rank in ranks]
        return self.job(job).status.reason == "CheckpointMissing" and not set.intersection(*named)

    def assert_kept(self, before: Gang, job: str = "job", *, but: Sequence[int] = ()) -> None:
        """Every rank has the pod, node and devices it had, except those in `but`, which have another pod."""
        after = self.gang(job)
        assert sorted(after) == sorted(before), self.describe()
        moved = [rank for rank in before if after[rank].uid != before[rank].uid]
        assert moved == sorted(but), f"ranks {moved} moved, expected {sorted(but)}\n{self.describe()}"
        for rank in before:
            assert rank in but or after[rank] == before[rank], f"rank {rank}: {before[rank]} -> {after[rank]}"

    def assert_racks(self, *racks: str, job: str = "job") -> None:
        """Members and spares sit in exactly these racks."""
        status = self.job(job).status
        nodes = [m.node for m in status.members] + [s.node for s in status.spares]
        assert sorted({self.rack_of[node] for node in nodes if node}) == sorted(racks), self.describe()

    def check(self) -> None:
        found = [*self.invariants.violations, *self.remedies.violations, *self.errors]
        if found:
            lines = "\n  ".join(found)
            raise AssertionError(f"seed {self.seed}: {len(found)} violations\n  {lines}\n{self.describe()}")

    def describe(self) -> str:
        lines = [f"t={self.now:.3f} seed={self.seed} injected:"]
        lines += [f"  {i.at:8.3f} {i.kind} {i.what} {i.jobs} certain={i.is_certain}" for i in self.injected]
        for job in self.jobs():
            lines += _describe(job, self.pods(job.name))
        return "\n".join(lines)

    def note_error(self, entry: EventDict) -> None:
        if len(self.errors) < 5:
            self.errors.append(f"[t={self.now:.3f}] logged as an error: {entry}")


def _describe(job: TrainingJob, pods: Sequence[Pod]) -> list[str]:
    s = job.status
    lines = [f"{job.name}: {s.phase} {s.reason} ({s.message}) attempt={s.attempt} {s.barrier} used={s.used}"]
    lines += [f"  rank {m.rank}: {m.pod} {m.uid} {m.node} {m.devices[:1]}" for m in s.members]
    lines += [f"  spare {m.pod} {m.uid} {m.node} parked={m.parked}" for m in s.spares]
    for p in pods:
        conditions = [f"{c.reason}: {c.message}" for c in p.status.conditions if c.status == "False"]
        lines.append(
            f"  pod {p.name} {p.uid} {p.spec.node_name} {p.status.phase} {p.status.reason} "
            f"deleting={p.is_deleting} {conditions}"
        )
    lines += [f"  {r.attempt}: {r.cause} {r.reason} {r.remedy} {r.members} -> {r.replaced}" for r in s.recoveries]
    return lines


# --- running a story --------------------------------------------------------------------------------------------------


W = TypeVar("W", bound=World)


def play(
    story: Callable[[W], Coroutine[Any, Any, T]],
    *,
    kind: type[W] = World,  # type: ignore[assignment] # of a World unless it is told
    **options: Any,
) -> T:
    """Run `story` in a world of its own. `options` as for `World`."""
    loop = VirtualLoop()

    async def main() -> T:
        world = kind(loop, **options)
        with listening(world.note_error):
            await world.start()
            try:
                result = await story(world)
            except BaseException:
                world.journal.is_dead = True
                await world.cluster.let_go()
                raise
            await world.end()
            return result

    return run_virtual(main(), loop)


def in_world(
    **options: Any,
) -> Callable[[Callable[Concatenate[W, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Makes `async def test(world, ...)` a plain test that runs in a world of its own."""

    def decorate(test: Callable[Concatenate[W, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            play(lambda world: test(world, *args, **kwargs), **options)

        signature = inspect.signature(test)
        rest = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=rest, return_annotation=None)  # type: ignore[attr-defined]
        del run.__wrapped__  # pytest would look through to the coroutine
        return run

    return decorate

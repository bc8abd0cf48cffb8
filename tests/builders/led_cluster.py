"""A cluster whose parts are processes of their own, with one manager or with two that contend for a lease.

    api         store, garbage collection, Kubernetes' own controllers
    manager-N   scheduler and controllers; with two of them the one that leads, by the real election and `FencedCluster`
    node-NN     a node and its agent; launchers and ranks are none of it: they run on when it is stopped

`EmbeddedCluster` wires everything but the managers, which are wired here as `runtime.manager_process` does it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from remuda.api.errors import Refusal
from remuda.core.health.own_stalls import API, API_LATE_S, OwnStalls
from remuda.embedded.node.simulated_runtime import SimulatedRuntime
from remuda.kube.cluster import Cluster
from remuda.kube.guarded_cluster import FencedCluster
from remuda.kube.runtime.leader import LeaderTerm, LeaseContender, LeasePlace
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.kube.runtime.stall_watch import prove_stall_watch_hearing
from remuda.runtime.control_plane import ControlPlane
from remuda.runtime.embedded_cluster import EmbeddedCluster
from tests.builders.processes import Processes
from tests.builders.taps import Kill

API_PROCESS, MANAGER_PROCESSES, RANKS = "api", ("manager-1", "manager-2"), "ranks"
LEASE = "remuda-manager"


class Election(msgspec.Struct, frozen=True):
    """How managers lead. `checks_terms` False: one that led once works and promises for ever, whoever leads; for tests that
    show what the guard is good for."""

    timing: LeaseTiming = LeaseTiming()
    checks_terms: bool = True


class Manager:
    """One contender: its way to the API, and its control plane while it leads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kill = Kill()
        self.plane: ControlPlane | None = None
        self.task: asyncio.Task[None] | None = None


class ElectedPlanes:
    """Stands where `EmbeddedCluster` has its one control plane."""

    def __init__(self, cluster: DividedCluster, election: Election) -> None:
        self.managers = [Manager(name) for name in MANAGER_PROCESSES]
        self._cluster = cluster
        self._election = election
        self._for_ever: list[asyncio.Task[None]] = []

    @property
    def leader(self) -> Manager | None:
        return next((m for m in self.managers if m.plane is not None), None)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for manager in self.managers:
                    self._start(group, manager)
                self._group = group
        finally:
            for task in self._for_ever:
                task.cancel()
            await asyncio.gather(*self._for_ever, return_exceptions=True)

    def _start(self, group: asyncio.TaskGroup, manager: Manager) -> None:
        process = self._cluster.processes.context(manager.name)
        manager.task = group.create_task(self._contend(manager), name=manager.name, context=process)

    async def restart_leader(self) -> None:
        """It ends and gives its lease back; another one, or it, leads next."""
        manager = self.leader
        if manager is not None and manager.task is not None:
            manager.task.cancel()
            await asyncio.wait({manager.task})
            self._start(self._group, manager)

    async def _contend(self, manager: Manager) -> None:
        cluster, timing = self._cluster, self._election.timing
        stalls, clock = cluster.new_stalls(), cluster.clock
        api = cluster.api_of(manager.kill)

        async def work(term: LeaderTerm) -> None:
            stalls.expect(API, timing.retry_s + API_LATE_S, clock())
            await self._lead(manager, api, term, stalls)

        contender = LeaseContender(
            api,
            LeasePlace(LEASE, "kube-system", manager.name),
            timing,
            clock=clock,
            elapsed=asyncio.get_running_loop().time,
            jitter=cluster.chance.random,
            renewed=lambda: prove_stall_watch_hearing(stalls, API, clock(), manager.name),
        )
        await contender.lead(work)

    async def _lead(self, manager: Manager, api: Cluster, term: LeaderTerm, stalls: OwnStalls) -> None:
        if self._election.checks_terms:
            manager.plane = self._cluster.new_plane(FencedCluster(api, term), stalls, term.left_s)
            try:
                await manager.plane.run()
            finally:
                manager.plane = None
        elif manager.plane is None:
            manager.plane = self._cluster.new_plane(api, stalls, lambda: math.inf)
            self._for_ever.append(asyncio.create_task(manager.plane.run()))
        await asyncio.get_running_loop().create_future()


class DividedCluster(EmbeddedCluster):
    def __init__(
        self,
        *args: Any,
        processes: Processes,
        api_of: Callable[[Kill], Callable[[Cluster], Cluster]],
        is_heard: Callable[[str, str], bool],
        election: Election | None,
        keeps_leases: bool,
        **options: Any,
    ) -> None:
        """`api_of`: the way to the API that such a `Kill` can block. `is_heard`: whether a node hears a manager beside the API.
        `election` None: one manager, always the same. `keeps_leases`
        False: a disk that refuses writes refuses renewals as well."""
        self.processes = processes
        self.clock, self.chance = options["clock"], options["chance"]
        self.election = election
        self._elected: ElectedPlanes | None = None
        self._api_of = api_of
        self._is_heard = is_heard
        only = MANAGER_PROCESSES[0]
        super().__init__(*args, is_manager_heard=lambda node: is_heard(node, only), **options)
        if not keeps_leases:
            self.store._may_stay_in_memory = lambda event: False
        self._divide()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        process = {"machines": "", "control-plane": MANAGER_PROCESSES[0]}.get(name, API_PROCESS)
        self.processes.context(process).run(super().spawn, name, work)

    async def let_go(self) -> None:
        self.processes.all_go_on()
        await super().let_go()

    def _control_plane(self) -> ControlPlane:
        if self.election is None:
            return super()._control_plane()
        self._elected = ElectedPlanes(self, self.election)
        return cast(ControlPlane, self._elected)

    @property
    def elected(self) -> ElectedPlanes | None:
        return self._elected

    async def _vouch(self, node: str) -> float:
        elected = self.elected
        if elected is None:
            return await super()._vouch(node)
        heard = (m.plane for m in elected.managers if m.plane is not None and self._is_heard(node, m.name))
        return max((plane.view.promise(node, self.clock()) for plane in heard), default=0.0)

    # What managers are made of.

    def new_stalls(self) -> OwnStalls:
        return OwnStalls(is_on=self._guards_stalls)

    def api_of(self, kill: Kill) -> Cluster:
        return self._api_of(kill)(self.api)

    def new_plane(self, api: Cluster, stalls: OwnStalls, term_left: Callable[[], float]) -> ControlPlane:
        past = self.board.past()
        self.board.clear()
        plane = ControlPlane(
            api,
            self.board,
            self.clock,
            chance=self.chance,
            stalls=stalls,
            proves_api=True,
            term_left=term_left,
            mass_silence=self._mass_silence,
        )
        for told in past:
            self.board.recall(told)
        return plane

    # Each node and its agent are a process; launchers and ranks are others.

    def _divide(self) -> None:
        machines, processes = self.machines, self.processes
        inner = machines.jobs.subscribe
        self._replace(machines.jobs, "subscribe", lambda hear: inner(processes.telling_me(hear)))
        for name, node in machines.nodes.items():
            agent = machines.agents[name]
            for part in (agent, node):
                self._replace(part, "start", self._started_as(name, part.start))
            for call in ("pod_changed", "pod_gone", "sync"):
                self._replace(node, call, processes.telling(name, getattr(node, call)))
            self._replace(agent, "connect", self._connecting(name, agent.connect))
            assert isinstance(node.runtime, SimulatedRuntime)
            self._replace(node.runtime, "start", self._starting(node.runtime.start))
            node.runtime.on_exit(processes.telling(name, node._container_exited))

    def _replace(self, part: object, call: str, by: Callable[..., Any]) -> None:
        setattr(part, call, by)

    def _started_as(self, process: str, start: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Any]:
        async def begin() -> None:
            self.processes.become(process)
            await start()

        return begin

    def _starting(self, start: Callable[..., Coroutine[Any, Any, float]]) -> Callable[..., Any]:
        async def begin(launch: Any) -> float:
            return await asyncio.create_task(start(launch), context=self.processes.context(RANKS))

        return begin

    def _connecting(self, process: str, connect: Callable[..., Any]) -> Callable[..., Any]:
        def begin(uid: str, deliver: Callable[..., None]) -> Any:
            if self.processes.is_stopped(process):
                raise Refusal("NoAnswer", f"The agent of {process} does not answer.", "Call again.")
            return self.processes.telling(process, connect(uid, self.processes.telling(RANKS, deliver)))

        return begin

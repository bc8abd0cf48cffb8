"""`StalledWorld`: a world in which Remuda's own parts stand still, are cut off from one another, or have no disk.

    async with world.stopped("node-01"): ...     one process alone: api, manager-1, manager-2, or a node
    async with world.parted(["node-01"]): ...    the manager that leads and these nodes, against API and the next one
    async with world.disk_refuses("StorageFull"): ...

What a node that is stopped runs cannot be stopped by it. Until launchers notice that by themselves, its ranks are left out of
what is held to be running while it is stopped, and for `WAKE_S` after: `RANKS_OUTLIVE_AGENTS` False takes that back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from structlog.typing import EventDict

from remuda.api.drills import DrillKind
from remuda.api.errors import ApiError
from remuda.embedded.apiserver.store.record import StoreEvent
from remuda.embedded.apiserver.store.storage_trouble import CODES
from remuda.embedded.node.training_model import SimulatedTraining
from remuda.kube.cluster import Cluster
from remuda.sim.virtual_time_loop import VirtualLoop
from tests.builders.invariants import Place
from tests.builders.led_cluster import API_PROCESS, MANAGER_PROCESSES, DividedCluster, Election
from tests.builders.processes import Processes
from tests.builders.taps import Kill, MortalCluster
from tests.builders.world import Injected, World

RANKS_OUTLIVE_AGENTS = True
WAKE_S = 1.0  # in which a node that runs again stops what it may not run any more
EXPECTED_ERRORS = ("store.refuses_writes",)  # said as an error, as it should be


class StalledWorld(World):
    """`election`: two managers, see there. `keeps_leases` False: a disk that refuses writes refuses renewals, too."""

    cluster: DividedCluster

    def __init__(
        self, loop: VirtualLoop, *, election: Election | None = None, keeps_leases: bool = True, **options: Any
    ) -> None:
        self.processes = Processes(loop)
        self.election = election
        self.keeps_leases = keeps_leases
        self.far_side: tuple[str, frozenset[str]] | None = None  # a manager and nodes that hear nobody else
        self._out_of_hand: dict[str, int] = {}  # nodes that cannot stop what they run, and how many say so
        super().__init__(loop, **options)

    def _cluster(self) -> DividedCluster:
        def api_of(kill: Kill) -> Callable[[Cluster], Cluster]:
            return lambda api: MortalCluster(api, kill, self._lag, self._write_lag)

        cluster = DividedCluster(
            self.config,
            self.journal,
            processes=self.processes,
            api_of=api_of,
            is_heard=self._hears,
            election=self.election,
            keeps_leases=self.keeps_leases,
            root=Path("/nonexistent"),
            clock=self.clock,
            chance=self._chance,
            new_uid=self._new_uid,
            behaviour=lambda pod: self.behaviours.get(pod.name, self.behaviour),
            checkpoints=self.checkpoints,
            manager_api=lambda api: api_of(self.manager)(api),
            machine_api=api_of(self.machines),
            guards_stalls=self.guards_stalls,
            mass_silence=self.mass_silence,
        )
        cluster.store.subscribe(self._see_unsaved)
        return cluster

    def _see_unsaved(self, event: StoreEvent) -> None:
        """A renewal that is in memory only is one all the same."""
        if self.journal.trouble is not None:
            self.invariants.see(event)

    def _hears(self, node: str, manager: str) -> bool:
        if self.far_side is not None:
            there, nodes = self.far_side
            if (manager == there) != (node in nodes):
                return False
        return self._is_manager_heard(node) and not self.processes.is_stopped(manager)

    def note_error(self, entry: EventDict) -> None:
        if entry.get("event") not in EXPECTED_ERRORS:
            super().note_error(entry)

    # --- what is there ------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        """The process that leads; "" while none does."""
        elected = self.cluster.elected
        if elected is None:
            return MANAGER_PROCESSES[0]
        return elected.leader.name if elected.leader is not None else ""

    @property
    def kills(self) -> list[Kill]:
        """Of everybody's way to the API."""
        elected = self.cluster.elected
        managers = [m.kill for m in elected.managers] if elected is not None else [self.manager]
        return [*managers, self.machines]

    def children(self) -> list[tuple[str, SimulatedTraining]]:
        if not self._out_of_hand:
            return super().children()
        nodes = self.cluster.machines.nodes.items()
        there = [runtime for name, node in nodes if name not in self._out_of_hand for runtime in [node.runtime]]
        return [found for runtime in self._runtimes() if runtime in there for found in runtime.children()]

    def holders(self) -> dict[Place, str]:
        return {place: uid for place, uid in super().holders().items() if place[0] not in self._out_of_hand}

    # --- doing --------------------------------------------------------------------------------------------------------

    async def restart_control_plane(self) -> None:
        elected = self.cluster.elected
        if elected is None:
            await super().restart_control_plane()
        else:
            await elected.restart_leader()

    @asynccontextmanager
    async def stopped(self, process: str) -> AsyncIterator[None]:
        """One process, alone."""
        is_node = process in self.rack_of and RANKS_OUTLIVE_AGENTS
        if is_node:
            self._out_of_hand[process] = self._out_of_hand.get(process, 0) + 1
        self.processes.stop(process)
        self._hold_calls(process, True)
        try:
            yield
        finally:
            self._hold_calls(process, False)
            self.processes.go_on(process)
            if is_node:
                await asyncio.sleep(WAKE_S + 4 * self.lag_s)
                self._out_of_hand[process] -= 1
                if not self._out_of_hand[process]:
                    del self._out_of_hand[process]

    def _hold_calls(self, process: str, is_stopped: bool) -> None:
        if process == API_PROCESS:
            for kill in self.kills:
                kill.stopped = is_stopped

    @asynccontextmanager
    async def without_api(self) -> AsyncIterator[None]:
        """Nobody reaches it; nodes and managers hear one another."""
        kills = self.kills
        for kill in kills:
            kill.away = True
        try:
            yield
        finally:
            for kill in kills:
                kill.away = False

    @asynccontextmanager
    async def nodes_without_api(self, nodes: Iterable[str]) -> AsyncIterator[None]:
        """They hear the manager, which reaches it."""
        cut = set(nodes) - self.machines.api_cut
        self.machines.api_cut |= cut
        try:
            yield
        finally:
            self.machines.api_cut -= cut

    @asynccontextmanager
    async def cut_off(self, nodes: Iterable[str]) -> AsyncIterator[None]:
        """They reach neither API nor manager."""
        cut = set(nodes) - self.machines.cut_off
        self.machines.cut_off |= cut
        try:
            yield
        finally:
            self.machines.cut_off -= cut

    @asynccontextmanager
    async def parted(self, nodes: Iterable[str]) -> AsyncIterator[None]:
        """Whoever leads now and these nodes, against the API, the other manager and the other nodes."""
        elected, far = self.cluster.elected, frozenset(nodes)
        assert elected is not None, "there has to be somebody else who can lead"
        old = elected.leader or elected.managers[0]
        self.far_side, old.kill.away = (old.name, far), True
        agents = [self.cluster.machines.agents[name] for name in sorted(far)]
        for agent in agents:
            agent.isolate(True)  # of jobs they hear nothing either
        try:
            async with self.nodes_without_api(far):
                yield
        finally:
            self.far_side, old.kill.away = None, False
            for agent in agents:
                agent.isolate(False)

    @asynccontextmanager
    async def disk_refuses(self, reason: str) -> AsyncIterator[None]:
        self.journal.trouble = ApiError("The disk takes no writes.", reason=reason, code=CODES[reason])
        try:
            yield
        finally:
            self.journal.trouble = None

    def break_device(self, node: str, device: str, code: str) -> None:
        """The hardware itself: nobody has to reach anything for it. An agent that is stopped hears of it when it runs again."""
        self.processes.telling(node, self.cluster.machines.backends[node].inject)(device, code)
        self.injected.append(Injected(DrillKind.DEVICE_FAIL, self.now, f"{node} {device}", ()))

"""An embedded cluster in one process: store, API, garbage collection, control plane, machines.

`async with EmbeddedCluster(...) as cluster:` gives a running one. The parts meet only through the `Cluster` port and the
progress board, so each may be stopped and started alone: `restart_control_plane` is what a crash of the manager is.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

from remuda.agent.agent import Agent
from remuda.api.errors import AlreadyExists
from remuda.api.kubernetes.core_v1 import Namespace, Pod
from remuda.api.meta import KObject, ObjectMeta
from remuda.core.health.mass_silence import MassSilenceRule
from remuda.core.health.own_stalls import OwnStalls
from remuda.core.remedies.hook_kinds import parse_hook_kinds
from remuda.embedded.apiserver.decisions import AdmissionPort, NewestStoredObjects
from remuda.embedded.apiserver.lease_renewals import is_lease_renewal
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore
from remuda.embedded.apiserver.store.journal import Journal
from remuda.embedded.builtin import run_builtin_controllers
from remuda.embedded.builtin.garbage_collection import GarbageCollector
from remuda.embedded.builtin.namespaces import structless_kind_for_builtin
from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints
from remuda.embedded.pod_fields.judge_pod import PodHost
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.stall_watch import watch_api_writes_for_stalls, watch_loop_lag
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.cluster_parts import ClusterParts
from remuda.runtime.control_plane import ControlPlane
from remuda.runtime.machines import ClusterMachines
from remuda.runtime.up_config import MAX_NODES, ClusterConfig

PART = "server"  # whose stalls
ALL, NONE = (0, 1), (MAX_NODES, MAX_NODES + 1)  # shares of the machines


class EmbeddedCluster(ClusterParts):
    def __init__(
        self,
        config: ClusterConfig,
        journal: Journal,
        *,
        root: Path,
        clock: Callable[[], float],
        chance: random.Random,
        new_uid: Callable[[], str],
        behaviour: Callable[[Pod], SimulatedBehaviour] | None = None,
        checkpoints: SimulatedCheckpoints | None = None,
        manager_api: Callable[[Cluster], Cluster] = lambda api: api,
        machine_api: Callable[[Cluster], Cluster] = lambda api: api,
        admission: Callable[[NewestStoredObjects], AdmissionPort] | None = None,
        is_api_only: bool = False,
        guards_stalls: bool = True,
        mass_silence: MassSilenceRule | None = None,
        is_manager_heard: Callable[[str], bool] = lambda node: True,
        host: PodHost | None = None,
        checkpoints_of: Callable[[Agent], SimulatedCheckpoints] | None = None,
    ) -> None:
        """`checkpoints`: what simulated pods find on the shared file system. `manager_api` wraps the port that a control
        plane is given, each time one is made, `machine_api` that of the nodes and agents: there their calls can be watched,
        held up, or made to fail. `is_api_only`: manager and machines are other processes of this cluster. `guards_stalls`:
        False lets tests see what happens without that guard. `is_manager_heard`: by that node, beside the API.
        `host`: what pods run on. `checkpoints_of`: of each node, where they share no file system."""
        self.config = config
        self.store = ObjectStore(journal, may_stay_in_memory=is_lease_renewal)
        self.api = LocalCluster(self.store, clock=clock, new_uid=new_uid, admission=admission)
        self.board = ProgressBoard()
        self.stalls = OwnStalls(is_on=guards_stalls)  # of the API's process
        self._guards_stalls = guards_stalls
        self._is_manager_heard = is_manager_heard
        self._mass_silence = mass_silence or config.mass_silence_rule
        self._clock = clock
        self._chance = chance
        self._manager_api = manager_api
        self._is_api_only = is_api_only
        self._host = host or PodHost(is_simulated=config.runtime == "simulated")
        machines = ClusterMachines(
            config,
            machine_api(self.api),
            self.board,
            root=root,
            clock=clock,
            chance=chance,
            behaviour=behaviour,
            checkpoints=checkpoints,
            share=NONE if is_api_only else ALL,
            vouch=self._vouch,
            checkpoints_of=checkpoints_of,
        )
        super().__init__(machines)
        self.control = self._control_plane()

    async def start(self) -> None:
        for name in ("default", "kube-system", "kube-node-lease"):
            with contextlib.suppress(AlreadyExists):
                await self.api.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))
        self.spawn("garbage", GarbageCollector(self.api).run(self._clock))
        # The API was away until now, so whoever has not renewed a lease could not.
        self.stalls.was_deaf_until(self._clock())
        self.spawn("loop-lag", watch_loop_lag(self.stalls, self._clock, PART))
        self.spawn("api-writes", watch_api_writes_for_stalls(self.stalls, self.api, self._clock, PART))
        builtin = run_builtin_controllers(
            self.api, self._clock, self._chance.random, self._kinds, self.stalls, self._host, self._mass_silence
        )
        self.spawn("builtin", builtin)
        await self.start_machines()
        if not self._is_api_only:
            self.spawn("control-plane", self.control.run())

    async def close(self) -> None:
        await self.store.close()

    def _kinds(self) -> list[type[KObject]]:
        """Everything namespaced that can be listed now, custom kinds included."""
        rows = [s for s in self.api.registry if s.resource.namespaced and "list" in s.resource.verbs]
        return [s.kind or structless_kind_for_builtin(s.resource) for s in rows]

    async def restart_control_plane(self) -> None:
        """Drop scheduler and controllers in the middle of whatever they do, and start new ones that know nothing."""
        await self.stop_control_plane()
        self.control = self._control_plane()
        self.spawn("control-plane", self.control.run())

    async def stop_control_plane(self) -> None:
        await self.end("control-plane")

    async def _vouch(self, node: str) -> float:
        """The manager is in this process: whatever held the API up, it can be asked, unless it is just being replaced."""
        if "control-plane" not in self._tasks or not self._is_manager_heard(node):
            return 0.0
        return self.control.view.promise(node, self._clock())

    def _control_plane(self) -> ControlPlane:
        # The board belongs to the control plane's side of the link: a new manager starts with an empty one, and is told by the
        # agents what they remember. They are in this process, and theirs would be a copy.
        past = self.board.past()
        self.board.clear()
        control = ControlPlane(
            self._manager_api(self.api),
            self.board,
            self._clock,
            chance=self._chance,
            hook_kinds=parse_hook_kinds(self.config.allow_hook_kinds),
            stalls=OwnStalls(is_on=self._guards_stalls),
            mass_silence=self._mass_silence,
        )
        for told in past:
            self.board.recall(told)
        return control

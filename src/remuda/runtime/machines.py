"""The machines of an embedded cluster: for each node its agent, its pod runtime and the node itself, over shared informers."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from remuda.agent.agent import Agent
from remuda.agent.config import REJOIN_S, AgentConfig
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.orders.node_commands import parse_node_hooks
from remuda.agent.orders.order_runner import OrderRules
from remuda.api.devices import NodeDevices
from remuda.api.drills import Drill, DrillSpec
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.training import TrainingJob
from remuda.core.health.own_stalls import OwnStalls
from remuda.embedded.node.container_environment import base_process_environment
from remuda.embedded.node.devices.device_service import PLUGINS, KubeletDeviceSettings
from remuda.embedded.node.drill_actions import DrillActions
from remuda.embedded.node.images import ImageStore
from remuda.embedded.node.machine_info import machine_info, node_addresses
from remuda.embedded.node.node import EmbeddedNode
from remuda.embedded.node.node_registration import NodeConfig
from remuda.embedded.node.pod_addresses import PodAddresses
from remuda.embedded.node.pod_feed import PodFeed
from remuda.embedded.node.process_runtime import ProcessRuntime
from remuda.embedded.node.runtime_port import PodRuntime
from remuda.embedded.node.simulated_runtime import SimulatedRuntime
from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints
from remuda.kube.cluster import Cluster
from remuda.kube.guarded_cluster import ClusterGate, SeverableCluster
from remuda.kube.runtime.events import EventRecorder
from remuda.kube.runtime.informer import Informer
from remuda.kube.runtime.stall_watch import watch_loop_lag
from remuda.launch.zipapp import build_zipapp
from remuda.link.drill_runner import DrillRunner
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.machine_model_files import resolve_machine_model_file
from remuda.runtime.up_config import RACK_LABEL, ClusterConfig

log = structlog.get_logger(__name__)

PLUGINS_WITHIN_S = 5.0
STAND_IN_S = 2.0


# As fake as the devices, and of their size: a pod written for such a machine must fit on a laptop's idea of it.
HOST: dict[str, int | str] = {"cpu": "128", "memory": "1Ti", "pods": "512"}


def _simulated_behaviour(config: ClusterConfig, pod: Pod) -> SimulatedBehaviour:
    """Among real processes a simulated pod stands in for an image that cannot be run; one that is meant to end does."""
    stands_in = config.runtime == "process" and pod.spec.restart_policy != "Always"
    return SimulatedBehaviour(step_s=config.step_seconds, run_s=STAND_IN_S if stands_in else None)


class ClusterMachines:
    """`root`: the state directory; unused by simulated nodes. `behaviour`: how simulated pods behave. `share` (k, n): of n
    processes with machines of one cluster this is the k-th, from 0; it has every n-th node. `board_of`: a board per node.
    `vouch`: asks the manager beside the API for how long a node's ranks stay its own. `manager_socket`: where it
    listens, being another process of this machine that goes on when this one stands still; "" = it is this one.
    `checkpoints_of`: where nodes share no directory, those of simulated pods on that agent's node."""

    def __init__(
        self,
        config: ClusterConfig,
        cluster: Cluster,
        board: ProgressBoard,
        *,
        root: Path,
        clock: Callable[[], float],
        chance: random.Random,
        behaviour: Callable[[Pod], SimulatedBehaviour] | None = None,
        checkpoints: SimulatedCheckpoints | None = None,
        share: tuple[int, int] = (0, 1),
        board_of: Callable[[str], ProgressBoard] | None = None,
        vouch: Callable[[str], Awaitable[float]] | None = None,
        manager_socket: str = "",
        checkpoints_of: Callable[[Agent], SimulatedCheckpoints] | None = None,
    ) -> None:
        self._checkpoints_of = checkpoints_of
        self._vouch = vouch
        self._config = config
        self._root = root
        self._clock = clock
        self._chance = chance
        self._behaviour = behaviour or functools.partial(_simulated_behaviour, config)
        self._launcher = root / "bin" / "remuda-launch.pyz"
        if config.runtime == "process":
            self._launcher.parent.mkdir(parents=True, exist_ok=True)
            build_zipapp(self._launcher)
        self.checkpoints = checkpoints or SimulatedCheckpoints()
        self.addresses = PodAddresses(share, cluster=str(root.resolve()) if config.runtime == "process" else "")
        self.pods = Informer(cluster, Pod, jitter=chance.random)
        self.jobs = Informer(cluster, TrainingJob, jitter=chance.random)
        self.drills = Informer(cluster, Drill, jitter=chance.random)
        self.ledgers = Informer(cluster, NodeDevices, jitter=chance.random)
        self.ledgers.subscribe(self._quarantine)
        self._events = EventRecorder(cluster, clock)
        self._stalls = OwnStalls()
        self.agents: dict[str, Agent] = {}
        self.backends: dict[str, FakeBackend] = {}
        self.nodes: dict[str, EmbeddedNode] = {}
        model = resolve_machine_model_file(config.model)
        info = machine_info(config.runtime)
        for index, name in list(enumerate(config.node_names()))[share[0] :: share[1]]:
            gate = ClusterGate(f"the API from {name}")
            api = SeverableCluster(cluster, gate)
            backend = self.backends[name] = FakeBackend(model, name, clock)
            home = root / "nodes" / name
            is_real = config.runtime == "process"
            place = AgentConfig(
                name,
                str(home / "alloc"),
                str((home if config.checkpoints_per_node else root) / "checkpoints"),
                # Who gives a busy machine time to renew a lease gives a launcher time to call again.
                rejoin_s=max(REJOIN_S, config.lease_seconds * 2 / 3) if is_real else REJOIN_S,
                plugin_dir=str(home / PLUGINS) if is_real else "",
                sockets=is_real,
                replicas=config.replicas,
                mig=config.mig,
                rules=OrderRules(parse_node_hooks(config.allow_hooks)),
                manager_socket=manager_socket,
            )
            agent = Agent(
                place,
                cluster=api,
                backend=backend,
                jobs=self.jobs,
                board=board_of(name) if board_of is not None else board,
                clock=clock,
                pods=functools.partial(self._bound_pods, name),
                stalls=self._stalls,
                elapsed=time.monotonic,  # stands still while the machine sleeps: the manager sleeps with it
            )
            agent.orders.reboot = functools.partial(self._reboot, name)
            self.agents[name] = agent
            self.nodes[name] = EmbeddedNode(
                NodeConfig(
                    name=name,
                    labels={RACK_LABEL: config.rack_of(index)},
                    devices=tuple(d.id for d in model.devices),
                    lease_s=config.lease_seconds,
                    info=info,
                    addresses=tuple(node_addresses(name)),
                    host=HOST,
                    is_manager_apart=bool(manager_socket),
                ),
                cluster=api,
                agent=agent,
                runtime=self._runtime(name, agent),
                addresses=self.addresses,
                clock=clock,
                images=ImageStore(pull_seconds=lambda image: config.pull_seconds),
                silence=agent.silence,
                devices=KubeletDeviceSettings(str(home) if is_real else None),
                gate=gate,
                vouch=functools.partial(self._ask_manager, name, gate),
                events=self._events.source("remuda-node", name),
            )
        self._feed = PodFeed(self.pods, self.nodes.values(), self.addresses)
        is_whole = share[1] == 1
        is_ours = (lambda spec: True) if is_whole else self._is_ours
        site = DrillActions(cluster, self.nodes.values(), clock, is_ours=is_ours)
        self._drills = DrillRunner(cluster, self.drills, site, clock, refuses_strays=share[0] == 0)

    def _quarantine(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        """Orders reach the plugins: a kubelet must not be offered what nobody may use."""
        agent = self.agents.get((new or old or NodeDevices()).name)
        if agent is None:
            return
        before, after = old.quarantine if old else {}, new.quarantine if new else {}
        if before != after:
            agent.quarantine(after)
        if (old.orders if old else {}) != (new.orders if new else {}):
            agent.obey(new.orders if new else {})

    async def _reboot(self, node: str) -> None:
        self.agents[node].hardware().reboot()
        await self.nodes[node].reboot()

    def _is_ours(self, drill: DrillSpec) -> bool | None:
        """A drill on a pod is for who runs the pod."""
        pod = self.pods.get(drill.pod, drill.namespace)
        return pod.spec.node_name in self.nodes if pod is not None and pod.spec.node_name else None

    async def _ask_manager(self, node: str, gate: ClusterGate) -> float:
        """A node that is cut off reaches nobody."""
        return 0.0 if self._vouch is None or gate.is_shut else await self._vouch(node)

    async def _bound_pods(self, node: str) -> list[Pod]:
        return self.nodes[node].bound_pods()

    async def _plugins_listed(self) -> None:
        """Pods wait a while for the plugins, as on a machine whose services start in order; a plugin that does not come lets
        its pods fail, as on one where they do not."""
        try:
            async with asyncio.timeout(PLUGINS_WITHIN_S):
                for name, node in self.nodes.items():
                    if node.devices is not None:
                        await node.devices.listed(self.agents[name].plugins())
        except TimeoutError:
            log.warning("machines.plugins_late", waited_s=PLUGINS_WITHIN_S)

    def _runtime(self, node: str, agent: Agent) -> PodRuntime:
        simulated = SimulatedRuntime(
            agent,
            clock=self._clock,
            rng=self._chance,
            checkpoints=self._checkpoints_of(agent) if self._checkpoints_of is not None else self.checkpoints,
            behaviour=self._behaviour,
        )
        if self._config.runtime == "simulated":
            return simulated
        return ProcessRuntime(
            node,
            state=self._root,
            clock=self._clock,
            base_env=base_process_environment(os.environ, os.path.dirname(sys.executable)),
            launcher=self._launcher,
            simulated=simulated,
        )

    async def run(self, ready: asyncio.Event) -> None:
        """Until cancelled. `ready` is set when every node is registered and has its pods."""
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_loop_lag(self._stalls, self._clock, "machines"), name="loop-lag")
            informers = (self.pods, self.jobs, self.drills, self.ledgers)
            for informer in informers:
                group.create_task(informer.run(), name=f"machines-{informer.kind.resource.plural}")
            await asyncio.gather(*(informer.synced() for informer in informers))
            await asyncio.gather(*(node.open() for node in self.nodes.values()))
            await asyncio.gather(*(agent.start() for agent in self.agents.values()))
            await asyncio.gather(*(node.start() for node in self.nodes.values()))
            await self._plugins_listed()
            await self._feed.start()
            group.create_task(self._drills.run(), name="drills")
            group.create_task(self._events.run(), name="machines-events")
            ready.set()

    async def halt(self, grace_s: float) -> None:
        """`remuda down`: end every container; the pods stay in the API and run again at the next start. Said before it is done,
        so that the next start's manager does not take it for an accident."""
        there = [agent for name, agent in self.agents.items() if not self.nodes[name].is_lost]
        await asyncio.gather(*(agent.leave() for agent in there))
        await asyncio.gather(*(node.halt(grace_s) for node in self.nodes.values()))
        await asyncio.gather(*(agent.stop() for agent in self.agents.values()))

    async def let_go(self) -> None:
        """Stop watching without touching what runs, as a crash would."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        await asyncio.gather(*(agent.stop() for agent in self.agents.values()))

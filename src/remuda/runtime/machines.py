"""The machines of an embedded cluster: for each node its agent, its pod runtime and the node itself, over shared informers."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from remuda.agent.agent import Agent, AgentConfig
from remuda.agent.backend import FakeBackend
from remuda.api.core_v1 import Pod
from remuda.api.devices import Drill
from remuda.api.training import TrainingJob
from remuda.core.devices.machine import load_model
from remuda.kube.cluster import Cluster
from remuda.kube.informer import Informer
from remuda.launch.zipapp import build_zipapp
from remuda.link.progress import ProgressBoard
from remuda.node.addresses import PodAddresses
from remuda.node.drills import DrillRunner
from remuda.node.environment import base_environment
from remuda.node.feed import PodFeed
from remuda.node.images import ImageStore
from remuda.node.node import EmbeddedNode
from remuda.node.process import ProcessRuntime
from remuda.node.registration import NodeConfig
from remuda.node.runtime import PodRuntime
from remuda.node.simulated import SimulatedRuntime
from remuda.node.training import Behaviour, CheckpointStore
from remuda.runtime.config import RACK_LABEL, ClusterConfig


class Machines:
    """`root`: the state directory; unused by simulated nodes. `behaviour`: how simulated pods behave."""

    def __init__(
        self,
        config: ClusterConfig,
        cluster: Cluster,
        board: ProgressBoard,
        *,
        root: Path,
        clock: Callable[[], float],
        chance: random.Random,
        behaviour: Callable[[Pod], Behaviour] | None = None,
        checkpoints: CheckpointStore | None = None,
    ) -> None:
        self._config = config
        self._root = root
        self._clock = clock
        self._chance = chance
        self._behaviour = behaviour or (lambda pod: Behaviour(step_s=config.step_seconds))
        self._launcher = root / "bin" / "remuda-launch.pyz"
        if config.runtime == "process":
            self._launcher.parent.mkdir(parents=True, exist_ok=True)
            build_zipapp(self._launcher)
        self.checkpoints = checkpoints or CheckpointStore()
        self.addresses = PodAddresses()
        self.pods = Informer(cluster, Pod, jitter=chance.random)
        self.jobs = Informer(cluster, TrainingJob, jitter=chance.random)
        self.drills = Informer(cluster, Drill, jitter=chance.random)
        self.agents: dict[str, Agent] = {}
        self.nodes: dict[str, EmbeddedNode] = {}
        model = load_model(config.model)
        for index, name in enumerate(config.node_names()):
            backend = FakeBackend(model, name, clock)
            place = AgentConfig(name, str(root / "nodes" / name / "alloc"), str(root / "checkpoints"))
            agent = Agent(place, cluster=cluster, backend=backend, jobs=self.jobs, board=board, clock=clock)
            self.agents[name] = agent
            self.nodes[name] = EmbeddedNode(
                NodeConfig(
                    name=name,
                    labels={RACK_LABEL: config.rack_of(index)},
                    devices=tuple(d.id for d in model.devices),
                    lease_s=config.lease_seconds,
                ),
                cluster=cluster,
                agent=agent,
                runtime=self._runtime(name, agent),
                addresses=self.addresses,
                clock=clock,
                images=ImageStore(pull_seconds=lambda image: config.pull_seconds),
                silence=agent.silence,
            )
        self._feed = PodFeed(self.pods, self.nodes.values(), self.addresses)
        self._drills = DrillRunner(cluster, self.drills, self.nodes.values(), clock)

    def _runtime(self, node: str, agent: Agent) -> PodRuntime:
        simulated = SimulatedRuntime(
            agent, clock=self._clock, rng=self._chance, checkpoints=self.checkpoints, behaviour=self._behaviour
        )
        if self._config.runtime == "simulated":
            return simulated
        return ProcessRuntime(
            node,
            state=self._root,
            clock=self._clock,
            base_env=base_environment(os.environ, os.path.dirname(sys.executable)),
            launcher=self._launcher,
            simulated=simulated,
        )

    async def run(self, ready: asyncio.Event) -> None:
        """Until cancelled. `ready` is set when every node is registered and has its pods."""
        async with asyncio.TaskGroup() as group:
            for informer in (self.pods, self.jobs, self.drills):
                group.create_task(informer.run(), name=f"machines-{informer.kind.resource.plural}")
            await asyncio.gather(self.pods.synced(), self.jobs.synced(), self.drills.synced())
            await asyncio.gather(*(agent.start() for agent in self.agents.values()))
            await asyncio.gather(*(node.start() for node in self.nodes.values()))
            await self._feed.start()
            group.create_task(self._drills.run(), name="drills")
            ready.set()

    async def halt(self, grace_s: float) -> None:
        """`remuda down`: end every container; the pods stay in the API and run again at the next start."""
        await asyncio.gather(*(node.halt(grace_s) for node in self.nodes.values()))
        await asyncio.gather(*(agent.stop() for agent in self.agents.values()))

    async def let_go(self) -> None:
        """Stop watching without touching what runs, as a crash would."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        await asyncio.gather(*(agent.stop() for agent in self.agents.values()))

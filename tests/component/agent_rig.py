"""One agent on an in-process API, with launchers that are the real machine around a pretended child."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from remuda.agent.agent import Agent
from remuda.agent.config import AgentConfig
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.codec import decode_json_with_codec, encode, to_wire
from remuda.api.devices import LauncherReport, NodeDevices
from remuda.api.kubernetes.core_v1 import Namespace
from remuda.api.meta import ObjectMeta
from remuda.api.training import Checkpoint, Failure, Member, PodTemplate, Role, TrainingJob, TrainingJobSpec
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.informer import Informer
from remuda.launch import actions, protocol
from remuda.launch.launcher_machine import LauncherIdentity
from remuda.launch.launcher_machine import LaunchMachine as Machine
from remuda.link.allocation_port import Allocation, Message
from remuda.link.progress_board import ProgressBoard
from tests.builders.waiting import PATIENCE_S
from tests.unit.agent.scene import NODE, gang_pod


class FakeLauncher:
    """The launcher's machine; its child lives until told otherwise. `heard` is everything the agent said."""

    def __init__(self, agent: Agent, uid: str, *, checkpoints: Sequence[int] = ()) -> None:
        self.uid = uid
        self.agent = agent
        self.machine = Machine(LauncherIdentity(f"pod-{uid}", uid, 1))
        self.heard: list[Message] = []
        self.child: int | None = None
        self.env: dict[str, str] = {}
        self.runs: list[int] = []
        self._checkpoints = tuple(checkpoints)
        self._send: Callable[[Message], None] | None = None
        self._act(self.machine.begin(time.time()))

    def reconnect(self, agent: Agent) -> None:
        self.agent = agent
        self._act(self.machine.disconnected(time.time()))
        self._dial()

    def beat(self, step: int, checkpoint: int | None = None) -> None:
        self._act(self.machine.progress(time.time(), protocol.Progress(step, 0.1, 0.1, checkpoint)))

    def exit(self, code: int, message: str = "") -> None:
        attempt, self.child = self.child, None
        assert attempt is not None
        self._act(self.machine.child_exited(time.time(), attempt, code, None, message))
        self._act(self.machine.tree_gone(time.time()))

    def said(self, kind: str) -> list[Message]:
        return [m for m in self.heard if m["type"] == kind]

    def _dial(self) -> None:
        self._send = self.agent.connect(self.uid, self._deliver)
        self._act(self.machine.connected(time.time()))

    def _deliver(self, message: Message) -> None:
        self.heard.append(message)
        known = protocol.decode_launch_message(encode(dict(message)))
        assert known is not None
        self._act(self.machine.received(time.time(), known))

    def _act(self, todo: list[actions.Action]) -> None:
        now = time.time()
        for action in todo:
            if isinstance(action, actions.Connect):
                self._dial()
            elif isinstance(action, actions.Send) and self._send is not None:
                self._send(decode_json_with_codec(protocol.encode_launch_message(action.message)))
            elif isinstance(action, actions.SpawnChild):
                self.child, self.env = action.attempt, action.env
                self.runs.append(action.attempt)
                self._act(self.machine.child_started(now, action.attempt, 2))
            elif isinstance(action, actions.SignalChild | actions.KillChild) and self.child is not None:
                attempt, self.child = self.child, None
                self._act(self.machine.child_exited(now, attempt, 143, 15))
                self._act(self.machine.tree_gone(now))
            elif isinstance(action, actions.ScanCheckpoints):
                self._act(self.machine.scanned(now, action, self._checkpoints))


class Rig:
    def __init__(self, root: Path) -> None:
        uids = itertools.count(1)
        self.root = root
        self.cluster = LocalCluster(
            ObjectStore(MemoryJournal()), clock=time.time, new_uid=lambda: f"uid-{next(uids):08}"
        )
        self.jobs = Informer(self.cluster, TrainingJob)
        self.devices = Informer(self.cluster, NodeDevices)
        self.board = ProgressBoard()
        self._changed = asyncio.Event()
        self.devices.subscribe(lambda old, new: self._changed.set())
        self.board.subscribe(lambda namespace, gang, notable: self._changed.set())

    async def agent(self, rejoin_s: float = 5.0) -> Agent:
        config = AgentConfig(NODE, str(self.root / "alloc"), str(self.root / "checkpoints"), rejoin_s)
        backend = FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, time.time)
        agent = Agent(config, cluster=self.cluster, backend=backend, jobs=self.jobs, board=self.board, clock=time.time)
        await agent.start()
        await agent.flush()
        return agent

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Waits for something that shows in NodeDevices or on the board."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}; reports: {self.reports()}") from None

    async def read(self) -> NodeDevices:
        return await self.cluster.get(NodeDevices, NODE)

    def reports(self) -> dict[str, LauncherReport]:
        found = self.devices.get(NODE)
        return {r.uid: r for r in found.observed.launchers} if found is not None else {}

    def states(self) -> dict[str, tuple[str, int]]:
        return {uid: (r.state, r.attempt) for uid, r in self.reports().items()}

    async def all_are(self, uids: Sequence[str], state: str, attempt: int) -> None:
        await self.until(
            lambda: all(self.states().get(uid) == (state, attempt) for uid in uids), f"{uids} {state} {attempt}"
        )

    async def allocate(self, agent: Agent, uid: str, *devices: str, simulated: bool = True) -> Allocation:
        return await agent.allocate(gang_pod(uid), devices, simulated=simulated)

    # --- the controller's part ------------------------------------------------------------------------------------------

    async def make_job(self, uids: Sequence[str], *, path: str = "", name: str = "job", **failure: Any) -> None:
        container = {"name": "main", "command": ["train"]}
        role = Role(replicas=len(uids), template=PodTemplate(spec={"containers": [container]}))
        spec = TrainingJobSpec(roles=[role], checkpoint=Checkpoint(path=path), failure=Failure(**failure))
        job = TrainingJob(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)
        await self.cluster.create(TrainingJob, job)
        if name == "job":
            await self.steer(1, "Closed", uids)

    async def steer(self, attempt: int, barrier: str, uids: Sequence[str]) -> None:
        members = [Member(rank, "worker", f"pod-{uid}", uid) for rank, uid in enumerate(uids)]
        status = {"attempt": attempt, "barrier": barrier, "members": [to_wire(m) for m in members]}
        await self.cluster.patch(TrainingJob, "job", {"status": status}, "default", subresource="status")


@asynccontextmanager
async def a_rig(root: Path) -> AsyncIterator[Rig]:
    rig = Rig(root)
    await rig.cluster.create(Namespace, {"metadata": {"name": "default"}})
    running = [asyncio.create_task(informer.run()) for informer in (rig.jobs, rig.devices)]
    await asyncio.gather(rig.jobs.synced(), rig.devices.synced())
    try:
        yield rig
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

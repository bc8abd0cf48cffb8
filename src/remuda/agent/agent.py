"""`Agent`: the node's side of Remuda. Devices and their signals, allocations, launchers at the barrier, one report upwards.

It joins four parts: the backend says which devices there are and what befalls them, the table who holds them, the desk what the
launchers do, and the reporter carries all of it to `NodeDevices.observed`.

Invariants: a device belongs to one pod at a time, until that pod's processes are confirmed gone; a restart of the agent repairs
no device and ends no process, so what the API says of signals and launchers holds until the node itself says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from remuda.agent.allocations import (
    AllocationTable,
    Owner,
    directory_name,
    environment,
    has_owner,
    is_owner,
    make_directory,
    remove_directory,
)
from remuda.agent.backend import DeviceBackend
from remuda.agent.barrier import EnvOf
from remuda.agent.desk import Desk
from remuda.agent.launcher import Launcher
from remuda.agent.report import DEVICES, LAUNCHERS, PARTS, Reporter
from remuda.api.codec import to_wire
from remuda.api.core_v1 import Pod
from remuda.api.devices import ObservedDevice, Signal
from remuda.api.errors import Refusal
from remuda.api.meta import to_seconds
from remuda.api.names import LABEL_GANG
from remuda.api.training import TrainingJob
from remuda.core.devices.faults import add_signal, classify
from remuda.core.workload.rendezvous import member_env
from remuda.kube.cluster import Cluster
from remuda.kube.informer import Informer
from remuda.link.allocation import Allocation, Deliver
from remuda.link.progress import ProgressBoard

log = structlog.get_logger(__name__)

REPEAT_S = 5.0  # the same code of the same device within this time is the same event: drivers report in bursts


class AgentConfig(msgspec.Struct, frozen=True):
    """`alloc_root` holds the allocations' directories, `checkpoint_root` those of jobs that name no path of their own.
    `rejoin_s`: how long a launcher may be out of touch before it is reported gone."""

    node: str
    alloc_root: str
    checkpoint_root: str
    rejoin_s: float = 5.0


class Agent:
    """Implements `link.allocation.NodeAgent`. Make it, `await start()`, hand it to the node; `await stop()` in the end."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        cluster: Cluster,
        backend: DeviceBackend,
        jobs: Informer[TrainingJob],
        board: ProgressBoard,
        clock: Callable[[], float],
        env_of: EnvOf = member_env,
    ) -> None:
        self.config = config
        self.reporter = Reporter(cluster, config.node, self._render)
        self.desk = Desk(
            config.node,
            config.checkpoint_root,
            jobs=jobs,
            board=board,
            clock=clock,
            env_of=env_of,
            rejoin_s=config.rejoin_s,
            announce=lambda: self.reporter.mark(LAUNCHERS),
        )
        self._backend = backend
        self._devices: dict[str, ObservedDevice] = {d.id: d for d in backend.inventory()}
        self._table = AllocationTable(config.node)

    # --- life -----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over what an earlier agent reported, then report the devices and listen to jobs and signals."""
        found = await self.reporter.load()
        for old in found.observed.devices if found else ():
            new = self._devices.get(old.id)
            if new is not None and new.type == old.type:
                self._devices[old.id] = msgspec.structs.replace(new, signals=old.signals)
        self._backend.subscribe(self._signal)
        self.desk.open(found.observed.launchers if found else ())
        self.reporter.mark(*PARTS)

    async def stop(self) -> None:
        """Let go: launchers and their children run on and find the next agent."""
        self.silence()
        await self.reporter.close()
        await self.desk.close()

    def silence(self) -> None:
        """From here on nothing is said, heard or reported: the node lost its power."""
        self.reporter.stop()
        self.desk.silence()

    async def flush(self) -> None:
        """Returns once everything known so far is in the API."""
        await self.reporter.flush()

    def _render(self, part: str) -> Any:
        if part == LAUNCHERS:
            return [to_wire(report) for report in self.desk.reports()]
        if part == DEVICES:
            return [to_wire(device) for device in self._devices.values()]
        return self._backend.model

    # --- allocations ----------------------------------------------------------------------------------------------------

    async def allocate(self, pod: Pod, devices: Sequence[str], *, simulated: bool = False) -> Allocation:
        owner = Owner(pod.uid, f"{pod.namespace}/{pod.name}", list(devices))
        directory = Path(self.config.alloc_root) / directory_name(owner)
        is_mine = not simulated and is_owner(directory, owner)
        self._table.grant(owner, self._devices, again=is_mine)
        if not simulated:
            try:
                if not is_mine:
                    make_directory(directory, owner)
                await self.desk.links.listen(pod.uid, str(directory))
            except OSError:
                if pod.uid not in self.desk:
                    self._table.free(pod.uid)
                raise
        if pod.uid not in self.desk:
            gang = pod.labels.get(LABEL_GANG, "")
            self.desk.welcome(Launcher(pod.name, pod.uid, pod.namespace, gang, len(devices), simulated))
        path = "" if simulated else str(directory)
        env = environment(self.config.node, owner, path, [self._devices[d] for d in devices])
        return Allocation(tuple(devices), path, env)

    def holders(self) -> dict[str, str]:
        """Device -> uid of the pod whose processes may use it."""
        return self._table.holders()

    def connect(self, uid: str, deliver: Deliver) -> Deliver:
        if uid not in self.desk:
            raise Refusal("NotAllocated", f"Pod {uid} has no allocation on {self.config.node}.", "Call allocate first.")
        return self.desk.links.connect(uid, deliver)

    def container_exited(self, uid: str, code: int) -> None:
        self.desk.exited(uid, code)

    async def release(self, uid: str) -> None:
        known = self.desk.get(uid)
        self.desk.forget(uid)
        owner = self._table.owner(uid)
        if owner is None:
            self._remove_left_behind(uid)
            return
        if known is None or not known.simulated:
            remove_directory(Path(self.config.alloc_root) / directory_name(owner))
        self._table.free(uid)

    def _remove_left_behind(self, uid: str) -> None:
        """The directory of a pod that ended while no agent was here: only the marker knows whose it was."""
        root = Path(self.config.alloc_root)
        for directory in root.iterdir() if root.is_dir() else ():
            if has_owner(directory, uid):
                remove_directory(directory)

    def fence(self) -> None:
        self.desk.fence()

    def unfence(self) -> None:
        self.desk.unfence()

    # --- devices --------------------------------------------------------------------------------------------------------

    def inject_fault(self, device: str, code: str) -> None:
        self._backend.inject(device, code)

    def _signal(self, device: str, signal: Signal) -> None:
        known = self._devices.get(device)
        if known is None:
            return
        before = next((s for s in known.signals if (s.source, s.code) == (signal.source, signal.code)), None)
        if before is not None and before.time is not None and signal.time is not None:
            apart_s = to_seconds(signal.time) - to_seconds(before.time)
            if 0 <= apart_s < REPEAT_S:
                return
        self._devices[device] = msgspec.structs.replace(known, signals=add_signal(known.signals, signal))
        fault = classify(signal.source, signal.code)
        log.info("signal", node=self.config.node, device=device, code=signal.code, effect=fault.effect.value)
        self.reporter.mark(DEVICES)

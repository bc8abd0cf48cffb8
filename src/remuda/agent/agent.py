"""`Agent`: the node's side of Remuda. Devices and their signals, allocations, launchers at the barrier, one report upwards.

It joins the parts: the backend says which devices there are and what befalls them, the inventory keeps that, the grants say who
holds what, the plugins hand it out, the desk knows what the launchers do, and the reporter carries all of it to
`NodeDevices.observed`.

Invariants: a device belongs to one pod at a time, until that pod's processes are confirmed gone; a restart of the agent repairs
no device, frees none and ends no process, so what the API says of signals and launchers holds until the node itself says
otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from remuda.agent.allocation.cdi_specs import CdiSpecs, keep_specs
from remuda.agent.allocation.device_grants import Grants, Place
from remuda.agent.allocation.mig_slicing import Slicer
from remuda.agent.config import DP, AgentConfig
from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.device_usage import UsageWatch
from remuda.agent.hardware.node_labels import LabelWriter
from remuda.agent.hardware.signal_intake import Hearing, SilenceWatch
from remuda.agent.inventory import Inventory, device_of
from remuda.agent.launchers.barrier_orders import EnvOf
from remuda.agent.launchers.launcher_registry import Desk
from remuda.agent.launchers.log_tails import PodLogEnds
from remuda.agent.node_reporter import (
    BOOT,
    DEVICES,
    HOLDINGS,
    LAUNCHERS,
    LINKS,
    PARTS,
    PLUGINS,
    SIGNALS,
    Reporter,
    ReportRenderer,
)
from remuda.agent.orders.order_runner import Orders
from remuda.agent.plugin.kubelet_holdings import Holdings
from remuda.agent.plugin.plugin_set import PluginShelf
from remuda.agent.plugin.preferred_devices import BestSet, best_for
from remuda.agent.plugin.published_resources import capacity_of
from remuda.agent.plugin.resource_plugin import BoundPods, bound_pods_of
from remuda.api.devices import DeviceOrder, QuarantineOrder
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import RESOURCE_GPU
from remuda.api.training import TrainingJob
from remuda.core.training.rendezvous import rank_env
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer
from remuda.link.allocation_port import Allocation, Deliver, Hardware
from remuda.link.device_plugin_port import PluginPort, PodResourcesPort
from remuda.link.progress_board import ProgressBoard

LEAVE_S = 2.0  # for the last words of a node that is stopped; without them its stop looks like an accident


class Agent:
    """Implements `link.allocation.NodeAgent`. Make it, `await start()`, hand it to the node; `await stop()` in the end.

    `resources`: the kubelet's podresources. With it nobody tells the agent whose an allocation is or when a pod is gone; it
    finds out. Without it the node in this process says so. `pods`: the pods bound to this node.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        cluster: Cluster,
        backend: DeviceBackend,
        jobs: Informer[TrainingJob],
        board: ProgressBoard,
        clock: Callable[[], float],
        env_of: EnvOf = rank_env,
        pods: BoundPods | None = None,
        resources: PodResourcesPort | None = None,
        best: BestSet | None = None,
        token: Callable[[], str] = lambda: uuid4().hex[:8],
    ) -> None:
        self.config = config
        self.pods: BoundPods = pods or bound_pods_of(cluster, config.node)
        self.reporter = Reporter(cluster, config.node, lambda part: self.account.render(part))
        self.inventory = Inventory(config.node, backend.inventory())
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
        self.grants = Grants(
            Place(config.node, config.alloc_root, config.sockets, config.launcher_dir, resources is not None),
            self.inventory,
            self.desk,
            clock=clock,
            changed=self._holdings_changed,
            device_files=backend.device_files,
        )
        self.grants.check_clean = backend.check_clean
        if config.cdi_dir:
            self.grants.cdi = CdiSpecs(config.cdi_dir, backend.device_files)
        self.slicer = Slicer(backend, self.inventory, self.grants, config.mig)
        self.shelf: PluginShelf | None = None
        if config.mode == DP:
            self.shelf = PluginShelf(
                self.inventory,
                self.grants,
                pods=lambda: self.pods(),
                best=best or best_for(backend.model, self.inventory),
                replicas=config.replicas,
                directory=config.plugin_dir,
                clock=clock,
                token=token,
                changed=lambda: self.reporter.mark(PLUGINS),
                capacity=capacity_of(cluster, config.node),
            )
        self.holdings: Holdings | None = None
        if resources is not None:
            self.holdings = Holdings(
                self.grants,
                self.inventory,
                self.desk,
                resources=resources,
                pods=lambda: self.pods(),
                clock=clock,
                changed=lambda: self.reporter.mark(HOLDINGS),
            )
            self.grants.recheck = self.holdings.look
            self.desk.links.meet = self.holdings.meet
            self.desk.sees_places = False
        if config.pod_logs:
            self.desk.log_ends = PodLogEnds(config.pod_logs)
        self.hearing = Hearing(
            backend,
            self.inventory,
            watch=SilenceWatch(config.report_timeout_s, config.report_timeouts),
            is_count_confirmed=config.confirm_count,
            clock=clock,
            spoke=self._node_spoke,
            counted=self._devices_counted,
        )
        self.account = ReportRenderer(
            backend, self.inventory, self.desk, self.grants, self.shelf, self.holdings, self.hearing
        )
        self.orders = Orders(
            config.node,
            config.rules,
            cluster=cluster,
            backend=backend,
            inventory=self.inventory,
            holdings=self.account.held,
            clock=clock,
        )
        self.usage = UsageWatch(
            self.inventory,
            held=lambda: {device for holding in self.account.holdings() for device in holding.devices},
            utilisation=backend.utilisation,
            clock=clock,
            rule=config.idle,
        )
        self._backend = backend
        self._labels = LabelWriter(cluster, config.node, backend, config.replicas.get(RESOURCE_GPU, 1))
        self._tasks: set[asyncio.Task[None]] = set()
        self._forget: asyncio.TimerHandle | None = None
        self._is_open = False

    # --- life -----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over what an earlier agent reported, then report the devices, serve them, and listen to jobs and signals."""
        found = await self.reporter.load()
        await self._backend.open()
        self.inventory.renew(self._backend.inventory())
        if found is not None:
            self.hearing.inherit(found.observed)
            self.grants.inherit(found.observed.holdings)
            if self.shelf is not None:
                self.shelf.inherit(found.observed.plugins)
            if found.observed.holdings:
                loop = asyncio.get_running_loop()
                self._forget = loop.call_later(self.config.rejoin_s, self.grants.forget_inherited)
        self._is_open = True
        self.hearing.listen()
        self.inventory.subscribe(self._devices_changed)
        self.hearing.begin(found.observed.boot if found is not None else "")
        self.desk.open(found.observed.launchers if found else ())
        if self.holdings is not None:
            # First what still has its rows, so that nothing held is cut; then what the cut brought back.
            await self.grants.restore()
        if self.config.mig:
            await self.slicer.settle()
        if self.holdings is not None:
            await self.grants.restore()
            self._spawn(self.holdings.run())
        if self.shelf is not None:
            self.shelf.open()
        self._spawn(self.hearing.watch_silence())
        self._spawn(self.usage.run())
        if self.grants.cdi is not None:
            self._spawn(keep_specs(self.grants.cdi, lambda: self.inventory.rows, self.config.node))
        self.reporter.mark(*PARTS)
        self._labels.mark()
        self.orders.open(found)

    async def stop(self) -> None:
        """Let go: launchers and their children run on and find the next agent."""
        self.silence()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.orders.closed()
        if self.shelf is not None:
            await self.shelf.close()
        await self._labels.close()
        await self.reporter.close()
        await self.desk.close()
        await self._backend.close()

    async def leave(self) -> None:
        """The node is stopped on purpose. Tells so before anything ends, as long as the API answers in time; then `stop`."""
        self.desk.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.flush()

    def silence(self) -> None:
        """From here on nothing is said, heard or reported: the node lost its power."""
        if self.shelf is not None:
            self.shelf.silence()
        self.step_aside()

    def step_aside(self) -> None:
        """Another agent has taken over: it hands out, hears the launchers and reports. This one's plugins go on listing until
        it ends, so that the kubelet is never without a list."""
        self._is_open = False
        self.grants.is_open = False
        if self._forget is not None:
            self._forget.cancel()
        for task in self._tasks:
            task.cancel()
        self.orders.close()
        self._labels.stop()
        self.reporter.stop()
        self.desk.silence()

    async def flush(self) -> None:
        """Returns once everything known so far is in the API."""
        await self.reporter.flush()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- allocations ----------------------------------------------------------------------------------------------------

    def plugins(self) -> Mapping[str, PluginPort]:
        return self.shelf.plugins if self.shelf is not None else {}

    async def attach(
        self, pod: Pod, container: str, resource: str, devices: Sequence[str], *, simulated: bool = False
    ) -> Allocation:
        return await self.grants.attach(pod, container, resource, devices, simulated=simulated)

    async def allocate(self, pod: Pod, devices: Sequence[str], *, simulated: bool = False) -> Allocation:
        return await self.grants.allocate(pod, devices, simulated=simulated)

    def holders(self) -> dict[str, str]:
        """Device -> uid of the pod whose processes may use it."""
        return self.grants.table.holders()

    def connect(self, uid: str, deliver: Deliver) -> Deliver:
        if uid not in self.desk:
            raise Refusal("NotAllocated", f"Pod {uid} has no allocation on {self.config.node}.", "Call allocate first.")
        return self.desk.links.connect(uid, deliver)

    def container_exited(self, uid: str, code: int) -> None:
        self.desk.exited(uid, code)

    async def release(self, uid: str) -> None:
        held = [device for device, holder in self.holders().items() if holder == uid]
        self.grants.release(uid)
        # Off the caller's path: a driver that hangs must not keep a pod from ending.
        if held:
            self._spawn(self.grants.look_for_leftovers(map(device_of, held)))

    def fence(self) -> None:
        self.desk.fence()

    def unfence(self) -> None:
        self.desk.unfence()

    # --- devices --------------------------------------------------------------------------------------------------------

    def inject_fault(self, device: str, code: str, heals: str = "") -> None:
        self._backend.inject(device, code, heals)

    def hardware(self) -> Hardware:
        if not isinstance(self._backend, Hardware):
            raise Refusal(
                "RealHardware",
                f"The devices of {self.config.node} are real and cannot be broken on purpose.",
                "Run this drill on an embedded cluster, or on an agent with --backend fake.",
            )
        return self._backend

    def isolate(self, is_cut_off: bool) -> None:
        self.desk.isolate(is_cut_off)

    def inject_plugin_fault(self, resource: str, fault: str) -> None:
        if self.shelf is None:
            raise Refusal(
                "UnknownPlugin", f"The agent of {self.config.node} serves no plugins.", "Run it with --mode dp."
            )
        self.shelf.inject(resource, fault)

    def quarantine(self, orders: Mapping[str, QuarantineOrder]) -> None:
        """These devices are kept out of use, whatever their signals say: the manager's orders, told to the kubelet too."""
        self.inventory.quarantine(orders)

    def obey(self, orders: Mapping[str, DeviceOrder]) -> None:
        """These orders of the manager stand now."""
        self.orders.given(orders)

    def _node_spoke(self) -> None:
        if self._is_open:
            self.reporter.mark(SIGNALS)

    def _devices_counted(self) -> None:
        if self._is_open:
            self.reporter.mark(BOOT, DEVICES, LINKS)
            self._labels.mark()

    def _devices_changed(self) -> None:
        if self._is_open:
            self.reporter.mark(DEVICES)
            self._cut_what_is_due()

    def _holdings_changed(self) -> None:
        if self._is_open:
            self.reporter.mark(HOLDINGS)
            self._cut_what_is_due()

    def _cut_what_is_due(self) -> None:
        if self.config.mig and not self.slicer.is_settled:
            self._spawn(self.slicer.settle())

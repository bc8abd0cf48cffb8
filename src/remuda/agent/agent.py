"""`Agent`: the node's side of Remuda. Devices and their signals, allocations, launchers at the barrier, one report upwards.

It joins the parts: the backend says which devices there are and what befalls them, the inventory keeps that, the grants say who
holds what, the plugins hand it out, the registry knows what the launchers do, and the reporter carries all of it to
the status of NodeDevices.

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

from remuda.agent.allocation.cdi_specs import CdiSpecs, keep_cdi_specs
from remuda.agent.allocation.device_grants import AllocationGrants, GrantPlace
from remuda.agent.allocation.mig_slicing import MigSlicer
from remuda.agent.config import DP, AgentConfig
from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.device_usage import HardwareUsageWatch
from remuda.agent.hardware.signal_intake import HardwareSignalIntake, SilenceWatch
from remuda.agent.inventory import Inventory, inventory_device_of_plugin_id
from remuda.agent.launchers.launcher_registry import LauncherRegistry
from remuda.agent.launchers.log_tails import LauncherPodLogTails
from remuda.agent.node_labels import NodeLabelWriter
from remuda.agent.node_reporter import (
    BOOT,
    DEVICES,
    DOOR,
    HOLDINGS,
    LAUNCHERS,
    LINKS,
    PARTS,
    PLUGINS,
    SIGNALS,
    NodeReporter,
    ReportRenderer,
)
from remuda.agent.orders.order_runner import OrderRunner
from remuda.agent.plugin.kubelet_holdings import KubeletHoldings
from remuda.agent.plugin.plugin_set import PluginSet
from remuda.agent.plugin.preferred_devices import plugin_best_set
from remuda.agent.plugin.published_resources import published_resource_capacity_reader
from remuda.agent.plugin.resource_plugin import BoundPods, resource_plugin_bound_pods_reader
from remuda.api.devices import DeviceOrder, QuarantineOrder
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import RESOURCE_GPU
from remuda.api.training import TrainingJob
from remuda.core.health.own_stalls import OwnStalls
from remuda.core.training.rendezvous import rendezvous_env_of_rank
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer
from remuda.kube.runtime.leader import suspend_aware_lease_clock_s
from remuda.link.allocation_port import Allocation, Deliver, HardwareFaultLink
from remuda.link.device_plugin_port import PluginPort, PodResourcesPort
from remuda.link.progress_board import ProgressBoard

LEAVE_S = 2.0  # for the last words of a node that is stopped; without them its stop looks like an accident


class Agent:
    """Implements `link.allocation_port.NodeAgent`. Make it, `await start()`, hand it to the node; `await stop()` in the end.

    `resources`: the kubelet's podresources. With it nobody tells the agent whose an allocation is or when a pod is gone; it
    finds out. Without it the node in this process says so. `pods`: the pods bound to this node, as fresh as can be;
    `watched_pods`: the same as a watch shows them, for looks that come again and again. `stalls`: those of this process,
    which somebody watches. `elapsed`: by which it is vouched for; it never goes back.
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
        pods: BoundPods | None = None,
        watched_pods: BoundPods | None = None,
        resources: PodResourcesPort | None = None,
        token: Callable[[], str] = lambda: uuid4().hex[:8],
        stalls: OwnStalls | None = None,
        elapsed: Callable[[], float] = suspend_aware_lease_clock_s,
    ) -> None:
        stalls = stalls or OwnStalls()
        self.config = config
        self.pods: BoundPods = pods or resource_plugin_bound_pods_reader(cluster, config.node)
        self.reporter = NodeReporter(
            cluster, config.node, lambda part: self.renderer.render(part), makes_object=config.makes_object
        )
        self.inventory = Inventory(config.node, backend.inventory())
        self.launchers = LauncherRegistry(
            config.node,
            config.checkpoint_root,
            jobs=jobs,
            board=board,
            clock=clock,
            env_of=rendezvous_env_of_rank,
            rejoin_s=config.rejoin_s,
            announce=lambda: self.reporter.mark(LAUNCHERS),
            stalls=stalls,
            elapsed=elapsed,
            manager_socket=config.manager_socket,
        )
        self.grants = AllocationGrants(
            GrantPlace(config.node, config.alloc_root, config.sockets, config.launcher_dir, resources is not None),
            self.inventory,
            self.launchers,
            clock=clock,
            changed=self._holdings_changed,
            device_files=backend.device_files,
        )
        self.grants.check_clean = backend.check_clean
        if config.cdi_dir:
            self.grants.cdi = CdiSpecs(config.cdi_dir, backend.device_files)
        self.slicer = MigSlicer(backend, self.inventory, self.grants, config.mig)
        self.plugin_set: PluginSet | None = None
        if config.mode == DP:
            self.plugin_set = PluginSet(
                self.inventory,
                self.grants,
                pods=lambda: self.pods(),
                best=plugin_best_set(backend.model, self.inventory),
                replicas=config.replicas,
                directory=config.plugin_dir,
                clock=clock,
                token=token,
                changed=lambda: self.reporter.mark(PLUGINS),
                capacity=published_resource_capacity_reader(cluster, config.node),
            )
        self.holdings: KubeletHoldings | None = None
        if resources is not None:
            self.holdings = KubeletHoldings(
                self.grants,
                self.inventory,
                self.launchers,
                resources=resources,
                pods=watched_pods or (lambda: self.pods()),
                clock=clock,
                changed=lambda: self.reporter.mark(HOLDINGS),
                hands_out=config.mode == DP,
                checkpoint_root=config.checkpoint_root,
            )
            self.grants.recheck = self.holdings.look
            self.launchers.links.meet = self.holdings.meet
            self.launchers.sees_places = False
        if config.pod_logs:
            self.launchers.log_ends = LauncherPodLogTails(config.pod_logs)
        self.signal_intake = HardwareSignalIntake(
            backend,
            self.inventory,
            watch=SilenceWatch(config.report_timeout_s, config.report_timeouts),
            is_count_confirmed=config.confirm_count,
            clock=clock,
            spoke=self._node_spoke,
            counted=self._devices_counted,
            stalls=stalls,
        )
        self.renderer = ReportRenderer(
            backend, self.inventory, self.launchers, self.grants, self.plugin_set, self.holdings, self.signal_intake
        )
        self.orders = OrderRunner(
            config.node,
            config.rules,
            cluster=cluster,
            backend=backend,
            inventory=self.inventory,
            holdings=self.renderer.held,
            clock=clock,
        )
        self.usage = HardwareUsageWatch(
            self.inventory,
            held=lambda: {device for holding in self.renderer.holdings() for device in holding.devices},
            utilisation=backend.utilisation,
            clock=clock,
            rule=config.idle,
        )
        self._backend = backend
        self._labels = NodeLabelWriter(cluster, config.node, backend, config.replicas.get(RESOURCE_GPU, 1))
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
            self.signal_intake.inherit(found.observed)
            self.grants.inherit(found.observed.holdings)
            if self.plugin_set is not None:
                self.plugin_set.inherit(found.observed.plugins)
            if found.observed.holdings:
                loop = asyncio.get_running_loop()
                self._forget = loop.call_later(self.config.rejoin_s, self.grants.forget_inherited)
        self._is_open = True
        self.signal_intake.listen()
        self.inventory.subscribe(self._devices_changed)
        self.signal_intake.begin(found.observed.boot if found is not None else "")
        self.launchers.open(found.observed.launchers if found else ())
        if self.holdings is not None:
            # First what still has its rows, so that nothing held is cut; then what the cut brought back.
            await self.grants.restore()
        if self.config.mig:
            await self.slicer.settle()
        if self.holdings is not None:
            await self.grants.restore()
            self._spawn(self.holdings.run())
        if self.plugin_set is not None:
            self.plugin_set.open()
        self._spawn(self.signal_intake.watch_silence())
        self._spawn(self.usage.run())
        if self.grants.cdi is not None:
            self._spawn(keep_cdi_specs(self.grants.cdi, lambda: self.inventory.rows, self.config.node))
        self.reporter.mark(*PARTS)
        self._labels.mark()
        self.orders.open(found)

    async def stop(self) -> None:
        """Let go: launchers and their children run on and find the next agent."""
        self.silence()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.orders.closed()
        if self.plugin_set is not None:
            await self.plugin_set.close()
        await self._labels.close()
        await self.reporter.close()
        await self.launchers.close()
        await self._backend.close()

    async def leave(self) -> None:
        """The node is stopped on purpose. Tells so before anything ends, as long as the API answers in time; then `stop`."""
        self.launchers.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.flush()

    def silence(self) -> None:
        """From here on nothing is said, heard or reported: the node lost its power."""
        if self.plugin_set is not None:
            self.plugin_set.silence()
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
        self.launchers.silence()

    async def flush(self) -> None:
        """Returns once everything known so far is in the API."""
        await self.reporter.flush()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- allocations ----------------------------------------------------------------------------------------------------

    def plugins(self) -> Mapping[str, PluginPort]:
        return self.plugin_set.plugins if self.plugin_set is not None else {}

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
        if uid not in self.launchers:
            raise Refusal("NotAllocated", f"Pod {uid} has no allocation on {self.config.node}.", "Call allocate first.")
        return self.launchers.links.connect(uid, deliver)

    def container_exited(self, uid: str, code: int) -> None:
        self.launchers.exited(uid, code)

    async def release(self, uid: str) -> None:
        held = [device for device, holder in self.holders().items() if holder == uid]
        self.grants.release(uid)
        # Off the caller's path: a driver that hangs must not keep a pod from ending.
        if held:
            self._spawn(self.grants.look_for_leftovers(map(inventory_device_of_plugin_id, held)))

    def fence(self) -> None:
        self.launchers.fence()

    def unfence(self) -> None:
        self.launchers.unfence()

    def vouch(self, seconds: float) -> None:
        self.launchers.vouch(seconds)

    def open_door(self, place: str) -> None:
        """Peers ask there for copies of checkpoints; "" = nowhere."""
        self.renderer.door = place
        if self._is_open:
            self.reporter.mark(DOOR)

    # --- devices --------------------------------------------------------------------------------------------------------

    def inject_fault(self, device: str, code: str, heals: str = "") -> None:
        self._backend.inject(device, code, heals)

    def hardware(self) -> HardwareFaultLink:
        if not isinstance(self._backend, HardwareFaultLink):
            raise Refusal(
                "RealHardware",
                f"The devices of {self.config.node} are real and cannot be broken on purpose.",
                "Run this drill in `remuda up`, or on an agent with --backend fake.",
            )
        return self._backend

    def isolate(self, is_cut_off: bool) -> None:
        self.launchers.isolate(is_cut_off)

    def inject_plugin_fault(self, resource: str, fault: str) -> None:
        if self.plugin_set is None:
            raise Refusal(
                "UnknownPlugin", f"The agent of {self.config.node} serves no plugins.", "Run it with --mode dp."
            )
        self.plugin_set.inject(resource, fault)

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

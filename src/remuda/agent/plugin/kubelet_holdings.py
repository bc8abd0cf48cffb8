"""Who has what, as the kubelet tells it (podresources), against what this agent handed out.

podresources knows namespace, name and container; the bound pods add the uid; the launcher's hello says it too but is believed
only where the other two agree. From these, one look decides (`compare_kubelet_holdings`, pure):

- a row whose devices are a grant of ours and whose pod is bound here: the grant is that pod's (attach);
- an attached grant that has no row and whose pod does not live in the API either (or whose devices the kubelet is about to
  hand out again): its pod is gone for the kubelet. With its launcher still connected its processes live and the device is
  *draining*: withheld from everybody. Without, it is free (release);
- a grant that is nobody's and has no row, after a while: its pod was rejected (drop).

The service allows 100 calls a second for everybody on the node; this one looks every few seconds and when it has a reason to,
never more often than `spacing_s`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import grpc
import msgspec
import structlog

from remuda.agent.allocation.allocation_table import Grant
from remuda.agent.allocation.checkpoint_places import allocate_checkpoint_place
from remuda.agent.allocation.device_choice import wanted_allocations
from remuda.agent.allocation.device_grants import AllocationGrants
from remuda.agent.inventory import Inventory, inventory_device_of_plugin_id
from remuda.agent.launchers.launcher_registry import LauncherRegistry
from remuda.agent.plugin.plugin_server import keep_plugin_server_grpc_alive
from remuda.agent.plugin.resource_plugin import BoundPods
from remuda.api.devices import DeviceState, Holding
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_LAUNCH, IN_CONTAINER
from remuda.core.devices.fault_codes import DeviceRemedy, FaultClass
from remuda.launch.protocol import Hello
from remuda.link import kubelet_proto as proto
from remuda.link.device_plugin_port import ContainerDevices, PodResourcesPort

log = structlog.get_logger(__name__)

LOOK_S = 3.0
LOOK_EVERY_S = 5.0
UNCLAIMED_S = 60.0  # between Allocate and the kubelet's own record lies the rest of the pod's admission


class PodResourcesClient:
    """podresources over gRPC; `socket` may appear later."""

    def __init__(self, socket: str, within_s: float = 2.0) -> None:
        self._socket = socket
        self._within_s = within_s

    async def list(self) -> tuple[ContainerDevices, ...]:
        keep_plugin_server_grpc_alive()
        method = proto.POD_RESOURCES_LIST
        options = [("grpc.max_receive_message_length", 64 << 20)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            call = channel.unary_unary(method.path, request_serializer=method.request.encode)
            return method.response.decode(await call(None, timeout=self._within_s))


# --- one look, pure -----------------------------------------------------------------------------------------------------


class HoldingFindings(msgspec.Struct, frozen=True):
    attach: tuple[tuple[Pod, ContainerDevices], ...] = ()
    release: tuple[str, ...] = ()  # uids
    drop: tuple[str, ...] = ()  # names of grants
    draining: Mapping[str, str] = {}  # device -> pod
    strangers: tuple[ContainerDevices, ...] = ()  # rows of our devices that we handed to nobody (a vendor's plugin did)


def compare_kubelet_holdings(
    grants: Iterable[Grant],
    rows: Iterable[ContainerDevices],
    pods: Iterable[Pod],
    *,
    is_ours: Callable[[str], bool],
    is_known: Callable[[str], bool],
    is_connected: Callable[[str], bool],
    has_met: Callable[[str], bool],
    now: float,
    asked: frozenset[str] = frozenset(),
) -> HoldingFindings:
    """`pods`: those that live. `is_known`: the registry has a record of the pod (uid). `has_met`: somebody said hello at the
    grant's (name) door. `asked`: devices the kubelet wants to hand out again just now, so it knows that they are free."""
    by_name = {(pod.namespace, pod.name): pod for pod in pods}
    live = {pod.uid for pod in by_name.values()}
    known = {(grant.resource, frozenset(grant.devices)): grant for grant in grants if grant.devices}
    listed: set[tuple[str, frozenset[str]]] = set()
    busy: set[str] = set()  # devices, and pods, that some row names
    attach: list[tuple[Pod, ContainerDevices]] = []
    strangers: list[ContainerDevices] = []
    for row in rows:
        if not row.device_ids or not all(map(is_ours, row.device_ids)):
            continue
        key = (row.resource_name, frozenset(row.device_ids))
        listed.add(key)
        busy.update(row.device_ids, (f"{row.namespace}/{row.pod}",))
        grant = known.get(key)
        pod = by_name.get((row.namespace, row.pod))
        if grant is None:
            strangers.append(row)
            continue
        # Before its admission is over, a pod's next container may be given the same devices again by a call that names nobody;
        # the grant must not be somebody's by then.
        if pod is None or not (grant.uid or pod.status.start_time is not None or has_met(grant.name)):
            continue
        if grant.uid == "" or (grant.uid == pod.uid and not is_known(pod.uid)):
            attach.append((pod, row))
    release: dict[str, None] = {}
    draining: dict[str, str] = {}
    drop: list[str] = []
    for key, grant in known.items():
        if key in listed:
            continue
        if grant.uid in live and asked.isdisjoint(grant.rows):
            continue  # a kubelet that has just restarted lists nothing for a second, and has let nobody go
        if not grant.uid:
            if now - grant.at >= UNCLAIMED_S and busy.isdisjoint(grant.devices):
                drop.append(grant.name)
        elif is_connected(grant.uid):
            draining.update(dict.fromkeys(grant.rows, grant.pod))
        elif grant.pod not in busy:
            release[grant.uid] = None
    return HoldingFindings(tuple(attach), tuple(release), tuple(drop), draining, tuple(strangers))


# --- the loop -----------------------------------------------------------------------------------------------------------


class KubeletHoldings:
    def __init__(
        self,
        grants: AllocationGrants,
        inventory: Inventory,
        launchers: LauncherRegistry,
        *,
        resources: PodResourcesPort,
        pods: BoundPods,
        clock: Callable[[], float],
        changed: Callable[[], None],
        spacing_s: float = 0.2,
        hands_out: bool = True,
        checkpoint_root: str = "",
    ) -> None:
        """`pods`: may be late, but never goes back: a pod that is missing was deleted, or has yet to be shown. `changed`: what
        somebody else's plugin handed out is something else now. `hands_out`: this agent's plugins do, not a vendor's.
        `checkpoint_root`: where jobs have their directories; "" = nowhere."""
        self._hands_out = hands_out
        self._checkpoint_root = checkpoint_root
        self.fault = ""  # why there was no answer, the last time
        self._grants = grants
        self._inventory = inventory
        self._launchers = launchers
        self._resources = resources
        self._pods = pods
        self._clock = clock
        self._changed = changed
        self._spacing_s = spacing_s
        self._wanted = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._met: set[str] = set()
        self._strangers: tuple[ContainerDevices, ...] = ()
        self._uids: dict[str, str] = {}  # of the pods that have those

    def meet(self, directory: str, hello: Hello) -> None:
        """A launcher at the door of a grant that is nobody's: whose it is must be found out soon."""
        self._met.add(os.path.basename(directory))
        self._wanted.set()

    def nudge(self) -> None:
        """The node's pods are others now."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            self._wanted.clear()
            await self.look()
            await asyncio.sleep(self._spacing_s)
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def look(self, asked: Sequence[str] = ()) -> None:
        """One look, begun after the call. Never raises: without an answer, what is known stays as it is."""
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(LOOK_S):
                    pods, rows = await asyncio.gather(self._pods(), self._resources.list())
            except Exception as error:  # the kubelet restarts, the API is away
                words = str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
                words = words or type(error).__name__
                if words != self.fault:
                    self.fault = words
                    log.warning("holdings.unknown", error=words)
                return
            self.fault = ""
            await self._settle([pod for pod in pods if pod.is_live], rows, frozenset(asked))

    async def _settle(self, pods: Sequence[Pod], rows: Sequence[ContainerDevices], asked: frozenset[str]) -> None:
        table = self._grants.table
        found = compare_kubelet_holdings(
            table.grants.values(),
            rows,
            pods,
            is_ours=lambda device: bool(self._row(device)),
            is_known=self._launchers.__contains__,
            is_connected=self._launchers.is_connected,
            has_met=self._met.__contains__,
            now=self._clock(),
            asked=asked,
        )
        for uid in found.release:
            log.info("holdings.gone", uid=uid)
            self._grants.release(uid)
        for name in found.drop:
            self._grants.drop(name)
        for pod, row in found.attach:
            try:
                await self._grants.attach(pod, row.container, row.resource_name, row.device_ids, beside=pods)
            except (Refusal, OSError) as error:
                log.warning("holdings.not_attached", pod=f"{pod.namespace}/{pod.name}", error=str(error))
        await self._settle_doors(pods)
        self._met &= {grant.name for grant in table.grants.values() if not grant.uid}
        self._inventory.withhold(
            "Draining", {device: _plugin_draining_fault(device, pod) for device, pod in found.draining.items()}
        )
        uids = {f"{pod.namespace}/{pod.name}": pod.uid for pod in pods if found.strangers and pod.status.start_time}
        rows_of = {f"{row.namespace}/{row.pod}" for row in found.strangers}
        named = {pod: uid for pod, uid in uids.items() if pod in rows_of}
        if (self._strangers, self._uids) != (found.strangers, named):
            self._strangers, self._uids = found.strangers, named
            self._changed()

    async def _settle_doors(self, pods: Sequence[Pod]) -> None:
        """Pods under the launcher have a door of their own, with devices or without, of our plugin or of another's."""
        live, table = {pod.uid for pod in pods}, self._grants.table
        for grant in [g for g in table.grants.values() if not g.devices]:
            is_door_only = not any(other.devices for other in table.of(grant.uid))
            if is_door_only and grant.uid not in live and not self._launchers.is_connected(grant.uid):
                self._grants.release(grant.uid)
        for pod in pods:
            is_launched = pod.annotations.get(ANNOTATION_LAUNCH) == IN_CONTAINER
            if not is_launched or self._grants.has_door(pod.uid):
                continue
            gpus = sum(w.size for w in wanted_allocations(pod, lambda device: "") if self._grants.serves(w.resource))
            if gpus and self._hands_out and not any(grant.devices for grant in table.of(pod.uid)):
                continue  # nothing of it starts before its devices are known to be its own
            try:
                self._open_checkpoints(pod)
                await self._grants.open_door(pod, gpus)
            except (Refusal, OSError) as error:
                log.warning("holdings.no_directory", pod=f"{pod.namespace}/{pod.name}", error=str(error))

    def _open_checkpoints(self, pod: Pod) -> None:
        job = pod.owner("TrainingJob")
        if self._checkpoint_root and job is not None:
            allocate_checkpoint_place(self._checkpoint_root, pod.namespace, job.name, job.uid)

    def foreign(self) -> list[Holding]:
        """Devices that somebody else's plugin handed out."""
        return [
            Holding(
                f"{row.namespace}/{row.pod}",
                row.container,
                row.resource_name,
                list(dict.fromkeys(map(self._row, row.device_ids))),
                self._uids.get(f"{row.namespace}/{row.pod}", ""),
            )
            for row in self._strangers
        ]

    def _row(self, plugin_id: str) -> str:
        """The device a plugin calls by this id, its UUID as a vendor's does or ours; "" when it is none of this node."""
        device = inventory_device_of_plugin_id(plugin_id)
        if device in self._inventory.rows:
            return device
        return next((row.id for row in self._inventory.rows.values() if row.uuid and row.uuid == device), "")


def _plugin_draining_fault(device: str, pod: str) -> FaultClass:
    words = f"The launcher of {pod} still runs on {device}, although the kubelet says that the pod is gone."
    return FaultClass("draining", "health", DeviceState.UNKNOWN, DeviceRemedy.NONE, "Draining", words)

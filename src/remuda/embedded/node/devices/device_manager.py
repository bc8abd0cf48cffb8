"""`KubeletDeviceManager`: the ledger with plugins to ask and a checkpoint to write, for plugins behind sockets and in process.

A pod is admitted container by container, resource by resource, as the kubelet does it: choose, ask which the plugin prefers,
Allocate, write it down, and only then use the answer. What was given stays given when a later step fails; the pod is rejected
and its devices are freed with those of other ended pods, at the next look.

Unlike the kubelet, every call has a deadline, and only pods of one resource wait for each other: a plugin that never answers
fails its own pods and delays nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.embedded.node.container_record import is_sidecar_container
from remuda.embedded.node.devices.cdi import UNRESOLVABLE, unresolvable_cdi_devices
from remuda.embedded.node.devices.checkpoint import CheckpointFile
from remuda.embedded.node.devices.device_ledger import (
    DeviceCounts,
    DeviceHealth,
    DeviceRequest,
    KubeletDeviceGrant,
    KubeletDeviceLedger,
    LedgerMemory,
    Reusable,
)
from remuda.embedded.node.devices.plugin_connections import (
    PluginConnections,
    PluginDeadlines,
    within_device_manager_deadline,
)
from remuda.embedded.node.devices.plugin_endpoint import device_manager_error_words
from remuda.embedded.node.devices.resource_fit import check_pod_fits, device_manager_resources_of_pod
from remuda.link.device_plugin_port import ContainerAllocation, ContainerDevices, PluginPort

log = structlog.get_logger(__name__)


class KubeletDeviceManager:
    """`pods`: the node's active pods, or None while they are not all known. `memory` stands in for a checkpoint.
    `counts_changed` and `health_changed(uids)` are told; nothing waits for them."""

    def __init__(
        self,
        node: str,
        *,
        clock: Callable[[], float],
        pods: Callable[[], Iterable[Pod] | None],
        checkpoint: CheckpointFile | None = None,
        memory: LedgerMemory | None = None,
        deadlines: PluginDeadlines = PluginDeadlines(),  # noqa: B008 - an immutable value
        cdi_dirs: Sequence[str] = (),
        counts_changed: Callable[[], None] = lambda: None,
        health_changed: Callable[[frozenset[str]], None] = lambda uids: None,
    ) -> None:
        self.deadlines = deadlines
        self._cdi_dirs = cdi_dirs
        self._node = node
        self._clock = clock
        self._pods = pods
        self._checkpoint = checkpoint
        if checkpoint is not None:
            memory = checkpoint.read()
        self.ledger = KubeletDeviceLedger(memory, clock())
        self.published: Mapping[str, int | str] = {}  # allocatable, as the node's object says it
        self._without_devices: set[tuple[str, str]] = set()  # (uid, resource): admitted while no plugin served it
        self._serving: dict[str, DeviceRequest] = {}  # the one each resource's plugin is being asked for
        self._locks: dict[str, asyncio.Lock] = {}
        self.plugins = PluginConnections(
            node,
            self.ledger,
            clock=clock,
            deadlines=deadlines,
            save=self._save,
            counts_changed=counts_changed,
            health_changed=health_changed,
        )

    # --- pods -----------------------------------------------------------------------------------------------------------

    async def admit(self, pod: Pod, running: Collection[str] = ()) -> None:
        """Give every container its devices, or raise Refusal. `running`: containers found alive when the node started."""
        reusable: Reusable = {}
        for container in pod.spec.init_containers:
            await self._allocate(pod, container, reusable, container.name in running)
            passes_on = not is_sidecar_container(container)
            reusable = self.ledger.reuse(pod.uid, container.name, reusable, passes_on=passes_on)
        for container in pod.spec.containers:
            await self._allocate(pod, container, reusable, container.name in running)
            reusable = self.ledger.reuse(pod.uid, container.name, reusable, passes_on=False)
        self._check_fits(pod)

    def _check_fits(self, pod: Pod) -> None:
        others = self._pods()
        if others is not None:
            active = {other.uid for other in others}
            self._without_devices = {(uid, resource) for uid, resource in self._without_devices if uid in active}
        check_pod_fits(pod, others or (), self.published, self._handed_out, self._without_devices)
        unserved = {resource for resource in device_manager_resources_of_pod(pod) if not self.ledger.serves(resource)}
        self._without_devices |= {(pod.uid, resource) for resource in unserved}

    def _handed_out(self, resource: str) -> int | None:
        return len(self.ledger.holders(resource)) if self.ledger.serves(resource) else None

    async def prepare(self, pod: Pod, container: Container) -> tuple[KubeletDeviceGrant, ...]:
        """Before each start of a container: what it has, and PreStart where the plugin wants it. Raises Refusal; the start
        is then tried again later."""
        missing = False
        for resource, count in self._requests(container):
            if count == 0:
                continue
            endpoint = self.ledger.endpoint(resource)
            if endpoint is None:
                raise Refusal("EndpointNotFound", f"endpoint not found in cache for a registered resource: {resource}")
            grant = self.ledger.grant(pod.uid, container.name, resource)
            if endpoint.options.pre_start_required:
                if grant is None:
                    raise Refusal(
                        "NotAllocated",
                        f"no devices found allocated in local cache for pod {pod.uid}, container {container.name}, "
                        f"resource {resource}",
                    )
                await self._pre_start(resource, grant)
            missing = missing or grant is None
        if missing:
            await self._allocate(pod, container, {}, False)
        grants = self.ledger.grants(pod.uid, container.name)
        names = unresolvable_cdi_devices(
            (name for grant in grants for name in grant.allocation.cdi_devices), self._cdi_dirs
        )
        if names:
            raise Refusal("UnresolvableCdiDevices", f"{UNRESOLVABLE} {', '.join(names)}")
        return grants

    def is_rival(self, pod: Pod) -> bool:
        """Waits for just what another pod is being given: a plugin that guesses from the pods of the node, as no call names
        one, would take them for each other."""
        return any(
            (resource, count) == (served.resource, served.count) and pod.uid != served.uid
            for served in self._serving.values()
            for container in (*pod.spec.init_containers, *pod.spec.containers)
            for resource, count in self._requests(container)
            if self.ledger.grant(pod.uid, container.name, resource) is None
        )

    def grants(self, uid: str) -> tuple[KubeletDeviceGrant, ...]:
        return self.ledger.grants(uid)

    def health(self, uid: str, container: str) -> tuple[DeviceHealth, ...]:
        return self.ledger.health(uid, container)

    async def _allocate(self, pod: Pod, container: Container, reusable: Reusable, running: bool) -> None:
        given = looked = False
        for resource, count in self._requests(container):
            if not looked:
                looked = True
                self.free()
            request = DeviceRequest(pod.uid, container.name, resource, count)
            async with self._locks.setdefault(resource, asyncio.Lock()):
                self._serving[resource] = request
                try:
                    given = await self._serve(request, reusable.get(resource, ()), running) or given
                finally:
                    del self._serving[resource]
        if given:
            try:
                self._save()
            except OSError as error:
                raise Refusal("CheckpointNotWritten", f"failed to write checkpoint file: {error}") from error

    async def _serve(self, request: DeviceRequest, reusable: Sequence[str], running: bool) -> bool:
        ledger, resource = self.ledger, request.resource
        choice = ledger.choose(request, reusable, running=running)
        if choice is None:
            return False
        preferred: tuple[str, ...] = ()
        if choice.asks:
            everything = (*choice.taken, *choice.available)
            try:
                port = self._port(resource)
                asked = port.preferred(everything, choice.taken, request.count)
                preferred = await within_device_manager_deadline(self.deadlines.call_s, asked)
            except Exception as error:
                raise Refusal(
                    "PreferredAllocationFailed",
                    f"device plugin GetPreferredAllocation rpc failed with err: {device_manager_error_words(error)}",
                ) from error
        devices = ledger.settle(choice, preferred)  # from here they are nobody else's, also while the plugin thinks
        try:
            allocation = await self._call_allocate(resource, devices)
        except BaseException:
            ledger.take_back(resource)
            raise
        ledger.give(request, devices, allocation)
        return True

    async def _call_allocate(self, resource: str, devices: tuple[str, ...]) -> ContainerAllocation:
        port = self._port(resource)
        try:
            return await within_device_manager_deadline(self.deadlines.call_s, port.allocate(devices))
        except Exception as error:
            raise Refusal("AllocateFailed", device_manager_error_words(error)) from error

    async def _pre_start(self, resource: str, grant: KubeletDeviceGrant) -> None:
        try:
            await within_device_manager_deadline(
                self.deadlines.pre_start_s, self._port(resource).pre_start(grant.devices)
            )
        except Exception as error:
            raise Refusal(
                "PreStartFailed",
                f"device plugin PreStartContainer rpc failed with err: {device_manager_error_words(error)}",
            ) from error

    def _port(self, resource: str) -> PluginPort:
        endpoint = self.ledger.endpoint(resource)
        if endpoint is None:
            raise Refusal("UnknownPlugin", f"unknown Device Plugin {resource}")
        port = self.plugins.port(resource, endpoint.key)
        if endpoint.stopped_at is not None or port is None:
            raise Refusal("EndpointStopped", f"endpoint {endpoint.key or resource} has been stopped")
        return port

    def _requests(self, container: Container) -> list[tuple[str, int]]:
        """What the container asks of resources that plugins serve. A resource nobody serves is passed over: the container
        starts without it, as under a kubelet."""
        asked = {**container.resources.requests, **container.resources.limits}
        return [
            (resource, parse_whole_quantity(amount))
            for resource, amount in asked.items()
            if self.ledger.serves(resource)
        ]

    def free(self) -> None:
        """What ended pods had; nothing while not all pods are known. Forgets what is set aside, too, as the kubelet does: that
        harms nobody, because the next choice of that resource waits for the lock."""
        active = self._pods()
        if active is not None:
            self.ledger.free({pod.uid for pod in active})

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.write(self.ledger.memory())

    # --- what others ask ------------------------------------------------------------------------------------------------

    def counts(self) -> DeviceCounts:
        """For the node's status."""
        if self.ledger.expire(self._clock()):
            try:
                self._save()
            except OSError as error:
                log.error("devices.checkpoint_not_written", node=self._node, error=str(error))
        return self.ledger.counts()

    async def list(self) -> tuple[ContainerDevices, ...]:
        """podresources, for whoever asks in process: every active pod's devices; of init containers only sidecars'."""
        pods = self.active()
        self.free()
        return tuple(
            ContainerDevices(pod.namespace, pod.name, name, grant.resource, grant.devices)
            for pod in pods
            for name, grants in self.by_container(pod).items()
            for grant in grants
        )

    def active(self) -> tuple[Pod, ...]:
        return tuple(self._pods() or ())

    def by_container(self, pod: Pod) -> dict[str, tuple[KubeletDeviceGrant, ...]]:
        names = [c.name for c in (*filter(is_sidecar_container, pod.spec.init_containers), *pod.spec.containers)]
        return {name: self.ledger.grants(pod.uid, name) for name in names}

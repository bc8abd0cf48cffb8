"""`ResourcePlugin`: the devices of one resource, as a kubelet's device manager sees them. Implements `PluginPort`.

A view over the inventory and the grants with nothing of its own but the streams it feeds. What it says:

- list: every device of the resource, Healthy or not. Unhealthy is whatever must not be handed out now: a fault of the device or
  its parent, unknown health, something left on it by its last holder. A device off the bus stays in the list, Unhealthy: the
  others keep serving and the holder can still be named.
- GetPreferredAllocation: `preferred_devices`, with the node's bound pods asked for within a deadline. It never fails.
- Allocate: `AllocationGrants.hand_out`; a refusal's reason and sentence reach the pod's status through the kubelet.
- replicas: with n > 1 every device is offered n times (`gpu-0::0` ...), time-sliced by its driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog

from remuda.agent.allocation.device_grants import AllocationGrants
from remuda.agent.inventory import REPLICA, Inventory
from remuda.agent.plugin.preferred_devices import BestSet, PreferredAsk, choose_plugin_preferred_devices
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.selectors import FieldSelector
from remuda.kube.cluster import Cluster
from remuda.link.allocation_port import FAIL, HANG, KILL, MEND
from remuda.link.device_plugin_port import HEALTHY, UNHEALTHY, ContainerAllocation, PluginDevice, PluginOptions

log = structlog.get_logger(__name__)

PODS_WITHIN_S = 0.5  # the kubelet waits for us, and has no deadline of its own
MAX_REPLICAS = 64

BoundPods = Callable[[], Awaitable[Sequence[Pod]]]  # the pods bound to this node, as fresh as can be


def resource_plugin_bound_pods_reader(cluster: Cluster, node: str) -> BoundPods:
    async def bound() -> Sequence[Pod]:
        fields = FieldSelector((("spec.nodeName", True, node),))
        return (await cluster.list(Pod, fields=fields)).items

    return bound


class ResourcePlugin:
    def __init__(
        self,
        resource: str,
        *,
        inventory: Inventory,
        grants: AllocationGrants,
        pods: BoundPods,
        best: BestSet,
        replicas: int = 1,
        streams_changed: Callable[[ResourcePlugin], None] = lambda plugin: None,
    ) -> None:
        if not 1 <= replicas <= MAX_REPLICAS:
            raise Refusal(
                "InvalidReplicas",
                f"{replicas} replicas of {resource} are not possible.",
                f"Use a number from 1 to {MAX_REPLICAS}.",
            )
        self.resource = resource
        self.fault = MEND  # a drill's
        self._inventory = inventory
        self._grants = grants
        self._pods = pods
        self.best = best
        self._replicas = replicas
        self._streams: dict[asyncio.Event, None] = {}
        self._hung: set[asyncio.Event] = set()
        self._streams_changed = streams_changed
        self._is_closed = False
        inventory.subscribe(self._wake)

    @property
    def streams(self) -> int:
        """How many device managers listen."""
        return len(self._streams)

    def devices(self) -> tuple[PluginDevice, ...]:
        found: list[PluginDevice] = []
        for row in self._inventory.of(self.resource):
            health = HEALTHY if self._inventory.fault(row.id) is None else UNHEALTHY
            numa = (row.numa,) if row.numa >= 0 else ()
            ids = [row.id] if self._replicas == 1 else [f"{row.id}{REPLICA}{n}" for n in range(self._replicas)]
            found += [PluginDevice(plugin_id, health, numa) for plugin_id in ids]
        return tuple(found)

    # --- the port -------------------------------------------------------------------------------------------------------

    async def options(self) -> PluginOptions:
        return PluginOptions(pre_start_required=False, preferred_allocation_available=True)

    async def list_and_watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        changed = asyncio.Event()
        self._streams[changed] = None
        self._streams_changed(self)
        last: tuple[PluginDevice, ...] | None = None
        try:
            while not self._is_closed and self.fault != KILL:
                changed.clear()
                now = self.devices()
                if now != last:
                    last = now
                    yield now
                    continue  # more may have happened meanwhile
                await changed.wait()
        finally:
            del self._streams[changed]
            self._streams_changed(self)

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        await self._suffer()
        pods: Sequence[Pod] = ()
        try:
            async with asyncio.timeout(PODS_WITHIN_S):
                pods = await self._pods()
        except Exception as error:  # an API that does not answer is no reason to fail a pod
            log.warning("plugin.pods_unknown", resource=self.resource, error=str(error) or type(error).__name__)
        ask = PreferredAsk(self.resource, tuple(available), tuple(must_include), size)
        choice = choose_plugin_preferred_devices(ask, pods, self._has, self._inventory.resource_of, self.best)
        log.info("plugin.preferred", resource=self.resource, devices=list(choice.devices), pod=choice.pod)
        return choice.devices

    async def allocate(self, devices: Sequence[str]) -> ContainerAllocation:
        await self._suffer()
        if self.fault == FAIL:
            raise Refusal(
                "AllocateFailed", f"A drill makes every allocation of {self.resource} fail.", "End the drill."
            )
        for device in devices:
            if not self._serves(device):
                raise Refusal(
                    "UnknownDevice",
                    f"{self.resource} has no device `{device:.80}` on this node.",
                    f"Its devices: {', '.join(d.id for d in self.devices()) or 'none'}.",
                )
        answer = await self._grants.hand_out(self.resource, devices)
        log.info("plugin.allocated", resource=self.resource, devices=list(devices))
        return answer

    async def pre_start(self, devices: Sequence[str]) -> None:
        """Not asked for, and harmless."""

    # --- ends and drills ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._is_closed = True
        self._wake()

    def inject(self, fault: str) -> None:
        if fault not in (KILL, HANG, FAIL, MEND):
            raise Refusal(
                "UnknownPluginFault",
                f"`{fault}` is not a plugin fault.",
                f"Use {KILL}, {HANG}, {FAIL} or {MEND}.",
                "fault",
            )
        self.fault = fault
        self._wake()
        self._streams_changed(self)

    async def _suffer(self) -> None:
        if self.fault == KILL:
            raise Refusal("PluginGone", f"The plugin of {self.resource} does not run.", "End the drill.")
        while self.fault == HANG:
            changed = asyncio.Event()
            self._hung.add(changed)
            try:
                await changed.wait()
            finally:
                self._hung.discard(changed)

    def _serves(self, plugin_id: str) -> bool:
        device, _, share = plugin_id.partition(REPLICA)
        if self._inventory.resource_of(device) != self.resource:
            return False
        if self._replicas == 1:
            return plugin_id == device
        return share in map(str, range(self._replicas))

    def _wake(self) -> None:
        for event in (*self._streams, *self._hung):
            event.set()

    def _has(self, uid: str, container: str) -> bool:
        return any((g.container, g.resource) == (container, self.resource) for g in self._grants.table.of(uid))

"""What the kubelet's device manager knows and decides, as a state machine without I/O.

Kept the way the kubelet keeps it, so that whatever stands on it meets the kubelet's behaviour, flaws included:

- Several plugin instances may serve one resource. The newest to connect is asked; the *list* belongs to the resource, and the
  last instance to send one wins. When an instance goes, one that is left is asked. When the last one goes, every device is
  unhealthy: allocatable 0, capacity as before. After `GRACE_S` the resource is dropped, and the node says 0 for both.
- allocatable = healthy, capacity = healthy + unhealthy. A device that left the list counts nowhere; its holder keeps it, and
  the holder's status calls it Healthy, as it does for a device whose plugin is gone.
- A device is free when it is healthy and allocated to nobody. Devices of ended pods are freed late (`free`), never by the end
  itself. An init container's devices go to the containers after it, a sidecar's do not.
- A container that has its devices is not given others: it keeps them over restarts of itself, its plugin and the node. But a
  pod that is *admitted* anew needs all of them healthy.

A resource nobody ever served is no business of the device manager: a container that asks for it gets nothing and is not
refused. Keeping such pods off the node is the scheduler's part.

Devices keep the order of the plugin's list, so the same events give the same choice. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from remuda.api.errors import Refusal
from remuda.link.device_plugin_port import HEALTHY, ContainerAllocation, PluginDevice, PluginOptions

GRACE_S = 300.0  # from the end of a resource's last plugin to the end of the resource
NO_NUMA = -1

Reusable = dict[str, tuple[str, ...]]  # resource -> devices of finished init containers of the pod being admitted


class PluginInstance(msgspec.Struct, frozen=True):
    """One plugin instance. `key` is its socket; "" stands for the plugin that was there before the node started."""

    key: str
    options: PluginOptions = PluginOptions()
    stopped_at: float | None = None


class DeviceRequest(msgspec.Struct, frozen=True):
    """So many devices of a resource for one container."""

    uid: str
    container: str
    resource: str
    count: int


class KubeletDeviceGrant(msgspec.Struct, frozen=True):
    """What a container was given: one entry of the checkpoint."""

    uid: str
    container: str
    resource: str
    devices: tuple[str, ...]
    allocation: ContainerAllocation
    numa: dict[int, tuple[str, ...]] = {}  # the same devices by NUMA node; NO_NUMA: they told none


class DeviceChoice(msgspec.Struct, frozen=True):
    """An unfinished choice: `taken` are set aside, the rest comes from `available`. `asks`: the plugin may advise."""

    request: DeviceRequest
    taken: tuple[str, ...]
    available: tuple[str, ...]
    asks: bool


class DeviceCounts(msgspec.Struct, frozen=True):
    capacity: dict[str, int]
    allocatable: dict[str, int]


class LedgerMemory(msgspec.Struct, frozen=True):
    """What survives the process. Of a resource only the name is believed: its devices count again when its plugin is back."""

    grants: tuple[KubeletDeviceGrant, ...] = ()
    registered: dict[str, tuple[str, ...]] = {}


class DeviceHealth(msgspec.Struct, frozen=True):
    resource: str
    device: str
    healthy: bool
    message: str = ""  # device plugins have no way to tell one


class KubeletDeviceLedger:
    def __init__(self, memory: LedgerMemory | None = None, now: float = 0.0) -> None:
        """`memory`: of the life before this one; its resources start at nothing, with a plugin that has just stopped."""
        self._endpoints: dict[str, PluginInstance] = {}  # the one that is asked
        self._instances: dict[str, dict[str, PluginInstance]] = {}  # resource -> key -> connected instance
        self._listed: dict[str, dict[str, PluginDevice]] = {}  # as last told; outlives the plugin, for the health texts
        self._healthy: dict[str, dict[str, None]] = {}
        self._unhealthy: dict[str, dict[str, None]] = {}
        self._grants: dict[str, dict[tuple[str, str], KubeletDeviceGrant]] = {}  # uid -> (container, resource)
        self._allocated: dict[str, set[str]] = {}
        self._dropped: set[str] = set()
        for grant in memory.grants if memory else ():
            self._grants.setdefault(grant.uid, {})[grant.container, grant.resource] = grant
        self._rebuild()
        for resource in memory.registered if memory else ():
            self._endpoints[resource] = PluginInstance("", stopped_at=now)
            self._healthy[resource], self._unhealthy[resource] = {}, {}

    # --- plugins --------------------------------------------------------------------------------------------------------

    def connect(self, resource: str, key: str, options: PluginOptions) -> None:
        instances = self._instances.setdefault(resource, {})
        if key in instances:
            raise Refusal(
                "PluginAlreadyConnected",
                f"device plugin already connected: {key}",
                "Give every instance of the plugin a socket name of its own.",
            )
        self._endpoints[resource] = instances[key] = PluginInstance(key, options)
        self._dropped.discard(resource)

    def disconnect(self, resource: str, key: str, now: float) -> None:
        instances = self._instances.get(resource, {})
        gone = instances.pop(key, None)
        if gone is None:
            return
        if instances:
            self._endpoints[resource] = next(reversed(instances.values()))
            return
        del self._instances[resource]
        self._endpoints[resource] = msgspec.structs.replace(gone, stopped_at=now)
        unfit = {**self._unhealthy.get(resource, {}), **self._healthy.get(resource, {})}
        self._healthy[resource], self._unhealthy[resource] = {}, unfit

    def receive(self, resource: str, devices: Iterable[PluginDevice]) -> frozenset[str]:
        """A list from one of the resource's plugins. Returns the uids of pods whose health texts it may change."""
        before = self._listed.get(resource, {})
        listed = self._listed[resource] = {d.id: d for d in devices}  # of duplicates the last one counts
        self._healthy[resource] = {d.id: None for d in listed.values() if d.health == HEALTHY}
        self._unhealthy[resource] = {d.id: None for d in listed.values() if d.health != HEALTHY}
        changed = {d.id for d in listed.values() if d.id not in before or before[d.id].health != d.health}
        holders = (g.uid for g in self._all_grants() if g.resource == resource and not changed.isdisjoint(g.devices))
        return frozenset(holders)

    def endpoint(self, resource: str) -> PluginInstance | None:
        """The instance that is asked, which may have stopped."""
        return self._endpoints.get(resource)

    def instances(self, resource: str) -> tuple[PluginInstance, ...]:
        return tuple(self._instances.get(resource, {}).values())

    def serves(self, resource: str) -> bool:
        """Registered, or given out before: then a container that asks for it must get it or be refused."""
        return resource in self._healthy or resource in self._allocated

    # --- what the node says ---------------------------------------------------------------------------------------------

    def expire(self, now: float) -> tuple[str, ...]:
        """Drop the resources whose last plugin has been away for longer than the grace; returns which."""
        old = [
            resource
            for resource in (*self._healthy, *(r for r in self._unhealthy if r not in self._healthy))
            if self._is_expired(self._endpoints.get(resource), now)
        ]
        for resource in old:
            self._endpoints.pop(resource, None)
            self._healthy.pop(resource, None)
            self._unhealthy.pop(resource, None)
            self._dropped.add(resource)
        return tuple(old)

    def expires_at(self) -> float | None:
        """When `expire` should be called next."""
        times = (e.stopped_at + GRACE_S for e in self._endpoints.values() if e.stopped_at is not None)
        return min(times, default=None)

    def counts(self) -> DeviceCounts:
        capacity = dict.fromkeys(sorted(self._dropped), 0)
        allocatable = dict(capacity)
        for resource in sorted(self._healthy):
            allocatable[resource] = len(self._healthy[resource])
            capacity[resource] = len(self._healthy[resource]) + len(self._unhealthy.get(resource, {}))
        return DeviceCounts(capacity, allocatable)

    def healthy(self) -> dict[str, tuple[PluginDevice, ...]]:
        return {
            resource: tuple(self._listed[resource][d] for d in ids) for resource, ids in self._healthy.items() if ids
        }

    @staticmethod
    def _is_expired(endpoint: PluginInstance | None, now: float) -> bool:
        return endpoint is None or (endpoint.stopped_at is not None and now - endpoint.stopped_at >= GRACE_S)

    # --- choosing -------------------------------------------------------------------------------------------------------

    def choose(
        self, request: DeviceRequest, reusable: Sequence[str] = (), *, running: bool = False
    ) -> DeviceChoice | None:
        """Begin to give `request` its devices; None: it has them. `running`: the container was found alive when the node
        started, so it has what it needs whatever the lists say. Raises Refusal in the kubelet's words."""
        resource, needed = request.resource, request.count
        held = self.grant(request.uid, request.container, resource)
        if held is not None:
            if len(held.devices) != needed:
                raise Refusal(
                    "RequestChanged",
                    f'pod "{request.uid}" container "{request.container}" changed request for resource "{resource}" '
                    f"from {len(held.devices)} to {needed}",
                )
            needed = 0
        if running:
            return None
        healthy = self._healthy.get(resource)
        if healthy is None:
            raise Refusal("UnregisteredDevice", f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise Refusal(
                "NoHealthyDevices", f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if held is not None and not healthy.keys() >= set(held.devices):
            raise Refusal(
                "DevicesNoLongerHealthy",
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}",
            )
        if needed == 0:
            return None
        taken = tuple(reusable[:needed])
        used = self._allocated.get(resource, set())
        available = tuple(d for d in healthy if d not in used and d not in taken)
        missing = needed - len(taken)
        if len(available) < missing:
            raise Refusal(
                "DevicesUnavailable",
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {missing}, Available: {len(available)}",
            )
        endpoint = self._endpoints.get(resource)
        asks = missing > 0 and endpoint is not None and endpoint.options.preferred_allocation_available
        return DeviceChoice(request, taken, available, asks)

    def settle(self, choice: DeviceChoice, preferred: Iterable[str] = ()) -> tuple[str, ...]:
        """End the choice: what the plugin prefers as far as it may be had, then any. The devices are set aside until
        `give` or `take_back`."""
        fit = set(choice.available)
        wished = [d for d in dict.fromkeys(preferred) if d in fit]
        rest = [d for d in choice.available if d not in wished]
        missing = choice.request.count - len(choice.taken)
        devices = (*choice.taken, *[*wished, *rest][:missing])
        self._allocated.setdefault(choice.request.resource, set()).update(devices)
        return devices

    def give(
        self, request: DeviceRequest, devices: tuple[str, ...], allocation: ContainerAllocation
    ) -> KubeletDeviceGrant:
        listed = self._listed.get(request.resource, {})
        numa: dict[int, tuple[str, ...]] = {}
        for device in devices:
            known = listed.get(device)
            for node in (known.numa if known is not None else ()) or (NO_NUMA,):
                numa[node] = (*numa.get(node, ()), device)
        grant = KubeletDeviceGrant(request.uid, request.container, request.resource, devices, allocation, numa)
        self._grants.setdefault(request.uid, {})[request.container, request.resource] = grant
        self._rebuild(request.resource)
        return grant

    def recall(self, grants: Iterable[KubeletDeviceGrant]) -> None:
        """Given in an earlier life, told by somebody else than the checkpoint. What is known already stays."""
        for grant in grants:
            self._grants.setdefault(grant.uid, {}).setdefault((grant.container, grant.resource), grant)
        self._rebuild()

    def take_back(self, resource: str) -> None:
        """The plugin refused: nothing is set aside any more."""
        self._rebuild(resource)

    def reuse(self, uid: str, container: str, reusable: Mapping[str, Sequence[str]], *, passes_on: bool) -> Reusable:
        """What the containers after this one may take over. `passes_on`: an init container that ends before they begin."""
        left: Reusable = {resource: tuple(devices) for resource, devices in reusable.items()}
        for grant in self.grants(uid, container):
            others = tuple(d for d in left.get(grant.resource, ()) if d not in grant.devices)
            left[grant.resource] = (*others, *grant.devices) if passes_on else others
        return left

    # --- holders --------------------------------------------------------------------------------------------------------

    def free(self, active: Collection[str]) -> bool:
        """Forget every pod that is not `active` (uids); whether there was one."""
        ended = [uid for uid in self._grants if uid not in active]
        for uid in ended:
            del self._grants[uid]
        if ended:
            self._rebuild()
        return bool(ended)

    def grant(self, uid: str, container: str, resource: str) -> KubeletDeviceGrant | None:
        return self._grants.get(uid, {}).get((container, resource))

    def grants(self, uid: str, container: str | None = None) -> tuple[KubeletDeviceGrant, ...]:
        of_pod = self._grants.get(uid, {}).values()
        return tuple(g for g in of_pod if container is None or g.container == container)

    def holders(self, resource: str) -> dict[str, tuple[str, ...]]:
        """Device -> uids of the pods that have it; more than one only while an ended pod is not forgotten yet."""
        found: dict[str, tuple[str, ...]] = {}
        for grant in self._all_grants():
            for device in grant.devices if grant.resource == resource else ():
                if grant.uid not in found.get(device, ()):
                    found[device] = (*found.get(device, ()), grant.uid)
        return found

    def health(self, uid: str, container: str) -> tuple[DeviceHealth, ...]:
        """Of each device the container has. One that no list names (any more) is Healthy, and a plugin's end changes no
        text: both are the kubelet's."""
        return tuple(
            DeviceHealth(grant.resource, device, self._is_called_healthy(grant.resource, device))
            for grant in self.grants(uid, container)
            for device in grant.devices
        )

    def memory(self) -> LedgerMemory:
        registered = {resource: tuple(devices) for resource, devices in self._healthy.items()}
        return LedgerMemory(tuple(self._all_grants()), registered)

    def _is_called_healthy(self, resource: str, device: str) -> bool:
        known = self._listed.get(resource, {}).get(device)
        return known is None or known.health == HEALTHY

    def _all_grants(self) -> Iterator[KubeletDeviceGrant]:
        for of_pod in self._grants.values():
            yield from of_pod.values()

    def _rebuild(self, resource: str = "") -> None:
        """What is allocated follows from the grants alone; of one resource or, with none named, of all."""
        for known in (resource,) if resource else tuple(self._allocated):
            self._allocated.pop(known, None)
        for grant in self._all_grants():
            if not resource or grant.resource == resource:
                self._allocated.setdefault(grant.resource, set()).update(grant.devices)

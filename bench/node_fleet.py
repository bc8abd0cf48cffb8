"""Many simulated nodes with a pod on every GPU, in one process: what it costs to keep them, and whether leases stay on time.

The cluster is `remuda up --runtime simulated` with its sqlite store, all parts in this one process and on one event loop: API
server, garbage collection, built-in controllers, scheduler, controllers, and for each node its agent, plugin, device manager and
kubelet. The pods are plain ones (`nvidia.com/gpu: 1`), made through the API and placed by the scheduler; none is pre-bound.

CPU is the whole process's (writer threads included) over a window that begins when all pods run and the fleet has been left alone
for one lease: seconds of CPU by seconds of wall time. Events of the pods' start are still being written then, a few at a time.
Load from others does not count, but slows every second down: compare runs of a quiet machine. Leases are judged
from the manager's side, by its own informer: how old a node's last known renewal was when the next one was seen.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.gang import make_cluster
from bench.marks import Broken
from bench.onerun import answer, quiet, rss_mib
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.kubernetes.core_v1 import Lease, Node, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.api.meta import JsonObject, to_seconds
from remuda.api.names import RESOURCE_GPU
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.runtime.embedded_cluster import EmbeddedCluster
from remuda.runtime.up_config import ClusterConfig

GPUS = 8  # of the default model


class FleetAsk(msgspec.Struct, frozen=True):
    nodes: int
    window_s: float
    lease_s: float = 8.0
    timeout_s: float = 600.0


class FleetRun(msgspec.Struct, frozen=True):
    """Times in seconds. `lease_age`: the oldest a renewal got before the next was seen; `late`: by how much the latest missed
    its period; `expired`: leases older than their length, at any moment of the window. `filling_`: while pods were made."""

    nodes: int
    pods: int
    lease_s: float
    registered: float
    registered_cpu: float
    running: float
    running_cpu: float
    window: float
    window_cpu: float
    renewals: int
    lease_age: float
    late: float
    expired: int
    filling_lease_age: float
    filling_expired: int
    gc_pause: float
    rss_mib: float
    peak_mib: float
    store_mib: float

    @property
    def cores(self) -> float:
        return self.window_cpu / self.window


class LeaseWatch:
    """Subscribed to an informer of leases."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self.is_on = False
        self.renewals = 0
        self.oldest = 0.0
        self.latest = 0.0
        self.expired: set[str] = set()

    def __call__(self, old: Lease | None, new: Lease | None) -> None:
        if not self.is_on or old is None or new is None:
            return
        before, after = old.spec.renew_time, new.spec.renew_time
        if before is None or after is None or before == after:
            return
        self.renewals += 1
        self.latest = max(self.latest, (after - before).total_seconds() - self._period_s)
        self.look(old, time.time())

    def look(self, lease: Lease, now: float) -> None:
        """At one that stands for its node at `now`."""
        if lease.spec.renew_time is not None:
            age = now - to_seconds(lease.spec.renew_time)
            self.oldest = max(self.oldest, age)
            if age > lease.spec.lease_duration_seconds:
                self.expired.add(lease.name)


class GcPauses:
    """The longest garbage collection; nothing else runs meanwhile, renewals included."""

    def __init__(self) -> None:
        self._began = 0.0
        self.longest = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest = max(self.longest, time.perf_counter() - self._began)


def a_pod(number: int) -> JsonObject:
    amounts = {RESOURCE_GPU: "1", "cpu": "4", "memory": "16Gi"}
    return {
        "metadata": {"name": f"infer-{number:05d}", "namespace": "default", "labels": {"app": "infer"}},
        "spec": {
            "containers": [{"name": "main", "image": "registry.example.com/infer:1", "resources": {"limits": amounts}}]
        },
    }


async def run_fleet(root: Path, ask: FleetAsk) -> FleetRun:
    nodes, pods, lease_s, timeout_s = ask.nodes, ask.nodes * GPUS, ask.lease_s, ask.timeout_s
    config = ClusterConfig(nodes=nodes, racks=max(1, nodes // 32), runtime="simulated", lease_seconds=lease_s)
    began, began_cpu = time.monotonic(), time.process_time()
    async with make_cluster(config, root) as cluster:
        watch = LeaseWatch(lease_s / 4)
        cluster.control.view.leases.subscribe(watch)
        await _offered(cluster, nodes, timeout_s)
        filling = LeaseWatch(lease_s / 4)
        cluster.control.view.leases.subscribe(filling)
        registered, registered_cpu = time.monotonic() - began, time.process_time() - began_cpu
        filling.is_on = True
        began, began_cpu = time.monotonic(), time.process_time()
        await _fill(cluster, pods, timeout_s)
        running, running_cpu = time.monotonic() - began, time.process_time() - began_cpu
        filling.is_on = False
        await asyncio.sleep(lease_s)
        gc.collect()
        pauses = GcPauses()
        gc.callbacks.append(pauses)
        watch.is_on = True
        began, began_cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(ask.window_s)
        window, window_cpu = time.monotonic() - began, time.process_time() - began_cpu
        now = time.time()
        for lease in cluster.control.view.leases.items():
            watch.look(lease, now)
        watch.is_on = False
        gc.callbacks.remove(pauses)
        _check(cluster, pods)
        rss = rss_mib()
    return FleetRun(
        nodes=nodes,
        pods=pods,
        lease_s=lease_s,
        registered=registered,
        registered_cpu=registered_cpu,
        running=running,
        running_cpu=running_cpu,
        window=window,
        window_cpu=window_cpu,
        renewals=watch.renewals,
        lease_age=watch.oldest,
        late=watch.latest,
        expired=len(watch.expired),
        filling_lease_age=filling.oldest,
        filling_expired=len(filling.expired),
        gc_pause=pauses.longest,
        rss_mib=rss,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        store_mib=_disk_mib(root),
    )


async def _offered(cluster: EmbeddedCluster, nodes: int, timeout_s: float) -> None:
    """Return when every GPU of every node is judged and offered: before that a pod that is refused is refused rightly."""
    judged: set[str] = set()
    offering: set[str] = set()
    all_here = asyncio.Event()

    def look() -> None:
        if len(judged) == len(offering) == nodes:
            all_here.set()

    def devices_changed(old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is not None and sum(v.state is DeviceState.HEALTHY for v in new.verdicts) == GPUS:
            judged.add(new.name)
            look()

    def node_changed(old: Node | None, new: Node | None) -> None:
        if new is not None and parse_whole_quantity(new.status.allocatable.get(RESOURCE_GPU, 0)) == GPUS:
            offering.add(new.name)
            look()

    cluster.control.view.devices.subscribe(devices_changed)
    cluster.control.view.nodes.subscribe(node_changed)
    await _within(
        timeout_s, all_here, lambda: f"{len(judged)} of {nodes} nodes are judged, {len(offering)} offer {GPUS}"
    )


async def _within(seconds: float, happened: asyncio.Event, words: Callable[[], str]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await happened.wait()
    except TimeoutError:
        raise Broken(f"after {seconds:g} s only {words()}") from None


async def _fill(cluster: EmbeddedCluster, pods: int, timeout_s: float) -> None:
    """Make the pods and return when the manager has seen the last of them Running."""
    running: set[str] = set()
    full = asyncio.Event()

    def changed(old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.status.phase == "Running":
            running.add(new.name)
            if len(running) == pods:
                full.set()

    async def make(number: int) -> None:
        await cluster.api.create(Pod, a_pod(number))

    cluster.control.view.pods.subscribe(changed)
    await write_all_objects(make, range(pods))
    await _within(timeout_s, full, lambda: f"{len(running)} of {pods} pods run")


def _check(cluster: EmbeddedCluster, pods: int) -> None:
    """Every pod runs, and no device is held twice."""
    held: set[tuple[str, str]] = set()
    found = cluster.control.view.pods.items()
    for pod in found:
        if pod.status.phase != "Running":
            raise Broken(f"pod {pod.name} is {pod.status.phase}")
    for name, agent in cluster.machines.agents.items():
        held |= {(name, device) for device in agent.holders()}
    if len(found) != pods or len(held) != pods:
        raise Broken(f"{pods} pods were made, {len(found)} are there and hold {len(held)} devices")


def _disk_mib(root: Path) -> float:
    return sum(path.stat().st_size for path in root.glob("store.db*")) / 2**20


if __name__ == "__main__":
    quiet()
    sys.exit(answer(FleetAsk, run_fleet))

"""One pod on one node: the shell around `pod_lifecycle`.

A loop of observe -> plan -> act. Whatever may take time (the agent's answer, a pull, a write to the API) runs beside the
loop and comes back as a change of the record, so a pod can be stopped while it is pulling, and a container is restarted
while the API is out of reach. At most one status write is under way; what changed meanwhile goes into the next one.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from typing import Any

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.errors import ApiError, Conflict, NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Container, Pod, PodStatus
from remuda.embedded.node import container_record, device_allocation
from remuda.embedded.node.container_preparation import prepare_container
from remuda.embedded.node.container_record import ContainerExit, ContainerRecord, restart_backoff_of
from remuda.embedded.node.devices.device_ledger import DeviceHealth
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.env_sources import has_env_sources
from remuda.embedded.node.node_site import NodeSite
from remuda.embedded.node.pod_events import emit_container_status_events, emit_stop_event
from remuda.embedded.node.pod_lifecycle import (
    Action,
    AdmitPod,
    DeviceAdmission,
    ExpirePod,
    KillContainers,
    PodRecord,
    PullImage,
    ReleaseDevices,
    RemovePod,
    RestartPod,
    StartContainer,
    StopContainers,
    is_pod_record_over,
    plan_pod_lifecycle_on_node,
    record_after_restart,
)
from remuda.embedded.node.pod_status import (
    device_health_in_status,
    kubelet_pod_status_patch,
    merge_pod_conditions,
    pod_status_of,
    with_kubelet_conditions_only,
)
from remuda.embedded.node.runtime_port import ContainerKey, ContainerLaunch
from remuda.kube.cluster import Preconditions
from remuda.link.allocation_port import Allocation

log = structlog.get_logger(__name__)

PREPARE_S = 10.0  # between two tries to prepare a container, as the kubelet's sync
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 5.0  # after an error of the API or the agent
# The rest is local and never waits for somebody else's trouble to pass.
_RETRIED = (AdmitPod, ReleaseDevices, RemovePod)
_DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_TICK_S = 0.001  # shorter waits are below what clocks near 2e9 s resolve well


class PodWorker:
    """`pod` and `record` may be read by others; only the worker changes them."""

    def __init__(self, site: NodeSite, pod: Pod, record: PodRecord) -> None:
        self.pod = pod
        self.record = record
        self.gone = asyncio.Event()  # nothing of the pod is left on the machine and no device is held
        self._site = site
        self._known = with_kubelet_conditions_only(pod.status)  # what the API has of our part of the status
        # Containers that are held back; of those found running, nobody knows what an earlier life of the node did to them.
        self._slowed = {c.name for c in record.every if c.is_live}
        self._allocations: device_allocation.Allocations | None = None  # None: not admitted in this life of the node
        self._health = device_health_in_status(pod.status)  # of the pod's devices, as last told
        self._changed = asyncio.Event()
        self._writing = False
        self._retry_s = RETRY_FIRST_S
        self._retry_at = 0.0
        self._beside: dict[asyncio.Task[None], None] = {}  # in order: a simulated run must repeat exactly

    # --- what happens to the pod --------------------------------------------------------------------------------------

    def update(self, pod: Pod) -> None:
        """A newer version of the object. Our own writes come back here too, sometimes after a later one."""
        if _pod_version(pod) >= _pod_version(self.pod):
            self.pod = pod
            if pod.is_terminal and self._known.phase not in ("Succeeded", "Failed"):
                self._known = with_kubelet_conditions_only(pod.status)  # someone else ended it
        self._changed.set()

    def vanish(self) -> None:
        """The object is gone from the API."""
        self._note(vanished=True)

    def container_exited(self, container: str, run: int, end: ContainerExit) -> None:
        record = self.record.container(container)
        if not record.is_live or record.run != run:
            return
        self.record = self.record.with_container(
            container_record.container_exited(record, end, restart_backoff_of(self.pod))
        )
        if self._allocations is None and self.record.admission is DeviceAdmission.GRANTED:
            self._note(admission=DeviceAdmission.NONE)  # adopted without one: ask before the next start
        if all(c.name != container for c in self.record.inits):  # those have no launcher
            self._site.agent.container_exited(self.pod.uid, end.code)
        self._changed.set()

    def health_changed(self) -> None:
        """Of a device the pod has."""
        self._changed.set()

    @property
    def is_active(self) -> bool:
        """May have devices, or will: nothing of it may be given to others."""
        return self.record.is_live or self.record.held or not is_pod_record_over(self.pod, self.record)

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until nothing is left to do for the pod. Cancelled: leaves everything as it is."""
        try:
            while not await self._turn():
                pass
        finally:
            for task in self._beside:
                task.cancel()
            await asyncio.gather(*self._beside, return_exceptions=True)

    async def _turn(self) -> bool:
        self._changed.clear()
        site, now = self._site, self._site.clock()
        status = pod_status_of(self.pod, self.record, self._known, now, self._health_of)
        written = not self._writing and not kubelet_pod_status_patch(self._known, status)
        plan = plan_pod_lifecycle_on_node(self.pod, self.record, site.images, now, written=written)
        if plan.finished:
            self._cleared()
            return True
        actions = [a for a in plan.actions if now >= self._retry_at or not isinstance(a, _RETRIED)]
        if actions:
            for action in actions:
                if await self._act(action):
                    return True
            return False
        if written and self.pod.is_terminal and not self.record.is_live and not self.record.held:
            self._cleared()
        elif plan.settled and not written and not self._writing and now >= self._retry_at:
            self._writing = True
            self._spawn(self._write(status))
        await self._wait(now, plan.wake_at)
        return False

    async def _wait(self, now: float, wake_at: float | None) -> None:
        times = [t for t in (wake_at, self._retry_at) if t is not None and t > now]
        timer = None
        if times:
            delay = max(_TICK_S, min(times) - now)
            timer = asyncio.get_running_loop().call_later(delay, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _act(self, action: Action) -> bool:
        """Returns True when the pod is gone for good."""
        match action:
            case AdmitPod():
                self._note(admission=DeviceAdmission.ASKED)
                self._spawn(self._admit())
            case PullImage(image):
                self._note(pulling=self.record.pulling | {image})
                self._spawn(self._pull(image))
            case StartContainer(container, run):
                await self._start(container, run)
            case StopContainers(grace, sidecars):
                for key in self._live(None if sidecars else container_record.kubelet_sidecar_container_names(self.pod)):
                    self._site.runtime.stop(key, grace)
                since = self.record.stopping_since
                self._note(stopping_since=self._site.clock() if since is None else since, sidecars_told=sidecars)
                if since is None:
                    emit_stop_event(self._site.events, self.pod)
            case KillContainers():
                for key in self._live():
                    self._site.runtime.kill(key)
                self._note(killed=True)
            case ReleaseDevices():
                await self._release()
            case ExpirePod():
                self._note(expired=True)
            case RestartPod():
                self.record = record_after_restart(self.record)
            case RemovePod():
                return await self._remove()
        return False

    def _live(self, but: frozenset[str] | None = None) -> list[ContainerKey]:
        return [
            ContainerKey(self.pod.uid, c.name) for c in self.record.every if c.is_live and c.name not in (but or ())
        ]

    def _health_of(self, container: str) -> tuple[DeviceHealth, ...]:
        """A pod that is over keeps what was last said of its devices: by then they may be somebody else's."""
        manager = self._site.devices()
        if manager is not None and not is_pod_record_over(self.pod, self.record):
            found = manager.health(self.pod.uid, container)
            if found or container in self._health:
                self._health[container] = found
        return self._health.get(container, ())

    # --- what the node does -------------------------------------------------------------------------------------------

    async def _admit(self) -> None:
        site, pod = self._site, self.pod
        try:
            while True:
                try:
                    running = {c.name for c in self.record.every if c.is_live}
                    simulated = site.runtime.is_simulated(self.pod)
                    self._allocations = await device_allocation.allocate_devices_for_pod_worker(
                        site.agent, site.devices(), self.pod, running, simulated=simulated
                    )
                    break
                except Refusal as refusal:
                    if refusal.reason not in device_allocation.PASSING or not await site.others_gone(pod.uid):
                        raise
        except Refusal as refusal:
            if self.record.is_live:  # it ran before this node started, and a kubelet does not stop what runs
                log.warning(
                    "pod.runs_unallocated", node=site.node, namespace=pod.namespace, pod=pod.name, why=str(refusal)
                )
                self._note(admission=DeviceAdmission.GRANTED)
            else:
                # What a plugin or the agent gave before one of them refused goes back like that of any ended pod.
                held = site.devices() is not None
                reason, message = device_allocation.pod_worker_rejection_words(refusal)
                self._note(admission=DeviceAdmission.REFUSED, refused_as=reason, refusal=message, held=held)
            return
        except Exception as error:
            self._failed("allocate", error)
            self._note(admission=DeviceAdmission.NONE)
            return
        address = self.record.address or site.addresses.assign(pod.uid)
        if self.record.untold is not None:
            site.agent.container_exited(pod.uid, self.record.untold)
        self._note(admission=DeviceAdmission.GRANTED, held=True, address=address, untold=None)

    async def _pull(self, image: str) -> None:
        try:
            await self._site.images.pull(image)
            self._site.images_changed()
        finally:
            self._note(pulling=self.record.pulling - {image})

    async def _start(self, name: str, run: int) -> None:
        if self._allocations is None:
            self._note(admission=DeviceAdmission.NONE)
            return
        spec = next(c for c in (*self.pod.spec.init_containers, *self.pod.spec.containers) if c.name == name)
        manager = self._site.devices() if device_allocation.container_start_needs_devices(spec) else None
        allocation = self._allocations[name]
        if manager is not None or has_env_sources(spec):
            self._note(preparing=self.record.preparing | {name})
            self._spawn(self._prepare(manager, spec, run, allocation))
        else:
            await self._launch(spec, run, allocation)

    async def _prepare(
        self, manager: KubeletDeviceManager | None, spec: Container, run: int, allocation: Allocation
    ) -> None:
        """A plugin or the API may take its time; the pod can be stopped meanwhile."""
        site, pod, address = self._site, self.pod, self.record.address
        try:
            launched, allocation = await prepare_container(site, pod, address, spec, manager, allocation)
        except Exception as error:
            why = error.message if isinstance(error, Refusal) else str(error)
            self._start_later(self.record.container(spec.name), why)
            return
        finally:
            self._note(preparing=self.record.preparing - {spec.name})
        if not is_pod_record_over(self.pod, self.record):
            await self._launch(launched, run, allocation)
            self._changed.set()

    def _start_later(self, record: ContainerRecord, why: str) -> None:
        """Nothing ran, and nothing is wrong with the pod: it is tried again."""
        later = msgspec.structs.replace(record, problem=why, not_before=self._site.clock() + PREPARE_S)
        self.record = self.record.with_container(later)
        self._changed.set()

    async def _launch(self, spec: Container, run: int, allocation: Allocation) -> None:
        site, name = self._site, spec.name
        launch = ContainerLaunch(self.pod, spec, run, self.record.address, allocation)
        record = self.record.container(name)
        begun = site.clock()
        # On record before it runs: its exit may be told before `start` returns.
        self.record = self.record.with_container(container_record.container_started(record, run, begun))
        try:
            begun = await site.runtime.start(launch)
        except OSError as error:
            if error.errno in _DISK_REFUSES:
                log.warning("pod.start_waits_for_disk", node=site.node, pod=self.pod.name, error=str(error))
                self._start_later(record, str(error))
                return
            reason = getattr(error, "reason", "StartError")
            self.container_exited(name, run, ContainerExit(128, site.clock(), reason=reason, message=str(error)))
            return
        record = self.record.container(name)
        if record.run == run:
            self.record = self.record.with_container(msgspec.structs.replace(record, started_at=begun))
        self.apply_speed()

    def apply_speed(self) -> None:
        """Hold the pod's processes back as much as its devices are slow."""
        allocations = self._allocations or {}
        for name in dict.fromkeys((*allocations, *sorted(self._slowed))):
            speed = self._site.speeds.of(allocations[name].devices) if name in allocations else 1.0
            if speed < 1.0:
                self._slowed.add(name)
            elif name in self._slowed:
                self._slowed.remove(name)
            else:
                continue
            self._site.runtime.set_speed(ContainerKey(self.pod.uid, name), speed)

    async def _release(self) -> None:
        try:
            await self._site.agent.release(self.pod.uid)
        except Exception as error:
            self._failed("release", error)
            return
        self._site.addresses.release(self.pod.uid)
        self._note(held=False)

    async def _remove(self) -> bool:
        pod = self.pod
        try:
            await self._site.cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid), grace_s=0)
        except (NotFound, Conflict):
            pass  # removed already, or another pod has the name by now
        except ApiError as error:
            self._failed("remove", error)
            return False
        self._cleared()
        return True

    def _cleared(self) -> None:
        if not self.gone.is_set():
            self._site.runtime.forget(self.pod.uid)
            self._site.addresses.release(self.pod.uid)
            self.gone.set()

    async def _write(self, status: PodStatus) -> None:
        pod, cluster = self.pod, self._site.cluster
        patch = kubelet_pod_status_patch(self._known, status)
        version = ""
        if "conditions" in patch:
            merged = merge_pod_conditions(pod.status.conditions, status.conditions)
            patch["conditions"] = [to_wire(c) for c in merged]
            version = pod.metadata.resource_version
        try:
            new = await cluster.patch(
                Pod,
                pod.name,
                {"status": patch},
                pod.namespace,
                subresource="status",
                when=Preconditions(uid=pod.uid, resource_version=version),
            )
        except NotFound:
            self.vanish()
        except Conflict:
            await self._refresh()
        except ApiError as error:
            self._failed("write status", error)
        else:
            emit_container_status_events(self._site.events, pod, self._known, status)
            self._known = status
            self._retry_s = RETRY_FIRST_S
            self.update(new)
        finally:
            self._writing = False
            self._changed.set()

    async def _refresh(self) -> None:
        """Someone else wrote the object: look again."""
        try:
            fresh = await self._site.cluster.get(Pod, self.pod.name, self.pod.namespace)
        except NotFound:
            self.vanish()
        except ApiError as error:
            self._failed("read", error)
        else:
            if fresh.uid == self.pod.uid:
                self.update(fresh)
            else:
                self.vanish()

    # --- odds and ends ------------------------------------------------------------------------------------------------

    def _note(self, **changes: object) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)
        self._changed.set()

    def _failed(self, what: str, error: Exception) -> None:
        who = {"node": self._site.node, "namespace": self.pod.namespace, "pod": self.pod.name}
        log.warning("pod.retry", what=what, error=str(error), **who)
        self._retry_at = self._site.clock() + self._retry_s
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._beside[task] = None
        task.add_done_callback(self._beside.pop)


def _pod_version(pod: Pod) -> int:
    text = pod.metadata.resource_version
    return int(text) if text.isdecimal() else 0

"""One pod on one node: the shell around `lifecycle`.

A loop of observe -> plan -> act. Whatever may take time (the agent's answer, a pull, a write to the API) runs beside the
loop and comes back as a change of the record, so a pod can be stopped while it is pulling, and a container is restarted
while the API is out of reach. At most one status write is under way; what changed meanwhile goes into the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.core_v1 import Pod, PodStatus
from remuda.api.errors import ApiError, Conflict, NotFound, Refusal
from remuda.api.names import ANNOTATION_DEVICES, RESOURCE_GPU
from remuda.api.quantity import whole
from remuda.kube.cluster import Cluster, Preconditions
from remuda.link.allocation import Allocation, NodeAgent
from remuda.node import containers
from remuda.node.addresses import PodAddresses
from remuda.node.containers import Exit, backoff_of
from remuda.node.images import ImageStore
from remuda.node.lifecycle import (
    Action,
    Admission,
    Admit,
    Kill,
    PodRecord,
    Pull,
    Release,
    Remove,
    Start,
    Stop,
    plan_pod,
)
from remuda.node.podstatus import merged_conditions, own_conditions, render_status, status_patch
from remuda.node.runtime import ContainerKey, Launch, PodRuntime

log = structlog.get_logger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.1, 5.0  # after an error of the API or the agent
_RETRIED = (Admit, Release, Remove)  # the rest is local and never waits for somebody else's trouble to pass
_TICK_S = 0.001  # shorter waits are below what clocks near 2e9 s resolve well


class Site(msgspec.Struct, frozen=True):
    """What a node lends its workers."""

    node: str
    cluster: Cluster
    agent: NodeAgent
    runtime: PodRuntime
    addresses: PodAddresses
    images: ImageStore
    clock: Callable[[], float]
    images_changed: Callable[[], None]
    others_gone: Callable[[str], Coroutine[Any, Any, bool]]  # waits for pods that were removed by force; False: none


class PodWorker:
    """`pod` and `record` may be read by others; only the worker changes them."""

    def __init__(self, site: Site, pod: Pod, record: PodRecord) -> None:
        self.pod = pod
        self.record = record
        self.gone = asyncio.Event()  # nothing of the pod is left on the machine and no device is held
        self._site = site
        self._known = own_conditions(pod.status)  # what the API has of our part of the status
        self._allocation: Allocation | None = None
        self._changed = asyncio.Event()
        self._writing = False
        self._retry_s = RETRY_FIRST_S
        self._retry_at = 0.0
        self._beside: dict[asyncio.Task[None], None] = {}  # in order: a simulated run must repeat exactly

    # --- what happens to the pod --------------------------------------------------------------------------------------

    def update(self, pod: Pod) -> None:
        """A newer version of the object. Our own writes come back here too, sometimes after a later one."""
        if _version(pod) >= _version(self.pod):
            self.pod = pod
            if pod.is_terminal and self._known.phase not in ("Succeeded", "Failed"):
                self._known = own_conditions(pod.status)  # someone else ended it
        self._changed.set()

    def vanish(self) -> None:
        """The object is gone from the API."""
        self._note(vanished=True)

    def container_exited(self, container: str, run: int, end: Exit) -> None:
        record = self.record.container(container)
        if not record.is_live or record.run != run:
            return
        self.record = self.record.with_container(containers.exited(record, end, backoff_of(self.pod)))
        if self._allocation is None and self.record.admission is Admission.GRANTED:
            self._note(admission=Admission.NONE)  # adopted without one: ask before the next start
        self._site.agent.container_exited(self.pod.uid, end.code)
        self._changed.set()

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
        status = render_status(self.pod, self.record, self._known, now)
        written = not self._writing and not status_patch(self._known, status)
        plan = plan_pod(self.pod, self.record, site.images, now, written=written)
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
            case Admit():
                self._note(admission=Admission.ASKED)
                self._spawn(self._admit())
            case Pull(image):
                self._note(pulling=self.record.pulling | {image})
                self._spawn(self._pull(image))
            case Start(container, run):
                await self._start(container, run)
            case Stop(grace):
                for key in self._live():
                    self._site.runtime.stop(key, grace)
                self._note(stopping_since=self._site.clock())
            case Kill():
                for key in self._live():
                    self._site.runtime.kill(key)
                self._note(killed=True)
            case Release():
                await self._release()
            case Remove():
                return await self._remove()
        return False

    def _live(self) -> list[ContainerKey]:
        return [ContainerKey(self.pod.uid, c.name) for c in self.record.containers if c.is_live]

    # --- what the node does -------------------------------------------------------------------------------------------

    async def _admit(self) -> None:
        site, pod = self._site, self.pod
        try:
            devices = chosen_devices(pod)
            simulated = site.runtime.is_simulated(pod)
            while True:
                try:
                    self._allocation = await site.agent.allocate(pod, devices, simulated=simulated)
                    break
                except Refusal as refusal:
                    if refusal.reason != "DeviceHeld" or not await site.others_gone(pod.uid):
                        raise
        except Refusal as refusal:
            if self.record.is_live:  # it ran before this node started, and a kubelet does not stop what runs
                log.warning(
                    "pod.runs_unallocated", node=site.node, namespace=pod.namespace, pod=pod.name, why=str(refusal)
                )
                self._note(admission=Admission.GRANTED)
            else:
                why = f"Allocate failed: {refusal.reason}: {refusal.message}" + (
                    f" {refusal.fix}" if refusal.fix else ""
                )
                self._note(admission=Admission.REFUSED, refusal=why, held=False)
            return
        except Exception as error:
            self._failed("allocate", error)
            self._note(admission=Admission.NONE)
            return
        address = self.record.address or site.addresses.assign(pod.uid)
        if self.record.untold is not None:
            site.agent.container_exited(pod.uid, self.record.untold)
        self._note(admission=Admission.GRANTED, held=True, address=address, untold=None)

    async def _pull(self, image: str) -> None:
        try:
            await self._site.images.pull(image)
            self._site.images_changed()
        finally:
            self._note(pulling=self.record.pulling - {image})

    async def _start(self, name: str, run: int) -> None:
        site = self._site
        if self._allocation is None:
            self._note(admission=Admission.NONE)
            return
        spec = next(c for c in self.pod.spec.containers if c.name == name)
        launch = Launch(self.pod, spec, run, self.record.address, self._allocation)
        record = self.record.container(name)
        begun = site.clock()
        # On record before it runs: its exit may be told before `start` returns.
        self.record = self.record.with_container(containers.started(record, run, begun))
        try:
            begun = await site.runtime.start(launch)
        except OSError as error:
            self.container_exited(name, run, Exit(128, site.clock(), reason="StartError", message=str(error)))
            return
        record = self.record.container(name)
        if record.run == run:
            self.record = self.record.with_container(msgspec.structs.replace(record, started_at=begun))

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
        patch = status_patch(self._known, status)
        version = ""
        if "conditions" in patch:
            merged = merged_conditions(pod.status.conditions, status.conditions)
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


def chosen_devices(pod: Pod) -> list[str]:
    """The devices the scheduler chose for the pod. Raises Refusal when it asks for some and nobody chose."""
    wanted = (
        c.resources.limits.get(RESOURCE_GPU) or c.resources.requests.get(RESOURCE_GPU, 0) for c in pod.spec.containers
    )
    asked = sum(map(whole, wanted))
    devices = [d.strip() for d in pod.annotations.get(ANNOTATION_DEVICES, "").split(",") if d.strip()]
    if len(devices) != asked:
        named = ", ".join(devices) or "none"
        raise Refusal(
            "DevicesNotChosen",
            f"The pod asks for {asked} {RESOURCE_GPU} and its annotation {ANNOTATION_DEVICES} names {named}.",
            "Let the scheduler `remuda` place it (spec.schedulerName).",
        )
    return devices


def _version(pod: Pod) -> int:
    text = pod.metadata.resource_version
    return int(text) if text.isdecimal() else 0

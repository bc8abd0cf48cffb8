"""Faults on purpose: Drill objects, carried out on the embedded nodes of this process.

One watch for all nodes. A drill is carried out once, in the order it came, and then its status says Done with the moment of the
blow, or Refused with a reason. One that names a node of somebody else's is left to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from remuda.api.codec import to_wire
from remuda.api.core_v1 import Pod
from remuda.api.drills import Drill, DrillKind, DrillSpec, DrillStatus
from remuda.api.errors import ApiError, NotFound, Refusal
from remuda.api.meta import to_time
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.informer import Informer
from remuda.node.node import EmbeddedNode
from remuda.node.runtime import Blow, ContainerKey
from remuda.node.worker import PodWorker

log = structlog.get_logger(__name__)

_RETRY_S = 0.5
_BLOWS = {
    DrillKind.PROCESS_KILL: (Blow.KILL_PROCESS, "SIGKILL to the user's process"),
    DrillKind.PROCESS_HANG: (Blow.HANG_PROCESS, "SIGSTOP to the user's process"),
    DrillKind.LAUNCHER_KILL: (Blow.KILL_LAUNCHER, "SIGKILL to the launcher"),
}


class DrillRunner:
    def __init__(
        self,
        cluster: Cluster,
        informer: Informer[Drill],
        nodes: Iterable[EmbeddedNode],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in nodes}
        self._clock = clock
        self._queue: asyncio.Queue[Drill] = asyncio.Queue()
        self._seen: set[str] = set()
        informer.subscribe(self._changed)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._handle(await self._queue.get())

    def _changed(self, old: Drill | None, new: Drill | None) -> None:
        if new is None:
            if old is not None:
                self._seen.discard(old.uid)
            return
        others = bool(new.spec.node) and new.spec.node not in self._nodes
        if others or new.uid in self._seen or new.status.phase != "Pending":
            return
        self._seen.add(new.uid)
        self._queue.put_nowait(new)

    async def _handle(self, drill: Drill) -> None:
        moment = self._clock()
        try:
            done = await self._perform(drill.spec)
            status = DrillStatus("Done", "", done, to_time(moment))
        except Refusal as refusal:
            message = f"{refusal.message} {refusal.fix}".strip()
            status = DrillStatus("Refused", refusal.reason, message, to_time(moment))
        except ApiError as error:
            status = DrillStatus("Refused", error.reason, error.message, to_time(moment))
        except OSError as error:  # the process ended under our hands
            status = DrillStatus("Refused", "NotRunning", f"The blow hit nothing: {error}.", to_time(moment))
        log.info("drill", drill=drill.name, phase=status.phase, reason=status.reason, message=status.message)
        await self._report(drill, status)

    async def _report(self, drill: Drill, status: DrillStatus) -> None:
        patch = {"status": to_wire(status)}
        while True:
            try:
                await self._cluster.patch(
                    Drill, drill.name, patch, subresource="status", when=Preconditions(uid=drill.uid)
                )
            except NotFound:
                return
            except ApiError as error:
                log.warning("drill.retry", drill=drill.name, error=error.message)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _perform(self, spec: DrillSpec) -> str:
        """What was done, in one sentence. Raises Refusal."""
        if spec.type is DrillKind.NODE_LOST:
            self._node(spec.node).lose()
            return f"{spec.node} lost power."
        if spec.type is DrillKind.DEVICE_FAIL:
            return self._fail_device(spec)
        if spec.type is DrillKind.POD_DELETE:
            return await self._delete(spec)
        node, worker = self._find(spec)
        blow, words = _BLOWS[spec.type]
        live = [c.name for c in worker.record.containers if c.is_live]
        if not live:
            raise Refusal("NotRunning", f"No container of pod {spec.pod} runs.", "Wait until it does.")
        node.runtime.strike(ContainerKey(worker.pod.uid, live[0]), blow)
        return f"{words} of pod {spec.pod} on {node.name}."

    def _fail_device(self, spec: DrillSpec) -> str:
        node = self._node(spec.node)
        if spec.device not in node.config.devices:
            known = ", ".join(node.config.devices) or "none"
            raise Refusal("NoSuchDevice", f"{spec.node} has no device {spec.device}.", f"It has: {known}.")
        node.agent.inject_fault(spec.device, spec.code)
        return f"{spec.device} of {spec.node} reports {spec.code}."

    async def _delete(self, spec: DrillSpec) -> str:
        try:
            pod = await self._cluster.get(Pod, spec.pod, spec.namespace)
        except NotFound:
            raise _no_pod(spec) from None
        if spec.node and pod.spec.node_name != spec.node:
            raise _no_pod(spec)
        await self._cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
        return f"Pod {spec.pod} is deleted."

    def _node(self, name: str) -> EmbeddedNode:
        node = self._nodes[name]
        if node.is_lost:
            raise Refusal("NodeIsLost", f"{name} has lost power already.", "Pick a node that is up.")
        return node

    def _find(self, spec: DrillSpec) -> tuple[EmbeddedNode, PodWorker]:
        nodes = [self._nodes[spec.node]] if spec.node else list(self._nodes.values())
        for node in nodes:
            worker = node.find(spec.pod, spec.namespace)
            if worker is not None:
                return self._node(node.name), worker
        raise _no_pod(spec)


def _no_pod(spec: DrillSpec) -> Refusal:
    where = f"on {spec.node}" if spec.node else "on any node here"
    return Refusal("NoSuchPod", f"There is no pod {spec.namespace}/{spec.pod} {where}.", "See `remuda job NAME`.")

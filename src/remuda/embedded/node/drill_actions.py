"""What each drill does to an embedded node, and what takes it back.

`inject` carries one out and says in a sentence what it did; `take_back` undoes one that lasts. Nothing above the node knows that
it was a drill: a broken device is reported by the agent's backend, a hung plugin really does not answer, a slow device makes its
holder's process slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from remuda.api.codec import to_wire
from remuda.api.conditions import with_condition
from remuda.api.drills import DrillKind, DrillSpec
from remuda.api.errors import NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import to_time
from remuda.embedded.node.node import EmbeddedNode
from remuda.embedded.node.pod_worker import PodWorker
from remuda.embedded.node.runtime_port import ContainerFault, ContainerKey
from remuda.kube.cluster import Cluster, Preconditions
from remuda.link.device_drills import (
    device_drill_factor,
    inject_device_drill_over_link,
    inject_plugin_drill_over_link,
    take_back_drill_over_link,
)

_PROCESS = {
    DrillKind.PROCESS_KILL: (ContainerFault.KILL_PROCESS, "SIGKILL to the user's process"),
    DrillKind.PROCESS_HANG: (ContainerFault.HANG_PROCESS, "SIGSTOP to the user's process"),
    DrillKind.LAUNCHER_KILL: (ContainerFault.KILL_LAUNCHER, "SIGKILL to the launcher"),
}
_NOTICES = {
    DrillKind.SPOT_NOTICE: ("SpotTermination", "SpotNotice", "The node will be taken away"),
    DrillKind.MAINTENANCE_NOTICE: ("MaintenancePlanned", "MaintenanceNotice", "Maintenance of the node begins"),
}


class DrillActions:
    """The `DrillSite` of the nodes of this process. Where the cluster's nodes are in several: `is_ours` says whether a drill that
    names no node is for this one, None while that cannot be told (its pod is not seen on a node)."""

    after_restart = "NodeRestarted"

    def __init__(
        self,
        cluster: Cluster,
        nodes: Iterable[EmbeddedNode],
        clock: Callable[[], float],
        *,
        is_ours: Callable[[DrillSpec], bool | None] = lambda spec: True,
    ) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in nodes}
        self._clock = clock
        self._is_ours = is_ours

    def is_here(self, spec: DrillSpec) -> bool | None:
        return spec.node in self._nodes if spec.node else self._is_ours(spec)

    def is_in_charge(self) -> bool:
        return True

    def claim_words(self, spec: DrillSpec) -> str:
        return ""

    def has_happened(self, spec: DrillSpec, words: str) -> str:
        return ""

    async def inject(self, spec: DrillSpec) -> str:
        """What was done, in one sentence. Raises Refusal."""
        match spec.type:
            case DrillKind.PROCESS_KILL | DrillKind.PROCESS_HANG | DrillKind.LAUNCHER_KILL:
                container_fault, words = _PROCESS[spec.type]
                return self._inject_process_fault(spec, container_fault, words)
            case DrillKind.POD_DELETE:
                return await self._delete(spec)
            case DrillKind.PLUGIN_KILL | DrillKind.PLUGIN_HANG | DrillKind.ALLOCATE_FAIL:
                return inject_plugin_drill_over_link(self._node(spec.node).agent, spec)
            case DrillKind.SPOT_NOTICE | DrillKind.MAINTENANCE_NOTICE:
                return await self._announce(spec)
            case DrillKind.NODE_LOST | DrillKind.NODE_REBOOT | DrillKind.KUBELET_RESTART | DrillKind.NODE_PARTITION:
                return await self._inject_node_fault(spec)
            case _:
                return self._inject_device_fault(spec)

    async def take_back(self, spec: DrillSpec) -> None:
        """Take back one that lasts."""
        match spec.type:
            case DrillKind.PROCESS_HANG:
                self._inject_process_fault(spec, ContainerFault.RESUME_PROCESS, "")
            case DrillKind.NODE_PARTITION:
                self._node(spec.node).heal()
            case DrillKind.SPOT_NOTICE | DrillKind.MAINTENANCE_NOTICE:
                await self._tell_node(spec, False, "The notice was withdrawn.")
            case _:
                take_back_drill_over_link(self._node(spec.node).agent, spec)
                self._set_speed(spec, 1.0)

    async def carry_out_notice(self, spec: DrillSpec) -> None:
        """The time of a notice has come."""
        if spec.type is DrillKind.SPOT_NOTICE:
            self._node(spec.node).lose()
        else:
            await self._reboot(spec.node)
            await self._tell_node(spec, False, "The maintenance is done.")

    # --- pods -----------------------------------------------------------------------------------------------------------

    def _inject_process_fault(self, spec: DrillSpec, container_fault: ContainerFault, words: str) -> str:
        node, worker = self._find(spec)
        live = [c.name for c in worker.record.containers if c.is_live]
        if not live:
            raise Refusal("NotRunning", f"Pod {spec.pod} has no running container.", "Wait until it runs.")
        node.runtime.inject_fault(ContainerKey(worker.pod.uid, live[0]), container_fault)
        return f"{words} of pod {spec.pod} on {node.name}."

    async def _delete(self, spec: DrillSpec) -> str:
        try:
            pod = await self._cluster.get(Pod, spec.pod, spec.namespace)
        except NotFound:
            raise _no_pod_for_drill(spec) from None
        if spec.node and pod.spec.node_name != spec.node:
            raise _no_pod_for_drill(spec)
        await self._cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
        return f"Pod {spec.pod} is deleted."

    # --- devices ----------------------------------------------------------------------------------------------------------

    def _inject_device_fault(self, spec: DrillSpec) -> str:
        said = inject_device_drill_over_link(self._node(spec.node).agent, spec)
        self._set_speed(spec, 1.0 / device_drill_factor(spec))
        return said

    def _set_speed(self, spec: DrillSpec, speed: float) -> None:
        """The processes that use the devices go as fast as those."""
        if spec.type is DrillKind.DEVICE_SLOW:
            self._node(spec.node).set_speed(speed, spec.device)
        elif spec.type is DrillKind.POWER_CAP:
            self._node(spec.node).set_speed(speed)

    # --- nodes ------------------------------------------------------------------------------------------------------------

    async def _inject_node_fault(self, spec: DrillSpec) -> str:
        node = self._node(spec.node)
        match spec.type:
            case DrillKind.NODE_LOST:
                node.lose()
                return f"{spec.node} lost power."
            case DrillKind.KUBELET_RESTART:
                await node.restart()
                return f"The kubelet of {spec.node} was restarted; its pods ran on."
            case DrillKind.NODE_PARTITION:
                node.partition()
                return f"{spec.node} cannot reach the API."
            case _:
                await self._reboot(spec.node)
                return f"{spec.node} was rebooted."

    async def _reboot(self, name: str) -> None:
        self._node(name).agent.hardware().reboot()
        await self._node(name).reboot()

    async def _announce(self, spec: DrillSpec) -> str:
        when = to_time(self._clock() + spec.seconds).isoformat(timespec="seconds").replace("+00:00", "Z")
        words = f"{_NOTICES[spec.type][2]} at {when}."
        await self._tell_node(spec, True, words)
        return f"{spec.node} was told: {words}"

    async def _tell_node(self, spec: DrillSpec, is_so: bool, words: str) -> None:
        kind, reason, _ = _NOTICES[spec.type]
        node = await self._cluster.get(Node, spec.node)
        conditions = with_condition(node.status.conditions, kind, is_so, reason, words, to_time(self._clock()))
        patch = {"status": {"conditions": [to_wire(c) for c in conditions]}}
        when = Preconditions(resource_version=node.metadata.resource_version)
        await self._cluster.patch(Node, spec.node, patch, subresource="status", when=when)

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
        raise _no_pod_for_drill(spec)


def _no_pod_for_drill(spec: DrillSpec) -> Refusal:
    where = f"on {spec.node}" if spec.node else "on any node here"
    return Refusal("NoSuchPod", f"There is no pod {spec.namespace}/{spec.pod} {where}.", "See `remuda job NAME`.")

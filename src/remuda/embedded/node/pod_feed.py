"""One watch of pods for all nodes: each change goes to the node the pod is bound to."""

from __future__ import annotations

from collections.abc import Iterable

from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node.node import EmbeddedNode
from remuda.embedded.node.pod_addresses import PodAddresses
from remuda.kube.runtime.informer import Informer


class PodFeed:
    def __init__(self, informer: Informer[Pod], nodes: Iterable[EmbeddedNode], addresses: PodAddresses) -> None:
        self._informer = informer
        self._nodes = {node.name: node for node in nodes}
        self._addresses = addresses

    async def start(self) -> None:
        """After every node's `start`, with the informer running. Returns when every node has its pods."""
        await self._informer.synced()
        by_node: dict[str, list[Pod]] = {name: [] for name in self._nodes}
        for pod in self._informer.items():
            if pod.spec.node_name in by_node:
                by_node[pod.spec.node_name].append(pod)
                if pod.status.pod_ip and not pod.is_terminal:
                    # All of them before the first new pod is given an address.
                    self._addresses.recover(pod.uid, pod.status.pod_ip)
        for name, pods in by_node.items():
            self._nodes[name].sync(pods)
        self._informer.subscribe(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        node = self._nodes.get(pod.spec.node_name) if pod is not None else None
        if node is None or pod is None:
            return
        if new is not None:
            node.pod_changed(new)
        else:
            node.pod_gone(pod)

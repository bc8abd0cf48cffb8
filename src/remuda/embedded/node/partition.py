"""A node that is cut off: it cannot reach the API, and what the API says does not reach it. What runs here runs on.

What happens to its pods meanwhile is kept, the newest of each, and caught up with when it is healed.
"""

from __future__ import annotations

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.kube.guarded_cluster import ClusterGate


class NodePartition:
    """`gate`: what stands between the node's calls and the API; None = it cannot be cut off."""

    def __init__(self, node: str, gate: ClusterGate | None) -> None:
        self._node = node
        self._gate = gate
        self._missed: dict[str, tuple[Pod, bool]] | None = None  # by uid; None: nothing is missed

    def cut(self) -> bool:
        """False when it is cut off already."""
        if self._gate is None:
            raise Refusal("NoGate", f"{self._node} cannot be cut off.", "Run the drill on a node of `remuda up`.")
        if self._missed is not None:
            return False
        self._missed = {}
        self._gate.is_shut = True
        return True

    def mend(self) -> list[tuple[Pod, bool]] | None:
        """What was missed, and whether the pod went; None when it was not cut off."""
        if self._gate is None or self._missed is None:
            return None
        missed, self._missed = self._missed, None
        self._gate.is_shut = False
        return list(missed.values())

    def misses(self, pod: Pod, *, is_gone: bool) -> bool:
        """Whether the node does not hear of it now."""
        if self._missed is not None:
            self._missed[pod.uid] = (pod, is_gone)
        return self._missed is not None

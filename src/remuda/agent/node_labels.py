"""Node labels users know: what GPU feature discovery would write for the same node, from what the backend shows.

Manifests and dashboards select on these names, so they are kept to the letter: product with dashes, memory in MiB, count of whole
devices, MIG strategy. On a node where feature discovery itself runs (it stamps a time) nothing is written: two writers with
different opinions would take turns. Labels of ours that no longer hold are removed; anybody else's are left alone, and which are
ours is remembered in an annotation of the Node.

MIG strategy: `none` while no device is cut, `single` when all are cut alike into one kind of slice, else `mixed`. Resources are
named by profile either way.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from remuda.agent.hardware.backend_port import DeviceBackend, NodeFacts
from remuda.api.devices import ObservedDevice
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.names import ANNOTATION_WRITTEN_LABELS
from remuda.kube.cluster import Cluster

log = structlog.get_logger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 30.0
WRITTEN = ANNOTATION_WRITTEN_LABELS
DISCOVERY_STAMP = "nvidia.com/gfd.timestamp"
AMD = "amd.com/"

_NOT_A_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def node_labels(
    rows: Sequence[ObservedDevice], present: frozenset[str], facts: NodeFacts, replicas: int = 1
) -> dict[str, str]:
    """The labels of a node with these rows. `count` is of devices that are there; a label must not promise one that is not.
    `replicas`: how many share a whole device by turns."""
    whole = [row for row in rows if not row.parent]
    if not whole:
        return {}
    first = whole[0]
    count = sum(row.id in present for row in whole)
    if first.resource.startswith(AMD):
        labels = {
            "amd.com/gpu.product-name": first.type,
            "amd.com/gpu.vram": f"{first.memory_bytes >> 30}G",
            "amd.com/gpu.family": facts.family.upper(),
        }
        return {name: _node_label_value(value) for name, value in labels.items() if _node_label_value(value)}
    slices = [row for row in rows if row.parent]
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": f"{first.type}-SHARED" if replicas > 1 else first.type,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(first.memory_bytes >> 20),
        "nvidia.com/gpu.family": facts.family,
        "nvidia.com/gpu.machine": facts.machine,
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": "time-slicing" if replicas > 1 else "none",
        "nvidia.com/mig.capable": str(facts.mig_capable).lower(),
        "nvidia.com/mig.strategy": _mig_strategy_label(whole, slices),
        **_compute_capability_labels(facts),
        **_driver_version_labels(facts),
    }
    for profile, number in sorted(Counter(row.profile for row in slices).items()):
        one = next(row for row in slices if row.profile == profile)
        name = f"nvidia.com/mig-{profile.replace('+', '.')}"
        labels |= {
            f"{name}.count": str(number),
            f"{name}.memory": str(one.memory_bytes >> 20),
            f"{name}.product": f"{first.type}-MIG-{profile}",
        }
    return {name: _node_label_value(value) for name, value in labels.items() if _node_label_value(value)}


def _mig_strategy_label(whole: Sequence[ObservedDevice], slices: Sequence[ObservedDevice]) -> str:
    if not slices:
        return "none"
    cut = Counter((row.parent, row.profile) for row in slices)
    alike = {frozenset((p, n) for (parent, p), n in cut.items() if parent == row.id) for row in whole}
    return "single" if len(alike) == 1 and len({row.profile for row in slices}) == 1 else "mixed"


def _compute_capability_labels(facts: NodeFacts) -> dict[str, str]:
    major, _, minor = facts.compute.partition(".")
    return {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor} if major else {}


def _driver_version_labels(facts: NodeFacts) -> dict[str, str]:
    labels: dict[str, str] = {}
    if facts.driver:
        major, minor, revision = (*facts.driver.split("."), "", "")[:3]
        labels |= {
            "nvidia.com/cuda.driver-version.full": facts.driver,
            "nvidia.com/cuda.driver-version.major": major,
            "nvidia.com/cuda.driver-version.minor": minor,
            "nvidia.com/cuda.driver-version.revision": revision,
            "nvidia.com/cuda.driver.major": major,
            "nvidia.com/cuda.driver.minor": minor,
            "nvidia.com/cuda.driver.rev": revision,
        }
    if facts.cuda:
        major, _, minor = facts.cuda.partition(".")
        labels |= {
            "nvidia.com/cuda.runtime-version.full": facts.cuda,
            "nvidia.com/cuda.runtime-version.major": major,
            "nvidia.com/cuda.runtime-version.minor": minor,
            "nvidia.com/cuda.runtime.major": major,
            "nvidia.com/cuda.runtime.minor": minor,
        }
    return labels


def _node_label_value(text: str) -> str:
    """As a label's value may be written: at most 63 of the allowed characters, a letter or digit at both ends."""
    return _NOT_A_LABEL.sub("-", text)[:63].strip("._-")


def plan_node_labels(
    labels: Mapping[str, str], annotations: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, Any] | None:
    """The merge patch of the Node's metadata that makes its labels right, or None: they are, or are somebody else's."""
    if DISCOVERY_STAMP in labels:
        return None
    ours = set(filter(None, annotations.get(WRITTEN, "").split(",")))
    # A label that was there before us keeps its value: somebody set it on purpose.
    mine = {
        name: value for name, value in wanted.items() if name not in labels or name in ours or labels[name] == value
    }
    changed: dict[str, str | None] = {name: value for name, value in mine.items() if labels.get(name) != value}
    changed |= {name: None for name in sorted(ours - mine.keys()) if name in labels}
    written = ",".join(sorted(name for name in mine if name in ours or name not in labels))
    if not changed and annotations.get(WRITTEN, "") == written:
        return None
    return {"metadata": {"labels": changed, "annotations": {WRITTEN: written or None}}}


class NodeLabelWriter:
    """Keeps the Node's labels as the backend shows things. One write under way at most; a Node that is not there yet, or an API
    that does not answer, is tried again."""

    def __init__(self, cluster: Cluster, node: str, backend: DeviceBackend, replicas: int = 1) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._node = node
        self._backend = backend
        self._is_due = False
        self._task: asyncio.Task[None] | None = None

    def mark(self) -> None:
        """The backend may show something new."""
        self._is_due = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain(), name=f"labels {self._node}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        delay = RETRY_FIRST_S
        try:
            while self._is_due:
                self._is_due = False
                try:
                    await self._write()
                except Exception as error:  # whatever the transport raises: the labels stay due
                    self._is_due = True
                    log.debug("labels.retry", node=self._node, error=str(error))
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, RETRY_MAX_S)
        finally:
            self._task = None

    async def _write(self) -> None:
        found = await self._cluster.get(Node, self._node)
        shown = self._backend
        wanted = node_labels(shown.inventory(), shown.present(), shown.facts(), self._replicas)
        patch = plan_node_labels(found.labels, found.annotations, wanted)
        if patch is not None:
            await self._cluster.patch(Node, self._node, patch)

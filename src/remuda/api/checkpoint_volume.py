"""The volume that a job's checkpoints go to, as a pod is told of it, and which ones can be one. Pure.

It is mounted into the one container of every rank, at the job's checkpoint path. Ours stands: a volume of that name in a template
is taken out (`api.injected_fields`). What goes with its pod, or cannot be written, is no place for checkpoints.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from remuda.api.injected_fields import VOLUME_CHECKPOINTS
from remuda.api.meta import JsonObject
from remuda.api.training import Checkpoint, TrainingJobSpec

LASTING_SOURCES = frozenset(
    "awsElasticBlockStore azureDisk azureFile cephfs cinder csi fc flexVolume gcePersistentDisk glusterfs hostPath iscsi nfs "
    "persistentVolumeClaim portworxVolume quobyte rbd scaleIO storageos vsphereVolume".split()
)
NOT_SHARED = "CheckpointsNotShared"
ON_NODE_DISKS = "Each node keeps the checkpoints of its own ranks on its disk"
COPIED_TEXT = (
    "its agent copies each to one other node where it can: then they survive the loss of one of the two, not of both."
)
SAFER = "A volume that all nodes reach is safer: spec.checkpoint.volume."
PATH_ALONE_TEXT = (
    "No volume is mounted at spec.checkpoint.path: each node keeps the checkpoints of its own ranks on its disk, and "
    "nobody copies them. A rank that moves to another node does not find them there. Give the job a volume that all "
    "nodes reach (spec.checkpoint.volume), or take the path out: then each checkpoint is copied to one other node."
)
FLEETING_SOURCES = frozenset("configMap downwardAPI emptyDir ephemeral gitRepo image projected secret".split())


def with_checkpoint_volume(spec: JsonObject, checkpoint: Checkpoint) -> JsonObject:
    """The pod's spec with the job's volume mounted; as it was when the job has none."""
    if not checkpoint.volume:
        return spec
    return with_checkpoint_mount(spec, checkpoint.volume, checkpoint.directory)


def with_checkpoint_mount(spec: JsonObject, source: Mapping[str, Any], path: str) -> JsonObject:
    """`source`: what is mounted at `path`, in the first container."""
    first, *others = spec["containers"]
    volumes = [v for v in spec.get("volumes") or [] if _named(v) != VOLUME_CHECKPOINTS]
    mounts = [m for m in first.get("volumeMounts") or [] if _named(m) != VOLUME_CHECKPOINTS]
    container = {**first, "volumeMounts": [*mounts, {"name": VOLUME_CHECKPOINTS, "mountPath": path}]}
    return {
        **spec,
        "volumes": [*volumes, {"name": VOLUME_CHECKPOINTS, **source}],
        "containers": [container, *others],
    }


def is_checkpoint_volume_mounted(container: Mapping[str, Any], path: str) -> bool:
    """Whether the container has something mounted at the path, or above it."""
    where = posixpath.normpath(path)
    found = (m.get("mountPath") for m in container.get("volumeMounts") or [] if isinstance(m, dict))
    return any(_is_at_or_below(where, posixpath.normpath(at)) for at in found if isinstance(at, str) and at)


def spec_lacks_checkpoint_volume(spec: TrainingJobSpec) -> bool:
    """On kubelets: some role has neither the job's volume nor one of its template's at the job's path, so that each node keeps
    the checkpoints of its own ranks."""
    place = spec.checkpoint
    if place.volume:
        return False
    containers = ((role.template.spec.get("containers") or [{}])[0] for role in spec.roles)
    return not place.path or not all(is_checkpoint_volume_mounted(container, place.path) for container in containers)


def missing_checkpoint_volume_text(spec: TrainingJobSpec) -> str:
    """What that means for the job, before anybody knows whether its agents do copy. Only a job without a path has copies."""
    return PATH_ALONE_TEXT if spec.checkpoint.path else f"{ON_NODE_DISKS}, and {COPIED_TEXT} {SAFER}"


def uncopied_nodes_text(takers: int, nodes: int) -> str:
    """The same, where not all agents can make copies. `takers`: nodes that listen for others."""
    who = (
        "no two agents here meet to copy them"
        if takers < 2
        else f"the agents of {nodes - takers} of {nodes} nodes copy none"
    )
    fix = "Let agents meet (--link-token, --peer-host, --peer-port), or give the job a volume that all nodes reach"
    return (
        f"{ON_NODE_DISKS}, and {who}: a node that is lost takes its checkpoints with it, unless all nodes have one directory "
        f"(--shared-checkpoints). {fix}: spec.checkpoint.volume."
    )


def _is_at_or_below(path: str, above: str) -> bool:
    return path == above or path.startswith(above.rstrip("/") + "/")


def _named(entry: object) -> object:
    return entry.get("name") if isinstance(entry, dict) else None

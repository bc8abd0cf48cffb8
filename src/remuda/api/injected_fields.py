"""What Remuda itself puts into a pod of a job, and nobody else may: it says which pod a process is, and which directory it gets.

A template that names one of these is refused (`InjectedField`, or `ReservedName` for labels and annotations). Where such a
template is stored all the same, ours stands and theirs is taken out: `REMUDA_POD_UID` chooses the directory that is mounted for
a pod, and the volume `remuda-alloc` has the directories of all pods of the node.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from remuda.api.names import GROUP

VARIABLE_PREFIX = "REMUDA_"
VOLUME_ALLOC, VOLUME_BIN, VOLUME_CHECKPOINTS = "remuda-alloc", "remuda-bin", "remuda-checkpoints"
VOLUMES = (VOLUME_ALLOC, VOLUME_BIN, VOLUME_CHECKPOINTS)
MOUNT_ROOT = "/run/remuda"  # in the container


def is_injected_variable(name: object) -> bool:
    return isinstance(name, str) and name.startswith(VARIABLE_PREFIX)


def is_injected_mount(mount: Mapping[str, Any]) -> bool:
    """One of ours, or one that shows what ours are about at another place."""
    path = posixpath.normpath("/" + str(mount.get("mountPath") or "").replace("//", "/").lstrip("/"))
    return mount.get("name") in VOLUMES or path == MOUNT_ROOT or path.startswith(f"{MOUNT_ROOT}/")


def without_injected_names(names: Mapping[str, str]) -> dict[str, str]:
    """Labels or annotations of a template."""
    return {name: value for name, value in names.items() if not name.startswith(f"{GROUP}/")}


def injected_fields_of(spec: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    """(what, field) of everything in a pod's spec that is ours to set."""
    for index, volume in enumerate(_objects(spec.get("volumes"))):
        if volume.get("name") in VOLUMES:
            yield f"the volume `{volume['name']}`", f"{where}.volumes[{index}]"
    for at, container in enumerate(_objects(spec.get("containers"))):
        place = f"{where}.containers[{at}]"
        for index, variable in enumerate(_objects(container.get("env"))):
            if is_injected_variable(variable.get("name")):
                yield f"the variable `{variable['name']:.100}`", f"{place}.env[{index}]"
        for index, mount in enumerate(_objects(container.get("volumeMounts"))):
            if is_injected_mount(mount):
                said = str(mount.get("mountPath") or "")
                yield f"the mount `{said:.100}` of `{mount.get('name')!s:.100}`", f"{place}.volumeMounts[{index}]"


def _objects(found: object) -> list[dict[str, Any]]:
    return [entry if isinstance(entry, dict) else {} for entry in found] if isinstance(found, list) else []

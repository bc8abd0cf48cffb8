"""Pods as the API would hold them, in one line each."""

from __future__ import annotations

from typing import Any

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_DEVICES, ANNOTATION_LAUNCH, LABEL_GANG, RESOURCE_GPU


def pod_wire(
    name: str = "worker-0",
    command: list[str] | None = None,
    *,
    node: str = "node-01",
    namespace: str = "default",
    policy: str = "Always",
    gang: str = "",
    launch: bool = False,
    devices: tuple[str, ...] = (),
    grace: int = 30,
    image: str = "",
    env: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    args: list[str] | None = None,
    limits: dict[str, int] | None = None,
    inits: list[JsonObject] | None = None,
) -> JsonObject:
    """A pod bound to a node, as a manifest. `inits`: init containers as they are."""
    container: JsonObject = {"name": "main", "command": command or [], "args": args or [], "image": image}
    container["env"] = [{"name": k, "value": v} for k, v in (env or {}).items()]
    marks = dict(annotations or {})
    if devices:
        marks[ANNOTATION_DEVICES] = ",".join(devices)
        container["resources"] = {"limits": {RESOURCE_GPU: len(devices)}}
    if limits:
        container["resources"] = {"limits": limits}
    if launch:
        marks[ANNOTATION_LAUNCH] = "true"
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_GANG: gang} if gang else {},
            "annotations": marks,
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": grace,
            "containers": [container],
            **({"initContainers": inits} if inits else {}),
        },
    }


def a_pod(name: str = "worker-0", command: list[str] | None = None, *, uid: str = "uid-1", **options: Any) -> Pod:
    """The same as an object that was never near an API; `meta` and `status` go in as they are."""
    meta, status = options.pop("meta", {}), options.pop("status", {})
    body = pod_wire(name, command, **options)
    body["metadata"] |= {"uid": uid, **meta}
    return from_wire(Pod, {**body, "status": status})

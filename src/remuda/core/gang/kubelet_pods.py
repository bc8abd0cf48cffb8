"""A pod of ours as a kubelet must be told of it. Pure: the body of `pods.build_pod` in, another body out.

An embedded node reads the annotation remuda.dev/launch and does the rest by itself. A kubelet knows nothing of us, so the same
things are said in its own words:

  identity     REMUDA_POD_NAME, REMUDA_POD_UID and REMUDA_NODE from the downward API: a device plugin's Allocate names no pod
  launcher     the command is wrapped; the launcher is a file of the node's agent. It comes by hostPath, whoever's plugin hands
               out the devices, and so does the pod's door to the agent, a folder of its own by subPathExpr
  checkpoints  the job's volume; without one, and where the template mounts nothing at the job's path, the job's directory on the
               node, by hostPath
  last words   of a container that fails, in the pod's status: a launcher that cannot start has nobody else to tell

Our own plugin brings launcher and door, too, at paths of its own, to every container with devices. Nothing is mounted twice at
one path, and either door is as good. A namespace whose Pod Security level allows no hostPath lives by that alone (`by_plugin`):
its jobs need devices of our plugin, and a volume for what is to outlive a container.

For a kubelet a variable that a ConfigMap or Secret brings (`envFrom`) stands over one of a device plugin, and a written one over
both. So every variable of ours that the launcher or its helper reads is written: empty where the agent says it later, or nobody.

The annotation then says "container", so that an embedded node on the same cluster does not wrap it again. What the template
says stays, except where it names a variable, volume or mount that is ours (`api.injected_fields`): ours stands, theirs is
taken out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.api.checkpoint_volume import is_checkpoint_volume_mounted, with_checkpoint_mount, with_checkpoint_volume
from remuda.api.errors import Refusal
from remuda.api.injected_fields import (
    MOUNT_ROOT,
    VOLUME_ALLOC,
    VOLUME_BIN,
    VOLUMES,
    is_injected_mount,
    is_injected_variable,
)
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_LAUNCH, IN_CONTAINER
from remuda.api.training import Checkpoint
from remuda.core.gang.checkpoint_dirs import job_checkpoint_dir

DOOR_PATH = f"{MOUNT_ROOT}/pod"  # in the container
LAUNCHER_PATH = f"{MOUNT_ROOT}/launch"
LAUNCHER_NAME = "remuda-launch.pyz"
LAUNCHER_FILE = f"{LAUNCHER_PATH}/{LAUNCHER_NAME}"
PLUGIN_DOOR_PATH = f"{MOUNT_ROOT}/alloc"  # as the plugin mounts it, and the next
PLUGIN_LAUNCHER_FILE = f"{MOUNT_ROOT}/bin/{LAUNCHER_NAME}"

_FIELDS = {"REMUDA_POD_NAME": "metadata.name", "REMUDA_POD_UID": "metadata.uid", "REMUDA_NODE": "spec.nodeName"}
# Read by the launcher or by `remuda_train`. Empty is as good as not set there, and what the agent says stands over it.
_EMPTY = (
    "REMUDA_ALLOC_WAIT",
    "REMUDA_ATTEMPT",
    "REMUDA_CHECKPOINT_DIR",
    "REMUDA_CHECKPOINT_RANKS",
    "REMUDA_CHECKPOINT_REQUEST_FILE",
    "REMUDA_LOG_FILE",
    "REMUDA_PROGRESS_FILE",
    "REMUDA_PROGRESS_SOCKET",
    "REMUDA_RANK",
    "REMUDA_RESUME_STEP",
)


class KubeletGangPodForm(msgspec.Struct, frozen=True):
    """`launcher`: what to put before a command so that it runs under the launcher of LAUNCHER_FILE. `alloc_root`, `launcher_dir`
    and `checkpoint_root`: the agent's directories, on the machine."""

    launcher: tuple[str, ...]
    alloc_root: str = "/var/lib/remuda/alloc"
    launcher_dir: str = "/var/lib/remuda/bin"
    checkpoint_root: str = "/var/lib/remuda/checkpoints"

    def rewrite(
        self,
        body: JsonObject,
        checkpoint: Checkpoint = Checkpoint(),  # noqa: B008 - a value
        *,
        by_plugin: bool = False,
    ) -> JsonObject:
        """Refusal NoCommand when the template leaves the command to the image: nobody can wrap what only the image knows.
        `args` alone are the command, as on an embedded node. `by_plugin`: nothing comes by hostPath."""
        metadata, spec = body["metadata"], dict(body["spec"])
        annotations = {**metadata["annotations"], ANNOTATION_LAUNCH: IN_CONTAINER}
        first, *others = map(_without_injected_fields, spec["containers"])
        if "initContainers" in spec:
            spec["initContainers"] = [_without_injected_fields(c) for c in spec["initContainers"] or []]
        if "volumes" in spec:
            spec["volumes"] = [v for v in spec["volumes"] or [] if v.get("name") not in VOLUMES]
        grace = spec.get("terminationGracePeriodSeconds", 30)
        container = self._wrapped(dict(first), metadata["name"], grace, PLUGIN_DOOR_PATH if by_plugin else DOOR_PATH)
        spec["containers"] = [container, *others]
        if by_plugin:
            container["command"] = [PLUGIN_LAUNCHER_FILE if w == LAUNCHER_FILE else w for w in container["command"]]
            spec = with_checkpoint_volume(spec, checkpoint)
        else:
            self._mount_agent(spec, container)
            spec = self._with_checkpoints(spec, metadata, checkpoint)
        return {**body, "metadata": {**metadata, "annotations": annotations}, "spec": spec}

    def _wrapped(self, container: JsonObject, pod: str, grace_s: float, door: str) -> JsonObject:
        command: Sequence[str] = container.get("command") or ()
        if not command and not container.get("args"):
            raise Refusal(
                "NoCommand",
                f"Pod {pod} leaves its command to the image, so it cannot be run under the launcher.",
                "Set containers[0].command in the template.",
                "spec.roles.template.spec.containers",
            )
        added: list[JsonObject] = [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _FIELDS.items()
        ]
        # The launcher's own TERM-to-KILL must fit into the pod's, or its child is killed without having been asked.
        added.append({"name": "REMUDA_STOP_GRACE", "value": f"{max(0.0, min(5.0, grace_s * 0.8)):g}"})
        added.append({"name": "REMUDA_ALLOC_DIR", "value": door})
        added += [{"name": name, "value": ""} for name in _EMPTY]
        container["command"] = [*self.launcher, *command]
        container["env"] = [*added, *(container.get("env") or [])]  # theirs behind what they may refer to
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
        return container

    def _mount_agent(self, spec: JsonObject, container: JsonObject) -> None:
        volumes: list[JsonObject] = [
            {"name": VOLUME_ALLOC, "hostPath": {"path": self.alloc_root, "type": "DirectoryOrCreate"}},
            {"name": VOLUME_BIN, "hostPath": {"path": self.launcher_dir, "type": "Directory"}},
        ]
        mounts: list[JsonObject] = [
            {
                "name": VOLUME_ALLOC,
                "mountPath": DOOR_PATH,
                "subPathExpr": "pod-$(REMUDA_POD_UID)",
                "readOnly": True,  # the launcher's door; connecting writes nothing
            },
            {"name": VOLUME_BIN, "mountPath": LAUNCHER_PATH, "readOnly": True},
        ]
        spec["volumes"] = [*volumes, *(spec.get("volumes") or [])]
        container["volumeMounts"] = [*mounts, *(container.get("volumeMounts") or [])]

    def _with_checkpoints(self, spec: JsonObject, metadata: JsonObject, checkpoint: Checkpoint) -> JsonObject:
        if checkpoint.volume:
            return with_checkpoint_volume(spec, checkpoint)
        if checkpoint.path and is_checkpoint_volume_mounted(spec["containers"][0], checkpoint.path):
            return spec
        owner = metadata["ownerReferences"][0]
        own = job_checkpoint_dir(self.checkpoint_root, metadata["namespace"], owner["name"], owner["uid"])
        source = {"hostPath": {"path": own, "type": "DirectoryOrCreate"}}
        return with_checkpoint_mount(spec, source, checkpoint.path or own)


def is_gang_host_path_refused(said: str) -> bool:
    """Whether a namespace's Pod Security level refused a pod for its host paths, among other things or alone."""
    return "violates PodSecurity" in said and "hostPath" in said


def gang_pod_asks_for_devices(body: JsonObject) -> bool:
    """Any extended resource may bring our plugin's mounts; whose plugin it is, the node's agent knows."""
    limits = (body["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return any("/" in name and not name.split("/")[0].endswith("kubernetes.io") for name in limits)


def _without_injected_fields(container: JsonObject) -> JsonObject:
    left = dict(container)
    if "env" in left:
        left["env"] = [entry for entry in left["env"] or [] if not is_injected_variable(entry.get("name"))]
    if "volumeMounts" in left:
        left["volumeMounts"] = [entry for entry in left["volumeMounts"] or [] if not is_injected_mount(entry)]
    return left

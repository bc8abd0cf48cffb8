"""The table: every field of a PodSpec, and what the embedded cluster does with it.

A path names a place of the schema: `containers[].env[].name`, `nodeSelector{}`. An entry stands for all that is below it, unless
it is a *section*: then every field below needs an entry of its own. So a field that Kubernetes adds one day has no entry until
somebody decides about it, and a test says so. Init containers are judged by the entries of `containers[]`.

- honoured: the field does what Kubernetes says. `shown_by` names the test that shows it.
- warned: nothing comes of it. Who writes it gets a Warning header, and the pod an event.
- refused: the pod would do something else than was asked, with harm: it is not made. A pod that runs no process (a container
  names no command, or the whole cluster is simulated) harms nobody's files: where `is_process_only`, it is warned about instead.

`quiet` values ask for nothing, mostly because they are defaults that every pod has. `judge_pod` knows the few fields that are
judged by more than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec


class FieldClaim(StrEnum):
    HONOURED = "honoured"
    WARNED = "warned"
    REFUSED = "refused"


class PodField(msgspec.Struct, frozen=True):
    """`said`: what happens here, as a clause. `reason` and `fix`: of a refusal."""

    path: str
    claim: FieldClaim
    said: str = ""
    reason: str = ""
    fix: str = ""
    quiet: tuple[str | bool | int, ...] = ()
    is_process_only: bool = False
    is_section: bool = False
    shown_by: str = ""


def _sections(*paths: str) -> list[PodField]:
    return [PodField(path, FieldClaim.HONOURED, is_section=True) for path in paths]


def _honoured(shown_by: str, *paths: str, said: str = "") -> list[PodField]:
    return [PodField(path, FieldClaim.HONOURED, said, shown_by=shown_by) for path in paths]


def _warned(said: str, *paths: str, quiet: tuple[str | bool | int, ...] = ()) -> list[PodField]:
    return [PodField(path, FieldClaim.WARNED, said, quiet=quiet) for path in paths]


def _refused(
    reason: str,
    said: str,
    fix: str,
    *paths: str,
    is_process_only: bool = False,
    quiet: tuple[str | bool | int, ...] = (),
) -> list[PodField]:
    return [PodField(path, FieldClaim.REFUSED, said, reason, fix, quiet, is_process_only) for path in paths]


_C: Final = "containers[]."
_NODE: Final = "tests/component/test_node_process.py::"
_ENV: Final = "tests/unit/embedded/node/test_container_environment.py::"
_GANG: Final = "tests/unit/core/scheduling/test_gang_placement.py::"
_JUDGED: Final = "tests/unit/embedded/pod_fields/test_judge_pod.py::"
_HERE: Final = "pods are processes of this machine"

VOLUMES_NOT_MOUNTED: Final = "VolumesNotMounted"
NOT_MOUNTED: Final = f"{_HERE}, and would use the machine's own directory of that name"
_VOLUMES: Final = (
    "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir ephemeral fc flexVolume flocker "
    "gcePersistentDisk gitRepo glusterfs image iscsi nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected "
    "quobyte rbd scaleIO secret storageos vsphereVolume"
).split()
_MOUNT_FIX: Final = (
    "Use a hostPath volume whose path is the mountPath, or write below the working directory, which goes with the pod."
)

_SCHEDULING: Final = [
    *_honoured(f"{_GANG}test_tolerations_and_selectors", "nodeSelector{}", "tolerations[]"),
    *_honoured(
        "tests/component/test_node_simulated.py::test_a_pod_runs_to_completion_and_gives_its_devices_back_first",
        "nodeName",
    ),
    *_honoured(
        "tests/unit/scheduler/test_scheduler_table.py::test_scheduler",
        "schedulerName",
        said="empty, default-scheduler and remuda are served here; another scheduler may bind what names it",
    ),
    *_sections("affinity", "affinity.nodeAffinity", "affinity.podAffinity", "affinity.podAntiAffinity"),
    *_honoured(
        f"{_GANG}test_required_node_affinity_is_kept",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    ),
    *_refused(
        "AffinityNotHonoured",
        "the scheduler here does not look at other pods' labels: the pod could go anywhere",
        "Use required node affinity or nodeSelector, or make it preferred; gangs have spec.topology.",
        "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[]",
        "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[]",
    ),
    *_warned(
        "preferences are not weighed by the scheduler here",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[]",
        "affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[]",
        "affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[]",
    ),
    *_refused(
        "SpreadNotHonoured",
        "the scheduler here does not spread pods by label",
        "Use whenUnsatisfiable: ScheduleAnyway (then it is only warned about), or nodeSelector.",
        "topologySpreadConstraints[]",
    ),
    *_honoured("tests/unit/scheduler/test_scheduler_table.py::test_scheduler", "schedulingGates[]"),
    *_refused(
        "ClaimsNotHonoured",
        "claims are not allocated here: the pod would run without its devices",
        "Ask for devices by resources.limits, such as nvidia.com/gpu.",
        "resourceClaims[]",
        f"{_C}resources.claims[]",
    ),
    *_honoured(
        "tests/unit/core/foreign/test_device_failures.py::test_pods_of_one_group_are_one_gang", "schedulingGroup"
    ),
    *_honoured(
        "tests/unit/embedded/apiserver/admission/test_plugins.py::test_a_class_gives_the_pod_its_priority",
        "priority",
        "priorityClassName",
        said="filled in and checked; who has a negative one may sit on lent spares",
    ),
    *_warned("nobody is preempted here", "preemptionPolicy", quiet=("PreemptLowerPriority", "Never")),
    *_refused(
        "OSNotSupported",
        "this machine runs linux",
        "Set os.name to linux, or leave it out.",
        "os.name",
        quiet=("linux",),
    ),
    *_sections("os"),
]

_LIFE_CYCLE: Final = [
    *_honoured(
        "tests/component/test_node_process.py::test_on_failure_runs_again_until_it_succeeds_in_one_log", "restartPolicy"
    ),
    *_honoured(
        f"{_NODE}test_a_deaf_program_and_all_it_started_is_killed_after_the_grace", "terminationGracePeriodSeconds"
    ),
    *_honoured(
        "tests/component/test_node_simulated.py::test_a_pod_that_is_active_for_too_long_fails", "activeDeadlineSeconds"
    ),
    *_warned("the pod is Ready when its containers are", "readinessGates[]"),
    *_warned("nobody asks them: an eviction goes ahead", "evictionResponders[]"),
    *_refused(
        "EphemeralContainers",
        "ephemeral containers cannot be set when a pod is made, nor added here",
        "Put the tool into the pod's command, or run it on this machine.",
        "ephemeralContainers[]",
    ),
]

_MACHINE: Final = [
    *_honoured(
        f"{_JUDGED}test_what_a_process_has_anyway_is_honoured",
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "shareProcessNamespace",
        said=_HERE,
    ),
    *_warned(f"{_HERE}: there is no user namespace of its own", "hostUsers", quiet=(True,)),
    *_warned(
        "HOSTNAME is the pod's name; the machine's host name stays",
        "hostname",
        "hostnameOverride",
        "setHostnameAsFQDN",
        quiet=(False,),
    ),
    *_warned("there is no DNS for pods here; use addresses", "subdomain"),
    *_warned(
        "the machine's own resolver is used", "dnsPolicy", quiet=("ClusterFirst", "ClusterFirstWithHostNet", "Default")
    ),
    *_warned("the machine's own resolver is used", "dnsConfig", "hostAliases[]"),
    *_warned("no variables for services are set", "enableServiceLinks", quiet=(True, False)),
    *_warned("images are not pulled here", "imagePullSecrets[]"),
    *_warned("pods get no account and no token here", "serviceAccountName", "serviceAccount", quiet=("default",)),
    *_warned("pods get no account and no token here", "automountServiceAccountToken", quiet=(False,)),
    *_warned(f"{_HERE}, whatever the class", "runtimeClassName"),
    *_warned("only what containers ask for is counted", "overhead{}"),
    *_sections("resources"),
    *_warned("only what containers ask for is counted", "resources.requests{}", "resources.limits{}"),
    *_refused(
        "ClaimsNotHonoured",
        "claims are not allocated here: the pod would run without its devices",
        "Ask for devices by resources.limits of a container, such as nvidia.com/gpu.",
        "resources.claims[]",
    ),
]

_VOLUME: Final = [
    *_sections("volumes[]"),
    *_honoured(f"{_JUDGED}test_a_host_path_mounted_where_it_is_is_honoured", "volumes[].name"),
    *_honoured(
        f"{_JUDGED}test_a_host_path_mounted_where_it_is_is_honoured",
        "volumes[].hostPath",
        said="where its path is the mountPath; mounted elsewhere it is refused, as below",
    ),
    *_refused(
        VOLUMES_NOT_MOUNTED,
        NOT_MOUNTED,
        _MOUNT_FIX,
        *(f"volumes[].{source}" for source in _VOLUMES),
        is_process_only=True,
    ),
    *_refused(
        VOLUMES_NOT_MOUNTED,
        "as its volume says; readOnly is not enforced (warned), an emptyDir of memory at /dev/shm is the machine's own (warned)",
        _MOUNT_FIX,
        f"{_C}volumeMounts[]",
        is_process_only=True,
    ),
    *_refused(
        VOLUMES_NOT_MOUNTED,
        "block devices are not passed on here",
        "Open the machine's device by its own path.",
        f"{_C}volumeDevices[]",
        is_process_only=True,
    ),
]

_CONTAINER: Final = [
    *_sections(
        "containers[]", f"{_C}env[]", f"{_C}env[].valueFrom", f"{_C}resources", f"{_C}ports[]", f"{_C}lifecycle"
    ),
    *_honoured(f"{_ENV}test_command_and_args_make_the_command_line", f"{_C}command[]", f"{_C}args[]"),
    *_honoured(
        f"{_NODE}test_a_pod_runs_and_sees_its_devices_address_and_machine",
        f"{_C}name",
        f"{_C}env[].name",
        f"{_C}env[].value",
    ),
    *_honoured(
        "tests/component/test_node_pod_fields.py::test_variables_come_from_config_maps_secrets_fields_and_resources",
        f"{_C}env[].valueFrom.configMapKeyRef",
        f"{_C}env[].valueFrom.secretKeyRef",
        f"{_C}env[].valueFrom.fieldRef",
        f"{_C}env[].valueFrom.resourceFieldRef",
        f"{_C}envFrom[]",
        said="what is missing keeps the container waiting, with CreateContainerConfigError",
    ),
    *_refused(
        VOLUMES_NOT_MOUNTED,
        "the file is in a volume, and volumes are not mounted here: the variable would be missing",
        "Take the value from a ConfigMap or a Secret.",
        f"{_C}env[].valueFrom.fileKeyRef",
        is_process_only=True,
    ),
    *_warned(
        "images are not run here: a command runs as a process of this machine, and a container without one is simulated",
        f"{_C}image",
    ),
    *_warned("images are not pulled here", f"{_C}imagePullPolicy", quiet=("Always", "IfNotPresent")),
    *_honoured(
        "tests/component/test_node_pod_fields.py::test_a_working_directory_is_the_machines",
        f"{_C}workingDir",
        said="a directory of this machine",
    ),
    *_honoured("tests/unit/core/scheduling/test_refusals.py::test_refusal", f"{_C}resources.requests{{}}"),
    *_warned(
        "not enforced: a process may use what the machine has; counted as a request, and devices are honoured",
        f"{_C}resources.limits{{}}",
    ),
    *_warned("nothing is resized in place here", f"{_C}resizePolicy[]"),
    *_honoured(
        "tests/unit/embedded/node/test_restart_rules.py::test_a_containers_own_rules_come_first",
        f"{_C}restartPolicy",
        f"{_C}restartPolicyRules[]",
    ),
    *_honoured(
        f"{_JUDGED}test_what_a_process_has_anyway_is_honoured",
        f"{_C}ports[].containerPort",
        f"{_C}ports[].name",
        f"{_C}ports[].protocol",
        said="a name for what the process listens on",
    ),
    *_warned(
        "ports are not mapped: the process listens on the machine", f"{_C}ports[].hostPort", f"{_C}ports[].hostIP"
    ),
    *_warned("nothing probes the container: it is live while its process runs", f"{_C}livenessProbe"),
    *_warned("nothing probes the container: it is ready while its process runs", f"{_C}readinessProbe"),
    *_warned("nothing probes the container: it counts as started at once", f"{_C}startupProbe"),
    *_warned("hooks are not run", f"{_C}lifecycle.postStart", f"{_C}lifecycle.preStop"),
    *_warned("a container is stopped with TERM", f"{_C}lifecycle.stopSignal", quiet=("SIGTERM",)),
    *_warned("a container has no terminal and no input", f"{_C}stdin", f"{_C}stdinOnce", f"{_C}tty", quiet=(False,)),
    *_warned(
        "no message is read from a file; the log's end is with `remuda logs`",
        f"{_C}terminationMessagePath",
        quiet=("/dev/termination-log",),
    ),
    *_warned("no message is read from the log", f"{_C}terminationMessagePolicy", quiet=("File",)),
]


def _security(at: str) -> Iterable[PodField]:
    yield from _refused(
        "RunsAsAnotherUser",
        "processes here run as the user of `remuda up`",
        "Leave it out, or start the cluster as that user.",
        f"{at}runAsUser",
        f"{at}runAsGroup",
        f"{at}runAsNonRoot",
        is_process_only=True,
    )
    yield from _warned(
        "processes here have the rights of the user of `remuda up`, no more and no less",
        *(f"{at}{name}" for name in ("appArmorProfile", "seccompProfile", "seLinuxOptions")),
    )
    yield from _warned("this machine runs linux", f"{at}windowsOptions")


_SECURITY: Final = [
    *_sections("securityContext", f"{_C}securityContext"),
    *_security("securityContext."),
    *_security(f"{_C}securityContext."),
    *_warned(
        "volumes are not mounted here, so no group owns them",
        "securityContext.fsGroup",
        "securityContext.fsGroupChangePolicy",
    ),
    *_warned(
        "processes here have the groups of the user of `remuda up`",
        "securityContext.supplementalGroups[]",
        "securityContext.supplementalGroupsPolicy",
    ),
    *_warned("the machine's own settings stay", "securityContext.sysctls[]"),
    *_warned("volumes are not mounted here", "securityContext.seLinuxChangePolicy"),
    *_warned(
        "processes here have the rights of the user of `remuda up`, no more and no less",
        f"{_C}securityContext.privileged",
        f"{_C}securityContext.capabilities",
        f"{_C}securityContext.allowPrivilegeEscalation",
        f"{_C}securityContext.procMount",
        quiet=(False,),
    ),
    *_warned("a process can write what its user can", f"{_C}securityContext.readOnlyRootFilesystem", quiet=(False,)),
]

POD_FIELDS: Final[dict[str, PodField]] = {
    field.path: field for field in (*_SCHEDULING, *_LIFE_CYCLE, *_CONTAINER, *_VOLUME, *_SECURITY, *_MACHINE)
}


def pod_field_table_path(path: str) -> str:
    """Where the table speaks of a place: init containers are judged like containers."""
    return f"containers[]{path.removeprefix('initContainers[]')}" if path.startswith("initContainers[]") else path


def find_pod_field(path: str) -> PodField | None:
    """The entry that decides about a place of the schema: its own, or that of the nearest place above it that is no section."""
    path = pod_field_table_path(path)
    own = POD_FIELDS.get(path)
    while own is None and "." in path:
        path = path.rpartition(".")[0]
        own = POD_FIELDS.get(path)
        if own is not None and own.is_section:
            return None
    return own

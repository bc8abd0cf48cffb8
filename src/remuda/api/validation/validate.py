"""What a user may ask for: checks of our kinds beyond their types. One Refusal at a time, with the field and the fix.

Runs in the CLI before anything is sent and in admission before anything is stored, so nothing is ever half-created.
"""

from __future__ import annotations

import difflib
import re

import msgspec

from remuda.api.drills import DRILLS, NEEDS, Drill, DrillKind
from remuda.api.errors import Refusal
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import PodSpec
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import GROUP, RESOURCE_GPU
from remuda.api.quantity import parse_whole_quantity
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout, check_rollout
from remuda.api.selectors import is_label_key
from remuda.api.training import UNLIMITED, Cause, Checkpoint, Failure, Role, TrainingJob, TrainingJobSpec
from remuda.api.validation.incidents import check_incident
from remuda.api.validation.numbers import check_range as _in_range
from remuda.api.validation.remedy_policies import check_policy
from remuda.api.validation.training import check_training_policies

MAX_REPLICAS = 100_000
MAX_ROLES = 64
MAX_JOB_NAME = 52  # leaves room for "-<role>-<index>" within the 63 characters a pod's host name may have
MAX_POD_PREFIX = 58  # of "<job>-<role>": an index of four digits still fits

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

# PodSpec and Container field names of Kubernetes 1.37. A template is kept word for word, so a misspelt field would be
# carried along silently; the names are checked instead.
POD_FIELDS = frozenset(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks "
    "ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride "
    "imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName "
    "readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates "
    "schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain "
    "terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes workloadRef".split()
)
CONTAINER_FIELDS = frozenset(
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy "
    "resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath "
    "terminationMessagePolicy tty volumeDevices volumeMounts workingDir".split()
)


def validate(obj: KObject) -> None:
    """Raises Refusal. Kinds without rules pass."""
    if isinstance(obj, TrainingJob):
        _check_training_job(obj)
    elif isinstance(obj, Drill):
        _check_drill(obj)
    elif isinstance(obj, NodeRollout):
        check_rollout(obj)
    elif isinstance(obj, RemedyPolicy):
        check_policy(obj)
    elif isinstance(obj, Incident):
        check_incident(obj)


def _check_training_job(job: TrainingJob) -> None:
    name = job.metadata.name
    if name and (len(name) > MAX_JOB_NAME or not _LABEL.fullmatch(name)):
        raise Refusal(
            "InvalidName",
            f"`{name}` cannot name a job.",
            f"Use at most {MAX_JOB_NAME} lower-case letters, digits and dashes, starting and ending with a letter or digit.",
            "metadata.name",
        )
    spec = job.spec
    if not spec.roles:
        raise Refusal(
            "NoRoles", "The job has no roles.", "Give spec.roles at least one role with a template.", "spec.roles"
        )
    if len(spec.roles) > MAX_ROLES:
        raise Refusal(
            "TooManyRoles", f"The job has {len(spec.roles)} roles.", f"Use at most {MAX_ROLES}.", "spec.roles"
        )
    seen: set[str] = set()
    for index, role in enumerate(spec.roles):
        path = f"spec.roles[{index}]"
        if not _LABEL.fullmatch(role.name) or role.name in seen:
            raise Refusal(
                "InvalidRoleName",
                f"Role name `{role.name}` is empty, not a label, or used twice.",
                "Give each role its own name of lower-case letters, digits and dashes.",
                f"{path}.name",
            )
        if len(f"{name}-{role.name}") > MAX_POD_PREFIX:
            raise Refusal(
                "InvalidRoleName",
                f"`{name}-{role.name}` (job and role) is too long for pod names.",
                f"Use at most {MAX_POD_PREFIX} characters for both.",
                f"{path}.name",
            )
        seen.add(role.name)
        _in_range(role.replicas, 1, MAX_REPLICAS, "InvalidReplicas", f"{path}.replicas")
        _in_range(role.min_replicas, 0, role.replicas, "InvalidReplicas", f"{path}.minReplicas")
        _in_range(role.gpus, 0, 1024, "InvalidGpus", f"{path}.gpus")
        _check_pod_template(role, path)
    _in_range(spec.spares, 0, MAX_REPLICAS, "InvalidSpares", "spec.spares")
    if spec.topology.required and not is_label_key(spec.topology.required):
        raise Refusal(
            "InvalidTopology",
            f"`{spec.topology.required}` cannot be the name of a node label.",
            "Name the label whose value all pods must share, say topology.remuda.dev/rack.",
            "spec.topology.required",
        )
    _check_segments(spec)
    _check_failure_limits(spec.failure)
    _check_checkpoint(spec.checkpoint)
    check_training_policies(spec)


def _check_segments(spec: TrainingJobSpec) -> None:
    size = spec.topology.segment_size
    if spec.lend_spares and (not spec.spares or size):
        why = "a gang in segments does not lend its spares" if spec.spares else "the job has no spares"
        raise Refusal(
            "NothingToLend",
            f"lendSpares is true, but {why}.",
            "Leave out lendSpares, or ask for spares and leave out segmentSize.",
            "spec.lendSpares",
        )
    _in_range(size, 0, MAX_REPLICAS, "InvalidTopology", "spec.topology.segmentSize")
    if size and not spec.topology.required:
        raise Refusal(
            "InvalidTopology",
            "segmentSize says how many ranks share a domain, but no domain is named.",
            "Name the label in spec.topology.required, say topology.remuda.dev/rack.",
            "spec.topology.segmentSize",
        )
    if size and any(role.min_replicas for role in spec.roles):
        raise Refusal(
            "ElasticSegments",
            "A job with segments cannot continue with fewer ranks: its segments would be in the wrong places.",
            "Leave out minReplicas or segmentSize.",
            "spec.topology.segmentSize",
        )


def _check_failure_limits(failure: Failure) -> None:
    for cause in Cause:
        limit = failure.budgets.limit(cause)
        _in_range(limit, UNLIMITED, 1_000_000, "InvalidBudget", f"spec.failure.budgets.{cause}")
    refill = failure.budgets.refill_after_steps
    _in_range(refill, 0, 2**53, "InvalidBudget", "spec.failure.budgets.refillAfterSteps")
    for field in ("hang_after_seconds", "stop_grace_seconds", "look_back_seconds"):
        _in_range(getattr(failure, field), 0, 86_400, "InvalidSeconds", f"spec.failure.{_camel_case(field)}")
    for field in ("stop_deadline_seconds", "start_deadline_seconds"):
        _in_range(getattr(failure, field), 0.1, 86_400, "InvalidSeconds", f"spec.failure.{_camel_case(field)}")
    if failure.stop_deadline_seconds <= failure.stop_grace_seconds:
        raise Refusal(
            "InvalidSeconds",
            "stopDeadlineSeconds must be longer than stopGraceSeconds: a member is killed only after the grace.",
            f"Set stopDeadlineSeconds above {failure.stop_grace_seconds:g}.",
            "spec.failure.stopDeadlineSeconds",
        )


def _check_checkpoint(checkpoint: Checkpoint) -> None:
    _in_range(checkpoint.typical_seconds, 0, 86_400, "InvalidSeconds", "spec.checkpoint.typicalSeconds")
    if checkpoint.path and not checkpoint.path.startswith("/"):
        raise Refusal(
            "RelativeCheckpointPath",
            f"checkpoint.path `{checkpoint.path}` is relative; ranks on other nodes would look elsewhere.",
            "Give an absolute path that all ranks share.",
            "spec.checkpoint.path",
        )


def _check_pod_template(role: Role, path: str) -> None:
    body = role.template.spec
    where = f"{path}.template.spec"
    for kind in ("labels", "annotations"):
        for name in getattr(role.template.metadata, kind):
            if name.startswith(f"{GROUP}/"):
                raise Refusal(
                    "ReservedName",
                    f"`{name}` is reserved for Remuda.",
                    f"Take it out of the template's {kind}.",
                    f"{path}.template.metadata.{kind}",
                )
    _check_known_fields(body, POD_FIELDS, where)
    if body.get("nodeName"):
        raise Refusal(
            "NodeNameSet",
            f"Role `{role.name}` sets nodeName. Such a pod skips the scheduler and gets no devices.",
            "Use nodeSelector with kubernetes.io/hostname instead.",
            f"{where}.nodeName",
        )
    containers = body.get("containers")
    if not isinstance(containers, list) or not containers:
        raise Refusal(
            "NoContainers",
            f"Role `{role.name}` has no container.",
            "Give the template one container.",
            f"{where}.containers",
        )
    if len(containers) > 1 or body.get("initContainers"):
        raise Refusal(
            "OneContainerOnly",
            f"Role `{role.name}` has more than one container. Remuda starts and restarts exactly one.",
            "Move the others into the command or into pods of their own.",
            f"{where}.containers",
        )
    if not isinstance(containers[0], dict):
        raise Refusal(
            "InvalidField", f"`{where}.containers[0]` is not a mapping.", "Give it a name and a command.", where
        )
    _check_known_fields(containers[0], CONTAINER_FIELDS, f"{where}.containers[0]")
    try:
        spec = msgspec.convert(body, PodSpec)
    except msgspec.ValidationError as error:
        raise Refusal("InvalidField", f"{where}: {error}", _type_fix(str(error)), where) from None
    if not spec.containers[0].command and not spec.containers[0].args:
        raise Refusal(
            "NoCommand",
            f"Role `{role.name}` has no command; remuda-launch must know what to start and restart.",
            "Set containers[0].command, or args.",
            f"{where}.containers[0].command",
        )
    asked = spec.containers[0].resources
    for amounts in (asked.limits, asked.requests):
        if RESOURCE_GPU in amounts:
            _check_gpu_amount(role, amounts[RESOURCE_GPU], path, f"{where}.containers[0].resources")


def _type_fix(error: str) -> str:
    """YAML takes 100 and true for a number and a truth value; in a command or an env they are meant as text."""
    if "Expected `str`, got" in error and error.partition("got ")[2].startswith(("`int`", "`float`", "`bool`")):
        return 'Put the value in quotes: "100".'
    return "Give the field the type that Kubernetes documents."


def _check_gpu_amount(role: Role, amount: int | str, path: str, where: str) -> None:
    try:
        count = parse_whole_quantity(amount)
    except Refusal as refusal:
        raise Refusal(refusal.reason, f"{where}: {refusal.message}", refusal.fix, where) from None
    if role.gpus and count != role.gpus:
        raise Refusal(
            "GpusSaidTwice",
            f"Role `{role.name}` sets gpus: {role.gpus} and also {RESOURCE_GPU}: {amount}.",
            "Keep one of the two.",
            f"{path}.gpus",
        )
    _in_range(count, 0, 1024, "InvalidGpus", where)


def _check_known_fields(body: JsonObject, known: frozenset[str], where: str) -> None:
    for field in body:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            fix = f"Did you mean `{near[0]}`?" if near else "See the Kubernetes pod reference for the names."
            raise Refusal("UnknownField", f"`{where}.{field}` is not a field.", fix, f"{where}.{field}")


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _check_drill(drill: Drill) -> None:
    spec = drill.spec
    facts = DRILLS[spec.type]
    for field in (*NEEDS[facts.aim], *(("code",) if spec.type is DrillKind.DEVICE_FAIL else ())):
        if not getattr(spec, field):
            raise Refusal(
                "IncompleteDrill", f"A {spec.type} drill needs spec.{field}.", f"Set spec.{field}.", f"spec.{field}"
            )
    _in_range(spec.seconds, 0, 86_400, "InvalidSeconds", "spec.seconds")
    _in_range(spec.times, 0, 100_000, "InvalidTimes", "spec.times")
    if spec.factor:
        _in_range(spec.factor, 1, 100, "InvalidFactor", "spec.factor")
    if spec.undo and not facts.lasts:
        raise Refusal("CannotBeUndone", f"A {spec.type} drill cannot be undone.", "Leave out spec.undo.", "spec.undo")


def gpus_of_role(role: Role) -> int:
    """Devices each pod of the role gets, whichever way they were asked for."""
    if role.gpus:
        return role.gpus
    containers = role.template.spec.get("containers") or [{}]
    resources = containers[0].get("resources") or {}
    for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
        if RESOURCE_GPU in amounts:
            return parse_whole_quantity(amounts[RESOURCE_GPU])
    return 0

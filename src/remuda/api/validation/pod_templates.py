"""The pod template of a role: fields that Kubernetes knows, one container with a command, devices said once, nothing that is
ours to set (`api.injected_fields`). Raises a Refusal."""

from __future__ import annotations

import difflib

import msgspec

from remuda.api.codec import explain_codec_type_error, suggest_codec_type
from remuda.api.errors import Refusal
from remuda.api.injected_fields import injected_fields_of
from remuda.api.kubernetes.core_v1 import PodSpec
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.api.meta import JsonObject
from remuda.api.names import GROUP, RESOURCE_GPU
from remuda.api.training import Role
from remuda.api.validation.numbers import validate_number_range

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


def check_pod_template(role: Role, path: str) -> None:
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
    _check_pod_field_names(body, POD_FIELDS, where)
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
            "InvalidField", f"`{where}.containers[0]` is not an object.", "Give it a name and a command.", where
        )
    _check_pod_field_names(containers[0], CONTAINER_FIELDS, f"{where}.containers[0]")
    try:
        spec = msgspec.convert(body, PodSpec)
    except msgspec.ValidationError as error:
        at, what = explain_codec_type_error(error, where)
        raise Refusal("InvalidField", f"`{at}`: {what}.", _pod_template_type_fix(str(error)), where) from None
    if not spec.containers[0].command and not spec.containers[0].args:
        raise Refusal(
            "NoCommand",
            f"Role `{role.name}` has no command; remuda-launch must know what to start and restart.",
            "Set containers[0].command, or args.",
            f"{where}.containers[0].command",
        )
    for what, field in injected_fields_of(body, where):
        raise Refusal(
            "InjectedField",
            f"Role `{role.name}` sets {what}, which Remuda sets itself.",
            "Take it out of the template, or give it another name or path.",
            field,
        )
    asked = spec.containers[0].resources
    for amounts in (asked.limits, asked.requests):
        if RESOURCE_GPU in amounts:
            _check_gpu_amount(role, amounts[RESOURCE_GPU], path, f"{where}.containers[0].resources")


def _pod_template_type_fix(error: str) -> str:
    """YAML takes 100 and true for a number and a truth value; in a command or an env they are meant as text."""
    if "Expected `str`, got" in error and error.partition("got ")[2].startswith(("`int`", "`float`", "`bool`")):
        return 'Put the value in quotes: "100".'
    return suggest_codec_type(error) or "Give the field a value that Kubernetes documents."


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
    validate_number_range(count, 0, 1024, "InvalidGpus", where)


def _check_pod_field_names(body: JsonObject, known: frozenset[str], where: str) -> None:
    for field in body:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            fix = f"Did you mean `{near[0]}`?" if near else "See the Kubernetes pod reference for the names."
            raise Refusal("UnknownField", f"`{where}.{field}` is not a field.", fix, f"{where}.{field}")

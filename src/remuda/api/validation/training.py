"""What a TrainingJob may ask for: names, sizes, segments, rules, order of roles, success, deadlines. Raises a Refusal with the
field. Its pods' template is `pod_templates`.

Contradictions are refused, not resolved: a rule that can never match, a role that waits for itself, a success nobody can have.
"""

from __future__ import annotations

import difflib
import math
import posixpath
import re
from collections.abc import Sequence

import msgspec

from remuda.api.checkpoint_volume import FLEETING_SOURCES, LASTING_SOURCES
from remuda.api.errors import Refusal
from remuda.api.injected_fields import MOUNT_ROOT
from remuda.api.number_bounds import MAX_COUNT
from remuda.api.selectors import is_selector_label_key
from remuda.api.training import (
    UNLIMITED,
    VOLUME_PATH,
    Cause,
    Checkpoint,
    Failure,
    FailureRule,
    Role,
    RuleAction,
    SuccessPolicy,
    TrainingJob,
    TrainingJobSpec,
)
from remuda.api.validation.numbers import validate_number_range
from remuda.api.validation.patterns import SYNTAX, BadPattern, check_log_pattern
from remuda.api.validation.pod_templates import check_pod_template

MAX_REPLICAS = 100_000
MAX_PODS = 100_000  # of a whole gang, spares included: what is planned over and over has to end
MAX_ROLES = 64
MAX_GPUS = 1024  # of a pod
MAX_EXIT_CODES = 255
MAX_LISTED = 64  # entries of a list that people write by hand
MAX_JOB_NAME = 52  # leaves room for "-<role>-<index>" within the 63 characters a pod's host name may have
MAX_POD_PREFIX = 58  # of "<job>-<role>": an index of four digits still fits
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

MAX_RULES = 64
MAX_VOLUME_BYTES = 4096  # of a checkpoint volume: it is written into every pod
MAX_STEPS = MAX_COUNT
MAX_SECONDS = 10 * 365 * 86_400.0
AFTER = ("Running", "Succeeded")
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "WINCH")  # a process can answer these


def check_training_job(job: TrainingJob) -> None:
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
        validate_number_range(role.replicas, 1, MAX_REPLICAS, "InvalidReplicas", f"{path}.replicas")
        validate_number_range(role.min_replicas, 0, role.replicas, "InvalidReplicas", f"{path}.minReplicas")
        validate_number_range(role.gpus, 0, MAX_GPUS, "InvalidGpus", f"{path}.gpus")
        check_pod_template(role, path)
    validate_number_range(spec.spares, 0, MAX_REPLICAS, "InvalidSpares", "spec.spares")
    _check_gang_size(spec)
    if spec.topology.required and not is_selector_label_key(spec.topology.required):
        raise Refusal(
            "InvalidTopology",
            f"`{spec.topology.required}` cannot be the name of a node label.",
            "Name the label whose value all pods must share, say topology.remuda.dev/rack.",
            "spec.topology.required",
        )
    _check_segments(spec)
    _check_failure_limits(spec.failure)
    _check_checkpoint(spec.checkpoint)
    _check_checkpoint_volume(spec)
    _check_training_policies(spec)


def _check_gang_size(spec: TrainingJobSpec) -> None:
    pods = sum(role.replicas for role in spec.roles) + spec.spares
    if pods > MAX_PODS:
        raise Refusal(
            "TooManyPods",
            f"The job asks for {pods} pods, spares included.",
            f"Use at most {MAX_PODS} in all, or several jobs.",
            "spec.roles",
        )
    for index, role in enumerate(spec.roles):
        _check_listed(role.after, MAX_ROLES, f"spec.roles[{index}].after")
    _check_listed(spec.success.ranks, MAX_PODS, "spec.success.ranks")
    for index, rule in enumerate(spec.failure.rules[:MAX_RULES]):
        _check_listed(rule.exit_codes, MAX_EXIT_CODES, f"spec.failure.rules[{index}].exitCodes")
        _check_listed(rule.faults, MAX_LISTED, f"spec.failure.rules[{index}].faults")


def _check_listed(given: Sequence[object], most: int, field: str) -> None:
    if len(given) > most:
        raise Refusal("TooMany", f"{field} has {len(given)} entries.", f"Use at most {most}.", field)


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
    validate_number_range(size, 0, MAX_REPLICAS, "InvalidTopology", "spec.topology.segmentSize")
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
        validate_number_range(limit, UNLIMITED, 1_000_000, "InvalidBudget", f"spec.failure.budgets.{cause}")
    refill = failure.budgets.refill_after_steps
    validate_number_range(refill, 0, MAX_STEPS, "InvalidBudget", "spec.failure.budgets.refillAfterSteps")
    for field in ("hang_after_seconds", "stop_grace_seconds", "look_back_seconds"):
        validate_number_range(
            getattr(failure, field), 0, 86_400, "InvalidSeconds", f"spec.failure.{_camel_case(field)}"
        )
    for field in ("stop_deadline_seconds", "start_deadline_seconds"):
        validate_number_range(
            getattr(failure, field), 0.1, 86_400, "InvalidSeconds", f"spec.failure.{_camel_case(field)}"
        )
    if failure.stop_deadline_seconds <= failure.stop_grace_seconds:
        raise Refusal(
            "InvalidSeconds",
            "stopDeadlineSeconds must be longer than stopGraceSeconds: a member is killed only after the grace.",
            f"Set stopDeadlineSeconds above {failure.stop_grace_seconds:g}.",
            "spec.failure.stopDeadlineSeconds",
        )


def _check_checkpoint(checkpoint: Checkpoint) -> None:
    validate_number_range(checkpoint.typical_seconds, 0, 86_400, "InvalidSeconds", "spec.checkpoint.typicalSeconds")
    if checkpoint.resume_from is not None:
        validate_number_range(
            checkpoint.resume_from.step, 0, MAX_STEPS, "InvalidSteps", "spec.checkpoint.resumeFrom.step"
        )
        attempt = checkpoint.resume_from.attempt
        validate_number_range(attempt, 0, MAX_STEPS, "InvalidAttempt", "spec.checkpoint.resumeFrom.attempt")
    if checkpoint.path and not checkpoint.path.startswith("/"):
        raise Refusal(
            "RelativeCheckpointPath",
            f"checkpoint.path `{checkpoint.path}` is relative; ranks on other nodes would look elsewhere.",
            "Give an absolute path that all ranks share.",
            "spec.checkpoint.path",
        )


def _check_checkpoint_volume(spec: TrainingJobSpec) -> None:
    volume, where, path = spec.checkpoint.volume, "spec.checkpoint.volume", spec.checkpoint.path
    if path and posixpath.normpath(path) in ("/", "//"):
        raise Refusal(
            "InvalidCheckpointPath",
            "checkpoint.path is the root.",
            "Name a directory below it.",
            "spec.checkpoint.path",
        )
    if not volume:
        return
    if len(volume) != 1 or not isinstance(next(iter(volume.values())), dict):
        raise Refusal(
            "InvalidVolume",
            f"checkpoint.volume names {len(volume)} sources of a volume; it has one, and that is an object.",
            "Give exactly one, say {persistentVolumeClaim: {claimName: checkpoints}}.",
            where,
        )
    (source,) = volume
    if source in FLEETING_SOURCES:
        raise Refusal(
            "InvalidVolume",
            f"A volume of type `{source}` cannot be written, or goes with its pod. Checkpoints must outlive pods.",
            "Use a persistentVolumeClaim, nfs, or another volume that lasts.",
            f"{where}.{source}",
        )
    if source not in LASTING_SOURCES:
        near = difflib.get_close_matches(source, LASTING_SOURCES, n=1)
        fix = f"Did you mean `{near[0]}`?" if near else f"Use one of {', '.join(sorted(LASTING_SOURCES))}."
        raise Refusal("InvalidVolume", f"`{source[:100]}` is not a source of a volume.", fix, where)
    if len(msgspec.json.encode(volume)) > MAX_VOLUME_BYTES:
        raise Refusal(
            "InvalidVolume", "checkpoint.volume is too long.", f"Use at most {MAX_VOLUME_BYTES} bytes.", where
        )
    at = posixpath.normpath(spec.checkpoint.directory)
    if ":" in at or (at != VOLUME_PATH and (at == MOUNT_ROOT or at.startswith(f"{MOUNT_ROOT}/"))):
        raise Refusal(
            "InvalidCheckpointPath",
            f"A volume cannot be mounted at `{at[:200]}`.",
            f"Choose a path without `:` and outside {MOUNT_ROOT}, or leave it out for {VOLUME_PATH}.",
            "spec.checkpoint.path",
        )
    for index, role in enumerate(spec.roles):
        mounts = role.template.spec["containers"][0].get("volumeMounts") or []
        if any(isinstance(m, dict) and posixpath.normpath(str(m.get("mountPath") or "")) == at for m in mounts):
            raise Refusal(
                "MountedTwice",
                f"Role `{role.name}` mounts a volume at {at[:200]}, where checkpoint.volume goes.",
                "Keep one of the two, or change checkpoint.path.",
                f"spec.roles[{index}].template.spec.containers[0].volumeMounts",
            )


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _check_training_policies(spec: TrainingJobSpec) -> None:
    _check_role_order(spec.roles)
    _check_success_policy(spec.success, spec.roles)
    validate_number_range(spec.active_deadline_seconds, 0, MAX_SECONDS, "InvalidSeconds", "spec.activeDeadlineSeconds")
    if spec.ttl_seconds_after_finished is not None:
        validate_number_range(
            spec.ttl_seconds_after_finished, 0, MAX_SECONDS, "InvalidSeconds", "spec.ttlSecondsAfterFinished"
        )
    validate_number_range(spec.total_steps, 0, MAX_STEPS, "InvalidSteps", "spec.totalSteps")
    _check_failure_policies(spec.failure)
    _check_checkpoint_signal(spec.checkpoint)


# --- roles ------------------------------------------------------------------------------------------------------------


def _check_role_order(roles: Sequence[Role]) -> None:
    names = {role.name for role in roles}
    for index, role in enumerate(roles):
        path = f"spec.roles[{index}]"
        if not 0 <= role.min_replicas <= role.replicas:
            raise Refusal(
                "InvalidReplicas",
                f"Role `{role.name}` has minReplicas {role.min_replicas}, but {role.replicas} replicas.",
                f"Set minReplicas to at most {role.replicas}, or to 0 for all of them.",
                f"{path}.minReplicas",
            )
        for at, after in enumerate(role.after):
            where = f"{path}.after[{at}]"
            if after.role not in names:
                raise Refusal(
                    "UnknownRole",
                    f"Role `{role.name}` comes after `{after.role}`, which is no role of the job.",
                    f"Name one of {', '.join(sorted(names))}.",
                    f"{where}.role",
                )
            if after.is_ not in AFTER:
                raise Refusal(
                    "InvalidAfter",
                    f"A role cannot wait for another to be `{after.is_}`.",
                    "Write Running or Succeeded.",
                    f"{where}.is",
                )
    circle = _find_role_circle(roles)
    if circle:
        raise Refusal(
            "RolesInACircle",
            f"Roles wait for each other: {' after '.join(circle)}.",
            "Take one `after` out.",
            "spec.roles",
        )


def _find_role_circle(roles: Sequence[Role]) -> list[str]:
    waits = {role.name: [after.role for after in role.after] for role in roles}
    done: set[str] = set()
    for start in waits:
        path: list[str] = []
        found = _walk_role_circle(start, waits, path, done)
        if found:
            return found
    return []


def _walk_role_circle(name: str, waits: dict[str, list[str]], path: list[str], done: set[str]) -> list[str]:
    if name in path:
        return [*path[path.index(name) :], name]
    if name in done:
        return []
    path.append(name)
    for other in waits.get(name, []):
        found = _walk_role_circle(other, waits, path, done)
        if found:
            return found
    path.pop()
    done.add(name)
    return []


def _check_success_policy(policy: SuccessPolicy, roles: Sequence[Role]) -> None:
    names = [role.name for role in roles]
    if policy.role and policy.role not in names:
        raise Refusal(
            "UnknownRole",
            f"spec.success names role `{policy.role}`, which the job does not have.",
            f"Name one of {', '.join(sorted(names))}.",
            "spec.success.role",
        )
    size = sum(role.replicas for role in roles if policy.role in ("", role.name))
    for rank in policy.ranks:
        if not 0 <= rank < size:
            raise Refusal(
                "UnknownRank",
                f"spec.success names rank {rank}{f' of role {policy.role}' if policy.role else ''}, but there are {size} ranks.",
                f"Name ranks from 0 to {size - 1}.",
                "spec.success.ranks",
            )


# --- failure ----------------------------------------------------------------------------------------------------------


def _check_failure_policies(failure: Failure) -> None:
    validate_number_range(failure.same_step_limit, 0, 1000, "InvalidLimit", "spec.failure.sameStepLimit")
    validate_number_range(failure.backoff_max_seconds, 1, 300, "InvalidSeconds", "spec.failure.backoffMaxSeconds")
    if failure.hang_after_steps:
        validate_number_range(failure.hang_after_steps, 2, 100_000, "InvalidFactor", "spec.failure.hangAfterSteps")
    if failure.straggler.factor and not (math.isfinite(failure.straggler.factor) and failure.straggler.factor > 1):
        raise Refusal(
            "InvalidFactor",
            f"spec.failure.straggler.factor is {failure.straggler.factor:g}. At 1 or below, every rank would be slow.",
            "Give a number above 1, or 0 to switch it off.",
            "spec.failure.straggler.factor",
        )
    if len(failure.rules) > MAX_RULES:
        raise Refusal(
            "TooManyRules",
            f"The job has {len(failure.rules)} failure rules.",
            f"Give at most {MAX_RULES}.",
            "spec.failure.rules",
        )
    names: set[str] = set()
    for index, rule in enumerate(failure.rules):
        _check_failure_rule(rule, f"spec.failure.rules[{index}]")
        if rule.name and rule.name in names:
            raise Refusal(
                "RuleNamedTwice",
                f"Two rules are named `{rule.name}`.",
                "Give each rule its own name.",
                f"spec.failure.rules[{index}].name",
            )
        names.add(rule.name)


def _check_failure_rule(rule: FailureRule, path: str) -> None:
    what = f"Rule `{rule.name}`" if rule.name else f"The rule {path}"
    if not (rule.exit_codes or rule.log_pattern or rule.faults):
        raise Refusal(
            "EmptyRule",
            f"{what} names nothing, so it would match every failure.",
            "Give it exitCodes, logPattern or faults.",
            path,
        )
    for code in rule.exit_codes:
        if code == 0:
            raise Refusal(
                "NotAFailure",
                f"{what} lists exit code 0, which means success.",
                "Take 0 out of exitCodes.",
                f"{path}.exitCodes",
            )
        validate_number_range(code, 1, 255, "InvalidExitCode", f"{path}.exitCodes")
    if rule.exit_codes and rule.faults and not {"ProcessExited", "LossNotFinite"} & set(rule.faults):
        raise Refusal(
            "ContradictoryRule",
            f"{what} asks for an exit code and for a fault without one. Nothing can match both.",
            "Split it into two rules.",
            path,
        )
    if any(not name.strip() for name in rule.faults):
        raise Refusal(
            "EmptyRule", f"{what} names an empty fault.", "Name a reason or class, say Xid79.", f"{path}.faults"
        )
    if rule.action is RuleAction.IGNORE and rule.charge is not None:
        raise Refusal(
            "ContradictoryRule",
            f"{what} ignores failures, so it cannot charge {rule.charge}.",
            f"Use action: {RuleAction.RESTART_IN_PLACE} with charge, or take charge out.",
            f"{path}.charge",
        )
    if rule.log_pattern:
        try:
            check_log_pattern(rule.log_pattern)
        except BadPattern as bad:
            raise Refusal(
                "InvalidPattern",
                f"{what}: the pattern `{rule.log_pattern[:80]}` cannot be used: {bad}.",
                f"Write it in RE2 syntax ({SYNTAX}), without look-ahead, look-behind and back-references.",
                f"{path}.logPattern",
            ) from None


def _check_checkpoint_signal(checkpoint: Checkpoint) -> None:
    name = checkpoint.signal.removeprefix("SIG")
    if checkpoint.signal and name not in SIGNALS:
        raise Refusal(
            "InvalidSignal",
            f"`{checkpoint.signal}` is not a signal that can ask a process for a checkpoint.",
            "Name one such as SIGUSR1 or SIGUSR2, or leave it empty to send none.",
            "spec.checkpoint.signal",
        )

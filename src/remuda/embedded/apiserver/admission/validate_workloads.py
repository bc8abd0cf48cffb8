"""Deployments, ReplicaSets, Jobs, PodDisruptionBudgets and HorizontalPodAutoscalers."""

from __future__ import annotations

from remuda.api.meta import JsonObject
from remuda.api.selectors import label_selector_matches
from remuda.embedded.apiserver.admission import name_syntax
from remuda.embedded.apiserver.admission.field_errors import AdmissionField
from remuda.embedded.apiserver.admission.validate_pods import validate_pod_template

_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_MAX_PARALLEL_INDEXED = 100_000
_MAX_RULES = 20


def validate_deployment(root: AdmissionField, old: JsonObject | None) -> None:
    spec = root["spec"]
    _validate_replicated(spec, old)
    strategy = spec["strategy"]
    rolling = strategy["rollingUpdate"]
    kind = strategy["type"].text()
    if kind == "Recreate":
        if rolling.is_set:
            rolling.forbidden("may not be specified when strategy `type` is 'Recreate'")
    elif kind == "RollingUpdate":
        name_syntax.check_count_or_percent(rolling["maxUnavailable"])
        name_syntax.check_count_or_percent(rolling["maxSurge"])
        if rolling["maxUnavailable"].value in (0, "0%") and rolling["maxSurge"].value in (0, "0%"):
            rolling["maxUnavailable"].invalid("may not be 0 when `maxSurge` is 0")
        unavailable = rolling["maxUnavailable"].value
        if isinstance(unavailable, str) and unavailable.rstrip("%").isdigit() and int(unavailable.rstrip("%")) > 100:
            rolling["maxUnavailable"].invalid("must not be greater than 100%")
    else:
        strategy.unsupported(("Recreate", "RollingUpdate"))
    for field in ("revisionHistoryLimit", "progressDeadlineSeconds"):
        spec[field].not_negative()
    ready, deadline = spec["minReadySeconds"].number() or 0, spec["progressDeadlineSeconds"].number()
    if deadline is not None and deadline <= ready:
        spec["progressDeadlineSeconds"].invalid("must be greater than minReadySeconds")


def validate_replica_set(root: AdmissionField, old: JsonObject | None) -> None:
    _validate_replicated(root["spec"], old)


def _validate_replicated(spec: AdmissionField, old: JsonObject | None) -> None:
    """What Deployments and ReplicaSets share: a selector that is required, fixed, and finds the template's pods."""
    spec["replicas"].not_negative()
    spec["minReadySeconds"].not_negative()
    selector, labels = spec["selector"], spec["template"]["metadata"]["labels"]
    before = len(selector.causes)
    if not selector.is_set:
        selector.required()
        labels.invalid("`selector` does not match template `labels`")
    elif not selector["matchLabels"].mapping() and not selector["matchExpressions"].items():
        selector.invalid("empty selector is invalid for deployment")
    else:
        name_syntax.check_label_selector(selector)
        if len(selector.causes) > before:
            selector.invalid("invalid label selector")
        elif not label_selector_matches(selector.mapping(), labels.mapping()):
            labels.invalid("`selector` does not match template `labels`")
    validate_pod_template(spec["template"], ("Always",))
    deadline = spec["template"]["spec"]["activeDeadlineSeconds"]
    if deadline.is_set:
        deadline.forbidden("activeDeadlineSeconds in ReplicaSet is not Supported")
    if old is not None:
        selector.same_as((old.get("spec") or {}).get("selector"))


def validate_job(root: AdmissionField, old: JsonObject | None) -> None:
    spec = root["spec"]
    for field in (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ):
        spec[field].not_negative()
    _validate_indexed_job(spec)
    restart = spec["template"]["spec"]["restartPolicy"]
    validate_pod_template(spec["template"])
    if restart.text() not in ("Never", "OnFailure") and restart.text() in ("Always",):
        restart.required('valid values: "OnFailure", "Never"')
    if spec["podFailurePolicy"].is_set:
        _validate_pod_failure_policy(spec, restart)
    if spec["successPolicy"].is_set:
        _validate_success_policy(spec)
    replacement = spec["podReplacementPolicy"]
    if spec["podFailurePolicy"].is_set:
        if replacement.text() != "Failed":
            replacement.unsupported(("Failed",))
    else:
        replacement.one_of(("Failed", "TerminatingOrFailed"), required=False)
    selector, labels = spec["selector"], spec["template"]["metadata"]["labels"]
    if old is not None:
        _validate_job_update(spec, old)
    elif selector.is_set and not spec["manualSelector"].flag():
        wanted = {"matchLabels": {"batch.kubernetes.io/controller-uid": root["metadata"]["uid"].text()}}
        if selector.value != wanted:
            selector.invalid("`selector` not auto-generated")
    if not selector.is_set:
        selector.required()
    elif not label_selector_matches(selector.mapping(), labels.mapping()):
        labels.invalid("`selector` does not match template `labels`")


def _validate_indexed_job(spec: AdmissionField) -> None:
    mode = spec["completionMode"]
    mode.one_of(("Indexed", "NonIndexed"))
    if mode.text() == "Indexed":
        if spec["completions"].number() is None:
            spec["completions"].required("when completion mode is Indexed")
        parallel = spec["parallelism"].number() or 0
        if parallel > _MAX_PARALLEL_INDEXED:
            spec["parallelism"].invalid(
                f"must be less than or equal to {_MAX_PARALLEL_INDEXED} when completion mode is Indexed"
            )
    elif spec["backoffLimitPerIndex"].is_set:
        spec["backoffLimitPerIndex"].invalid("requires indexed completion mode")
    if spec["maxFailedIndexes"].is_set and not spec["backoffLimitPerIndex"].is_set:
        spec["backoffLimitPerIndex"].required("when maxFailedIndexes is specified")
    completions, failed = spec["completions"].number(), spec["maxFailedIndexes"].number()
    if completions is not None and failed is not None and failed > completions:
        spec["maxFailedIndexes"].invalid("must be less than or equal to completions")


def _validate_pod_failure_policy(spec: AdmissionField, restart: AdmissionField) -> None:
    if restart.text() != "Never":
        restart.invalid('only "Never" is supported when podFailurePolicy is specified')
    rules = spec["podFailurePolicy"]["rules"]
    if len(rules.items()) > _MAX_RULES:
        rules.too_many(f"must have at most {_MAX_RULES} items")
    for rule in rules.each():
        action = rule["action"]
        action.one_of(_ACTIONS)
        if action.text() == "FailIndex" and not spec["backoffLimitPerIndex"].is_set:
            action.invalid("requires the backoffLimitPerIndex to be set")
        codes, conditions = rule["onExitCodes"], rule["onPodConditions"]
        if codes.is_set and conditions.items():
            rule.invalid("specifying both OnExitCodes and OnPodConditions is not supported")
        elif not codes.is_set and not conditions.items():
            rule.invalid("specifying one of OnExitCodes and OnPodConditions is required")
        if codes.is_set:
            _validate_exit_codes(codes, spec)
        for condition in conditions.each():
            if not name_syntax.is_qualified_name(condition["type"].text()):
                condition["type"].invalid("not a valid condition type", condition["type"].value or "")
            condition["status"].one_of(("False", "True", "Unknown"))


def _validate_exit_codes(codes: AdmissionField, spec: AdmissionField) -> None:
    operator, values = codes["operator"], codes["values"]
    operator.one_of(("In", "NotIn"))
    name = codes["containerName"]
    pod = spec["template"]["spec"]
    known = [c["name"].text() for f in ("containers", "initContainers") for c in pod[f].each()]
    if name.text() and name.text() not in known:
        name.invalid("must be one of the container or initContainer names in the pod template")
    numbers = [value.number() for value in values.each()]
    if not numbers:
        values.invalid("at least one value is required")
    for value in values.each():
        if operator.text() == "In" and value.number() == 0:
            value.invalid("must not be 0 for the In operator")
    if len(set(numbers)) != len(numbers):
        for index, value in enumerate(values.each()):
            if value.number() in numbers[:index]:
                value.duplicate()
    elif numbers != sorted(n or 0 for n in numbers):
        values.invalid("must be ordered")


def _validate_success_policy(spec: AdmissionField) -> None:
    if spec["completionMode"].text() != "Indexed":
        spec["successPolicy"].invalid("requires indexed completion mode")
        return
    rules = spec["successPolicy"]["rules"]
    if not rules.items():
        rules.required("at least one rules must be specified when the successPolicy is specified")
    for rule in rules.each():
        if not rule["succeededCount"].is_set and not rule["succeededIndexes"].is_set:
            rule.required("at least one of succeededCount or succeededIndexes must be specified")
        count, completions = rule["succeededCount"].number(), spec["completions"].number() or 0
        if count is not None and count < 1:
            rule["succeededCount"].invalid(
                "must be greater than 0" if count == 0 else "must be greater than or equal to 0"
            )
        elif count is not None and count > completions:
            rule["succeededCount"].invalid("must be less than or equal to the number of specified completions")


def _validate_job_update(spec: AdmissionField, old: JsonObject) -> None:
    before = old.get("spec") or {}
    for field in (
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "successPolicy",
        "managedBy",
    ):
        spec[field].same_as(before.get(field))
    completions = spec["completions"]
    if completions.value != before.get("completions"):
        # An elastic Indexed Job may be resized, but only together with its parallelism.
        is_elastic = spec["completionMode"].text() == "Indexed" and completions.value == spec["parallelism"].value
        if not is_elastic:
            completions.invalid("field is immutable")
    now, was = spec["template"], before.get("template")
    if before.get("suspend") and not (old.get("status") or {}).get("startTime"):
        return  # a Job that never started may still change where its pods go
    now.same_as(was)


def validate_disruption_budget(root: AdmissionField, old: JsonObject | None) -> None:
    spec = root["spec"]
    least, most = spec["minAvailable"], spec["maxUnavailable"]
    if least.is_set and most.is_set:
        spec.invalid("minAvailable and maxUnavailable cannot be both set")
    for at in (least, most):
        name_syntax.check_count_or_percent(at)
        if isinstance(at.value, str) and at.value.rstrip("%").isdigit() and int(at.value.rstrip("%")) > 100:
            at.invalid("must not be greater than 100%")
    name_syntax.check_label_selector(spec["selector"])
    spec["unhealthyPodEvictionPolicy"].one_of(("AlwaysAllow", "IfHealthyBudget"), required=False)


def validate_autoscaler(root: AdmissionField, old: JsonObject | None) -> None:
    spec = root["spec"]
    least, most = spec["minReplicas"].number(), spec["maxReplicas"].number() or 0
    if least is not None and least < 0:
        spec["minReplicas"].invalid("must be greater than or equal to 0")
    if most < 1:
        if not most:
            spec["maxReplicas"].required()
        spec["maxReplicas"].invalid("must be greater than 0", most)
    elif least is not None and most < least:
        spec["maxReplicas"].invalid("must be greater than or equal to `minReplicas`")
    target = spec["scaleTargetRef"]
    for field in ("kind", "name"):
        if not target[field].text():
            target[field].required()
    if not target["apiVersion"].text() and not target["kind"].text():
        target["apiVersion"].invalid("must be the group and version of the target", "")

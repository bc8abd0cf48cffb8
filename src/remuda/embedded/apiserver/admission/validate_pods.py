"""Pods and pod templates: required fields, names, values, and what of a pod may change after its creation."""

from __future__ import annotations

import copy
from typing import Any

from remuda.api.meta import JsonObject
from remuda.api.names import GROUP
from remuda.embedded.apiserver.admission import name_syntax
from remuda.embedded.apiserver.admission.field_errors import AdmissionField, are_admitted_values_equal
from remuda.embedded.apiserver.admission.validate_placement import validate_placement

RESTART = ("Always", "Never", "OnFailure")
_DNS = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_PULL = ("Always", "IfNotPresent", "Never")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MESSAGE = ("File", "FallbackToLogsOnError")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")


def validate_pod(root: AdmissionField, old: JsonObject | None) -> None:
    if old is None:
        validate_pod_spec(root["spec"], needs_image=not _is_training_pod(root))
    else:
        _validate_pod_update(root, old)


def _is_training_pod(root: AdmissionField) -> bool:
    """A TrainingJob's pod may run the machine's own programs, without an image."""
    return any(
        owner["kind"].text() == "TrainingJob" and owner["apiVersion"].text().startswith(f"{GROUP}/")
        for owner in root["metadata"]["ownerReferences"].each()
    )


def validate_pod_template(at: AdmissionField, restart: tuple[str, ...] = RESTART) -> None:
    """The pod template of a workload whose pods may have one of these restart policies."""
    name_syntax.check_label_map(at["metadata"]["labels"])
    name_syntax.check_annotation_map(at["metadata"]["annotations"])
    validate_pod_spec(at["spec"])
    policy = at["spec"]["restartPolicy"]
    if policy.text() in RESTART and policy.text() not in restart:
        policy.unsupported(restart)


def validate_pod_spec(spec: AdmissionField, *, needs_image: bool = True) -> None:
    volumes = _validate_volumes(spec["volumes"])
    names: set[str] = set()
    host_ports: set[tuple[int, str]] = set()
    if not spec["containers"].items():
        spec["containers"].required()
    for field in ("containers", "initContainers"):
        for container in spec[field].each():
            _validate_container(container, names, volumes, host_ports, is_init=field == "initContainers")
            if needs_image and not container["image"].text():
                container["image"].required()
    spec["restartPolicy"].one_of(RESTART)
    spec["dnsPolicy"].one_of(_DNS)
    if spec["dnsPolicy"].text() == "None" and not spec["dnsConfig"]["nameservers"].items():
        spec["dnsConfig"].required("must provide `dnsConfig` when `dnsPolicy` is None")
    name_syntax.check_label_map(spec["nodeSelector"])
    deadline = spec["activeDeadlineSeconds"]
    number = deadline.number()
    if number is not None and not 1 <= number <= 2**31 - 1:
        deadline.invalid("must be between 1 and 2147483647, inclusive")
    for field in ("serviceAccountName", "nodeName", "schedulerName", "priorityClassName", "runtimeClassName"):
        if spec[field].text():
            name_syntax.check_subdomain(spec[field])
    for field in ("hostname", "subdomain"):
        if spec[field].text():
            name_syntax.check_admitted_dns_label(spec[field])
    for secret in spec["imagePullSecrets"].each():
        if not secret["name"].text():
            secret["name"].required()
    for toleration in spec["tolerations"].each():
        _validate_toleration(toleration)
    validate_placement(spec)


def _validate_volumes(at: AdmissionField) -> set[str]:
    names: set[str] = set()
    for volume in at.each():
        name = volume["name"]
        name_syntax.check_admitted_dns_label(name)
        if name.text() in names:
            name.duplicate()
        names.add(name.text())
        sources = [key for key, value in volume.mapping().items() if key != "name" and value is not None]
        if len(sources) > 1:
            volume[sources[1]].forbidden("may not specify more than 1 volume type")
        if volume["hostPath"].is_set and not volume["hostPath"]["path"].text():
            volume["hostPath"]["path"].required()
        if volume["secret"].is_set and not volume["secret"]["secretName"].text():
            volume["secret"]["secretName"].required()
        if volume["configMap"].is_set and not volume["configMap"]["name"].text():
            volume["configMap"]["name"].required()
        if volume["persistentVolumeClaim"].is_set and not volume["persistentVolumeClaim"]["claimName"].text():
            volume["persistentVolumeClaim"]["claimName"].required()
    return names


def _validate_container(
    at: AdmissionField, names: set[str], volumes: set[str], host_ports: set[tuple[int, str]], *, is_init: bool
) -> None:
    name, image = at["name"], at["image"]
    name_syntax.check_admitted_dns_label(name)
    if name.text() in names:
        name.duplicate()
    if name.text():
        names.add(name.text())
    if image.text() != image.text().strip():
        image.invalid("must not have leading or trailing whitespace")
    at["imagePullPolicy"].one_of(_PULL)
    at["terminationMessagePolicy"].one_of(_MESSAGE)
    _validate_container_ports(at["ports"], host_ports)
    for variable in at["env"].each():
        _validate_env(variable)
    mounts: set[str] = set()
    for mount in at["volumeMounts"].each():
        if not mount["name"].text():
            mount["name"].required()
        elif mount["name"].text() not in volumes:
            mount["name"].missing()
        path = mount["mountPath"]
        if not path.text():
            path.required()
        elif path.text() in mounts:
            path.invalid("must be unique")
        mounts.add(path.text())
    _validate_resources(at["resources"])
    if not is_init or at["restartPolicy"].text() == "Always":
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if at[probe].is_set:
                _validate_probe(at[probe], must_be_one=probe != "readinessProbe")


def _validate_container_ports(at: AdmissionField, host_ports: set[tuple[int, str]]) -> None:
    names: set[str] = set()
    for port in at.each():
        if port["name"].text():
            name_syntax.check_port_name(port["name"])
            if port["name"].text() in names:
                port["name"].duplicate()
            names.add(port["name"].text())
        name_syntax.check_admitted_port_number(port["containerPort"])
        host = port["hostPort"].number()
        if host:
            name_syntax.check_admitted_port_number(port["hostPort"])
            if (host, port["protocol"].text()) in host_ports:
                port["hostPort"].duplicate(f"{port['protocol'].text()}//{host}")
            host_ports.add((host, port["protocol"].text()))
        port["protocol"].one_of(_PROTOCOLS)


def _validate_env(at: AdmissionField) -> None:
    name_syntax.check_env_name(at["name"])
    source = at["valueFrom"]
    if not source.is_set:
        at["value"].text()
        return
    given = [key for key, value in source.mapping().items() if value is not None]
    if not given:
        source.invalid("must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`", "")
    elif len(given) > 1:
        source.invalid("may not have more than one field specified at a time", "")
    elif at["value"].text():
        source.invalid("may not be specified when `value` is not empty", "")
    for ref in ("configMapKeyRef", "secretKeyRef"):
        if source[ref].is_set and not source[ref]["key"].text():
            source[ref]["key"].required()


def _validate_resources(at: AdmissionField) -> None:
    limits, requests = at["limits"], at["requests"]
    for amounts in (limits, requests):
        for resource in amounts.mapping():
            amount = amounts.key(resource)
            _validate_resource_name(amount, resource)
            value = name_syntax.check_admitted_quantity(amount)
            if value is not None and value < 0:
                amount.invalid("must be greater than or equal to 0")
            if value is not None and name_syntax.is_extended_resource(resource) and value.denominator != 1:
                amount.invalid("must be an integer")
    for resource in requests.mapping():
        asked = requests.key(resource)
        if resource not in limits.mapping():
            if name_syntax.is_extended_resource(resource):
                limits.required(f"Limit must be set for non overcommitable resources: {resource}")
            continue
        mine: list[Any] = []
        top, least = (
            name_syntax.check_admitted_quantity(AdmissionField(limits.mapping()[resource], "", mine)),
            name_syntax.check_admitted_quantity(AdmissionField(asked.value, "", mine)),
        )
        if top is None or least is None:
            continue
        if name_syntax.is_extended_resource(resource) and least != top:
            requests.invalid(f"must be equal to {resource} limit of {limits.mapping()[resource]}", asked.value)
        elif least > top:
            requests.invalid(
                f"must be less than or equal to {resource} limit of {limits.mapping()[resource]}", asked.value
            )


def _validate_resource_name(at: AdmissionField, resource: str) -> None:
    if not name_syntax.is_qualified_name(resource):
        at.invalid("must be a valid resource name", resource)
    elif "/" not in resource and resource not in name_syntax.NATIVE and not resource.startswith("hugepages-"):
        at.invalid("must be a standard resource for containers, or a fully qualified resource name", resource)


def _validate_probe(at: AdmissionField, *, must_be_one: bool) -> None:
    given = [handler for handler in _HANDLERS if at[handler].is_set]
    if not given:
        at.required("must specify a handler type")
    for extra in given[1:]:
        at[extra].forbidden("may not specify more than 1 handler type")
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        at[field].not_negative()
    if must_be_one and at["successThreshold"].number() not in (None, 1):
        at["successThreshold"].invalid("must be 1")
    if at["exec"].is_set and not at["exec"]["command"].items():
        at["exec"]["command"].required()
    for handler in ("httpGet", "tcpSocket"):
        if at[handler].is_set:
            name_syntax.check_port_number_or_name(at[handler]["port"])


def _validate_toleration(at: AdmissionField) -> None:
    key, operator, effect = at["key"].text(), at["operator"], at["effect"]
    if key and not name_syntax.is_qualified_name(key):
        at["key"].invalid("not a valid taint key")
    if not key and operator.text() != "Exists":
        operator.invalid('operator must be Exists when `key` is empty, which means "match all values and all keys"')
    if at["tolerationSeconds"].number() is not None and effect.text() != "NoExecute":
        effect.invalid("effect must be 'NoExecute' when `tolerationSeconds` is set")
    if operator.text() == "Exists" and at["value"].text():
        operator.invalid("value must be empty when `operator` is 'Exists'")
    elif operator.text() not in ("", "Exists", "Equal", "Lt", "Gt"):
        operator.unsupported(("Equal", "Exists"))
    if effect.text() and effect.text() not in _EFFECTS:
        effect.unsupported(_EFFECTS)


def _validate_pod_update(root: AdmissionField, old: JsonObject) -> None:
    """Of a pod's spec only images, activeDeadlineSeconds (shorter), tolerations (more) and the grace of a negative one."""
    spec, before = root["spec"], old.get("spec") or {}
    needs_image = not _is_training_pod(root)
    for field in ("containers", "initContainers"):
        if len(spec[field].items()) != len(before.get(field) or ()):
            spec[field].forbidden("pod updates may not add or remove containers")
            return
        for container in spec[field].each():
            if needs_image and not container["image"].text():
                container["image"].required()
    _validate_shorter_deadline(spec["activeDeadlineSeconds"], before.get("activeDeadlineSeconds"))
    tolerations = before.get("tolerations") or []
    kept = [t for t in spec["tolerations"].items() if isinstance(t, dict)]
    if any(not _keeps_toleration(toleration, kept) for toleration in tolerations):
        spec["tolerations"].forbidden("existing toleration can not be modified except its tolerationSeconds")
    for toleration in spec["tolerations"].each():
        _validate_toleration(toleration)
    if before.get("schedulingGates") is not None or spec["schedulingGates"].is_set:
        gates = [g.get("name") for g in before.get("schedulingGates") or ()]
        if any(g["name"].text() not in gates for g in spec["schedulingGates"].each()):
            spec["schedulingGates"].forbidden("only deletion is allowed, but found new scheduling gates")
    if not are_admitted_values_equal(_immutable_pod_spec(spec.mapping()), _immutable_pod_spec(before)):
        spec.forbidden(
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        )


def _validate_shorter_deadline(at: AdmissionField, before: int | None) -> None:
    number = at.number()
    if number is None:
        if before is not None:
            at.invalid("must not update from a positive integer to nil value", None)
    elif number < 0:
        at.invalid("must be greater than or equal to 0")
    elif before is not None and number > before:
        at.invalid("must be less than or equal to previous value")


def _keeps_toleration(toleration: JsonObject, kept: list[JsonObject]) -> bool:
    def plain(value: JsonObject) -> JsonObject:
        return {k: v for k, v in value.items() if k != "tolerationSeconds" and v not in ("", None)}

    return any(plain(other) == plain(toleration) for other in kept)


def _immutable_pod_spec(spec: JsonObject) -> JsonObject:
    fixed = copy.deepcopy(spec)
    for field in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        fixed.pop(field, None)
    for field in ("containers", "initContainers"):
        for container in fixed.get(field) or ():
            if isinstance(container, dict):
                container.pop("image", None)
    return fixed

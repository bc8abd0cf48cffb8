"""Services, ConfigMaps, Secrets, claims, quotas, limit ranges, priority classes, leases and endpoint slices."""

from __future__ import annotations

import base64
import binascii

from remuda.api.errors import BadRequest
from remuda.api.meta import JsonObject, wire_map_or_empty
from remuda.embedded.apiserver.admission import name_syntax
from remuda.embedded.apiserver.admission.field_errors import AdmissionField, are_admitted_values_equal

_MAX_DATA = 1024 * 1024
_SYSTEM_CRITICAL = 2_000_000_000
_HIGHEST_USER = 1_000_000_000
_SYSTEM_CLASSES = {"system-node-critical": _SYSTEM_CRITICAL + 1000, "system-cluster-critical": _SYSTEM_CRITICAL}
_ACCESS = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_MAX_SCOPES, _MAX_CLASSES = 20, 100  # of a quota; priority classes that one scope may name
_LIMIT_TYPES = ("Pod", "Container", "PersistentVolumeClaim")


def validate_service(root: AdmissionField, old: JsonObject | None) -> None:
    name, spec = root["metadata"]["name"], root["spec"]
    if old is None:
        name_syntax.check_admitted_dns_label(name)
    kind, address = spec["type"].text(), spec["clusterIP"]
    spec["type"].one_of(_TYPES)
    is_headless = address.text() == "None"
    if not spec["ports"].items() and not is_headless and kind != "ExternalName":
        spec["ports"].required()
    if kind == "ExternalName":
        if address.text():
            spec["clusterIPs"].forbidden("may not be set when type is ExternalName")
        if not spec["externalName"].text():
            spec["externalName"].required("may not be empty for type ExternalName")
        elif not name_syntax.has_subdomain_name_syntax(spec["externalName"].text().rstrip(".")):
            spec["externalName"].invalid("a lowercase RFC 1123 subdomain is needed")
    elif kind in ("LoadBalancer", "NodePort") and is_headless:
        _first_cluster_ip(spec).invalid("may not be set to 'None' for LoadBalancer services", "None")
    if address.text() and not is_headless and not name_syntax.is_ip_address(address.text()):
        _first_cluster_ip(spec).invalid("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)", address.value)
    _validate_service_ports(spec["ports"], kind)
    name_syntax.check_label_map(spec["selector"])
    spec["sessionAffinity"].one_of(("ClientIP", "None"))
    if spec["internalTrafficPolicy"].is_set:
        spec["internalTrafficPolicy"].one_of(("Cluster", "Local"))
    if old is not None:
        before = old.get("spec") or {}
        kept = before.get("clusterIP")
        if kept and "ExternalName" not in (kind, before.get("type")) and address.value != kept:
            _first_cluster_ip(spec).invalid("may not change once set", [address.value])


def _first_cluster_ip(spec: AdmissionField) -> AdmissionField:
    return next(spec["clusterIPs"].each(), spec["clusterIPs"])


def _validate_service_ports(ports: AdmissionField, kind: str) -> None:
    names: set[str] = set()
    seen: set[tuple[int | None, str]] = set()
    many = len(ports.items()) > 1
    for port in ports.each():
        name = port["name"]
        if not name.text():
            if many:
                name.required()
        else:
            if not name_syntax.is_admissible_dns_label(name.text()):
                name.invalid("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'")
            if name.text() in names:
                name.duplicate()
            names.add(name.text())
        number = port["port"].number()
        if number is None or not 1 <= number <= 65535:
            port["port"].invalid("must be between 1 and 65535, inclusive", number or 0)
        port["protocol"].one_of(("SCTP", "TCP", "UDP"))
        if port["targetPort"].is_set:
            name_syntax.check_port_number_or_name(port["targetPort"])
        if kind == "ClusterIP" and port["nodePort"].number():
            port["nodePort"].forbidden("may not be used when `type` is 'ClusterIP'")
        at = (number, port["protocol"].text())
        if at in seen:
            port.duplicate({"port": number, "protocol": at[1]})
        seen.add(at)


def validate_config_map(root: AdmissionField, old: JsonObject | None) -> None:
    data, binary = root["data"], root["binaryData"]
    size = 0
    for key in data.mapping():
        name_syntax.check_admitted_config_key(data, key)
        size += len(data.key(key).text())
        if key in binary.mapping():
            data.key(key).invalid("duplicate of key present in binaryData", key)
    for key in binary.mapping():
        name_syntax.check_admitted_config_key(binary, key)
        size += len(_base64_field(binary.key(key)))
    if size > _MAX_DATA:
        AdmissionField(None, "[]", root.causes).too_long(f"may not be more than {_MAX_DATA} bytes")
    if old is not None and old.get("immutable") is True:
        _validate_immutable_data(root, old, ("data", "binaryData"))


def validate_secret(root: AdmissionField, old: JsonObject | None) -> None:
    data, kind = root["data"], root["type"].text()
    size = 0
    for key in data.mapping():
        name_syntax.check_admitted_config_key(data, key)
        size += len(_base64_field(data.key(key)))
    if size > _MAX_DATA:
        data.too_long(f"may not be more than {_MAX_DATA} bytes")
    if kind == "kubernetes.io/tls":
        for key in ("tls.crt", "tls.key"):
            if key not in data.mapping():
                data.key(key).required()
    elif kind == "kubernetes.io/dockerconfigjson" and ".dockerconfigjson" not in data.mapping():
        data.key(".dockerconfigjson").required()
    if old is not None:
        root["type"].same_as(old.get("type"))
        if old.get("immutable") is True:
            _validate_immutable_data(root, old, ("data",))


def _base64_field(at: AdmissionField) -> bytes:
    try:
        return base64.b64decode(at.text(), validate=True)
    except binascii.Error:
        raise BadRequest(f"{at.path}: illegal base64 data") from None


def _validate_immutable_data(root: AdmissionField, old: JsonObject, fields: tuple[str, ...]) -> None:
    if root["immutable"].value is not True:
        root["immutable"].forbidden("field is immutable when `immutable` is set")
    for field in fields:
        if not are_admitted_values_equal(root[field].value, old.get(field)):
            root[field].forbidden("field is immutable when `immutable` is set")


def validate_claim(root: AdmissionField, old: JsonObject | None) -> None:
    spec = root["spec"]
    modes = spec["accessModes"]
    if not modes.items():
        modes.required("at least 1 access mode is required")
    for mode in modes.each():
        if mode.text() not in _ACCESS:
            modes.unsupported(_ACCESS)
    # The real server names this field without `requests`.
    storage = AdmissionField(spec["resources"]["requests"].mapping(), spec["resources"].path, root.causes).key(
        "storage"
    )
    if not storage.is_set:
        storage.required()
    else:
        value = name_syntax.check_admitted_quantity(storage)
        if value is not None and value <= 0:
            storage.invalid("must be greater than zero")
    spec["volumeMode"].one_of(("Block", "Filesystem"))
    if old is not None:
        before = {k: v for k, v in (old.get("spec") or {}).items() if k not in ("resources", "volumeName")}
        now = {k: v for k, v in spec.mapping().items() if k not in ("resources", "volumeName")}
        if not are_admitted_values_equal(now, before):
            spec.forbidden("spec is immutable after creation except resources.requests for bound claims")


def validate_resource_quota(root: AdmissionField, old: JsonObject | None) -> None:
    hard = root["spec"]["hard"]
    for name in hard.mapping():
        amount = hard.key(name)
        if not name_syntax.is_qualified_name(name):
            amount.invalid("must be a valid resource name", name)
        elif "/" not in name and not _is_admissible_quota_name(name):
            amount.invalid("must be a standard resource for quota, or a fully qualified resource name", name)
        value = name_syntax.check_admitted_quantity(amount)
        if value is not None and value < 0:
            amount.invalid("must be greater than or equal to 0")
    before = wire_map_or_empty((old or {}).get("spec"))
    if any(root["spec"].mapping().get(name) != before.get(name) for name in ("scopes", "scopeSelector")):
        _check_few_quota_scopes(root["spec"])


def _check_few_quota_scopes(spec: AdmissionField) -> None:
    """They are asked about every pod that is made."""
    terms = spec["scopeSelector"]["matchExpressions"]
    for found, most in (
        (spec["scopes"], _MAX_SCOPES),
        (terms, _MAX_SCOPES),
        *((t["values"], _MAX_CLASSES) for t in terms.each()),
    ):
        if len(found.items()) > most:
            found.too_many(f"must have at most {most} items")


def _is_admissible_quota_name(name: str) -> bool:
    counted = ("resourcequotas", "replicationcontrollers", "services.loadbalancers", "services.nodeports")
    bare = name.removeprefix("requests.").removeprefix("limits.")
    return (
        bare in name_syntax.NATIVE or name in name_syntax.WHOLE_PODS or name in counted or bare.startswith("hugepages-")
    )


def validate_limit_range(root: AdmissionField, old: JsonObject | None) -> None:
    seen: set[str] = set()
    for item in root["spec"]["limits"].each():
        kind = item["type"]
        if kind.text() not in _LIMIT_TYPES and not ("/" in kind.text() and name_syntax.is_qualified_name(kind.text())):
            kind.invalid("must be a standard limit type or fully qualified")
        if kind.text() in seen:
            kind.duplicate()
        seen.add(kind.text())
        for field in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio"):
            for name in item[field].mapping():
                name_syntax.check_admitted_quantity(item[field].key(name))
        if kind.text() == "Pod":
            for field in ("default", "defaultRequest"):
                if item[field].mapping():
                    item[field].forbidden("may not be specified when `type` is 'Pod'")
        _validate_limit_order(item, ("min", "defaultRequest", "default", "max"))


def _validate_limit_order(item: AdmissionField, fields: tuple[str, ...]) -> None:
    """min <= defaultRequest <= default <= max, for those that are given."""
    names = {name for field in fields for name in item[field].mapping()}
    for name in sorted(names):
        known = [
            (field, value)
            for field in fields
            if name in item[field].mapping()
            and (value := name_syntax.check_admitted_quantity(AdmissionField(item[field].mapping()[name], "", [])))
        ]
        for index, (field, value) in enumerate(known):
            for above, most in known[index + 1 :]:
                if value > most:
                    item[field].key(name).invalid(f"{field} value is greater than {above} value")


def validate_priority_class(root: AdmissionField, old: JsonObject | None) -> None:
    name, value = root["metadata"]["name"].text(), root["value"].number() or 0
    if name.startswith("system-"):
        if _SYSTEM_CLASSES.get(name) != value:
            root["metadata"]["name"].forbidden(
                "priority class names with 'system-' prefix are reserved for system use only"
            )
    elif value > _HIGHEST_USER:
        root["value"].forbidden(f"maximum allowed value of a user defined priority is {_HIGHEST_USER}")
    root["preemptionPolicy"].one_of(("Never", "PreemptLowerPriority"))
    if old is not None:
        if value != (old.get("value") or 0):
            root["value"].forbidden("may not be changed in an update.")
        if root["preemptionPolicy"].value != old.get("preemptionPolicy"):
            root["preemptionPolicy"].invalid("field is immutable")


def validate_lease(root: AdmissionField, old: JsonObject | None) -> None:
    spec = root["spec"]
    seconds = spec["leaseDurationSeconds"].number()
    if seconds is not None and seconds <= 0:
        spec["leaseDurationSeconds"].invalid("must be greater than 0")
    spec["leaseTransitions"].not_negative()


def validate_endpoint_slice(root: AdmissionField, old: JsonObject | None) -> None:
    kind = root["addressType"]
    kind.one_of(("FQDN", "IPv4", "IPv6"))
    for endpoint in root["endpoints"].each():
        if not endpoint["addresses"].items():
            endpoint["addresses"].required("must contain at least 1 address")
    if old is not None:
        kind.same_as(old.get("addressType"))

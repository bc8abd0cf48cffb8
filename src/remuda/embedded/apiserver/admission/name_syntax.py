"""The spelling of names, labels, ports, addresses and quantities; each function notes what is wrong at the place it is given."""

from __future__ import annotations

import ipaddress
import re
from fractions import Fraction

from remuda.api.errors import Refusal
from remuda.api.kubernetes.quantity import parse_quantity
from remuda.embedded.apiserver.admission.field_errors import AdmissionField
from remuda.embedded.apiserver.naming import DNS_LABEL, SUBDOMAIN

_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_EXTENDED = re.compile(r"[^/]+/[^/]+")
_MAX_ANNOTATIONS = 256 * 1024

WHOLE_PODS = frozenset({"pods", "services", "secrets", "configmaps", "persistentvolumeclaims"})
NATIVE = frozenset({"cpu", "memory", "storage", "ephemeral-storage"})


def is_admissible_dns_label(text: str) -> bool:
    return len(text) <= 63 and DNS_LABEL.fullmatch(text) is not None


def has_subdomain_name_syntax(text: str) -> bool:
    return len(text) <= 253 and SUBDOMAIN.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """`name` or `prefix/name`: label and annotation keys, resource names, finalizers."""
    prefix, slash, name = text.rpartition("/")
    if slash and not has_subdomain_name_syntax(prefix):
        return False
    return 0 < len(name) <= 63 and _QUALIFIED.fullmatch(name) is not None


def is_admissible_label_value(text: str) -> bool:
    return len(text) <= 63 and _LABEL_VALUE.fullmatch(text) is not None


def check_admitted_dns_label(at: AdmissionField) -> None:
    value = at.text()
    if not value:
        at.required()
    elif not is_admissible_dns_label(value):
        at.invalid("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'")


def check_subdomain(at: AdmissionField) -> None:
    value = at.text()
    if not value:
        at.required()
    elif not has_subdomain_name_syntax(value):
        at.invalid("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'")


def check_label_map(at: AdmissionField) -> None:
    for key, value in at.mapping().items():
        if not is_qualified_name(key):
            at.invalid("a label key is a name of at most 63 characters, with an optional DNS prefix and '/'", key)
        if not isinstance(value, str):
            at.key(key).text()
        elif not is_admissible_label_value(value):
            at.invalid("a label value has at most 63 letters, digits, '-', '_' and '.'", value)


def check_annotation_map(at: AdmissionField) -> None:
    size = 0
    for key, value in at.mapping().items():
        if not is_qualified_name(key.lower()):
            at.invalid("an annotation key is a name of at most 63 characters, with an optional DNS prefix and '/'", key)
        size += len(key) + len(at.key(key).text() if not isinstance(value, str) else value)
    if size > _MAX_ANNOTATIONS:
        at.too_long(f"may not be more than {_MAX_ANNOTATIONS} bytes")


def check_label_selector(at: AdmissionField) -> None:
    check_label_map(at["matchLabels"])
    for requirement in at["matchExpressions"].each():
        operator = requirement["operator"]
        values = requirement["values"]
        if operator.text() in ("In", "NotIn"):
            if not values.items():
                values.required("must be specified when `operator` is 'In' or 'NotIn'")
        elif operator.text() in ("Exists", "DoesNotExist"):
            if values.items():
                values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        else:
            operator.invalid("not a valid selector operator")
        key = requirement["key"]
        if not is_qualified_name(key.text()):
            key.invalid("not a valid label key")
        for value in values.each():
            if not is_admissible_label_value(value.text()):
                value.invalid("not a valid label value")


def check_env_name(at: AdmissionField) -> None:
    name = at.text()
    if not name:
        at.required()
    elif not _ENV_NAME.fullmatch(name):
        at.invalid("a valid environment variable name consists of printable ASCII characters other than '='")


def check_admitted_config_key(at: AdmissionField, key: str) -> None:
    """A key of a ConfigMap or Secret: a file name."""
    if len(key) > 253 or not _CONFIG_KEY.fullmatch(key) or key in (".", ".."):
        at.key(key).invalid("a valid config key has only letters, digits, '-', '_' and '.'", key)


def check_admitted_port_number(at: AdmissionField) -> None:
    number = at.number()
    if number is None:
        at.required()
    elif not 1 <= number <= 65535:
        at.invalid("must be between 1 and 65535, inclusive")


def check_port_name(at: AdmissionField) -> None:
    name = at.text()
    if len(name) > 15 or not DNS_LABEL.fullmatch(name) or "--" in name or not re.search("[a-z]", name):
        at.invalid("must have at most 15 lower case letters, digits and '-', and at least one letter")


def check_port_number_or_name(at: AdmissionField) -> None:
    if isinstance(at.value, str):
        check_port_name(at)
    else:
        number = at.number()
        if number is None or not 1 <= number <= 65535:
            at.invalid("must be between 1 and 65535, inclusive", number or 0)


def is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def check_count_or_percent(at: AdmissionField) -> None:
    value = at.value
    if value is None:
        return
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]+%", value):
            at.invalid("a valid percent string must be a numeric string followed by an ending '%'")
    else:
        at.not_negative()


def check_admitted_quantity(at: AdmissionField) -> Fraction | None:
    """The value; an unreadable one is noted."""
    if not isinstance(at.value, (str, int)) or isinstance(at.value, bool):
        at.text()
        at.invalid("quantities must be numbers with a unit")
        return None
    try:
        return parse_quantity(at.value)
    except Refusal:
        at.invalid("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
        return None


def is_extended_resource(resource: str) -> bool:
    """A resource that devices provide: `vendor.com/thing`, not one of Kubernetes' own."""
    if resource.startswith("requests.") or not _EXTENDED.fullmatch(resource):
        return False
    return not resource.split("/")[0].endswith("kubernetes.io")

"""Names objects may have (RFC 1123, as Kubernetes checks them), and names made from `generateName`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from remuda.api.errors import Invalid, StatusCause, StatusDetails
from remuda.api.meta import Resource

SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes': no vowels, so no words; no 0, 1 and 3 that read like letters
_SUFFIX = 5
_MAX_GENERATED_BASE = 63 - _SUFFIX


def check_api_object_naming(resource: Resource, name: str) -> None:
    if resource.plural == "namespaces" and not resource.group:
        _check_rfc1123(resource, name, "metadata.name", name, DNS_LABEL, 63)
    else:
        _check_rfc1123(resource, name, "metadata.name", name, SUBDOMAIN, 253)


def check_api_namespace_naming(resource: Resource, name: str, namespace: str) -> None:
    _check_rfc1123(resource, name, "metadata.namespace", namespace, DNS_LABEL, 63)


def _check_rfc1123(resource: Resource, name: str, field: str, value: str, pattern: re.Pattern[str], limit: int) -> None:
    if not value:
        raise served_field_invalid(resource, name, field, "Required value: name or generateName is required")
    if len(value) > limit:
        raise served_field_invalid(
            resource, name, field, f'Invalid value: "{value[:64]}...": must be no more than {limit} bytes'
        )
    if not pattern.fullmatch(value):
        dots = "" if pattern is DNS_LABEL else " or '.'"
        raise served_field_invalid(
            resource,
            name,
            field,
            f"Invalid value: \"{value}\": use lower-case letters, digits, '-'{dots}, "
            "starting and ending with a letter or digit (RFC 1123)",
        )


def served_field_invalid(resource: Resource, name: str, field: str, what: str) -> Invalid:
    """Kubernetes' wording: the object, then the field, then what is wrong with it."""
    return served_fields_invalid(resource, name, [(field, what)])


def served_fields_invalid(resource: Resource, name: str, faults: Sequence[tuple[str, str]]) -> Invalid:
    """Several (field, what) at once, each also a cause of its own for programs."""
    return served_object_invalid(
        resource, name, [StatusCause(_api_cause_reason(what), what, field) for field, what in faults]
    )


def served_object_invalid(resource: Resource, name: str, causes: list[StatusCause]) -> Invalid:
    causes = causes[:_MAX_CAUSES]  # nobody reads more, and there may be as many as the object has values
    listed = [f"{cause.field}: {cause.message}" for cause in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    return Invalid(
        f'{_qualified_kind(resource)} "{name}" is invalid: {text}',
        details=StatusDetails(name, resource.kind, resource.group, causes),
    )


def _api_cause_reason(what: str) -> str:
    if " in body must be of type " in what:
        return "FieldValueTypeInvalid"
    return _REASONS.get(what.partition(":")[0], _OTHER)


def served_request_option_invalid(options: str, field: str, what: str) -> Invalid:
    """A parameter of a request, which Kubernetes sees as a field of an object of its own: ListOptions, PatchOptions, ..."""
    return served_fields_invalid(Resource("meta.k8s.io", "v1", options, ""), "", [(field, what)])


def _qualified_kind(resource: Resource) -> str:
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


_MAX_CAUSES = 100

# Field errors begin with one of these words, and programs find its machine form in the causes.
_OTHER = "FieldValueInvalid"
_REASONS = {
    "Required value": "FieldValueRequired",
    "Duplicate value": "FieldValueDuplicate",
    "Not found": "FieldValueNotFound",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}


def generate_object_name(prefix: str, seed: str) -> str:
    """The prefix and five characters drawn from the seed, so that the only source of chance is the caller's."""
    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "big")
    suffix = ""
    for _ in range(_SUFFIX):
        number, digit = divmod(number, len(_ALPHABET))
        suffix += _ALPHABET[digit]
    return prefix[:_MAX_GENERATED_BASE] + suffix

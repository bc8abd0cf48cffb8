"""Our own kinds are checked strictly, by the same code as in the CLI: whatever they say, Remuda has to act on."""

from __future__ import annotations

import msgspec

from remuda.api.codec import decode_strict, from_wire
from remuda.api.errors import BadRequest, Invalid, Refusal, StatusCause, StatusDetails
from remuda.api.meta import JsonObject, KObject, Resource
from remuda.api.names import GROUP
from remuda.api.validation.validate import CHANGE_CHECKED, validate, validate_change


def check_own_kind(kind: type[KObject] | None, body: JsonObject, old: JsonObject | None = None) -> None:
    """Raises Invalid, whose message holds the refusal's reason, sentence and fix. `old`: what is there, if anything."""
    if kind is None or kind.resource.group != GROUP:
        return
    try:
        new = decode_strict(kind, body)
        validate(new)
        if old is not None and kind in CHANGE_CHECKED:  # others are written often, and decoding costs
            validate_change(from_wire(kind, old), new)
    except Refusal as refusal:
        name = body["metadata"].get("name", "")
        cause = StatusCause("FieldValueInvalid", str(refusal), refusal.field)
        raise Invalid(
            f'{kind.resource.kind} "{name}" is invalid: {refusal}',
            fix=refusal.fix,
            details=StatusDetails(name, kind.resource.kind, GROUP, [cause]),
        ) from None


def ill_typed_own_kind_body(resource: Resource, error: msgspec.ValidationError) -> BadRequest:
    """A field of a wrong type, named by its path."""
    what, _, path = str(error).partition(" - at `$.")
    at = path.rstrip("`") or "$"
    version, kind = resource.api_version, resource.kind
    return BadRequest(f'{kind} in version "{version}" cannot be handled as a {kind}: {at}: {what}')

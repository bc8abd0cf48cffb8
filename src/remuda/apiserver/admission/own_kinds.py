"""Our own kinds, checked strictly by the same code as in the CLI."""

from __future__ import annotations

import msgspec

from remuda.api.codec import decode_strict
from remuda.api.errors import Invalid, Refusal
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import GROUP
from remuda.api.validation import validate
from remuda.apiserver.naming import invalid


def admit(kind: type[KObject], body: JsonObject) -> None:
    """Raises Invalid, whose message holds the refusal's reason, sentence and fix."""
    if kind.resource.group != GROUP:
        return
    try:
        validate(decode_strict(kind, body))
    except Refusal as refusal:
        name = body["metadata"].get("name", "")
        raise Invalid(f'{kind.resource.kind} "{name}" is invalid: {refusal}', fix=refusal.fix) from None


def ill_typed(kind: type[KObject], body: JsonObject, error: msgspec.ValidationError) -> Invalid:
    """A field of a wrong type, named by its path."""
    what, _, path = str(error).partition(" - at `$.")
    return invalid(kind.resource, body["metadata"].get("name", ""), path.rstrip("`") or "$", what)

"""The only module that turns bytes into objects and back, so that the codec library can be changed in one place.

Reading is lenient for projections (unknown fields are ignored) and strict where a user speaks to us (`decode_strict`):
there an unknown or ill-typed field is refused, by its path.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar, cast

import msgspec

from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject, KObject

T = TypeVar("T")
K = TypeVar("K", bound=KObject)

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_encoder = msgspec.json.Encoder()
_untyped = msgspec.json.Decoder()


def encode(obj: object) -> bytes:
    """Wire bytes; a kind gets its apiVersion and kind in front."""
    if isinstance(obj, KObject):
        return _encoder.encode(to_wire(obj))
    return _encoder.encode(obj)


def decode(kind: type[T], data: bytes) -> T:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return cast(T, decoder.decode(data))


def decode_json(data: bytes) -> Any:
    return _untyped.decode(data)


def to_wire(obj: object) -> JsonObject:
    """A JSON-ready dict of any Struct; of a kind, with apiVersion and kind."""
    body = msgspec.to_builtins(obj)
    if isinstance(obj, KObject):
        return {"apiVersion": obj.resource.api_version, "kind": obj.resource.kind, **body}
    return cast(JsonObject, body)


def from_wire(kind: type[T], body: Any) -> T:
    return msgspec.convert(body, kind)


def decode_strict(kind: type[K], body: Any, where: str = "") -> K:
    """A user's object of one of our kinds, or a Refusal that names the field and the nearest right name."""
    if not isinstance(body, dict):
        raise Refusal(
            "NotAnObject", f"{where or kind.resource.kind} is not a mapping.", "Start with apiVersion and kind."
        )
    known = {"apiVersion", "kind", *(f.encode_name for f in msgspec.structs.fields(kind))}
    for name in body:
        if name not in known:
            raise _unknown(str(name), "$", sorted(known))
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _explain(kind, str(error)) from None


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]+)`(?: - at `(?P<path>[^`]+)`)?")
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]+)`)?$", re.DOTALL)


def _explain(kind: type[KObject], text: str) -> Refusal:
    if match := _UNKNOWN.match(text):
        return _unknown(match["field"], match["path"] or "$", _fields_at(kind, match["path"] or "$"))
    match = _AT.match(text)
    path = (match["path"] if match and match["path"] else "$").removeprefix("$.")
    what = match["what"] if match else text
    return Refusal("InvalidField", f"`{path}`: {what[:1].lower()}{what[1:]}.", f"Give `{path}` the type it says.", path)


def _unknown(field: str, path: str, known: list[str]) -> Refusal:
    near = difflib.get_close_matches(field, known, n=1)
    full = f"{path}.{field}".removeprefix("$.")
    fix = f"Did you mean `{near[0]}`?" if near else f"Known here: {', '.join(known)}."
    return Refusal("UnknownField", f"`{full}` is not a field.", fix, full)


def _fields_at(kind: type[KObject], path: str) -> list[str]:
    """Wire names of the Struct a msgspec error path points to, for the 'did you mean'."""
    current: Any = kind
    for part in path.removeprefix("$").strip(".").replace("[...]", "").replace("]", "").replace("[", ".").split("."):
        if not part or part.isdigit():
            continue
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(current)}
        current = fields.get(part)
        while hasattr(current, "__args__"):
            current = next((a for a in current.__args__ if isinstance(a, type)), None)
        if not (isinstance(current, type) and issubclass(current, msgspec.Struct)):
            return []
    return sorted(f.encode_name for f in msgspec.structs.fields(current))


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386. Returns a new value and shares unchanged parts with `target`: objects are values."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result

"""The only module that turns bytes into objects and back, so that the codec library can be changed in one place.

Reading is lenient for projections (unknown fields are ignored) and strict where a user speaks to us (`decode_strict`):
there an unknown or ill-typed field is refused, by its path.
"""

from __future__ import annotations

import difflib
import re
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject, KObject, ObjectMeta

T = TypeVar("T")
K = TypeVar("K", bound=KObject)

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_encoder = msgspec.json.Encoder()
_untyped = msgspec.json.Decoder()

# ObjectMeta is a projection and reads leniently; from a user a misspelt `labels` must not vanish. The two besides ours come
# with every object that was exported from a cluster.
_METADATA = sorted({*(f.encode_name for f in msgspec.structs.fields(ObjectMeta)), "managedFields", "selfLink"})


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


def decode_json_with_codec(data: bytes) -> Any:
    return _untyped.decode(data)


def to_wire(obj: object) -> JsonObject:
    """A JSON-ready dict of any Struct; of a kind, with apiVersion and kind."""
    body = msgspec.to_builtins(obj)
    if isinstance(obj, KObject):
        return {"apiVersion": obj.resource.api_version, "kind": obj.resource.kind, **body}
    return cast(JsonObject, body)


def from_wire(kind: type[T], body: Any) -> T:
    return msgspec.convert(body, kind)


def decode_strict(kind: type[K], body: Any) -> K:
    """A user's object of one of our kinds, or a Refusal that names the field and the nearest right name."""
    if not isinstance(body, dict):
        raise Refusal("NotAnObject", f"{kind.resource.kind} is not an object.", "Start with apiVersion and kind.")
    _check_wire_names(body, _wire_field_names(kind), "$")
    _check_metadata(kind, body, "$")
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _explain_decode_error(kind, error) from None


def _check_wire_names(body: JsonObject, known: list[str], path: str) -> None:
    for name in body:
        if name not in known:
            raise _unknown_field(str(name), path, known)


def _check_metadata(struct: Any, body: Any, path: str) -> None:
    """The names below every ObjectMeta, however deep it sits."""
    if isinstance(body, list):
        for index, item in enumerate(body):
            _check_metadata(struct, item, f"{path}[{index}]")
    elif struct is ObjectMeta and isinstance(body, dict):
        _check_wire_names(body, _METADATA, path)
    elif isinstance(body, dict):
        for name, inner in _wire_fields_above_metadata(struct):
            if name in body:
                _check_metadata(inner, body[name], f"{path}.{name}")


# Every write of our kinds is admitted through here, and msgspec works a Struct's fields out anew each time it is asked.
@cache
def _wire_field_names(kind: type[KObject]) -> list[str]:
    return sorted({"apiVersion", "kind", *(f.encode_name for f in msgspec.structs.fields(kind))})


@cache
def _wire_fields_above_metadata(struct: type[msgspec.Struct]) -> list[tuple[str, type[msgspec.Struct]]]:
    """Wire name and Struct of the fields that are an ObjectMeta or have one somewhere below them."""
    inner = [(f.encode_name, _struct_of_field_type(f.type)) for f in msgspec.structs.fields(struct)]
    return [
        (name, found) for name, found in inner if found and (found is ObjectMeta or _wire_fields_above_metadata(found))
    ]


def _struct_of_field_type(kind: Any) -> type[msgspec.Struct] | None:
    """The Struct a field's type stands for: itself, or what a list or an optional holds."""
    while hasattr(kind, "__args__"):
        kind = next((a for a in kind.__args__ if isinstance(a, type) and a is not type(None)), None)
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]+)`(?: - at `(?P<path>[^`]+)`)?")
_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>[^`]+)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"[Ee]xpected `([^`]+)`(?:, got `([^`]+)`)?")
_TYPE = re.compile(r"(?<=xpected )`([^`]+)`|(?<=got )`([^`]+)`")
# The words of Kubernetes for what Python and msgspec call otherwise.
_KUBERNETES_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "array": "list",
    "dict": "object",
    "NoneType": "null",
}
_SAID = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object (fields with values)",
}


def codec_type_name(name: str) -> str:
    """`str | null` of Python or msgspec as users know it: string or null."""
    return " or ".join(_KUBERNETES_TYPES.get(part, part) for part in name.split(" | "))


def explain_codec_type_error(error: msgspec.ValidationError, above: str = "$") -> tuple[str, str]:
    """(path, what is wrong there) in words of Kubernetes: `spec.spares`, "expected integer, got string". `above`: the path of the
    value that was converted."""
    found = _AT.match(str(error))
    what, path = (found["what"], found["path"] or "$") if found else (str(error), "$")
    what = _TYPE.sub(lambda match: codec_type_name(match[1] or match[2]), what[:1].lower() + what[1:])
    return f"{above}{path.removeprefix('$')}".removeprefix("$."), what


def _explain_decode_error(kind: type[KObject], error: msgspec.ValidationError) -> Refusal:
    text = str(error)
    if match := _UNKNOWN.match(text):
        return _unknown_field(match["field"], match["path"] or "$", _wire_names_at(kind, match["path"] or "$"))
    path, what = explain_codec_type_error(error)
    if "`key` in" in text:
        what = "one of its names is not a string"
    return Refusal("InvalidField", f"`{path}`: {what}.", _suggest_wire_value(kind, text, path), path)


def suggest_codec_type(error: str) -> str:
    """What to write where a value has the wrong type; "" where something else is wrong."""
    wanted = _EXPECTED.search(error)
    if wanted is None:
        return ""
    words = _SAID.get(wanted[1].partition(" ")[0], f"a value of type {codec_type_name(wanted[1])}")
    quotes = ", in quotes" if wanted[1].startswith("str") and wanted[2] in ("int", "float", "bool") else ""
    return f"Write {words}{quotes}."


def _suggest_wire_value(kind: type[KObject], error: str, path: str) -> str:
    """What to write instead."""
    if words := suggest_codec_type(error):
        return words
    known = _choices_at(kind, path)
    return f"Write one of: {', '.join(known)}." if known else "Correct the value."


def _unknown_field(field: str, path: str, known: list[str]) -> Refusal:
    near = difflib.get_close_matches(field, known, n=1)
    full = f"{path}.{field}".removeprefix("$.")
    fix = f"Did you mean `{near[0]}`?" if near else f"Known here: {', '.join(known)}."
    return Refusal("UnknownField", f"`{full}` is not a field.", fix, full)


def _wire_names_at(kind: type[KObject], path: str) -> list[str]:
    """Wire names of the Struct a msgspec error path points to, for the 'did you mean'."""
    current = _struct_of_field_type(_type_at(kind, path))
    return sorted(f.encode_name for f in msgspec.structs.fields(current)) if current else []


def _choices_at(kind: type[KObject], path: str) -> list[str]:
    """What may be written where a path points to a choice; nothing when it does not."""
    found = _type_at(kind, path)
    enums = [e for e in (found, *getattr(found, "__args__", ())) if isinstance(e, type) and issubclass(e, Enum)]
    return [str(choice.value) for choice in enums[0]] if enums else []


def _type_at(kind: type[KObject], path: str) -> Any:
    """The type of what a msgspec error path points to; None when nobody knows."""
    found: Any = kind
    for part in re.findall(r"[^.\[\]$]+", path):
        if part.isdigit() or part == "...":
            continue
        struct = _struct_of_field_type(found)
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(struct)} if struct else {}
        found = fields.get(part)
    return found


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

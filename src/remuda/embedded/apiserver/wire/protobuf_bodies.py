"""Reads bodies that clients write as protobuf: Go clients prefer it for built-in kinds. Answers are always JSON.

A body is `k8s\\0` and an envelope (apiVersion and kind, then the object's own message). The table says which number is which
field; what it does not know is skipped, as protobuf demands. The result is the JSON form: embedded structs flattened, times
and quantities as text, bytes in base64, zero values left out unless Go holds the field by pointer (there they mean something).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from remuda.api.codec import decode_json_with_codec
from remuda.api.errors import BadRequest
from remuda.api.meta import JsonObject

MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_MAX_DEPTH = 100
_NUMBERS = frozenset(("bool", "int32", "int64", "uint32", "uint64"))
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Fields = list[tuple[int, int, Any]]


class _ProtobufTable(msgspec.Struct, frozen=True):
    kinds: dict[str, str]
    messages: dict[str, dict[int, tuple[str, str, str]]]


@cache
def _protobuf_table() -> _ProtobufTable:
    data = resources.files(__package__).joinpath("proto.json").read_bytes()
    return msgspec.json.decode(data, type=_ProtobufTable)


def parse_protobuf(data: bytes) -> JsonObject:
    """The object in its JSON form; BadRequest when the bytes are not one of a kind that is known here."""
    try:
        return _parse_envelope(data)
    except (IndexError, ValueError, struct.error, OverflowError, OSError, msgspec.MsgspecError) as error:
        raise BadRequest(f"the body is not protobuf as Kubernetes writes it: {error}") from None


def _parse_envelope(data: bytes) -> JsonObject:
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin with k8s")
    envelope = {number: value for number, _, value in _protobuf_fields(data[len(_MAGIC) :])}
    meta = {number: _protobuf_text(value) for number, _, value in _protobuf_fields(envelope.get(1, b""))}
    api_version, kind = meta.get(1, ""), meta.get(2, "")
    if envelope.get(3) or _protobuf_text(envelope.get(4, b"")) not in ("", MEDIA):
        raise ValueError("the envelope holds another encoding")
    table = _protobuf_table()
    # DeleteOptions goes by the version of what it deletes.
    name = table.kinds.get(f"{api_version} {kind}") or (
        table.kinds["v1 DeleteOptions"] if kind == "DeleteOptions" else None
    )
    if name is None:
        raise BadRequest(f"{kind} of {api_version} cannot be read as protobuf here; send JSON")
    body = _message_to_json(envelope.get(2, b""), name, 0)
    return {"apiVersion": api_version, "kind": kind, **body}


def _protobuf_fields(data: Any) -> Fields:
    if not isinstance(data, bytes):
        raise ValueError("a message is written as something else")
    found: Fields = []
    position, end = 0, len(data)
    while position < end:
        tag, position = _read_body_varint(data, position)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == _VARINT:
            value, position = _read_body_varint(data, position)
        elif wire == _BYTES:
            size, position = _read_body_varint(data, position)
            if position + size > end:
                raise ValueError("it ends too early")
            value, position = data[position : position + size], position + size
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
            value, position = data[position : position + size], position + size
        else:
            raise ValueError(f"wire type {wire} is not used")
        found.append((number, wire, value))
    return found


def _read_body_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _message_to_json(data: bytes, name: str, depth: int) -> JsonObject:
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    known = _protobuf_table().messages[name]
    out: JsonObject = {}
    for number, _, raw in _protobuf_fields(data):
        if number not in known:
            continue
        field, kind, label = known[number]
        if label == "inline":
            out |= _message_to_json(raw, kind, depth + 1)
        elif label == "repeated":
            out.setdefault(field, []).append(_value_to_json(raw, kind, depth))
        elif label == "map":
            entry = {n: v for n, _, v in _protobuf_fields(raw)}
            nothing = 0 if kind in _NUMBERS else b""
            out.setdefault(field, {})[_protobuf_text(entry.get(1, b""))] = _value_to_json(
                entry.get(2, nothing), kind, depth
            )
        else:
            value = _value_to_json(raw, kind, depth)
            # A struct that is not held by pointer is there even when empty; a scalar then says nothing.
            if label == "pointer" or value or isinstance(value, dict):
                out[field] = value
    return out


def _value_to_json(raw: Any, kind: str, depth: int) -> Any:
    if isinstance(raw, int) is not (kind in _NUMBERS):
        raise ValueError(f"a {kind} is written as something else")
    match kind:
        case "string":
            return _protobuf_text(raw)
        case "bytes":
            return base64.b64encode(raw).decode()
        case "bool":
            return bool(raw)
        case "int32" | "int64" | "uint32" | "uint64":
            return raw - (1 << 64) if kind.startswith("int") and raw >= 1 << 63 else raw
        case "double":
            return struct.unpack("<d", raw)[0]
        case "float":
            return struct.unpack("<f", raw)[0]
    special = _SPECIAL.get(kind)
    return _message_to_json(raw, kind, depth + 1) if special is None else special(raw)


def _protobuf_text(raw: Any) -> str:
    if not isinstance(raw, bytes):
        raise ValueError("a text is written as something else")
    return raw.decode()


def _body_fields_by_number(raw: bytes) -> dict[int, Any]:
    return {number: value for number, _, value in _protobuf_fields(raw)}


def _protobuf_quantity(raw: bytes) -> str:
    return _protobuf_text(_body_fields_by_number(raw).get(1, b"")) or "0"


def _protobuf_int_or_string(raw: bytes) -> int | str:
    found = _body_fields_by_number(raw)
    if found.get(1):
        return _protobuf_text(found.get(3, b""))
    number: int = _value_to_json(found.get(2, 0), "int32", 0)
    return number


def _protobuf_time(raw: bytes, *, micro: bool) -> str | None:
    found = _body_fields_by_number(raw)
    seconds, nanos = _value_to_json(found.get(1, 0), "int64", 0), _value_to_json(found.get(2, 0), "int32", 0)
    if not found:
        return None
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{nanos // 1000:06d}Z" if micro else f"{text}Z"


def _protobuf_raw_json(raw: bytes) -> Any:
    inner = _body_fields_by_number(raw).get(1, b"")
    return decode_json_with_codec(inner) if inner else None


_SPECIAL: dict[str, Callable[[bytes], Any]] = {
    "api.resource.Quantity": _protobuf_quantity,
    "util.intstr.IntOrString": _protobuf_int_or_string,
    "meta.v1.Time": lambda raw: _protobuf_time(raw, micro=False),
    "meta.v1.MicroTime": lambda raw: _protobuf_time(raw, micro=True),
    "meta.v1.FieldsV1": _protobuf_raw_json,
    "runtime.RawExtension": _protobuf_raw_json,
    "meta.v1.Duration": lambda raw: f"{_value_to_json(_body_fields_by_number(raw).get(1, 0), 'int64', 0) / 1e9:g}s",
}

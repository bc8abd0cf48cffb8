"""YAML bodies, as far as JSON goes, at a bounded price.

libyaml parses; values are built from its events, so no step is taken twice and nothing is nested deeper than a walk may go. What
JSON could not say is a bad request: other tags, aliases (a few bytes could stand for gigabytes), keys that are no text, numbers
that are none. Plain scalars mean what they mean to an API server: dates and `22:22` are text.

Invariant: whatever the bytes are, the outcome is a value that JSON can say, or an `ApiError` with the reason; and at most
`MAX_YAML_NODES` values are made.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec
import yaml
from yaml import events as yaml_events

from remuda.api.codec import encode
from remuda.api.errors import BadRequest
from remuda.embedded.apiserver.patching import MAX_DEPTH, BodyTooLarge

# Values and keys. JSON of the same size is read a hundred times faster, and its keys do not count (`patching.MAX_VALUES`).
MAX_YAML_NODES: Final = 200_000

_TAG: Final = "tag:yaml.org,2002:"
_MAPPING_TAGS: Final = (None, "!", f"{_TAG}map")
_SEQUENCE_TAGS: Final = (None, "!", f"{_TAG}seq")
_BOOLS: Final = {
    spelt: value
    for value, words in ((True, ("yes", "true", "on")), (False, ("no", "false", "off")))
    for word in words
    for spelt in (word, word.capitalize(), word.upper())
}
_NULLS: Final = frozenset(("", "~", "null", "Null", "NULL"))
_INT: Final = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?")
_NOT_NUMBERS: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBER_STARTS: Final = frozenset("0123456789+-.")
_LONGEST_NUMBER: Final = 128  # characters; turning digits into a number costs the square of their count


class YamlBody(msgspec.Struct, frozen=True):
    """`duplicates`: keys that stand twice in one mapping; the last one counts."""

    value: Any
    duplicates: list[str]


def new_yaml_body_parser(data: bytes) -> Any:
    return yaml.CSafeLoader(data)


def parse_yaml_body(data: bytes) -> YamlBody:
    try:
        return _YamlReader(new_yaml_body_parser(data)).document()
    except (yaml.YAMLError, UnicodeError) as error:
        raise _not_yaml(" ".join(str(error).split())) from None


def _not_yaml(what: str) -> BadRequest:
    return BadRequest(f"the body is not YAML that can be read here: {what}")


_MISSING: Final = object()  # a mapping waits for a key


class _YamlReader:
    """One document. Open containers stand on a stack, `_holders`; `_keys` has the key of a mapping that waits for its value."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._holders: list[Any] = []
        self._keys: list[Any] = []
        self._twice: dict[int, set[str]] = {}
        self._nodes = 0
        self._root: Any = None

    def document(self) -> YamlBody:
        next_event, holders = self._parser.get_event, self._holders
        documents = 0
        while True:
            event = next_event()
            kind = type(event)
            if kind is yaml_events.ScalarEvent:
                self._count()
                self._scalar(event)
            elif kind is yaml_events.MappingStartEvent or kind is yaml_events.SequenceStartEvent:
                self._count()
                self._open(event, {} if kind is yaml_events.MappingStartEvent else [])
            elif kind is yaml_events.MappingEndEvent or kind is yaml_events.SequenceEndEvent:
                holders.pop()
                self._keys.pop()
            elif kind is yaml_events.AliasEvent:
                raise _not_yaml(f"an alias (*{event.anchor}){_where(event)}; write the value out")
            elif kind is yaml_events.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise _not_yaml("a request has one document; send each on its own")
            elif kind is yaml_events.StreamEndEvent:
                break
        encode(self._root)  # text that is none (half of a surrogate pair) does not get further
        return YamlBody(self._root, sorted({name for names in self._twice.values() for name in names}))

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_YAML_NODES:
            raise BodyTooLarge(f"the body has more than {MAX_YAML_NODES} values; send it as JSON")

    def _open(self, event: Any, new: Any) -> None:
        allowed = _MAPPING_TAGS if isinstance(new, dict) else _SEQUENCE_TAGS
        if event.tag not in allowed:
            raise _unknown_tag(event)
        if len(self._holders) > MAX_DEPTH:
            raise BadRequest(f"the body is nested more than {MAX_DEPTH} levels deep; flatten it")
        if self._holders and self._keys[-1] is _MISSING and isinstance(self._holders[-1], dict):
            raise _not_yaml(f"a key must be text{_where(event)}")
        self._put(new)
        self._holders.append(new)
        self._keys.append(_MISSING)

    def _scalar(self, event: Any) -> None:
        value = _scalar_value(event)
        holders = self._holders
        if holders and self._keys[-1] is _MISSING and isinstance(holders[-1], dict):
            if value == "<<" and event.implicit[0]:
                raise _not_yaml(f"a merge key (<<){_where(event)}; write the values out")
            self._keys[-1] = value if isinstance(value, str) else _key_text(value, event)
        else:
            self._put(value)

    def _put(self, value: Any) -> None:
        if not self._holders:
            self._root = value
            return
        holder = self._holders[-1]
        if isinstance(holder, list):
            holder.append(value)
            return
        key = self._keys[-1]
        self._keys[-1] = _MISSING
        if key in holder:
            self._twice.setdefault(id(holder), set()).add(key)
        holder[key] = value


def _scalar_value(event: Any) -> Any:
    text, tag = event.value, event.tag
    if tag is None:
        return _plain_value(text, event) if event.implicit[0] else text
    match tag.removeprefix(_TAG):
        case "str" | "!":
            return text
        case "null":
            found = text in _NULLS
            value: Any = None
        case "bool":
            found, value = text in _BOOLS, _BOOLS.get(text)
        case "int":
            found = _INT.fullmatch(text) is not None
            value = _integer(text, event) if found else None
        case "float":
            found = _FLOAT.fullmatch(text) is not None or _INT.fullmatch(text) is not None
            value = _number(text, event) if found else None
        case _:
            raise _unknown_tag(event)
    if not found:
        raise _not_yaml(f"`{text[:64]}` is no {tag.removeprefix(_TAG)}{_where(event)}")
    return value


def _plain_value(text: str, event: Any) -> Any:
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.fullmatch(text) is not None:
        return _integer(text, event)
    if _FLOAT.fullmatch(text) is not None:
        return _number(text, event)
    if _NOT_NUMBERS.fullmatch(text) is not None:
        raise _no_number(text, event)
    return text


def _integer(text: str, event: Any) -> int | float:
    if len(text) > _LONGEST_NUMBER:
        raise _no_number(text, event)
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.removeprefix("+"))
    digits = digits.replace("_", "")
    base = {"0b": 2, "0x": 16}.get(digits[:2], 8 if digits[:1] == "0" and len(digits) > 1 else 10)
    digits = digits[2:] if base in (2, 16) else digits
    if not digits:
        raise _no_number(text, event)
    value = sign * int(digits, base)
    return value if -(2**63) <= value < 2**64 else float(value)  # as a JSON decoder has it


def _number(text: str, event: Any) -> float:
    if len(text) > _LONGEST_NUMBER:
        raise _no_number(text, event)
    value = float(text.replace("_", "")) if _FLOAT.fullmatch(text) is not None else float(_integer(text, event))
    if not math.isfinite(value):
        raise _no_number(text, event)
    return value


def _key_text(value: Any, event: Any) -> str:
    if value is None:
        raise _not_yaml(f"a key must be text{_where(event)}")
    return encode(value).decode()


def _no_number(text: str, event: Any) -> BadRequest:
    return _not_yaml(f"`{text[:64]}` is no number that JSON has{_where(event)}")


def _unknown_tag(event: Any) -> BadRequest:
    return _not_yaml(f"the tag {str(event.tag)[:64]} means nothing there{_where(event)}; leave it out")


def _where(event: Any) -> str:
    mark = event.start_mark
    return f" in line {mark.line + 1}, column {mark.column + 1}"

"""What a client saw, in a form in which two servers can be compared.

A transcript is a list of entries (step, code, reason, body). Values that differ between any two runs on one server are
replaced by what they are (`<time>`, `<uid>`, `<version>`...), never dropped: a server that leaves a uid out is found out.
`differences` names every place where two transcripts differ, as an address such as `2.body.spec.replicas`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_AGE = re.compile(r"(?<![\w.-])(<invalid>|<age>|(\d+[smhd]){1,2})(?![\w-])")
_IP = re.compile(r"\b(10\.\d+\.\d+\.\d+|127\.0\.0\.1(:\d+)?)\b")
_SPACES = re.compile(r" {2,}")
_MACHINE_TEXT = re.compile(r"https://127\.0\.0\.1:\d+")
_GENERATED_FROM = 58  # the part of a long prefix that leaves room for five more characters
ABSENT = "<absent>"


@dataclass(frozen=True)
class Entry:
    step: str
    code: int
    reason: str
    body: Any

    def as_value(self) -> dict[str, Any]:
        return {"step": self.step, "code": self.code, "reason": self.reason, "body": self.body}


@dataclass(frozen=True)
class Difference:
    case: str
    at: str
    embedded: Any
    real: Any

    def __str__(self) -> str:
        return f"{self.case} | {self.at} | embedded {_short(self.embedded)} | kube-apiserver {_short(self.real)}"


def normal(value: Any, key: str = "", parent: dict[str, Any] | None = None) -> Any:
    """A JSON value without what no two runs have in common."""
    match value:
        case dict():
            return {k: normal(v, k, value) for k, v in sorted(value.items())}
        case list():
            return [normal(v, key, parent) for v in (_owners(value) if key == "managedFields" else value)]
        case str():
            return _text(value, key, parent or {})
        case _:
            return value


def _owners(entries: list[Any]) -> list[Any]:
    """The owners of an object in an order that no clock decides.

    A server puts them by operation, then by the second of the write, then by name. Whether two writes fall into one
    second is luck, so owners that stand in that order are put by name alone. Owners out of order stay as they came.
    """
    if not all(isinstance(entry, dict) for entry in entries):
        return entries
    moments = [(str(entry.get("operation", "")), str(entry.get("time", ""))) for entry in entries]
    names = ("operation", "manager", "apiVersion", "subresource")
    by_name = sorted(entries, key=lambda entry: [str(entry.get(name, "")) for name in names])
    return by_name if moments == sorted(moments) else entries


def _text(value: str, key: str, parent: dict[str, Any]) -> str:
    if key in ("resourceVersion", "continue") and value not in ("", "0"):
        return f"<{key}>"
    if key == "name" and (prefix := parent.get("generateName")) and value.startswith(prefix[:_GENERATED_FROM]):
        return f"{prefix[:_GENERATED_FROM]}<generated>"
    if key == "cells":
        return _AGE.sub("<age>", value)
    if key in ("clusterIP", "clusterIPs") and value not in ("", "None"):
        return "<ip>"
    value = _TIME.sub("<time>", value)
    return _MACHINE_TEXT.sub("<server>", _UID.sub("<uid>", value))


def normal_text(text: str) -> list[str]:
    """Lines of kubectl's output. Columns are compared, not their widths: those follow the values."""
    lines = []
    for line in text.splitlines():
        line = _MACHINE_TEXT.sub("<server>", _UID.sub("<uid>", _TIME.sub("<time>", line)))
        line = re.sub(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} [\d:]+ [+-]\d{4}", "<time>", line)
        line = re.sub(r'(resourceVersion: )"\d+"', r"\1<version>", line)
        line = re.sub(r"(Resource Version: +)\d+", r"\1<version>", line)
        line = _IP.sub("<ip>", _AGE.sub("<age>", line))
        lines.append(_SPACES.sub("  ", line).rstrip())
    return lines


def decoded(data: bytes | str) -> Any:
    try:
        return normal(json.loads(data))
    except ValueError:
        text = data.decode(errors="replace") if isinstance(data, bytes) else data
        return normal_text(text)


def differences(case: str, embedded: list[Entry], real: list[Entry]) -> list[Difference]:
    mine, theirs = ([entry.as_value() for entry in entries] for entries in (embedded, real))
    if [entry["step"] for entry in mine] != [entry["step"] for entry in theirs]:
        steps = [[entry["step"] for entry in entries] for entries in (mine, theirs)]
        return [
            Difference(case, "steps", *steps),
            *(Difference(case, at, a, b) for at, a, b in _walk(mine, theirs, "")),
        ]
    return [Difference(case, at, a, b) for at, a, b in _walk(mine, theirs, "")]


def _walk(a: Any, b: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") != b.get("kind"):
        yield at, a, b  # an object and a refusal, say: naming every field of both tells nobody more
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            yield from _walk(a.get(key, ABSENT), b.get(key, ABSENT), f"{at}.{key}" if at else key)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _walk(left, right, f"{at}.{index}" if at else str(index))
    elif _is_text(a) and _is_text(b):
        yield from _lines(a, b, at)
    elif a != b:
        yield at, a, b


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


def _lines(a: list[str], b: list[str], at: str) -> Iterator[tuple[str, Any, Any]]:
    """Each line that only one of two texts has, by what it says: `2.body.+line` stands in kube-apiserver's alone."""
    for kind, from_a, to_a, from_b, to_b in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind != "equal":
            for line in a[from_a:to_a]:
                yield f"{at}.-{line.strip()}", line, ABSENT
            for line in b[from_b:to_b]:
                yield f"{at}.+{line.strip()}", ABSENT, line


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else text[:400] + "..."

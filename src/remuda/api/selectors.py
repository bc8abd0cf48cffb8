"""Label and field selectors: parse the text clients send, match in memory, render back to the same meaning.

Grammar (Kubernetes'): `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`, joined by commas. A label that is
absent satisfies `!=` and `notin`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from remuda.api.errors import BadRequest

_KEY = r"(?:[a-z0-9A-Z](?:[a-z0-9A-Z.-]{0,251}[a-z0-9A-Z])?/)?[a-z0-9A-Z](?:[a-z0-9A-Z_.-]{0,61}[a-z0-9A-Z])?"
_VALUE = r"(?:[a-z0-9A-Z](?:[a-z0-9A-Z_.-]{0,61}[a-z0-9A-Z])?)?"
_TERM = re.compile(
    rf"\s*(?:(?P<not>!)\s*(?P<absent>{_KEY})"
    rf"|(?P<set>{_KEY})\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<key>{_KEY})\s*(?:(?P<op>==|=|!=)\s*(?P<value>{_VALUE}))?)\s*(?:,|$)"
)


def is_label_key(text: str) -> bool:
    """`name` or `prefix/name`, as Kubernetes spells label keys."""
    return re.fullmatch(_KEY, text) is not None


class Requirement(msgspec.Struct, frozen=True):
    key: str
    op: str  # in | notin | exists | absent
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.op == "in":
            return value is not None and value in self.values
        if self.op == "notin":
            return value is None or value not in self.values
        return (value is not None) == (self.op == "exists")

    def __str__(self) -> str:
        if self.op in ("exists", "absent"):
            return self.key if self.op == "exists" else f"!{self.key}"
        if len(self.values) == 1:
            return f"{self.key}{'=' if self.op == 'in' else '!='}{self.values[0]}"
        return f"{self.key} {self.op} ({','.join(self.values)})"


class Selector(msgspec.Struct, frozen=True):
    """All requirements must hold; none = everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(r.matches(labels) for r in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(r) for r in self.requirements)


EVERYTHING = Selector()


def parse_selector(text: str) -> Selector:
    found: list[Requirement] = []
    position = 0
    while position < len(text) and text[position:].strip():
        match = _TERM.match(text, position)
        if match is None or match.end() == position:
            raise BadRequest(f"unable to parse selector `{text}` at `{text[position:][:20]}`")
        position = match.end()
        if match["not"]:
            found.append(Requirement(match["absent"], "absent"))
        elif match["set"]:
            values = tuple(sorted({v.strip() for v in match["values"].split(",")}))
            if not all(re.fullmatch(_VALUE, v) for v in values):
                raise BadRequest(f"invalid value in selector `{match[0].strip()}`")
            found.append(Requirement(match["set"], match["how"], values))
        elif match["op"]:
            found.append(Requirement(match["key"], "notin" if match["op"] == "!=" else "in", (match["value"],)))
        else:
            found.append(Requirement(match["key"], "exists"))
    if text.rstrip().endswith(","):
        raise BadRequest(f"selector `{text}` ends with a comma")
    return Selector(tuple(found))


def equals(**labels: str) -> Selector:
    return Selector(tuple(Requirement(k, "in", (v,)) for k, v in labels.items()))


def where(labels: Mapping[str, str]) -> Selector:
    """All these labels with exactly these values."""
    return Selector(tuple(Requirement(k, "in", (v,)) for k, v in sorted(labels.items())))


class FieldSelector(msgspec.Struct, frozen=True):
    """`metadata.name=x,spec.nodeName!=y`: equality on dotted paths of the wire form; an absent field reads as empty."""

    terms: tuple[tuple[str, bool, str], ...] = ()

    def matches(self, body: Mapping[str, Any]) -> bool:
        return all((_field(body, path) == value) is equal for path, equal, value in self.terms)

    def __str__(self) -> str:
        return ",".join(f"{path}{'=' if equal else '!='}{value}" for path, equal, value in self.terms)


def parse_field_selector(text: str) -> FieldSelector:
    terms: list[tuple[str, bool, str]] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"([\w.]+)\s*(==|=|!=)\s*(.*)", part)
        if match is None:
            raise BadRequest(f"invalid field selector `{part}`: write path=value or path!=value")
        terms.append((match[1], match[2] != "!=", match[3]))
    return FieldSelector(tuple(terms))


def _field(body: Any, path: str) -> str:
    for part in path.split("."):
        body = body.get(part) if isinstance(body, Mapping) else None
    if isinstance(body, bool):
        return str(body).lower()  # as JSON spells it
    return "" if body is None else str(body)

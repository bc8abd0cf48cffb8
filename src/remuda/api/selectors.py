"""Label and field selectors: parse the text clients send, match in memory, write back with the same meaning.

Grammar (Kubernetes'): `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`, `a>1`, `a<1`, joined by commas. A
label that is absent satisfies `!=` and `notin`; one that is no whole number is neither greater nor less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from remuda.api.errors import BadRequest
from remuda.api.meta import JsonObject, json_objects_in_api_list, wire_list_or_empty, wire_map_or_empty

_KEY = r"(?:[a-z0-9A-Z](?:[a-z0-9A-Z.-]{0,251}[a-z0-9A-Z])?/)?[a-z0-9A-Z](?:[a-z0-9A-Z_.-]{0,61}[a-z0-9A-Z])?"
_VALUE = r"(?:[a-z0-9A-Z](?:[a-z0-9A-Z_.-]{0,61}[a-z0-9A-Z])?)?"
_TERM = re.compile(
    rf"\s*(?:(?P<not>!)\s*(?P<absent>{_KEY})"
    rf"|(?P<set>{_KEY})\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<key>{_KEY})\s*(?:(?P<op>==|=|!=|>|<)\s*(?P<value>{_VALUE}))?)\s*(?:,|$)"
)
_BLANK_REST = re.compile(r"\s*\Z")


def is_selector_label_key(text: str) -> bool:
    """`name` or `prefix/name`, as Kubernetes spells label keys."""
    return re.fullmatch(_KEY, text) is not None


class Requirement(msgspec.Struct, frozen=True):
    key: str
    op: str  # in | notin | exists | absent | > | <
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.op == "in":
            return value is not None and value in self.values
        if self.op == "notin":
            return value is None or value not in self.values
        if self.op in (">", "<"):
            found, limit = _label_selector_number(value or ""), int(self.values[0])
            return found is not None and (found > limit if self.op == ">" else found < limit)
        return (value is not None) == (self.op == "exists")

    def __str__(self) -> str:
        if self.op in ("exists", "absent"):
            return self.key if self.op == "exists" else f"!{self.key}"
        if self.op in (">", "<"):
            return f"{self.key}{self.op}{self.values[0]}"
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
    while _BLANK_REST.match(text, position) is None:
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
        elif match["op"] in (">", "<"):
            if _label_selector_number(match["value"]) is None:
                raise BadRequest(f"`{match[0].strip()}`: > and < need a whole number")
            found.append(Requirement(match["key"], match["op"], (match["value"],)))
        elif match["op"]:
            found.append(Requirement(match["key"], "notin" if match["op"] == "!=" else "in", (match["value"],)))
        else:
            found.append(Requirement(match["key"], "exists"))
    if text.rstrip().endswith(","):
        raise BadRequest(f"selector `{text}` ends with a comma")
    return Selector(tuple(found))


def _label_selector_number(text: str) -> int | None:
    """A number that fits in 64 bits; label values have no sign."""
    number = int(text) if text.isascii() and text.isdigit() else None
    return number if number is not None and number < 2**63 else None


def labels_equal(labels: Mapping[str, str]) -> Selector:
    """All these labels with exactly these values."""
    return Selector(tuple(Requirement(k, "in", (v,)) for k, v in sorted(labels.items())))


# --- `matchLabels` and `matchExpressions` -------------------------------------------------------------------------------

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def from_label_selector(selector: JsonObject | None) -> Selector:
    """An empty or absent selector selects everything; the caller says whether that is meant."""
    selector = wire_map_or_empty(selector)
    exact = [Requirement(key, "in", (value,)) for key, value in wire_map_or_empty(selector.get("matchLabels")).items()]
    terms = [
        Requirement(term["key"], _OPERATORS[term["operator"]], tuple(wire_list_or_empty(term.get("values"))))
        for term in json_objects_in_api_list(selector.get("matchExpressions"))
        if "key" in term and term.get("operator") in _OPERATORS
    ]
    return Selector((*exact, *terms))


def label_selector_matches(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    return from_label_selector(selector).matches(labels)


# --- fields -----------------------------------------------------------------------------------------------------------


class FieldSelector(msgspec.Struct, frozen=True):
    """`metadata.name=x,spec.nodeName!=y`: equality on dotted paths of the wire form; an absent field reads as empty."""

    terms: tuple[tuple[str, bool, str], ...] = ()

    def matches(self, body: Mapping[str, Any]) -> bool:
        return all(
            (field_text_for_selectors(body, path.split(".")) == value) is equal for path, equal, value in self.terms
        )

    def __str__(self) -> str:
        return ",".join(
            f"{path}{'=' if equal else '!='}{_escape_field_selector_value(value)}" for path, equal, value in self.terms
        )


_FIELD_PART = re.compile(r"(?:[^,\\]|\\.?)+", re.DOTALL)
_FIELD_TERM = re.compile(r"([\w.]*)(==|=|!=)((?:[^=,\\]|\\[\\=,])*)")


def _escape_field_selector_value(value: str) -> str:
    return re.sub(r"([\\,=])", r"\\\1", value)


def parse_api_field_selector(text: str) -> FieldSelector:
    """Commas, equal signs and backslashes in a value stand behind a backslash."""
    terms: list[tuple[str, bool, str]] = []
    for part in _FIELD_PART.findall(text):
        match = _FIELD_TERM.fullmatch(part)
        if match is None or (match[3] and not match[1]):
            raise BadRequest(f"invalid field selector `{part}`: write path=value or path!=value")
        path, operator, value = match.groups()
        if path:  # Kubernetes passes over a term without a path and a value
            terms.append((path, operator != "!=", re.sub(r"\\(.)", r"\1", value)))
    return FieldSelector(tuple(terms))


def field_text_for_selectors(body: Any, parts: Sequence[str]) -> str:
    """The field at a path, as selectors write it; empty when it is not there."""
    for part in parts:
        body = body.get(part) if isinstance(body, Mapping) else None
    if isinstance(body, bool):
        return str(body).lower()  # as JSON spells it
    return "" if body is None else str(body)

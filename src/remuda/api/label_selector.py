"""`matchLabels`/`matchExpressions` applied to labels."""

from __future__ import annotations

from collections.abc import Mapping

from remuda.api.meta import JsonObject
from remuda.api.selectors import Requirement, Selector
from remuda.api.wire_values import as_list, as_map, maps

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def from_label_selector(selector: JsonObject | None) -> Selector:
    """An empty or absent selector selects everything; the caller says whether that is meant."""
    selector = as_map(selector)
    exact = [Requirement(key, "in", (value,)) for key, value in as_map(selector.get("matchLabels")).items()]
    terms = [
        Requirement(term["key"], _OPERATORS[term["operator"]], tuple(as_list(term.get("values"))))
        for term in maps(selector.get("matchExpressions"))
        if "key" in term and term.get("operator") in _OPERATORS
    ]
    return Selector((*exact, *terms))


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    return from_label_selector(selector).matches(labels)

"""`matchLabels`/`matchExpressions` applied to labels."""

from __future__ import annotations

from collections.abc import Mapping

from remuda.api.meta import JsonObject
from remuda.api.selectors import Requirement, Selector

_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def from_label_selector(selector: JsonObject | None) -> Selector:
    """An empty or absent selector selects everything; the caller says whether that is meant."""
    selector = selector or {}
    exact = [Requirement(key, "in", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    terms = [
        Requirement(term["key"], _OPERATORS[term["operator"]], tuple(term.get("values") or ()))
        for term in selector.get("matchExpressions") or ()
    ]
    return Selector((*exact, *terms))


def selects(selector: JsonObject, labels: Mapping[str, str]) -> bool:
    return from_label_selector(selector).matches(labels)

"""Which objects a list or a watch is about: a key prefix and a test. The test runs for every watcher at every event."""

from __future__ import annotations

from remuda.api.meta import JsonObject, Resource
from remuda.api.selectors import FieldSelector, Selector, field_text_for_selectors
from remuda.embedded.apiserver.store.record import Matcher


def served_namespace_key_prefix(resource: Resource, namespace: str) -> str:
    return f"{resource.prefix}{namespace}/" if resource.namespaced and namespace else resource.prefix


def stored_object_matcher(labels: Selector, fields: FieldSelector) -> Matcher | None:
    """The selectors as one function. It runs for every watcher at every event, so it does no more than these selectors ask."""
    if not fields.terms:
        return (lambda body: labels.matches(_body_labels(body))) if labels.requirements else None
    if not labels.requirements:
        return _one_field_matcher(*fields.terms[0]) if len(fields.terms) == 1 else fields.matches
    return lambda body: labels.matches(_body_labels(body)) and fields.matches(body)


def _one_field_matcher(path: str, equal: bool, value: str) -> Matcher:
    """`spec.nodeName=x`: the selector every node watches its pods with. The same answer as FieldSelector.matches."""
    parts = tuple(path.split("."))
    return lambda body: (field_text_for_selectors(body, parts) == value) is equal


def served_namespace_matcher(namespace: str, matches: Matcher | None) -> Matcher:
    def test(body: JsonObject) -> bool:
        return bool(body["metadata"].get("namespace") == namespace and (matches is None or matches(body)))

    return test


def _body_labels(body: JsonObject) -> dict[str, str]:
    return body["metadata"].get("labels") or {}

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.selectors import EVERYTHING, FieldSelector, parse_api_field_selector, parse_selector
from remuda.embedded.apiserver.selection import (
    served_namespace_key_prefix,
    served_namespace_matcher,
    stored_object_matcher,
)

BODIES: list[dict[str, Any]] = [
    {"metadata": {"name": "a"}},
    {"metadata": {"name": "a", "labels": None}, "spec": None},
    {"metadata": {"name": "b", "labels": {"x": "1"}}, "spec": {"nodeName": "n"}},
    {"metadata": {"name": "c", "labels": {"x": "2"}}, "spec": {"nodeName": "", "count": 3, "deep": {"er": "y"}}},
    {"metadata": {"name": "d"}, "spec": {"nodeName": "m", "deep": "flat"}},
]


@pytest.mark.parametrize(
    "text",
    [
        "spec.nodeName=n",
        "spec.nodeName!=n",
        "spec.nodeName=",
        "spec.count=3",
        "spec.deep.er=y",
        "spec.deep.er!=y",
        "nothing=",
    ],
)
def test_the_quick_test_of_one_field_answers_like_the_selector(text: str) -> None:
    selector = parse_api_field_selector(text)
    matches = stored_object_matcher(EVERYTHING, selector)
    assert matches is not None
    assert [matches(body) for body in BODIES] == [selector.matches(body) for body in BODIES]


def test_both_selectors_must_hold() -> None:
    matches = stored_object_matcher(parse_selector("x"), parse_api_field_selector("metadata.name!=b"))
    assert matches is not None
    assert [body["metadata"]["name"] for body in BODIES if matches(body)] == ["c"]


def test_no_selector_is_no_test() -> None:
    assert stored_object_matcher(EVERYTHING, FieldSelector()) is None


def test_a_namespace_is_a_prefix_of_namespaced_kinds() -> None:
    assert served_namespace_key_prefix(Pod.resource, "") == "//pods/"
    assert served_namespace_key_prefix(Pod.resource, "team") == "//pods/team/"
    assert served_namespace_key_prefix(Node.resource, "team") == "//nodes/"


def test_a_namespace_is_not_a_prefix_of_another() -> None:
    matches = served_namespace_matcher("a", None)
    assert matches({"metadata": {"namespace": "a"}})
    assert not matches({"metadata": {"namespace": "ab"}})

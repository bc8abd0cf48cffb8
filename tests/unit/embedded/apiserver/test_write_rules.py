"""What counts as a change."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.meta import Resource
from remuda.embedded.apiserver import write_rules

GADGETS = Resource("example.com", "v1", "Gadget", "gadgets", subresources=("status",))
OWNERS = [{"manager": "anna", "operation": "Update", "apiVersion": "example.com/v1", "fieldsV1": {}}]


def gadget(**more: Any) -> dict[str, Any]:
    meta = {"name": "g", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 1}
    return {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": meta, **more}


@pytest.mark.parametrize("value", [1, 1.0])
def test_true_is_not_one(value: Any) -> None:
    """Python takes them for equal, JSON does not."""
    old = gadget(spec={"a": True}, status={"b": True})
    change = write_rules.write_rule_for_replacement(GADGETS, old, gadget(spec={"a": value}), "")
    assert change is not None
    assert change.has_intent
    assert change.body["metadata"]["generation"] == 2
    assert change.body["spec"]["a"] is value
    status = write_rules.write_rule_for_replacement(GADGETS, old, gadget(status={"b": value}), "status")
    assert status is not None
    assert status.body["status"]["b"] is value


def test_one_is_one_point_nought() -> None:
    assert write_rules.write_rule_for_replacement(GADGETS, gadget(spec={"a": 1}), gadget(spec={"a": 1.0}), "") is None


@pytest.mark.parametrize("subresource", ["", "status"])
def test_owners_go_by_an_empty_list_and_by_nothing_else(subresource: str) -> None:
    old = gadget(spec={"a": 1})
    old["metadata"]["managedFields"] = OWNERS
    new = gadget(spec={"a": 1})
    assert write_rules.write_rule_for_replacement(GADGETS, old, new, subresource) is None
    new["metadata"]["managedFields"] = []
    change = write_rules.write_rule_for_replacement(GADGETS, old, new, subresource)
    assert change is not None
    assert "managedFields" not in change.body["metadata"]

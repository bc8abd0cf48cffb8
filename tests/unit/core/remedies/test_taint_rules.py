"""DeviceTaintRules: what is written, and that a cluster without the kind is told apart."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.errors import NotFound, Refusal
from remuda.controllers.quarantine_taints import TaintRules
from remuda.core.remedies.taint_rules import TaintedDevice, taint_rule_body, taint_rule_driver_for, taint_rule_name
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore


def test_a_rule_names_exactly_one_device() -> None:
    body = taint_rule_body(TaintedDevice("node-01", "gpu-3", "gpu.nvidia.com"), "Xid 79!", "NoExecute", "v1")
    assert body["apiVersion"] == "resource.k8s.io/v1"
    assert body["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "node-01", "device": "gpu-3"},
        "taint": {"key": "remuda.dev/device", "value": "Xid-79", "effect": "NoExecute"},
    }


def test_names_are_stable_and_differ() -> None:
    names = {
        taint_rule_name(TaintedDevice(node, device, "d")) for node, device in (("a-b", "c"), ("a", "b-c"), ("A.b", "c"))
    }
    assert len(names) == 3
    assert taint_rule_name(TaintedDevice("n", "g", "d")) == taint_rule_name(TaintedDevice("n", "g", "d"))
    assert len(taint_rule_name(TaintedDevice("n" * 300, "gpu-3", "d"))) <= 253


def test_drivers_by_resource() -> None:
    assert taint_rule_driver_for("nvidia.com/gpu") == "gpu.nvidia.com"
    assert taint_rule_driver_for("example.com/fpga") == ""


class NoKinds(LocalCluster):
    """An API that does not serve the kind. The port in process takes any."""

    async def list(self, kind: type[Any], namespace: str = "", **more: Any) -> Any:
        raise NotFound(f"the server does not serve {kind.resource.plural}")


async def test_a_cluster_without_the_kind_says_so() -> None:
    cluster = NoKinds(ObjectStore(MemoryJournal()), clock=lambda: 0.0, new_uid=lambda: "u")
    with pytest.raises(Refusal) as refused:
        await TaintRules(cluster).make(TaintedDevice("n", "gpu-0", "gpu.nvidia.com"), "Xid79", "NoExecute")
    assert refused.value.reason == "TaintRulesNotServed"

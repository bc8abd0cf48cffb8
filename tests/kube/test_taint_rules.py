"""DeviceTaintRules against a real API server: made once, changed, removed; found by what is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from remuda.controllers.quarantine_taints import TaintRules
from remuda.core.remedies.taint_rules import NO_SCHEDULE, TaintedDevice, taint_rule_name
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from tests.kube.control_plane import ControlPlane

DEVICE = TaintedDevice("node-01", "gpu-3", "gpu.nvidia.com")


@pytest_asyncio.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    async with asyncio.timeout(60.0), HttpCluster(access=load_kubeconfig(control_plane.kubeconfig)) as cluster:
        yield cluster


async def test_a_rule_is_made_once_changed_and_removed(cluster: HttpCluster, control_plane: ControlPlane) -> None:
    rules = TaintRules(cluster)
    version = await rules.version()
    groups = control_plane.request("GET", "/apis/resource.k8s.io").body
    served = [v["version"] for v in groups["versions"]]
    kinds = {v: control_plane.request("GET", f"/apis/resource.k8s.io/{v}").body["resources"] for v in served}
    has = [v for v, found in kinds.items() if any(r["kind"] == "DeviceTaintRule" for r in found)]
    assert (version in has) if has else version == ""
    assert version, "the server of `make kube` serves DeviceTaintRules"
    path = f"/apis/resource.k8s.io/{version}/devicetaintrules/{taint_rule_name(DEVICE)}"
    await rules.make(DEVICE, "Xid79", "NoExecute")
    await rules.make(DEVICE, "Xid79", "NoExecute")
    made = control_plane.request("GET", path)
    assert made.status == 200
    spec = made.body["spec"]
    assert spec["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "node-01", "device": "gpu-3"}
    assert (spec["taint"]["value"], spec["taint"]["effect"]) == ("Xid79", "NoExecute")
    await rules.make(DEVICE, "Quarantined", NO_SCHEDULE)
    assert control_plane.request("GET", path).body["spec"]["taint"]["effect"] == "NoSchedule"
    assert (await rules.ours())[DEVICE] == "Quarantined"
    assert await rules.remove(DEVICE)
    assert control_plane.request("GET", path).status == 404
    assert not await rules.remove(DEVICE)

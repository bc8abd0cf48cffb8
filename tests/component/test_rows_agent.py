"""Checklist rows 26 and 48 on `remuda agent` as it runs beside a kubelet: its lease, its limits, its CDI specs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remuda.api.devices import NodeDevices
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Node
from remuda.core.health.agent_liveness import agent_silent_since, liveness_lease_name
from remuda.embedded.node.devices.cdi import runtime_known_cdi_devices
from remuda.runtime.node_agent import (
    AgentProcessConfig,
    assemble_node_agent_config,
    node_agent,
    parse_node_agent_report_timeouts,
)
from tests.builders.evidence import note
from tests.builders.nodes import Rig

NODE = "node-01"


async def a_cluster() -> Rig:
    rig = Rig(time.time)
    for name in ("default", NODE_LEASE_NAMESPACE):
        await rig.cluster.create(Namespace, {"metadata": {"name": name}})
    await rig.cluster.create(Node, {"metadata": {"name": NODE}})
    await rig.cluster.create(NodeDevices, {"metadata": {"name": NODE}})  # the manager's part
    return rig


def a_config(root: Path, *timeouts: str, cdi: str = "") -> AgentProcessConfig:
    kubelet = root / "kubelet"
    (kubelet / "device-plugins").mkdir(parents=True, exist_ok=True)
    return AgentProcessConfig(
        NODE,
        str(root / "state"),
        str(kubelet),
        backend="fake",
        model="dgx-h100",
        fence_s=0,
        report_timeouts=parse_node_agent_report_timeouts(timeouts),
        cdi_dir=cdi,
    )


async def test_row_48_the_agent_renews_a_lease_of_its_own(tmp_path: Path) -> None:
    rig = await a_cluster()
    async with node_agent(a_config(tmp_path, "20"), rig.cluster):
        lease = await rig.seen(Lease, liveness_lease_name(NODE), lambda found: True, NODE_LEASE_NAMESPACE)
        assert lease.spec.lease_duration_seconds == 20
        assert agent_silent_since(lease, time.time()) is None
    assert agent_silent_since(lease, time.time() + 30.0) is not None


async def test_row_48_without_a_limit_its_lease_never_runs_out(tmp_path: Path) -> None:
    rig = await a_cluster()
    name = liveness_lease_name(NODE)
    old = {"holderIdentity": NODE, "leaseDurationSeconds": 5, "renewTime": "2020-01-01T00:00:00.000000Z"}
    meta = {"name": name, "namespace": NODE_LEASE_NAMESPACE}
    await rig.cluster.create(Lease, {"metadata": meta, "spec": old})  # of one that had a limit
    async with node_agent(a_config(tmp_path, "0"), rig.cluster):
        lease = await rig.seen(Lease, name, lambda found: found.spec.renew_time is None, NODE_LEASE_NAMESPACE)
    assert agent_silent_since(lease, time.time() + 1e6) is None
    await rig.cluster.delete(Lease, name, NODE_LEASE_NAMESPACE)
    async with node_agent(a_config(tmp_path, "0"), rig.cluster):
        lease = await rig.seen(Lease, name, lambda found: True, NODE_LEASE_NAMESPACE)
    assert (lease.spec.holder_identity, lease.spec.renew_time) == (NODE, None)


def test_row_48_limits_as_they_are_written(tmp_path: Path) -> None:
    made = assemble_node_agent_config(a_config(tmp_path, "60", "gpu-3=120", "gpu-4=0"))
    assert (made.report_timeout_s, made.report_timeouts) == (60.0, {"gpu-3": 120.0, "gpu-4": 0.0})
    assert assemble_node_agent_config(a_config(tmp_path)).report_timeout_s == 30.0


@pytest.mark.parametrize("text", ["soon", "-1", "=5", "gpu-3=", "gpu-3=x", "nan", "inf"])
def test_row_48_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="InvalidTimeout"):
        parse_node_agent_report_timeouts((text,))


async def test_row_26_a_start_of_the_agent_makes_the_specs_that_a_reboot_took(tmp_path: Path) -> None:
    rig = await a_cluster()
    cdi = str(tmp_path / "cdi")
    config = a_config(tmp_path, cdi=cdi)
    everything = {f"remuda.dev/gpu=gpu-{n}" for n in range(8)}
    for _ in range(2):
        async with node_agent(config, rig.cluster) as agent:
            await agent.flush()
            answer = await agent.plugins()["nvidia.com/gpu"].allocate(["gpu-1", "gpu-2"])
            assert answer.cdi_devices == ("remuda.dev/gpu=gpu-1", "remuda.dev/gpu=gpu-2")
            assert answer.devices == ()
            assert runtime_known_cdi_devices((cdi,)) == everything
        for path in sorted((tmp_path / "cdi").iterdir()):
            path.unlink()
    note("a start of the agent makes the CDI specs of all 8 devices")

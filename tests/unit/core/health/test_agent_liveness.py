"""An agent's lease: silent when it has run out, and nothing else."""

import math

import msgspec
import pytest

from remuda.api.devices import DeviceState, NodeDevices, Observed
from remuda.api.kubernetes.core_v1 import Lease, LeaseSpec
from remuda.api.meta import ObjectMeta, to_time
from remuda.core.health.agent_liveness import (
    AgentLeaseRenewals,
    agent_lease_ends_at,
    agent_silent_since,
    liveness_lease_name,
    node_of_liveness_lease,
    nodes_with_agent,
    unreported_nodes,
)
from remuda.core.health.ledger import judge_node
from remuda.core.health.own_stalls import NO_STALLS, DeafTime
from tests.builders.gangs import a_node


def a_lease(renewed: float | None = 100.0) -> Lease:
    when = to_time(renewed) if renewed is not None else None
    spec = LeaseSpec(holder_identity="node-01", lease_duration_seconds=30, renew_time=when)
    return Lease(metadata=ObjectMeta(name="node-01.remuda-agent", namespace="kube-node-lease"), spec=spec)


@pytest.mark.parametrize(
    ("lease", "now", "silent", "look"),
    [
        pytest.param(None, 1e9, None, None, id="never had one"),
        pytest.param(a_lease(None), 1e9, None, None, id="never renewed"),
        pytest.param(a_lease(), 110.0, None, 130.0, id="fresh"),
        pytest.param(a_lease(), 130.0, None, 130.0, id="at its very end"),
        pytest.param(a_lease(), 130.1, 100.0, None, id="run out"),
    ],
)
def test_silence(lease: Lease | None, now: float, silent: float | None, look: float | None) -> None:
    assert (agent_silent_since(lease, now), agent_lease_ends_at(lease, now)) == (silent, look)


def heard(*renewals: float) -> AgentLeaseRenewals:
    """Each seen as it was made."""
    seen = AgentLeaseRenewals()
    for at in renewals:
        seen.see(a_lease(at), at)
    return seen


FIRST_SIGHT = DeafTime(-math.inf, 100.0)


@pytest.mark.parametrize(
    ("renewals", "now", "unheard"),
    [
        pytest.param([], 100.0, [], id="nothing known"),
        pytest.param([100.0], 109.0, [FIRST_SIGHT], id="new to us"),
        pytest.param([100.0, 107.5, 115.0], 124.0, [FIRST_SIGHT], id="four times per length"),
        pytest.param([100.0, 107.5], 118.0, [FIRST_SIGHT, DeafTime(107.5, 118.0)], id="one is missing"),
        pytest.param([100.0, 160.0, 167.5], 170.0, [FIRST_SIGHT, DeafTime(100.0, 160.0)], id="was missing"),
        pytest.param([100.0, 160.0], 130.0, [FIRST_SIGHT], id="our clock went back"),
    ],
)
def test_an_agent_is_unheard_while_a_renewal_is_missing(
    renewals: list[float], now: float, unheard: list[DeafTime]
) -> None:
    assert heard(*renewals).unheard_times(a_lease(), now) == tuple(unheard)


def test_a_deadline_does_not_pass_while_an_agent_is_unheard() -> None:
    seen = heard(100.0, 107.5)
    for now in (120.0, 130.0, 200.0):
        assert NO_STALLS.with_unheard(seen.unheard_times(a_lease(), now)).countdown_ends_at(108.0, 10.0) > now
    seen.see(a_lease(201.0), 201.0)
    assert NO_STALLS.with_unheard(seen.unheard_times(a_lease(), 202.0)).countdown_ends_at(108.0, 10.0) == 211.0


def test_names() -> None:
    assert liveness_lease_name("node-01") == "node-01.remuda-agent"
    assert node_of_liveness_lease("node-01.remuda-agent") == "node-01"
    assert node_of_liveness_lease("node-01") == ""


def test_a_silent_agent_makes_devices_unknown_and_forgives_none() -> None:
    node = a_node().signal("gpu-0", "xid-79").devices()
    found = {v.device: v for v in judge_node(node, [], 200.0, silent_since=100.0)}
    assert found["gpu-0"].state is DeviceState.UNHEALTHY
    assert (found["gpu-1"].state, found["gpu-1"].reason) == (DeviceState.UNKNOWN, "AgentSilent")
    assert found["gpu-1"].since == to_time(100.0)
    again = msgspec.structs.replace(node, verdicts=list(found.values()))
    assert judge_node(again, [], 300.0, silent_since=100.0) == again.verdicts
    assert judge_node(again, [], 300.0)[1].state is DeviceState.HEALTHY


EMPTY, REPORTED = NodeDevices(metadata=ObjectMeta(name="node-01")), a_node("node-01").devices()


@pytest.mark.parametrize(
    ("ledger", "lease", "now", "is_unreported"),
    [
        pytest.param(None, None, 110.0, False, id="no agent"),
        pytest.param(None, a_lease(), 110.0, True, id="an agent without a ledger"),
        pytest.param(EMPTY, a_lease(), 110.0, True, id="an agent with an empty one"),
        pytest.param(REPORTED, a_lease(), 110.0, False, id="an agent that has reported"),
        pytest.param(EMPTY, None, 110.0, True, id="an agent that needs no lease"),
        pytest.param(REPORTED, None, 110.0, False, id="such a one that has reported"),
        pytest.param(None, a_lease(), 140.0, False, id="an agent that is silent, without a ledger"),
        pytest.param(EMPTY, a_lease(), 140.0, False, id="an agent that is silent, with an empty one"),
    ],
)
def test_an_agent_that_is_there_is_waited_for_until_it_has_reported(
    ledger: NodeDevices | None, lease: Lease | None, now: float, is_unreported: bool
) -> None:
    leases = {"node-01": a_lease(), "other": a_lease(), **({lease.name: lease} if lease is not None else {})}
    found = unreported_nodes([ledger] if ledger is not None else [], leases, leases.get, now)
    assert found == ({"node-01"} if is_unreported else set())


def test_an_agent_lives_when_it_has_reported_and_renews() -> None:
    now = 1000.0

    def a_ledger(name: str, model: str = "dgx-h100") -> NodeDevices:
        return NodeDevices(metadata=ObjectMeta(name=name), observed=Observed(model=model))

    ledgers = [a_ledger("lives"), a_ledger("silent"), a_ledger("leaseless"), a_ledger("new", "")]
    found = {
        f"{node}.remuda-agent": a_lease(at) for node, at in (("lives", now - 5), ("silent", now - 60), ("new", now))
    }
    assert nodes_with_agent(ledgers, found, found.get, now) == {"lives", "leaseless"}

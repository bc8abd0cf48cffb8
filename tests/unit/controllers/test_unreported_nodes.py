"""Nodes whose agent is there by its lease and has yet to say what is there: nothing of their devices is placed."""

from __future__ import annotations

import pytest

from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices, Observed
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, LeaseSpec
from remuda.api.meta import KObject, ObjectMeta, to_time
from remuda.core.health.agent_liveness import liveness_lease_name
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.controller_tables import ControllerStage, Scenario, Want

seen: list[frozenset[str]] = []


async def _start(stage: ControllerStage) -> None:
    view = stage.view()
    await stage.sync(view.devices, view.leases)
    seen[:] = [view.unreported_nodes(EPOCH)]


def lease(name: str, renewed: float = 0.0) -> Lease:
    meta = ObjectMeta(name=name, namespace=NODE_LEASE_NAMESPACE)
    return Lease(metadata=meta, spec=LeaseSpec("n1", 30, renew_time=to_time(EPOCH + renewed)))


def ledger(observed: Observed) -> NodeDevices:
    return NodeDevices(metadata=ObjectMeta(name="n1"), observed=observed)


AGENT = lease(liveness_lease_name("n1"))


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ([], set()),
        ([lease("n1")], set()),  # its kubelet's
        ([AGENT], {"n1"}),
        ([AGENT, ledger(Observed())], {"n1"}),
        ([AGENT, ledger(Observed(boot="b"))], set()),
        ([ledger(Observed())], {"n1"}),  # of an agent that needs no lease
        ([ledger(Observed(boot="b"))], set()),
    ],
    ids=lambda value: "+".join(f"{o.resource.kind}{len(to_wire(o))}" for o in value) if isinstance(value, list) else "",
)
def test_unreported_nodes(given: list[KObject], want: set[str]) -> None:
    Scenario(name="unreported", given=given, want=Want()).play(_start)
    assert seen == [want]

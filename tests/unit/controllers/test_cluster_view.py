"""What the view hands to the core: the ledgers and leases that it has, by its own clock."""

from __future__ import annotations

from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, LeaseSpec
from remuda.api.meta import ObjectMeta, to_time
from remuda.core.health.agent_liveness import liveness_lease_name
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.controller_tables import ControllerStage, Scenario
from tests.builders.gangs import a_node


def test_a_node_whose_agent_has_only_a_lease_is_unreported() -> None:
    found: list[frozenset[str]] = []

    async def start(stage: ControllerStage) -> None:
        view = stage.view()
        await stage.sync(view.devices, view.leases)
        found.append(view.unreported_nodes(EPOCH))

    leases = [
        Lease(
            metadata=ObjectMeta(name=liveness_lease_name(node), namespace=NODE_LEASE_NAMESPACE),
            spec=LeaseSpec(node, 30, renew_time=to_time(EPOCH)),
        )
        for node in ("new", "known")
    ]
    Scenario(name="unreported", given=[*leases, a_node("known").devices()]).play(start)
    assert found == [{"new"}]

"""A gang that the cluster could never hold: nothing is made for it, and nobody else notices. Work is counted, not time."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.meta import Condition
from remuda.api.training import TrainingJob
from remuda.core.training import missing_pods
from tests.builders.world import NAMESPACE, World, in_world
from tests.component.world_rig import FPGA, stock_plugin

TOO_LARGE = "GangTooLarge"


def too_large(world: World, name: str = "huge") -> Condition | None:
    return find_condition(world.job(name).status.conditions, TOO_LARGE)


async def submit(world: World, name: str, replicas: int, resources: dict[str, Any] | None = None, **spec: Any) -> None:
    container = {"name": "main", "command": ["train"], **({"resources": {"limits": resources}} if resources else {})}
    role = {"replicas": replicas, "gpus": 0 if resources else 1, "template": {"spec": {"containers": [container]}}}
    role |= spec.pop("role", {})
    body = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"roles": [role], **spec}}
    await world.cluster.api.create(TrainingJob, body)


async def resize(world: World, name: str, replicas: int) -> None:
    role = {**to_wire(world.job(name).spec.roles[0]), "replicas": replicas}
    await world.cluster.api.patch(TrainingJob, name, {"spec": {"roles": [role]}}, NAMESPACE)


@in_world(nodes=1, racks=1)
async def test_a_gang_of_100000_on_8_gpus_makes_no_pod_and_says_what_would_fit(world: World) -> None:
    await world.submit("other", replicas=2, gpus=1, rack=False)
    await world.running("other")
    await submit(world, "huge", 100_000)
    await world.until(lambda: is_condition_true(world.job("huge").status.conditions, TOO_LARGE))
    status = world.job("huge").status
    assert (status.phase, status.reason) == ("Pending", TOO_LARGE)
    assert "needs 100000 pods of 1 GPU; the cluster (8 GPUs on 1 node) has room for 8, were it empty." in status.message
    assert "Ask for at most 8 replicas, or add nodes for 99992 more." in status.message
    told = world.job("huge").metadata.resource_version
    await world.sleep(60.0)
    assert not world.pods("huge")
    assert world.job("huge").metadata.resource_version == told, "it is said once"
    assert world.job("other").status.attempt == 1

    await resize(world, "huge", 6)
    await world.running("huge")
    assert not is_condition_true(world.job("huge").status.conditions, TOO_LARGE)


@in_world(nodes=2, racks=1)
async def test_it_is_looked_at_again_when_nodes_come(world: World) -> None:
    await stock_plugin(world, "f0", "f1", node="node-01")
    await submit(world, "wide", 3, {FPGA: 1})
    await world.until(lambda: is_condition_true(world.job("wide").status.conditions, TOO_LARGE))
    await world.sleep(20.0)
    assert not world.pods("wide")
    await stock_plugin(world, "f0", "f1", node="node-02")
    await world.running("wide")
    said = too_large(world, "wide")
    assert said is not None
    assert (said.status, said.reason) == ("False", "Fits")


@in_world(nodes=2, racks=1)
@pytest.mark.parametrize(
    ("replicas", "spec", "ranks"),
    [(2, {"spares": 90_000}, 2), (100_000, {"role": {"minReplicas": 2}}, 16)],
    ids=["spares", "elastic"],
)
async def test_what_a_gang_can_do_without_is_made_only_as_far_as_there_is_room(
    world: World, replicas: int, spec: dict[str, Any], ranks: int
) -> None:
    await submit(world, "huge", replicas, **spec)
    await world.running("huge")
    assert len(world.job("huge").status.members) == ranks
    await world.sleep(30.0)
    assert len(world.pods("huge")) <= 16 + 64


@in_world(nodes=4, racks=1)
async def test_a_large_gang_that_fits_is_made_a_part_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_pods, "PODS_A_LOOK", 32)
    await stock_plugin(world, *[f"f{n}" for n in range(100)], node="node-01")
    made: list[int] = []
    controller: Any = world.cluster.control.training
    inner = controller._create_all

    async def create_all(job: TrainingJob, bodies: Any) -> Any:
        made.append(len(bodies))
        return await inner(job, bodies)

    controller._create_all = create_all
    await submit(world, "wide", 90, {FPGA: 1})
    await world.running("wide", within=120.0)
    assert max(made) == 32
    assert sum(made) >= 90

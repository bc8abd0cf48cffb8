"""Spares lent to preemptible work, on the whole control plane in virtual time."""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_PREEMPTIBLE, RESOURCE_GPU
from remuda.api.training import Loan, Remedy, TrainingJob
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.core.training.spare_lending import DEVICE_RECALLED, LEND_EVERY_S, SETTLED_S
from tests.builders.world import NAMESPACE, World, in_world, training_job

PREEMPTIBLE = {ANNOTATION_PREEMPTIBLE: "true"}
SOON = SETTLED_S + 30.0


async def submit(world: World, *, replicas: int = 3, spares: int = 1, **options: Any) -> None:
    job = training_job("job", replicas=replicas, spares=spares, **options)
    spec = msgspec.structs.replace(job.spec, lend_spares=True)
    await world.cluster.api.create(TrainingJob, msgspec.structs.replace(job, spec=spec))
    await world.running("job")
    await world.parked("job", spares)


async def bare(world: World, name: str, gpus: int = 8, annotations: JsonObject | None = None, **spec: Any) -> None:
    container = {"name": "main", "image": "x:1", "resources": {"limits": {RESOURCE_GPU: gpus}}}
    meta = {"name": name, "namespace": NAMESPACE, "annotations": annotations or {}}
    body = {"metadata": meta, "spec": {"containers": [container], **spec}}
    await world.cluster.api.create(Pod, body)


def loans(world: World) -> list[Loan]:
    return world.job("job").status.loans


def runs(world: World, name: str) -> bool:
    pod = world.pod(name)
    return pod is not None and pod.status.phase == "Running" and not pod.is_deleting


def where(world: World, name: str) -> tuple[str, tuple[str, ...]]:
    pod = world.pod(name)
    assert pod is not None
    return pod.spec.node_name, snapshot_devices_of_pod(pod)


@in_world(nodes=5, racks=1)
async def test_a_spare_is_lent_called_back_and_made_again(world: World) -> None:
    await bare(world, "blocker")
    await world.until(lambda: runs(world, "blocker"))
    await submit(world)
    spare = world.job("job").status.spares[0]
    await bare(world, "older")  # waits longer, but nobody has lent it anything
    await world.sleep(1.0)
    await bare(world, "guest", annotations=PREEMPTIBLE)
    await world.until(lambda: runs(world, "guest"), SOON)
    assert where(world, "guest") == (spare.node, tuple(spare.devices))
    (loan,) = loans(world)
    assert (loan.spare, loan.node, [b.pod for b in loan.borrowers]) == (spare.pod, spare.node, ["guest"])
    status = world.job("job").status
    assert (status.attempt, status.spares, status.recoveries, status.used) == (1, [], [], {})
    await world.sleep(2 * LEND_EVERY_S)
    assert world.job("job").status.attempt == 1
    before = world.gang("job")
    guest = world.pod("guest")
    assert guest is not None
    await world.fail_device("job", rank=1)
    await world.until(lambda: (p := world.pod("guest")) is None or p.is_deleting)
    told = world.pod("guest")
    assert told is not None
    said = find_condition(told.status.conditions, DEVICE_RECALLED)
    assert said is not None
    assert (said.status, said.reason) == ("True", "Xid79")
    assert "default/job needs the devices of its spare back" in said.message
    await world.running("job", attempt=2, within=120.0)
    world.assert_kept(before, but=[1])
    assert world.gang("job")[1].node == spare.node
    record = world.recovery("job")
    assert record.remedy is Remedy.RECALL_SPARE
    assert any(why.startswith("PromoteSpare: 0 spares parked") for why in record.why_not)
    assert world.job("job").status.used == {"device": 1}
    assert not loans(world)
    older = world.pod("older")
    assert older is not None
    assert not older.spec.node_name, "what the borrower left went to the gang"
    await world.cluster.api.delete(Pod, "older", NAMESPACE)
    await world.cluster.api.delete(Pod, "blocker", NAMESPACE)
    await world.parked("job", 1)


@in_world(nodes=4, racks=1)
async def test_the_spare_is_made_again_where_it_was_when_the_borrower_ends(world: World) -> None:
    await submit(world)
    spare = world.job("job").status.spares[0]
    await bare(world, "older")
    await bare(world, "guest", annotations=PREEMPTIBLE)
    await world.until(lambda: runs(world, "guest"), SOON)
    await world.cluster.api.delete(Pod, "guest", NAMESPACE)
    await world.parked("job", 1, within=90.0)
    assert world.job("job").status.spares[0].node == spare.node
    await world.until(lambda: not loans(world))
    older = world.pod("older")
    assert older is not None
    assert not older.spec.node_name
    assert world.job("job").status.attempt == 1


@in_world(nodes=4, racks=1, admits=True)
async def test_small_pods_share_a_lent_place_and_all_of_them_go(world: World) -> None:
    await submit(world)
    spare = world.job("job").status.spares[0]
    for number in range(3):
        await bare(world, f"guest-{number}", gpus=3, annotations=PREEMPTIBLE, terminationGracePeriodSeconds=1)
    await world.until(lambda: runs(world, "guest-0") and runs(world, "guest-1"), SOON)
    await world.sleep(LEND_EVERY_S)
    third = world.pod("guest-2")
    assert third is not None
    assert not third.spec.node_name, "eight devices are enough for two of them"
    await world.cluster.api.delete(Pod, "guest-0", NAMESPACE)
    await world.until(lambda: runs(world, "guest-2"), 60.0)
    assert {b.pod for b in loans(world)[0].borrowers} == {"guest-1", "guest-2"}
    await world.lose_node(world.member("job", 0).node)
    await world.running("job", attempt=2, within=120.0)
    assert world.recovery("job").remedy is Remedy.RECALL_SPARE
    assert world.gang("job")[0].node == spare.node


@in_world(nodes=5, racks=1)
async def test_a_parked_spare_is_preferred_to_one_that_is_lent(world: World) -> None:
    await submit(world, spares=2)
    await bare(world, "guest", annotations=PREEMPTIBLE)
    await world.until(lambda: runs(world, "guest"), SOON)
    await world.fail_device("job", rank=1)
    await world.running("job", attempt=2)
    assert world.recovery("job").remedy is Remedy.PROMOTE_SPARE
    assert runs(world, "guest")
    assert len(loans(world)) == 1


@in_world(nodes=4, racks=1)
async def test_nothing_is_lent_to_others(world: World) -> None:
    """Work that is not preemptible, that belongs to a gang, or that the place is too small for."""
    await submit(world)
    await bare(world, "proud")
    await bare(world, "large", gpus=9, annotations=PREEMPTIBLE)
    await bare(world, "one-of-many", annotations={**PREEMPTIBLE, "pod-group-name": "many"})
    await world.sleep(SOON + LEND_EVERY_S)
    assert not loans(world)
    assert len(world.parked_spares("job")) == 1


@in_world(nodes=4, racks=1)
async def test_a_manager_that_dies_while_it_lends_or_calls_back_goes_on(world: World) -> None:
    await submit(world)
    await bare(world, "guest", annotations=PREEMPTIBLE)
    await world.until(lambda: bool(loans(world)), SOON)
    await world.restart_control_plane()
    await world.until(lambda: runs(world, "guest"), 60.0)
    await world.fail_device("job", rank=1)
    await world.until(lambda: loans(world)[0].recalled_at is not None)
    await world.restart_control_plane()
    await world.running("job", attempt=2, within=120.0)
    assert world.recovery("job").remedy is Remedy.RECALL_SPARE
    assert world.pod("guest") is None

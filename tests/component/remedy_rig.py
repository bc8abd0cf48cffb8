"""What tests of the device ladder ask of a `World`: a fault, a policy, and what became of them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from remuda.api.drills import DrillKind
from remuda.api.incidents import Incident, RemedyRecord
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.kubernetes.policy_v1 import PodDisruptionBudget
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY
from remuda.api.remedies import Drain, RemedyPolicy, RemedyPolicySpec, Soak
from remuda.core.remedies.rungs import device_remedies
from tests.builders.world import NAMESPACE, World

NODE, DEVICE = "node-03", "gpu-2"


async def fail(world: World, code: str = "xid-48", node: str = NODE, device: str = DEVICE, heals: str = "") -> None:
    await world.drill(DrillKind.DEVICE_FAIL, node=node, device=device, code=code, heals=heals)


async def set_policy(world: World, name: str = "default", **spec: Any) -> None:
    body = RemedyPolicy(metadata=ObjectMeta(name=name), spec=RemedyPolicySpec(**spec))
    await world.cluster.api.create(RemedyPolicy, body)
    await world.sleep(1.0)


async def drain_at_once(world: World, checkpoint_s: float, deadline_s: float, **spec: Any) -> None:
    """A policy that protects nobody, and soaks for ten seconds."""
    drain = Drain(patience_seconds=0.0, checkpoint_seconds=checkpoint_s, deadline_seconds=deadline_s)
    await set_policy(world, drain=drain, soak=Soak(seconds=10.0), **spec)


async def protect(world: World, labels: Mapping[str, str], least: int) -> None:
    """A disruption budget over all of those pods that allows nothing."""
    budget: JsonObject = {"selector": {"matchLabels": dict(labels)}, "minAvailable": least}
    meta = {"name": "all", "namespace": NAMESPACE}
    await world.cluster.api.create(PodDisruptionBudget, {"metadata": meta, "spec": budget})
    await world.sleep(2.0)


def policy(world: World, name: str = "default") -> RemedyPolicy:
    found = world._read(RemedyPolicy, name)
    assert found is not None
    return found


def incidents(world: World) -> list[Incident]:
    return [i for i in world._read_all(Incident) if i.spec.subject.device]


def the_incident(world: World) -> Incident | None:
    found = incidents(world)
    assert len(found) <= 1, [i.name for i in found]
    return found[0] if found else None


def records(world: World) -> dict[str, RemedyRecord]:
    found = the_incident(world)
    return device_remedies(found.status.remedies) if found is not None else {}


def outcomes(world: World) -> dict[str, str]:
    return {key: r.outcome.value for key, r in records(world).items()}


async def until_done(world: World, step: str, within: float, outcome: str = "Succeeded") -> None:
    """The one incident's step of that key."""
    await world.until(lambda: outcomes(world).get(step) == outcome, within, f"{step} {outcome}")


def node(world: World, name: str = NODE) -> Node:
    found = world._read(Node, name)
    assert found is not None
    return found


def is_quarantined(world: World, name: str = NODE, device: str = DEVICE) -> bool:
    return device in world.devices(name).quarantine


def assert_untouched(world: World, name: str = NODE) -> None:
    marks = (ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY)
    assert not node(world, name).spec.unschedulable
    assert not [mark for mark in marks if mark in node(world, name).annotations]
    assert not world.devices(name).orders


def carried_out(world: World, name: str = NODE) -> list[str]:
    return [a.id.rpartition(".")[2] for a in world.devices(name).observed.answers]


def held(world: World, pod: Pod) -> set[str]:
    return {d for h in world.devices(pod.spec.node_name).observed.holdings if h.uid == pod.uid for d in h.devices}


def a_free_device(world: World, pod: Pod) -> str:
    """Of the pod's node."""
    return free_on(world, pod.spec.node_name, held(world, pod))


def free_on(world: World, name: str, taken: Container[str]) -> str:
    return next(d.id for d in world.devices(name).observed.devices if d.id not in taken)

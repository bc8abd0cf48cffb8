"""What tests ask of a `World` and see of it: pods, node counts, `remuda devices`; faults, policies and what becomes of them.

Where nothing else is said, pods run on `NODE`, and devices fail on `FAULTY`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from remuda.agent.agent import Agent
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.devices import DeviceState, NodeDevices, Verdict
from remuda.api.drills import Drill, DrillKind
from remuda.api.incidents import Incident, RemedyRecord
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.kubernetes.policy_v1 import PodDisruptionBudget
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY, RESOURCE_GPU
from remuda.api.remedies import Drain, Mode, RemedyPolicy, RemedyPolicySpec, Soak
from remuda.api.training import TrainingJob
from remuda.cli.devices.device_list import (
    device_list_document,
    device_list_entries,
    device_list_notices,
    device_list_resource_counts,
    render_ledger,
)
from remuda.core.remedies.rungs import device_remedies
from remuda.embedded.node.node import EmbeddedNode
from tests.builders.plugins import PlainPlugin
from tests.builders.pods import pod_wire
from tests.builders.world import NAMESPACE, World
from tests.unit.cli.scenes import text_of

GPU = RESOURCE_GPU
FPGA = "example.com/fpga"
NODE = "node-01"
FAULTY, DEVICE = "node-03", "gpu-2"
STATUS_S = 2.0  # a quarter of the lease: the node's status period


def gpus(
    name: str, count: int = 1, *, resource: str = GPU, select: dict[str, str] | None = None, **more: Any
) -> JsonObject:
    """A pod that waits for a node."""
    body = pod_wire(name, ["work"], node="", limits={resource: count} if count else None, **more)
    if select:
        body["spec"]["nodeSelector"] = select
    return body


async def stock_plugin(world: World, *devices: str, node: str = NODE, resource: str = FPGA) -> PlainPlugin:
    """A vendor's plugin beside ours, of another resource."""
    plugin = PlainPlugin(*devices)
    own, service = agent(world, node).plugins, machine(world, node).devices
    agent(world, node).plugins = lambda: {**own(), resource: plugin}  # type: ignore[method-assign]
    assert service is not None
    await service.connect()
    want = str(len(devices))
    await world.until(lambda: counts(world, node, resource) == (want, want), what=f"{resource} is published")
    return plugin


async def only_observe(world: World) -> None:
    """Nothing is done to devices by itself."""
    policy = RemedyPolicy(metadata=ObjectMeta(name="default"), spec=RemedyPolicySpec(mode=Mode.OBSERVE))
    await world.cluster.api.create(RemedyPolicy, policy)


async def create(world: World, *bodies: JsonObject) -> None:
    for body in bodies:
        await world.cluster.api.create(Pod, body)


async def run_pods(world: World, *bodies: JsonObject) -> list[Pod]:
    await create(world, *bodies)
    names = [body["metadata"]["name"] for body in bodies]
    await world.until(lambda: all(is_up(world, name) for name in names), 60.0, f"{names} run")
    return [the_pod(world, name) for name in names]


def the_pod(world: World, name: str) -> Pod:
    found = world.pod(name)
    assert found is not None, f"there is no pod {name}"
    return found


def is_up(world: World, name: str) -> bool:
    pod = world.pod(name)
    return (
        pod is not None and bool(pod.status.container_statuses) and all(s.ready for s in pod.status.container_statuses)
    )


def scheduled(pod: Pod) -> tuple[str, str]:
    """Reason and message of the PodScheduled condition."""
    found = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    return (found.reason, found.message) if found is not None else ("", "")


def agent(world: World, node: str = NODE) -> Agent:
    return world.cluster.machines.agents[node]


def machine(world: World, node: str = NODE) -> EmbeddedNode:
    return world.cluster.machines.nodes[node]


def hardware(world: World, node: str = NODE) -> FakeBackend:
    found = agent(world, node).hardware()
    assert isinstance(found, FakeBackend)
    return found


def node_object(world: World, node: str = NODE) -> Node:
    found = world._read(Node, node)
    assert found is not None
    return found


def counts(world: World, node: str = NODE, resource: str = GPU) -> tuple[str, str]:
    """(capacity, allocatable) as the API has them; "" where the key is absent."""
    status = node_object(world, node).status
    return str(status.capacity.get(resource, "")), str(status.allocatable.get(resource, ""))


async def counts_are(world: World, capacity: int, allocatable: int, node: str = NODE, within: float = 60.0) -> None:
    want = (str(capacity), str(allocatable))
    await world.until(lambda: counts(world, node) == want, within, f"{node} says {want}")


def verdict(world: World, device: str, node: str = NODE) -> Verdict:
    return next((v for v in world.devices(node).verdicts if v.device == device), Verdict(device, DeviceState.UNKNOWN))


async def state_is(world: World, device: str, state: DeviceState, node: str = NODE, within: float = 60.0) -> Verdict:
    await world.until(lambda: verdict(world, device, node).state is state, within, f"{device} of {node} is {state}")
    return verdict(world, device, node)


def notices(world: World, node: str = NODE) -> dict[str, str]:
    return {n.reason: n.message for n in world.devices(node).notices}


def events(world: World, about: str) -> list[tuple[str, str, str]]:
    """(type, reason, message) of the Events about a node."""
    found = world._read_all(Event)
    return [(e.type, e.reason, e.message) for e in found if e.involved_object.name == about]


def incidents(world: World) -> list[Incident]:
    return world._read_all(Incident)


def only_incident(world: World) -> Incident:
    found = incidents(world)
    assert len(found) == 1, [(i.name, i.status.message) for i in found]
    return found[0]


async def gang_at_work(world: World, *, spares: int = 1, **options: object) -> None:
    """A gang of four with its spares parked, past its second checkpoint (step 20) and well before the third."""
    await world.submit("job", replicas=4, spares=spares, **options)
    await world.running("job")
    await world.parked("job", spares)
    await world.step("job", 25)


async def change_job(world: World, spec: JsonObject) -> None:
    """Somebody patches the spec of `job`."""
    await world.cluster.api.patch(TrainingJob, "job", {"spec": spec}, NAMESPACE)


async def suspend_job(world: World) -> None:
    """Until it stands still, without pods."""
    await change_job(world, {"suspend": True})
    await world.until(lambda: world.job().status.phase == "Suspended" and not world.pods(), what="it is suspended")


async def undo_drill(world: World) -> None:
    """The last one."""
    await world.cluster.api.patch(Drill, f"drill-{world._drills:03d}", {"spec": {"undo": True}})


def _everything(world: World) -> tuple[list[Node], list[NodeDevices], list[Pod]]:
    return world._read_all(Node), world._read_all(NodeDevices), world.all_pods()


def screen(world: World) -> str:
    """`remuda devices`"""
    nodes, devices, pods = _everything(world)
    return text_of(
        render_ledger(
            device_list_entries(nodes, devices, pods), world.loop.clock(), notices=device_list_notices(devices)
        ),
        400,
    )


def listed(world: World) -> dict[str, Any]:
    """`remuda devices -o json`"""
    nodes, devices, pods = _everything(world)
    return device_list_document(
        device_list_entries(nodes, devices, pods),
        device_list_notices(devices),
        device_list_resource_counts(devices, pods),
    )


def shown(world: World, device: str, node: str = NODE) -> dict[str, Any]:
    """One device of `remuda devices -o json`."""
    return next(d for d in listed(world)["devices"] if (d["node"], d["device"]) == (node, device))


def count_of(world: World, node: str = NODE, resource: str = GPU) -> dict[str, int]:
    return next(c for c in listed(world)["counts"] if (c["node"], c["resource"]) == (node, resource))


def held_by(world: World, pod: str) -> list[str]:
    """Devices of the pod, as its node says."""
    found = (h for d in world._read_all(NodeDevices) for h in d.observed.holdings if h.pod == f"{NAMESPACE}/{pod}")
    return sorted(device for h in found for device in h.devices)


def health(pod: Pod) -> list[tuple[str, str, str, str]]:
    """(container, resource, device, health) of every container, as the kubelet tells it."""
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return [
        (s.name, r.name, d.resource_id, d.health)
        for s in statuses
        for r in s.allocated_resources_status
        for d in r.resources
    ]


def kept(before: Sequence[Pod], world: World) -> bool:
    """The same pods, nodes, containers, restarts and devices as before; what is said of their health may differ."""
    return [_facts(the_pod(world, pod.name)) for pod in before] == [_facts(pod) for pod in before]


def _facts(pod: Pod) -> tuple[object, ...]:
    ran = [(s.name, s.restart_count, s.state) for s in pod.status.container_statuses]
    return pod.uid, pod.spec.node_name, pod.status.phase, ran, [entry[:3] for entry in health(pod)]


# --- a device that fails, and what is done about it ----------------------------------------------------------------------


async def fail(world: World, code: str = "xid-48", node: str = FAULTY, device: str = DEVICE, heals: str = "") -> None:
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


def device_incidents(world: World) -> list[Incident]:
    return [i for i in incidents(world) if i.spec.subject.device]


def the_incident(world: World) -> Incident | None:
    found = device_incidents(world)
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


def is_quarantined(world: World, name: str = FAULTY, device: str = DEVICE) -> bool:
    return device in world.devices(name).quarantine


def assert_untouched(world: World, name: str = FAULTY) -> None:
    marks = (ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY)
    assert not node_object(world, name).spec.unschedulable
    assert not [mark for mark in marks if mark in node_object(world, name).annotations]
    assert not world.devices(name).orders


def carried_out(world: World, name: str = FAULTY) -> list[str]:
    return [a.id.rpartition(".")[2] for a in world.devices(name).observed.answers]


def held(world: World, pod: Pod) -> set[str]:
    return {d for h in world.devices(pod.spec.node_name).observed.holdings if h.uid == pod.uid for d in h.devices}


def a_free_device(world: World, pod: Pod) -> str:
    """Of the pod's node."""
    return free_on(world, pod.spec.node_name, held(world, pod))


def free_on(world: World, name: str, taken: Container[str]) -> str:
    return next(d.id for d in world.devices(name).observed.devices if d.id not in taken)

"""Jobs, nodes, pods and launcher reports as values, in one line each: `a_job().replicas(8).gpus(8).spares(1)`.

A builder is a value, too: every call returns a new one, so a table of scenarios can share a beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from remuda.api.codec import from_wire
from remuda.api.devices import (
    DeviceState,
    LauncherReport,
    NodeDevices,
    Observed,
    ObservedDevice,
    QuarantineOrder,
    Signal,
    Verdict,
)
from remuda.api.kubernetes.core_v1 import Node, NodeSpec, NodeStatus, Pod, Taint, Toleration
from remuda.api.meta import Condition, JsonObject, ObjectMeta, to_time
from remuda.api.names import ANNOTATION_DEVICES, LABEL_NODE, RESOURCE_GPU
from remuda.api.training import (
    Budgets,
    Checkpoint,
    Failure,
    PodTemplate,
    Role,
    RoleAfter,
    Topology,
    TrainingJob,
    TrainingJobSpec,
    TrainingJobStatus,
)
from remuda.core.scheduling.placement_request import GangAsk, PodAsk
from remuda.core.state.snapshot import Snapshot, build_snapshot

RACK = "topology.remuda.dev/rack"
NAMESPACE = "default"


def a_template(**spec: Any) -> PodTemplate:
    return PodTemplate(spec={"containers": [{"name": "main", "command": ["python", "train.py"]}], **spec})


# --- jobs -------------------------------------------------------------------------------------------------------------


class JobBuilder(msgspec.Struct, frozen=True):
    job: TrainingJob

    def _spec(self, **changes: Any) -> JobBuilder:
        return JobBuilder(msgspec.structs.replace(self.job, spec=msgspec.structs.replace(self.job.spec, **changes)))

    def spec(self, **fields: Any) -> JobBuilder:
        """Fields of the spec that have no word of their own here."""
        return self._spec(**fields)

    def _role(self, **changes: Any) -> JobBuilder:
        first, *others = self.job.spec.roles
        return self._spec(roles=[msgspec.structs.replace(first, **changes), *others])

    def named(self, name: str) -> JobBuilder:
        meta = msgspec.structs.replace(self.job.metadata, name=name)
        return JobBuilder(msgspec.structs.replace(self.job, metadata=meta))

    def replicas(self, count: int) -> JobBuilder:
        return self._role(replicas=count)

    def gpus(self, count: int) -> JobBuilder:
        return self._role(gpus=count)

    def least(self, count: int) -> JobBuilder:
        """Elastic: goes on with so many."""
        return self._role(min_replicas=count)

    def template(self, **spec: Any) -> JobBuilder:
        return self._role(template=a_template(**spec))

    def role(self, name: str, replicas: int = 1, gpus: int = 0, **spec: Any) -> JobBuilder:
        """One more role."""
        return self._spec(roles=[*self.job.spec.roles, Role(name, replicas, gpus=gpus, template=a_template(**spec))])

    def after(self, role: str, other: str, is_: str = "Running") -> JobBuilder:
        """The role comes when the other one is Running or Succeeded."""
        made = [
            msgspec.structs.replace(r, after=[*r.after, RoleAfter(other, is_)]) if r.name == role else r
            for r in self.job.spec.roles
        ]
        return self._spec(roles=made)

    def spares(self, count: int) -> JobBuilder:
        return self._spec(spares=count)

    def in_one_rack(self) -> JobBuilder:
        return self._spec(topology=Topology(required=RACK))

    def anywhere(self) -> JobBuilder:
        return self._spec(topology=Topology())

    def budgets(self, **limits: int) -> JobBuilder:
        return self.failure(budgets=Budgets(**limits))

    def failure(self, **fields: Any) -> JobBuilder:
        return self._spec(failure=msgspec.structs.replace(self.job.spec.failure, **fields))

    def checkpoints(self, path: str) -> JobBuilder:
        return self._spec(checkpoint=Checkpoint(path=path))

    def status(self, **fields: Any) -> JobBuilder:
        return JobBuilder(msgspec.structs.replace(self.job, status=msgspec.structs.replace(self.job.status, **fields)))

    def build(self) -> TrainingJob:
        return self.job

    def manifest(self) -> JsonObject:
        """What a user would write."""
        return {
            "apiVersion": "remuda.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": self.job.name},
            "spec": msgspec.to_builtins(self.job.spec),
        }


def a_job(name: str = "job") -> JobBuilder:
    """A gang of two pods with a GPU each, anywhere, without spares."""
    meta = ObjectMeta(name=name, namespace=NAMESPACE, uid=f"uid-{name}", resource_version="1")
    role = Role("worker", 2, gpus=1, template=a_template())
    return JobBuilder(
        TrainingJob(metadata=meta, spec=TrainingJobSpec(roles=[role], failure=Failure()), status=TrainingJobStatus())
    )


# --- nodes ------------------------------------------------------------------------------------------------------------


class NodeBuilder(msgspec.Struct, frozen=True):
    name: str
    labels: Mapping[str, str] = {}
    count: int = 8
    ready: str = "True"
    is_cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    states: Mapping[str, DeviceState] = {}
    signals: Mapping[str, tuple[Signal, ...]] = {}
    orders: Mapping[str, QuarantineOrder] = {}
    is_judged: bool = True

    def _with(self, **changes: Any) -> NodeBuilder:
        return msgspec.structs.replace(self, **changes)

    def rack(self, rack: str) -> NodeBuilder:
        return self.label(RACK, rack)

    def label(self, key: str, value: str) -> NodeBuilder:
        return self._with(labels={**self.labels, key: value})

    def gpus(self, count: int) -> NodeBuilder:
        return self._with(count=count)

    def cordoned(self) -> NodeBuilder:
        return self._with(is_cordoned=True)

    def not_ready(self, status: str = "False") -> NodeBuilder:
        return self._with(ready=status)

    def tainted(self, key: str, value: str = "", effect: str = "NoSchedule") -> NodeBuilder:
        return self._with(taints=(*self.taints, Taint(key, effect, value)))

    def device(self, device: str, state: DeviceState) -> NodeBuilder:
        return self._with(states={**self.states, device: state})

    def signal(self, device: str, code: str, source: str = "kmsg", at: float | None = None) -> NodeBuilder:
        new = Signal(source, code, time=None if at is None else to_time(at))
        return self._with(signals={**self.signals, device: (*self.signals.get(device, ()), new)})

    def quarantined(self, device: str, reason: str = "Suspect") -> NodeBuilder:
        return self._with(orders={**self.orders, device: QuarantineOrder(reason)})

    def never_judged(self) -> NodeBuilder:
        return self._with(is_judged=False)

    def node(self) -> Node:
        return Node(
            metadata=ObjectMeta(name=self.name, labels={LABEL_NODE: self.name, **self.labels}),
            spec=NodeSpec(unschedulable=self.is_cordoned, taints=list(self.taints)),
            status=NodeStatus(conditions=[Condition("Ready", self.ready)], allocatable={RESOURCE_GPU: self.count}),
        )

    def devices(self) -> NodeDevices:
        ids = [f"gpu-{index}" for index in range(self.count)]
        verdicts = [Verdict(d, self.states.get(d, DeviceState.HEALTHY)) for d in ids] if self.is_judged else []
        return NodeDevices(
            metadata=ObjectMeta(name=self.name),
            observed=Observed(devices=[ObservedDevice(d, "H100", signals=list(self.signals.get(d, ()))) for d in ids]),
            verdicts=verdicts,
            quarantine=dict(self.orders),
        )


def a_node(name: str = "node-01") -> NodeBuilder:
    """Ready, eight healthy GPUs, no rack."""
    return NodeBuilder(name)


def racks(*sizes: int, gpus: int = 8) -> list[NodeBuilder]:
    """So many nodes in rack-1, rack-2, ...; named node-01, node-02, ... across all."""
    found: list[NodeBuilder] = []
    for number, size in enumerate(sizes, start=1):
        for _ in range(size):
            found.append(a_node(f"node-{len(found) + 1:02d}").rack(f"rack-{number}").gpus(gpus))
    return found


def a_snapshot(nodes: Iterable[NodeBuilder], pods: Iterable[Pod] = (), **options: Any) -> Snapshot:
    made = list(nodes)
    return build_snapshot([n.node() for n in made], [n.devices() for n in made], pods, **options)


# --- pods and what is asked for them ----------------------------------------------------------------------------------


def a_held_pod(
    name: str = "pod-0",
    node: str = "",
    devices: Iterable[str] = (),
    *,
    phase: str = "Running",
    deleting_at: float | None = None,
    labels: Mapping[str, str] | None = None,
) -> Pod:
    """A pod that is bound (or not) and names devices; `phase` and `deleting_at` say how far its life is."""
    meta: JsonObject = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "labels": dict(labels or {})}
    if ids := ",".join(devices):
        meta["annotations"] = {ANNOTATION_DEVICES: ids}
    if deleting_at is not None:
        meta["deletionTimestamp"] = to_time(deleting_at)
    return from_wire(Pod, {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase}})


def a_pod_ask(
    name: str = "pod-0",
    gpus: int = 8,
    selector: Mapping[str, str] | None = None,
    tolerations: Iterable[Toleration] = (),
) -> PodAsk:
    return PodAsk(NAMESPACE, name, f"uid-{name}", gpus, tuple(sorted((selector or {}).items())), tuple(tolerations))


def a_gang_ask(
    members: int = 1,
    gpus: int = 8,
    *,
    key: str = "default/job",
    spares: int = 0,
    topology: str = RACK,
    pinned: str | None = None,
    waiting_for: int = 0,
    **options: Any,
) -> GangAsk:
    name = key.rsplit("/", 1)[-1]
    return GangAsk(
        key=key,
        members=tuple(a_pod_ask(f"{name}-{i}", gpus, **options) for i in range(members)),
        spares=tuple(a_pod_ask(f"{name}-spare-{i}", gpus, **options) for i in range(spares)),
        topology=topology,
        pinned=pinned,
        waiting_for=waiting_for,
    )


def a_report(pod: Pod | str = "pod-0", state: str = "ready", attempt: int = 1, **fields: Any) -> LauncherReport:
    name, uid = (pod.name, pod.uid) if isinstance(pod, Pod) else (pod, f"uid-{pod}")
    return LauncherReport(name, uid, state, attempt, **fields)

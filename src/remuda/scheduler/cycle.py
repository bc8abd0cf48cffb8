"""One scheduling cycle: gather what waits, decide on one snapshot, bind.

A cycle runs whenever pods, nodes or verdicts changed, at most one at a time. Bindings that the informer has not shown back
are *assumed*: their devices count as taken until the pod is seen bound or the binding failed, so two cycles can never give
one device away twice. A refused pod gets a PodScheduled=False condition with the reason and the fix, written only when it
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from remuda.api.codec import to_wire
from remuda.api.conditions import with_condition
from remuda.api.core_v1 import Binding, Node, Pod
from remuda.api.devices import NodeDevices
from remuda.api.errors import ApiError, Conflict, NotFound, Refusal
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.names import (
    ANNOTATION_DEVICES,
    ANNOTATION_DOMAIN,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_SPARE,
    ANNOTATION_TOPOLOGY_REQUIRED,
    LABEL_GANG,
    RESOURCE_GPU,
)
from remuda.api.quantity import whole
from remuda.core.placement.gang import Assignment, GangAsk, PlacementPlan, PodAsk, plan_placement
from remuda.core.placement.snapshot import Snapshot, build_snapshot
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.informer import Informer
from remuda.kube.writes import write_all

log = structlog.get_logger(__name__)

SETTLE_S = 0.01  # pods of a gang are made one after another; a cycle a moment later sees them all
RECHECK_S = 5.0  # leases run out without an event, so waiting pods are looked at again


class Scheduler:
    """`schedulers`: the schedulerName values it serves; '' and default-scheduler on the embedded cluster only."""

    def __init__(
        self,
        cluster: Cluster,
        pods: Informer[Pod],
        nodes: Informer[Node],
        devices: Informer[NodeDevices],
        dead_nodes: Callable[[float], frozenset[str]],
        clock: Callable[[], float],
        schedulers: frozenset[str] = frozenset({"remuda"}),
    ) -> None:
        self._cluster = cluster
        self._pods, self._nodes, self._devices = pods, nodes, devices
        self._dead_nodes = dead_nodes
        self._clock = clock
        self._schedulers = schedulers
        self._assumed: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._changed = asyncio.Event()
        pods.subscribe(self._on_pod)
        nodes.subscribe(lambda old, new: self._changed.set())
        devices.subscribe(self._on_devices)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name or new.is_terminal):
            self._assumed.pop(pod.uid, None)
        # A pod already bound that only changed its status frees nothing and needs nothing.
        if new is None or new.is_terminal or not new.spec.node_name:
            self._changed.set()

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if old is None or new is None or old.verdicts != new.verdicts or old.observed.devices != new.observed.devices:
            self._changed.set()

    async def run(self) -> None:
        while True:
            timeout = RECHECK_S if any(self._waiting()) else None
            try:
                # Not `wait_for`: Python 3.11's loses a cancellation that comes in the moment the event is set.
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(SETTLE_S)
            self._changed.clear()
            try:
                await self.cycle()
            except ApiError as error:
                log.warning("cycle failed", error=str(error))
                await asyncio.sleep(1.0)
                self._changed.set()

    async def cycle(self) -> PlacementPlan:
        now = self._clock()
        plan = plan_placement(self._snapshot(now), gather_gangs(self._waiting(), self._siblings, self._domain))
        await write_all(self._bind, plan.assignments)
        await write_all(lambda refused: self._refuse(*refused, now), plan.refused)
        return plan

    def _snapshot(self, now: float) -> Snapshot:
        return build_snapshot(
            self._nodes.items(), self._devices.items(), self._pods.items(), self._dead_nodes(now), self._assumed
        )

    def _waiting(self) -> Iterable[Pod]:
        for pod in self._pods.items():
            if (
                not pod.spec.node_name
                and not pod.is_deleting
                and not pod.is_terminal
                and pod.uid not in self._assumed
                and pod.spec.scheduler_name in self._schedulers
            ):
                yield pod

    def _siblings(self, pod: Pod) -> list[Pod]:
        return self._pods.by_index("gang", f"{pod.namespace}/{pod.labels.get(LABEL_GANG, '')}")

    def _domain(self, node: str, topology: str) -> str | None:
        found = self._nodes.get(node)
        return found.labels.get(topology) if found is not None else None

    async def _bind(self, assignment: Assignment) -> None:
        ask = assignment.pod
        self._assumed[ask.uid] = (assignment.node, assignment.devices)
        annotations = {ANNOTATION_DEVICES: ",".join(assignment.devices)}
        try:
            await self._cluster.bind(
                ask.name, ask.namespace, Binding(assignment.node, ObjectMeta(uid=ask.uid, annotations=annotations))
            )
        except (Conflict, NotFound) as error:
            self._assumed.pop(ask.uid, None)
            self._changed.set()
            log.info("binding refused", pod=ask.name, node=assignment.node, error=str(error))
        except ApiError:
            self._assumed.pop(ask.uid, None)
            raise

    async def _refuse(self, ask: PodAsk, refusal: Refusal, now: float) -> None:
        pod = self._pods.get(ask.name, ask.namespace)
        if pod is None or pod.uid != ask.uid or pod.spec.node_name:
            return
        if refusal.reason == "GangIncomplete" and now - _age(pod) < RECHECK_S:
            return  # the rest is being made; telling every pod of every other one would take longer than that
        text = f"{refusal.message} {refusal.fix}".strip()
        old = pod.status.conditions
        new = with_condition(old, "PodScheduled", False, refusal.reason, text, to_time(now))
        if new is old:
            return
        patch = {"status": {"conditions": [to_wire(c) for c in new]}}
        try:
            await self._cluster.patch(
                Pod, ask.name, patch, ask.namespace, subresource="status", when=Preconditions(uid=ask.uid)
            )
        except (Conflict, NotFound):
            pass  # it went away meanwhile


def gather_gangs(
    pods: Iterable[Pod],
    siblings: Callable[[Pod], list[Pod]],
    domain_of: Callable[[str, str], str | None],
) -> list[GangAsk]:
    """Waiting pods grouped into gangs, oldest gang first; a pod without a gang is a gang of one."""
    groups: dict[str, list[Pod]] = {}
    for pod in pods:
        gang = pod.labels.get(LABEL_GANG)
        groups.setdefault(f"{pod.namespace}/{gang}" if gang else f"{pod.namespace}/pod/{pod.name}", []).append(pod)
    order = sorted(groups.items(), key=lambda item: (min(_age(p) for p in item[1]), item[0]))
    return [_gang(key, found, siblings, domain_of) for key, found in order]


def _gang(
    key: str, waiting: list[Pod], siblings: Callable[[Pod], list[Pod]], domain_of: Callable[[str, str], str | None]
) -> GangAsk:
    first = waiting[0]
    topology = first.annotations.get(ANNOTATION_TOPOLOGY_REQUIRED, "")
    members = [p for p in waiting if p.annotations.get(ANNOTATION_SPARE) != "true"]
    placed = (
        [p for p in siblings(first) if p.spec.node_name and not p.is_deleting and not p.is_terminal]
        if LABEL_GANG in first.labels
        else []
    )
    pinned = next((d for p in waiting if (d := p.annotations.get(ANNOTATION_DOMAIN))), None)
    if pinned is None and placed:
        pinned = domain_of(placed[0].spec.node_name, topology) if topology else ""
    size = int(first.annotations.get(ANNOTATION_GANG_SIZE, "1")) if LABEL_GANG in first.labels else 1
    return GangAsk(
        key=key,
        members=tuple(_ask(p) for p in members),
        spares=tuple(_ask(p) for p in waiting if p.annotations.get(ANNOTATION_SPARE) == "true"),
        topology=topology,
        pinned=pinned,
        waiting_for=max(0, size - len(members)) if pinned is None and members else 0,
    )


def _ask(pod: Pod) -> PodAsk:
    gpus = 0
    for container in pod.spec.containers:
        amounts = {**container.resources.requests, **container.resources.limits}
        gpus += whole(amounts.get(RESOURCE_GPU, 0))
    return PodAsk(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        gpus=gpus,
        node_selector=tuple(sorted(pod.spec.node_selector.items())),
        tolerations=tuple(pod.spec.tolerations),
    )


def _age(pod: Pod) -> float:
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created else 0.0

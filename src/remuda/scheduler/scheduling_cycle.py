"""One scheduling cycle: gather what waits, decide on one snapshot, bind.

A cycle runs whenever pods, nodes or verdicts changed, at most one at a time. Bindings that the informer has not shown back
are *assumed*: their devices count as taken until the pod is seen bound or the binding was refused, so two cycles can never give
one device away twice. One without an answer may have been done: it stays assumed, and each cycle begins by reading its pod
(`core.scheduling.unanswered_bindings`).

A refused pod gets a PodScheduled=False condition with the reason and the fix, written only when it changes. Pods of an owner
whose last ones were refused by their nodes wait before they are placed again, longer each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec.structs import replace

from remuda.api.codec import to_wire
from remuda.api.conditions import with_condition
from remuda.api.devices import NodeDevices
from remuda.api.errors import ApiError, Conflict, NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Binding, Node, Pod
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.names import ANNOTATION_DEVICES, LABEL_GANG
from remuda.core.foreign.refused_pods import (
    PLACED,
    PLACED_WORDS,
    foreign_pod_wants_placed_condition,
    owner_of_refused_pods,
    refused_pods_hold_until,
)
from remuda.core.scheduling.gang_placement import PlacementPlan, plan_placement_in_steps
from remuda.core.scheduling.placement_request import Assignment, PodAsk
from remuda.core.scheduling.unanswered_bindings import (
    BindingStep,
    UnansweredBinding,
    is_binding_in_doubt,
    plan_unanswered_binding,
)
from remuda.core.scheduling.waiting_gangs import gather_waiting_gangs, waiting_pod_created_at
from remuda.core.state.reservations import Reservation
from remuda.core.state.snapshot import build_snapshot
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.informer import Informer

log = structlog.get_logger(__name__)

SETTLE_S = 0.01  # pods of a gang are made one after another; a cycle a moment later sees them all
RETRY_S = 1.0  # after a cycle that failed
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
        *,
        penalties: Mapping[str, int] | None = None,
        reserved: Callable[[], Iterable[Reservation]] = tuple,
        unreported: Callable[[float], frozenset[str]] = lambda now: frozenset(),
        agentless: Callable[[float], frozenset[str]] = lambda now: frozenset(),
        events: EventSink = SILENCE,
    ) -> None:
        """`penalties`: what speaks against a node without closing it; `reserved`: places that only some may have; `unreported`:
        nodes whose devices are not known yet; `agentless`: nodes without a live agent. All are read anew on every cycle."""
        self._cluster = cluster
        self._penalties = penalties
        self._reserved = reserved
        self._unreported = unreported
        self._agentless = agentless
        self._pods, self._nodes, self._devices = pods, nodes, devices
        self._dead_nodes = dead_nodes
        self._clock = clock
        self._schedulers = schedulers
        self._events = events
        self._assumed: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._unanswered: dict[str, UnansweredBinding] = {}  # of those
        self._changed = asyncio.Event()
        pods.add_index("unbound", lambda pod: [] if pod.spec.node_name else ["*"])
        pods.subscribe(self._on_pod)
        nodes.subscribe(lambda old, new: self._changed.set())
        devices.subscribe(self._on_devices)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name or new.is_terminal):
            self._free(pod.uid)
        # A pod already bound that only changed its status frees nothing and needs nothing.
        if new is None or new.is_terminal or not new.spec.node_name:
            self._changed.set()

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if old is None or new is None or _placement_facts(old) != _placement_facts(new):
            self._changed.set()

    async def run(self) -> None:
        while True:
            timeout = RECHECK_S if self._unanswered or any(self._waiting()) else None
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
            except Exception as error:  # nothing but cancellation ends the loop: one odd object must not stop everybody
                if isinstance(error, ApiError):
                    log.warning("cycle failed", error=str(error))
                else:
                    log.exception("cycle failed")
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def cycle(self) -> PlacementPlan:
        now = self._clock()
        await write_all_objects(lambda binding: self._settle(binding, now), list(self._unanswered.values()))
        asks = gather_waiting_gangs(self._ready(now), self._siblings, self._domain, now)
        assignments: list[Assignment] = []
        refused: list[tuple[PodAsk, Refusal]] = []
        if not asks:  # most cycles: devices fail and heal while nobody waits, and a snapshot costs the whole cluster
            return PlacementPlan((), ())
        snapshot = build_snapshot(
            self._nodes.items(),
            self._devices.items(),
            self._pods.items(),
            self._dead_nodes(now),
            self._assumed,
            self._penalties,
            self._reserved(),
            self._unreported(now),
            self._agentless(now),
        )
        # Piece by piece: a plan for thousands of pods takes seconds, and leases must be renewed meanwhile.
        for part in plan_placement_in_steps(snapshot, asks):
            await write_all_objects(self._bind, part.assignments)
            await write_all_objects(lambda why: self._refuse(*why, now), part.refused)
            assignments += part.assignments
            refused += part.refused
            await asyncio.sleep(0)
        return PlacementPlan(tuple(assignments), tuple(refused))

    def _waiting(self) -> Iterable[Pod]:
        for pod in self._pods.by_index("unbound", "*"):
            if (
                not pod.is_deleting
                and not pod.is_terminal
                and pod.uid not in self._assumed
                and not pod.spec.scheduling_gates
                and pod.spec.scheduler_name in self._schedulers
            ):
                yield pod

    def _ready(self, now: float) -> Iterable[Pod]:
        """Those that wait, without the ones whose owner's last were refused by their nodes a moment ago."""
        for pod in self._waiting():
            rejected = self._pods.by_index("rejected", owner_of_refused_pods(pod))
            if not rejected or refused_pods_hold_until(rejected, now) <= now:
                yield pod

    def _siblings(self, pod: Pod) -> list[Pod]:
        """Those that were just bound count as bound, seen back or not: the gang sits where they sit."""
        found = self._pods.by_index("gang", f"{pod.namespace}/{pod.labels.get(LABEL_GANG, '')}")
        return [self._as_assumed(p) if p.uid in self._assumed else p for p in found]

    def _as_assumed(self, pod: Pod) -> Pod:
        return replace(pod, spec=replace(pod.spec, node_name=self._assumed[pod.uid][0]))

    def _domain(self, node: str, topology: str) -> str | None:
        found = self._nodes.get(node)
        return found.labels.get(topology) if found is not None else None

    def _free(self, uid: str) -> None:
        self._assumed.pop(uid, None)
        self._unanswered.pop(uid, None)

    async def _bind(self, assignment: Assignment) -> None:
        ask = assignment.pod
        self._assumed[ask.uid] = (assignment.node, assignment.devices)
        pod = self._pods.get(ask.name, ask.namespace)
        try:
            if pod is not None and pod.uid == ask.uid and foreign_pod_wants_placed_condition(pod):
                await self._mark_placed(pod)
        except Exception:
            self._free(ask.uid)  # the binding was not sent
            raise
        try:
            await self._send_binding(assignment)
        except (Conflict, NotFound) as error:
            self._free(ask.uid)
            self._changed.set()
            log.info("binding refused", pod=ask.name, node=assignment.node, error=str(error))
        except Exception as error:
            if is_binding_in_doubt(error):
                self._unanswered[ask.uid] = UnansweredBinding(assignment, self._clock())
            else:
                self._free(ask.uid)
            raise

    async def _send_binding(self, assignment: Assignment) -> None:
        ask = assignment.pod
        annotations = {ANNOTATION_DEVICES: ",".join(assignment.devices)}
        await self._cluster.bind(
            ask.name, ask.namespace, Binding(assignment.node, ObjectMeta(uid=ask.uid, annotations=annotations))
        )
        pod = self._pods.get(ask.name, ask.namespace)
        if pod is not None and pod.uid == ask.uid:
            held = f" with {', '.join(assignment.devices)}" if assignment.devices else ""
            text = f"Successfully assigned {ask.namespace}/{ask.name} to {assignment.node}{held}"
            self._events.normal(pod, "Scheduled", text)

    async def _settle(self, binding: UnansweredBinding, now: float) -> None:
        """Finds out what became of a binding without an answer. What cannot be found out now is looked at again later."""
        ask = binding.assignment.pod
        try:
            pod: Pod | None = await self._cluster.get(Pod, ask.name, ask.namespace)
        except NotFound:
            pod = None
        except ApiError as error:
            log.info("unanswered binding not read", pod=ask.name, error=str(error))
            return
        step = plan_unanswered_binding(binding, pod, now)
        if step is BindingStep.FREE:
            self._free(ask.uid)
        elif step is BindingStep.DONE:
            self._unanswered.pop(ask.uid, None)
        else:
            try:
                await self._send_binding(binding.assignment)
            except Exception as error:  # also a refusal says nothing of the one before
                if is_binding_in_doubt(error):
                    self._unanswered[ask.uid] = UnansweredBinding(binding.assignment, self._clock())
                if not isinstance(error, ApiError):
                    raise
                log.info("binding sent again in vain", pod=ask.name, error=str(error))
            else:
                self._unanswered.pop(ask.uid, None)

    async def _mark_placed(self, pod: Pod) -> None:
        """Before it is bound: afterwards its node may have refused it, and its owner's controller judged that, already."""
        old = pod.status.conditions
        new = with_condition(old, PLACED, True, "Placed", PLACED_WORDS, to_time(self._clock()))
        if new is not old:
            patch = {"status": {"conditions": [to_wire(c) for c in new]}}
            when = Preconditions(uid=pod.uid)
            await self._cluster.patch(Pod, pod.name, patch, pod.namespace, subresource="status", when=when)

    async def _refuse(self, ask: PodAsk, refusal: Refusal, now: float) -> None:
        pod = self._pods.get(ask.name, ask.namespace)
        if pod is None or pod.uid != ask.uid or pod.spec.node_name:
            return
        if refusal.reason == "GangIncomplete" and now - waiting_pod_created_at(pod) < RECHECK_S:
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
            return  # it went away meanwhile
        self._events.warning(pod, "FailedScheduling", f"{refusal.reason}: {text}")


def _placement_facts(node: NodeDevices) -> tuple[object, ...]:
    """The parts of a node's record that decide what fits there."""
    return node.verdicts, node.observed.devices, node.observed.holdings, node.withheld

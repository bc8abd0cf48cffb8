"""Emptying nodes before they are rebooted or handed over, and who may. Pure.

One incident has a node at a time: its name is in the annotation `remuda.dev/remedy-by`, and the others wait. A node
that somebody else has cordoned, is taking down or has deleted is theirs. Our own cordon carries the incident's name,
and only what carries it is ever taken back.

A drain asks first (`remuda.dev/drain-requested`): until the checkpoint's deadline gangs may save and move by
themselves. Then they are evicted like all others, which were from the start; evictions ask the pods' disruption
budgets. At the drain's deadline what is left is deleted, so a budget that can never be met costs the deadline and no
more. Pods of DaemonSets and of the kubelet's own files stay, and our own managers: where no other node would take them,
nobody would be left to give the node back. They start again with it, and the one that leads elsewhere takes over.

A node whose links go on into other nodes is recycled with all of its domain or not at all: a reboot takes the others'
links down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject, to_time
from remuda.api.names import (
    ANNOTATION_CORDONED_BY,
    ANNOTATION_DRAIN_REQUESTED,
    ANNOTATION_REMEDY_BY,
    LABEL_APP,
    LABEL_CLIQUE,
    LABEL_GANG,
    MANAGER_APP,
)
from remuda.api.remedies import Drain
from remuda.core.devices.machine_models import known_machine_models, load_built_in_machine_model

# Taints by which others say that they are taking the node down.
OTHERS_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler",
    "karpenter.sh/disrupted": "Karpenter",
    "karpenter.sh/disruption": "Karpenter",
    "medik8s.io/remediation": "medik8s",
    "node.kubernetes.io/out-of-service": "an operator",
}
NVSENTINEL_CORDON = "quarantineHealthEventIsCordoned"  # annotation that NVSentinel keeps while the cordon is its own
_MIRROR = "kubernetes.io/config.mirror"
GONE_S = 60.0  # after the deadline: pods whose node does not answer are not waited for any longer
RETRY_S = 5.0  # between two evictions of one pod


class DrainRequest(msgspec.Struct, frozen=True):
    """What `remuda.dev/drain-requested` says. `until`: how long gangs have to save and move by themselves, in Unix seconds."""

    incident: str
    until: float

    def render(self) -> str:
        return f"{self.incident}/{to_time(self.until).isoformat()}"


# --- whose a node is --------------------------------------------------------------------------------------------------


def other_actor_on_node(node: Node, *, take_over: bool = False) -> str:
    """A sentence about who else is at work on the node; "" when nobody is."""
    if node.is_deleting:
        return f"{node.name} is being deleted."
    for taint in node.spec.taints:
        if taint.key in OTHERS_TAINTS:
            return f"{node.name} is being worked on by {OTHERS_TAINTS[taint.key]} (taint {taint.key})."
    if take_over or not node.spec.unschedulable or node.annotations.get(ANNOTATION_CORDONED_BY):
        return ""
    who = "NVSentinel" if NVSENTINEL_CORDON in node.annotations else "somebody else"
    return f"{node.name} was cordoned by {who}."


def remedy_holder(node: Node) -> str:
    return node.annotations.get(ANNOTATION_REMEDY_BY, "")


def remedy_marks(node: Node) -> set[str]:
    """Incidents and roll-outs whose marks the node carries."""
    marks = node.annotations
    return {marks[name] for name in (ANNOTATION_REMEDY_BY, ANNOTATION_CORDONED_BY) if marks.get(name)}


def node_hold_patch_for_remedy(node: Node, incident: str) -> JsonObject:
    """What makes the node ours, and nothing else yet. {} when it is."""
    if remedy_holder(node) == incident:
        return {}
    return {"metadata": {"annotations": {ANNOTATION_REMEDY_BY: incident}}}


def node_drain_patch_for_remedy(
    node: Node, incident: str, *, hold: bool, cordon: bool, request: DrainRequest | None
) -> JsonObject:
    """What makes the node ours as far as asked, or gives it back. {} when it is so already.

    Only what carries our name is undone. A node that somebody uncordoned by hand meanwhile stays so when we give it
    back; while we need it cordoned, it is cordoned again."""
    marks = node.annotations
    annotations: JsonObject = {}
    spec: JsonObject = {}
    ours = marks.get(ANNOTATION_CORDONED_BY) == incident
    if hold and marks.get(ANNOTATION_REMEDY_BY) != incident:
        annotations[ANNOTATION_REMEDY_BY] = incident
    elif not hold and marks.get(ANNOTATION_REMEDY_BY) == incident:
        annotations[ANNOTATION_REMEDY_BY] = None
    if cordon:
        if not node.spec.unschedulable:
            spec["unschedulable"] = True
        # A mark of another incident is one that is closed: whoever has the node now takes the cordon over with it.
        if not ours and (spec or marks.get(ANNOTATION_CORDONED_BY)):
            annotations[ANNOTATION_CORDONED_BY] = incident
    elif ours:
        annotations[ANNOTATION_CORDONED_BY] = None
        if node.spec.unschedulable:
            spec["unschedulable"] = None
    asked = marks.get(ANNOTATION_DRAIN_REQUESTED, "")
    if request is not None and asked != request.render():
        annotations[ANNOTATION_DRAIN_REQUESTED] = request.render()
    elif request is None and asked.startswith(f"{incident}/"):
        annotations[ANNOTATION_DRAIN_REQUESTED] = None
    patch: JsonObject = {"metadata": {"annotations": annotations}} if annotations else {}
    return {**patch, "spec": spec} if spec else patch


# --- what goes with it ------------------------------------------------------------------------------------------------


class RecycleDomain(msgspec.Struct, frozen=True):
    """Nodes that are recycled together. `name`: as incidents spell it, "nvlink/<clique>"; "" for a node by itself."""

    name: str
    nodes: tuple[str, ...]
    missing: int = 0  # nodes the model says there are and nobody has seen


def domain_recycled_by_remedy(node: Node, devices: NodeDevices | None, peers: Iterable[Node]) -> RecycleDomain:
    """`peers`: nodes that may share its domain; others among them do no harm."""
    label, size = _recycle_domain_fabric(devices)
    value = node.labels.get(label, "")
    if not value:
        # A tray that cannot say which domain it is of has one all the same.
        return RecycleDomain(f"unknown domain of {node.name}" if size > 1 else "", (node.name,), size - 1)
    names = {node.name, *(p.name for p in peers if p.labels.get(label) == value)}
    if len(names) == 1 and size == 1:
        return RecycleDomain("", (node.name,))
    return RecycleDomain(f"nvlink/{value}", tuple(sorted(names)), max(0, size - len(names)))


def _recycle_domain_fabric(devices: NodeDevices | None) -> tuple[str, int]:
    """The label that names the domain, and how many nodes one has; (label, 1) when the model has none."""
    model = devices.observed.model if devices is not None else ""
    if model in known_machine_models():
        fabric = load_built_in_machine_model(model).fabric
        if fabric is not None:
            return fabric.label, fabric.nodes
    return LABEL_CLIQUE, 1


# --- emptying it ------------------------------------------------------------------------------------------------------


class DrainPlan(msgspec.Struct, frozen=True):
    """`evict` asks the budgets, `delete` does not. `is_done`: nothing that has to go is left."""

    evict: tuple[Pod, ...] = ()
    delete: tuple[Pod, ...] = ()
    left: tuple[str, ...] = ()  # pods that are still there, namespace/name
    is_done: bool = False
    message: str = ""
    look_again_s: float | None = None


def has_to_be_drained(pod: Pod) -> bool:
    if not pod.is_live or _is_own_manager(pod):
        return False
    return _MIRROR not in pod.annotations and pod.owner("DaemonSet") is None


def _is_own_manager(pod: Pod) -> bool:
    """As deploy/manager.yaml makes it."""
    return pod.labels.get(LABEL_APP) == MANAGER_APP and pod.spec.service_account_name == MANAGER_APP


def plan_drain(pods: Mapping[str, Sequence[Pod]], drain: Drain, started: float, now: float) -> DrainPlan:
    """`pods`: by node, of every node that is to be empty."""
    there = [pod for node in sorted(pods) for pod in pods[node] if has_to_be_drained(pod)]
    left = tuple(f"{pod.namespace}/{pod.name}" for pod in there)
    checkpoint_by, deadline = started + drain.checkpoint_seconds, started + drain.deadline_seconds
    staying = [pod for pod in there if not pod.is_deleting]
    if not there:
        return DrainPlan(is_done=True, message="No pods are left on it.")
    if not staying and now >= deadline + GONE_S:
        return DrainPlan(
            left=left,
            is_done=True,
            message=f"{_draining_pods_in_words(left)} deleted; nobody has confirmed that they ended.",
        )
    if now >= deadline:
        look = RETRY_S if staying else deadline + GONE_S - now
        words = f"The drain's {drain.deadline_seconds:g} s are over: {_draining_pods_in_words(left)} deleted."
        return DrainPlan(delete=tuple(staying), left=left, message=words, look_again_s=look)
    saving = [pod for pod in staying if LABEL_GANG in pod.labels and now < checkpoint_by]
    evict = tuple(pod for pod in staying if pod not in saving)
    ends = [deadline] + ([checkpoint_by] if saving else [])
    look = min(min(ends) - now, RETRY_S) if evict else min(ends) - now
    words = f"{_draining_pods_in_words(left)} still there"
    if saving:
        words += f"; {len(saving)} of them may save a checkpoint until {to_time(checkpoint_by):%H:%M:%S}"
    return DrainPlan(evict=evict, left=left, message=f"{words}.", look_again_s=look)


def _draining_pods_in_words(pods: Sequence[str]) -> str:
    named = ", ".join(pods[:3]) + (" ..." if len(pods) > 3 else "")
    return f"{len(pods)} pod{'' if len(pods) == 1 else 's'} ({named})"

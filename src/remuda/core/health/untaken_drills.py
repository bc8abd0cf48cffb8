"""Drills where kubelets run the pods: what the manager does about one, and when it says no because nobody took it. Pure.

The node's agent carries a drill out, and says so. Some drills no agent can answer: of a node that has none, of a node that does
not exist, of no node at all. They are refused after a while, so that none waits for ever, to be carried out a week later by
an agent that is new there. Deleting a pod is the manager's own, and of pods that a TrainingJob controls only: whoever may make
drills may not delete just any pod by it.
"""

from __future__ import annotations

import msgspec

from remuda.api.drills import Drill, DrillKind
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.training import TrainingJob

UNTAKEN_S = 20.0  # for which a drill waits for its agent
UNANSWERED_S = 1200.0  # for which an agent is believed to be at it: a reboot takes its time


class DrillFacts(msgspec.Struct, frozen=True):
    """`waited_s`: how long the manager has seen it in this phase. `pod`: the one it names, if it is there."""

    drill: Drill
    waited_s: float
    has_node: bool
    pod: Pod | None = None


class DrillPlan(msgspec.Struct, frozen=True):
    """Refuse it, delete its pod, or look again after so many seconds; else nothing is to be done."""

    refusal: Refusal | None = None
    delete: Pod | None = None
    again_s: float | None = None


def plan_untaken_drill(facts: DrillFacts) -> DrillPlan:
    drill, spec = facts.drill, facts.drill.spec
    if drill.status.phase == "Running":
        if facts.waited_s < UNANSWERED_S:
            return DrillPlan(again_s=UNANSWERED_S - facts.waited_s)
        words = (
            f"Whoever began it has not answered for {UNANSWERED_S / 60:g} minutes. Whether it happened is not known."
        )
        return DrillPlan(Refusal("Interrupted", words, "Look at the node."))
    if drill.status.phase != "Pending":
        return DrillPlan()
    if spec.type is DrillKind.POD_DELETE:
        return _plan_pod_deletion(facts)
    if not spec.node:
        return DrillPlan(
            Refusal("NodeNotNamed", "The drill names no node, so no agent may answer it.", "Set spec.node.")
        )
    if facts.waited_s < UNTAKEN_S:
        return DrillPlan(again_s=UNTAKEN_S - facts.waited_s)
    if not facts.has_node:
        return DrillPlan(Refusal("NoSuchNode", f"There is no node {spec.node}.", "See `kubectl get nodes`."))
    return DrillPlan(
        Refusal(
            "NoAgent",
            f"No agent on {spec.node} took the drill within {UNTAKEN_S:g} s. Nothing was broken.",
            "Run `remuda agent` there with the role of deploy/agent.yaml, or look at its log.",
        )
    )


def _plan_pod_deletion(facts: DrillFacts) -> DrillPlan:
    spec, pod = facts.drill.spec, facts.pod
    if pod is None or (spec.node and pod.spec.node_name != spec.node):
        if facts.waited_s < UNTAKEN_S:
            return DrillPlan(again_s=UNTAKEN_S - facts.waited_s)  # it may not have been seen yet
        where = f" on {spec.node}" if spec.node else ""
        words = f"There is no pod {spec.namespace}/{spec.pod}{where}."
        return DrillPlan(Refusal("NoSuchPod", words, "See `remuda job NAME`."))
    if not any(o.controller and o.kind == TrainingJob.resource.kind for o in pod.metadata.owner_references):
        return DrillPlan(
            Refusal(
                "NotOurPod",
                f"Pod {spec.namespace}/{spec.pod} is not of a TrainingJob.",
                f"Delete it yourself: kubectl -n {spec.namespace} delete pod {spec.pod}.",
            )
        )
    return DrillPlan(delete=pod)

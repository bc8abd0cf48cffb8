"""In which order Remuda goes. Pure: what is there in, steps out; planning again on what was done gives the steps that are left.

  stop       the manager, then the agents: nobody gives an order or writes a mark any more. Rights and kinds are still there: an
             agent that may not renew its lease would take it for a lost API and stop its ranks
  marks      what is ours on nodes, pods and Jobs of others goes; nodes that we cordoned are open again
  workloads  pods of TrainingJobs lose their owner, so that they run on when it goes; or go with it, if that is asked for
  rest       leases, ConfigMap, rights, policies, namespace; our kinds last, and with them every object of them

Nodes are cleaned between stop and marks (`cleaning_pods`): after the agents, and while the labels still say where they were.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node, Pod
from remuda.api.meta import JsonObject, KObject, Resource
from remuda.api.names import SCHEDULER
from remuda.api.training import TrainingJob
from remuda.core.health.agent_liveness import node_of_liveness_lease
from remuda.core.uninstall.foreign_marks import (
    is_training_pod_at_uninstall,
    node_patch_in_words,
    orphan_pod_at_uninstall,
    unmark_job,
    unmark_node,
    unmark_pod_at_uninstall,
)
from remuda.core.uninstall.installed_objects import SYSTEM, InstalledObject, installed_objects, workloads_to_uninstall

STOP, MARKS, WORKLOADS, REST = "stop", "marks", "workloads", "rest"


class UninstallObserved(msgspec.Struct, frozen=True, kw_only=True):
    """What is there. `installed`: of `installed_objects` and `workloads_to_uninstall`. `taint_rules`: names of those that are
    ours, and the kind that the cluster serves them as."""

    system: str = SYSTEM
    installed: Collection[InstalledObject] = ()
    nodes: Sequence[Node] = ()
    pods: Sequence[Pod] = ()
    jobs: Sequence[Job] = ()
    training_jobs: Sequence[TrainingJob] = ()
    leases: Sequence[Lease] = ()  # of nodes and agents
    taint_rules: Sequence[str] = ()
    taint_rule_kind: Resource | None = None

    @property
    def gang_pods(self) -> list[Pod]:
        return [pod for pod in self.pods if is_training_pod_at_uninstall(pod)]


class UninstallStep(msgspec.Struct, frozen=True):
    """`patch` None: the object is deleted. `version`: as it was seen; "" = whatever it is by now."""

    part: str
    resource: Resource
    name: str
    what: str
    namespace: str = ""
    patch: JsonObject | None = None
    subresource: str = ""
    uid: str = ""
    version: str = ""


def plan_uninstall(seen: UninstallObserved, *, delete_jobs: bool) -> list[UninstallStep]:
    return [*_stop(seen), *_unmark(seen), *_workloads(seen, delete_jobs), *_rest(seen)]


def what_stays(seen: UninstallObserved, *, delete_jobs: bool) -> list[str]:
    """Sentences about what is left, and what that means."""
    found = []
    live = [pod for pod in seen.gang_pods if pod.is_live]
    if live and not delete_jobs:
        many = f"{len(live)} pod{'' if len(live) == 1 else 's'} of TrainingJobs"
        found.append(
            f"{many} run on without an owner. Nobody recovers them any more: a rank that fails stays down, and its gang with it. "
            "Delete them yourself when they are done."
        )
    waiting = [p for p in seen.pods if p.spec.scheduler_name == SCHEDULER and not p.spec.node_name and p.is_live]
    if waiting:
        found.append(
            f"{len(waiting)} waiting pod{'' if len(waiting) == 1 else 's'} ask for the scheduler `{SCHEDULER}`. "
            "Nobody places them any more: make them again with another schedulerName."
        )
    return found


def _stop(seen: UninstallObserved) -> list[UninstallStep]:
    words = ("stop the managers", "stop the agents; what runs on their nodes runs on", "end the cleaning of nodes")
    parts = zip(workloads_to_uninstall(seen.system), words, strict=True)
    return [_delete(STOP, each, what) for each, what in parts if each in seen.installed]


def _unmark(seen: UninstallObserved) -> list[UninstallStep]:
    steps = []
    for node in seen.nodes:
        if patch := unmark_node(node):
            steps.append(_patch(MARKS, node, patch, node_patch_in_words(patch)))
    for pod in seen.pods:
        if is_training_pod_at_uninstall(pod):
            continue
        patch, status = unmark_pod_at_uninstall(pod)
        if status:
            steps.append(_patch(MARKS, pod, status, "remove conditions", "status"))
        if patch:
            steps.append(_patch(MARKS, pod, patch, "remove annotations"))
    for job in seen.jobs:
        if patch := unmark_job(job):
            steps.append(_patch(MARKS, job, patch, "remove annotations"))
    if seen.taint_rule_kind is not None:
        what = "delete: its device may be claimed again"
        steps += [UninstallStep(MARKS, seen.taint_rule_kind, name, what) for name in seen.taint_rules]
    return steps


def _workloads(seen: UninstallObserved, delete_jobs: bool) -> list[UninstallStep]:
    steps = []
    for pod in seen.gang_pods:
        if delete_jobs:
            what = "delete"
            steps.append(UninstallStep(WORKLOADS, Pod.resource, pod.name, what, pod.namespace, uid=pod.uid))
        else:
            steps.append(_patch(WORKLOADS, pod, orphan_pod_at_uninstall(pod), "keep: takes it from its job, runs on"))
    what = "delete" if delete_jobs else "delete its record; its pods run on"
    return steps + [
        UninstallStep(WORKLOADS, TrainingJob.resource, job.name, what, job.namespace, uid=job.uid)
        for job in seen.training_jobs
    ]


def _rest(seen: UninstallObserved) -> list[UninstallStep]:
    agents = [lease.name for lease in seen.leases if node_of_liveness_lease(lease.name)]
    steps = [UninstallStep(REST, Lease.resource, name, "delete", NODE_LEASE_NAMESPACE) for name in agents]
    for each in installed_objects(seen.system):
        if each in seen.installed:
            what = "delete, with everything in it" if each.resource.kind == "Namespace" else "delete"
            what = "delete, with every object of it" if each.resource.kind == "CustomResourceDefinition" else what
            steps.append(_delete(REST, each, what))
    return steps


def _delete(part: str, each: InstalledObject, what: str) -> UninstallStep:
    return UninstallStep(part, each.resource, each.name, what, each.namespace)


def _patch(part: str, obj: KObject, patch: JsonObject, what: str, subresource: str = "") -> UninstallStep:
    """Guarded by the version seen where a list is written whole, or a cordon taken back; names that go need no guard."""
    is_guarded = bool(subresource) or "spec" in patch or "ownerReferences" in patch["metadata"]
    version = obj.metadata.resource_version if is_guarded else ""
    return UninstallStep(part, type(obj).resource, obj.name, what, obj.namespace, patch, subresource, obj.uid, version)

"""Pods that their node refused to admit, new or after its reboot: nobody's failure but the infrastructure's. Pure.

A refused pod is not charged to its workload. It is tried again after 1, 2, 4 ... seconds, at most five minutes, by how many of
its owner's were refused in a row. The count is kept on the pods themselves (`remuda.dev/rejections`), of which the newest
KEPT_PODS per owner and node stay as evidence. ADMISSION_BUDGET in a row are free, for a Job as many for each pod that it
runs at a time. What is refused more often is its workload's matter: a TrainingJob fails by that name, a Job pays for further
ones with its own tries, a bare pod is not made again. A ReplicaSet knows no end.

The embedded Job controller does not count refused pods. kube-controller-manager does, before anybody could tell it not to, so a
Job there gets each try back: its backoffLimit is raised by one (`patch_forgiving_foreign_job`). A limit of 0 is lost by then.
What it heeds in time is the Job's podFailurePolicy, and a kubelet that refuses a pod keeps the conditions that are not its own.
So a pod that asks for it gets one (PLACED) before it is bound, for a rule to match.

Nothing is done for a pod before its refusal is recorded, so what was done once is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, to_seconds
from remuda.api.names import (
    ANNOTATION_DEVICES,
    ANNOTATION_FORGIVEN,
    ANNOTATION_REJECTIONS,
    ANNOTATION_RETRY_ADMISSION,
    ANNOTATION_RETRY_OF,
)
from remuda.core.foreign.gangs import is_remuda_pod

ADMISSION_REJECTED = "AdmissionRejected"  # a refused pod's condition
PLACED = "PlacedByRemuda"  # the condition of a pod whose node our scheduler chose
PLACED_WORDS = "Our scheduler chose its node. If it ends without an exit code, its program was not the cause."
KEPT_PODS = 3  # refused pods of one owner on one node that are kept
LONGEST_RETRY_S = 300.0
FORGIVEN_S = 900.0  # without another one, a row is over
FORGIVEN_KEPT = 32  # uids remembered on a Job; far more than are kept of its refused pods
ADMISSION_BUDGET = 60  # refused tries in a row, the last fifty of them five minutes apart
BUDGET_EXHAUSTED = "AdmissionBudgetExhausted"
ADMISSION_USED = "admission"  # the key under which a TrainingJob's tries are counted, beside the budgets of its causes

_REASONS = ("UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError", "NodePorts", "AdmissionFailed")
OUT_OF = "OutOf"


def is_pod_refused_by_node(pod: Pod) -> bool:
    """Refused at admission: Failed, for one of the kubelet's reasons, which it gives to no other end. Its containers may have
    run: after a reboot a node admits its pods anew, and one that comes before its plugin is refused."""
    return pod.status.phase == "Failed" and (pod.status.reason in _REASONS or pod.status.reason.startswith(OUT_OF))


def pod_refused_at(pod: Pod) -> float:
    """When it was refused, or the nearest that is known."""
    found = (find_condition(pod.status.conditions, kind) for kind in (ADMISSION_REJECTED, "Ready"))
    times = [*(c.last_transition_time for c in found if c is not None), pod.status.start_time]
    return next((to_seconds(at) for at in (*times, pod.metadata.creation_timestamp) if at is not None), 0.0)


def is_foreign_pod_refusal_recorded(pod: Pod) -> bool:
    return is_condition_true(pod.status.conditions, ADMISSION_REJECTED)


def refused_pod_number(pod: Pod) -> int:
    """Its number in its owner's row, as recorded."""
    text = pod.annotations.get(ANNOTATION_REJECTIONS, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def owner_of_refused_pods(pod: Pod) -> str:
    """Whose refusals count together: the controlling owner, else the bare pod and those that were made again for it."""
    owner = next((ref for ref in pod.metadata.owner_references if ref.controller), None)
    name = pod.annotations.get(ANNOTATION_RETRY_OF, "") or pod.name
    return owner.uid if owner is not None else f"{pod.namespace}/{name}"


def refused_pods_in_a_row(refused: Iterable[Pod], now: float) -> int:
    """Of one owner's refused pods; 0 when the last is long ago."""
    recent = [p for p in refused if now - pod_refused_at(p) < FORGIVEN_S]
    return max([len(recent), *map(refused_pod_number, recent)], default=0)


def refused_pod_retry_s(number: int) -> float:
    """Seconds to wait after so many refusals in a row; none after none."""
    return 0.0 if number < 1 else min(LONGEST_RETRY_S, 2.0 ** min(number - 1, 16))


def refused_pods_hold_until(refused: Sequence[Pod], now: float) -> float:
    """Until when another pod of the same owner is not to be placed; 0: it may be."""
    number = refused_pods_in_a_row(refused, now)
    return max(map(pod_refused_at, refused)) + refused_pod_retry_s(number) if number else 0.0


def foreign_job_admission_budget(job: Job) -> int:
    """Refusals in a row that cost a Job nothing. One failure may hit all pods that it runs at a time."""
    return ADMISSION_BUDGET * max(1, job.spec.parallelism)


def is_foreign_admission_budget_spent(job: Job, refused: Iterable[Pod]) -> bool:
    """By the Job's refused pods that are kept."""
    return max(map(refused_pod_number, refused), default=0) >= foreign_job_admission_budget(job)


def patch_forgiving_foreign_job(job: Job, uid: str) -> JsonObject:
    """The patch by which a Job gets a try back for a refused pod that its controller counts; {} when it has got it. Both fields
    go into one write, so that it happens once."""
    forgiven = [u for u in job.annotations.get(ANNOTATION_FORGIVEN, "").split(",") if u]
    if uid in forgiven:
        return {}
    known = ",".join([*forgiven, uid][-FORGIVEN_KEPT:])
    limit = job.spec.backoff_limit + 1
    return {"spec": {"backoffLimit": limit}, "metadata": {"annotations": {ANNOTATION_FORGIVEN: known}}}


def is_bare_pod(pod: Pod) -> bool:
    return not any(ref.controller for ref in pod.metadata.owner_references)


def foreign_pod_wants_retry(pod: Pod) -> bool:
    """A bare pod that asks to be made again."""
    return is_bare_pod(pod) and pod.annotations.get(ANNOTATION_RETRY_ADMISSION) == "true"


def foreign_pod_wants_placed_condition(pod: Pod) -> bool:
    """Whether it gets the condition PLACED before it is bound: it has an owner that may have a rule about it, and says so."""
    return not is_bare_pod(pod) and pod.annotations.get(ANNOTATION_RETRY_ADMISSION) == "true"


def foreign_retry_pod_body(pod: JsonObject, number: int) -> JsonObject:
    """The body of the pod that is made for one refused so many times in a row: another name, no node. `pod`: the whole object."""
    meta, spec = pod["metadata"], pod["spec"]
    annotations = dict(meta.get("annotations") or {})
    base = annotations.get(ANNOTATION_RETRY_OF) or meta["name"]
    annotations.pop(ANNOTATION_DEVICES, None)
    annotations |= {ANNOTATION_RETRY_OF: base, ANNOTATION_REJECTIONS: str(number)}
    suffix = f"-retry{number}"
    labels, name = dict(meta.get("labels") or {}), base[: 253 - len(suffix)] + suffix
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": meta["namespace"], "labels": labels, "annotations": annotations},
        "spec": {field: value for field, value in spec.items() if field != "nodeName"},
    }


class RefusedPodsPlan(msgspec.Struct, frozen=True):
    record: tuple[tuple[Pod, int], ...] = ()  # each with its number in its owner's row
    prune: tuple[Pod, ...] = ()
    retry: tuple[tuple[Pod, int], ...] = ()  # bare pods to make anew
    look_again_s: float | None = None


def plan_refused_pods(pods: Iterable[Pod], of_owner: Callable[[str], Iterable[Pod]], now: float) -> RefusedPodsPlan:
    """One look at one node. `pods`: its own. `of_owner`: an owner's refused pods that are kept, on whatever node."""
    refused = [p for p in pods if is_pod_refused_by_node(p)]
    retry: list[tuple[Pod, int]] = []
    waits: list[float] = []
    for pod in refused:
        number = max(1, refused_pod_number(pod))
        is_waiting = foreign_pod_wants_retry(pod) and is_foreign_pod_refusal_recorded(pod) and not pod.is_deleting
        if is_waiting and number <= ADMISSION_BUDGET:
            left = pod_refused_at(pod) + refused_pod_retry_s(number) - now
            if left <= 0:
                retry.append((pod, number))
            else:
                waits.append(left + 0.001)
    record = number_foreign_pod_refusals((p for p in refused if not is_remuda_pod(p)), of_owner, now)
    prune = refused_pods_to_prune(refused)
    return RefusedPodsPlan(tuple(record), tuple(prune), tuple(retry), min(waits, default=None))


def number_foreign_pod_refusals(
    refused: Iterable[Pod], of_owner: Callable[[str], Iterable[Pod]], now: float
) -> list[tuple[Pod, int]]:
    """Those that are not recorded yet, oldest first, each with its number in its owner's row."""
    rows: dict[str, int] = {}
    found: list[tuple[Pod, int]] = []
    for pod in sorted(refused, key=lambda p: (pod_refused_at(p), p.name)):
        if not is_foreign_pod_refusal_recorded(pod):
            owner = owner_of_refused_pods(pod)
            if owner not in rows:
                rows[owner] = refused_pods_in_a_row(filter(is_foreign_pod_refusal_recorded, of_owner(owner)), now)
            rows[owner] = max(rows[owner], refused_pod_number(pod)) + 1
            found.append((pod, rows[owner]))
    return found


def refused_pods_to_prune(refused: Iterable[Pod]) -> list[Pod]:
    """Of one node's refused pods the older ones, per owner. Only those that are recorded; a TrainingJob sees to its own, and a
    bare pod is its user's."""
    by_owner: dict[str, list[Pod]] = {}
    for pod in sorted(refused, key=lambda p: (pod_refused_at(p), refused_pod_number(p), p.name), reverse=True):
        if not is_bare_pod(pod) and not is_remuda_pod(pod):
            by_owner.setdefault(owner_of_refused_pods(pod), []).append(pod)
    old = (pod for pods in by_owner.values() for pod in pods[KEPT_PODS:])
    return sorted(
        (p for p in old if is_foreign_pod_refusal_recorded(p) and not p.is_deleting),
        key=lambda p: (p.namespace, p.name),
    )

"""Pods that their node refused to admit, new or after its reboot: nobody's failure but the infrastructure's. Pure.

A refused pod is not charged to its workload. It is tried again after `retry_after(n)`, n being how many of its owner's were
refused in a row: 1, 2, 4 ... seconds, at most five minutes. The count is kept on the pods themselves (`remuda.dev/rejections`),
of which the newest KEPT_PODS per owner and node stay as evidence; older ones are deleted, so the count outlives them.

The tries have a budget of their own: BUDGET in a row, of a Job for each pod that it runs at a time. What is refused more often is
its workload's matter: a TrainingJob fails by that name, a Job pays for further ones with its own tries, a bare pod is not made
again. A ReplicaSet knows no end.

The embedded Job controller does not count refused pods. kube-controller-manager does, before anybody could tell it not to, so a
Job there gets each try back: its backoffLimit is raised by one (`forgiveness`). A limit of 0 is lost by then. What it heeds in
time is the Job's podFailurePolicy, and a kubelet that refuses a pod keeps the conditions that are not its own. So a pod that asks
for it gets one (PLACED) before it is bound, for a rule to match.

A *black hole* is a node that goes on refusing pods of one resource: it is always free, so everything is sent there. After
`Limits.rejections` of a resource on one node within the window, `NodeDevices.withheld` takes the resource out of placement with
the refused pods as evidence. Rejections are noted in `NodeDevices.rejections` one by one, which outlives the pods and restarts.
Those of before the resource's plugin was last started count no more, and none count while it is away: that passes by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from remuda.api.conditions import find_condition, is_true
from remuda.api.devices import NodeDevices, QuarantineOrder, Rejection
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, to_seconds, to_time
from remuda.api.names import (
    ANNOTATION_DEVICES,
    ANNOTATION_FORGIVEN,
    ANNOTATION_REJECTIONS,
    ANNOTATION_RETRY_ADMISSION,
    ANNOTATION_RETRY_OF,
)
from remuda.core.state.pod_requests import is_extended, requests_of

ADMISSION_REJECTED = "AdmissionRejected"  # a refused pod's condition
PLACED = "PlacedByRemuda"  # the condition of a pod whose node our scheduler chose
PLACED_WORDS = "Our scheduler chose its node. If it ends without an exit code, its program was not the cause."
BLACK_HOLE = "BlackHole"
BY = "remuda/rejections"  # who withheld it
KEPT_PODS = 3  # refused pods of one owner on one node that are kept
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 300.0
FORGIVEN_S = 900.0  # without another one, a row is over
FORGIVEN_KEPT = 32  # uids remembered on a Job; far more than are kept of its refused pods
BUDGET = 60  # refused tries in a row, the last fifty of them five minutes apart
BUDGET_EXHAUSTED = "AdmissionBudgetExhausted"
USED = "admission"  # the key under which a TrainingJob's tries are counted, beside the budgets of its causes

_REASONS = frozenset(
    {"UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError", "NodePorts", "AdmissionFailed"}
)
_OUT_OF = "OutOf"


class Limits(msgspec.Struct, frozen=True):
    rejections: int = 5
    window_s: float = 600.0


DEFAULT = Limits()


def is_rejection(pod: Pod) -> bool:
    """Refused at admission: Failed, for one of the kubelet's reasons, which it gives to no other end. Its containers may have
    run: after a reboot a node admits its pods anew, and one that comes before its plugin is refused."""
    status = pod.status
    return status.phase == "Failed" and (status.reason in _REASONS or status.reason.startswith(_OUT_OF))


def retry_after(n: int) -> float:
    """Seconds to wait after the n-th rejection in a row; none after none."""
    return 0.0 if n < 1 else min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(n - 1, 16))


def rejected_at(pod: Pod) -> float:
    """When it was refused, or the nearest that is known."""
    told = find_condition(pod.status.conditions, ADMISSION_REJECTED)
    ready = find_condition(pod.status.conditions, "Ready")
    stamps = (
        told.last_transition_time if told is not None else None,
        ready.last_transition_time if ready is not None else None,
        pod.status.start_time,
        pod.metadata.creation_timestamp,
    )
    return next((to_seconds(stamp) for stamp in stamps if stamp is not None), 0.0)


def refused_resource(pod: Pod) -> str:
    """The extended resource it was refused for; "" when it was none, or nobody can tell."""
    reason, message = pod.status.reason, pod.status.message
    if reason.startswith(_OUT_OF):
        resource = reason.removeprefix(_OUT_OF)
        return resource if is_extended(resource) else ""
    if reason != "UnexpectedAdmissionError":
        return ""
    asked = sorted((r for r in requests_of(pod) if is_extended(r)), key=len, reverse=True)
    named = [r for r in asked if r in message]
    return named[0] if named else asked[0] if len(asked) == 1 else ""


def row_of(rejected: Iterable[Pod], now: float) -> int:
    """How many in a row, of one owner's refused pods; 0 when the last is long ago."""
    recent = [p for p in rejected if now - rejected_at(p) < FORGIVEN_S]
    return max([len(recent), *(count_on(p) for p in recent)], default=0)


def count_on(pod: Pod) -> int:
    text = pod.annotations.get(ANNOTATION_REJECTIONS, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def budget_of(job: Job) -> int:
    """Refused tries in a row that cost a Job nothing. One blow may hit all pods that it runs at a time."""
    return BUDGET * max(1, job.spec.parallelism)


def is_spent(job: Job, rejected: Iterable[Pod]) -> bool:
    """Whether that is used up, by the Job's refused pods that are kept."""
    return max(map(count_on, rejected), default=0) >= budget_of(job)


def held_back_until(rejected: Sequence[Pod], now: float) -> float:
    """Until when another pod of the same owner is not to be placed; 0: it may be."""
    n = row_of(rejected, now)
    return max(map(rejected_at, rejected)) + retry_after(n) if n else 0.0


def owner_key(pod: Pod) -> str:
    """Whose rejections count together: the controlling owner, else the bare pod and those that were made again for it."""
    owner = next((ref for ref in pod.metadata.owner_references if ref.controller), None)
    return owner.uid if owner is not None else f"{pod.namespace}/{base_name(pod)}"


def base_name(pod: Pod) -> str:
    return pod.annotations.get(ANNOTATION_RETRY_OF, "") or pod.name


def is_told(pod: Pod) -> bool:
    return is_true(pod.status.conditions, ADMISSION_REJECTED)


def to_prune(refused: Iterable[Pod], kept: int = KEPT_PODS) -> list[Pod]:
    """Of one node's refused pods the older ones, per owner. Only those whose rejection is on record; a TrainingJob sees to its
    own, and a bare pod is its user's."""
    by_owner: dict[str, list[Pod]] = {}
    for pod in refused:
        if not is_bare(pod) and pod.owner("TrainingJob") is None:
            by_owner.setdefault(owner_key(pod), []).append(pod)
    found: list[Pod] = []
    for pods in by_owner.values():
        newest_first = sorted(pods, key=lambda p: (rejected_at(p), count_on(p), p.name), reverse=True)
        found += [p for p in newest_first[kept:] if is_told(p) and not p.is_deleting]
    return sorted(found, key=lambda p: (p.namespace, p.name))


def is_bare(pod: Pod) -> bool:
    return not any(ref.controller for ref in pod.metadata.owner_references)


def is_retried(pod: Pod) -> bool:
    """A bare pod that asks to be made again."""
    return is_bare(pod) and pod.annotations.get(ANNOTATION_RETRY_ADMISSION) == "true"


def is_marked(pod: Pod) -> bool:
    """Whether it gets the condition PLACED before it is bound: it has an owner that may have a rule about it, and says so."""
    return not is_bare(pod) and pod.annotations.get(ANNOTATION_RETRY_ADMISSION) == "true"


def made_again(pod: JsonObject, n: int) -> JsonObject:
    """The body of the pod that is made for one refused n times in a row: another name, no node. `pod`: the whole object."""
    meta, spec = pod["metadata"], pod["spec"]
    annotations = dict(meta.get("annotations") or {})
    base = annotations.get(ANNOTATION_RETRY_OF) or meta["name"]
    annotations.pop(ANNOTATION_DEVICES, None)
    annotations |= {ANNOTATION_RETRY_OF: base, ANNOTATION_REJECTIONS: str(n)}
    suffix = f"-retry{n}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": base[: 253 - len(suffix)] + suffix,
            "namespace": meta["namespace"],
            "labels": dict(meta.get("labels") or {}),
            "annotations": annotations,
        },
        "spec": {field: value for field, value in spec.items() if field != "nodeName"},
    }


def forgiveness(job: Job, uid: str) -> JsonObject:
    """The patch by which a Job gets a try back for a refused pod that its controller counts; {} when it has got it. Both fields
    go into one write, so that it happens once."""
    forgiven = [u for u in job.annotations.get(ANNOTATION_FORGIVEN, "").split(",") if u]
    if uid in forgiven:
        return {}
    known = ",".join([*forgiven, uid][-FORGIVEN_KEPT:])
    limit = job.spec.backoff_limit + 1
    return {"spec": {"backoffLimit": limit}, "metadata": {"annotations": {ANNOTATION_FORGIVEN: known}}}


def numbered(refused: Iterable[Pod], rejected: Callable[[str], Iterable[Pod]], now: float) -> list[tuple[Pod, int]]:
    """Refused pods that were not told yet, oldest first, each with its number in its owner's row. `rejected`: all of an
    owner's that are kept, on whatever node."""
    rows: dict[str, int] = {}
    found: list[tuple[Pod, int]] = []
    for pod in sorted(refused, key=lambda p: (rejected_at(p), p.name)):
        if is_told(pod):
            continue
        owner = owner_key(pod)
        if owner not in rows:
            recent = [p for p in rejected(owner) if is_told(p) and now - rejected_at(p) < FORGIVEN_S]
            rows[owner] = max((count_on(p) for p in recent), default=0)
        rows[owner] = max(rows[owner], count_on(pod)) + 1
        found.append((pod, rows[owner]))
    return found


# -- black holes ------------------------------------------------------------------------------------------------------


def note_rejections(
    node: NodeDevices, refused: Iterable[Pod], now: float, limits: Limits = DEFAULT
) -> dict[str, list[Rejection]]:
    """Resource -> what NodeDevices.rejections should hold, for those that change. Each pod is noted once: what carries the
    condition was noted before."""
    known = {entry.uid for entries in node.rejections.values() for entry in entries}
    found: dict[str, list[Rejection]] = {}
    for pod in sorted(refused, key=lambda p: (rejected_at(p), p.name)):
        resource = refused_resource(pod)
        if not resource or pod.uid in known or is_told(pod):
            continue
        at = min(rejected_at(pod), now)
        entry = Rejection(f"{pod.namespace}/{pod.name}", pod.uid, pod.status.message[:256], to_time(at))
        before = found.get(resource, node.rejections.get(resource, []))
        found[resource] = [*before, entry][-limits.rejections :]
    return found


def withhold(
    node: NodeDevices, rejections: Mapping[str, list[Rejection]], now: float, limits: Limits = DEFAULT
) -> dict[str, QuarantineOrder]:
    """Orders to add: resources with too many rejections that are not withheld yet."""
    found: dict[str, QuarantineOrder] = {}
    for resource, entries in {**node.rejections, **rejections}.items():
        if resource in node.withheld:
            continue
        plugin = next((p for p in node.observed.plugins if p.resource == resource), None)
        if plugin is not None and plugin.state != "Registered":
            continue
        since = max(
            now - limits.window_s, to_seconds(plugin.started_at) if plugin is not None and plugin.started_at else 0.0
        )
        counted = [e for e in entries if e.time is None or to_seconds(e.time) >= since]
        if len(counted) >= limits.rejections:
            found[resource] = QuarantineOrder(
                reason=BLACK_HOLE, message=_words(resource, counted, limits), by=BY, since=to_time(now)
            )
    return found


def _words(resource: str, entries: Sequence[Rejection], limits: Limits) -> str:
    pods = ", ".join(e.pod for e in entries)
    why = entries[-1].message
    text = (
        f"{len(entries)} pods that asked for {resource} were refused here within {limits.window_s / 60:g} min: {pods}."
    )
    return f"{text} Last: {why}"[:1024]

"""Failed devices under workloads that are not ours (Pods, Deployments, Jobs, JobSets): what the pods say, and who goes. Pure.

Whoever holds a device that is Unhealthy or Quarantined gets the condition `DeviceFailed` first, with the verdict's reason: a
stock Job's podFailurePolicy can match it, because it is there before the pod ends. Then the pod's own policy, its annotation
`remuda.dev/device-failed`, decides:

    ignore   nothing else. The condition turns False when the device is well again.
    delete   the pod goes and its owner makes another, which is placed on a healthy device. Pods that restart for ever are
             evicted, so that a PodDisruptionBudget is honoured until EVICT_FOR_S have passed; others are deleted.
    restart  the pod stays where it is and its containers restart in place, for RESTART_FOR_S; a device that is not back by
             then means delete. A pod that never restarts is deleted at once.
    gang     all members of its gang go, or none: every one is marked (DisruptionTarget) before the first is deleted, and what
             is marked goes, whatever crashes in between.
    fail     the pod ends as Failed, reason DeviceFailed, and is kept; a Job that owns it gets no further tries.

Without the annotation: delete, where an owner makes a new one elsewhere; ignore for bare pods (nobody would bring them back) and
for those of a DaemonSet or a static manifest (they would come back to the same node). Degraded and Unknown devices touch nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from remuda.api.conditions import find_condition, is_condition_true, with_condition
from remuda.api.devices import DeviceState, NodeDevices, Verdict
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import Condition, OwnerReference, to_seconds, to_time
from remuda.api.names import ANNOTATION_DEVICE_FAILED
from remuda.core.foreign.gangs import foreign_gang_of, is_remuda_pod
from remuda.core.health.device_holders import device_holders_on

DEVICE_FAILED = "DeviceFailed"  # a pod's condition, and the reason of one that was failed for it
DISRUPTION_TARGET = "DisruptionTarget"
GANG_DEVICE_FAILED = "GangDeviceFailed"  # reason of DisruptionTarget: the gang goes because of one member's device
EVICT_FOR_S = 300.0
RESTART_FOR_S = 300.0
ASK_AGAIN_S = 10.0  # between two evictions that a budget does not allow
_BAD = (DeviceState.UNHEALTHY, DeviceState.QUARANTINED)
_STAYS = ("DaemonSet", "Node")  # owners that bring a pod back to the same node
_MIRROR = "kubernetes.io/config.mirror"


class DeviceFailureReaction(StrEnum):
    IGNORE = "ignore"
    DELETE = "delete"
    RESTART = "restart"
    GANG = "gang"
    FAIL = "fail"


class ForeignPodMark(msgspec.Struct, frozen=True):
    """A pod's conditions as they should be. `phase`: "Failed" when the pod is to end by that."""

    pod: Pod
    conditions: list[Condition]
    reason: str = ""
    message: str = ""
    phase: str = ""


class ForeignPodRemoval(msgspec.Struct, frozen=True):
    pod: Pod
    why: str
    evict: bool = False  # ask the budget first


class ForeignPodsPlan(msgspec.Struct, frozen=True):
    """Marks are written before anybody goes. `jobs`: owners that get no further tries."""

    marks: tuple[ForeignPodMark, ...] = ()
    removals: tuple[ForeignPodRemoval, ...] = ()
    jobs: tuple[tuple[str, OwnerReference, str], ...] = ()  # namespace, the Job, why
    unknown: tuple[tuple[Pod, str], ...] = ()  # pods whose annotation says a word nobody knows
    look_again_s: float | None = None


def device_failure_reaction(pod: Pod) -> DeviceFailureReaction:
    """A word nobody knows counts as none given."""
    asked = pod.annotations.get(ANNOTATION_DEVICE_FAILED, "").lower()
    if asked in tuple(DeviceFailureReaction):
        return DeviceFailureReaction(asked)
    owner = next((ref for ref in pod.metadata.owner_references if ref.controller), None)
    if owner is None or owner.kind in _STAYS or _MIRROR in pod.annotations:
        return DeviceFailureReaction.IGNORE
    return DeviceFailureReaction.DELETE


def worst_verdict_by_foreign_holder(node: NodeDevices, pods: Iterable[Pod]) -> dict[str, Verdict]:
    """Pod uid -> the gravest verdict on a device it holds, in whichever of its containers."""
    held = device_holders_on(node, pods)
    found: dict[str, Verdict] = {}
    for verdict in sorted(node.verdicts, key=lambda v: (v.state is not DeviceState.UNHEALTHY, v.device)):
        if verdict.state in _BAD:
            for holder in held.get(verdict.device, ()):
                found.setdefault(holder.uid, verdict)
    return found


def plan_foreign_pods(
    node: NodeDevices, pods: Sequence[Pod], members: Callable[[str], Iterable[Pod]], now: float, *, acts: bool = True
) -> ForeignPodsPlan:
    """`pods`: all bound to the node. `members`: a gang's pods, on whatever node. `acts`: False where a policy only observes; then
    conditions are all there is."""
    bad = worst_verdict_by_foreign_holder(node, pods)
    draft = _ForeignPodsDraft(node.name, now)
    for pod in sorted(pods, key=lambda p: (p.namespace, p.name)):
        if is_remuda_pod(pod) or pod.is_terminal:
            continue
        verdict = bad.get(pod.uid)
        if verdict is None:
            draft.clear_failure(pod)
            if acts and _is_foreign_gang_doomed(pod) and not pod.is_deleting:
                draft.remove(ForeignPodRemoval(pod, GANG_DEVICE_FAILED))
        elif not acts:
            draft.mark(pod, verdict)
        elif not pod.is_deleting:
            draft.react(pod, verdict, members)
    return draft.plan()


class _ForeignPodsDraft:
    def __init__(self, node: str, now: float) -> None:
        self.node, self.now = node, now
        self.marks: dict[str, ForeignPodMark] = {}
        self.removals: dict[str, ForeignPodRemoval] = {}
        self.jobs: list[tuple[str, OwnerReference, str]] = []
        self.unknown: list[tuple[Pod, str]] = []
        self.waits: list[float] = []

    def plan(self) -> ForeignPodsPlan:
        marks = tuple(m for m in self.marks.values() if m.conditions is not m.pod.status.conditions or m.phase)
        again = min(self.waits, default=None)
        return ForeignPodsPlan(marks, tuple(self.removals.values()), tuple(self.jobs), tuple(self.unknown), again)

    def conditions_so_far(self, pod: Pod) -> list[Condition]:
        """The pod's conditions, with what this look has added."""
        mark = self.marks.get(pod.uid)
        return mark.conditions if mark is not None else pod.status.conditions

    def remove(self, removal: ForeignPodRemoval) -> None:
        """The newest word counts, and who was named last goes last; once a gang goes, no budget is asked."""
        before = self.removals.pop(removal.pod.uid, removal)
        self.removals[removal.pod.uid] = removal if before.evict else before

    def describe_failure(self, verdict: Verdict) -> str:
        signal = f" ({verdict.source})" if verdict.source else ""
        what = f": {verdict.message}" if verdict.message else ""
        return f"Device {verdict.device} of node {self.node} is {verdict.state.value}{signal}{what}"[:1024]

    def clear_failure(self, pod: Pod) -> None:
        if is_condition_true(pod.status.conditions, DEVICE_FAILED):
            at, why = to_time(int(self.now)), "The pod has no failed device any more."
            told = with_condition(pod.status.conditions, DEVICE_FAILED, False, "DeviceHealthy", why, at)
            self.marks[pod.uid] = ForeignPodMark(pod, told, "DeviceHealthy", why)

    def mark(self, pod: Pod, verdict: Verdict, *, goes: str = "") -> ForeignPodMark:
        """Says what failed; with `goes` also that the pod is about to be ended for it."""
        at, text = to_time(int(self.now)), self.describe_failure(verdict)
        told = with_condition(
            self.conditions_so_far(pod), DEVICE_FAILED, True, verdict.reason or DEVICE_FAILED, text, at
        )
        if goes:
            told = with_condition(told, DISRUPTION_TARGET, True, goes, text, at)
        self.marks[pod.uid] = mark = ForeignPodMark(pod, told, verdict.reason or DEVICE_FAILED, text)
        return mark

    def react(self, pod: Pod, verdict: Verdict, members: Callable[[str], Iterable[Pod]]) -> None:
        asked = pod.annotations.get(ANNOTATION_DEVICE_FAILED, "")
        is_told = is_condition_true(pod.status.conditions, DEVICE_FAILED)  # once, with the condition
        if asked and asked.lower() not in tuple(DeviceFailureReaction) and not is_told:
            self.unknown.append((pod, asked))
        reaction = device_failure_reaction(pod)
        if reaction is DeviceFailureReaction.GANG:
            self._remove_gang(pod, verdict, members)
        elif reaction is DeviceFailureReaction.FAIL:
            self._fail_pod(pod, verdict)
        elif reaction is DeviceFailureReaction.IGNORE:
            self.mark(pod, verdict)
        elif (
            reaction is DeviceFailureReaction.RESTART
            and pod.spec.restart_policy != "Never"
            and (left := self._seconds_left(pod)) > 0
        ):
            self.mark(pod, verdict)
            self.waits.append(left)
        else:
            self._remove_pod(pod, verdict)

    def _seconds_left(self, pod: Pod, limit: float = RESTART_FOR_S) -> float:
        """Of the time since the pod was told."""
        told = find_condition(pod.status.conditions, DEVICE_FAILED)
        if told is None or told.status != "True" or told.last_transition_time is None:
            return limit
        return to_seconds(told.last_transition_time) + limit - self.now

    def _remove_pod(self, pod: Pod, verdict: Verdict) -> None:
        is_served = pod.spec.restart_policy == "Always" and pod.owner("Job") is None
        limit = (
            EVICT_FOR_S
            if device_failure_reaction(pod) is not DeviceFailureReaction.RESTART
            else RESTART_FOR_S + EVICT_FOR_S
        )
        left = self._seconds_left(pod, limit)
        evict = is_served and left > 0
        # The eviction itself says DisruptionTarget, on a cluster that says it at all.
        self.mark(pod, verdict, goes="" if evict else DEVICE_FAILED)
        self.remove(ForeignPodRemoval(pod, self.describe_failure(verdict), evict))
        if evict:
            self.waits.append(min(left, ASK_AGAIN_S))

    def _remove_gang(self, pod: Pod, verdict: Verdict, members: Callable[[str], Iterable[Pod]]) -> None:
        self.mark(pod, verdict, goes=GANG_DEVICE_FAILED)
        text = f"{pod.name} of the same gang: {self.describe_failure(verdict)}"[:1024]
        gang = foreign_gang_of(pod)
        for other in members(gang) if gang else ():
            if other.uid == pod.uid or other.is_terminal or other.is_deleting:
                continue
            if not _is_foreign_gang_doomed(other):
                at = to_time(int(self.now))
                told = with_condition(
                    self.conditions_so_far(other), DISRUPTION_TARGET, True, GANG_DEVICE_FAILED, text, at
                )
                self.marks[other.uid] = ForeignPodMark(other, told, GANG_DEVICE_FAILED, text)
            self.remove(ForeignPodRemoval(other, text))
        self.remove(ForeignPodRemoval(pod, self.describe_failure(verdict)))

    def _fail_pod(self, pod: Pod, verdict: Verdict) -> None:
        mark = self.mark(pod, verdict, goes=DEVICE_FAILED)
        self.marks[pod.uid] = msgspec.structs.replace(mark, phase="Failed", reason=DEVICE_FAILED)
        if (job := pod.owner("Job")) is not None:
            self.jobs.append((pod.namespace, job, f"{pod.name}: {self.describe_failure(verdict)}"))


def _is_foreign_gang_doomed(pod: Pod) -> bool:
    """Marked with its gang. What is left when the marked failed pod is gone already."""
    told = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return told is not None and told.status == "True" and told.reason == GANG_DEVICE_FAILED

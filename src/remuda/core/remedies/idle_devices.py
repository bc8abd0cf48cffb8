"""Devices that are held and not used: by whom, since when, what it has cost, and what the policy will do about it. Pure.

The agents say which held devices are idle (`ObservedDevice.idleSince`). A pod is idle when all devices it holds are, since the
last of them became so; one that uses a single device is left alone, and its idle ones are shown.

A policy (`RemedyPolicy.spec.idle`) names a time. When a pod has been idle for so long it gets the condition `DeviceIdle`; that
is all with action Warn. With Reclaim it is taken off its devices GRACE_S after it was told, unless it uses them by then: a
TrainingJob is suspended, other pods are evicted (PodDisruptionBudgets are honoured). Never touched: exempt namespaces,
kube-system, spares (they wait for their turn), and a TrainingJob that is not running or is writing a checkpoint just then.
A policy that only observes takes nobody off, and neither does one that is paused, until the pause ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from remuda.api.conditions import find_condition, is_condition_true, with_condition
from remuda.api.devices import NodeDevices, ObservedDevice
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import Condition, OwnerReference, to_seconds, to_time
from remuda.api.names import ANNOTATION_SPARE
from remuda.api.remedies import Idle, Mode, RemedyPolicy, RemedyPolicySpec
from remuda.api.training import TrainingJob
from remuda.core.health.device_holders import device_holders_on
from remuda.core.remedies.policies import remedy_policy_for

DEVICE_IDLE = "DeviceIdle"
GRACE_S = 300.0  # between the warning and the end
RECLAIM = "Reclaim"
EXEMPT_ALWAYS = ("kube-system",)

JobOf = Callable[[str, str], TrainingJob | None]  # namespace, name


class IdlePod(msgspec.Struct, frozen=True, kw_only=True):
    """`since`: when the last of its devices became idle; None while it uses some. `next_at`: when `next_step` is due."""

    pod: Pod
    node: str
    held: int
    idle: tuple[str, ...]
    since: float | None
    utilisation: float | None  # of the idle ones, when they were found so
    idle_gpu_hours: float
    cost: float = 0.0
    policy: str = ""
    exempt: str = ""  # why nothing will be done
    next_step: str = ""  # Warn | Reclaim
    next_at: float | None = None


class IdlePlan(msgspec.Struct, frozen=True):
    """`tell`: conditions to write. `reclaim`: pods to evict. `suspend`: TrainingJobs (namespace, owner, why)."""

    tell: tuple[tuple[Pod, list[Condition], str], ...] = ()
    reclaim: tuple[tuple[Pod, str], ...] = ()
    suspend: tuple[tuple[str, OwnerReference, str], ...] = ()
    look_again_s: float | None = None


def idle_pods(
    node: NodeDevices,
    pods: Sequence[Pod],
    labels: dict[str, str],
    policies: Iterable[RemedyPolicy],
    job_of: JobOf,
    now: float,
) -> list[IdlePod]:
    """The node's pods that hold idle devices, most wasteful first."""
    rows = {row.id: row for row in node.observed.devices}
    if not any(row.idle_since for row in rows.values()):
        return []
    by_uid = {pod.uid: pod for pod in pods if pod.is_live and not pod.is_deleting}
    holds: dict[str, list[ObservedDevice]] = {}
    for device, holders in device_holders_on(node, pods).items():
        for uid in {holder.uid for holder in holders}:
            if uid in by_uid and device in rows:
                holds.setdefault(uid, []).append(rows[device])
    known = list(policies)
    found = []
    for uid, held in holds.items():
        if any(row.idle_since for row in held):
            policy = remedy_policy_for(held[0].type, labels, known)
            found.append(_judge_idle_pod(node.name, by_uid[uid], held, policy, job_of, now))
    return sorted(found, key=lambda p: (-p.idle_gpu_hours, p.pod.namespace, p.pod.name))


def _judge_idle_pod(
    node: str, pod: Pod, held: list[ObservedDevice], policy: RemedyPolicy, job_of: JobOf, now: float
) -> IdlePod:
    rule = policy.spec.idle
    idle = [(row.id, to_seconds(row.idle_since)) for row in held if row.idle_since is not None]
    told = [row.idle_utilisation for row in held if row.idle_since and row.idle_utilisation is not None]
    shares = [min(1.0, max(0.0, share)) for share in told]
    hours = sum(max(0.0, now - since) for _, since in idle) / 3600
    since = max(since for _, since in idle) if len(idle) == len(held) else None
    exempt = _idle_exemption(pod, rule, job_of, now, partly=since is None)
    step, at = ("", None) if exempt or since is None else _next_idle_step(pod, policy.spec, since)
    return IdlePod(
        pod=pod,
        node=node,
        held=len(held),
        idle=tuple(sorted(device for device, _ in idle)),
        since=since,
        utilisation=sum(shares) / len(shares) if shares else None,
        idle_gpu_hours=hours,
        cost=hours * rule.gpu_hour_price,
        policy=policy.name,
        exempt=exempt,
        next_step=step,
        next_at=at,
    )


def _idle_exemption(pod: Pod, rule: Idle, job_of: JobOf, now: float, *, partly: bool) -> str:
    if rule.after_seconds <= 0:
        return "no policy"
    if partly:
        return "partly used"
    if pod.namespace in (*EXEMPT_ALWAYS, *rule.exempt_namespaces):
        return f"namespace {pod.namespace} is exempt"
    if pod.annotations.get(ANNOTATION_SPARE) == "true":
        return "a spare"
    owner = pod.owner("TrainingJob")
    job = job_of(pod.namespace, owner.name) if owner is not None else None
    if owner is None:
        return ""
    if job is None or job.status.phase != "Running" or not any(m.uid == pod.uid for m in job.status.members):
        return "its gang does not run"
    asked = job.status.checkpoint_request
    if asked is not None and asked.answered_at is None and now < to_seconds(asked.deadline):
        return "its gang writes a checkpoint"
    return ""


def _next_idle_step(pod: Pod, spec: RemedyPolicySpec, since: float) -> tuple[str, float | None]:
    rule, pause = spec.idle, spec.pause
    told = find_condition(pod.status.conditions, DEVICE_IDLE)
    if told is None or told.status != "True" or told.last_transition_time is None:
        return "Warn", since + rule.after_seconds
    if rule.action != RECLAIM or spec.mode is Mode.OBSERVE or (pause is not None and pause.until is None):
        return "", None
    ends = to_seconds(pause.until) if pause is not None and pause.until is not None else 0.0
    return RECLAIM, max(to_seconds(told.last_transition_time) + GRACE_S, ends)


def plan_idle_pods(idle: Sequence[IdlePod], pods: Sequence[Pod], now: float) -> IdlePlan:
    """`pods`: all of the node; one that was told and uses its devices again is told that, too."""
    tell: list[tuple[Pod, list[Condition], str]] = []
    reclaim: list[tuple[Pod, str]] = []
    suspend: dict[str, tuple[str, OwnerReference, str]] = {}
    waits: list[float] = []
    at = to_time(int(now))
    for found in idle:
        if found.next_at is None or found.since is None:
            continue
        if found.next_at > now:
            waits.append(found.next_at - now + 0.001)
            continue
        pod, minutes = found.pod, (now - found.since) / 60
        text = f"{', '.join(found.idle)} of {found.node} held and not used for {minutes:.0f} min"
        if found.next_step == RECLAIM:
            owner = pod.owner("TrainingJob")
            if owner is not None:
                suspend.setdefault(owner.uid, (pod.namespace, owner, f"{pod.name}: {text}."))
            else:
                reclaim.append((pod, f"{text}."))
            waits.append(10.0)
        else:
            used = f" ({found.utilisation:.0%} busy)" if found.utilisation is not None else ""
            why = f"{text}{used}: {found.idle_gpu_hours:.1f} GPU-hours so far."
            tell.append((pod, with_condition(pod.status.conditions, DEVICE_IDLE, True, "HeldUnused", why, at), why))
            waits.append(GRACE_S)
    still = {found.pod.uid for found in idle if found.since is not None}
    for pod in pods:
        is_staying = pod.is_live and not pod.is_deleting  # one that goes has not used them again
        if pod.uid not in still and is_staying and is_condition_true(pod.status.conditions, DEVICE_IDLE):
            why = "The pod's devices are used again."
            tell.append((pod, with_condition(pod.status.conditions, DEVICE_IDLE, False, "Used", why, at), why))
    return IdlePlan(tuple(tell), tuple(reclaim), tuple(suspend.values()), min(waits, default=None))

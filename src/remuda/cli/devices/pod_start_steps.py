"""The chain from a device to a running container, step by step, for one pod: which step it is at, and what is stuck.

    plugin up -> registered -> capacity published -> bound -> Allocate -> started

Each link has its own way to break and its own owner, and in Kubernetes most of them look the same from outside: a pod that does
not run. Here each step says when it was done, how long after the one before, and the first that is not done says why and what to
do. A pod that asks for no device of any plugin has only the last three. Pure: objects in, steps out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from remuda.api.devices import Holding, NodeDevices, PluginReport
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity


class StartStepState(StrEnum):
    DONE = "Done"
    WAITING = "Waiting"  # its turn has come, and it takes as long as it takes
    STUCK = "Stuck"  # its turn has come, and something must change
    LATER = "Later"  # waits for the step before it


class StartStep(msgspec.Struct, frozen=True):
    """`took_s`: after the step before it; None when one of the two times is not known."""

    name: str
    state: StartStepState
    at: datetime | None = None
    took_s: float | None = None
    message: str = ""
    fix: str = ""


PLUGIN_UP, REGISTERED, PUBLISHED = "plugin up", "registered", "capacity published"
BOUND, ALLOCATED, STARTED = "bound", "Allocate", "started"

_SLOW_S = 60.0  # an Allocate or a start that takes longer is called stuck


def explain_pod_start(
    pod: Pod,
    resources: Sequence[str],
    nodes: Iterable[Node],
    devices: Iterable[NodeDevices],
    now: datetime,
) -> list[StartStep]:
    """`resources`: the extended resources the pod asks for. Before it is bound, the first steps are of the node that has come
    furthest with them: that is where it could go."""
    ledgers = {d.name: d for d in devices}
    all_nodes = list(nodes)
    mine = [n for n in all_nodes if n.name == pod.spec.node_name] if pod.spec.node_name else all_nodes
    steps: list[StartStep] = []
    if resources:
        tried = [_plugin_steps(n, ledgers.get(n.name), resources) for n in mine]
        steps = max(
            tried,
            key=_count_steps_done,
            default=[_make_stuck_step(PLUGIN_UP, "The cluster has no nodes.", "Add a node.")],
        )
        if not pod.spec.node_name and len(mine) > 1 and steps[0].state is StartStepState.STUCK:
            steps = [_no_plugin_step(mine, resources), *steps[1:]]
    steps.append(_bound_step(pod, now))
    given = _allocated_step(pod, ledgers.get(pod.spec.node_name), resources, now)
    if resources and given.state is StartStepState.DONE:
        steps = [_passed_step(step) for step in steps]
    steps += [given, _started_step(pod, given.at, now)]
    return _steps_in_order(steps)


def stuck_start_step(steps: Iterable[StartStep]) -> StartStep | None:
    """The first that is not done."""
    return next((s for s in steps if s.state is not StartStepState.DONE), None)


def _count_steps_done(steps: Sequence[StartStep]) -> int:
    return sum(s.state is StartStepState.DONE for s in steps)


def _plugin_steps(node: Node, ledger: NodeDevices | None, resources: Sequence[str]) -> list[StartStep]:
    """For several resources the one that is furthest behind speaks."""
    return min((_resource_steps(node, ledger, resource) for resource in resources), key=_count_steps_done)


def _resource_steps(node: Node, ledger: NodeDevices | None, resource: str) -> list[StartStep]:
    plugin = next((p for p in ledger.observed.plugins if p.resource == resource), None) if ledger else None
    published = _published_step(node, resource, plugin.published_at if plugin else None)
    if plugin is None:
        if published.state is StartStepState.DONE:  # another vendor's plugin: what it published proves the rest
            return [StartStep(PLUGIN_UP, StartStepState.DONE), StartStep(REGISTERED, StartStepState.DONE), published]
        return [
            _make_stuck_step(
                PLUGIN_UP,
                f"No plugin on {node.name} serves {resource}.",
                f"Run the agent there, or ask for a resource the node has: {_node_resources(node)}.",
            ),
            StartStep(REGISTERED, StartStepState.LATER),
            published,
        ]
    up = StartStep(PLUGIN_UP, StartStepState.DONE, plugin.started_at)
    return [up, _registered_step(node, plugin), published]


def _registered_step(node: Node, plugin: PluginReport) -> StartStep:
    if plugin.state == "Registered":
        return StartStep(REGISTERED, StartStepState.DONE, plugin.since)
    if plugin.state == "Starting":
        return StartStep(
            REGISTERED,
            StartStepState.WAITING,
            message=plugin.message or f"The kubelet of {node.name} has not answered yet.",
        )
    return _make_stuck_step(
        REGISTERED,
        f"The plugin for {plugin.resource} on {node.name} is lost. {plugin.message}".strip(),
        "It registers again when the kubelet's socket is back. If it does not, check the agent's log.",
    )


def _passed_step(step: StartStep) -> StartStep:
    """A pod that has its devices came past this step, whatever became of the plugin since."""
    if step.state is StartStepState.DONE:
        return step
    words = f"was done; since then: {step.message}" if step.message else "done"
    return StartStep(step.name, StartStepState.DONE, message=words)


def _no_plugin_step(nodes: Sequence[Node], resources: Sequence[str]) -> StartStep:
    """No node has come anywhere with it: the word is about all of them."""
    named = {r for node in nodes for r in node.status.capacity}
    missing = [r for r in resources if r not in named] or list(resources)
    offers = ", ".join(sorted(r for r in named if "/" in r)) or "no device resources"
    return _make_stuck_step(
        PLUGIN_UP,
        f"No plugin on any of the {len(nodes)} nodes serves {', '.join(missing)}.",
        f"Ask for a resource the nodes have ({offers}), or run an agent where the devices are.",
    )


def _published_step(node: Node, resource: str, at: datetime | None) -> StartStep:
    capacity, allocatable = node.status.capacity.get(resource), node.status.allocatable.get(resource)
    if capacity is None:
        return _make_stuck_step(
            PUBLISHED, f"{node.name} does not name {resource} in its status.", f"It has: {_node_resources(node)}."
        )
    if parse_whole_quantity(allocatable or 0) == 0:
        return _make_stuck_step(
            PUBLISHED,
            f"{node.name} offers 0 of {parse_whole_quantity(capacity)} {resource}.",
            "All are unhealthy, or their plugin is lost: see `remuda devices`.",
        )
    words = f"{parse_whole_quantity(allocatable or 0)} of {parse_whole_quantity(capacity)} {resource}"
    return StartStep(PUBLISHED, StartStepState.DONE, at, message=words)


def _node_resources(node: Node) -> str:
    return ", ".join(sorted(r for r in node.status.capacity if "/" in r)) or "no device resources"


def _bound_step(pod: Pod, now: datetime) -> StartStep:
    scheduled = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    created = pod.metadata.creation_timestamp
    if pod.spec.node_name:
        at = scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else None
        return StartStep(BOUND, StartStepState.DONE, at, _seconds_between(created, at), f"on {pod.spec.node_name}")
    if scheduled is not None and scheduled.status == "False":
        return _make_stuck_step(
            BOUND, f"{scheduled.reason}: {scheduled.message}", "", took_s=_seconds_between(created, now)
        )
    return StartStep(
        BOUND,
        StartStepState.WAITING,
        took_s=_seconds_between(created, now),
        message="The scheduler has not looked at it yet.",
    )


def _allocated_step(pod: Pod, ledger: NodeDevices | None, resources: Sequence[str], now: datetime) -> StartStep:
    if pod.status.phase == "Failed" and pod.status.reason in ("UnexpectedAdmissionError", "OutOfDevices"):
        return _make_stuck_step(
            ALLOCATED,
            f"{pod.status.reason}: {pod.status.message}",
            "The kubelet does not try again: the pod's owner must make another one.",
        )
    holdings = [h for h in ledger.observed.holdings if h.uid == pod.uid] if ledger else []
    if holdings or _first_container_start(pod) is not None or not resources:
        given = ", ".join(d for h in holdings for d in h.devices)
        at = min((h.since for h in holdings if h.since is not None), default=None)
        words = _given_devices_words(given, holdings)
        if not holdings and resources and pod.is_terminal:
            words = "released since"
        return StartStep(ALLOCATED, StartStepState.DONE, at, message=words)
    waited = _seconds_between(_pod_bound_at(pod), now)
    if waited is not None and waited > _SLOW_S:
        return _make_stuck_step(
            ALLOCATED, "The node's plugin has not answered.", "See `remuda devices` and the agent's log."
        )
    return StartStep(ALLOCATED, StartStepState.WAITING, took_s=waited)


def _given_devices_words(devices: str, holdings: Sequence[Holding]) -> str:
    other = [h for h in holdings if h.chosen and sorted(h.chosen) != sorted(h.devices)]
    if not other:
        return devices
    return f"{devices} (KubeletChoseOtherDevices: the scheduler had chosen {', '.join(other[0].chosen)})"


def _started_step(pod: Pod, given_at: datetime | None, now: datetime) -> StartStep:
    at = _first_container_start(pod, given_at) or _first_container_start(pod)
    if at is not None:
        return StartStep(STARTED, StartStepState.DONE, at)
    for status in pod.status.container_statuses:
        waiting = status.state.waiting
        if waiting is not None and waiting.reason not in ("", "ContainerCreating", "PodInitializing", "Pulling"):
            return _make_stuck_step(STARTED, f"{waiting.reason}: {waiting.message}".rstrip(": "), "")
    return StartStep(STARTED, StartStepState.WAITING, took_s=_seconds_between(_pod_bound_at(pod), now))


def _first_container_start(pod: Pod, after: datetime | None = None) -> datetime | None:
    """Since `after`: a node that came back gives devices anew, and its containers start again."""
    starts: list[datetime] = []
    for status in pod.status.container_statuses:
        if status.state.running is not None and status.state.running.started_at is not None:
            starts.append(status.state.running.started_at)
        for ended in (status.state.terminated, status.last_state.terminated):
            if ended is not None and ended.started_at is not None:
                starts.append(ended.started_at)
    return min((s for s in starts if after is None or s >= after.replace(microsecond=0)), default=None)


def _pod_bound_at(pod: Pod) -> datetime | None:
    scheduled = next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "True"), None)
    return scheduled.last_transition_time if scheduled is not None else pod.status.start_time


def _make_stuck_step(name: str, message: str, fix: str, took_s: float | None = None) -> StartStep:
    return StartStep(name, StartStepState.STUCK, None, took_s, message, fix)


def _seconds_between(a: datetime | None, b: datetime | None) -> float | None:
    return max(0.0, (b - a).total_seconds()) if a is not None and b is not None else None


def _known_seconds_between(before: datetime, after: datetime) -> float:
    """Kubernetes writes some times in whole seconds. From one of those, less than a second is not known any better: 0."""
    took = (after - before).total_seconds()
    return 0.0 if took < 1 and 0 in (before.microsecond, after.microsecond) else took


def _steps_in_order(steps: Sequence[StartStep]) -> list[StartStep]:
    """After the first that is not done all are Later; times taken are filled in from one step to the next."""
    found: list[StartStep] = []
    is_open = True
    before: datetime | None = None
    for step in steps:
        if not is_open:
            step = StartStep(step.name, StartStepState.LATER)
        elif step.state is StartStepState.DONE:
            if step.took_s is None and before is not None and step.at is not None and step.at >= before:
                step = msgspec.structs.replace(step, took_s=_known_seconds_between(before, step.at))
            before = step.at or before
        else:
            is_open = False
        found.append(step)
    return found

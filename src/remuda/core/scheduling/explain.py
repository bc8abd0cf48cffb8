"""Why pods are not placed: no node could ever take them (`explain_never_placeable`), or there is no room now
(`explain_not_placed`). Pure.

The one reason that is told is of the domain that would take most of the pods, of those that could ever take all, so that it names
what is lacking and not what is merely full. The same sentence ends up in pod conditions, job status, CLI and dashboard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from remuda.api.errors import Refusal
from remuda.core.scheduling.driver_version import explain_min_driver_unmet, is_node_driver_too_old, node_driver_version
from remuda.core.scheduling.first_fit import count_fitting_pods, may_schedule_on_node
from remuda.core.scheduling.placement_request import PodAsk
from remuda.core.state.pod_requests import is_extended_resource
from remuda.core.state.snapshot import NodeView, Snapshot, tolerates_taints
from remuda.core.state.transaction import Transaction, resource_snapshot_node_lacks

NO_AGENT = "NoAgent"


def explain_never_placeable(snapshot: Snapshot, pods: Sequence[PodAsk]) -> Refusal | None:
    """What no node could give those pods, even if all of it were free; None when there is no such thing."""
    return (
        _unknown_resource_refusal(snapshot, pods)
        or _pod_too_large_refusal(snapshot, pods)
        or _driver_too_old_refusal(snapshot, pods)
        or _no_agent_refusal(snapshot, pods)
    )


def explain_not_placed(
    snapshot: Snapshot,
    pods: Sequence[PodAsk],
    topology: str,
    pinned: str | None,
    transaction: Transaction,
    reason: str = "",
) -> Refusal:
    """Why those pods do not fit: the domain that would take most of them, and what it lacks."""
    domains = snapshot.domains(topology)
    names = [pinned] if pinned is not None else sorted(domains)
    fits = {name: count_fitting_pods(snapshot, domains.get(name, []), pods, transaction) for name in names}
    # Beside those that are placed already the few that are not always could, so nothing is said of a pinned domain.
    holds = {name: _pods_held_if_empty(snapshot, domains.get(name, []), pods) for name in names if pinned is None}
    best = max(names, key=lambda name: (holds.get(name, 0) >= len(pods), fits[name]), default="")
    nodes = [snapshot.nodes[ix] for ix in domains.get(best, [])]
    return no_room_refusal(
        reason or ("DomainFull" if pinned is not None else "InsufficientDevices"),
        gpus=[pod.gpus for pod in pods],
        others=[(r, n) for r, n in pods[0].others if is_extended_resource(r)]
        if len({pod.others for pod in pods}) == 1
        else (),
        fits=fits.get(best, 0),
        topology=topology,
        domain=best,
        is_known=bool(domains),
        away=[
            why
            for view in nodes
            if (why := _why_node_takes_no_pod(view, pods[0]) or _why_node_is_kept(snapshot, view, transaction))
        ],
        is_all_away=not any(may_schedule_on_node(view, pods[0]) for view in nodes),
        is_plugin_lost=any(_resource_of_lost_plugin(view, pods[0]) for view in nodes),
        holds=max(holds.values(), default=None),
    )


def _pods_held_if_empty(snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk]) -> int:
    """How many of these pods the nodes would hold at most if they were empty, by their GPUs; all, if they ask for none."""
    gpus = min(pod.gpus for pod in pods)
    return sum(snapshot.gpus_of_node(ix) // gpus for ix in nodes) if gpus else len(pods)


def _unknown_resource_refusal(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
    """A resource that no node names. Where no node names any, plugins are still to come, and that is said instead."""
    offered = snapshot.offered
    if not offered:
        return None
    for resource in dict.fromkeys(r for pod in members for r in pod.requests if is_extended_resource(r)):
        if resource not in offered:
            return Refusal(
                "NoSuchResource",
                f"No node has {resource}.",
                f"Ask for one that a node has: {', '.join(offered)}; or add a device of that kind.",
            )
    return None


def _pod_too_large_refusal(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
    most, largest = max((p.gpus for p in members), default=0), snapshot.largest_node
    if not snapshot.nodes or most <= largest:
        return None
    if not largest:
        return Refusal("NoDevices", "No node has reported a device.", "Wait for the nodes, or see `remuda devices`.")
    return Refusal(
        "NoNodeHasThatManyGpus",
        f"A pod asks for {most} GPUs; the largest node has {largest}.",
        f"Ask for at most {largest} per pod and use more replicas.",
    )


def _driver_too_old_refusal(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
    """A driver that no node has."""
    wanted = dict.fromkeys(pod.min_driver for pod in members if pod.min_driver)
    refusals = (explain_min_driver_unmet(want, (view.labels for view in snapshot.nodes)) for want in wanted)
    return next(filter(None, refusals), None)


def _no_agent_refusal(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
    """Every node that would take such pods is one whose agent is missing or silent."""
    pod = next((pod for pod in members if pod.needs_agent), None)
    if pod is None:
        return None
    bare = msgspec.structs.replace(pod, needs_agent=False)
    found = [view for view in snapshot.nodes if may_schedule_on_node(view, bare)]
    if not found or any(view.has_agent for view in found):
        return None
    names = ", ".join(view.name for view in found[:3]) + (", ..." if len(found) > 3 else "")
    return Refusal(
        NO_AGENT,
        f"No node that could take the job's pods has a live Remuda agent ({names}).",
        "Label the nodes (kubectl label node NAME remuda.dev/agent=true) and look at their agents' pods: "
        "kubectl get pods -A -o wide -l app.kubernetes.io/name=remuda-agent.",
    )


def _why_node_takes_no_pod(view: NodeView, pod: PodAsk) -> str:
    """Why the node takes no such pod at all, however much of it is free; "" when it would."""
    if view.closed:
        return view.closed
    if pod.needs_agent and not view.has_agent:
        return "without a live agent"
    if not tolerates_taints(pod.tolerations, view.taints):
        return "tainted"
    if missing := resource_snapshot_node_lacks(view, pod.requests):
        return f"without {missing}"
    for key, value in pod.node_selector:
        if key.startswith(("nvidia.com/", "amd.com/")) and view.labels.get(key) != value:
            return f"whose {key} is {view.labels.get(key, 'not set')}, not {value}"
    if pod.min_driver and is_node_driver_too_old(have := node_driver_version(view.labels), pod.min_driver):
        return f"with driver {have or 'unknown'}, older than {pod.min_driver}"
    if not may_schedule_on_node(view, pod):
        return "not selected"
    if held := next((r for r in pod.requests if r in view.withheld), ""):
        return f"where {held} is withheld"
    return f"with a lost plugin for {lost}" if (lost := _resource_of_lost_plugin(view, pod)) else ""


def _why_node_is_kept(snapshot: Snapshot, view: NodeView, transaction: Transaction) -> str:
    gang = transaction.kept.get(snapshot.index[view.name])
    return f"kept for {gang}, which ran there before" if gang else ""


def _resource_of_lost_plugin(view: NodeView, pod: PodAsk) -> str:
    """A resource the node offers nothing of although its devices are well: nobody serves them."""
    return next(
        (
            r
            for r in pod.requests
            if view.resources.get(r, 0) & view.usable and not view.offered.get(r, 1) and r not in view.withheld
        ),
        "",
    )


# -- the sentence ------------------------------------------------------------------------------------------------------


def no_room_refusal(
    reason: str,
    *,
    gpus: Sequence[int],
    others: Sequence[tuple[str, int]] = (),
    fits: int,
    topology: str,
    domain: str,
    is_known: bool,
    away: Sequence[str],
    is_all_away: bool,
    is_plugin_lost: bool = False,
    holds: int | None = None,
) -> Refusal:
    """`gpus` of each pod asked for, and `others` of other devices; `fits` of them would fit in `domain`; `away`: why each node
    there that takes none does. `holds`: at most so many could ever be in one domain; None = not known."""
    if not is_known:
        if topology:
            return Refusal(reason, f"No node has the label {topology}.", "Label the nodes or drop topology.required.")
        return Refusal(reason, "The cluster has no nodes.", "Add a node.")
    level = topology.rsplit("/", 1)[-1]
    where = f"{level} {domain}" if topology else "the cluster"
    need = len(gpus)
    sentence = (
        f"Needs {_pods_asked_text(gpus, others)}{f' in one {level}' if topology else ''}; {where} has room for {fits}"
    )
    sentence += f" ({_nodes_excluded_text(away)})." if away else "."
    if is_plugin_lost:
        fix = "Wait for the plugin to register again, or check that node's agent (`remuda explain pod`)."
        return Refusal(reason, sentence, fix)
    if is_all_away:
        return Refusal(
            reason, sentence, f"Bring nodes of {where} back, or change the pods' node selector and tolerations."
        )
    if holds is not None and need > holds:  # no room that anybody frees would do
        what = f"No {level} could hold more than {holds}" if topology else f"The cluster could hold {holds} at most"
        other = "leave out topology.required" if topology else "add nodes"
        return Refusal(reason, sentence, f"{what}, were it empty: ask for {need - holds} fewer replicas, or {other}.")
    if fits == 0:
        return Refusal(reason, sentence, f"Free {_devices_asked_text(max(gpus), others)} on one node of {where}.")
    return Refusal(
        reason, sentence, f"Free room for {need - fits} more in {where}, or ask for {need - fits} fewer replicas."
    )


def _pods_asked_text(gpus: Sequence[int], others: Sequence[tuple[str, int]]) -> str:
    low, high = min(gpus), max(gpus)
    size = _devices_asked_text(high, others) if low == high else f"{low} to {high} GPUs"
    return f"{len(gpus)} pod{'' if len(gpus) == 1 else 's'} of {size}"


def _devices_asked_text(count: int, others: Sequence[tuple[str, int]] = ()) -> str:
    whole = [f"{count} GPU{'' if count == 1 else 's'}"] if count or not others else []
    return " and ".join([*whole, *(f"{number} {resource}" for resource, number in others)])


def _nodes_excluded_text(away: Sequence[str]) -> str:
    """2 nodes cordoned, 1 node dead."""
    return ", ".join(f"{count} node{'' if count == 1 else 's'} {why}" for why, count in sorted(Counter(away).items()))

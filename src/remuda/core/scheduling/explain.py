"""Why pods are not placed: what no node could ever give (`unfit`), or what there is no room for now (`explain`). Pure.

The one reason that is told is of the domain that would take most of the pods, so that it names what is lacking and not
what is merely full. The sentence itself is `refusal`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.errors import Refusal
from remuda.core.scheduling.driver_version import check_driver, driver_of, is_older
from remuda.core.scheduling.first_fit import admits, count_fit
from remuda.core.scheduling.placement_request import PodAsk
from remuda.core.scheduling.refusal import no_room
from remuda.core.state.pod_requests import is_extended
from remuda.core.state.snapshot import NodeView, Snapshot, tolerates
from remuda.core.state.transaction import Room, lacks


def unfit(snapshot: Snapshot, pods: Sequence[PodAsk]) -> Refusal | None:
    """What no node could give those pods, even if all of it were free; None when there is no such thing."""
    return _unknown(snapshot, pods) or _too_large(snapshot, pods) or _old(snapshot, pods)


def explain(
    snapshot: Snapshot,
    pods: Sequence[PodAsk],
    topology: str,
    pinned: str | None,
    room: Room,
    reason: str = "",
) -> Refusal:
    """Why those pods do not fit: the domain that would take most of them, and what it lacks."""
    domains = snapshot.domains(topology)
    names = [pinned] if pinned is not None else sorted(domains)
    fits = {name: count_fit(snapshot, domains.get(name, []), pods, room) for name in names}
    best = max(names, key=lambda name: fits[name], default="")
    nodes = [snapshot.nodes[ix] for ix in domains.get(best, [])]
    return no_room(
        reason or ("DomainFull" if pinned is not None else "InsufficientDevices"),
        gpus=[pod.gpus for pod in pods],
        others=[(r, n) for r, n in pods[0].others if is_extended(r)] if len({pod.others for pod in pods}) == 1 else (),
        fits=fits.get(best, 0),
        topology=topology,
        domain=best,
        is_known=bool(domains),
        away=[why for view in nodes if (why := _away(view, pods[0]) or _kept(snapshot, view, room))],
        is_all_away=not any(admits(view, pods[0]) for view in nodes),
        is_plugin_lost=any(_lost(view, pods[0]) for view in nodes),
    )


def _unknown(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
    """A resource that no node names. Where no node names any, plugins are still to come, and that is said instead."""
    offered = snapshot.offered
    if not offered:
        return None
    for resource in dict.fromkeys(r for pod in members for r in pod.requests if is_extended(r)):
        if resource not in offered:
            return Refusal(
                "NoSuchResource",
                f"No node has {resource}.",
                f"Ask for one that a node has: {', '.join(offered)}; or cut or add a device that counts for it.",
            )
    return None


def _too_large(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
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


def _old(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
    """A driver that no node has."""
    wanted = dict.fromkeys(pod.min_driver for pod in members if pod.min_driver)
    refusals = (check_driver(want, (view.labels for view in snapshot.nodes)) for want in wanted)
    return next(filter(None, refusals), None)


def _away(view: NodeView, pod: PodAsk) -> str:
    """Why the node takes no such pod at all, however much of it is free; "" when it would."""
    if view.closed:
        return view.closed
    if not tolerates(pod.tolerations, view.taints):
        return "tainted"
    if missing := lacks(view, pod.requests):
        return f"without {missing}"
    for key, value in pod.node_selector:
        if key.startswith(("nvidia.com/", "amd.com/")) and view.labels.get(key) != value:
            return f"whose {key} is {view.labels.get(key, 'not said')} and not {value}"
    if pod.min_driver and is_older(have := driver_of(view.labels), pod.min_driver):
        return f"with driver {have or 'unknown'}, older than {pod.min_driver}"
    if not admits(view, pod):
        return "not selected"
    if held := next((r for r in pod.requests if r in view.withheld), ""):
        return f"that {held} is withheld on"
    return f"with a lost plugin for {lost}" if (lost := _lost(view, pod)) else ""


def _kept(snapshot: Snapshot, view: NodeView, room: Room) -> str:
    gang = room.kept.get(snapshot.index[view.name])
    return f"kept for {gang}, which lost its place there" if gang else ""


def _lost(view: NodeView, pod: PodAsk) -> str:
    """A resource the node offers nothing of although its devices are well: nobody serves them."""
    return next(
        (
            r
            for r in pod.requests
            if view.resources.get(r, 0) & view.usable and not view.offered.get(r, 1) and r not in view.withheld
        ),
        "",
    )

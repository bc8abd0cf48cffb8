"""Placing a gang whole: every member gets a node and an exact device set inside one domain, or nobody gets anything.

The solver here is first fit, largest pods first: domains in the order of least room that still fits members and spares, then
members only; nodes in name order; what a pod takes of a node is `room`'s. The full scheduler replaces `_fit` and the domain
order; the interface (`GangAsk` in, assignments or one Refusal out, on an immutable Snapshot) stays.

Invariants: no device is assigned twice in a plan; members of a gang are assigned all or none; with a required topology every
pod of a gang, spares included, sits in one domain; spares never take the place of a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from remuda.api.core_v1 import Pod, Toleration
from remuda.api.errors import Refusal
from remuda.api.names import RESOURCE_GPU
from remuda.core.placement.refusal import no_room
from remuda.core.placement.requests import Amounts, is_extended, requests_of
from remuda.core.placement.room import Room, lacks
from remuda.core.placement.snapshot import NodeView, Snapshot, tolerates


class PodAsk(msgspec.Struct, frozen=True):
    """One pod that needs a node, `gpus` whole devices, and of every other resource what `others` says."""

    namespace: str
    name: str
    uid: str
    gpus: int
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    others: tuple[tuple[str, int], ...] = ()

    @property
    def requests(self) -> Amounts:
        return {RESOURCE_GPU: self.gpus, **dict(self.others)} if self.gpus else dict(self.others)


class GangAsk(msgspec.Struct, frozen=True):
    """Pods to be placed together. `pinned` is the domain the rest of the gang already sits in, or None."""

    key: str
    members: tuple[PodAsk, ...] = ()
    spares: tuple[PodAsk, ...] = ()
    topology: str = ""
    pinned: str | None = None
    waiting_for: int = 0  # members not created yet: a gang is placed only when it is whole

    @property
    def is_recovering(self) -> bool:
        return self.pinned is not None

    @property
    def shape(self) -> object:
        """What decides about members, names apart."""
        members = tuple((p.gpus, p.others, p.node_selector, p.tolerations) for p in self.members)
        return members, self.topology, self.pinned, self.waiting_for


class Assignment(msgspec.Struct, frozen=True):
    pod: PodAsk
    node: str
    devices: tuple[str, ...]


class PlacementPlan(msgspec.Struct, frozen=True):
    assignments: tuple[Assignment, ...]
    refused: tuple[tuple[PodAsk, Refusal], ...]


def ask_of(pod: Pod) -> PodAsk:
    """What a pod needs, from its spec."""
    requests = requests_of(pod)
    gpus = requests.pop(RESOURCE_GPU, 0)
    return PodAsk(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        gpus=gpus,
        node_selector=tuple(sorted(pod.spec.node_selector.items())),
        tolerations=tuple(pod.spec.tolerations),
        others=tuple(sorted(requests.items())),
    )


def plan_placement(snapshot: Snapshot, asks: Iterable[GangAsk]) -> PlacementPlan:
    """Gangs in order: those already running first (freed room goes back to the gang that lost it), spares last of all."""
    parts = list(plan_in_steps(snapshot, asks))
    return PlacementPlan(
        tuple(a for part in parts for a in part.assignments), tuple(r for part in parts for r in part.refused)
    )


def plan_in_steps(snapshot: Snapshot, asks: Iterable[GangAsk], gangs_per_step: int = 64) -> Iterator[PlacementPlan]:
    """The same plan piece by piece, so that whoever carries it out can do other things in between. Within a plan room only
    shrinks: what was refused once is refused, with the same words, to whoever asks the same again."""
    gangs = sorted(asks, key=lambda a: not a.is_recovering)
    room = Room.of(snapshot)
    refusals: dict[object, Refusal] = {}
    domain_of: dict[str, str | None] = {}
    done: list[Assignment] = []
    refused: list[tuple[PodAsk, Refusal]] = []
    for number, ask in enumerate(gangs, start=1):
        domain_of[ask.key] = ask.pinned
        if ask.members:
            placed = refusals.get(ask.shape) or place_members(snapshot, ask, room)
            if isinstance(placed, Refusal):
                refusals[ask.shape] = placed
                refused.extend((pod, placed) for pod in ask.members)
            else:
                domain_of[ask.key] = snapshot.domain_of(placed[0].node, ask.topology)
                _take(snapshot, room, placed)
                done.extend(placed)
        if number % gangs_per_step == 0:
            yield PlacementPlan(tuple(done), tuple(refused))
            done, refused = [], []
    for ask in gangs:
        for spare in ask.spares:
            placed = _place_spare(snapshot, spare, ask.topology, domain_of[ask.key], room)
            if isinstance(placed, Refusal):
                refused.append((spare, placed))
                continue
            _take(snapshot, room, placed)
            done.extend(placed)
    yield PlacementPlan(tuple(done), tuple(refused))


def place_members(snapshot: Snapshot, ask: GangAsk, room: Room | None = None) -> list[Assignment] | Refusal:
    """All members of one gang on one snapshot, or the one reason why not."""
    room = room if room is not None else Room.of(snapshot)
    if ask.waiting_for:
        return Refusal(
            "GangIncomplete", f"{ask.waiting_for} pods of the gang do not exist yet.", "They are being made."
        )
    if unfit := _unknown(snapshot, ask.members) or _too_large(snapshot, ask.members):
        return unfit
    domains = snapshot.domains(ask.topology)
    if ask.pinned is not None:
        found = _fit(snapshot, domains.get(ask.pinned, []), ask.members, room)
        return found if found is not None else explain(snapshot, ask.members, ask.topology, ask.pinned, room)
    # Tightest domain first keeps the large ones whole; one with room for the spares beats one without.
    order = sorted(domains, key=lambda d: (_free(domains[d], room), d)) if len(domains) > 1 else list(domains)
    for extra in (ask.spares, ()) if ask.spares else ((),):
        for domain in order:
            found = _fit(snapshot, domains[domain], ask.members, room, extra)
            if found is not None:
                return found
    return explain(snapshot, ask.members, ask.topology, None, room)


def _free(nodes: Iterable[int], room: Room) -> int:
    return sum(room.free[ix].bit_count() for ix in nodes)


def _place_spare(
    snapshot: Snapshot, spare: PodAsk, topology: str, domain: str | None, room: Room
) -> list[Assignment] | Refusal:
    if domain is None:
        return Refusal("GangNotPlaced", "A spare waits until its gang has a place.", "It is placed beside the gang.")
    found = _fit(snapshot, snapshot.domains(topology).get(domain, []), [spare], room)
    return found if found is not None else explain(snapshot, [spare], topology, domain, room, "NoRoomForSpare")


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


def _fit(
    snapshot: Snapshot,
    nodes: Sequence[int],
    pods: Sequence[PodAsk],
    room: Room,
    extra: Sequence[PodAsk] = (),
) -> list[Assignment] | None:
    """First fit of all `pods` on those nodes; None when one does not fit, or `extra` would not fit beside them."""
    mark = room.mark()
    found = _first_fit(snapshot, nodes, pods, room)
    fits = len(found) == len(pods) and len(_first_fit(snapshot, nodes, extra, room)) == len(extra)
    room.rollback(mark)
    return found if fits else None


def count_fit(snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room) -> int:
    """How many of those pods those nodes could take."""
    mark = room.mark()
    found = _first_fit(snapshot, nodes, pods, room)
    room.rollback(mark)
    return len(found)


def _first_fit(snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room) -> list[Assignment]:
    """Those that fit, taken from `room`."""
    found: list[Assignment] = []
    for pod in sorted(pods, key=lambda p: -p.gpus):  # a large pod needs a whole node, a small one the rest of any
        requests = pod.requests
        for ix in nodes:
            view = snapshot.nodes[ix]
            if room.free[ix].bit_count() < pod.gpus and RESOURCE_GPU in view.resources:
                continue  # by far the most frequent answer, and the cheapest
            if admits(view, pod) and (devices := room.take(view, ix, requests)) is not None:
                found.append(Assignment(pod, view.name, devices))
                break
    return found


def admits(view: NodeView, pod: PodAsk) -> bool:
    return (
        not view.closed
        and all(view.labels.get(key) == value for key, value in pod.node_selector)
        and tolerates(pod.tolerations, view.taints)
        and not lacks(view, pod.requests)
    )


def _take(snapshot: Snapshot, room: Room, assignments: Iterable[Assignment]) -> None:
    for assignment in assignments:
        ix = snapshot.index[assignment.node]
        room.spend(snapshot.nodes[ix], ix, assignment.devices, assignment.pod.requests)
    room.settle()


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
        away=[why for view in nodes if (why := _away(view, pods[0]))],
        is_all_away=not any(admits(view, pods[0]) for view in nodes),
        is_plugin_lost=any(_lost(view, pods[0]) for view in nodes),
    )


def _away(view: NodeView, pod: PodAsk) -> str:
    """Why the node takes no such pod at all, however much of it is free; "" when it would."""
    if view.closed:
        return view.closed
    if not tolerates(pod.tolerations, view.taints):
        return "tainted"
    if missing := lacks(view, pod.requests):
        return f"without {missing}"
    if not admits(view, pod):
        return "not selected"
    return f"with a lost plugin for {lost}" if (lost := _lost(view, pod)) else ""


def _lost(view: NodeView, pod: PodAsk) -> str:
    """A resource the node offers nothing of although its devices are well: nobody serves them."""
    return next(
        (r for r in pod.requests if view.resources.get(r, 0) & view.usable and not view.offered.get(r, 1)),
        "",
    )

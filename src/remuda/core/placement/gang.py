"""Placing a gang whole: every member gets a node and an exact device set inside one domain, or nobody gets anything.

The solver here is first fit, largest pods first: domains in the order of least room that still fits members and spares, then
members only; nodes in name order; what a pod takes of a node is `room`'s. The full scheduler replaces `_fit` and the domain
order; the interface (`GangAsk` in, assignments or one Refusal out, on an immutable Snapshot) stays.

Invariants: no device is assigned twice in a plan; members of a gang are assigned all or none, but for those that it can do
without (`optional`), which are left out only when there is no room for all; with a required topology every
pod of a gang, spares included, sits in one domain; spares never take the place of a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from remuda.api.core_v1 import Pod, Toleration
from remuda.api.errors import Refusal
from remuda.api.names import (
    ANNOTATION_MIN_DRIVER,
    ANNOTATION_OPTIONAL,
    ANNOTATION_PREFER_NODE,
    ANNOTATION_TOLERATE_DEGRADED,
    RESOURCE_GPU,
)
from remuda.core.placement.driver import check_driver, driver_of, is_older
from remuda.core.placement.keeping import keep
from remuda.core.placement.refusal import no_room
from remuda.core.placement.requests import Amounts, is_extended, requests_of
from remuda.core.placement.reserving import opened
from remuda.core.placement.room import Room, lacks
from remuda.core.placement.snapshot import NodeView, Snapshot, tolerates

NO_ROOM_FOR_ALL = "NoRoomForAll"  # of a pod that its gang was placed without


class PodAsk(msgspec.Struct, frozen=True):
    """One pod that needs a node, `gpus` whole devices, and of every other resource what `others` says."""

    namespace: str
    name: str
    uid: str
    gpus: int
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    prefer: str = ""  # the node to try first
    optional: bool = False  # its gang may be placed without it, when there is no room for all
    tolerates_degraded: bool = False
    min_driver: str = ""

    @property
    def requests(self) -> Amounts:
        return {RESOURCE_GPU: self.gpus, **dict(self.others)} if self.gpus else dict(self.others)


class Segment(msgspec.Struct, frozen=True):
    """Pods of one segment that need a node, in one domain; `pinned`: where the rest of it sits, or None."""

    members: tuple[PodAsk, ...]
    pinned: str | None = None


class GangAsk(msgspec.Struct, frozen=True):
    """Pods to be placed together. `pinned` is the domain the rest of the gang already sits in, or None."""

    key: str
    members: tuple[PodAsk, ...] = ()
    spares: tuple[PodAsk, ...] = ()
    topology: str = ""
    pinned: str | None = None
    waiting_for: int = 0  # members not created yet: a gang is placed only when it is whole
    segments: tuple[Segment, ...] = ()  # the members once more, when not all of them must share a domain
    has_run: bool = False  # it trained already, and lost its place or some of it
    keeps: tuple[str, ...] = ()  # nodes it lost: what is left there is kept for it while it fits nowhere

    @property
    def is_recovering(self) -> bool:
        return self.pinned is not None or self.has_run

    @property
    def shape(self) -> object:
        """What decides about members, names apart."""
        members = tuple(
            (
                p.gpus,
                p.others,
                p.node_selector,
                p.tolerations,
                p.tolerates_degraded,
                p.min_driver,
                p.prefer,
                p.optional,
            )
            for p in self.members
        )
        blocks = tuple((len(segment.members), segment.pinned) for segment in self.segments)
        return members, self.topology, self.pinned, self.waiting_for, blocks


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
        prefer=pod.annotations.get(ANNOTATION_PREFER_NODE, ""),
        optional=pod.annotations.get(ANNOTATION_OPTIONAL) == "true",
        tolerates_degraded=pod.annotations.get(ANNOTATION_TOLERATE_DEGRADED) == "true",
        min_driver=pod.annotations.get(ANNOTATION_MIN_DRIVER, ""),
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
    keepers: list[GangAsk] = []
    for number, ask in enumerate(gangs, start=1):
        if not ask.is_recovering:
            _keep(snapshot, room, keepers)
        domain_of[ask.key] = ask.pinned
        before = len(refused)
        if ask.members:
            with opened(room, snapshot.reserved, ask.key) as has_more:
                placed = (None if has_more else refusals.get(ask.shape)) or place_members(snapshot, ask, room)
                if not isinstance(placed, Refusal):
                    _take(snapshot, room, placed)
            if isinstance(placed, Refusal):
                if not has_more:
                    refusals[ask.shape] = placed
                refused.extend((pod, placed) for pod in ask.members)
            else:
                domain_of[ask.key] = snapshot.domain_of(placed[0].node, ask.topology)
                done.extend(placed)
                refused.extend(_left_over(snapshot, ask, placed, room))
        if ask.keeps and len(refused) > before:
            keepers.append(ask)
        if number % gangs_per_step == 0:
            yield PlacementPlan(tuple(done), tuple(refused))
            done, refused = [], []
    _keep(snapshot, room, keepers)
    for ask in gangs:
        for spare in ask.spares:
            with opened(room, snapshot.reserved, ask.key):
                placed = _place_spare(snapshot, spare, ask.topology, domain_of[ask.key], room)
                if isinstance(placed, Refusal):
                    refused.append((spare, placed))
                    continue
                _take(snapshot, room, placed)
            done.extend(placed)
    yield PlacementPlan(tuple(done), tuple(refused))


def _keep(snapshot: Snapshot, room: Room, keepers: list[GangAsk]) -> None:
    """From here on nobody gets what those gangs wait for."""
    for ask in keepers:
        keep(snapshot, room, ask.keeps, (pod.requests for pod in ask.members), ask.key)
    keepers.clear()


def place_members(snapshot: Snapshot, ask: GangAsk, room: Room | None = None) -> list[Assignment] | Refusal:
    """All members of one gang on one snapshot, or the one reason why not."""
    room = room if room is not None else Room.of(snapshot)
    if ask.waiting_for:
        return Refusal(
            "GangIncomplete", f"{ask.waiting_for} pods of the gang do not exist yet.", "They are being made."
        )
    if unfit := _unknown(snapshot, ask.members) or _too_large(snapshot, ask.members) or _old(snapshot, ask.members):
        return unfit
    if ask.segments:
        return place_segments(snapshot, ask.topology, ask.segments, room)
    domains = snapshot.domains(ask.topology)
    if ask.pinned is not None:
        here = domains.get(ask.pinned, [])
        found = _fit(snapshot, here, ask.members, room) or _fit_fewer(snapshot, here, ask.members, room)
        return found if found else explain(snapshot, ask.members, ask.topology, ask.pinned, room)
    # Tightest domain first keeps the large ones whole; one with room for the spares beats one without.
    # A suspect one is taken when no other will do.
    order = list(domains)
    if len(domains) > 1:
        order.sort(key=lambda d: (snapshot.is_suspect(domains[d]), _free(domains[d], room), d))
    for extra in (ask.spares, ()) if ask.spares else ((),):
        for domain in order:
            found = _fit(snapshot, domains[domain], ask.members, room, extra)
            if found is not None:
                return found
    if any(pod.optional for pod in ask.members):
        fewer = [f for domain in order if (f := _fit_fewer(snapshot, domains[domain], ask.members, room))]
        if fewer:
            return max(fewer, key=len)
    return explain(snapshot, ask.members, ask.topology, None, room)


def place_segments(
    snapshot: Snapshot, topology: str, segments: Sequence[Segment], room: Room | None = None
) -> list[Assignment] | Refusal:
    """All segments, each whole in one domain, or the one reason why not. `room` is as it was afterwards.

    Least fragmentation: each goes to the domain that has the least room and still takes it, so that one is filled up before
    another is broken into; those that sit somewhere come first, then the large ones."""
    room = room if room is not None else Room.of(snapshot)
    mark = room.mark()
    found: list[Assignment] = []
    order = sorted(segments, key=lambda s: (s.pinned is None, -sum(p.gpus for p in s.members)))
    for segment in order:
        placed = _place_segment(snapshot, topology, segment, room)
        if isinstance(placed, Refusal):
            room.rollback(mark)
            return placed
        for assignment in placed:
            ix = snapshot.index[assignment.node]
            room.spend(snapshot.nodes[ix], ix, assignment.devices, assignment.pod.requests)
        found += placed
    room.rollback(mark)
    return found


def _place_segment(snapshot: Snapshot, topology: str, segment: Segment, room: Room) -> list[Assignment] | Refusal:
    domains = snapshot.domains(topology)
    if segment.pinned is not None:
        names = [segment.pinned]
    else:
        free = {d: sum(room.free[ix].bit_count() for ix in nodes) for d, nodes in domains.items()}
        names = sorted(domains, key=lambda d: (snapshot.is_suspect(domains[d]), free[d], d))
    for name in names:
        placed = _fit(snapshot, domains.get(name, []), segment.members, room)
        if placed is not None:
            return placed
    return explain(snapshot, segment.members, topology, segment.pinned, room)


def _fit_fewer(snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room) -> list[Assignment] | None:
    """All that the gang needs and as many of the others as fit; None when not even those, or nothing, would."""
    needed, others = [p for p in pods if not p.optional], [p for p in pods if p.optional]
    if not others:
        return None
    mark = room.mark()
    found = _first_fit(snapshot, nodes, needed, room)
    if len(found) == len(needed):
        found += _first_fit(snapshot, nodes, others, room)
    else:
        found = []
    room.rollback(mark)
    return found or None


def _left_over(
    snapshot: Snapshot, ask: GangAsk, placed: Sequence[Assignment], room: Room
) -> list[tuple[PodAsk, Refusal]]:
    """Those the gang is placed without."""
    there = {assignment.pod.uid for assignment in placed}
    left = [pod for pod in ask.members if pod.uid not in there]
    if not left:
        return []
    domain = snapshot.domain_of(placed[0].node, ask.topology)
    why = explain(snapshot, left, ask.topology, domain, room, NO_ROOM_FOR_ALL)
    return [(pod, why) for pod in left]


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


def _old(snapshot: Snapshot, members: Sequence[PodAsk]) -> Refusal | None:
    """A driver that no node has."""
    wanted = dict.fromkeys(pod.min_driver for pod in members if pod.min_driver)
    refusals = (check_driver(want, (view.labels for view in snapshot.nodes)) for want in wanted)
    return next(filter(None, refusals), None)


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


def count_fit(
    snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room, *, keep: bool = False
) -> int:
    """How many of those pods those nodes could take. `keep`: what they take stays taken."""
    mark = room.mark()
    found = _first_fit(snapshot, nodes, pods, room)
    if not keep:
        room.rollback(mark)
    return len(found)


def _first_fit(snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room) -> list[Assignment]:
    """Those that fit, taken from `room`."""
    found: list[Assignment] = []
    for pod in sorted(pods, key=lambda p: -p.gpus):  # a large pod needs a whole node, a small one the rest of any
        taken = _first_node(snapshot, nodes, pod, room)
        if taken is None and pod.tolerates_degraded:
            taken = _first_node(snapshot, nodes, pod, room, tolerant=True)
        if taken is not None:
            found.append(taken)
    return found


def _first_node(
    snapshot: Snapshot, nodes: Sequence[int], pod: PodAsk, room: Room, *, tolerant: bool = False
) -> Assignment | None:
    requests = pod.requests
    for ix in _preferred(snapshot, nodes, pod):
        view = snapshot.nodes[ix]
        free = room.free[ix] | room.worn[ix] if tolerant else room.free[ix]
        if free.bit_count() < pod.gpus and RESOURCE_GPU in view.resources:
            continue  # by far the most frequent answer, and the cheapest
        if admits(view, pod) and (devices := room.take(view, ix, requests, tolerant=tolerant)) is not None:
            return Assignment(pod, view.name, devices)
    return None


def _preferred(snapshot: Snapshot, nodes: Sequence[int], pod: PodAsk) -> Sequence[int]:
    """The nodes in their order, but for the one that the pod would rather have."""
    wish = snapshot.index.get(pod.prefer) if pod.prefer else None
    return nodes if wish is None or wish not in nodes else [wish, *(ix for ix in nodes if ix != wish)]


def admits(view: NodeView, pod: PodAsk) -> bool:
    return (
        not view.closed
        and all(view.labels.get(key) == value for key, value in pod.node_selector)
        and tolerates(pod.tolerations, view.taints)
        and not lacks(view, pod.requests)
        and not (pod.min_driver and is_older(driver_of(view.labels), pod.min_driver))
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
        away=[why for view in nodes if (why := _away(view, pods[0]) or _kept(snapshot, view, room))],
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

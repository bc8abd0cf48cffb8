"""Placing a gang whole: every member gets a node and an exact device set inside one domain, or nobody gets anything.

The solver here is first fit: domains in the order of least room that still fits members and spares, then members only; nodes
in name order; the lowest free devices of a node. The full scheduler replaces `_fit` and the domain order; the interface
(`GangAsk` in, assignments or one Refusal out, on an immutable Snapshot) stays.

Invariants: no device is assigned twice in a plan; members of a gang are assigned all or none; with a required topology every
pod of a gang, spares included, sits in one domain; spares never take the place of a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from remuda.api.core_v1 import Toleration
from remuda.api.errors import Refusal
from remuda.core.placement.snapshot import NodeView, Snapshot, tolerates


class PodAsk(msgspec.Struct, frozen=True):
    """One pod that needs a node and `gpus` devices."""

    namespace: str
    name: str
    uid: str
    gpus: int
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


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


class Assignment(msgspec.Struct, frozen=True):
    pod: PodAsk
    node: str
    devices: tuple[str, ...]


class PlacementPlan(msgspec.Struct, frozen=True):
    assignments: tuple[Assignment, ...]
    refused: tuple[tuple[PodAsk, Refusal], ...]


def plan_placement(snapshot: Snapshot, asks: Iterable[GangAsk]) -> PlacementPlan:
    """Gangs in order: those already running first (freed room goes back to the gang that lost it), spares last of all."""
    gangs = sorted(asks, key=lambda a: not a.is_recovering)
    free = list(snapshot.free)
    done: list[Assignment] = []
    refused: list[tuple[PodAsk, Refusal]] = []
    domain_of: dict[str, str | None] = {}
    for ask in gangs:
        domain_of[ask.key] = ask.pinned
        if not ask.members:
            continue
        placed = place_members(snapshot, ask, free)
        if isinstance(placed, Refusal):
            refused.extend((pod, placed) for pod in ask.members)
            continue
        domain_of[ask.key] = _domain(snapshot, placed[0].node, ask.topology)
        _take(snapshot, free, placed)
        done.extend(placed)
    for ask in gangs:
        for spare in ask.spares:
            pinned = domain_of[ask.key]
            if pinned is None:
                refused.append((spare, Refusal("GangNotPlaced", "A spare waits until its gang has a domain.")))
                continue
            found = _fit(snapshot, snapshot.domains(ask.topology).get(pinned, []), [spare], free)
            if found is None:
                refused.append((spare, _no_room(snapshot, [spare], ask.topology, pinned, free, "NoRoomForSpare")))
                continue
            _take(snapshot, free, found)
            done.extend(found)
    return PlacementPlan(tuple(done), tuple(refused))


def place_members(snapshot: Snapshot, ask: GangAsk, free: Sequence[int] | None = None) -> list[Assignment] | Refusal:
    """All members of one gang on one snapshot, or the one reason why not."""
    room = list(snapshot.free if free is None else free)
    if ask.waiting_for:
        return Refusal(
            "GangIncomplete", f"{ask.waiting_for} pods of the gang do not exist yet.", "They are being made."
        )
    most = max((p.gpus for p in ask.members), default=0)
    if snapshot.nodes and most > snapshot.largest_node:
        return Refusal(
            "NoNodeHasThatManyGpus",
            f"A pod asks for {most} GPUs; the largest node has {snapshot.largest_node}.",
            f"Ask for at most {snapshot.largest_node} per pod and use more replicas.",
        )
    domains = snapshot.domains(ask.topology)
    if ask.pinned is not None:
        found = _fit(snapshot, domains.get(ask.pinned, []), ask.members, room)
        return found or _no_room(snapshot, ask.members, ask.topology, ask.pinned, room, "DomainFull")
    # Tightest domain first keeps the large ones whole; one with room for the spares beats one without.
    order = sorted(domains, key=lambda d: (sum(room[ix].bit_count() for ix in domains[d]), d))
    for wanted in ([*ask.members, *ask.spares], ask.members) if ask.spares else (ask.members,):
        for domain in order:
            if found := _fit(snapshot, domains[domain], wanted, room):
                return found[: len(ask.members)]
    return _no_room(snapshot, ask.members, ask.topology, None, room, "InsufficientDevices")


def _fit(
    snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], free: Sequence[int]
) -> list[Assignment] | None:
    """First fit of all pods on those nodes; None when one does not fit."""
    room = {ix: free[ix] for ix in nodes}
    found: list[Assignment] = []
    for pod in pods:
        for ix in nodes:
            view = snapshot.nodes[ix]
            if room[ix].bit_count() >= pod.gpus and _admits(view, pod):
                bits = _lowest(room[ix], pod.gpus)
                room[ix] &= ~bits
                found.append(Assignment(pod, view.name, _ids(view, bits)))
                break
        else:
            return None
    return found


def _admits(view: NodeView, pod: PodAsk) -> bool:
    return (
        view.open
        and all(view.labels.get(key) == value for key, value in pod.node_selector)
        and tolerates(pod.tolerations, view.taints)
    )


def _lowest(mask: int, count: int) -> int:
    chosen = 0
    for _ in range(count):
        bit = mask & -mask
        chosen |= bit
        mask ^= bit
    return chosen


def _ids(view: NodeView, bits: int) -> tuple[str, ...]:
    return tuple(device for bit, device in enumerate(view.devices) if bits >> bit & 1)


def _take(snapshot: Snapshot, free: list[int], assignments: Iterable[Assignment]) -> None:
    at = {node.name: ix for ix, node in enumerate(snapshot.nodes)}
    for a in assignments:
        ix = at[a.node]
        taken = set(a.devices)
        free[ix] &= ~sum(1 << b for b, d in enumerate(snapshot.nodes[ix].devices) if d in taken)


def _domain(snapshot: Snapshot, node: str, topology: str) -> str:
    if not topology:
        return ""
    return next(n.labels.get(topology, "") for n in snapshot.nodes if n.name == node)


def count_room(snapshot: Snapshot, nodes: Iterable[int], pod: PodAsk, free: Sequence[int]) -> int:
    """How many pods shaped like `pod` those nodes could take."""
    each = max(pod.gpus, 1)
    return sum(free[ix].bit_count() // each if pod.gpus else 1 for ix in nodes if _admits(snapshot.nodes[ix], pod))


def _no_room(
    snapshot: Snapshot, pods: Sequence[PodAsk], topology: str, pinned: str | None, free: Sequence[int], reason: str
) -> Refusal:
    """Why not, and the smallest change that would do: how many would fit where most fit."""
    level = topology.rsplit("/", 1)[-1] if topology else "cluster"
    domains = snapshot.domains(topology)
    names = [pinned] if pinned is not None else sorted(domains)
    if not names:
        return Refusal(reason, f"No node has the label {topology}.", "Label the nodes or drop topology.required.")
    need, gpus = len(pods), pods[0].gpus
    best = max(names, key=lambda d: count_room(snapshot, domains.get(d, []), pods[0], free))
    fits = count_room(snapshot, domains.get(best, []), pods[0], free)
    where = f"{level} {best}" if best else "the cluster"
    sentence = f"Needs {need} pod{'s'[: need != 1]} of {gpus} GPUs in one {level}; {where} has room for {fits}."
    fix = f"Free {need - fits} more node-sized sets of {gpus} GPUs in {where}, or ask for {fits} replicas."
    if fits == 0:
        fix = f"Free {gpus} GPUs on one node of {where}."
    return Refusal(reason, sentence, fix)

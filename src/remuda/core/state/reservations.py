"""Places that belong to somebody although nobody sits there: what a gang has lent, and what is left of a place it lost.

A place is devices and, of what is counted (cpu, memory, a pod's slot), all that the pod asked which sat there. Its free
devices are in no free mask of a snapshot, and as much of the rest as its borrowers do not use is in no count, so that the pod
fits again once they are gone. Both are shown to one of the reservation's own askers (a gang, or a pod that was promised the
place) for as long as its pods are placed, and hidden again from everybody else. So a place that its borrower leaves goes to the
gang it belongs to and never to whoever waits longest.

What a gang lost is kept for it. A gang of whole nodes that loses one device of a node waits for one device; the other seven are
free meanwhile. If a small pod took one of them, the gang would find its device cured and its place gone. So a gang that has run
and fits nowhere keeps the devices of the nodes it lost, for a while. Gangs that have run themselves are not kept off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_LOST_NODE
from remuda.core.state.pod_requests import PODS, Amounts

if TYPE_CHECKING:
    from remuda.core.state.snapshot import Snapshot
    from remuda.core.state.transaction import Transaction

KEEP_S = 1800.0  # a repair that takes longer than a reset or a reboot and their soak is not worth idle devices


class ReservedPlace(msgspec.Struct, frozen=True):
    """What is kept of one node: a mask of its rows and amounts. `number` is the reservation's: its askers share it."""

    number: int
    ix: int
    rows: int
    amounts: Amounts = {}


ReservedPlaces = tuple[ReservedPlace, ...]


class Reservation(msgspec.Struct, frozen=True):
    """`askers`: keys of `GangAsk`s that may have those devices (`namespace/gang`, `namespace/pod/name`). `pod_requests`:
    what is kept beside them; {} = nothing is. `borrowers`: keys of pods that use it, although some have no device of it."""

    node: str
    devices: tuple[str, ...]
    askers: tuple[str, ...]
    requests: Amounts = {}
    borrowers: tuple[str, ...] = ()


class PodOnReservedNode(msgspec.Struct, frozen=True):
    """A pod on the node of a reservation."""

    key: str
    devices: tuple[str, ...]
    requests: Amounts


def lone_pod_reservation_key(namespace: str, name: str) -> str:
    """The key of a pod that is a gang of one."""
    return f"{namespace}/pod/{name}"


def unused_reserved_amounts(reservation: Reservation, there: Iterable[PodOnReservedNode], left: Amounts) -> Amounts:
    """What of its requests is to be kept: no pod that has the place, or some of its devices, uses it. As far as there is any."""
    if not reservation.requests:
        return {}
    mine = set(reservation.devices)
    users = [s for s in there if s.key in reservation.borrowers or not mine.isdisjoint(s.devices)]
    asked = {**reservation.requests, PODS: 1}
    used = {r: len(users) if r == PODS else sum(s.requests.get(r, 0) for s in users) for r in asked}
    kept = {r: min(n - used[r], left[r]) for r, n in asked.items() if r in left}
    return {r: n for r, n in kept.items() if n > 0}


def reserved_places_by_asker(found: Sequence[tuple[Reservation, int, int, Amounts]]) -> dict[str, ReservedPlaces]:
    """From (reservation, node index, mask of the rows that are free but for it, amounts that are left but for it)."""
    places: dict[str, ReservedPlaces] = {}
    for number, (reservation, ix, rows, amounts) in enumerate(found):
        for asker in reservation.askers:
            places[asker] = (*places.get(asker, ()), ReservedPlace(number, ix, rows, amounts))
    return places


@contextmanager
def reservations_open_to_asker(
    transaction: Transaction, places: Mapping[str, ReservedPlaces], asker: str
) -> Iterator[bool]:
    """Shows the asker what is reserved for it, less what was taken of it before. Whether there is anything to show."""
    mine = places.get(asker, ())
    shown = [subtract_amounts(place.amounts, transaction.spent.get(place.number, {})) for place in mine]
    for place, amounts in zip(mine, shown, strict=True):
        transaction.free[place.ix] |= place.rows & ~transaction.claimed.get(place.ix, 0)
        transaction.left[place.ix] = add_reserved_amounts(transaction.left[place.ix], amounts)
    had = {place.ix: transaction.left[place.ix] for place in mine}
    yield bool(mine)
    used = {ix: subtract_amounts(left, transaction.left[ix]) for ix, left in had.items()}
    for place, amounts in zip(mine, shown, strict=True):
        ix = place.ix
        transaction.claimed[ix] = transaction.claimed.get(ix, 0) | (place.rows & ~transaction.free[ix])
        transaction.free[ix] &= ~place.rows
        # What an asker takes comes out of its place first, then out of what is everybody's.
        taken = {r: min(n, used[ix].get(r, 0)) for r, n in amounts.items()}
        used[ix] = subtract_amounts(used[ix], taken)
        transaction.spent[place.number] = {
            r: transaction.spent.get(place.number, {}).get(r, 0) + n for r, n in taken.items()
        }
        transaction.left[ix] = subtract_amounts(transaction.left[ix], subtract_amounts(amounts, taken))


def add_reserved_amounts(left: Amounts, amounts: Amounts) -> Amounts:
    return {r: n + amounts.get(r, 0) for r, n in left.items()} if amounts else left


def subtract_amounts(left: Amounts, amounts: Amounts) -> Amounts:
    return {r: n - amounts.get(r, 0) for r, n in left.items()} if amounts else left


# -- what is left of a lost place --------------------------------------------------------------------------------------


def nodes_in_gang_reservation(pods: Iterable[tuple[Pod, float]], now: float | None) -> tuple[str, ...]:
    """Nodes that a gang's waiting pods, each with the time of its creation, keep."""
    nodes = (pod.annotations.get(ANNOTATION_LOST_NODE) for pod, at in pods if now is None or now - at < KEEP_S)
    return tuple(dict.fromkeys(node for node in nodes if node))


def reserve_snapshot_nodes_for_gang(
    snapshot: Snapshot, transaction: Transaction, nodes: Iterable[str], requests: Iterable[Amounts], gang: str
) -> None:
    """Whatever counts for those requests is nobody else's for the rest of the plan."""
    wanted = {resource for amounts in requests for resource in amounts}
    for ix in (snapshot.index[node] for node in nodes if node in snapshot.index):
        rows = 0
        for resource in wanted:
            rows |= snapshot.nodes[ix].resources.get(resource, 0)
        transaction.keep(ix, rows, gang)

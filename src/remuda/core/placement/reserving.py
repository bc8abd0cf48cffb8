"""Places that belong to somebody although nobody sits there: what a gang has lent, and those it was lent to.

Free devices of a reserved place are in no free mask of a snapshot. They are shown to one of the reservation's own askers (a gang,
or a pod that was promised the place) for as long as its pods are placed, and hidden again from everybody else. So a place that
its borrower leaves goes to the gang it belongs to and never to whoever waits longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from remuda.core.placement.room import Room

Places = tuple[tuple[int, int], ...]  # (node index, mask of its rows)


class Reservation(msgspec.Struct, frozen=True):
    """`askers`: keys of `GangAsk`s that may have those devices (`namespace/gang`, `namespace/pod/name`)."""

    node: str
    devices: tuple[str, ...]
    askers: tuple[str, ...]


def pod_key(namespace: str, name: str) -> str:
    """The key of a pod that is a gang of one."""
    return f"{namespace}/pod/{name}"


def places_by_asker(found: Iterable[tuple[Reservation, int, int]]) -> dict[str, Places]:
    """From (reservation, node index, mask of the rows that are free but for it)."""
    places: dict[str, Places] = {}
    for reservation, ix, rows in found:
        for asker in reservation.askers:
            places[asker] = (*places.get(asker, ()), (ix, rows))
    return places


@contextmanager
def opened(room: Room, places: Mapping[str, Places], asker: str) -> Iterator[bool]:
    """Shows the asker what is reserved for it, less what was taken of it before. Whether there is anything to show."""
    mine = places.get(asker, ())
    for ix, rows in mine:
        room.free[ix] |= rows & ~room.claimed.get(ix, 0)
    yield bool(mine)
    for ix, rows in mine:
        room.claimed[ix] = room.claimed.get(ix, 0) | (rows & ~room.free[ix])
        room.free[ix] &= ~rows

"""How long closed incidents are kept: so many days, and not more than so many. Open ones always stay, and so does what still
keeps a device out of use: without its incident nobody could give it back.

A name is recognised only while its object is there, so nothing that was closed a moment ago is removed, whatever the count.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from remuda.api.incidents import Incident
from remuda.api.meta import to_seconds


class Retention(msgspec.Struct, frozen=True):
    days: float = 30.0
    count: int = 10_000
    at_least_s: float = 7200.0


def outdated(
    incidents: Iterable[Incident], now: float, retention: Retention, needed: Container[str] = ()
) -> list[Incident]:
    """Those to remove, oldest first. `needed`: names that orders carry."""
    closed = (i for i in incidents if not i.is_open and i.name not in needed)
    over = [(to_seconds(i.status.closed_at), i) for i in closed if i.status.closed_at is not None]
    over.sort(key=lambda pair: (pair[0], pair[1].name))
    too_many = max(0, len(over) - retention.count)
    return [
        incident
        for place, (at, incident) in enumerate(over)
        if now - at > retention.at_least_s and (place < too_many or now - at > retention.days * 86_400)
    ]

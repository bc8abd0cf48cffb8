"""Records with times that somebody else wrote: an agent that is old, has no clock yet, or means harm.

A time without a zone cannot be compared with one that has one, and one of the year 1 or 9999 cannot be counted from. API servers
let both pass. Here they become what can be meant: without a zone it is UTC, and whatever lies outside all reason is moved to its
edge, where it still is what it was: long ago, or far ahead of every clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args

import msgspec

EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
EARLIEST_S, LATEST_S = EARLIEST.timestamp(), LATEST.timestamp()


class UntrustedTimes(msgspec.Struct, frozen=True):
    """Base of such records: its fields that are times, or lists of them, are put right when it is made or read."""

    def __post_init__(self) -> None:
        for name in _time_fields(type(self)):
            said = getattr(self, name)
            if said is None or said == []:
                continue
            meant = [_clamp_wire_time(one) for one in said] if isinstance(said, list) else _clamp_wire_time(said)
            if meant is not said:
                msgspec.structs.force_setattr(self, name, meant)


def _clamp_wire_time(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment < EARLIEST:
        return EARLIEST
    return LATEST if moment > LATEST else moment


@cache
def _time_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(f.name for f in msgspec.structs.fields(kind) if _is_time_type(f.type))


def _is_time_type(kind: Any) -> bool:
    return kind is datetime or any(_is_time_type(inner) for inner in get_args(kind))

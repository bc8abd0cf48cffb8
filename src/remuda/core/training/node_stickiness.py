"""Back to the same node: where a replaced pod sat is the best place for the next one, when that place is well.

Image, weights and caches are there, and the rest of the gang is as near as it was. A place is well when its node is open and all
its devices are; a pod that was moved because of its device or its node, or because it kept failing there, does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable

from remuda.api.training import Cause, Member, Recovery, Remedy
from remuda.core.training.planning_context import Look

LOST_BY = (Cause.DEVICE, Cause.INFRA)
AWAY_FROM = (Cause.DEVICE, Cause.MAINTENANCE, Cause.CODE, Cause.HANG)


def places_to_return_to(look: Look, role: str) -> list[str]:
    """Nodes that the replaced pods of a role had and could have again, one for each."""
    under_way = look.under_way
    if under_way is None or under_way.cause in AWAY_FROM or under_way.remedy is Remedy.REPLACE_GANG:
        return []
    here = look.member_uids
    return [s.node for s in under_way.seats if s.role == role and s.uid not in here and _is_well(look, s)]


def places_lost(look: Look, role: str) -> list[str]:
    """Nodes of replaced pods that went because of a device or of the node: what is left there is kept for the next ones."""
    under_way = look.under_way
    if under_way is None or under_way.cause not in LOST_BY or under_way.remedy is Remedy.REPLACE_GANG:
        return []
    here = look.member_uids
    return [s.node for s in under_way.seats if s.role == role and s.uid not in here]


def _is_well(look: Look, seat: Member) -> bool:
    ix = look.snapshot.index.get(seat.node)
    if ix is None or look.snapshot.nodes[ix].closed:
        return False
    return all(look.snapshot.is_usable(seat.node, device) for device in seat.devices)


def with_return(recovery: Recovery, new: Iterable[Member]) -> str:
    """The recovery's message, and who went back to the node its predecessor had."""
    had = {seat.node for seat in recovery.seats}
    back = [f"{m.pod} is on {m.node} again: its image and caches are there." for m in new if m.node in had]
    return " ".join([recovery.message, *(text for text in back if text not in recovery.message)]).strip()

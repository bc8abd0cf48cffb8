"""Which devices a reset takes with it.

Devices wired to one another keep their links in step, and a reset of one alone leaves the others with dead links or is refused by
the driver. AMD resets a whole XGMI hive. NVIDIA up to Ampere resets directly wired devices together; behind switches (more than
four joined all to all: that many ports no device has to spare) and from Hopper on a device can be reset alone. A slice is never
reset: its device is, with all its slices.
"""

from __future__ import annotations

from collections.abc import Iterable

from remuda.api.devices import ObservedLink

_ALONE = ("hopper", "blackwell", "rubin")
_MOST_WITHOUT_SWITCH = 4


def reset_group(device: str, links: Iterable[ObservedLink], family: str) -> tuple[str, ...]:
    """`device` and all that must be reset with it, sorted."""
    couples = [set(link.among) for link in links if _needs_joint_reset(link, family)]
    group = {device}
    is_growing = True
    while is_growing:
        reached = group.union(*(among for among in couples if among & group))
        is_growing, group = len(reached) > len(group), reached
    return tuple(sorted(group))


def _needs_joint_reset(link: ObservedLink, family: str) -> bool:
    kind = link.kind.lower()
    if kind == "xgmi":
        return True
    return kind.startswith("nv") and family not in _ALONE and len(link.among) <= _MOST_WITHOUT_SWITCH

"""From what a driver says of each link's far end to which devices reach each other, as rows of `observed.links`.

Links that end in a switch join all devices that have such links; links that end in another device join the two. Bonded NVLinks
are counted as `nvidia-smi topo -m` does: nv18 is eighteen between each pair. The way over the host is reported by its classes,
PIX, PXB and PHB, as groups; NODE and SYS follow from the NUMA nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from remuda.api.devices import ObservedLink

HOST_PATHS = ("PIX", "PXB", "PHB")


def observed_hardware_links(
    ids: Mapping[str, str],
    ends: Mapping[str, Sequence[Mapping[str, Any]]],
    pairs: Sequence[Sequence[str]],
    kind: str = "nvlink",
) -> tuple[ObservedLink, ...]:
    """`ids`: PCI address -> device id. `ends`: per device, its links' far ends. `pairs`: (address, address, class)."""
    links: list[ObservedLink] = []
    switched = {ids[pci]: n for pci, far in ends.items() if (n := sum(bool(end.get("switch")) for end in far))}
    if len(switched) > 1:
        links.append(ObservedLink(_bonded_link_kind(kind, min(switched.values())), list(switched)))
    direct: Counter[tuple[str, str]] = Counter()
    for pci, far in ends.items():
        for end in far:
            other = ids.get(str(end.get("pci", "")))
            if other is not None and not end.get("switch") and other != ids[pci]:
                a, b = sorted((ids[pci], other))
                direct[a, b] += 1
    # Both ends told of each link.
    links += [ObservedLink(_bonded_link_kind(kind, (told + 1) // 2), [a, b]) for (a, b), told in direct.items()]
    for path in HOST_PATHS:
        near = [(ids[a], ids[b]) for a, b, found in pairs if found == path and a in ids and b in ids]
        links += [ObservedLink(path, group) for group in _hardware_link_groups(near)]
    return tuple(links)


def _bonded_link_kind(kind: str, count: int) -> str:
    return f"nv{count}" if kind == "nvlink" else kind


def _hardware_link_groups(pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Pairs that hang together, each group in the order of its first pair."""
    groups: list[list[str]] = []
    for a, b in pairs:
        touched = [g for g in groups if a in g or b in g]
        merged = list(dict.fromkeys([name for g in touched for name in g] + [a, b]))
        groups = [g for g in groups if g not in touched] + [merged]
    return groups

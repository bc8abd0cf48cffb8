"""The driver a pod needs at least (`remuda.dev/min-driver: "550.54"`), held against what a node's labels say it has.

Versions are compared number by number, and missing ones are zero: 550.54 is met by 550.54.15 and by 560, not by 550.40. A node
that says nothing of its driver is taken for one that is too old: the pod would find out the hard way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from remuda.api.errors import Refusal

DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "amd.com/gpu.driver-version")
_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")
_VERSION = re.compile(r"\d+(\.\d+)*")


def node_driver_version(labels: Mapping[str, str]) -> str:
    """As the node's labels say it; "" when they do not."""
    full = next((labels[name] for name in DRIVER_LABELS if labels.get(name)), "")
    return full or ".".join(filter(None, (labels.get(name, "") for name in _PARTS)))


def is_driver_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def is_node_driver_too_old(have: str, want: str) -> bool:
    """Also true when nobody knows."""
    if not is_driver_version(have):
        return True
    ours, theirs = ([int(part) for part in text.split(".")] for text in (have, want))
    length = max(len(ours), len(theirs))
    return ours + [0] * (length - len(ours)) < theirs + [0] * (length - len(theirs))


def explain_min_driver_unmet(want: str, nodes: Iterable[Mapping[str, str]]) -> Refusal | None:
    """`nodes`: labels of each. DriverTooOld when none of them has the driver, InvalidMinDriver when nobody could."""
    if not want:
        return None
    if not is_driver_version(want):
        return Refusal(
            "InvalidMinDriver", f"`{want}` is not a driver version.", 'Write it as remuda.dev/min-driver: "550.54".'
        )
    found = [node_driver_version(labels) for labels in nodes]
    if not found or any(not is_node_driver_too_old(have, want) for have in found):
        return None
    newest = max(
        (have for have in found if is_driver_version(have)), key=lambda v: [int(p) for p in v.split(".")], default=""
    )
    has = f"the newest of any node is {newest}" if newest else "no node reports its driver"
    return Refusal(
        "DriverTooOld",
        f"Needs driver {want} or newer ({DRIVER_LABELS[0]}); {has}.",
        f"Roll out a driver of at least {want}, or lower remuda.dev/min-driver.",
    )

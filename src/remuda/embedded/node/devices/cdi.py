"""What a container runtime does with the CDI names a plugin's answer has: look them up, and refuse the container otherwise.

The embedded runtimes have no namespaces to put files into, so only the look-up is real: a container whose device no spec names
does not start ("unresolvable CDI devices"), and is tried again as the kubelet would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

UNRESOLVABLE = "unresolvable CDI devices"  # as containerd and CRI-O say it


def unresolvable_cdi_devices(names: Iterable[str], directories: Sequence[str]) -> list[str]:
    """Those of the names that no spec in the directories has."""
    wanted = list(dict.fromkeys(names))
    known = runtime_known_cdi_devices(directories) if wanted else frozenset()
    return [name for name in wanted if name not in known]


def runtime_known_cdi_devices(directories: Sequence[str]) -> frozenset[str]:
    """Qualified names. A file that is no spec is passed over."""
    found: set[str] = set()
    for directory in directories:
        for path in sorted(Path(directory).glob("*.json")):
            try:
                found.update(_cdi_device_names(msgspec.json.decode(path.read_bytes())))
            except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError):
                continue
    return frozenset(found)


def _cdi_device_names(spec: Any) -> list[str]:
    return [f"{spec['kind']}={device['name']}" for device in spec["devices"]]

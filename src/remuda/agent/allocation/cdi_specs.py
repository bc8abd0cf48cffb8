"""CDI specs of the node's devices: one file per device or slice, `remuda.dev/gpu=<id>`, in a directory the runtime reads.

With them Allocate names a device instead of its files, and the container runtime puts in what the spec says. The directory is
usually on a tmpfs, so a reboot takes the specs while pods that have the devices remain: their containers then fail with
"unresolvable CDI devices". Specs are therefore made at every start of the agent, at every Allocate, and whenever a look finds
one missing; a container that failed for the lack of one starts at the kubelet's next try.

Files are replaced whole, by renaming: a runtime that reads at any moment finds a good spec or none.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

from remuda.api.meta import JsonObject

log = structlog.get_logger(__name__)

VERSION = "0.6.0"
KIND = "remuda.dev/gpu"
_PREFIX = "remuda.dev-gpu_"
LOOK_S = 5.0


def cdi_name(device: str) -> str:
    return f"{KIND}={device}"


def cdi_spec(device: str, files: Sequence[str]) -> JsonObject:
    """What a container with the device gets. Never nothing: a spec without edits is not valid."""
    mark = re.sub(r"[^A-Z0-9]", "_", device.upper())
    edits: JsonObject = {"env": [f"REMUDA_CDI_{mark}={device}"]}
    if files:
        edits["deviceNodes"] = [{"path": file, "hostPath": file, "permissions": "rw"} for file in files]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [{"name": device, "containerEdits": edits}]}


class CdiSpecs:
    """`files`: those under /dev that a device needs."""

    def __init__(self, directory: str, files: Callable[[str], Sequence[str]]) -> None:
        self._directory = Path(directory)
        self._files = files

    def ensure(self, devices: Iterable[str]) -> list[str]:
        """Make the specs of these devices that are missing or say something else; returns which. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        made: list[str] = []
        for device in devices:
            path = self._directory / f"{_PREFIX}{device}.json"
            wanted = msgspec.json.encode(cdi_spec(device, self._files(device)))
            try:
                is_there = path.read_bytes() == wanted
            except FileNotFoundError:
                is_there = False
            if not is_there:
                partial = path.with_name(f".{path.name}.new")
                partial.write_bytes(wanted)
                os.replace(partial, path)
                made.append(device)
        return made

    def settle(self, devices: Iterable[str]) -> list[str]:
        """The same for all devices of the node, and none beside: slices come and go."""
        wanted = list(devices)
        names = {f"{_PREFIX}{device}.json" for device in wanted}
        made = self.ensure(wanted)
        for path in self._directory.glob(f"{_PREFIX}*.json"):
            if path.name not in names:
                path.unlink(missing_ok=True)
        return made


async def keep_cdi_specs(specs: CdiSpecs, devices: Callable[[], Iterable[str]], node: str) -> None:
    """Until cancelled."""
    while True:
        try:
            made = specs.settle(devices())
        except OSError as error:  # the next look may do better; Allocate fails until then
            log.warning("cdi.not_written", node=node, error=str(error))
        else:
            if made:
                log.info("cdi.written", node=node, devices=made)
        await asyncio.sleep(LOOK_S)

"""The device manager's memory on disk: `kubelet_internal_checkpoint`, in the kubelet's shape.

    {"Data": {"PodDeviceEntries": [{PodUID, ContainerName, ResourceName, DeviceIDs: {numa: [id]}, AllocResp: base64}],
              "RegisteredDevices": {resource: [id]}},
     "Checksum": number}

`AllocResp` is the plugin's answer as protobuf. The checksum is ours (CRC-32 of the data with sorted keys): the kubelet's hashes
a Go structure and cannot be made outside of Go.

A file is replaced whole, by renaming, so a process killed at any moment leaves the old one or the new one; the power is not
reckoned with (no fsync), because after a power loss the containers are gone as well. A file that is damaged in spite of that
is named in the log and its place taken by nothing, as the kubelet goes on.
"""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import structlog

from remuda.embedded.node.devices.device_ledger import KubeletDeviceGrant, LedgerMemory
from remuda.link.device_plugin_port import ContainerAllocation
from remuda.link.kubelet_proto import ALLOCATE

log = structlog.get_logger(__name__)

NAME = "kubelet_internal_checkpoint"


class CheckpointDamaged(Exception):
    """The checkpoint cannot be believed; the text says why."""


class CheckpointFile:
    def __init__(self, directory: Path, node: str = "") -> None:
        self.path = directory / NAME
        self._node = node

    def read(self) -> LedgerMemory | None:
        """None: there is no file (a new node), or a damaged one was put aside."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return decode_checkpoint(data)
        except CheckpointDamaged as damage:
            kept = self.path.with_name(f"{NAME}.damaged")
            self.path.replace(kept)
            log.error("devices.checkpoint_damaged", node=self._node, file=str(kept), why=str(damage))
            return LedgerMemory()

    def write(self, memory: LedgerMemory) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{NAME}.new")
        partial.write_bytes(encode_device_manager_checkpoint(memory))
        os.replace(partial, self.path)


def encode_device_manager_checkpoint(memory: LedgerMemory) -> bytes:
    data = {
        "PodDeviceEntries": [_checkpoint_entry(grant) for grant in memory.grants],
        "RegisteredDevices": {resource: list(devices) for resource, devices in memory.registered.items()},
    }
    return msgspec.json.encode({"Data": data, "Checksum": device_manager_checkpoint_checksum(data)})


def decode_checkpoint(data: bytes) -> LedgerMemory:
    """Raises Damaged."""
    try:
        whole = msgspec.json.decode(data)
        content, said = whole["Data"], whole["Checksum"]
        if device_manager_checkpoint_checksum(content) != said:
            raise CheckpointDamaged(
                f"the checksum is {device_manager_checkpoint_checksum(content)} and the file says {said}"
            )
        grants = tuple(_grant_of_checkpoint_entry(entry) for entry in content["PodDeviceEntries"])
        registered = {resource: tuple(devices) for resource, devices in content["RegisteredDevices"].items()}
    except CheckpointDamaged:
        raise
    except Exception as error:  # whatever somebody wrote there: no shape of it may stop the node
        raise CheckpointDamaged(f"it cannot be read: {error!r}") from error
    return LedgerMemory(grants, registered)


def device_manager_checkpoint_checksum(data: Any) -> int:
    return zlib.crc32(msgspec.json.encode(data, order="sorted"))


def _checkpoint_entry(grant: KubeletDeviceGrant) -> dict[str, Any]:
    return {
        "PodUID": grant.uid,
        "ContainerName": grant.container,
        "ResourceName": grant.resource,
        "DeviceIDs": {str(node): list(devices) for node, devices in grant.numa.items()},
        "AllocResp": base64.b64encode(_encode_kubelet_checkpoint_answer(grant.allocation)).decode(),
    }


def _grant_of_checkpoint_entry(entry: dict[str, Any]) -> KubeletDeviceGrant:
    numa = {int(node): tuple(devices) for node, devices in entry["DeviceIDs"].items()}
    devices = tuple(dict.fromkeys(d for of_node in numa.values() for d in of_node))
    allocation = _decode_plugin_answer(base64.b64decode(entry["AllocResp"]))
    return KubeletDeviceGrant(entry["PodUID"], entry["ContainerName"], entry["ResourceName"], devices, allocation, numa)


def _encode_kubelet_checkpoint_answer(allocation: ContainerAllocation) -> bytes:
    """A container's part of the plugin's answer, alone."""
    whole: Any = ALLOCATE.response.message.FromString(ALLOCATE.response.encode((allocation,)))
    part: bytes = whole.container_responses[0].SerializeToString()
    return part


def _decode_plugin_answer(part: bytes) -> ContainerAllocation:
    whole: Any = ALLOCATE.response.message()
    whole.container_responses.add().ParseFromString(part)
    return ALLOCATE.response.decode(whole.SerializeToString())[0]

"""The checkpoint file: what goes in comes out, a damaged one is named and not believed, a killed writer leaves the old one."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from remuda.embedded.node.devices.checkpoint import (
    NAME,
    CheckpointDamaged,
    CheckpointFile,
    decode_checkpoint,
    device_manager_checkpoint_checksum,
    encode_device_manager_checkpoint,
)
from remuda.embedded.node.devices.device_ledger import NO_NUMA, KubeletDeviceGrant, LedgerMemory
from remuda.link.device_plugin_port import ContainerAllocation, DeviceNode, Mount
from remuda.link.kubelet_facts import MESSAGES

ANSWER = ContainerAllocation(
    envs={"NVIDIA_VISIBLE_DEVICES": "gpu-0"},
    mounts=(Mount("/run/a", "/state/a", True),),
    devices=(DeviceNode("/dev/nvidia0", "/dev/nvidia0", "rw"),),
    annotations={"k": "v"},
    cdi_devices=("vendor/class=x",),
)
MEMORY = LedgerMemory(
    (
        KubeletDeviceGrant(
            "uid", "main", "nvidia.com/gpu", ("gpu-0", "gpu-1"), ANSWER, {0: ("gpu-0",), NO_NUMA: ("gpu-1",)}
        ),
    ),
    {"nvidia.com/gpu": ("gpu-2",), "nvidia.com/mig-1g.10gb": ()},
)


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "device-plugins")
    assert file.read() is None
    file.write(MEMORY)
    assert file.read() == MEMORY
    assert [p.name for p in file.path.parent.iterdir()] == [NAME]


def test_the_shape_is_the_kubelets() -> None:
    whole = json.loads(encode_device_manager_checkpoint(MEMORY))
    assert whole.keys() == {"Data", "Checksum"}
    (entry,) = whole["Data"]["PodDeviceEntries"]
    answer = base64.b64decode(entry.pop("AllocResp"))
    assert entry == {
        "PodUID": "uid",
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"0": ["gpu-0"], "-1": ["gpu-1"]},
    }
    message = MESSAGES["v1beta1"]["ContainerAllocateResponse"].FromString(answer)
    assert dict(message.envs) == ANSWER.envs  # type: ignore[attr-defined]
    assert whole["Data"]["RegisteredDevices"] == {"nvidia.com/gpu": ["gpu-2"], "nvidia.com/mig-1g.10gb": []}


def tampered() -> bytes:
    whole = json.loads(encode_device_manager_checkpoint(MEMORY))
    whole["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = {"0": ["gpu-7"]}
    return json.dumps(whole).encode()


def signed(data: object) -> bytes:
    return json.dumps({"Data": data, "Checksum": device_manager_checkpoint_checksum(data)}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(encode_device_manager_checkpoint(MEMORY)[:-20], id="cut off"),
        pytest.param(b"\x00\xff" * 40, id="garbage"),
        pytest.param(b"[]", id="another shape"),
        pytest.param(tampered(), id="changed by hand"),
        pytest.param(signed({"PodDeviceEntries": [{}], "RegisteredDevices": {}}), id="entry without fields"),
        pytest.param(signed({"PodDeviceEntries": None, "RegisteredDevices": {}}), id="null"),
        pytest.param(
            signed(
                {
                    "PodDeviceEntries": [
                        {
                            "PodUID": "u",
                            "ContainerName": "c",
                            "ResourceName": "r",
                            "DeviceIDs": {"0": ["d"]},
                            "AllocResp": base64.b64encode(b"\xff\xff").decode(),
                        }
                    ],
                    "RegisteredDevices": {},
                }
            ),
            id="answer that is no message",
        ),
    ],
)
def test_a_damaged_file_is_put_aside_and_the_node_goes_on(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CheckpointDamaged):
        decode_checkpoint(data)
    file = CheckpointFile(tmp_path)
    file.path.write_bytes(data)
    assert file.read() == LedgerMemory()  # the node is not new: there was a checkpoint
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == data
    assert not file.path.exists()


def test_a_half_written_file_is_not_the_checkpoint(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path)
    file.write(MEMORY)
    (tmp_path / f".{NAME}.new").write_bytes(b'{"Data": {"Pod')  # the writer was killed here
    assert file.read() == MEMORY
    file.write(LedgerMemory())
    assert file.read() == LedgerMemory()

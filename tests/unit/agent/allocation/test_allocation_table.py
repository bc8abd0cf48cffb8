"""Devices in the hands of one pod at a time."""

from __future__ import annotations

import pytest

from remuda.agent.allocation.allocation_table import (
    AllocationTable,
    Grant,
    granted_device_env,
    granted_pod_env,
)
from remuda.api.devices import ObservedDevice
from remuda.api.errors import Refusal

DEVICES = {f"gpu-{i}": ObservedDevice(f"gpu-{i}", "X", index=i) for i in range(4)}


def a_grant(uid: str = "a", *devices: str) -> Grant:
    return Grant(devices, uid, f"default/pod-{uid}" if uid else "")


def grant(table: AllocationTable, new: Grant) -> None:
    table.check(new, DEVICES)
    table.enter(new)


def refusal(table: AllocationTable, new: Grant) -> Refusal:
    with pytest.raises(Refusal) as caught:
        table.check(new, DEVICES)
    assert caught.value.fix
    return caught.value


def test_unknown_device() -> None:
    said = refusal(AllocationTable("node-01"), a_grant("a", "gpu-0", "gpu-9"))
    assert said.reason == "UnknownDevice"
    assert "gpu-9" in said.message
    assert "gpu-3" in said.fix


def test_a_held_device_names_its_holder() -> None:
    table = AllocationTable("node-01")
    grant(table, a_grant("a", "gpu-0", "gpu-1"))
    said = refusal(table, a_grant("b", "gpu-1", "gpu-2"))
    assert said.reason == "DeviceHeld"
    assert "default/pod-a" in said.message
    grant(table, a_grant("c", "gpu-2"))  # nothing of the refused request stayed behind
    assert table.holders() == {"gpu-0": "a", "gpu-1": "a", "gpu-2": "c"}


def test_freed_devices_can_be_had_again() -> None:
    table = AllocationTable("node-01")
    grant(table, a_grant("a", "gpu-0"))
    grant(table, a_grant("a", "gpu-1"))  # another container of the same pod
    assert table.free("a") == [a_grant("a", "gpu-0"), a_grant("a", "gpu-1")]
    assert table.free("a") == []
    grant(table, a_grant("b", "gpu-0"))


def test_what_is_nobody_s_yet_blocks_nobody() -> None:
    """An init container's devices are asked for again for the app; a rejected pod's are never heard of again."""
    table = AllocationTable("node-01")
    grant(table, a_grant("", "gpu-0"))
    grant(table, a_grant("", "gpu-0", "gpu-1"))
    grant(table, a_grant("a", "gpu-0", "gpu-1"))
    assert refusal(table, a_grant("", "gpu-1")).reason == "DeviceHeld"
    assert table.holders() == {"gpu-0": "a", "gpu-1": "a"}


def test_shares_of_one_device_have_holders_of_their_own_and_the_whole_is_not_a_share() -> None:
    table = AllocationTable("node-01")
    grant(table, a_grant("a", "gpu-0::0"))
    grant(table, a_grant("b", "gpu-0::1", "gpu-1::0"))
    assert refusal(table, a_grant("c", "gpu-0::1")).reason == "DeviceHeld"
    assert refusal(table, a_grant("c", "gpu-0")).reason == "DeviceHeld"
    assert a_grant("b", "gpu-0::1", "gpu-0::2").rows == ("gpu-0",)


def test_a_pod_without_devices_holds_none() -> None:
    table = AllocationTable("node-01")
    grant(table, a_grant("a"))
    grant(table, a_grant("b", *DEVICES))
    assert table.free("a") == [a_grant("a")]


def test_the_directory_names_the_device_set() -> None:
    assert a_grant("a", "gpu-0", "gpu-1").name == "gpu-0_gpu-1"
    assert a_grant("b", "gpu-0", "gpu-1").name == "gpu-0_gpu-1"
    assert a_grant("a").name == "pod-a"
    long = [f"MIG-{i:032x}" for i in range(7)]
    assert len(a_grant("a", *long).name) == 64


def test_environment() -> None:
    assert granted_device_env("node-01", "/alloc/x", [DEVICES["gpu-2"], DEVICES["gpu-0"]]) == {
        "REMUDA_ALLOC_DIR": "/alloc/x",
        "REMUDA_NODE": "node-01",
        "REMUDA_VISIBLE_DEVICES": "gpu-2,gpu-0",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }
    assert granted_device_env("node-01", "", [])["CUDA_VISIBLE_DEVICES"] == ""
    assert "REMUDA_ALLOC_DIR" not in granted_device_env("node-01", "", [])
    assert granted_pod_env(a_grant("a")) == {"REMUDA_POD_NAME": "pod-a", "REMUDA_POD_UID": "a"}


def test_a_slice_goes_by_its_uuid_everywhere_a_device_only_where_the_hardware_is_real() -> None:
    device = ObservedDevice("gpu-0", "X", uuid="GPU-1")
    piece = ObservedDevice("gpu-0-1g.10gb-0", "X", uuid="MIG-1", parent="gpu-0")
    assert granted_device_env("n", "", [device])["CUDA_VISIBLE_DEVICES"] == "0"
    assert granted_device_env("n", "", [device], by_uuid=True)["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert granted_device_env("n", "", [piece])["CUDA_VISIBLE_DEVICES"] == "MIG-1"

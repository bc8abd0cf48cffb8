"""Devices in the hands of one pod at a time; directories wiped for a new owner and kept for the old one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remuda.agent.allocations import (
    AllocationTable,
    Owner,
    directory_name,
    environment,
    has_owner,
    is_owner,
    make_directory,
    remove_directory,
)
from remuda.api.devices import ObservedDevice, Signal
from remuda.api.errors import Refusal

DEVICES = {f"gpu-{i}": ObservedDevice(f"gpu-{i}", "X", index=i) for i in range(4)}


def an_owner(uid: str = "a", *devices: str) -> Owner:
    return Owner(uid, f"default/pod-{uid}", list(devices))


def with_signal(device: str, code: str) -> dict[str, ObservedDevice]:
    return {**DEVICES, device: ObservedDevice(device, "X", signals=[Signal("kmsg", code)])}


def refusal(table: AllocationTable, owner: Owner, devices: dict[str, ObservedDevice] = DEVICES) -> Refusal:
    with pytest.raises(Refusal) as caught:
        table.grant(owner, devices)
    assert caught.value.fix
    return caught.value


def test_unknown_device() -> None:
    said = refusal(AllocationTable("node-01"), an_owner("a", "gpu-0", "gpu-9"))
    assert said.reason == "UnknownDevice"
    assert "gpu-9" in said.message
    assert "gpu-3" in said.fix


def test_a_held_device_names_its_holder() -> None:
    table = AllocationTable("node-01")
    table.grant(an_owner("a", "gpu-0", "gpu-1"), DEVICES)
    said = refusal(table, an_owner("b", "gpu-2", "gpu-1"))
    assert said.reason == "DeviceHeld"
    assert "default/pod-a" in said.message
    table.grant(an_owner("c", "gpu-2"), DEVICES)  # nothing of the refused request stayed behind


def test_freed_devices_can_be_had_again() -> None:
    table = AllocationTable("node-01")
    table.grant(an_owner("a", "gpu-0"), DEVICES)
    assert table.free("a") == an_owner("a", "gpu-0")
    assert table.free("a") is None
    table.grant(an_owner("b", "gpu-0"), DEVICES)


def test_asking_again_is_fine_asking_for_others_is_not() -> None:
    table = AllocationTable("node-01")
    table.grant(an_owner("a", "gpu-0"), DEVICES)
    table.grant(an_owner("a", "gpu-0"), with_signal("gpu-0", "xid-79"))
    assert refusal(table, an_owner("a", "gpu-1")).reason == "DeviceHeld"
    table.grant(an_owner("b", "gpu-1"), DEVICES)


@pytest.mark.parametrize("code", ["xid-79", "xid-48", "no-such-code"])
def test_an_unhealthy_device_is_refused_with_the_reason(code: str) -> None:
    said = refusal(AllocationTable("node-01"), an_owner("a", "gpu-0"), with_signal("gpu-0", code))
    assert said.reason == "DeviceNotHealthy"
    assert "gpu-0" in said.message
    assert code in said.message


@pytest.mark.parametrize("code", ["xid-13", "xid-63", "xid-94", "probe-passed"])
def test_anything_less_than_unhealthy_is_granted(code: str) -> None:
    AllocationTable("node-01").grant(an_owner("a", "gpu-0"), with_signal("gpu-0", code))


def test_who_had_it_before_a_restart_keeps_it_whatever_its_health() -> None:
    table = AllocationTable("node-01")
    table.grant(an_owner("a", "gpu-0"), with_signal("gpu-0", "xid-79"), again=True)
    assert refusal(table, an_owner("b", "gpu-0")).reason == "DeviceHeld"


def test_a_pod_without_devices_holds_none() -> None:
    table = AllocationTable("node-01")
    table.grant(an_owner("a"), DEVICES)
    table.grant(an_owner("b", *DEVICES), DEVICES)
    assert table.free("a") is not None


# --- directories --------------------------------------------------------------------------------------------------------


def test_the_directory_names_the_device_set() -> None:
    assert directory_name(an_owner("a", "gpu-0", "gpu-1")) == "gpu-0_gpu-1"
    assert directory_name(an_owner("b", "gpu-0", "gpu-1")) == "gpu-0_gpu-1"
    assert directory_name(an_owner("a")) == "pod-a"
    long = [f"MIG-{i:032x}" for i in range(7)]
    assert len(directory_name(an_owner("a", *long))) == 64


def test_a_new_owner_finds_it_empty(tmp_path: Path) -> None:
    directory = tmp_path / "alloc" / "gpu-0"
    make_directory(directory, an_owner("a", "gpu-0"))
    (directory / "progress.json").write_text("{}")
    assert is_owner(directory, an_owner("a", "gpu-0"))
    assert has_owner(directory, "a")
    assert not is_owner(directory, an_owner("b", "gpu-0"))
    assert not is_owner(directory, an_owner("a", "gpu-0", "gpu-1"))
    make_directory(directory, an_owner("b", "gpu-0"))
    assert os.listdir(directory) == ["allocation.json"]
    assert directory.stat().st_mode & 0o777 == 0o700
    assert is_owner(directory, an_owner("b", "gpu-0"))


def test_a_directory_without_a_readable_marker_is_nobody_s(tmp_path: Path) -> None:
    assert not is_owner(tmp_path, an_owner("a"))
    (tmp_path / "allocation.json").write_text("{")
    assert not is_owner(tmp_path, an_owner("a"))
    assert not has_owner(tmp_path / "missing", "a")


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    make_directory(tmp_path / "x", an_owner("a"))
    remove_directory(tmp_path / "x")
    remove_directory(tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_environment() -> None:
    owner = an_owner("a", "gpu-2", "gpu-0")
    assert environment("node-01", owner, "/alloc/x", [DEVICES["gpu-2"], DEVICES["gpu-0"]]) == {
        "REMUDA_ALLOC_DIR": "/alloc/x",
        "REMUDA_POD_NAME": "pod-a",
        "REMUDA_POD_UID": "a",
        "REMUDA_NODE": "node-01",
        "REMUDA_VISIBLE_DEVICES": "gpu-2,gpu-0",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }
    assert environment("node-01", an_owner("a"), "", [])["CUDA_VISIBLE_DEVICES"] == ""
    assert "REMUDA_ALLOC_DIR" not in environment("node-01", an_owner("a"), "", [])

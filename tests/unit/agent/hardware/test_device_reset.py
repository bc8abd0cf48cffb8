"""Resets by the maker's tool, with a stand-in for it: it is told the device, and nothing of ours has one open meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remuda.agent.hardware.hardware_backend import HardwareConfig, run_reset_tool
from remuda.agent.hardware.sysfs import SysfsBackend, SysfsConfig
from remuda.agent.hardware.vendor_backends import NvmlBackend
from remuda.api.errors import Refusal
from tests.unit.agent.hardware.rig import Library


def a_tool(place: Path, name: str, script: str) -> None:
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(0o755)


async def test_the_tool_is_told_the_device_and_the_driver_process_lets_go(
    tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = HardwareConfig("node-01", None, tmp_path / "ids.json", poll_s=3600.0, call_s=20.0, boot="boot-1")
    backend = NvmlBackend(config, time.time, environment=library.environment, root=tmp_path)
    await backend.open()
    try:
        pid = backend.child.pid
        log = tmp_path / "log"
        script = f'echo "$@" > {log}; [ -e /proc/{pid}/fd/0 ] && echo alive >> {log}; exit 0'
        a_tool(tmp_path / "bin", "nvidia-smi", script)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        await backend.reset(["gpu-3", "gpu-1"])
        assert log.read_text() == "--gpu-reset -i 0000:51:00.0,0000:2d:00.0\n"
        assert (await backend.probe("gpu-3")).passed  # started again by the next question
        assert backend.child.pid not in (None, pid)
        assert backend.utilisation("gpu-3") is not None
    finally:
        await backend.close()


async def test_a_tool_that_fails_or_is_not_there_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_tool(tmp_path / "bin", "nvidia-smi", "echo GPU is in use; exit 4")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(Refusal) as failed:
        await run_reset_tool(["nvidia-smi", "--gpu-reset"])
    assert (failed.value.reason, "GPU is in use" in failed.value.message) == ("ResetFailed", True)
    with pytest.raises(Refusal) as missing:
        await run_reset_tool(["amd-smi", "reset"])
    assert missing.value.reason == "ResetNotSupported"


async def test_without_a_library_there_is_no_reset(tmp_path: Path) -> None:
    backend = SysfsBackend(SysfsConfig("node-01"), time.time, tmp_path)
    with pytest.raises(Refusal) as refused:
        await backend.reset(["gpu-0"])
    assert refused.value.reason == "ResetNotSupported"

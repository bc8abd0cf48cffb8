"""What the tests of backends share: ears, a clock, and a driver library made of a text file."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.driver_process import DriverChild
from remuda.api.devices import Signal
from remuda.core.devices.fault_codes import classify_device_fault_code
from tests.builders.waiting import PATIENCE_S

SOURCE = Path(__file__).parents[3] / "nvml" / "fake_nvml.c"
NOW = 1_700_000_000.0


class Clock:
    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Ears:
    """Everything a backend reports; codes that only say that all is well are left out of `codes`."""

    def __init__(self, backend: DeviceBackend) -> None:
        self.heard: list[tuple[str, Signal]] = []
        self.inventories = 0
        self._news = asyncio.Event()
        backend.subscribe(self._hear)
        backend.subscribe_node(lambda signal: self._hear("", signal))
        backend.subscribe_inventory(self._changed)

    def _hear(self, device: str, signal: Signal) -> None:
        self.heard.append((device, signal))
        self._news.set()

    def _changed(self) -> None:
        self.inventories += 1
        self._news.set()

    @property
    def codes(self) -> list[tuple[str, str]]:
        return [(d, s.code) for d, s in self.heard if not classify_device_fault_code(s.source, s.code).retracts]

    @property
    def all_codes(self) -> list[tuple[str, str]]:
        return [(d, s.code) for d, s in self.heard]

    def message(self, device: str, code: str) -> str:
        return next(s.message for d, s in reversed(self.heard) if (d, s.code) == (device, code))

    def forget(self) -> None:
        self.heard.clear()

    async def until(self, true: Callable[[], bool]) -> None:
        """Returns when `true` is, after whatever is heard next; fails when it never is."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._news.clear()
                await self._news.wait()


def build_library(directory: Path) -> Path:
    """libnvidia-ml.so.1 in `directory`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        if os.environ.get("REMUDA_REQUIRE_KUBE"):
            pytest.fail("no C compiler: the NVML path would go untested; install gcc")
        pytest.skip("no C compiler: the NVML path is not tested; install gcc")
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True
    )
    return target


class Library:
    """The control file of the fake library."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.path = directory / "control"
        self.hangs = directory / "control.hangs"  # made by the library when a call of it hangs
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library.parent),
            "FAKE_NVML_CONTROL": str(self.path),
        }
        self.says()

    def says(self, *lines: str) -> None:
        """From now on. Replaced whole, so that no call reads half of it."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in ("count 8", *lines)), encoding="ascii")
        fresh.replace(self.path)

    def cut_hangs_short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The deadline of a call passes when the library hangs, and only then: nobody waits for it, and a busy machine is not
        taken for a hang."""
        ask = DriverChild._ask

        async def asked(child: DriverChild, number: int, line: bytes, deadline_s: float) -> dict[str, Any]:
            self.hangs.unlink(missing_ok=True)
            answer = asyncio.ensure_future(ask(child, number, line, PATIENCE_S))
            while not (await asyncio.wait([answer], timeout=0.005))[0]:
                if self.hangs.exists():
                    answer.cancel()
                    await asyncio.wait([answer])
                    raise TimeoutError
            return answer.result()

        monkeypatch.setattr(DriverChild, "_ask", asked)

"""From the hardware to NodeDevices: what a backend shows and says, as the agent reports it and hands it out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from remuda.agent.agent import Agent
from remuda.agent.config import AgentConfig
from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.hardware.hardware_backend import HardwareConfig
from remuda.agent.hardware.vendor_backends import NvmlBackend
from remuda.api.devices import DeviceState, ObservedDevice
from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.core.health.ledger import judge_node
from tests.component.agent_rig import Rig, a_rig
from tests.unit.agent.hardware.rig import Library, build_library
from tests.unit.agent.scene import NODE

GPU = "nvidia.com/gpu"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as made:
        yield made


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, time.time)


@asynccontextmanager
async def an_agent(rig: Rig, backend: DeviceBackend) -> AsyncIterator[Agent]:
    config = AgentConfig(NODE, str(rig.root / "alloc"), str(rig.root / "checkpoints"))
    agent = Agent(config, cluster=rig.cluster, backend=backend, jobs=rig.jobs, board=rig.board, clock=time.time)
    await agent.start()
    await agent.flush()
    try:
        yield agent
    finally:
        await agent.stop()


def rows(rig: Rig) -> dict[str, ObservedDevice]:
    found = rig.devices.get(NODE)
    return {row.id: row for row in found.observed.devices} if found is not None else {}


def codes(rig: Rig, device: str) -> list[str]:
    return [signal.code for signal in rows(rig)[device].signals] if device in rows(rig) else []


def node_codes(rig: Rig) -> list[str]:
    found = rig.devices.get(NODE)
    return [signal.code for signal in found.observed.signals] if found is not None else []


async def test_uuid_place_links_and_boot_are_reported(rig: Rig, backend: FakeBackend) -> None:
    async with an_agent(rig, backend):
        observed = (await rig.read()).observed
        assert observed.boot == backend.boot
        assert [(d.id, d.uuid, d.pci) for d in observed.devices] == [(d.id, d.uuid, d.pci) for d in backend.inventory()]
        assert [len(link.among) for link in observed.links] == [8]
        backend.reboot()
        await rig.until(lambda: rig.devices.get(NODE).observed.boot == backend.boot, "the new boot id")  # type: ignore[union-attr]


async def test_row_13_a_boot_with_seven_of_eight_is_flagged(rig: Rig) -> None:
    backend = FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, time.time, missing=[5])
    async with an_agent(rig, backend):
        found = await rig.read()
        assert [s.code for s in found.observed.signals] == ["devices-missing"]
        assert "gpu-5" in found.observed.signals[0].message
        verdicts = {v.device: v for v in judge_node(found, [], time.time())}
        assert verdicts["gpu-5"].state is DeviceState.UNHEALTHY
        assert verdicts["gpu-4"].state is DeviceState.HEALTHY
        backend.restore("gpu-5")
        await rig.until(lambda: not node_codes(rig) and not codes(rig, "gpu-5"), "the device to be back")


async def test_row_4_a_condition_that_ended_while_no_agent_was_there_ends(rig: Rig, backend: FakeBackend) -> None:
    async with an_agent(rig, backend):
        backend.drop("gpu-2")
        await rig.until(lambda: codes(rig, "gpu-2") == ["device-missing"], "the device to be missed")
    another = FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, time.time)
    async with an_agent(rig, another):
        await rig.until(lambda: not codes(rig, "gpu-2"), "the device to be back")


async def test_row_52_a_device_with_leftovers_is_withheld_until_it_is_clean(rig: Rig, backend: FakeBackend) -> None:
    async with an_agent(rig, backend) as agent:
        backend.leave_behind("gpu-1")
        await rig.until(lambda: codes(rig, "gpu-1") == ["leftover-processes"], "the leftovers to be reported")
        with pytest.raises(Refusal, match="DeviceNotHealthy"):
            await agent.plugins()[GPU].allocate(["gpu-1"])
        await agent.plugins()[GPU].allocate(["gpu-0"])
        backend.clean("gpu-1")
        await agent.plugins()[GPU].allocate(["gpu-1"])
        await rig.until(lambda: codes(rig, "gpu-1") == [], "the device to be clean")


async def test_a_replaced_device_starts_with_a_clean_sheet(rig: Rig, backend: FakeBackend) -> None:
    async with an_agent(rig, backend):
        backend.inject("gpu-6", "xid-79")
        await rig.until(lambda: codes(rig, "gpu-6") == ["xid-79"], "the fault")
        old = rows(rig)["gpu-6"].uuid
        backend.replace("gpu-6")
        await rig.until(lambda: rows(rig)["gpu-6"].uuid != old and not codes(rig, "gpu-6"), "the new device")
        assert [row.id for row in rows(rig).values()] == [f"gpu-{n}" for n in range(8)]


async def test_a_hanging_driver_makes_devices_unknown_and_nobody_unhealthy(rig: Rig, backend: FakeBackend) -> None:
    async with an_agent(rig, backend):
        backend.hang()
        await rig.until(lambda: all("driver-hang" in codes(rig, d) for d in rows(rig)), "the hang")
        verdicts = judge_node(await rig.read(), [], time.time())
        assert {v.state for v in verdicts} == {DeviceState.UNKNOWN}
        backend.hang(False)
        await rig.until(lambda: not any(codes(rig, d) for d in rows(rig)), "the driver to be back")


async def test_nvml_from_the_library_to_the_ledger(rig: Rig, tmp_path: Path) -> None:
    """Row 51 through all layers: one device is lost, an Xid of another, leftovers on a third, five serve on."""
    (tmp_path / "lib").mkdir()
    library = Library(tmp_path, build_library(tmp_path / "lib"))
    config = HardwareConfig(
        NODE, load_built_in_machine_model("dgx-h100"), tmp_path / "ids.json", poll_s=0.05, call_s=20.0, boot="boot-1"
    )
    backend = NvmlBackend(config, time.time, environment=library.environment, root=tmp_path)
    async with an_agent(rig, backend) as agent:
        library.says("lost 3", "xid 1 2 79", "process 6 4242 1048576")
        await rig.until(lambda: "nvml-lost" in codes(rig, "gpu-3") and "xid-79" in codes(rig, "gpu-2"), "both faults")
        with pytest.raises(Refusal, match="DeviceNotHealthy"):
            await agent.plugins()[GPU].allocate(["gpu-6"])
        answer = await agent.plugins()[GPU].allocate(["gpu-4", "gpu-5"])
        assert {"/dev/nvidia4", "/dev/nvidia5", "/dev/nvidiactl"} <= {f.host_path for f in answer.devices}
        await rig.until(lambda: "leftover-processes" in codes(rig, "gpu-6"), "the leftovers")
        states = {v.device: v.state for v in judge_node(await rig.read(), [], time.time())}
        assert {d for d, state in states.items() if state is DeviceState.HEALTHY} == {
            "gpu-0",
            "gpu-1",
            "gpu-4",
            "gpu-5",
            "gpu-7",
        }
        library.says("lost 3")
        await rig.until(lambda: codes(rig, "gpu-6") == [], "the leftovers to be gone")

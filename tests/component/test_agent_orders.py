"""Orders on one agent: done once per id, answered, bounded in time; resets, reboots and hooks as they may be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from remuda.agent.agent import Agent
from remuda.agent.config import AgentConfig
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.orders.node_commands import parse_node_hooks
from remuda.agent.orders.order_runner import OrderRules
from remuda.api.codec import to_wire
from remuda.api.devices import DeviceOrder, NodeDevices, OrderAnswer
from remuda.api.meta import to_time
from remuda.core.devices.machine_models import load_built_in_machine_model
from tests.builders.waiting import PATIENCE_S
from tests.component.agent_rig import Rig, a_rig
from tests.unit.agent.scene import NODE

ALL = ("/bin/sh ...",)


class Orderer:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.agents: list[Agent] = []
        self.backend = FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, time.time)
        rig.devices.subscribe(self._changed)

    def _changed(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        for agent in self.agents:
            agent.obey(new.orders if new is not None else {})

    async def agent(self, *hooks: str, reboot: str = "", backend: FakeBackend | None = None) -> Agent:
        config = AgentConfig(
            NODE,
            str(self.rig.root / "alloc"),
            str(self.rig.root / "checkpoints"),
            rules=OrderRules(parse_node_hooks(hooks), tuple(reboot.split())),
        )
        agent = Agent(
            config,
            cluster=self.rig.cluster,
            backend=backend or self.backend,
            jobs=self.rig.jobs,
            board=self.rig.board,
            clock=time.time,
        )
        self.agents.append(agent)
        await agent.start()
        await agent.flush()
        return agent

    async def stop(self, agent: Agent) -> None:
        self.agents.remove(agent)
        await agent.stop()

    async def give(self, id: str, action: str, device: str = "", *, within: float | None = None, **more: Any) -> None:
        deadline = to_time(time.time() + within) if within is not None else None
        order = DeviceOrder(action, device, deadline=deadline, **more)
        await self.rig.cluster.patch(NodeDevices, NODE, {"orders": {id: to_wire(order)}})

    def answer(self, id: str) -> OrderAnswer | None:
        found = self.rig.devices.get(NODE)
        return next((a for a in found.observed.answers if a.id == id), None) if found is not None else None

    async def until(self, id: str, *outcomes: str) -> OrderAnswer:
        def is_so() -> bool:
            found = self.answer(id)
            return found is not None and (found.outcome in outcomes if outcomes else found.outcome != "Running")

        await self.rig.until(is_so, f"{id} is {outcomes or 'answered'}: {self.answer(id)}")
        found = self.answer(id)
        assert found is not None
        return found

    async def asked(self, action: str, device: str = "", **more: Any) -> OrderAnswer:
        id = f"{action}-{time.monotonic_ns()}"
        await self.give(id, action, device, **more)
        return await self.until(id)

    def codes(self, device: str) -> list[str]:
        found = self.rig.devices.get(NODE)
        assert found is not None
        return next([s.code for s in d.signals] for d in found.observed.devices if d.id == device)


@pytest.fixture
async def orderer(tmp_path: Path) -> AsyncIterator[Orderer]:
    async with a_rig(tmp_path) as rig:
        made = Orderer(rig)
        try:
            yield made
        finally:
            for agent in list(made.agents):
                await made.stop(agent)


async def test_a_probe_is_answered_and_heard(orderer: Orderer) -> None:
    await orderer.agent()
    answer = await orderer.asked("probe", "gpu-3")
    assert (answer.outcome, answer.device, answer.action) == ("Succeeded", "gpu-3", "probe")
    assert answer.started_at is not None
    assert answer.time is not None
    assert answer.time >= answer.started_at
    await orderer.rig.until(lambda: orderer.codes("gpu-3") == ["probe-passed"], "probe-passed")


async def test_a_reset_cures_what_a_reset_cures_and_a_reboot_the_rest(orderer: Orderer) -> None:
    agent = await orderer.agent()

    async def reboot() -> None:
        orderer.backend.reboot()

    agent.orders.reboot = reboot
    orderer.backend.inject("gpu-1", "xid-48")  # the table: a reset
    orderer.backend.inject("gpu-2", "xid-79")  # the table: a reboot
    orderer.backend.inject("gpu-3", "xid-48", "replace")
    expected = {"gpu-1": ["Failed", "Succeeded", "Succeeded"], "gpu-2": ["Failed", "Failed", "Succeeded"]}
    expected["gpu-3"] = ["Failed", "Failed", "Failed"]
    found: dict[str, list[str]] = {device: [(await orderer.asked("probe", device)).outcome] for device in expected}
    for device in expected:
        assert (await orderer.asked("reset", device)).outcome == "Succeeded"
        found[device].append((await orderer.asked("probe", device)).outcome)
    assert (await orderer.asked("reboot")).outcome == "Succeeded"
    for device in expected:
        found[device].append((await orderer.asked("probe", device)).outcome)
    assert found == expected
    orderer.backend.replace("gpu-3")
    assert (await orderer.asked("probe", "gpu-3")).outcome == "Succeeded"


async def test_a_held_device_is_not_reset(orderer: Orderer) -> None:
    agent = await orderer.agent()
    await orderer.rig.allocate(agent, "a", "gpu-4")
    answer = await orderer.asked("reset", "gpu-4")
    assert (answer.outcome, answer.reason) == ("Refused", "DeviceHeld")
    assert "default/pod-a" in answer.message
    await agent.release("a")
    assert (await orderer.asked("reset", "gpu-4")).outcome == "Succeeded"


async def test_nobody_is_handed_a_device_during_its_reset(orderer: Orderer) -> None:
    agent = await orderer.agent()
    orderer.backend.hang()
    orderer.backend.report("gpu-4", "nvml", "driver-back")
    await orderer.give("r", "reset", "gpu-4", within=1.0)
    await orderer.until("r", "Running")
    fault = agent.inventory.fault("gpu-4")
    assert fault is not None
    assert fault.reason == "Resetting"
    assert (await orderer.until("r")).outcome == "TimedOut"
    fault = agent.inventory.fault("gpu-4")
    assert fault is None or fault.reason != "Resetting"


async def test_a_driver_that_hangs_costs_its_own_order(orderer: Orderer) -> None:
    await orderer.agent(*ALL)
    orderer.backend.hang()
    await orderer.give("slow", "reset", "gpu-0", within=0.5)
    assert (await orderer.asked("command", command=["/bin/sh", "-c", "echo well"])).message == "well"
    answer = await orderer.until("slow")
    assert (answer.outcome, answer.reason) == ("TimedOut", "DeadlinePassed")


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"action": "probe", "device": "gpu-99"}, "UnknownDevice"),
        ({"action": "explode"}, "UnknownOrder"),
        ({"action": "reboot"}, "NoRebootCommand"),
        ({"action": "command", "command": ["/bin/sh", "-c", "id"]}, "HookNotAllowed"),
        ({"action": "command", "command": ["/opt/../bin/sh"]}, "HookNotAllowed"),
        ({"action": "command", "command": ["/opt/hook"], "env": {"LD_PRELOAD": "/tmp/x.so"}}, "VariableNotAllowed"),
    ],
)
async def test_what_is_not_allowed_is_refused(orderer: Orderer, order: dict[str, Any], reason: str) -> None:
    await orderer.agent("/opt/*")
    answer = await orderer.asked(**order)
    assert (answer.outcome, answer.reason) == ("Refused", reason)
    assert answer.message


async def test_a_hook_has_a_clean_environment_and_its_output_is_bounded(
    orderer: Orderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the agent")
    await orderer.agent(*ALL)
    env = {"REMUDA_INCIDENT": "dev-1", "REMUDA_NODE": "another"}
    answer = await orderer.asked("command", "gpu-1", command=["/bin/sh", "-c", "env"], env=env)
    said = dict(line.split("=", 1) for line in answer.message.splitlines())
    assert "SECRET" not in said
    assert (said["REMUDA_NODE"], said["REMUDA_DEVICE"], said["REMUDA_INCIDENT"]) == (NODE, "gpu-1", "dev-1")
    assert said["REMUDA_UUID"].startswith("GPU-")
    long = await orderer.asked("command", command=["/bin/sh", "-c", "yes 12345678 | head -n 100000; echo end; exit 3"])
    assert (long.outcome, long.reason) == ("Failed", "CommandFailed")
    assert len(long.message) <= 1024
    assert "exited with code 3" in long.message


async def test_at_the_deadline_the_whole_group_of_a_hook_is_killed(orderer: Orderer, tmp_path: Path) -> None:
    await orderer.agent(*ALL)
    pid = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {pid}; wait"
    answer = await orderer.asked("command", command=["/bin/sh", "-c", script], within=1.0)
    assert (answer.outcome, answer.reason) == ("TimedOut", "DeadlinePassed")
    await _until(lambda: _is_gone(int(pid.read_text())))


async def test_an_order_is_done_once_whatever_restarts(orderer: Orderer, tmp_path: Path) -> None:
    done = tmp_path / "done"
    agent = await orderer.agent(*ALL)
    await orderer.give("c", "command", command=["/bin/sh", "-c", f"echo x >> {done}"])
    assert (await orderer.until("c")).outcome == "Succeeded"
    await orderer.stop(agent)
    again, other = await orderer.agent(*ALL), await orderer.agent(*ALL)
    assert (await orderer.asked("command", command=["/bin/sh", "-c", f"echo y >> {done}"])).outcome == "Succeeded"
    assert (await orderer.asked("probe", "gpu-0")).outcome == "Succeeded"
    assert done.read_text() == "x\ny\n"
    assert again.orders is not other.orders


async def test_what_was_under_way_when_the_agent_ended(orderer: Orderer) -> None:
    first = await orderer.agent(*ALL, reboot="/bin/true")
    await orderer.give("command", "command", "gpu-5", command=["/bin/sh", "-c", "sleep 1000"])
    await orderer.give("reboot", "reboot")
    await orderer.until("command", "Running")
    await orderer.until("reboot", "Running")
    # As an agent leaves them that dies over a reset and a probe.
    found = await orderer.rig.read()
    left = [*found.observed.answers, OrderAnswer("probe", "probe", "Running", "gpu-1")]
    left.append(OrderAnswer("reset", "reset", "Running", "gpu-2"))
    await orderer.stop(first)
    await orderer.give("probe", "probe", "gpu-1")
    await orderer.give("reset", "reset", "gpu-2")
    patch = {"status": {"answers": [to_wire(a) for a in left]}}
    await orderer.rig.cluster.patch(NodeDevices, NODE, patch, subresource="status")
    rebooted = FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, time.time)
    rebooted.reboot()
    await orderer.agent(*ALL, backend=rebooted)
    outcomes = {id: (await orderer.until(id)) for id in ("command", "reset", "probe", "reboot")}
    assert {id: (a.outcome, a.reason) for id, a in outcomes.items()} == {
        "command": ("Failed", "Interrupted"),
        "reset": ("Failed", "Interrupted"),
        "probe": ("Succeeded", ""),
        "reboot": ("Succeeded", ""),
    }


async def test_a_node_that_does_not_reboot_times_out_also_in_the_next_agent(orderer: Orderer) -> None:
    first = await orderer.agent(reboot="/bin/true")
    await orderer.give("r", "reboot", within=3.0)
    await orderer.until("r", "Running")
    await orderer.stop(first)
    await orderer.agent(reboot="/bin/true")
    answer = await orderer.until("r")
    assert (answer.outcome, answer.reason) == ("TimedOut", "NotRebooted")


async def test_answers_stay_with_their_orders_and_are_bounded_without(orderer: Orderer) -> None:
    await orderer.agent()
    await orderer.give("stays", "probe", "gpu-0")
    await orderer.until("stays")
    for number in range(20):
        await orderer.give(f"p{number}", "probe", "gpu-1")
        await orderer.until(f"p{number}")
        await orderer.rig.cluster.patch(NodeDevices, NODE, {"orders": {f"p{number}": None}})
    kept = [a.id for a in (await orderer.rig.read()).observed.answers]
    assert {"stays", "p19"} <= set(kept)
    assert "p0" not in kept
    assert len(kept) <= 18


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0, -1e9, 2e9])
async def test_an_order_has_its_time_whatever_the_nodes_clock_says(orderer: Orderer, ahead_s: float) -> None:
    """`since` and `deadline` are the manager's clock; the node's is so much ahead of it."""
    await orderer.agent(*ALL)
    begun = time.time() - ahead_s
    for id, command, given_s in (("quick", "exit 0", 30.0), ("slow", "sleep 30", 0.3)):
        order = DeviceOrder(
            "command", "", ["/bin/sh", "-c", command], since=to_time(begun), deadline=to_time(begun + given_s)
        )
        await orderer.rig.cluster.patch(NodeDevices, NODE, {"orders": {id: to_wire(order)}})
    assert (await orderer.until("quick")).outcome == "Succeeded"
    slow = await orderer.until("slow")
    assert (slow.outcome, slow.reason) == ("TimedOut", "DeadlinePassed")


async def test_answers_to_orders_that_nobody_gave_are_not_made(orderer: Orderer) -> None:
    await orderer.agent()
    await orderer.asked("probe", "gpu-1")
    agent = orderer.agents[0]
    agent.obey({"forged": DeviceOrder("probe", "gpu-2")})  # told past the API, which does not know of it
    await orderer.asked("probe", "gpu-3")
    assert orderer.answer("forged") is None

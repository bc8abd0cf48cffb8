"""Checklist rows 12, 23 and 29: a node is given device work when it is ready for it, has the driver, and its agent has time."""

from __future__ import annotations

import asyncio
import time

import pytest

from remuda.agent.agent import Agent
from remuda.agent.agent_lateness import Lateness, LatenessRule, agent_lateness_after_sleep, watch_agent_lateness
from remuda.agent.config import AgentConfig
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.drills import DrillKind
from remuda.core.devices.machine_models import load_built_in_machine_model
from tests.builders.evidence import note
from tests.builders.waiting import PATIENCE_S
from tests.builders.world import World, play
from tests.component.agent_rig import Rig, a_rig
from tests.component.world_rig import GPU, NODE, counts, create, gpus, hardware, is_up, node_object, scheduled, the_pod
from tests.unit.agent.scene import NODE as RIG_NODE

FULL = "nvidia.com/cuda.driver-version.full"


async def unready(world: World) -> None:
    """No plugin: nothing is placed, however well the devices are. It comes: the pod runs."""
    await world.drill(DrillKind.PLUGIN_KILL, node=NODE, resource=GPU)
    await world.until(lambda: counts(world)[1] == "0", 30.0, "nothing is offered")
    await create(world, gpus("early"))
    await world.sleep(60.0)
    assert not the_pod(world, "early").spec.node_name
    drill = f"drill-{world._drills:03d}"
    from remuda.api.drills import Drill

    await world.cluster.api.patch(Drill, drill, {"spec": {"undo": True}})
    await world.until(lambda: is_up(world, "early"), 120.0, "the pod runs")
    note("no plugin: the pod is unbound for 60 s; it runs once the plugin is there")


def test_row_12_nothing_is_placed_before_the_plugin_is_there() -> None:
    play(unready, nodes=1, racks=1)


async def _agent(rig: Rig, backend: FakeBackend) -> Agent:
    config = AgentConfig(RIG_NODE, str(rig.root / "alloc"), str(rig.root / "checkpoints"), confirm_count=True)
    agent = Agent(config, cluster=rig.cluster, backend=backend, jobs=rig.jobs, board=rig.board, clock=time.time)
    await agent.start()
    await agent.flush()
    return agent


def usable(agent: Agent) -> int:
    return sum(agent.inventory.fault(device) is None for device in agent.inventory.rows)


async def test_row_12_a_node_that_boots_short_hands_nothing_out_until_it_is_whole(tmp_path) -> None:  # type: ignore[no-untyped-def]
    async with a_rig(tmp_path) as rig:
        backend = FakeBackend(load_built_in_machine_model("dgx-h100"), RIG_NODE, time.time, missing=[3])
        agent = await _agent(rig, backend)
        assert usable(agent) == 0
        await agent.stop()
        agent = await _agent(rig, backend)  # a restart of the agent confirms nothing
        assert usable(agent) == 0
        backend.restore("gpu-3")
        assert usable(agent) == 8
        backend.drop("gpu-5")  # short later: the others are not withheld
        assert usable(agent) == 7
        await agent.flush()
        await agent.stop()
        agent = await _agent(rig, backend)
        assert usable(agent) == 7
        await agent.stop()
        note(
            "7 of 8 at boot and --confirm-count: 0 usable, also after a restart; 8 once it was whole; 7 when it is short later"
        )


async def drivers(world: World) -> None:
    hardware(world, "node-01").set_driver("535.183.01")
    hardware(world, "node-02").set_driver("550.54.15")
    await world.until(lambda: FULL in node_object(world, "node-02").labels, 30.0, "the labels are there")
    await create(world, _needs("new", "550.54"), _needs("newest", "570"))
    await world.until(lambda: is_up(world, "new"), 60.0, "new runs")
    assert the_pod(world, "new").spec.node_name == "node-02"
    await world.until(lambda: scheduled(the_pod(world, "newest"))[0] == "DriverTooOld", 60.0, "it is refused")
    message = scheduled(the_pod(world, "newest"))[1]
    assert FULL in message
    assert "570" in message
    assert "550.54.15" in message
    hardware(world, "node-01").set_driver("570.124.06")
    await world.until(lambda: is_up(world, "newest"), 60.0, "newest runs")
    assert the_pod(world, "newest").spec.node_name == "node-01"
    note("drivers 535 and 550: a pod for 550.54 is on the latter; one for 570 is refused (DriverTooOld), naming it")


async def selected(world: World) -> None:
    hardware(world).set_driver("535.183.01")
    await create(world, gpus("picky", select={"nvidia.com/cuda.driver.major": "550"}))
    await world.until(
        lambda: "nvidia.com/cuda.driver.major is 535, not 550" in scheduled(the_pod(world, "picky"))[1],
        60.0,
        "the refusal names the attribute",
    )
    note("selector on a driver label: 'nvidia.com/cuda.driver.major is 535, not 550'")


def _needs(name: str, driver: str):  # type: ignore[no-untyped-def]
    body = gpus(name)
    body["metadata"].setdefault("annotations", {})["remuda.dev/min-driver"] = driver
    return body


def test_row_23_a_pod_is_not_placed_below_its_driver_and_the_refusal_names_it() -> None:
    play(drivers, nodes=2, racks=1)


def test_row_23_a_selector_on_a_driver_label_is_named_in_the_refusal() -> None:
    play(selected, nodes=1, racks=1)


@pytest.mark.parametrize(
    ("late", "starved"),
    [
        ([0, 0, 0], False),
        ([3, 3, 0, 3, 3], False),
        ([3, 3, 3], True),
        ([3, 3, 3, 0, 0], True),
        ([3] * 3 + [0] * 6, False),
    ],
)
def test_row_29_late_again_and_again_is_starving(late: list[float], starved: bool) -> None:
    state = Lateness()
    for seconds in late:
        state = agent_lateness_after_sleep(state, seconds, LatenessRule())
    assert state.is_starved is starved


async def test_row_29_a_starved_agent_says_so_and_takes_it_back() -> None:
    told: list[str] = []
    rule = LatenessRule(late_s=0.05, times=2, well=2)
    task = asyncio.create_task(watch_agent_lateness(lambda device, source, code, words: told.append(code), rule, 0.01))
    async with asyncio.timeout(PATIENCE_S):
        while "agent-starved" not in told:
            await asyncio.sleep(0)
            time.sleep(0.1)  # noqa: ASYNC251
        while told[-1] != "agent-on-time":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    assert told[:2] == ["agent-starved", "agent-on-time"]
    note("an agent that gets no time says agent-starved, and agent-on-time when it does again")

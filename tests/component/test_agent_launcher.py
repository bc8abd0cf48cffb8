"""The agent and the real `remuda-launch`: a process, its socket, its checkpoints, and an agent that comes and goes."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import pytest
import pytest_asyncio

from remuda.agent.agent import Agent
from remuda.agent.agent_fence import AgentFence
from remuda.agent.agent_lease import AgentLease
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Namespace
from remuda.api.training import FailureRule, RuleAction
from remuda.link.allocation_port import Allocation
from tests.builders.nodes import Outage
from tests.builders.waiting import PATIENCE_S, until
from tests.component.agent_rig import Rig, a_rig
from tests.unit.agent.scene import NODE

# Saves every step and never ends by itself.
TRAIN = """
import time
import remuda_train as remuda
step = remuda.resume_step() or 0
while True:
    step += 1
    remuda.report(step)
    remuda.save(step, b"weights of step %d" % step)
    time.sleep(0.02)
"""


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as rig:
        yield rig


@asynccontextmanager
async def a_container(
    allocation: Allocation, *command: str, log: IO[bytes] | int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "remuda.launch", "--", *command),
        env={**os.environ, **allocation.env},
        stdout=log,
        stderr=log,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()


def at_step(rig: Rig, attempt: int, step: int) -> bool:
    found = rig.board.of_gang("default", "job").get("a")
    return found is not None and found.last.attempt == attempt and found.last.step >= step


async def start(rig: Rig, agent: Agent) -> Allocation:
    await rig.make_job("a")
    return await rig.allocate(agent, "a", "gpu-0", simulated=False)


async def test_it_trains_recovers_and_survives_a_restart_of_the_agent(rig: Rig) -> None:
    agent = await rig.agent()
    async with a_container(await start(rig, agent), sys.executable, "-c", TRAIN) as process:
        await rig.all_are(["a"], "ready", 1)
        assert rig.reports()["a"].checkpoints == []
        await rig.steer(1, "Open", "a")
        await rig.all_are(["a"], "running", 1)
        await rig.until(lambda: at_step(rig, 1, 5), "step 5")

        await agent.stop()
        before = await rig.read()
        agent = await rig.agent()
        await rig.allocate(agent, "a", "gpu-0", simulated=False)
        reached = rig.board.of_gang("default", "job")["a"].last.step
        await rig.until(lambda: at_step(rig, 1, reached + 3), "progress through the new agent")
        await agent.flush()
        assert (await rig.read()).observed == before.observed  # nobody above noticed

        await rig.steer(2, "Closed", "a")
        await rig.all_are(["a"], "ready", 2)
        steps = rig.reports()["a"].checkpoints
        assert steps
        assert steps[0] >= reached
        await rig.steer(2, "Open", "a")
        await rig.until(lambda: at_step(rig, 2, 1), "the first step of attempt 2")
        assert process.returncode is None
    await agent.stop()


async def test_a_command_that_does_not_exist(rig: Rig) -> None:
    agent = await rig.agent()
    async with a_container(await start(rig, agent), "/no/such/command"):
        await rig.all_are(["a"], "ready", 1)
        await rig.steer(1, "Open", "a")
        await rig.all_are(["a"], "exited", 1)
        assert rig.reports()["a"].code == 127
        assert "/no/such/command" in rig.reports()["a"].message
    await agent.stop()


@pytest.mark.parametrize("has_rule", [True, False])
async def test_the_end_of_the_log_is_told_when_a_rule_asks_for_it(rig: Rig, tmp_path: Path, has_rule: bool) -> None:
    rule = (
        FailureRule(RuleAction.FAIL, log_pattern="memory") if has_rule else FailureRule(RuleAction.FAIL, exit_codes=[9])
    )
    agent = await rig.agent()
    allocation = await rig.allocate(agent, "a", "gpu-0", simulated=False)
    await rig.make_job("a", rules=[rule])
    with (tmp_path / "log").open("wb") as log:
        words = "echo start; echo out of memory >&2; exit 3"
        async with a_container(allocation, "sh", "-c", words, log=log):
            await rig.all_are(["a"], "ready", 1)
            await rig.steer(1, "Open", "a")
            await rig.all_are(["a"], "exited", 1)
            report = rig.reports()["a"]
            assert (report.code, report.message) == (3, "exit code 3: out of memory")
            assert report.tail == ("start\nout of memory\n" if has_rule else "")
    await agent.stop()


async def test_a_killed_launcher_and_its_successor(rig: Rig) -> None:
    agent = await rig.agent()
    allocation = await start(rig, agent)
    async with a_container(allocation, "sleep", "1000") as process:
        await rig.all_are(["a"], "ready", 1)
        await rig.steer(1, "Open", "a")
        await rig.all_are(["a"], "running", 1)
        process.kill()
        await process.wait()
        agent.container_exited("a", 137)
        await rig.all_are(["a"], "gone", 1)
    async with a_container(allocation, "sleep", "1000"):
        await rig.all_are(["a"], "parked", 0)
        await rig.steer(2, "Closed", "a")
        await rig.all_are(["a"], "ready", 2)
        await rig.steer(2, "Open", "a")
        await rig.all_are(["a"], "running", 2)
    await agent.stop()


# Says its own process id as the step, and does not go when asked to.
STUBBORN = """
import os, signal, time
import remuda_train as remuda
signal.signal(signal.SIGTERM, signal.SIG_IGN)
remuda.report(os.getpid())
time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def test_fence_kills_a_real_child(rig: Rig) -> None:
    agent = await rig.agent()
    async with a_container(await start(rig, agent), sys.executable, "-c", STUBBORN):
        await rig.all_are(["a"], "ready", 1)
        await rig.steer(1, "Open", "a")
        await rig.until(lambda: at_step(rig, 1, 1), "the child to be there")
        pid = rig.board.of_gang("default", "job")["a"].last.step
        assert is_alive(pid)
        agent.fence()
        await rig.all_are(["a"], "parked", 1)
        await rig.steer(2, "Closed", "a")
        await rig.all_are(["a"], "ready", 2)  # said only when nothing of attempt 1 is left
        assert not is_alive(pid)
    await agent.stop()


async def test_a_real_child_is_stopped_by_its_launcher_when_no_agent_vouches_for_it(rig: Rig) -> None:
    """The agent fences nobody here: it only falls silent. Afterwards all is as after its fence."""
    agent = await rig.agent()
    async with a_container(await start(rig, agent), sys.executable, "-c", STUBBORN):
        agent.vouch(PATIENCE_S)
        await rig.all_are(["a"], "ready", 1)
        await rig.steer(1, "Open", "a")
        await rig.until(lambda: at_step(rig, 1, 1), "the child to be there")
        pid = rig.board.of_gang("default", "job")["a"].last.step
        agent.vouch(1.0)
        await rig.all_are(["a"], "parked", 1)
        assert not is_alive(pid)
        assert rig.reports()["a"].message == "Fenced: the node could not reach the API for too long."
        agent.vouch(PATIENCE_S)
        await rig.steer(2, "Closed", "a")
        await rig.all_are(["a"], "ready", 2)
        await rig.steer(2, "Open", "a")
        await rig.all_are(["a"], "running", 2)
    await agent.stop()


@pytest.mark.parametrize("is_back", [True, False])
async def test_an_agent_that_is_gone_may_be_back_before_its_word_is_over(rig: Rig, is_back: bool) -> None:
    agent = await rig.agent()
    async with a_container(await start(rig, agent), sys.executable, "-c", STUBBORN):
        await rig.all_are(["a"], "ready", 1)
        await rig.steer(1, "Open", "a")
        await rig.until(lambda: at_step(rig, 1, 1), "the child to be there")
        pid = rig.board.of_gang("default", "job")["a"].last.step
        agent.vouch(PATIENCE_S if is_back else 1.0)
        await agent.stop()
        if not is_back:
            await until("the launcher to stop its child", lambda: is_gone(pid))
        agent = await rig.agent()
        agent.vouch(PATIENCE_S)
        await rig.allocate(agent, "a", "gpu-0", simulated=False)
        await until("the launcher to meet the new agent", lambda: is_met(agent))
        if is_back:
            assert is_alive(pid)
            assert rig.states()["a"] == ("running", 1)
        else:
            await rig.all_are(["a"], "parked", 1)
            assert rig.reports()["a"].message.startswith("Fenced:")
    await agent.stop()


@pytest.mark.parametrize("is_cut_off", [True, False])
async def test_an_agent_beside_a_kubelet_that_is_gone_costs_its_ranks_nothing_unless_it_had_lost_the_api(
    rig: Rig, is_cut_off: bool
) -> None:
    fence_s, told = 3.0, list[float]()
    agent, api = await rig.agent(), Outage(rig.cluster)
    await rig.cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})

    def tell(seconds: float) -> None:
        told.append(seconds)
        agent.vouch(seconds)

    fence = AgentFence(agent.fence, agent.unfence, fence_s, time.monotonic, tell=tell)
    lease = AgentLease(
        api,
        NODE,
        time.time,
        lease_s=fence_s * 1.5,
        elapsed=time.monotonic,
        renewed=fence.renewed,
        not_renewed=fence.not_renewed,
    )
    async with a_container(await start(rig, agent), sys.executable, "-c", STUBBORN):
        await rig.all_are(["a"], "ready", 1)
        await rig.steer(1, "Open", "a")
        await rig.until(lambda: at_step(rig, 1, 1), "the child to be there")
        pid = rig.board.of_gang("default", "job")["a"].last.step
        keeping = asyncio.create_task(lease.run())
        await until("a renewal", lambda: is_told(told, math.inf))
        api.is_down = is_cut_off
        if is_cut_off:
            await until("a renewal that fails", lambda: is_told(told, fence_s))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await agent.stop()
        if is_cut_off:
            await until("the launcher to stop its child", lambda: is_gone(pid))
        else:
            await asyncio.sleep(fence_s * 1.5)  # its absence is the fault, so it is a real pause
            assert is_alive(pid)
            assert set(told) == {math.inf}


async def is_told(told: list[float], most: float) -> bool:
    return bool(told) and told[-1] <= most


async def is_gone(pid: int) -> bool:
    return not is_alive(pid)


async def is_met(agent: Agent) -> bool:
    return agent.launchers.is_connected("a")

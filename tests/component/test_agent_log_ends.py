"""The end of a rank's log where its launcher cannot read it: the agent finds it, and hears of the exit when it knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from remuda.agent.agent import Agent
from remuda.api.training import FailureRule, RuleAction
from tests.component.agent_rig import FakeLauncher, Rig, a_rig

ABOUT_LOGS = FailureRule(RuleAction.FAIL, log_pattern="memory")
ABOUT_CODES = FailureRule(RuleAction.FAIL, exit_codes=[9])


class Ends:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str, int]] = []
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read(self, pod: str, uid: str, namespace: str, container: str, attempt: int) -> str:
        self.asked.append((pod, uid, namespace, container, attempt))
        return await asyncio.shield(self.answer)


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as rig:
        yield rig


async def running(rig: Rig, rule: FailureRule) -> tuple[Agent, Ends, FakeLauncher]:
    agent = await rig.agent()
    ends = agent.launchers.log_ends = Ends()
    await rig.make_job(["a"], rules=[rule])
    await rig.allocate(agent, "a", "gpu-0")
    launcher = FakeLauncher(agent, "a")
    await rig.all_are(["a"], "ready", 1)
    await rig.steer(1, "Open", ["a"])
    await rig.all_are(["a"], "running", 1)
    return agent, ends, launcher


@pytest.mark.parametrize("text", ["CUDA out of memory\n", ""])
async def test_an_exit_is_told_with_the_end_of_its_log(rig: Rig, text: str) -> None:
    agent, ends, launcher = await running(rig, ABOUT_LOGS)
    launcher.exit(3, "exit code 3")
    await asyncio.sleep(0)
    await agent.flush()
    assert rig.states()["a"] == ("running", 1), "not before its end is known"
    assert ends.asked == [("pod-a", "a", "default", "", 1)]
    ends.answer.set_result(text)
    await rig.all_are(["a"], "exited", 1)
    report = rig.reports()["a"]
    assert (report.code, report.message, report.tail) == (3, "exit code 3", text)
    assert len(ends.asked) == 1
    await agent.stop()


@pytest.mark.parametrize(("rule", "code"), [(ABOUT_CODES, 3), (ABOUT_LOGS, 0)])
async def test_nobody_waits_for_what_nobody_asks(rig: Rig, rule: FailureRule, code: int) -> None:
    agent, ends, launcher = await running(rig, rule)
    launcher.exit(code)
    await rig.all_are(["a"], "exited", 1)
    assert not ends.asked
    await agent.stop()


async def test_an_exit_of_an_attempt_that_is_over_changes_nothing(rig: Rig) -> None:
    agent, ends, launcher = await running(rig, ABOUT_LOGS)
    launcher.exit(3, "exit code 3")
    await rig.steer(2, "Closed", ["a"])
    await rig.all_are(["a"], "ready", 2)
    ends.answer.set_result("CUDA out of memory\n")
    await rig.steer(2, "Open", ["a"])
    await rig.all_are(["a"], "running", 2)
    assert rig.reports()["a"].tail == ""
    await agent.stop()


async def test_an_agent_that_stops_meanwhile_leaves_it_to_the_next(rig: Rig) -> None:
    agent, ends, launcher = await running(rig, ABOUT_LOGS)
    launcher.exit(3, "exit code 3")
    await asyncio.sleep(0)
    await agent.stop()
    assert rig.states()["a"] == ("running", 1)
    successor = await rig.agent()
    again = successor.launchers.log_ends = Ends()
    again.answer.set_result("out of memory\n")
    await rig.allocate(successor, "a", "gpu-0")
    launcher.reconnect(successor)
    await rig.all_are(["a"], "exited", 1)
    assert (rig.reports()["a"].code, rig.reports()["a"].tail) == (3, "out of memory\n")
    assert not ends.answer.done()
    await successor.stop()

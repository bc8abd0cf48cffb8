"""`remuda probe`, `quarantine`, `release`: what they write, and what they say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices, OrderAnswer, QuarantineOrder
from remuda.kube.cluster import Cluster
from remuda.runtime.state_dir import StateDir
from tests.builders.remedies import incident
from tests.unit.cli.scenes import Cli, machines


class Answering(Cli):
    """Its agents answer every order with `outcome`."""

    outcome = "Succeeded"

    @contextlib.asynccontextmanager
    async def connect(self, state: StateDir) -> AsyncIterator[Cluster]:
        async with super().connect(state) as cluster:
            task = asyncio.create_task(self._answer(cluster))
            try:
                yield cluster
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _answer(self, cluster: Cluster) -> None:
        async for event in cluster.watch(NodeDevices, "0"):
            found = event.obj
            done = {a.id for a in found.observed.answers} if found is not None else set()
            for id, order in found.orders.items() if found is not None else ():
                if id not in done and self.outcome:
                    reason = "" if self.outcome == "Succeeded" else "ProbeFailed"
                    answer = OrderAnswer(id, order.action, self.outcome, order.device, reason, "So it is.")
                    body = {"status": {"answers": [to_wire(answer)]}}
                    await cluster.patch(NodeDevices, found.name if found else "", body, subresource="status")


@pytest.fixture
def cli(tmp_path: Path) -> Answering:
    return Answering(tmp_path, machines())


def node(cli: Cli, name: str = "node-01") -> NodeDevices:
    found: NodeDevices = next(found for found in cli.objects(NodeDevices) if found.name == name)
    return found


def test_a_probe_is_ordered_awaited_and_taken_away(cli: Answering) -> None:
    passed = cli.run("probe", "node-01", "gpu-1")
    assert (passed.code, passed.out) == (0, "gpu-1 of node-01 passed: So it is.\n")
    assert not node(cli).orders
    cli.outcome = "Failed"
    failed = cli.run("probe", "node-01", "gpu-1")
    assert failed.code == 1
    assert "did not pass (ProbeFailed): So it is." in failed.out


def test_an_agent_that_does_not_answer_is_not_waited_for_for_ever(cli: Answering) -> None:
    cli.outcome = ""
    found = cli.run("probe", "node-01", "gpu-1", "--timeout", "0.1")
    assert found.code == 1
    assert "NoAnswer" in found.out
    assert not node(cli).orders


@pytest.mark.parametrize("command", [["probe"], ["quarantine", "--why", "smoke"], ["release"]])
def test_what_is_not_there_is_refused_with_what_is(cli: Answering, command: list[str]) -> None:
    name, *rest = command
    assert "NodeNotFound" in cli.run(name, "node-99", "gpu-1", *rest).err
    found = cli.run(name, "node-01", "gpu-33", *rest)
    assert (found.code, "DeviceNotFound" in found.err) == (2, True)


def test_a_quarantine_is_lifted_by_word_or_probe_alone(cli: Answering) -> None:
    assert cli.run("quarantine", "node-01", "gpu-1", "--why", "it smokes").code == 0
    order = node(cli).quarantine["gpu-1"]
    assert (order.reason, order.message, bool(order.by)) == ("ByOperator", "it smokes", True)
    assert "AlreadyQuarantined" in cli.run("quarantine", "node-01", "gpu-1", "--why", "again").err
    cli.outcome = "Failed"
    stays = cli.run("release", "node-01", "gpu-1", "--after-probe")
    assert stays.code == 1
    assert "stays quarantined" in stays.out
    assert "gpu-1" in node(cli).quarantine
    cli.outcome = "Succeeded"
    assert cli.run("release", "node-01", "gpu-1", "--after-probe").code == 0
    assert not node(cli).quarantine
    assert "NotQuarantined" in cli.run("release", "node-01", "gpu-1").err
    cli.run("quarantine", "node-01", "gpu-1", "--why", "it smokes")
    assert cli.run("release", "node-01", "gpu-1").code == 0


def test_what_an_open_incident_keeps_out_is_not_released_by_word(tmp_path: Path) -> None:
    """It would give its order again at the next look."""
    about = incident(node="node-01", device="gpu-1", name="dev-1")
    cli = Answering(tmp_path, [*machines(), about])
    order = QuarantineOrder("Xid48", "It failed.", "remuda", incident="dev-1")

    async def keep_out() -> None:
        async with cli.connect(StateDir(tmp_path)) as cluster:
            await cluster.patch(NodeDevices, "node-01", {"quarantine": {"gpu-1": to_wire(order)}})

    asyncio.run(keep_out())
    refused = cli.run("release", "node-01", "gpu-1")
    assert refused.code == 2
    assert refused.err.startswith(
        "error: IncidentOpen: The open incident dev-1 would quarantine gpu-1 of node-01 again"
    )
    assert "gpu-1" in node(cli).quarantine
    assert cli.run("release", "node-01", "gpu-1", "--after-probe").code == 0
    assert not node(cli).quarantine


def test_devices_says_what_is_done_about_one(tmp_path: Path) -> None:
    cli = Cli(tmp_path, machines())
    cli.run("quarantine", "node-01", "gpu-1", "--why", "it smokes")
    found = cli.run("devices", "-o", "wide").out
    assert "REMEDY" in found
    assert "quarantined by" in found
    assert "REMEDY" not in Cli(tmp_path / "other", machines()).run("devices", "-o", "wide").out

"""The one report of a node: as few writes as the API's own speed allows, newest state, never the manager's half."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from remuda.agent import node_reporter
from remuda.agent.node_reporter import DEVICES, LAUNCHERS, PARTS, NodeReporter
from remuda.api.devices import NodeDevices
from remuda.api.errors import AlreadyExists, NotFound, Unavailable
from remuda.api.meta import JsonObject, KObject
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.client.request_pacing import Rate


class Gate(LocalCluster):
    """A cluster whose writes wait for `gate` and may fail."""

    def __init__(self) -> None:
        uids = itertools.count(1)
        super().__init__(
            ObjectStore(MemoryJournal()), clock=lambda: 1_700_000_000.0, new_uid=lambda: f"00000000-uid-{next(uids)}"
        )
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Exception] = []
        self.patches: list[JsonObject] = []
        self.reads: list[Exception] = []
        self.waiting = asyncio.Event()

    async def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        if self.reads:
            raise self.reads.pop(0)
        return await super().get(kind, name, namespace)

    async def patch(self, kind: Any, name: str, patch: JsonObject, namespace: str = "", **options: Any) -> Any:
        self.patches.append(patch)
        self.waiting.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        return await super().patch(kind, name, patch, namespace, **options)


class Node:
    def __init__(self, cluster: Gate, makes_object: bool = True) -> None:
        self.state: JsonObject = {part: [] for part in PARTS}
        self.state |= {"model": "m", "boot": "b", "door": "", "devices": [{"id": "gpu-0", "type": "X"}]}
        self.reporter = NodeReporter(cluster, "node-01", self.state.__getitem__, makes_object=makes_object)

    def launcher(self, number: int) -> None:
        self.state["launchers"] = [{"pod": "p", "uid": "u", "state": "ready", "attempt": number}]
        self.reporter.mark(LAUNCHERS)


@pytest.fixture
def cluster() -> Gate:
    return Gate()


async def started(cluster: Gate) -> Node:
    node = Node(cluster)
    assert await node.reporter.load() is None
    node.reporter.mark(*PARTS)
    await node.reporter.flush()
    cluster.patches.clear()
    return node


async def observed(cluster: Gate) -> Any:
    return (await cluster.get(NodeDevices, "node-01")).observed


async def test_the_object_is_made_when_it_is_missing(cluster: Gate) -> None:
    await started(cluster)
    found = await observed(cluster)
    assert (found.model, [d.id for d in found.devices]) == ("m", ["gpu-0"])


async def test_a_burst_is_one_write(cluster: Gate) -> None:
    node = await started(cluster)
    for number in range(100):
        node.launcher(number)
    await node.reporter.flush()
    assert len(cluster.patches) == 1
    assert [r.attempt for r in (await observed(cluster)).launchers] == [99]


async def test_news_during_a_write_is_one_more_write(cluster: Gate) -> None:
    node = await started(cluster)
    cluster.gate.clear()
    cluster.waiting.clear()
    node.launcher(1)
    await cluster.waiting.wait()
    for number in range(2, 50):
        node.launcher(number)
        await asyncio.sleep(0)
    assert len(cluster.patches) == 1
    cluster.gate.set()
    await node.reporter.flush()
    assert len(cluster.patches) == 2
    assert [r.attempt for r in (await observed(cluster)).launchers] == [49]


async def test_only_what_changed_is_written_and_only_the_status(cluster: Gate) -> None:
    node = await started(cluster)
    node.launcher(1)
    await node.reporter.flush()
    assert [list(p) for p in cluster.patches] == [["status"]]
    assert list(cluster.patches[0]["status"]) == [LAUNCHERS]
    node.reporter.mark(*PARTS)  # nothing is new
    await node.reporter.flush()
    assert len(cluster.patches) == 1


async def test_the_manager_s_half_is_left_alone(cluster: Gate) -> None:
    node = await started(cluster)
    await cluster.patch(NodeDevices, "node-01", {"verdicts": [{"device": "gpu-0", "state": "Unhealthy"}]})
    node.launcher(1)
    node.state["launchers"] = []
    node.reporter.mark(LAUNCHERS)
    await node.reporter.flush()
    assert [v.state for v in (await cluster.get(NodeDevices, "node-01")).verdicts] == ["Unhealthy"]


async def test_an_empty_list_empties_the_list(cluster: Gate) -> None:
    node = await started(cluster)
    node.launcher(1)
    await node.reporter.flush()
    node.state["launchers"] = []
    node.reporter.mark(LAUNCHERS)
    await node.reporter.flush()
    assert (await observed(cluster)).launchers == []


async def test_a_failed_write_is_tried_again_with_the_newest(cluster: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reporter, "RETRY_FIRST_S", 0.001)
    node = await started(cluster)
    cluster.failures = [Unavailable("away"), OSError("broken pipe"), RuntimeError("whatever")]
    node.launcher(1)
    node.launcher(2)
    await node.reporter.flush()
    assert len(cluster.patches) == 4
    assert [r.attempt for r in (await observed(cluster)).launchers] == [2]


async def test_an_object_removed_by_somebody_is_made_anew_whole(cluster: Gate) -> None:
    node = await started(cluster)
    await cluster.delete(NodeDevices, "node-01")
    node.launcher(1)
    await node.reporter.flush()
    found = await observed(cluster)
    assert ([d.id for d in found.devices], [r.attempt for r in found.launchers]) == (["gpu-0"], [1])


async def test_made_by_another_at_the_same_moment(cluster: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(cluster)
    await node.reporter.load()
    create = cluster.create

    async def beaten(kind: type[KObject], body: Any) -> Any:
        await create(NodeDevices, {"metadata": {"name": "node-01"}})
        raise AlreadyExists("somebody was faster")

    monkeypatch.setattr(cluster, "create", beaten)
    node.reporter.mark(*PARTS)
    await node.reporter.flush()
    assert [d.id for d in (await observed(cluster)).devices] == ["gpu-0"]


async def test_where_the_manager_makes_the_object_it_is_waited_for(
    cluster: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reporter, "RETRY_FIRST_S", 0.001)
    node = Node(cluster, makes_object=False)
    assert await node.reporter.load() is None
    node.reporter.mark(*PARTS)
    await cluster.waiting.wait()
    with pytest.raises(NotFound):
        await observed(cluster)
    await cluster.create(NodeDevices, {"metadata": {"name": "node-01"}})
    await node.reporter.flush()
    assert [d.id for d in (await observed(cluster)).devices] == ["gpu-0"]


async def test_an_object_that_the_manager_made_anew_gets_everything(cluster: Gate) -> None:
    """It was gone and back between two writes: the second one finds it there, and it has nothing of the first."""
    node = await started(cluster)
    await cluster.delete(NodeDevices, "node-01")
    await cluster.create(NodeDevices, {"metadata": {"name": "node-01"}})
    node.launcher(1)
    await node.reporter.flush()
    found = await observed(cluster)
    assert (found.model, [d.id for d in found.devices], [r.attempt for r in found.launchers]) == ("m", ["gpu-0"], [1])


OLD = {
    "model": "m",
    "boot": "b",
    "devices": [{"id": "gpu-0", "type": "X", "signals": [{"source": "kmsg", "code": "xid-79"}]}],
    "answers": [{"id": "reboot-1", "action": "reboot", "outcome": "Running"}],
}


async def test_what_an_agent_from_before_the_status_left_is_taken_over_in_one_write(cluster: Gate) -> None:
    """An answer that were lost would have its order carried out a second time."""
    await cluster.create(NodeDevices, {"metadata": {"name": "node-01"}, "observed": OLD, "quarantine": {}})
    node = Node(cluster)
    found = await node.reporter.load()
    assert found is not None
    assert [a.id for a in found.observed.answers] == ["reboot-1"]
    assert cluster.patches == [{"status": OLD}]
    await cluster.patch(NodeDevices, "node-01", {"observed": None})
    now = await observed(cluster)
    assert [(a.id, a.outcome) for a in now.answers] == [("reboot-1", "Running")]
    assert [s.code for d in now.devices for s in d.signals] == ["xid-79"]


async def test_an_old_report_counts_only_until_there_is_a_status(cluster: Gate) -> None:
    await cluster.create(NodeDevices, {"metadata": {"name": "node-01"}, "observed": OLD})
    before = await cluster.get(NodeDevices, "node-01")
    assert (before.is_observed_before, before.observed.model) == (True, "m")
    await cluster.patch(NodeDevices, "node-01", {"status": {"boot": "c"}}, subresource="status")
    now = await cluster.get(NodeDevices, "node-01")
    assert (now.is_observed_before, now.observed.boot, now.observed.devices) == (False, "c", [])


async def test_what_the_api_has_already_is_not_written_again(cluster: Gate) -> None:
    await started(cluster)
    again = Node(cluster)
    found = await again.reporter.load()
    assert found is not None
    again.reporter.mark(*PARTS)
    await again.reporter.flush()
    assert cluster.patches == []
    assert again.reporter.writes == 0


async def test_loading_waits_for_the_api(cluster: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reporter, "RETRY_FIRST_S", 0.001)
    cluster.reads = [Unavailable("starting"), OSError("no route"), NotFound("not there")]
    assert await Node(cluster).reporter.load() is None
    assert cluster.reads == []


async def test_after_stop_nothing_is_written(cluster: Gate) -> None:
    node = await started(cluster)
    cluster.gate.clear()
    cluster.waiting.clear()
    node.launcher(1)
    await cluster.waiting.wait()
    node.reporter.stop()
    node.launcher(2)
    await node.reporter.close()
    cluster.gate.set()
    await node.reporter.flush()
    assert (await observed(cluster)).launchers == []
    node.reporter.mark(DEVICES)
    await node.reporter.flush()
    assert len(cluster.patches) == 1


async def test_a_launcher_that_changes_all_the_time_costs_a_bounded_number_of_writes(
    cluster: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reporter, "WRITES", Rate(per_s=20.0, burst=10))
    node = await started(cluster)
    for number in range(10):
        node.launcher(number)
        await node.reporter.flush()
    before = len(cluster.patches)
    for number in range(10, 500):
        node.launcher(number)
        await asyncio.sleep(0)  # each would be a write of its own
    assert len(cluster.patches) - before < 100
    await node.reporter.flush()
    assert [r.attempt for r in (await observed(cluster)).launchers] == [499]

"""A node that comes up: what it says of itself, and what it does while the API is out of reach."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import pytest

from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Node
from remuda.api.meta import ObjectMeta
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.node.images import ImageStore
from remuda.embedded.node.machine_info import KUBELET_VERSION, machine_info, node_addresses
from remuda.embedded.node.node_registration import NodeConfig, NodeRegistration
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.nodes import Outage


def test_the_machine_says_what_it_is() -> None:
    info = machine_info("process")
    assert info.kubelet_version == KUBELET_VERSION
    assert info.kubelet_version.startswith("v")
    assert info.kubelet_version.endswith("+remuda")
    assert info.container_runtime_version.startswith("remuda-process://")
    assert info.operating_system == "linux"
    assert info.architecture in ("amd64", "arm64", "arm", "386")
    assert info.kernel_version
    assert info.os_image
    assert info.boot_id


def test_a_node_registers_however_long_the_api_is_away() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        api = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name=NODE_LEASE_NAMESPACE)))
        reach = Outage(api)
        reach.is_down = True
        config = NodeConfig(
            "node-01", devices=("gpu-0",), info=machine_info("process"), addresses=tuple(node_addresses("node-01"))
        )
        registration = NodeRegistration(config, reach, ImageStore(), loop.clock, lambda: None)
        registering = asyncio.create_task(registration.register())
        await asyncio.sleep(120)
        assert not registering.done()
        reach.is_down = False
        began = loop.time()
        await registering
        assert loop.time() - began <= 7.0, "the back-off has an upper bound"
        node = await api.get(Node, "node-01")
        assert node.status.node_info == config.info
        assert [(a.type, a.address) for a in node.status.addresses] == [
            ("InternalIP", "127.0.0.1"),
            ("Hostname", "node-01"),
        ]
        await api.get(Lease, "node-01", NODE_LEASE_NAMESPACE)

    run_virtual(main(), loop)


def test_what_a_node_does_not_know_of_itself_it_leaves_alone() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        api = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name=NODE_LEASE_NAMESPACE)))
        known = {"nodeInfo": {"kubeletVersion": "v1"}, "addresses": [{"type": "Hostname", "address": "x"}]}
        await api.create(Node, {"metadata": {"name": "node-01"}, "status": known})
        await NodeRegistration(NodeConfig("node-01"), api, ImageStore(), loop.clock, lambda: None).register()
        node = await api.get(Node, "node-01")
        assert node.status.node_info is not None
        assert node.status.node_info.kubelet_version == "v1"
        assert [a.address for a in node.status.addresses] == ["x"]

    run_virtual(main(), loop)


def test_nodes_that_come_up_together_renew_apart_and_every_period() -> None:
    loop = VirtualLoop()
    count, lease_s = 64, 8.0

    async def main() -> None:
        api = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name=NODE_LEASE_NAMESPACE)))
        renewed: dict[str, list[float]] = {}

        class Noting(Outage):
            async def patch(self, kind: type[Any], name: str, *args: Any, **options: Any) -> Any:
                if kind is Lease:
                    renewed.setdefault(name, []).append(loop.time())
                return await api.patch(kind, name, *args, **options)

        nodes = [
            NodeRegistration(
                NodeConfig(f"node-{n:02d}", lease_s=lease_s), Noting(api), ImageStore(), loop.clock, lambda: None
            )
            for n in range(count)
        ]
        for node in nodes:
            await node.register()
        renewed.clear()
        began = loop.time()
        keeping = [asyncio.create_task(node.keep()) for node in nodes]
        await asyncio.sleep(lease_s)
        for node in nodes:  # a common hurry must not bring them together again
            node.refresh()
        await asyncio.sleep(2 * lease_s)
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        assert len(renewed) == count
        for times in renewed.values():
            gaps = [b - a for a, b in itertools.pairwise([began, *times])]
            assert max(gaps) <= lease_s / 4 + 0.01
        last = sorted(times[-1] for times in renewed.values())
        # 64 within 2 s by chance: the fullest quarter of a second would hold all of them, were they in step.
        busiest = max(sum(at <= other < at + 0.25 for other in last) for at in last)
        assert busiest < count / 2

    run_virtual(main(), loop)


@pytest.mark.parametrize(("before", "now_s", "lengths"), [(8.0, 30.0, [30, 30, 30]), (30.0, 8.0, [30, 30, 8])])
def test_a_node_that_is_started_with_another_lease_says_so_and_shortens_it_late(
    before: float, now_s: float, lengths: list[int]
) -> None:
    """It fences by the new length, so it may not be handed on by a shorter one; its launchers may still go by the longer one."""
    loop = VirtualLoop()

    async def main() -> None:
        api = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name=NODE_LEASE_NAMESPACE)))
        nodes = [
            NodeRegistration(NodeConfig("node-01", lease_s=lease_s), api, ImageStore(), loop.clock, lambda: None)
            for lease_s in (before, now_s)
        ]
        for node in nodes:
            await node.register()
        keeping, found = asyncio.create_task(nodes[1].keep()), []
        for wait in (0.0, before - 0.1, 0.1 + now_s / 4):
            await asyncio.sleep(wait)
            found.append((await api.get(Lease, "node-01", NODE_LEASE_NAMESPACE)).spec.lease_duration_seconds)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert found == lengths

    run_virtual(main(), loop)


class Fenced:
    """A node whose API is away from some moment on, and whose manager may vouch for it."""

    def __init__(self, promise_s: float = 0.0, *, is_manager_apart: bool = True) -> None:
        self.loop, self.promise_s = VirtualLoop(), promise_s
        self.config = NodeConfig("node-01", lease_s=8.0, is_manager_apart=is_manager_apart)
        self.launchers: list[tuple[float, float]] = []  # when they were told, and until when they may run
        self.events: list[tuple[str, float]] = []

    def play(self, away_s: float, stop_s: float = 0.0) -> list[tuple[str, float]]:
        """Events by how long the API had been away."""

        async def main() -> None:
            api = LocalCluster(ObjectStore(MemoryJournal()), clock=self.loop.clock, new_uid=lambda: "uid")
            await api.create(Namespace, Namespace(metadata=ObjectMeta(name=NODE_LEASE_NAMESPACE)))
            reach = Outage(api)
            node = NodeRegistration(
                self.config,
                reach,
                ImageStore(),
                self.loop.clock,
                lambda: self._note("fence"),
                lambda: self._note("unfence"),
                vouch=self._manager,
                vouched=lambda seconds: self.launchers.append((self.loop.time(), self.loop.time() + seconds)),
            )
            await node.register()
            keeping = asyncio.create_task(node.keep())
            await asyncio.sleep(10.0)
            self.began = self.loop.time()
            reach.is_down = away_s > 0
            self.loop.advance(stop_s)
            await asyncio.sleep(away_s)
            reach.is_down = False
            await asyncio.sleep(5.0)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

        run_virtual(main(), self.loop)
        return self.events

    def _note(self, what: str) -> None:
        self.events.append((what, self.loop.time() - self.began))

    async def _manager(self) -> float:
        await asyncio.sleep(0.05)
        if self.promise_s < 0:
            raise OSError("no stream")
        return self.promise_s


def test_a_node_without_the_api_fences_at_two_thirds_of_its_lease_and_lets_go_with_the_next_renewal() -> None:
    for promise_s in (0.0, -1.0):
        (fence, at), (unfence, _) = Fenced(promise_s).play(20.0)
        assert (fence, unfence) == ("fence", "unfence")
        assert 8.0 * 2 / 3 - 2.0 <= at <= 8.0 * 2 / 3 + 0.1, "counted from the last renewal that got through"


def test_a_node_without_the_api_runs_on_by_its_managers_word() -> None:
    assert Fenced(5.0).play(300.0) == []


def test_a_node_that_was_stopped_asks_its_manager_before_it_does_anything_else() -> None:
    assert Fenced(5.0).play(0.0, stop_s=60.0) == []
    (fence, at), (unfence, _) = Fenced(0.0).play(0.0, stop_s=60.0)
    assert (fence, unfence) == ("fence", "unfence")
    assert at <= 60.2, "its ranks may have been handed on: stopped first, and the API asked after that"


def test_launchers_are_told_with_every_renewal_how_long_they_may_run_and_not_more_often() -> None:
    """Whoever stands still says nothing more; the manager hands on a lease after the last renewal."""
    node = Fenced()
    node.play(20.0)
    renewals = [told for told in node.launchers if told[0] <= node.began]
    assert 4 <= len(renewals) <= 7, "four renewals a lease"
    assert all(7.0 <= until - at < 8.0 for at, until in node.launchers)
    during = [at for at, _ in node.launchers if node.began + 2.5 < at < node.began + 20.0]
    assert during == []


def test_launchers_are_told_what_the_manager_promises() -> None:
    node = Fenced(5.0)
    assert node.play(60.0) == []
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(node.launchers)]
    assert max(gaps) < 0, "no word is over before the next one comes"


def test_launchers_under_the_process_of_the_manager_run_without_limit() -> None:
    node = Fenced(is_manager_apart=False)
    node.play(20.0)
    assert {until for _, until in node.launchers} == {math.inf}

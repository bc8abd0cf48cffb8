"""Devices under quarantine are kept from claims, whoever gave the order, over restarts, and for no longer than it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices, QuarantineOrder
from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.quarantine_taints import TaintController, TaintRules
from remuda.core.remedies.taint_rules import TaintedDevice
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual

NODE = "node-1"
GPU_0, GPU_1 = (TaintedDevice(NODE, f"gpu-{n}", "gpu.nvidia.com") for n in (0, 1))
BY_INCIDENT = QuarantineOrder("Xid79", "Gone.", "remuda", incident="dev-node-1-gpu-0-x")
BY_OPERATOR = QuarantineOrder("ByOperator", "It smells.", "alice")


class Stage:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.uids = clock, 0
        self.cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=clock, new_uid=self._uid)
        self.rules = TaintRules(self.cluster)
        self._tasks: list[asyncio.Task[None]] = []

    def _uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"

    async def start(self) -> None:
        view, queue = ClusterView(self.cluster, jitter=lambda: 0.0), WorkQueue[str]()
        controller = TaintController(view, queue, self.rules)
        self._tasks = [asyncio.create_task(informer.run()) for informer in (view.devices, view.nodes)]
        for informer in (view.devices, view.nodes):
            await informer.synced()
        controller.begin()
        self._tasks.append(asyncio.create_task(run_controller("taints", queue, controller, self.clock)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def machine(self) -> None:
        await self.cluster.create(Node, Node(metadata=ObjectMeta(name=NODE)))
        rows = [{"id": f"gpu-{n}", "type": "H100", "resource": "nvidia.com/gpu"} for n in (0, 1)]
        await self.cluster.create(NodeDevices, {"metadata": {"name": NODE}})
        await self.cluster.patch(NodeDevices, NODE, {"status": {"devices": rows}}, subresource="status")

    async def order(self, **orders: QuarantineOrder | None) -> None:
        wire: JsonObject = {name.replace("_", "-"): None if o is None else to_wire(o) for name, o in orders.items()}
        await self.cluster.patch(NodeDevices, NODE, {"quarantine": wire})

    async def stands(self) -> dict[TaintedDevice, str]:
        await asyncio.sleep(5.0)
        return await self.rules.ours()


def on_stage(story: Callable[[Stage], Awaitable[None]]) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        stage = Stage(loop.clock)
        await stage.machine()
        await stage.start()
        try:
            await story(stage)
        finally:
            await stage.stop()

    run_virtual(main(), loop)


def test_a_rule_stands_as_long_as_an_order_whoever_gave_it() -> None:
    async def story(stage: Stage) -> None:
        assert await stage.stands() == {}
        await stage.order(gpu_0=BY_INCIDENT)
        assert await stage.stands() == {GPU_0: "Xid79"}
        await stage.order(gpu_1=BY_OPERATOR)
        assert await stage.stands() == {GPU_0: "Xid79", GPU_1: "ByOperator"}
        await stage.order(gpu_0=None)
        assert await stage.stands() == {GPU_1: "ByOperator"}

    on_stage(story)


def test_what_changed_while_no_manager_was_there_is_found() -> None:
    async def story(stage: Stage) -> None:
        await stage.order(gpu_0=BY_INCIDENT)
        await stage.stands()
        await stage.stop()
        await stage.order(gpu_0=None, gpu_1=BY_OPERATOR)
        await stage.start()
        assert await stage.stands() == {GPU_1: "ByOperator"}

    on_stage(story)


def test_a_node_that_is_gone_leaves_no_rule_for_the_next_of_its_name() -> None:
    async def story(stage: Stage) -> None:
        await stage.order(gpu_0=BY_INCIDENT)
        await stage.stands()
        await stage.cluster.delete(NodeDevices, NODE)
        assert await stage.stands() == {}

    on_stage(story)


def test_a_device_that_is_not_reported_keeps_its_rule() -> None:
    async def story(stage: Stage) -> None:
        await stage.order(gpu_0=BY_INCIDENT)
        await stage.stands()
        await stage.cluster.patch(NodeDevices, NODE, {"status": {"devices": []}}, subresource="status")
        await stage.order(gpu_1=BY_OPERATOR)
        assert await stage.stands() == {GPU_0: "Xid79"}, "of gpu-1 nobody knows whose driver it is"

    on_stage(story)


def test_what_is_not_allowed_is_tried_again_in_a_while() -> None:
    class Forbidden(TaintRules):
        tries, is_allowed = 0, False

        async def make(self, device: TaintedDevice, reason: str, effect: str) -> None:
            self.tries += 1
            if not self.is_allowed:
                raise ApiError("no", code=403, reason="Forbidden")
            await super().make(device, reason, effect)

    async def story(stage: Stage) -> None:
        await stage.stop()
        rules: Any = Forbidden(stage.cluster)
        stage.rules = rules
        await stage.start()
        await stage.order(gpu_0=BY_INCIDENT)
        assert await stage.stands() == {}
        assert rules.tries == 1
        rules.is_allowed = True
        await asyncio.sleep(700.0)
        assert await stage.stands() == {GPU_0: "Xid79"}

    on_stage(story)


def test_rules_that_we_may_not_see_are_asked_for_again_with_the_next_order() -> None:
    class Hidden(TaintRules):
        tries, is_allowed = 0, False

        async def ours(self) -> dict[TaintedDevice, str]:
            self.tries += 1
            if not self.is_allowed:
                raise ApiError("no", code=403, reason="Forbidden")
            return await super().ours()

    async def story(stage: Stage) -> None:
        await stage.stop()
        rules: Any = Hidden(stage.cluster)
        stage.rules = rules
        await stage.start()
        await stage.order(gpu_0=BY_INCIDENT)
        await asyncio.sleep(600.0)
        assert rules.tries == 2, "at the start and for the order"
        rules.is_allowed = True
        await stage.order(gpu_1=BY_OPERATOR)
        assert await stage.stands() == {GPU_0: "Xid79", GPU_1: "ByOperator"}

    on_stage(story)

"""Who answers a drill on a pod where a cluster's nodes are in several processes."""

from __future__ import annotations

import asyncio
import itertools

from remuda.api.drills import Drill, DrillKind, DrillSpec
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.node.drill_actions import DrillActions
from remuda.kube.runtime.informer import Informer
from remuda.link.drill_runner import DrillRunner
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual

GONE_AT = 5.0  # later than a stray is waited for


def answer_of_the_refuser(*, taken: bool) -> JsonObject:
    """Status after half a minute. The pod is seen on another process's node; at GONE_AT on none any more, unless that process
    has taken the drill."""
    loop = VirtualLoop()
    uids = itertools.count()
    store = ObjectStore(MemoryJournal())
    cluster = LocalCluster(store, clock=loop.clock, new_uid=lambda: f"uid-{next(uids)}")

    async def main() -> JsonObject:
        drills = Informer(cluster, Drill)
        is_ours = lambda spec: False if loop.time() < GONE_AT else None  # noqa: E731
        site = DrillActions(cluster, (), loop.clock, is_ours=is_ours)
        runner = DrillRunner(cluster, drills, site, loop.clock, refuses_strays=True)
        tasks = [asyncio.create_task(each) for each in (drills.run(), runner.run())]
        spec = DrillSpec(type=DrillKind.PROCESS_KILL, pod="job-worker-0", namespace="default")
        await cluster.create(Drill, Drill(metadata=ObjectMeta(name="one"), spec=spec))
        await asyncio.sleep(1.0)
        if taken:
            await cluster.patch(Drill, "one", {"status": {"phase": "Done"}}, subresource="status")
        await asyncio.sleep(30.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        status = (await cluster.get(Drill, "one")).status
        return {"phase": status.phase, "reason": status.reason}

    return run_virtual(main(), loop)


def test_a_drill_whose_pod_goes_before_its_process_saw_it_is_refused() -> None:
    """The other process never saw the pod on its node, so it waits for this one's word."""
    assert answer_of_the_refuser(taken=False) == {"phase": "Refused", "reason": "NoSuchPod"}


def test_a_drill_that_its_process_took_is_left_alone() -> None:
    assert answer_of_the_refuser(taken=True) == {"phase": "Done", "reason": ""}

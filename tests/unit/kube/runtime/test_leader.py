"""Leader election on a cluster, in virtual time: who works when, and that two never do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from remuda.api.errors import Unavailable
from remuda.api.kubernetes.core_v1 import Binding, Lease, Namespace
from remuda.api.meta import KObject
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.cluster import Cluster, list_pages_of_any_cluster
from remuda.kube.guarded_cluster import FencedCluster, NotLeading
from remuda.kube.runtime.leader import LeaderTerm, LeaseContender, LeasePlace
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual

K = TypeVar("K", bound=KObject)

TIMING = LeaseTiming(lease_s=15, renew_s=10.0, retry_s=2.0)


class Link:
    """One contender's way to the cluster. Cut: requests hang. Down: they are refused at once."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.is_down = False
        self._is_whole = asyncio.Event()
        self._is_whole.set()

    def cut(self) -> None:
        self._is_whole.clear()

    def mend(self) -> None:
        self._is_whole.set()

    async def _pass(self) -> None:
        await self._is_whole.wait()
        if self.is_down:
            raise Unavailable("the API is down")

    async def get(self, *args: Any) -> Any:
        await self._pass()
        return await self._cluster.get(*args)

    async def create(self, *args: Any) -> Any:
        await self._pass()
        return await self._cluster.create(*args)

    async def patch(self, *args: Any, **options: Any) -> Any:
        await self._pass()
        return await self._cluster.patch(*args, **options)


class World:
    """A cluster, and the log of who worked from when to when (virtual seconds)."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        uids = itertools.count()
        self.cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: f"u{next(uids)}")
        self.spans: list[tuple[str, int, float, float]] = []
        self.working: set[str] = set()
        self.changed = asyncio.Condition()
        self.jitters = itertools.cycle([0.3, 0.9, 0.1, 0.6])

    async def begin(self) -> None:
        await self.cluster.create(Namespace, {"metadata": {"name": "kube-system"}})

    def contender(self, name: str, *, speed: float = 1.0, offset: float = 0.0) -> tuple[LeaseContender, Link]:
        link = Link(self.cluster)
        contender = LeaseContender(
            link,  # type: ignore[arg-type] # the part of the port that an election uses
            LeasePlace("manager", "kube-system", name),
            TIMING,
            clock=lambda: self.loop.clock() + offset,
            elapsed=lambda: offset + self.loop.time() * speed,
            jitter=lambda: next(self.jitters),
        )
        return contender, link

    def work(self, name: str, stopping_s: float = 0.0) -> Callable[[LeaderTerm], Awaitable[None]]:
        async def run(term: LeaderTerm) -> None:
            began = self.loop.time()
            assert not self.working, f"{name} starts while {self.working} work"
            self.working.add(name)
            await self._tell()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(stopping_s)
                self.working.discard(name)
                self.spans.append((name, term.token, began, self.loop.time()))
                await self._tell()

        return run

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until_working(self, *names: str, within_s: float = 120.0) -> float:
        async with asyncio.timeout(within_s), self.changed:
            await self.changed.wait_for(lambda: self.working == set(names))
        return self.loop.time()

    async def lease(self) -> Lease:
        return await self.cluster.get(Lease, "manager", "kube-system")


def virtual(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()

    async def run() -> None:
        world = World(loop)
        await world.begin()
        await main(world)

    run_virtual(run(), loop)


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


def test_one_leads_and_the_other_takes_over_as_soon_as_it_is_released() -> None:
    async def main(world: World) -> None:
        (one, _), (two, _) = world.contender("one"), world.contender("two")
        first = asyncio.create_task(one.lead(world.work("one")))
        await world.until_working("one")
        second = asyncio.create_task(two.lead(world.work("two")))
        await asyncio.sleep(100.0)
        assert world.working == {"one"}
        lease = await world.lease()
        assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("one", 15)
        released_at = world.loop.time()
        await cancel(first)
        assert await world.until_working("two") - released_at < 2 * TIMING.retry_s
        assert (await world.lease()).spec.lease_transitions == lease.spec.lease_transitions + 1
        await cancel(second)
        assert (await world.lease()).spec.holder_identity == ""

    virtual(main)


@pytest.mark.parametrize(("speeds", "offsets"), [((1.0, 1.0), (0.0, 0.0)), ((0.95, 1.05), (3600.0, -7200.0))])
def test_a_leader_that_is_cut_off_has_stopped_before_the_other_starts(
    speeds: tuple[float, float], offsets: tuple[float, float]
) -> None:
    async def main(world: World) -> None:
        one, link = world.contender("one", speed=speeds[0], offset=offsets[0])
        two, _ = world.contender("two", speed=speeds[1], offset=offsets[1])
        first = asyncio.create_task(one.lead(world.work("one")))
        await world.until_working("one")
        second = asyncio.create_task(two.lead(world.work("two")))
        await asyncio.sleep(60.3)
        cut_at = world.loop.time()
        link.cut()
        taken_at = await world.until_working("two")
        stopped_at = world.spans[0][3]
        assert cut_at + 5.0 < stopped_at < cut_at + 11.0
        assert stopped_at + 3.0 < taken_at < cut_at + 21.0
        link.mend()
        await asyncio.sleep(60.0)
        assert world.working == {"two"}
        await cancel(second)
        await world.until_working("one")
        await cancel(first)
        tokens = [token for _, token, _, _ in world.spans]
        assert tokens == sorted(set(tokens))

    virtual(main)


def test_a_short_outage_does_not_end_a_term() -> None:
    async def main(world: World) -> None:
        one, link = world.contender("one")
        task = asyncio.create_task(one.lead(world.work("one")))
        await world.until_working("one")
        for _ in range(10):
            link.is_down = True
            await asyncio.sleep(5.0)
            link.is_down = False
            await asyncio.sleep(5.0)
        assert world.spans == []
        link.is_down = True
        await world.until_working()
        link.is_down = False
        await world.until_working("one")
        await cancel(task)

    virtual(main)


def test_the_result_of_the_work_ends_it_and_gives_the_lease_back() -> None:
    async def main(world: World) -> None:
        one, _ = world.contender("one")

        async def run(term: LeaderTerm) -> str:
            assert term.is_valid
            await asyncio.sleep(33.0)
            assert term.is_valid
            return "done"

        assert await one.lead(run) == "done"
        assert (await world.lease()).spec.holder_identity == ""

        async def fail(term: LeaderTerm) -> None:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await one.lead(fail)
        assert (await world.lease()).spec.holder_identity == ""

    virtual(main)


def test_work_that_is_slow_to_stop_is_waited_for() -> None:
    async def main(world: World) -> None:
        one, link = world.contender("one")
        task = asyncio.create_task(one.lead(world.work("one", stopping_s=40.0)))
        began = await world.until_working("one")
        link.cut()
        await world.until_working()
        assert world.spans[0][3] == pytest.approx(began + 10.0 + 40.0, abs=2.5)
        link.mend()
        await world.until_working("one")
        await cancel(task)

    virtual(main)


def test_a_frozen_leader_writes_nothing_when_it_wakes() -> None:
    async def main(world: World) -> None:
        frozen_s = 0.0
        one = LeaseContender(
            world.cluster,
            LeasePlace("manager", "kube-system", "one"),
            TIMING,
            clock=world.loop.clock,
            elapsed=lambda: world.loop.time() + frozen_s,
        )

        async def run(term: LeaderTerm) -> str:
            nonlocal frozen_s
            cluster: Cluster = FencedCluster(world.cluster, term)
            await cluster.create(Namespace, {"metadata": {"name": "before"}})
            assert (await cluster.get(Namespace, "before")).name == "before"
            frozen_s = 60.0  # the machine slept; not one step of the loop was taken meanwhile
            assert not term.is_valid
            for write in (
                cluster.create(Namespace, {"metadata": {"name": "after"}}),
                cluster.patch(Namespace, "before", {"metadata": {"labels": {"a": "b"}}}),
                cluster.replace(Namespace, {"metadata": {"name": "before"}}),
                cluster.delete(Namespace, "before"),
            ):
                with pytest.raises(NotLeading, match="nothing was written"):
                    await write
            return "fenced"

        assert await one.lead(run) == "fenced"
        names = [each.name for each in (await world.cluster.list(Namespace)).items]
        assert "before" in names
        assert "after" not in names

    virtual(main)


def test_a_fenced_cluster_reads_like_the_one_it_guards() -> None:
    async def main(world: World) -> None:
        over = LeaderTerm(7, lambda: 0.0)
        cluster: Cluster = FencedCluster(world.cluster, over)
        await world.cluster.create(Lease, {"metadata": {"name": "l", "namespace": "kube-system"}})
        assert (await cluster.get(Lease, "l", "kube-system")).name == "l"
        listing = await cluster.list(Lease, "kube-system")
        assert [[lease.name for lease in page.items] async for page in list_pages_of_any_cluster(cluster, Lease)] == [
            ["l"]
        ]
        assert [lease.name for lease in listing.items] == ["l"]
        async with aclosing(cluster.watch(Lease, "")) as stream:  # type: ignore[type-var]
            assert (await anext(stream)).type == "ADDED"
        with pytest.raises(NotLeading, match="term 7 is over"):
            await cluster.bind("p", "team", Binding("n"))

    virtual(main)


def test_a_deleted_lease_is_made_anew_and_a_stolen_one_is_given_up() -> None:
    async def main(world: World) -> None:
        one, _ = world.contender("one")
        task = asyncio.create_task(one.lead(world.work("one")))
        await world.until_working("one")
        await world.cluster.delete(Lease, "manager", "kube-system")
        await asyncio.sleep(5.0)
        assert (await world.lease()).spec.holder_identity == "one"
        assert world.working == {"one"}
        stolen_at = world.loop.time()
        thief = {"spec": {"holderIdentity": "thief", "leaseTransitions": 9, "leaseDurationSeconds": 15}}
        await world.cluster.patch(Lease, "manager", thief, "kube-system")
        assert await world.until_working() - stolen_at < 3.0
        assert await world.until_working("one") - stolen_at > 14.0  # the thief never renews
        assert (await world.lease()).spec.lease_transitions == 10
        await cancel(task)

    virtual(main)


def test_a_wall_clock_that_stands_still_does_not_cost_the_lease() -> None:
    async def main(world: World) -> None:
        one = LeaseContender(
            world.cluster,
            LeasePlace("manager", "kube-system", "one"),
            TIMING,
            clock=lambda: 5.0,
            elapsed=world.loop.time,
        )
        two, _ = world.contender("two")
        first = asyncio.create_task(one.lead(world.work("one")))
        await world.until_working("one")
        second = asyncio.create_task(two.lead(world.work("two")))
        await asyncio.sleep(300.0)
        assert world.working == {"one"}
        assert world.spans == []
        await cancel(second)
        await cancel(first)

    virtual(main)


def test_without_its_namespace_it_asks_again_and_again_at_its_own_pace() -> None:
    async def main(world: World) -> None:
        asked = 0

        class NoNamespace(Link):
            async def create(self, *args: Any) -> Any:
                nonlocal asked
                asked += 1
                raise Unavailable("no such namespace")

        one = LeaseContender(
            NoNamespace(world.cluster),  # type: ignore[arg-type]
            LeasePlace("manager", "kube-system", "one"),
            TIMING,
            elapsed=world.loop.time,
        )
        task = asyncio.create_task(one.lead(world.work("one")))
        await asyncio.sleep(60.0)
        assert 20 <= asked <= 31
        await cancel(task)

    virtual(main)

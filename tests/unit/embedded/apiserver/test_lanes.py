"""Whose turn it is, and who is sent away."""

from __future__ import annotations

import asyncio

import pytest

from remuda.api.errors import TooManyRequests
from remuda.embedded.apiserver import lanes
from remuda.embedded.apiserver.lanes import Lane, LaneName, RequestLanes, RequestSeat, lane_of_request

NODE_LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1"


@pytest.mark.parametrize(
    ("path", "client", "lane", "tenant"),
    [
        (NODE_LEASE, "10.0.0.1", LaneName.LEASES, "10.0.0.1"),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/manager", "", LaneName.LEASES, ""),
        ("/api/v1/nodes/node-1/status", "10.0.0.1", LaneName.LEASES, "10.0.0.1"),
        ("/apis/remuda.dev/v1alpha1/nodedevices/node-1", "", LaneName.LEASES, ""),
        ("/apis/coordination.k8s.io/v1/namespaces/team/leases/mine", "10.0.0.1", LaneName.TENANTS, "10.0.0.1/team"),
        ("/apis/coordination.k8s.io/v1/leases", "10.0.0.1", LaneName.TENANTS, "10.0.0.1/"),
        (f"{NODE_LEASE}/x", "10.0.0.1", LaneName.TENANTS, "10.0.0.1/kube-node-lease"),
        ("/api/v1/namespaces/team/pods/a", "10.0.0.1", LaneName.TENANTS, "10.0.0.1/team"),
        ("/api/v1/namespaces/team/pods", "", LaneName.LOCAL, "/team"),
        ("/apis/a.b/v1/namespaces/team/gadgets", "10.0.0.1", LaneName.TENANTS, "10.0.0.1/team"),
        ("/api/v1/nodes", "10.0.0.1", LaneName.TENANTS, "10.0.0.1/"),
    ],
)
def test_which_lane_a_request_is_in(path: str, client: str, lane: LaneName, tenant: str) -> None:
    assert lane_of_request(path, client) == (lane, tenant)


class Line:
    """Requests that enter a lane, in the order in which they got a seat."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.seated: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, *tenants: str) -> None:
        for tenant in tenants:
            self.tasks.append(asyncio.create_task(self._enter(tenant)))
            await asyncio.sleep(0)

    async def _enter(self, tenant: str) -> None:
        await self.lane.enter(tenant)
        self.seated.append(tenant)

    async def leave(self, times: int = 1) -> None:
        for _ in range(times):
            self.lane.leave()
            for _ in range(3):
                await asyncio.sleep(0)


async def test_tenants_take_turns_however_many_requests_one_has() -> None:
    line = Line(Lane("x", seats=1, of_tenant=100, line=100))
    await line.come("first", *(["greedy"] * 50), "a", "b")
    await line.leave(6)
    assert line.seated == ["first", "greedy", "a", "b", "greedy", "greedy", "greedy"]
    assert line.lane.waiting == 46
    for task in line.tasks:
        task.cancel()
    await asyncio.gather(*line.tasks, return_exceptions=True)
    assert line.lane.waiting == 0


async def test_a_full_line_sends_away_its_own_tenant_first() -> None:
    line = Line(Lane("x", seats=1, of_tenant=2, line=3))
    await line.come("first", "greedy", "greedy")
    with pytest.raises(TooManyRequests, match="come back later") as refused:
        await line.lane.enter("greedy")
    assert refused.value.details is not None
    assert refused.value.details.retry_after_seconds == lanes.RETRY_AFTER_S
    await line.come("a")
    with pytest.raises(TooManyRequests):
        await line.lane.enter("b")
    await line.leave(4)
    assert line.seated == ["first", "greedy", "a", "greedy"]
    assert line.lane._free == 1


async def test_who_stops_waiting_leaves_no_hole() -> None:
    line = Line(Lane("x", seats=1, of_tenant=9, line=9))
    await line.come("first", "a", "b", "c")
    line.tasks[1].cancel()
    await asyncio.sleep(0)
    line.lane.leave()  # b's seat, and b is cancelled before it is told
    line.tasks[2].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert line.seated == ["first", "c"]
    await line.leave()
    assert line.lane._free == 1


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WAIT_S", 0.0)
    lane = Lane("x", seats=1, of_tenant=9, line=9)
    await lane.enter("a")
    with pytest.raises(TooManyRequests, match="waited"):
        await lane.enter("b")
    assert lane.waiting == 0


async def seated(found: RequestLanes, path: str, client: str) -> RequestSeat:
    seat = found.ticket(path, client)
    await seat.sit_down()
    return seat


async def test_nothing_fills_the_lane_of_leases() -> None:
    """Seats and lines are full, of tenants, of the owner, of large requests. A lease is renewed all the same."""
    found = RequestLanes()
    waiting: list[asyncio.Task[None]] = []
    for client in ("10.0.0.1", ""):
        for number in range(3_000):
            waiting.append(asyncio.create_task(found.ticket(f"/api/v1/namespaces/{number}/pods", client).sit_down()))
    await asyncio.sleep(0)
    large = [await seated(found, NODE_LEASE, "10.0.0.9") for _ in range(20)]
    waiting += [asyncio.create_task(seat.become_large()) for seat in large]
    await asyncio.sleep(0)
    assert sum(task.done() and task.exception() is not None for task in waiting) > 2_000
    seat = await asyncio.wait_for(seated(found, NODE_LEASE, "10.0.0.2"), 5)
    seat.leave()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_large_request_gives_its_seat_back_and_waits_elsewhere() -> None:
    found = RequestLanes()
    seats = [await seated(found, "/api/v1/namespaces/a/pods", "10.0.0.1") for _ in range(32)]
    await seats[0].become_large()
    await seats[0].become_large()
    second = asyncio.create_task(seats[1].become_large())
    await asyncio.sleep(0)
    assert not second.done()
    for _ in range(2):  # both have left the lane for small ones
        await asyncio.wait_for(seated(found, "/api/v1/namespaces/b/pods", "10.0.0.1"), 5)
    seats[0].leave()
    seats[0].leave()
    await asyncio.wait_for(second, 5)
    assert seats[1].is_large


async def test_a_large_body_has_memory_first_and_a_seat_when_it_is_there() -> None:
    found = RequestLanes()
    bodies = [found.ticket("/api/v1/namespaces/a/pods", "10.0.0.1") for _ in range(17)]
    for seat in bodies[:16]:
        await seat.take_memory()
    last = asyncio.create_task(bodies[16].take_memory())
    await asyncio.sleep(0)
    assert not last.done()
    # Sixteen who send slowly keep no one else from being worked on.
    await asyncio.wait_for(seated(found, "/api/v1/namespaces/a/pods", "10.0.0.1"), 5)
    await asyncio.wait_for(bodies[0].sit_down(), 5)
    assert bodies[0].is_large
    bodies[0].leave()
    await asyncio.wait_for(last, 5)
    assert not bodies[0].is_large

"""Lanes: how many requests of one sort are worked on at a time, and who is next. Priority and fairness in small.

    leases    leases of nodes and of the control plane, reports of nodes: short, and late ones cost other people's work
    local     the unix socket: the CLI and the parts of a split cluster
    tenants   everybody on TCP

Each lane has seats and a line of its own, so no lane can fill another. In a line tenants (an address and a namespace) take turns,
however many requests each has there. A request that turns out to be large (its body, the object it changes, the list it asks
for) goes on in a second lane of its sort, one at a time.

A body is read before there is a seat, so who sends slowly holds up nobody. A large one takes memory, and that has places, too.

Who finds the line full is told to come back (429). The control plane of `remuda up` calls the store in process and is in no line.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from enum import Enum

from remuda.api.errors import StatusDetails, TooManyRequests

RETRY_AFTER_S = 1
WAIT_S = 20.0  # in a line
_LEASES = re.compile(
    r"/apis/coordination\.k8s\.io/v1/namespaces/(?:kube-node-lease|kube-system)/leases(?:/[^/]*)?/?"
    r"|/api/v1/nodes/[^/]+/status/?"
    r"|/apis/remuda\.dev/v1alpha1/nodedevices/[^/]+(?:/status)?/?"
)
_NAMESPACE = re.compile(r"/apis?/.*?/namespaces/([^/]+)/")


class LaneName(Enum):
    LEASES = "leases"
    LOCAL = "local"
    TENANTS = "tenants"


def lane_of_request(path: str, client: str) -> tuple[LaneName, str]:
    """The lane, and who stands in it. `client`: its address, empty on the unix socket."""
    if _LEASES.fullmatch(path):
        return LaneName.LEASES, client
    found = _NAMESPACE.match(path)
    tenant = f"{client}/{found[1] if found else ''}"
    return (LaneName.TENANTS if client else LaneName.LOCAL), tenant


class Lane:
    """`seats` at a time; `of_tenant` of one tenant may wait, and `line` in all."""

    def __init__(self, name: str, seats: int, of_tenant: int, line: int) -> None:
        self.name = name
        self.seats = seats
        self._free = seats
        self._of_tenant = of_tenant
        self._line = line
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whose turn is next stands first

    @property
    def taken(self) -> int:
        return self.seats - self._free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def enter(self, tenant: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        theirs = self._waiting.get(tenant, ())
        if len(theirs) >= self._of_tenant or self.waiting >= self._line:
            raise _too_many(f"{self.waiting} requests wait in the lane {self.name}, {len(theirs)} of them from here")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(place)
        try:
            async with asyncio.timeout(WAIT_S):
                await place
        except (TimeoutError, asyncio.CancelledError) as error:
            if place.done() and not place.cancelled():
                self.leave()  # the seat came with the end of the wait
            else:
                self._forget(tenant, place)
            if isinstance(error, TimeoutError):
                raise _too_many(f"the request waited {WAIT_S:g} s in the lane {self.name}") from None
            raise

    def leave(self) -> None:
        """The seat goes to the next tenant's first."""
        while self._waiting:
            tenant = next(iter(self._waiting))
            theirs = self._waiting.pop(tenant)
            place = theirs.popleft()
            if theirs:
                self._waiting[tenant] = theirs  # behind the others
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def _forget(self, tenant: str, place: asyncio.Future[None]) -> None:
        theirs = self._waiting.get(tenant)
        if theirs is not None and place in theirs:
            theirs.remove(place)
            if not theirs:
                del self._waiting[tenant]


def _too_many(what: str) -> TooManyRequests:
    return TooManyRequests(
        f"{what}; send fewer at a time, and come back later", details=StatusDetails(retry_after_seconds=RETRY_AFTER_S)
    )


class RequestLanes:
    def __init__(self) -> None:
        self._lanes = {
            LaneName.LEASES: Lane("leases", seats=64, of_tenant=1_000, line=2_000),
            LaneName.LOCAL: Lane("local", seats=64, of_tenant=1_000, line=2_000),
            LaneName.TENANTS: Lane("tenants", seats=32, of_tenant=256, line=1_000),
        }
        self._large = {
            LaneName.LEASES: Lane("large leases", seats=1, of_tenant=8, line=16),
            LaneName.LOCAL: Lane("large local", seats=1, of_tenant=64, line=128),
            LaneName.TENANTS: Lane("large tenants", seats=1, of_tenant=16, line=64),
        }

        self._bodies = {
            name: Lane(f"large bodies of {name.value}", seats=16, of_tenant=64, line=128) for name in LaneName
        }

    @property
    def under_way(self) -> int:
        return sum(lane.taken for lane in (*self._lanes.values(), *self._large.values()))

    def ticket(self, path: str, client: str) -> RequestSeat:
        name, tenant = lane_of_request(path, client)
        return RequestSeat(self._lanes[name], self._large[name], self._bodies[name], tenant)


class RequestSeat:
    """What a request holds; at first nothing. All that wait raise TooManyRequests. `leave` may be called again."""

    def __init__(self, lane: Lane, large: Lane, bodies: Lane, tenant: str) -> None:
        self._lane = lane
        self._large = large
        self._bodies = bodies
        self._tenant = tenant
        self._held: list[Lane] = []

    @property
    def is_large(self) -> bool:
        return self._large in self._held

    async def take_memory(self) -> None:
        """For the rest of a large body."""
        await self._enter(self._bodies)

    async def sit_down(self) -> None:
        """Where the request belongs: its body has come."""
        await self._enter(self._large if self._bodies in self._held else self._lane)

    async def become_large(self) -> None:
        """Goes on in the lane for large requests; the seat among small ones is free from here on."""
        if self._lane in self._held:
            self._held.remove(self._lane)
            self._lane.leave()
            await self._enter(self._large)

    def leave(self) -> None:
        held, self._held = self._held, []
        for lane in held:
            lane.leave()

    async def _enter(self, lane: Lane) -> None:
        await lane.enter(self._tenant)
        self._held.append(lane)

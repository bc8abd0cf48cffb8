"""Leader election on a Lease: the shell around `kube.runtime.leader_lease`, on any `Cluster`.

`lead` contends until it leads, runs the guarded work, and keeps the lease meanwhile. When the lease is lost the work is
cancelled and waited for, then it contends again; when the work ends by itself, or `lead` is cancelled, the lease is given back
so that the next one need not wait for it to run out.

Fencing has three parts. The work is cancelled `lease_s - renew_s` before anybody else can start. A process that was frozen
meanwhile (so that nothing could be cancelled in time) finds its `LeaderTerm` over when it wakes: a `FencedCluster` refuses to
write from then on. And `term.token` grows with every term, for receivers that can compare.

Use a transport of its own for the lease: behind a rate limit it would queue with the work it guards.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import msgspec
import structlog

from remuda.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from remuda.api.kubernetes.core_v1 import Lease
from remuda.api.meta import JsonObject, to_time
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.backoff import Jitter
from remuda.kube.runtime.leader_lease import (
    Candidacy,
    LeaseAction,
    LeaseRecord,
    LeaseTiming,
    ReadLease,
    StepDownAsLeader,
    WaitForLease,
    WriteLease,
    decide_lease_action,
    leader_stepped_down,
    lease_race_was_lost,
    lease_request_failed,
    lease_wait_is_over,
    lease_was_read,
    lease_was_written,
)

T = TypeVar("T")

log = structlog.get_logger(__name__)


def suspend_aware_lease_clock_s() -> float:
    """Seconds of a clock that also runs while the machine sleeps, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeasePlace(msgspec.Struct, frozen=True):
    """The Lease to contend for, and under which name: `identity` must belong to this process alone."""

    name: str
    namespace: str
    identity: str


class LeaderTerm:
    """The right to act, while `is_valid`. `token` is larger than that of every earlier term."""

    def __init__(self, token: int, left: Callable[[], float]) -> None:
        """`left`: for how many seconds it lasts if it is not renewed any more."""
        self.token = token
        self._left = left

    @property
    def is_valid(self) -> bool:
        return self._left() > 0

    def left_s(self) -> float:
        """Seconds in which nobody else can lead."""
        return max(0.0, self._left())


class LeaseContender:
    """One contender. `clock`: unix seconds, only written, never compared. `elapsed`: seconds that never go back."""

    def __init__(
        self,
        cluster: Cluster,
        place: LeasePlace,
        timing: LeaseTiming = LeaseTiming(),  # noqa: B008 - an immutable value
        *,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = suspend_aware_lease_clock_s,
        jitter: Jitter = random.random,
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        """`renewed` is called whenever the API took a write of ours."""
        self._renewed = renewed
        self._cluster = cluster
        self._place = place
        self._clock = clock
        self._elapsed = elapsed
        self._jitter = jitter
        self._standing = Candidacy(place.identity, timing)
        self._beat_at = 0.0

    @property
    def standing(self) -> Candidacy:
        return self._standing

    async def lead(self, run: Callable[[LeaderTerm], Awaitable[T]]) -> T:
        """Run `run` whenever we lead; its result or its error ends this."""
        while True:
            await self._contend()
            term = self._begin_term()
            log.info("leader.leading", lease=self._place.name, identity=self._place.identity, token=term.token)
            work = asyncio.ensure_future(run(term))
            keeping = asyncio.create_task(self._keep())
            try:
                await asyncio.wait({work, keeping}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return work.result()
            finally:
                await _end_leader_task(keeping)
                await self._stop(work)
                if self._standing.is_leading:
                    await self._release()
            lost = keeping.result()
            log.warning("leader.lost", lease=self._place.name, reason=lost.reason, message=lost.message)
            if not work.cancelled() and (error := work.exception()) is not None:
                raise error

    def _begin_term(self) -> LeaderTerm:
        record = self._standing.record
        assert record is not None
        token = record.transitions

        def left() -> float:
            now = self._standing
            is_same = now.record is not None and now.record.transitions == token
            return now.ends_at - self._elapsed() if is_same else 0.0

        return LeaderTerm(token, left)

    async def _contend(self) -> None:
        while not self._standing.is_leading:
            await self._act(decide_lease_action(self._standing, self._elapsed()))

    async def _keep(self) -> StepDownAsLeader:
        """Until the term is over, and why."""
        while True:
            action = decide_lease_action(self._standing, self._elapsed())
            if isinstance(action, StepDownAsLeader):
                self._standing = leader_stepped_down(self._standing, self._elapsed())
                return action
            await self._act(action)

    async def _stop(self, work: asyncio.Future[T]) -> None:
        """The work is over when this returns, however long it takes: two leaders at work are worse than none."""
        if work.done():
            return
        work.cancel()
        await asyncio.wait({work}, timeout=self._standing.timing.lease_s - self._standing.timing.renew_s)
        if not work.done():
            log.error("leader.work_does_not_stop", lease=self._place.name, identity=self._place.identity)
            await asyncio.wait({work})

    # One step.

    async def _act(self, action: LeaseAction) -> None:
        if isinstance(action, WaitForLease):
            # A follower comes a little later than it could: a crowd must not come at one moment. A leader must not be late.
            spread = 0.0 if self._standing.is_leading else self._jitter() / 5
            await asyncio.sleep(action.seconds * (1 + spread))
            self._standing = lease_wait_is_over(self._standing)
            return
        began = self._elapsed()
        left = self._standing.ends_at - began if self._standing.is_leading else self._standing.timing.renew_s
        try:
            async with asyncio.timeout(left):
                if isinstance(action, ReadLease):
                    record = await self._read()
                    self._standing = lease_was_read(self._standing, record, self._elapsed())
                elif isinstance(action, WriteLease):
                    record = await self._write(action)
                    self._standing = lease_was_written(self._standing, record, began, self._elapsed())
                    self._renewed()
        except (Conflict, AlreadyExists):
            self._standing = lease_race_was_lost(self._standing, self._elapsed())
        except (ApiError, TimeoutError) as error:
            log.warning("leader.retry", lease=self._place.name, error=str(error) or "no answer in time")
            self._standing = lease_request_failed(self._standing, self._elapsed())

    async def _read(self) -> LeaseRecord | None:
        try:
            return _lease_record(await self._cluster.get(Lease, self._place.name, self._place.namespace))
        except NotFound:
            return None

    async def _write(self, action: WriteLease) -> LeaseRecord:
        name, namespace = self._place.name, self._place.namespace
        renewed = self._beat()
        spec: JsonObject = {
            "holderIdentity": self._place.identity,
            "leaseDurationSeconds": self._standing.timing.lease_s,
            "leaseTransitions": action.transitions,
            "renewTime": renewed,
        }
        if action.is_new or action.over is None:
            spec["acquireTime"] = renewed
        if action.over is None:
            body = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
            return _lease_record(await self._cluster.create(Lease, body))
        when = Preconditions(resource_version=action.over.version)
        return _lease_record(await self._cluster.patch(Lease, name, {"spec": spec}, namespace, when=when))

    async def _release(self) -> None:
        """Best effort: if it fails, the lease runs out by itself."""
        self._standing = leader_stepped_down(self._standing, self._elapsed())
        name, namespace = self._place.name, self._place.namespace
        try:
            async with asyncio.timeout(self._standing.timing.renew_s):
                record = await self._read()  # the last renewal may have been interrupted
                if record is not None and record.holder == self._place.identity:
                    spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._beat()}
                    when = Preconditions(resource_version=record.version)
                    await self._cluster.patch(Lease, name, {"spec": spec}, namespace, when=when)
        except (ApiError, TimeoutError) as error:
            log.warning("leader.not_released", lease=name, error=str(error) or "no answer in time")

    def _beat(self) -> str:
        """The time, but always later than the last: a clock that stands still must not look like a dead leader."""
        self._beat_at = max(self._clock(), self._beat_at + 2e-6)
        return lease_micro_time(to_time(self._beat_at))


def lease_micro_time(moment: datetime) -> str:
    """Kubernetes' MicroTime, which insists on six digits."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _lease_record(lease: Lease) -> LeaseRecord:
    spec = lease.spec
    return LeaseRecord(
        holder=spec.holder_identity,
        lease_s=float(spec.lease_duration_seconds),
        transitions=spec.lease_transitions,
        beat=str(spec.renew_time),
        version=lease.metadata.resource_version,
    )


async def _end_leader_task(task: asyncio.Task[StepDownAsLeader]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})

"""Faults on purpose: Drill objects, carried out where their target is. What is broken and how is the site's (`DrillSite`).

A drill is carried out once, in the order it came, and then its status says Done with the moment of the fault, or Refused with a
reason. One that lasts is taken back when its time is over or its spec says `undo`; then it is Undone. One that is for another
site is left to it.

Where others may answer the same drill (a manager that refuses what nobody took, a newer agent of the node) it is begun by writing
Running, guarded by the object's version, and only whoever's write stood carries it out (`claims`). What is found Running at the
start was begun by a process that is gone: it is taken back if it lasts, and else Refused as Interrupted, unless the site
knows that it happened.

No drill outlives the process that carried it out: when and how it would end was known there alone. But what it did may be there
still (a stopped process that was adopted, a fault in the ledger), so at the next start those that last are taken back first, and
then called Undone with that reason. The site must have its pods by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from remuda.api.codec import to_wire
from remuda.api.drills import (
    DRILLS,
    UNDER_WAY,
    Drill,
    DrillKind,
    DrillSpec,
    DrillStatus,
    drill_status_patch,
    refused_drill_status,
)
from remuda.api.errors import ApiError, Conflict, NotFound, Refusal
from remuda.api.meta import to_seconds, to_time
from remuda.api.validation.validate import validate
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.informer import Informer

log = structlog.get_logger(__name__)

_RETRY_S = 0.5
_LOOK_S = 0.1  # between two looks for the node of a drill's pod
_STRAY_S = 3.0  # a pod that is on no node by then runs nowhere
_STALE_S = 600.0  # a drill that waited for so long is not expected any more; longer than clocks usually differ
_FINAL = (400, 401, 403, 422)  # not allowed, not understood
_NOTICES = (DrillKind.SPOT_NOTICE, DrillKind.MAINTENANCE_NOTICE)
_INTERRUPTED = "It was interrupted: whoever carried it out ended meanwhile. Whether it happened is not known."


class DrillSite(Protocol):
    """Whom drills are carried out on: the nodes of this process, or the one whose agent this is."""

    after_restart: str  # the reason of Undone for a drill of an earlier life

    def is_here(self, spec: DrillSpec) -> bool | None:
        """Whether the drill is for this site. None while that cannot be told: it names no node, and its pod is on none."""
        ...

    def is_in_charge(self) -> bool:
        """False once somebody else carries out this site's drills."""
        ...

    async def inject(self, spec: DrillSpec) -> str:
        """Carry it out; what was done, in one sentence. Raises Refusal, ApiError or OSError."""
        ...

    async def take_back(self, spec: DrillSpec) -> None:
        """Undo one that lasts."""
        ...

    async def carry_out_notice(self, spec: DrillSpec) -> None:
        """The time of a notice has come."""
        ...

    def claim_words(self, spec: DrillSpec) -> str:
        """What the next life needs in order to know whether it happened."""
        ...

    def has_happened(self, spec: DrillSpec, words: str) -> str:
        """Of one that an earlier life began with these words: the sentence that it happened; "" when that is not known."""
        ...


class DrillRunner:
    def __init__(
        self,
        cluster: Cluster,
        informer: Informer[Drill],
        site: DrillSite,
        clock: Callable[[], float],
        *,
        refuses_strays: bool = True,
        claims: bool = False,
    ) -> None:
        """`refuses_strays`: this one refuses a drill of which nobody could tell in time whose it is. `claims`: see above."""
        self._cluster = cluster
        self._informer = informer
        self._site = site
        self._refuses_strays = refuses_strays
        self._claims = claims
        self._clock = clock
        self._queue: asyncio.Queue[tuple[Drill, bool]] = asyncio.Queue()  # (drill, its time is over)
        self._struck: set[str] = set()  # uids
        self._begun: set[str] = set()  # uids, by this process
        self._lasting: dict[str, asyncio.TimerHandle | None] = {}  # by uid: when it ends, None = when somebody says so
        informer.subscribe(self._changed)

    async def run(self) -> None:
        """Until cancelled, or until somebody else is in charge."""
        while True:
            drill, is_over = await self._queue.get()
            if not self._site.is_in_charge():
                log.info("drills.left_to_another", drill=drill.name)
                return
            if drill.uid in self._lasting:
                await self._end(drill, is_over)
            elif drill.uid in self._begun:
                continue  # ended twice: by its time and by somebody's word
            elif drill.status.phase == "Pending":
                await self._begin(drill)
            elif drill.status.phase == "Running" and not DRILLS[drill.spec.type].lasts:
                await self._settle_interrupted(drill)
            else:
                await self._attempt(drill, self._site.take_back)  # of an earlier life
                await self._undone(drill, self._site.after_restart)

    def _changed(self, old: Drill | None, new: Drill | None) -> None:
        if new is None:
            if old is not None:
                self._struck.discard(old.uid)
                self._begun.discard(old.uid)
                if old.uid in self._lasting:  # whoever removes it does not want it any more
                    self._queue.put_nowait((old, False))
            return
        if new.spec.node and not self._site.is_here(new.spec):
            return
        if new.uid not in self._struck:
            self._struck.add(new.uid)
            is_open = new.status.phase in UNDER_WAY
            if is_open or (new.status.phase == "Done" and DRILLS[new.spec.type].lasts):
                self._take_if_here(new, self._clock() + _STRAY_S)
        elif new.spec.undo and new.uid in self._lasting:
            self._queue.put_nowait((new, False))

    def _take_if_here(self, drill: Drill, until: float) -> None:
        """Queue the drill if it is for this site. A pod may be seen on its node a moment later than the drill on it. It may
        also go before its own process has seen it there: so who refuses strays looks on until somebody has taken the drill."""
        known = self._informer.get(drill.name)
        if known is None or known.uid != drill.uid or known.status.phase != drill.status.phase:
            return  # somebody else has taken it meanwhile
        is_here = self._site.is_here(drill.spec)
        is_over = self._clock() >= until
        if is_here or (is_here is None and is_over and self._refuses_strays):
            self._queue.put_nowait((drill, False))
        elif self._refuses_strays or (is_here is None and not is_over):
            asyncio.get_running_loop().call_later(_LOOK_S, self._take_if_here, drill, until)

    async def _begin(self, drill: Drill) -> None:
        self._begun.add(drill.uid)
        if self._claims and not await self._claim(drill):
            return
        status = await self._try(drill, self._clock())
        if status.phase == "Done" and DRILLS[drill.spec.type].lasts:
            done = replace(drill, status=status)
            timer = None
            if drill.spec.seconds:
                loop = asyncio.get_running_loop()
                timer = loop.call_later(drill.spec.seconds, self._queue.put_nowait, (done, True))
            self._lasting[drill.uid] = timer
            known = self._informer.get(drill.name)
            if known is None or known.uid != drill.uid or known.spec.undo:  # said while it was being carried out
                self._queue.put_nowait((done, False))
        log.info("drill", drill=drill.name, phase=status.phase, reason=status.reason, message=status.message)
        await self._report(drill, status)

    async def _claim(self, drill: Drill) -> bool:
        """Running, written over Pending by this process and nobody else."""
        words = self._site.claim_words(drill.spec)
        patch = {"status": to_wire(DrillStatus("Running", "", words, to_time(self._clock())))}
        while True:
            try:
                found = await self._cluster.get(Drill, drill.name)
                if found.uid != drill.uid or found.status.phase != "Pending" or not self._site.is_in_charge():
                    return False
                when = Preconditions(uid=found.uid, resource_version=found.metadata.resource_version)
                await self._cluster.patch(Drill, drill.name, patch, subresource="status", when=when)
            except NotFound:
                return False
            except Conflict:
                continue
            except ApiError as error:
                if not await self._may_retry(drill, error):
                    return False
            else:
                return True

    async def _try(self, drill: Drill, moment: float) -> DrillStatus:
        at = to_time(moment)
        try:
            validate(drill)  # not every API server has done so
            self._check_fresh(drill, moment)
            return DrillStatus("Done", "", await self._site.inject(drill.spec), at)
        except Refusal as refusal:
            return refused_drill_status(refusal, at)
        except ApiError as error:
            return DrillStatus("Refused", error.reason, error.message, at)
        except OSError as error:  # the process ended under our hands
            return DrillStatus("Refused", "NotRunning", f"The fault reached nothing: {error}.", at)

    def _check_fresh(self, drill: Drill, now: float) -> None:
        made = drill.metadata.creation_timestamp
        if self._claims and made is not None and now - to_seconds(made) > _STALE_S:
            raise Refusal(
                "TooLate",
                f"The drill waited for longer than {_STALE_S / 60:g} minutes, by this node's clock.",
                "Make it again.",
            )

    async def _settle_interrupted(self, drill: Drill) -> None:
        said = self._site.has_happened(drill.spec, drill.status.message)
        status = (
            replace(drill.status, phase="Done", message=said)
            if said
            else replace(drill.status, phase="Refused", reason="Interrupted", message=_INTERRUPTED)
        )
        log.info("drill", drill=drill.name, phase=status.phase, reason=status.reason, message=status.message)
        await self._report(drill, status)

    async def _end(self, drill: Drill, is_over: bool) -> None:
        timer = self._lasting.pop(drill.uid)
        if timer is not None:
            timer.cancel()
        reason = "TimeOver" if is_over else "TakenBack"
        if is_over and drill.spec.type in _NOTICES:
            if await self._attempt(drill, self._site.carry_out_notice):
                reason = "CameTrue"
        else:
            await self._attempt(drill, self._site.take_back)
        await self._undone(drill, reason)

    async def _attempt(self, drill: Drill, end: Callable[[DrillSpec], Coroutine[Any, Any, None]]) -> bool:
        try:
            await end(drill.spec)
        except (Refusal, ApiError, OSError) as error:
            log.info("drill.nothing_to_mend", drill=drill.name, why=str(error))  # what it broke is gone meanwhile
            return False
        return True

    async def _undone(self, drill: Drill, reason: str) -> None:
        log.info("drill", drill=drill.name, phase="Undone", reason=reason)
        status = replace(drill.status, phase="Undone", reason=reason, undone_at=to_time(self._clock()))
        await self._report(drill, status)

    async def _report(self, drill: Drill, status: DrillStatus) -> None:
        patch = drill_status_patch(status)  # no words of the claim stay
        while True:
            try:
                await self._cluster.patch(
                    Drill, drill.name, patch, subresource="status", when=Preconditions(uid=drill.uid)
                )
            except (Conflict, NotFound):
                return  # somebody removed it
            except ApiError as error:
                if not await self._may_retry(drill, error):
                    return
            else:
                return

    async def _may_retry(self, drill: Drill, error: ApiError) -> bool:
        """After a pause. Not what the API will never take from us: others wait in the queue."""
        is_final = error.code in _FINAL
        log.warning("drill.given_up" if is_final else "drill.retry", drill=drill.name, error=error.message)
        if not is_final:
            await asyncio.sleep(_RETRY_S)
        return not is_final

"""Faults on purpose: Drill objects, carried out on the embedded nodes of this process.

One watch for all nodes. A drill is carried out once, in the order it came, and then its status says Done with the moment of the
fault, or Refused with a reason. One that lasts is taken back when its time is over or its spec says `undo`; then it is Undone.
One that names a node of somebody else's is left to them.

No drill outlives the process that carried it out: when and how it would end was known there alone. But what it did may be there
still (a stopped process that was adopted, a fault in the ledger), so at the next start those that last are taken back first, and
then called Undone with that reason. The nodes must have their pods by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog
from msgspec.structs import replace

from remuda.api.codec import to_wire
from remuda.api.drills import DRILLS, Drill, DrillKind, DrillSpec, DrillStatus
from remuda.api.errors import ApiError, Conflict, NotFound, Refusal
from remuda.api.meta import to_time
from remuda.embedded.node.drill_actions import DrillActions
from remuda.embedded.node.node import EmbeddedNode
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.informer import Informer

log = structlog.get_logger(__name__)

_RETRY_S = 0.5
_LOOK_S = 0.1  # between two looks for the node of a drill's pod
_STRAY_S = 3.0  # a pod that is on no node by then runs nowhere
_NOTICES = (DrillKind.SPOT_NOTICE, DrillKind.MAINTENANCE_NOTICE)


class DrillRunner:
    def __init__(
        self,
        cluster: Cluster,
        informer: Informer[Drill],
        nodes: Iterable[EmbeddedNode],
        clock: Callable[[], float],
        *,
        is_ours: Callable[[DrillSpec], bool | None] = lambda spec: True,
        refuses_strays: bool = True,
    ) -> None:
        """Where the cluster's nodes are in several processes: `is_ours` says whether a drill that names no node is for this one,
        None while that cannot be told (its pod is not seen on a node); `refuses_strays`: this one refuses what stays so."""
        self._cluster = cluster
        self._informer = informer
        self._is_ours = is_ours
        self._refuses_strays = refuses_strays
        self._nodes = {node.name: node for node in nodes}
        self._actions = DrillActions(cluster, self._nodes, clock)
        self._clock = clock
        self._queue: asyncio.Queue[tuple[Drill, bool]] = asyncio.Queue()  # (drill, its time is over)
        self._struck: set[str] = set()  # uids
        self._lasting: dict[str, asyncio.TimerHandle | None] = {}  # by uid: when it ends, None = when somebody says so
        informer.subscribe(self._changed)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            drill, is_over = await self._queue.get()
            if drill.uid in self._lasting:
                await self._end(drill, is_over)
            elif drill.status.phase == "Pending":
                await self._begin(drill)
            else:
                await self._attempt(drill, self._actions.take_back)  # of an earlier life
                await self._undone(drill, "NodeRestarted")

    def _changed(self, old: Drill | None, new: Drill | None) -> None:
        if new is None:
            if old is not None:
                self._struck.discard(old.uid)
                if old.uid in self._lasting:  # whoever removes it does not want it any more
                    self._queue.put_nowait((old, False))
            return
        if new.spec.node and new.spec.node not in self._nodes:
            return
        if new.uid not in self._struck:
            self._struck.add(new.uid)
            if new.status.phase == "Pending" or (new.status.phase == "Done" and DRILLS[new.spec.type].lasts):
                self._claim(new, self._clock() + _STRAY_S)
        elif new.spec.undo and new.uid in self._lasting:
            self._queue.put_nowait((new, False))

    def _claim(self, drill: Drill, until: float) -> None:
        """Queue the drill if it is for this process. A pod may be seen on its node a moment later than the drill on it. It may
        also go before its own process has seen it there: so who refuses strays looks on until somebody has taken the drill."""
        known = self._informer.get(drill.name)
        if known is None or known.uid != drill.uid or known.status.phase != drill.status.phase:
            return  # somebody else has taken it meanwhile
        is_ours = True if drill.spec.node else self._is_ours(drill.spec)
        is_over = self._clock() >= until
        if is_ours or (is_ours is None and is_over and self._refuses_strays):
            self._queue.put_nowait((drill, False))
        elif self._refuses_strays or (is_ours is None and not is_over):
            asyncio.get_running_loop().call_later(_LOOK_S, self._claim, drill, until)

    async def _begin(self, drill: Drill) -> None:
        moment = self._clock()
        status = await self._try(drill.spec, moment)
        if status.phase == "Done" and DRILLS[drill.spec.type].lasts:
            done = replace(drill, status=status)
            timer = None
            if drill.spec.seconds:
                loop = asyncio.get_running_loop()
                timer = loop.call_later(drill.spec.seconds, self._queue.put_nowait, (done, True))
            self._lasting[drill.uid] = timer
        log.info("drill", drill=drill.name, phase=status.phase, reason=status.reason, message=status.message)
        await self._report(drill, status)

    async def _try(self, spec: DrillSpec, moment: float) -> DrillStatus:
        at = to_time(moment)
        try:
            return DrillStatus("Done", "", await self._actions.inject(spec), at)
        except Refusal as refusal:
            return DrillStatus("Refused", refusal.reason, f"{refusal.message} {refusal.fix or ''}".strip(), at)
        except ApiError as error:
            return DrillStatus("Refused", error.reason, error.message, at)
        except OSError as error:  # the process ended under our hands
            return DrillStatus("Refused", "NotRunning", f"The fault reached nothing: {error}.", at)

    async def _end(self, drill: Drill, is_over: bool) -> None:
        timer = self._lasting.pop(drill.uid)
        if timer is not None:
            timer.cancel()
        reason = "TimeOver" if is_over else "TakenBack"
        if is_over and drill.spec.type in _NOTICES:
            if await self._attempt(drill, self._actions.carry_out_notice):
                reason = "CameTrue"
        else:
            await self._attempt(drill, self._actions.take_back)
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
        patch = {"status": to_wire(status)}
        while True:
            try:
                await self._cluster.patch(
                    Drill, drill.name, patch, subresource="status", when=Preconditions(uid=drill.uid)
                )
            except (Conflict, NotFound):
                return  # somebody removed it
            except ApiError as error:
                log.warning("drill.retry", drill=drill.name, error=error.message)
                await asyncio.sleep(_RETRY_S)
            else:
                return

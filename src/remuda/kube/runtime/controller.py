"""The one shape of a controller: observe -> plan -> apply, a key at a time.

`observe` reads, `plan` decides (pure: the same observation and time give the same plan), `apply` writes. `apply` must be
safe to repeat and guard its writes with preconditions: a `Conflict` means that somebody was faster, and the key is looked at
again at once. Other API errors and unexpected exceptions back off per key; after an exception nobody foresaw even a change of the
object waits, so that who can write it cannot make the controller fail without a pause. Nothing but cancellation ends the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import structlog

from remuda.api.errors import ApiError, Conflict
from remuda.kube.runtime.work_queue import WorkQueue

Key = TypeVar("Key", bound=Hashable)
Key_contra = TypeVar("Key_contra", bound=Hashable, contravariant=True)
Observed = TypeVar("Observed")
Plan = TypeVar("Plan")

# After so many conflicts in a row our view is not merely a moment old; asking faster would not make it newer.
_CONFLICTS_AT_ONCE = 5

log = structlog.get_logger(__name__)


class Reconciler(Protocol[Key_contra, Observed, Plan]):
    async def observe(self, key: Key_contra) -> Observed: ...

    def plan(self, observed: Observed, now: float) -> Plan: ...

    async def apply(self, plan: Plan) -> float | None:
        """Seconds until the next look, or None: only when something changes."""
        ...


async def run_controller(
    name: str,
    queue: WorkQueue[Key],
    reconciler: Reconciler[Key, Observed, Plan],
    clock: Callable[[], float],
    workers: int = 1,
) -> None:
    """Work on the queue until cancelled. `clock`: unix seconds, handed to `plan`."""
    conflicts: dict[Key, int] = {}  # in a row, whichever worker had them
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(
                    _controller_worker(name, queue, reconciler, clock, conflicts), name=f"{name}-{number}"
                )
    finally:
        queue.close()


async def _controller_worker(
    name: str,
    queue: WorkQueue[Key],
    reconciler: Reconciler[Key, Observed, Plan],
    clock: Callable[[], float],
    conflicts: dict[Key, int],
) -> None:
    while True:
        key = await queue.get()
        try:
            again_s = await reconcile_key(key, reconciler, clock)
        except Conflict as error:
            conflicts[key] = conflicts.get(key, 0) + 1
            log.debug("controller.conflict", controller=name, key=key, message=error.message)
            if conflicts[key] > _CONFLICTS_AT_ONCE:
                queue.retry(key)
            else:
                queue.add(key)
        except ApiError as error:
            log.warning("controller.retry", controller=name, key=key, reason=error.reason, message=error.message)
            queue.retry(key)
        except Exception:
            log.exception("controller.failed", controller=name, key=key, failures=queue.failures(key) + 1)
            queue.retry(key, hold=True)
        else:
            conflicts.pop(key, None)
            queue.forget(key)
            if again_s is not None:
                queue.add_after(key, again_s)
        finally:
            queue.done(key)
        # In process nothing above need ever wait, so give the informers a turn: they bring what this look has changed.
        await asyncio.sleep(0)


async def reconcile_key(
    key: Key, reconciler: Reconciler[Key, Observed, Plan], clock: Callable[[], float]
) -> float | None:
    """One look at one key."""
    observed = await reconciler.observe(key)
    return await reconciler.apply(reconciler.plan(observed, clock()))

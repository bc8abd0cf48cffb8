"""Events are forgotten after an hour, as kube-apiserver does by itself: they say what happens, and are no archive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from remuda.api.errors import ApiError, Conflict, NotFound
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.meta import to_seconds
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects

KEPT_S = 3600.0
EVERY_S = 300.0

log = structlog.get_logger(__name__)


def find_expired_events(events: Iterable[Event], now: float) -> list[Event]:
    return [e for e in events if (seen := _event_last_seen(e)) is not None and now - seen > KEPT_S]


def _event_last_seen(event: Event) -> float | None:
    times = (event.last_timestamp, event.event_time, event.metadata.creation_timestamp)
    return max((to_seconds(t) for t in times if t is not None), default=None)


async def expire_events(cluster: Cluster, clock: Callable[[], float]) -> None:
    """Until cancelled."""

    async def delete(event: Event) -> None:
        try:
            when = Preconditions(uid=event.uid, resource_version=event.metadata.resource_version)
            await cluster.delete(Event, event.name, event.namespace, when=when)
        except (NotFound, Conflict):
            pass  # gone, or it has just happened again

    while True:
        await asyncio.sleep(EVERY_S)
        try:
            await write_all_objects(delete, find_expired_events((await cluster.list(Event)).items, clock()))
        except ApiError as error:
            log.warning("events.not_expired", error=str(error))

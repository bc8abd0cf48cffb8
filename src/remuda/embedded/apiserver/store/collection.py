"""The readable view of one kind: its objects, its recent history, and those who wait for more.

A watcher has no queue of its own. It holds a position in the shared history and reads on at its own pace, so a change
costs the same memory for one watcher as for a thousand. The history is bounded, and that is the bound of a watcher: one
that falls behind it is cut off with `Expired` and has to list again.

Of events behind the newest `IN_ALL_FORMS` only bytes are kept: watchers that keep up have read them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable

from remuda.api.errors import Expired
from remuda.embedded.apiserver.store.record import ADDED, DELETED, Matcher, StoredObject, StoreEvent

IN_ALL_FORMS = 128

Waiter = asyncio.Future[None]
Wake = Callable[[Waiter], None]


def wake_store_waiter_now(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


class StoredCollection:
    def __init__(self, prefix: str, limit: int, floor: int) -> None:
        self.prefix = prefix
        self.objects: dict[str, StoredObject] = {}
        self._limit = limit
        self._floor = floor  # events up to this revision are not in the history (any more)
        self._events: list[StoreEvent] = []
        self._dropped = 0  # events that left the history: absolute position = _dropped + index
        self._waiting: dict[WatchCursor, tuple[Waiter, Wake]] = {}
        self._closed = False

    @property
    def newest(self) -> int:
        """The revision of the newest event in the history."""
        return self._events[-1].record.rv if self._events else 0

    def publish(self, event: StoreEvent) -> None:
        record = event.record
        if event.type == DELETED:
            self.objects.pop(record.key, None)
        else:
            self.objects[record.key] = record
        self.remember(event)
        if self._waiting:
            self._wake(event)

    def remember(self, event: StoreEvent) -> None:
        events = self._events
        events.append(event)
        if len(events) > IN_ALL_FORMS:
            events[-IN_ALL_FORMS - 1].keep_only_bytes()
        # Cut a quarter at a time: deleting from the front of a list on every event would cost its length each time.
        if len(events) >= self._limit + max(1, self._limit // 4):
            excess = len(events) - self._limit
            self._floor = events[excess - 1].record.rv
            del events[:excess]
            self._dropped += excess

    def close(self) -> None:
        self._closed = True
        for waiter, _ in self._waiting.values():
            wake_store_waiter_now(waiter)
        self._waiting.clear()

    def _wake(self, event: StoreEvent) -> None:
        """Wakes those who see the event. To wake all would cost every node a turn of the loop for every other node's pods.

        Whoever waits has read everything, so one that does not see the event is past it.
        """
        woken = []
        for cursor, (waiter, wake) in self._waiting.items():
            if cursor.matches is not None and event.seen_by(cursor.matches) is None:
                cursor.position += 1
            else:
                woken.append(cursor)
                wake(waiter)
        for cursor in woken:
            del self._waiting[cursor]

    def check(self, since: int) -> None:
        if since < self._floor:
            raise Expired(f"too old resource version: {since} (history starts after {self._floor}); list again")

    def follow(self, since: int, matches: Matcher | None) -> WatchCursor:
        self.check(since)
        position = self._dropped + bisect_right(self._events, since, key=lambda event: event.record.rv)
        return WatchCursor(self, position, matches)

    def snapshot(self, revision: int) -> dict[str, StoredObject]:
        """The objects as they were at that revision: today's, with every later change taken back."""
        self.check(revision)
        objects = dict(self.objects)
        for event in reversed(self._events):
            record = event.record
            if record.rv <= revision:
                break
            if event.type == ADDED:
                objects.pop(record.key, None)
            elif event.previous is None:
                raise Expired(f"the state at {revision} is no longer kept; list again")
            else:
                objects[record.key] = event.previous
        return objects

    def after(self, position: int) -> list[StoreEvent]:
        index = position - self._dropped
        if index < 0:
            raise Expired(f"too slow: history now starts after {self._floor}; list again")
        return self._events[index:]

    async def beyond(self, cursor: WatchCursor, wake: Wake) -> bool:
        """Waits until there is an event for the cursor; False when there will be none."""
        while cursor.position >= self._dropped + len(self._events):
            if self._closed:
                return False
            waiter: Waiter = asyncio.get_running_loop().create_future()
            self._waiting[cursor] = (waiter, wake)
            try:
                await waiter
            finally:
                self._waiting.pop(cursor, None)
        return True


class WatchCursor:
    """A watcher's place in the history. `read` what is there, then wait for `more`, and so on until that says False."""

    __slots__ = ("_collection", "matches", "position")

    def __init__(self, collection: StoredCollection, position: int, matches: Matcher | None) -> None:
        self._collection = collection
        self.position = position
        self.matches = matches

    def read(self) -> list[StoreEvent]:
        """Every change since the last call, in revision order, as the matcher shows it. Raises Expired when too slow.

        After an empty answer, and until anything is awaited, the watcher has seen all up to the store's revision.
        """
        events = self._collection.after(self.position)
        self.position += len(events)
        matches = self.matches
        return events if matches is None else [seen for event in events if (seen := event.seen_by(matches)) is not None]

    async def more(self, wake: Wake = wake_store_waiter_now) -> bool:
        """`wake` ends the wait when it sees fit. What is published until then is read with the rest."""
        return await self._collection.beyond(self, wake)

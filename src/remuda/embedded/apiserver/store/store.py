"""`ObjectStore`: objects by key, optimistic concurrency, watch history, durability through a `Journal`.

Model. There are two views. The *staged* view is what writes are checked against: the newest accepted version of every key,
durable or not. The *committed* view is what everyone reads and watches: durable versions only. A write

1. is checked against the staged view, gets the next revision and is queued;
2. is made durable together with everything queued meanwhile (one group at a time is under way: group commit);
3. only then is published to the committed view, delivered to watchers, in revision order, and acknowledged.

When a group cannot be committed, it and everything queued behind it (which was checked against it) fail, the staged view
falls back to the committed one, and the next write starts afresh. Revisions are never reused, not even those of failed
writes. `trouble` is what the last commit failed of: every write is a new try, so it goes by itself when the disk is well.

One kind of write does not fail then: what `may_stay_in_memory` says yes to, the renewal of a lease. It is published at once and
made durable with the next group that is committed. What that costs: a process that dies while the disk takes nothing forgets
these renewals. Why it is safe: a lease that is read again is older than it was, never newer; who counts on it counts from when
a renewal is *seen*, and the holder renews again within a quarter of its length, or is gone and then that is the truth. Nothing
else hangs on it: such a write changes no holder, makes and removes nothing, and `revision` (which lists, bookmarks and watches
of other collections are told) stays the newest *durable* one, so nobody ever learns a revision there that a restart would use
again. Without it a full disk would call every node dead, and take down work that needs no disk of ours.

The store knows nothing of Kubernetes beyond `metadata.resourceVersion`; the rules of writing are in `apiserver.write_rules`.
A key is `/<group>/<plural>/...`; what comes before the third slash names its collection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog

from remuda.api.errors import ApiError, Conflict, Expired, Unavailable
from remuda.api.meta import JsonObject, KObject
from remuda.embedded.apiserver.store.collection import StoredCollection, WatchCursor
from remuda.embedded.apiserver.store.journal import Journal
from remuda.embedded.apiserver.store.record import (
    ADDED,
    DELETED,
    MODIFIED,
    Matcher,
    StoredObject,
    StoreEvent,
)

log = structlog.get_logger(__name__)

FIRST_REVISION = 1  # of an empty store; not 0, because "0" means "any version" in the API


class _Write:
    """A staged write on its way: who waits for it, and how it ended."""

    __slots__ = ("error", "event", "waiter")

    def __init__(self, event: StoreEvent, waiter: asyncio.Future[None] | None) -> None:
        self.event = event
        self.waiter = waiter
        self.error: ApiError | None = None

    def finish(self, error: ApiError | None) -> None:
        # A copy each: one exception raised in many tasks would collect all their tracebacks.
        error = None if error is None else ApiError(error.message, reason=error.reason, code=error.code)
        self.error = error
        waiter = self.waiter
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()  # mark as seen: the caller may have gone away


class ObjectStore:
    """`history`: events kept per collection for watchers. The journal's log is cut to about the same length.
    `may_stay_in_memory`: changes that are published even though the disk refuses them, see above."""

    def __init__(
        self,
        journal: Journal,
        *,
        history: int = 4096,
        may_stay_in_memory: Callable[[StoreEvent], bool] = lambda event: False,
    ) -> None:
        self.trouble: ApiError | None = None
        self._journal = journal
        self._may_stay_in_memory = may_stay_in_memory
        self._unsaved: dict[str, StoreEvent] = {}  # published and not durable: the newest of each key
        self._history = max(1, history)
        self._staged: dict[str, _Write] = {}
        self._queue: list[_Write] = []
        self._under_way: list[_Write] = []
        self._is_scheduled = False
        self._is_closed = False
        self._idle: asyncio.Event | None = None
        self._collections: dict[str, StoredCollection] = {}
        self._listeners: list[Callable[[StoreEvent], None]] = []
        self._load()

    def _load(self) -> None:
        loaded = self._journal.load()
        self._floor = loaded.compacted  # what a collection cannot know because it was forgotten before we started
        self._compact_to = loaded.compacted
        self._log_length = len(loaded.log)
        revision = max(FIRST_REVISION, loaded.compacted)
        for row in loaded.objects:
            self._collection(row.key).objects[row.key] = StoredObject(row.key, row.rv, raw=row.body)
            revision = max(revision, row.rv)
        last: dict[str, StoredObject] = {}
        for entry in loaded.log:
            collection = self._collection(entry.key)
            current = collection.objects.get(entry.key)
            record = (
                current
                if current is not None and current.rv == entry.rv
                else StoredObject(entry.key, entry.rv, raw=entry.body, deleted=entry.type == DELETED)
            )
            collection.remember(StoreEvent(entry.type, record, last.pop(entry.key, None)))
            if entry.type != DELETED:
                last[entry.key] = record
            revision = max(revision, entry.rv)
        self._revision = revision
        self._next = revision + 1

    # Reading: committed state only.

    @property
    def revision(self) -> int:
        """The newest committed revision; a list stands for it."""
        return self._revision

    def get(self, key: str) -> StoredObject | None:
        return self._collection(key).objects.get(key)

    def scan(self, prefix: str) -> list[StoredObject]:
        """Every object under the prefix (a collection's, or longer), in key order."""
        objects = self._collection(prefix).objects
        return [objects[key] for key in sorted(objects) if key.startswith(prefix)]

    def everything(self) -> Iterator[StoredObject]:
        """Every object of every collection, in no order."""
        for collection in list(self._collections.values()):
            yield from list(collection.objects.values())

    def subscribe(self, listener: Callable[[StoreEvent], None]) -> Callable[[], None]:
        """Calls it for every committed change, in order and at once; it must be quick. Returns how to end that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def scan_at(self, prefix: str, revision: int) -> list[StoredObject]:
        """The same as of an older revision; Expired when the history does not reach back to it."""
        if revision > self._revision:
            raise Expired(f"resource version {revision} is newer than the newest here ({self._revision}); list again")
        objects = self._collection(prefix).snapshot(revision)
        return [objects[key] for key in sorted(objects) if key.startswith(prefix)]

    def follow(self, prefix: str, since: int, matches: Matcher | None = None) -> WatchCursor:
        """A place in the collection's history, just after `since`."""
        collection = self._collection(prefix)
        if since > max(self._revision, collection.newest):
            raise Expired(f"resource version {since} is newer than the newest here ({self._revision}); list again")
        return collection.follow(since, matches)

    # Writing.

    def head(self, key: str) -> StoredObject | None:
        """The newest accepted version, durable or not: the one a write has to be checked against."""
        staged = self._staged.get(key)
        if staged is None:
            return self._collection(key).objects.get(key)
        record = staged.event.record
        return None if record.deleted else record

    def heads(self, prefix: str) -> list[StoredObject]:
        """The newest accepted version of every object under the prefix, in no order. Any thread may ask: of copies, because the
        loop goes on writing."""
        objects, staged_now = self._collection(prefix).objects.copy(), self._staged.copy()
        found = {key: record for key, record in objects.items() if key.startswith(prefix)}
        for key, staged in staged_now.items():
            if key.startswith(prefix):
                if staged.event.record.deleted:
                    found.pop(key, None)
                else:
                    found[key] = staged.event.record
        return list(found.values())

    def is_settled(self, key: str) -> bool:
        return key not in self._staged

    async def settle(self, key: str) -> None:
        """Wait until the newest write of the key is durable; raises its error when it failed."""
        staged = self._staged.get(key)
        if staged is not None and staged.waiter is not None:
            await asyncio.shield(staged.waiter)

    async def remove(self, key: str, body: JsonObject, *, expect: int | None = None) -> StoredObject:
        """Delete; `body` is the last state that watchers get to see."""
        return await self.put(key, body, expect=expect, deleted=True)

    async def put(
        self,
        key: str,
        body: JsonObject,
        *,
        expect: int | None = None,
        kind: type[KObject] | None = None,
        deleted: bool = False,
    ) -> StoredObject:
        """Create, change, or delete. `expect`: the head's revision, 0 for "not there"; a mismatch raises Conflict.

        `kind`: the body must decode as it, checked before anything is staged.
        """
        if self._is_closed:
            raise Unavailable("the store is closed")
        head = self.head(key)
        found = 0 if head is None else head.rv
        if (expect is not None and found != expect) or (deleted and head is None):
            raise Conflict(f"{key}: expected revision {expect}, found {found}")
        record = StoredObject.stamped(key, self._next, body, deleted=deleted)
        if kind is not None:
            record.decode(kind)
        self._next += 1
        event = StoreEvent(DELETED if deleted else ADDED if head is None else MODIFIED, record, head)
        if self._journal.immediate:
            write = _Write(event, None)
            self._staged[key] = write
            self._queue.append(write)
            self._commit_queue()
            if write.error is not None:
                raise write.error
            return record
        loop = asyncio.get_running_loop()
        write = _Write(event, waiter := loop.create_future())
        self._staged[key] = write
        self._queue.append(write)
        if not self._under_way and not self._is_scheduled:
            # At the end of this turn of the loop: whoever else is ready to write joins the group.
            self._is_scheduled = True
            loop.call_soon(self._commit_queue)
        await asyncio.shield(waiter)
        return record

    def _commit_queue(self) -> None:
        self._is_scheduled = False
        if self._under_way or not self._queue:
            return
        self._under_way, self._queue = self._queue, []
        fresh = [write.event for write in self._under_way]
        newer = {event.record.key for event in fresh}
        # Older than all of the group, and among themselves in the order of their revisions.
        unsaved = [event for key, event in self._unsaved.items() if key not in newer]
        group = [*sorted(unsaved, key=lambda event: event.record.rv), *fresh]
        self._journal.commit(group, self._compaction(len(group), group[-1].record.rv), self._committed)

    def _compaction(self, added: int, newest: int) -> int:
        """The revision up to which the log may be forgotten with this group; what stays is at least `history` revisions."""
        self._log_length += added
        if self._log_length < self._history + max(1, self._history // 4):
            return self._compact_to
        self._log_length = self._history
        self._compact_to = max(self._compact_to, newest - self._history)
        return self._compact_to

    def _committed(self, error: ApiError | None) -> None:
        group, self._under_way = self._under_way, []
        self._note_trouble(error)
        if error is not None:
            failed, self._queue = [*group, *self._queue], []
            self._staged.clear()
            kept = {write for write in failed if self._kept_in_memory(write.event)}
            for write in failed:
                write.finish(None if write in kept else error)
        else:
            self._unsaved.clear()
            for write in group:
                record = write.event.record
                self._revision = record.rv
                self._publish(write.event)
                if self._staged.get(record.key) is write:
                    del self._staged[record.key]
            for write in group:
                write.finish(None)
            self._commit_queue()
        if self._idle is not None and not self._under_way:
            self._idle.set()

    def _publish(self, event: StoreEvent) -> None:
        self._collection(event.record.key).publish(event)
        for listener in self._listeners:
            listener(event)

    def _kept_in_memory(self, event: StoreEvent) -> bool:
        """Published although it is not durable. Only a change of what everybody sees: not one of a version that has failed."""
        key, before = event.record.key, event.previous
        is_on_committed = before is not None and self._collection(key).objects.get(key) is before
        if event.type != MODIFIED or not is_on_committed or not self._may_stay_in_memory(event):
            return False
        self._unsaved[key] = event
        self._publish(event)
        return True

    def _note_trouble(self, error: ApiError | None) -> None:
        before, self.trouble = self.trouble, error
        if error is not None and (before is None or before.reason != error.reason):
            log.error("store.refuses_writes", reason=error.reason, error=error.message)
        elif error is None and before is not None:
            log.warning("store.writes_again", after=before.reason)

    async def close(self) -> None:
        """Refuse new writes, let the accepted ones finish, end the watches, release the journal."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._queue or self._under_way:
            self._idle = asyncio.Event()
            await self._idle.wait()
        for collection in self._collections.values():
            collection.close()
        self._journal.close()

    def _collection(self, key: str) -> StoredCollection:
        end = key.index("/", key.index("/", 1) + 1) + 1
        prefix = key[:end]
        collection = self._collections.get(prefix)
        if collection is None:
            # Two threads may come here at once; both must leave with the same one.
            made = StoredCollection(prefix, self._history, self._floor)
            collection = self._collections.setdefault(prefix, made)
        return collection

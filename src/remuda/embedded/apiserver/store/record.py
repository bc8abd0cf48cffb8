"""One version of one object (`StoredObject`), and one change of it (`StoreEvent`).

A record is immutable to its readers; what it caches are only other forms of the same value: wire bytes, wire dict and the
decoded object are each made at most once, so that a hundred watchers of one event share one decode and one encode. Of versions
that few will still ask for only the bytes are kept (`keep_only_bytes`): the other forms take several times the room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from remuda.api.codec import decode_json_with_codec, encode, from_wire
from remuda.api.meta import JsonObject, KObject

K = TypeVar("K", bound=KObject)

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"

Matcher = Callable[[JsonObject], bool]


class StoredObject:
    """An object as of revision `rv`. Of a deleted object: its last state, under the revision of the deletion."""

    __slots__ = ("_body", "_decoded", "_raw", "deleted", "key", "rv")

    def __init__(
        self, key: str, rv: int, *, body: JsonObject | None = None, raw: bytes | None = None, deleted: bool = False
    ) -> None:
        self.key = key
        self.rv = rv
        self.deleted = deleted
        self._body = body
        self._raw = raw
        self._decoded: tuple[type[KObject], KObject] | None = None

    @classmethod
    def stamped(cls, key: str, rv: int, body: JsonObject, *, deleted: bool = False) -> StoredObject:
        """With the version written into the body; unchanged parts are shared."""
        meta = {**body["metadata"], "resourceVersion": str(rv)}
        return cls(key, rv, body={**body, "metadata": meta}, deleted=deleted)

    @property
    def body(self) -> JsonObject:
        """The wire form; shared by everyone, never to be mutated."""
        body = self._body
        if body is None:
            body = self._body = cast(JsonObject, decode_json_with_codec(cast(bytes, self._raw)))
        return body

    @property
    def raw(self) -> bytes:
        raw, body = self._raw, self._body
        if raw is None:
            # Without a body either, another thread has just made the bytes of it.
            raw = self._raw = self._raw or encode(body)
        return raw

    def decode(self, kind: type[K]) -> K:
        if self._decoded is None or self._decoded[0] is not kind:
            self._decoded = found = (kind, from_wire(kind, self.body))
            return found[1]
        return cast(K, self._decoded[1])

    def keep_only_bytes(self) -> None:
        """Whoever asks for another form of it later has it made anew. Threads may be reading it."""
        self._raw = self.raw
        self._body = self._decoded = None


class StoreEvent:
    """One change. `previous` is the version before it; unknown (None) for the oldest events after a restart."""

    __slots__ = ("_left", "_line", "previous", "record", "type")

    def __init__(self, type_: str, record: StoredObject, previous: StoredObject | None) -> None:
        self.type = type_
        self.record = record
        self.previous = previous
        self._left: StoreEvent | None = None
        self._line: bytes | None = None

    def seen_by(self, matches: Matcher) -> StoreEvent | None:
        """The change as a watcher with that selector sees it: an object may enter or leave its sight by changing."""
        now = matches(self.record.body)
        if self.type != MODIFIED:
            return self if now else None
        # With an unknown past both answers below are harmless: an update or delete of something the watcher may not have.
        before = self.previous is None or matches(self.previous.body)
        if now:
            return self if before else StoreEvent(ADDED, self.record, None)
        return self._leaving() if before else None

    def _leaving(self) -> StoreEvent:
        """The object left a watcher's sight: as it was known there, under the revision at which it left (as Kubernetes does)."""
        if self._left is None:
            record = self.record
            if self.previous is not None:
                record = StoredObject.stamped(record.key, record.rv, self.previous.body)
            self._left = StoreEvent(DELETED, record, None)
        return self._left

    def keep_only_bytes(self) -> None:
        """Few will still ask for this event. Its own object may be the newest version, which everybody reads: it has its turn
        with the event that follows upon it."""
        self._line = self._left = None
        if self.previous is not None:
            self.previous.keep_only_bytes()
        if self.type == DELETED:
            self.record.keep_only_bytes()

    @property
    def line(self) -> bytes:
        """The watch stream's line, made once."""
        if self._line is None:
            self._line = encode_store_event_line(self.type, self.record.raw)
        return self._line


def encode_store_event_line(type_: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (type_.encode(), raw)

"""Events: what was done to an object and why, told to the API beside the work, never in its way.

`EventBook` is pure: it takes notes and says what is to be written. The same note again is the same Event with a higher count;
its name is made from what it says, so a restarted component goes on counting where the last one stopped, and a simulated run
repeats exactly. An object has a token bucket, so one that flaps cannot fill the API, and notes that differ in nothing but their
words are put together after the tenth, as Kubernetes does.

`EventRecorder` is the shell. `sink.normal(...)` only puts a note into the book: it never waits and never fails. One task
writes, a moment later and a few at a time, so a gang of hundreds starts or recovers first and is told of afterwards; warnings
go before the rest. What the API refuses is dropped: nothing may depend on an Event.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.errors import AlreadyExists, ApiError, NotFound
from remuda.api.kubernetes.event_v1 import (
    NORMAL,
    WARNING,
    Event,
    EventSource,
    ObjectReference,
    event_v1_object_reference,
)
from remuda.api.meta import JsonObject, KObject, to_time
from remuda.kube.client.request_pacing import Rate, RequestTokenBucket
from remuda.kube.cluster import Cluster

log = structlog.get_logger(__name__)

PER_OBJECT = Rate(per_s=1 / 30, burst=25)
ALIKE, ALIKE_S = 10, 600.0  # so many that differ only in their words, within so many seconds, are put together
KEPT = 4096  # notes and objects remembered; beyond them the oldest are forgotten, and counted anew
SETTLE_S = 1.0  # from a note to its writing: longer than a recovery's writes take
AT_ONCE, PAUSE_S = 8, 0.25  # at most 32 a second, in four commits: a recovery under way does not feel them
WRITE_S = 10.0
_LONGEST_MESSAGE = 1024  # Kubernetes' limit


class EventNote(msgspec.Struct, frozen=True):
    about: ObjectReference
    source: EventSource
    type: str
    reason: str
    message: str

    @property
    def event_name(self) -> str:
        about, source = self.about, self.source
        said = "\0".join((about.uid, source.component, source.host, self.type, self.reason, self.message))
        return f"{about.name[:230]}.{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"


class EventEntry(msgspec.Struct):
    """One Event. `told` of `count` are in the API. `message` is what it says now; that of the note names it."""

    note: EventNote
    message: str
    first: float
    last: float
    count: int = 1
    told: int = 0


class _AlikeEvents(msgspec.Struct):
    last: float
    messages: set[str]


class EventBook:
    def __init__(self) -> None:
        self._entries: dict[EventNote, EventEntry] = {}
        self._untold: dict[EventNote, None] = {}  # in the order they came
        self._buckets: dict[tuple[str, EventSource], RequestTokenBucket] = {}
        self._alike: dict[EventNote, _AlikeEvents] = {}

    def add(self, note: EventNote, now: float) -> bool:
        """False when the object has had its share."""
        note, message = self._combined(note, now)
        entry = self._entries.get(note)
        if note not in self._untold and not self._may_tell(note, now):
            return False
        if entry is None:
            self._entries[note] = EventEntry(note, message, now, now)
            _forget_oldest_events(self._entries)
        else:
            entry.count, entry.last, entry.message = entry.count + 1, now, message
        self._untold[note] = None
        _forget_oldest_events(self._untold)
        return True

    def take(self, limit: int) -> list[EventEntry]:
        """The next to write, warnings first. A note that comes while its entry is being written is written again."""
        chosen = sorted(self._untold, key=lambda note: note.type != WARNING)[:limit]
        for note in chosen:
            del self._untold[note]
        return [entry for note in chosen if (entry := self._entries.get(note)) is not None]

    def _combined(self, note: EventNote, now: float) -> tuple[EventNote, str]:
        """Under which note it is counted, and what the Event says."""
        family = msgspec.structs.replace(note, message="")
        alike = self._alike.get(family)
        if alike is None or now - alike.last > ALIKE_S:
            alike = self._alike[family] = _AlikeEvents(now, set())
            _forget_oldest_events(self._alike)
        alike.last = now
        if note.message in alike.messages or len(alike.messages) < ALIKE:
            alike.messages.add(note.message)
            return note, note.message
        return family, f"(combined from similar events): {note.message}"

    def _may_tell(self, note: EventNote, now: float) -> bool:
        key = (note.about.uid, note.source)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = RequestTokenBucket(PER_OBJECT)
            _forget_oldest_events(self._buckets)
        if bucket.reserve(now) > 0:
            bucket.give_back()
            return False
        return True


def _forget_oldest_events(kept: dict[Any, Any]) -> None:
    if len(kept) > KEPT:
        del kept[next(iter(kept))]


class EventSink(Protocol):
    def normal(self, obj: KObject, reason: str, message: str) -> None: ...

    def warning(self, obj: KObject, reason: str, message: str) -> None: ...


class SilentEvents:
    """For those nobody listens to."""

    def normal(self, obj: KObject, reason: str, message: str) -> None:
        pass

    def warning(self, obj: KObject, reason: str, message: str) -> None:
        pass


SILENCE = SilentEvents()


class EventRecorder:
    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._book = EventBook()
        self._noted = asyncio.Event()

    def source(self, component: str, host: str = "") -> EventSink:
        return _EventSource(self, EventSource(component, host))

    def note(self, obj: KObject, source: EventSource, type_: str, reason: str, message: str) -> None:
        if self._book.add(
            EventNote(event_v1_object_reference(obj), source, type_, reason, message[:_LONGEST_MESSAGE]),
            self._clock(),
        ):
            self._noted.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._noted.wait()
            await asyncio.sleep(SETTLE_S)
            self._noted.clear()
            while entries := self._book.take(AT_ONCE):
                await asyncio.gather(*(self._write(entry) for entry in entries))
                await asyncio.sleep(PAUSE_S)

    async def _write(self, entry: EventEntry) -> None:
        try:
            async with asyncio.timeout(WRITE_S):
                await self._tell(entry)
        except (ApiError, TimeoutError) as error:
            log.debug("event.dropped", name=entry.note.event_name, error=str(error) or "no answer in time")
        except Exception:
            log.exception("event.failed", name=entry.note.event_name)

    async def _tell(self, entry: EventEntry) -> None:
        count, last = entry.count, entry.last
        if not entry.told:
            try:
                await self._cluster.create(Event, event_body(entry, count))
                entry.told = count
                return
            except AlreadyExists:  # told of by an earlier life of ours
                known = await self._cluster.get(Event, entry.note.event_name, _event_namespace(entry.note))
                entry.count += known.count
                count += known.count
        patch: JsonObject = {"count": count, "lastTimestamp": _event_time(last), "message": entry.message}
        try:
            await self._cluster.patch(Event, entry.note.event_name, patch, _event_namespace(entry.note))
        except NotFound:  # it was too old and is gone
            await self._cluster.create(Event, event_body(entry, count))
        entry.told = count


class _EventSource:
    def __init__(self, recorder: EventRecorder, source: EventSource) -> None:
        self._recorder = recorder
        self._source = source

    def normal(self, obj: KObject, reason: str, message: str) -> None:
        self._recorder.note(obj, self._source, NORMAL, reason, message)

    def warning(self, obj: KObject, reason: str, message: str) -> None:
        self._recorder.note(obj, self._source, WARNING, reason, message)


def event_body(entry: EventEntry, count: int) -> JsonObject:
    note = entry.note
    return {
        "metadata": {"name": note.event_name, "namespace": _event_namespace(note)},
        "involvedObject": to_wire(note.about),
        "type": note.type,
        "reason": note.reason,
        "message": entry.message,
        "source": to_wire(note.source),
        "reportingComponent": note.source.component,
        "reportingInstance": note.source.host,
        "firstTimestamp": _event_time(entry.first),
        "lastTimestamp": _event_time(entry.last),
        "count": count,
    }


def _event_namespace(note: EventNote) -> str:
    """Events of what has no namespace are kept in `default`."""
    return note.about.namespace or "default"


def _event_time(seconds: float) -> str:
    return to_time(seconds).strftime(
        "%Y-%m-%dT%H:%M:%S.%fZ"
    )  # finer than Kubernetes keeps: sorted right where they are kept

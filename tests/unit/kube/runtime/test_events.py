"""Events: what is put together and held back (pure), and what reaches the API (in virtual time)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from remuda.api.errors import ApiError, Unavailable
from remuda.api.kubernetes.core_v1 import Namespace, Node, Pod
from remuda.api.kubernetes.event_v1 import NORMAL, WARNING, Event, EventSource, event_v1_object_reference
from remuda.api.meta import ObjectMeta
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.events import (
    ALIKE,
    AT_ONCE,
    PAUSE_S,
    PER_OBJECT,
    SETTLE_S,
    EventBook,
    EventNote,
    EventRecorder,
)
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual


def a_pod(name: str = "worker-0", uid: str = "u-0") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=uid))


def a_note(message: str = "said", *, reason: str = "Reason", type_: str = NORMAL, uid: str = "u-0") -> EventNote:
    return EventNote(event_v1_object_reference(a_pod(uid=uid)), EventSource("tester"), type_, reason, message)


# --- the book ---------------------------------------------------------------------------------------------------------


def test_the_same_again_is_one_event_with_a_higher_count() -> None:
    book = EventBook()
    for second in range(3):
        assert book.add(a_note(), 100.0 + second)
    (entry,) = book.take(10)
    assert (entry.count, entry.first, entry.last) == (3, 100.0, 102.0)
    assert book.take(10) == []
    book.add(a_note(), 200.0)
    (again,) = book.take(10)
    assert again is entry
    assert (again.count, again.first, again.last) == (4, 100.0, 200.0)


def test_names_say_what_they_are_about_and_differ_by_what_is_said() -> None:
    notes = [
        a_note(),
        a_note("other"),
        a_note(reason="Other"),
        a_note(type_=WARNING),
        a_note(uid="u-1"),
        EventNote(a_note().about, EventSource("tester", "node-01"), NORMAL, "Reason", "said"),
    ]
    names = {note.event_name for note in notes}
    assert len(names) == len(notes)
    assert all(name.startswith("worker-0.") and len(name) < 253 for name in names)
    assert a_note().event_name == a_note().event_name


def test_warnings_go_first_and_the_rest_in_the_order_they_came() -> None:
    book = EventBook()
    for number in range(4):
        book.add(a_note(f"n{number}", type_=WARNING if number == 2 else NORMAL), 1.0)
    assert [e.message for e in book.take(3)] == ["n2", "n0", "n1"]
    assert [e.message for e in book.take(3)] == ["n3"]


def test_notes_that_differ_only_in_their_words_are_put_together() -> None:
    book = EventBook()
    for number in range(ALIKE + 5):
        assert book.add(a_note(f"n{number}"), 1.0)
    messages = {e.message: e.count for e in book.take(100)}
    assert len(messages) == ALIKE + 1
    assert messages[f"(combined from similar events): n{ALIKE + 4}"] == 5


def test_an_object_that_flaps_has_a_share_and_gets_more_of_it_with_time() -> None:
    book = EventBook()

    def tell(number: int, now: float, uid: str = "u-0") -> bool:
        heard = book.add(a_note(reason=f"R{number}", uid=uid), now)
        book.take(10)
        return heard

    heard = [tell(number, 1000.0) for number in range(PER_OBJECT.burst + 10)]
    assert sum(heard) == PER_OBJECT.burst
    assert tell(99, 1000.0, uid="another")
    assert not tell(100, 1000.0 + 0.9 / PER_OBJECT.per_s)
    assert tell(101, 1000.0 + 1.1 / PER_OBJECT.per_s)


def test_the_book_forgets_rather_than_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.kube.runtime.events.KEPT", 8)
    book = EventBook()
    for number in range(100):
        book.add(a_note(uid=f"u-{number}"), 1.0)
    assert [e.note.about.uid for e in book.take(100)] == [f"u-{n}" for n in range(92, 100)]


# --- the recorder -----------------------------------------------------------------------------------------------------


class Api(LocalCluster):
    def __init__(self, clock: Callable[[], float]) -> None:
        uids = itertools.count(1)
        super().__init__(ObjectStore(MemoryJournal()), clock=clock, new_uid=lambda: f"uid-{next(uids)}")
        self.refusal: ApiError | None = None
        self.at_work = self.most_at_work = 0

    async def create(self, kind: Any, body: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0.01)
        self.at_work -= 1
        return await super().create(kind, body)

    async def events(self) -> list[Event]:
        return sorted((await self.list(Event)).items, key=lambda e: e.message)


Scene = Callable[[Api, EventRecorder], Coroutine[Any, Any, None]]


def play(scene: Scene) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        api = Api(loop.clock)
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name="default")))
        recorder = EventRecorder(api, loop.clock)
        running = asyncio.create_task(recorder.run())
        await scene(api, recorder)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtual(main(), loop)


def test_an_event_is_written_a_moment_later_and_says_everything() -> None:
    async def scene(api: Api, recorder: EventRecorder) -> None:
        recorder.source("remuda-node", "node-01").warning(a_pod(), "BackOff", "Back-off restarting")
        await asyncio.sleep(SETTLE_S / 2)
        assert await api.events() == []
        await asyncio.sleep(SETTLE_S)
        (event,) = await api.events()
        assert event.namespace == "default"
        assert (event.type, event.reason, event.message, event.count) == (
            "Warning",
            "BackOff",
            "Back-off restarting",
            1,
        )
        assert event.involved_object == event_v1_object_reference(a_pod())
        assert event.source == EventSource("remuda-node", "node-01")
        assert event.first_timestamp == event.last_timestamp

    play(scene)


def test_repeats_are_patched_and_a_restarted_component_counts_on() -> None:
    async def scene(api: Api, recorder: EventRecorder) -> None:
        recorder.source("a").normal(a_pod(), "Pulled", "again")
        await asyncio.sleep(5)
        recorder.source("a").normal(a_pod(), "Pulled", "again")
        await asyncio.sleep(5)
        (event,) = await api.events()
        assert event.count == 2
        assert event.first_timestamp is not None
        assert event.last_timestamp is not None
        assert event.last_timestamp > event.first_timestamp
        reborn = EventRecorder(api, api.clock)
        running = asyncio.create_task(reborn.run())
        reborn.source("a").normal(a_pod(), "Pulled", "again")
        await asyncio.sleep(5)
        assert [e.count for e in await api.events()] == [3]
        await api.delete(Event, event.name, "default")
        reborn.source("a").normal(a_pod(), "Pulled", "again")
        await asyncio.sleep(5)
        assert [e.count for e in await api.events()] == [4]
        running.cancel()

    play(scene)


def test_hundreds_are_spread_over_time() -> None:
    async def scene(api: Api, recorder: EventRecorder) -> None:
        sink = recorder.source("a")
        for number in range(500):
            sink.normal(a_pod(f"worker-{number}", f"u-{number}"), "Scheduled", "assigned")
        await asyncio.sleep(SETTLE_S + 1.0)
        assert 0 < len(await api.events()) <= AT_ONCE * (1.0 / PAUSE_S + 1)
        await asyncio.sleep(500 / AT_ONCE * (PAUSE_S + 0.1))
        assert len(await api.events()) == 500
        assert api.most_at_work <= AT_ONCE

    play(scene)


def test_what_the_api_refuses_is_dropped_and_nothing_ends() -> None:
    async def scene(api: Api, recorder: EventRecorder) -> None:
        sink = recorder.source("a")
        api.refusal = Unavailable("away")
        sink.normal(a_pod(), "Lost", "never seen")
        await asyncio.sleep(10)
        api.refusal = None
        sink.normal(a_pod(), "Kept", "seen")
        await asyncio.sleep(10)
        assert [e.reason for e in await api.events()] == ["Kept"]

    play(scene)


def test_events_of_what_has_no_namespace_are_kept_in_default() -> None:
    async def scene(api: Api, recorder: EventRecorder) -> None:
        recorder.source("a").normal(Node(metadata=ObjectMeta(name="node-01", uid="n")), "Ready", "up")
        await asyncio.sleep(5)
        (event,) = await api.events()
        assert (event.namespace, event.involved_object.namespace) == ("default", "")

    play(scene)

"""Tables of scenarios at one controller's door.

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
    def test_quarantine(scenario: Scenario) -> None:
        scenario.play(_start)

A scenario says what the API holds (`given`), what others do while the controller runs (`happens`) and what has to come of it
(`want`). The controller stands alone on an in-process API, in virtual time, with the informers it needs and no others. `want` is
exact: writes and Events that it does not name must not come. Whatever is logged as an error fails the scenario.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from remuda.api.codec import merge_patch, to_wire
from remuda.api.meta import JsonObject, KObject, to_time
from remuda.controllers.cluster_view import ClusterView
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.controller import Reconciler, run_controller
from remuda.kube.runtime.informer import Informer
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.api_trouble import TappedCluster
from tests.builders.happenings import Happening, store_key
from tests.builders.listening import listening
from tests.builders.taps import object_name

Key = TypeVar("Key", bound=Hashable)
Seen = TypeVar("Seen")
Plan = TypeVar("Plan")

# Virtual, after the start and after everything that happens: more than any pause or back-off of a controller.
SETTLE_S = 2.0


# --- what has to come of it -------------------------------------------------------------------------------------------


class Want(msgspec.Struct, frozen=True):
    """`writes`: all of the controller's, in order, say "patch Pod/default/p/status"; one that was refused ends in " !Conflict".
    `events`: all of them, say "Warning Node/n1 DeviceUnhealthy". `objects`: parts of the wire form, see `differences`; None:
    it is not there. `looks`: at most so many. `errors`: that have to be logged, of what the scenario breaks on purpose."""

    writes: Sequence[str] | None = ()  # None: any, where only the end counts
    events: Sequence[str] = ()
    objects: Mapping[Any, Any] = {}  # by kind and name, or namespace/name
    looks: int | None = None
    errors: int = 0


def differences(found: Any, want: Any, path: str = "") -> list[str]:
    """A dict names the fields that count (None: not there), a list every item in its order, a function says whether the value
    will do, and `...` takes anything that is there."""
    if want is ...:
        return [] if found is not None else [f"{path}: nothing there"]
    if callable(want):
        return [] if want(found) else [f"{path}: {found!r} will not do"]
    if isinstance(want, Mapping) and isinstance(found, Mapping):
        return [line for k, v in want.items() for line in differences(found.get(k), v, f"{path}.{k}")]
    if isinstance(want, list) and isinstance(found, list) and len(want) == len(found):
        return [line for n, v in enumerate(want) for line in differences(found[n], v, f"{path}[{n}]")]
    return [] if found == want else [f"{path}: {found!r}, not {want!r}"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """`first`: what happens before the controller starts."""

    name: str
    given: Sequence[KObject] = ()
    first: Sequence[Happening] = ()
    happens: Sequence[Happening] = ()
    want: Want = Want()

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def play(self, start: Callable[[ControllerStage], Coroutine[Any, Any, None]]) -> None:
        """`start` makes the controller and hands it to `stage.run`. Called again for every restart."""
        loop = VirtualLoop()

        async def main() -> list[str]:
            stage = ControllerStage(loop, start)
            with listening(lambda entry: stage.errors.append(f"logged as an error: {dict(entry)}")):
                for obj in self.given:
                    await stage.put(obj)
                for happening in self.first:
                    await happening(stage)
                await stage.start()
                await asyncio.sleep(SETTLE_S)
                for happening in self.happens:
                    await happening(stage)
                    await asyncio.sleep(SETTLE_S)
                await stage.stop()
            return self._judge(stage)

        found = run_virtual(main(), loop)
        assert not found, "\n".join([self.name, *found])

    def _judge(self, stage: ControllerStage) -> list[str]:
        want = self.want
        found = [] if len(stage.errors) == want.errors else [f"{want.errors} errors, not:", *stage.errors]
        if want.writes is not None and stage.api.log != list(want.writes):
            found += ["writes:", *(f"    {w}" for w in stage.api.log), "  not:", *(f"    {w}" for w in want.writes)]
        if stage.events.log != list(want.events):
            found += ["events:", *(f"    {e}" for e in stage.events.told), "  not:", *(f"    {e}" for e in want.events)]
        for (kind, name), parts in want.objects.items():
            record = stage.store.get(store_key(kind, name))
            if parts is None or record is None:
                found += [] if parts is None and record is None else [f"{kind.__name__}/{name}: there? {bool(record)}"]
            else:
                found += differences(record.body, parts, f"{kind.__name__}/{name}")
        if want.looks is not None and stage.looks.total() > want.looks:
            found.append(f"looks: {stage.looks}, at most {want.looks}")
        left = [*stage.api.refused, *stage.api.meddled, *stage.api.unanswered]
        return [*found, *(f"never came: {what}" for what in left)]


# --- the stage --------------------------------------------------------------------------------------------------------


class EventLog:
    """An `EventSink` that writes down what it is told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.told: list[str] = []  # with the words

    def note(self, what: str, words: str = "") -> None:
        """Also what is no Event, and done to somebody beside the API."""
        self.log.append(what)
        self.told.append(f"{what}: {words}" if words else what)

    def _add(self, type_: str, obj: KObject, reason: str, message: str) -> None:
        self.note(f"{type_} {object_name(type(obj), obj.name, obj.namespace)} {reason}", message)

    def normal(self, obj: KObject, reason: str, message: str) -> None:
        self._add("Normal", obj, reason, message)

    def warning(self, obj: KObject, reason: str, message: str) -> None:
        self._add("Warning", obj, reason, message)


class ControllerStage:
    """`api` is what the controller has of the cluster; `store` what is there."""

    def __init__(self, loop: VirtualLoop, start: Callable[[ControllerStage], Coroutine[Any, Any, None]]) -> None:
        self.clock = loop.clock
        self.store = ObjectStore(MemoryJournal())
        self._uids = 0
        self.api = TappedCluster(self, LocalCluster(self.store, clock=self.clock, new_uid=self._uid))
        self.events = EventLog()
        self.looks: Counter[Hashable] = Counter()  # by key, over all lives of the controller
        self.errors: list[str] = []
        self.props: dict[str, Any] = {}  # what a table's own happenings need between them
        self._start = start
        self._tasks: list[asyncio.Task[Any]] = []

    def _uid(self) -> str:
        self._uids += 1
        return f"made-{self._uids}"

    def view(self) -> ClusterView:
        return ClusterView(self.api, jitter=lambda: 0.0, clock=self.clock)

    async def start(self) -> None:
        await self._start(self)

    async def sync(self, *informers: Informer[Any]) -> None:
        """Runs those informers, and returns when they stand for a whole list."""
        for informer in informers:
            self.spawn(informer.run())
        for informer in informers:
            await informer.synced()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def run(self, queue: WorkQueue[Key], reconciler: Reconciler[Key, Seen, Plan], workers: int = 1) -> None:
        self.spawn(run_controller("test", queue, _Counted(reconciler, self.looks), self.clock, workers))

    async def stop(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                self.errors.append(f"ended by itself: {task.exception()!r}")
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def put(self, obj: KObject) -> None:
        body = to_wire(obj)
        meta: JsonObject = {"uid": f"uid-{obj.name}", "creationTimestamp": to_time(self.clock()).isoformat()}
        body["metadata"] = {**meta, **body["metadata"]}
        body["metadata"].pop("resourceVersion", None)
        await self._put(store_key(type(obj), f"{obj.namespace}/{obj.name}" if obj.namespace else obj.name), body)

    async def change(self, kind: type[KObject], name: str, change: JsonObject) -> None:
        record = self.store.get(store_key(kind, name))
        assert record is not None, f"there is no {name}"
        await self._put(record.key, merge_patch(record.body, msgspec.to_builtins(change)))

    async def _put(self, key: str, body: JsonObject) -> None:
        """Past all rules: what a table holds need not be what our API would let in."""
        head = self.store.get(key)
        await self.store.put(key, body, expect=head.rv if head is not None else 0)


class _Counted:
    def __init__(self, inner: Reconciler[Any, Any, Any], looks: Counter[Hashable]) -> None:
        self._inner = inner
        self._looks = looks

    async def observe(self, key: Hashable) -> Any:
        self._looks[key] += 1
        return await self._inner.observe(key)

    def plan(self, observed: Any, now: float) -> Any:
        return self._inner.plan(observed, now)

    async def apply(self, plan: Any) -> float | None:
        return await self._inner.apply(plan)

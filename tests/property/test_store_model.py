"""Random operations on a cluster, and on a dict that says what they should have done. Reopening changes nothing."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remuda.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from remuda.api.kubernetes.core_v1 import Binding, Pod
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore, SqliteJournal
from remuda.kube.cluster import Preconditions

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

NAMESPACE = "team"

names = st.sampled_from(["a", "b", "c"])
values = st.sampled_from(["1", "2", None])
operations = st.one_of(
    st.tuples(st.just("create"), names, st.sampled_from([(), ("x.y/z",)])),
    st.tuples(st.just("label"), names, values),
    st.tuples(st.just("status"), names, st.sampled_from(["Running", "Failed", "Pending"])),
    st.tuples(st.just("stale"), names, values),
    st.tuples(st.just("bind"), names, st.sampled_from(["n1", "n2"])),
    st.tuples(st.just("delete"), names, st.sampled_from([None, 0, 10])),
    st.tuples(st.just("unfinalize"), names, st.none()),
    st.tuples(st.just("reopen"), st.just(""), st.none()),
)


class Model(msgspec.Struct):
    """One pod, as simply as it can be said."""

    label: str | None = None
    phase: str = "Pending"
    node: str = ""
    finalizers: tuple[str, ...] = ()
    grace: int | None = None  # set: being deleted

    @property
    def is_ended(self) -> bool:
        return self.grace == 0 and not self.finalizers


class World:
    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.uids = itertools.count()
        self.model: dict[str, Model] = {}
        self.revision = 0
        self.journal: Any = None
        self.open()

    def open(self) -> None:
        if self.directory is not None:
            self.journal = SqliteJournal(self.directory / "state.db")
        else:
            self.journal = MemoryJournal(None if self.journal is None else self.journal.rows())
        self.cluster = LocalCluster(
            ObjectStore(self.journal), clock=lambda: 1000.0, new_uid=lambda: f"u{next(self.uids)}"
        )

    async def reopen(self) -> None:
        await self.cluster.store.close()
        self.open()

    async def act(self, what: str, name: str, value: Any) -> ApiError | None:
        cluster = self.cluster
        try:
            match what:
                case "create":
                    meta = {"name": name, "namespace": NAMESPACE, "finalizers": list(value)}
                    await cluster.create(Pod, {"metadata": meta})
                case "label":
                    await cluster.patch(Pod, name, {"metadata": {"labels": {"l": value}}}, NAMESPACE)
                case "stale":
                    when = Preconditions(resource_version="1")
                    await cluster.patch(Pod, name, {"metadata": {"labels": {"l": value}}}, NAMESPACE, when=when)
                case "status":
                    await cluster.patch(Pod, name, {"status": {"phase": value}}, NAMESPACE, subresource="status")
                case "bind":
                    await cluster.bind(name, NAMESPACE, Binding(value))
                case "delete":
                    await cluster.delete(Pod, name, NAMESPACE, grace_s=value)
                case "unfinalize":
                    await cluster.patch(Pod, name, {"metadata": {"finalizers": None}}, NAMESPACE)
        except ApiError as error:
            return error
        return None

    def expect(self, what: str, name: str, value: Any) -> type[ApiError] | None:
        pod = self.model.get(name)
        if what == "create":
            if pod is not None:
                return AlreadyExists
            self.model[name] = Model(finalizers=value)
            return None
        if pod is None:
            return NotFound
        match what:
            case "stale":
                return Conflict
            case "label":
                pod.label = value
            case "status":
                pod.phase = value
            case "bind":
                if pod.node or pod.grace is not None:
                    return Conflict
                pod.node = value
            case "delete":
                runs = pod.node and pod.phase not in ("Succeeded", "Failed")
                grace = (30 if value is None else value) if runs else 0
                pod.grace = grace if pod.grace is None else min(grace, pod.grace)
            case "unfinalize":
                pod.finalizers = ()
        if pod.is_ended:
            del self.model[name]
        return None

    async def check(self) -> None:
        listing = await self.cluster.list(Pod)
        found = {
            pod.name: Model(
                pod.labels.get("l"),
                pod.status.phase,
                pod.spec.node_name,
                tuple(pod.metadata.finalizers),
                pod.metadata.deletion_grace_period_seconds,
            )
            for pod in listing.items
        }
        assert found == self.model
        assert int(listing.resource_version) >= self.revision
        self.revision = int(listing.resource_version)
        for pod in listing.items:
            assert int(pod.metadata.resource_version) <= self.revision

    def check_history(self) -> None:
        """The whole history, replayed, gives the present state; and each event is newer than the one before."""
        state: dict[str, Any] = {}
        last = 1
        for event in self.cluster.store.follow(Pod.resource.prefix, 1).read():
            record = event.record
            assert record.rv > last
            last = record.rv
            assert (event.type == "ADDED") == (record.key not in state)
            assert event.previous is None or event.previous.body == state.get(record.key)
            if event.type == "DELETED":
                del state[record.key]
            else:
                assert state.get(record.key) != record.body
                state[record.key] = record.body
        assert state == {record.key: record.body for record in self.cluster.store.scan(Pod.resource.prefix)}


async def play(steps: list[tuple[str, str, Any]], directory: Path | None) -> None:
    world = World(directory)
    for what, name, value in steps:
        if what == "reopen":
            await world.reopen()
        else:
            revision = world.cluster.store.revision
            before = await world.cluster.list(Pod)
            expected = world.expect(what, name, value)
            error = await world.act(what, name, value)
            assert (None if error is None else type(error)) is expected, f"{what} {name} {value}: {error}"
            if (await world.cluster.list(Pod)).items == before.items:
                assert world.cluster.store.revision == revision
            else:
                assert world.cluster.store.revision == revision + 1
        await world.check()
        world.check_history()
    await world.cluster.store.close()


@settings(max_examples=200, deadline=None)
@given(st.lists(operations, max_size=40))
def test_a_cluster_in_memory_does_what_the_model_says(steps: list[tuple[str, str, Any]]) -> None:
    asyncio.run(play(steps, None))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operations, max_size=25))
def test_a_cluster_on_disk_does_what_the_model_says(steps: list[tuple[str, str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(steps, Path(directory)))

"""One suite, every transport: what holds for `LocalCluster` (memory, sqlite) holds for `HttpCluster`, word for word."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
import pytest_asyncio

from remuda.api.devices import NodeDevices
from remuda.api.errors import AlreadyExists, ApiError, BadRequest, Conflict, Expired, Invalid, NotFound
from remuda.api.kubernetes.core_v1 import Binding, ConfigMap, Lease, Namespace, Node, Pod
from remuda.api.meta import JsonObject, KObject, ObjectMeta
from remuda.api.selectors import parse_api_field_selector, parse_selector
from remuda.api.training import TrainingJob
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import serve_asgi_unix
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore, SqliteJournal
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.cluster import Cluster, Preconditions, WatchEvent
from tests.builders.waiting import PATIENCE_S

K = TypeVar("K", bound=KObject)

HISTORY = 32


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Rig(msgspec.Struct):
    cluster: Cluster
    store: ObjectStore
    clock: Clock


@pytest_asyncio.fixture(params=["memory", "sqlite", "http"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    journal = SqliteJournal(tmp_path / "state.db") if request.param == "sqlite" else MemoryJournal()
    store = ObjectStore(journal, history=HISTORY)
    uids = itertools.count(1)
    clock = Clock()
    local = LocalCluster(store, clock=clock, new_uid=lambda: f"uid-{next(uids)}")
    rig = Rig(local, store, clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        if request.param == "http":
            ready = asyncio.Event()
            server = asyncio.create_task(
                serve_asgi_unix(ApiServerApp(local, version="test"), tmp_path / "api.sock", ready=ready)
            )
            stack.push_async_callback(_end, server)
            await asyncio.wait_for(ready.wait(), PATIENCE_S)
            rig.cluster = await stack.enter_async_context(HttpCluster(uds=tmp_path / "api.sock"))
        yield rig


@pytest.fixture
def cluster(rig: Rig) -> Cluster:
    return rig.cluster


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE_S)
    assert task.cancelled()


def a_pod(name: str = "p", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": {"containers": [{"name": "main", "image": "x"}], "hostNetwork": True},
    }


async def take(cluster: Cluster, kind: type[K], since: str, count: int, **scope: Any) -> list[WatchEvent[K]]:
    found: list[WatchEvent[K]] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(cluster.watch(kind, since, **scope)) as stream:  # type: ignore[type-var]
        async for event in stream:
            found.append(event)
            if len(found) == count:
                break
    return found


# Create, read, replace, patch.


async def test_a_created_object_gets_its_identity(cluster: Cluster) -> None:
    pod = await cluster.create(Pod, a_pod(uid="mine", generation=9))
    assert pod.uid == "uid-1"
    assert pod.metadata.generation == 1
    assert pod.metadata.creation_timestamp is not None
    assert pod.metadata.creation_timestamp.timestamp() == 1_700_000_000
    assert int(pod.metadata.resource_version) > 0
    assert pod.status.phase == "Pending"
    assert await cluster.get(Pod, "p", "team") == pod


async def test_creating_it_again_is_refused(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod())
    with pytest.raises(AlreadyExists, match='pods "p" already exists'):
        await cluster.create(Pod, a_pod())


@pytest.mark.parametrize("name", ["Upper", "under_score", "-lead", "trail-", "a..b", "x" * 254, ""])
async def test_a_bad_name_is_refused_by_its_field(cluster: Cluster, name: str) -> None:
    with pytest.raises(Invalid, match=r"metadata\.name"):
        await cluster.create(Pod, a_pod(name))
    assert (await cluster.list(Pod)).items == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"metadata": {"name": "p"}}, BadRequest),
        ({"metadata": {"name": "p", "namespace": "Bad_Space"}}, Invalid),
        ({"kind": "Node", "metadata": {"name": "p", "namespace": "team"}}, BadRequest),
        ({"metadata": {"name": "p", "namespace": "team", "resourceVersion": "1"}}, BadRequest),
        ({"metadata": {"name": "p", "namespace": "team", "labels": {"a": 1}}}, BadRequest),
        ({"metadata": {"name": "p", "namespace": "team"}, "spec": {"containers": "one"}}, BadRequest),
    ],
)
async def test_a_bad_body_is_refused(cluster: Cluster, body: dict[str, Any], error: type[ApiError]) -> None:
    with pytest.raises(error):
        await cluster.create(Pod, body)
    assert (await cluster.list(Pod)).items == []


async def test_an_ill_typed_field_is_named(cluster: Cluster) -> None:
    with pytest.raises(BadRequest, match=r"spec\.containers: (Expected `array`|must be an array)"):
        await cluster.create(Pod, {**a_pod(), "spec": {"containers": "one"}})


async def test_generated_names_differ(cluster: Cluster) -> None:
    pods = [await cluster.create(Pod, {"metadata": {"generateName": "w-", "namespace": "team"}}) for _ in range(20)]
    assert len({pod.name for pod in pods}) == 20
    assert all(pod.name.startswith("w-") and len(pod.name) == 7 for pod in pods)


async def test_what_is_not_there_is_not_found(cluster: Cluster) -> None:
    for attempt in (
        cluster.get(Pod, "p", "team"),
        cluster.patch(Pod, "p", {}, "team"),
        cluster.replace(Pod, a_pod()),
        cluster.delete(Pod, "p", "team"),
        cluster.bind("p", "team", Binding("n")),
    ):
        with pytest.raises(NotFound, match='pods "p" not found'):
            await attempt


async def test_unknown_fields_of_builtin_kinds_are_kept(rig: Rig) -> None:
    await rig.cluster.create(Pod, a_pod())
    await rig.cluster.patch(Pod, "p", {"metadata": {"labels": {"a": "b"}}}, "team")
    record = rig.store.get(Pod.resource.key("p", "team"))
    assert record is not None
    assert record.body["spec"]["hostNetwork"] is True


async def test_generations_count_changes_of_intent_where_kubernetes_counts_them(cluster: Cluster) -> None:
    pod = await cluster.create(Pod, a_pod())
    pod = await cluster.patch(Pod, "p", {"metadata": {"labels": {"a": "b"}}}, "team")
    assert pod.metadata.generation == 1
    pod = await cluster.patch(Pod, "p", {"spec": {"activeDeadlineSeconds": 5}}, "team")
    assert pod.metadata.generation == 2
    assert (await cluster.create(Node, {"metadata": {"name": "n"}})).metadata.generation == 0


async def test_a_stale_replace_conflicts(cluster: Cluster) -> None:
    first = await cluster.create(Node, {"metadata": {"name": "n"}})
    second = await cluster.replace(Node, msgspec.structs.replace(first, spec={"unschedulable": True}))
    assert second.spec.unschedulable
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)
    with pytest.raises(Conflict, match="the object has been modified"):
        await cluster.replace(Node, first)
    with pytest.raises(Conflict):
        await cluster.replace(Node, {"metadata": {"name": "n", "uid": "another"}})


async def test_patch_preconditions(cluster: Cluster) -> None:
    pod = await cluster.create(Pod, a_pod())
    patch = {"metadata": {"labels": {"a": "b"}}}
    with pytest.raises(Conflict):
        await cluster.patch(Pod, "p", patch, "team", when=Preconditions(uid="another"))
    stale = Preconditions(uid=pod.uid, resource_version=pod.metadata.resource_version)
    changed = await cluster.patch(Pod, "p", patch, "team", when=stale)
    with pytest.raises(Conflict):
        await cluster.patch(Pod, "p", {"status": {"phase": "Running"}}, "team", subresource="status", when=stale)
    assert await cluster.get(Pod, "p", "team") == changed


async def test_merge_patch_removes_with_null(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod(labels={"a": "1", "b": "2"}))
    pod = await cluster.patch(Pod, "p", {"metadata": {"labels": {"a": None, "c": "3"}}}, "team")
    assert pod.labels == {"b": "2", "c": "3"}
    assert pod.metadata.generation == 1


async def test_what_the_server_owns_cannot_be_written(cluster: Cluster) -> None:
    pod = await cluster.create(Pod, a_pod())
    patch = {"metadata": {"creationTimestamp": None, "generation": 7, "deletionTimestamp": "2020-01-01T00:00:00Z"}}
    assert await cluster.patch(Pod, "p", patch, "team") == pod
    with pytest.raises(BadRequest, match="names cannot be changed"):
        await cluster.patch(Pod, "p", {"metadata": {"name": "q"}}, "team")


async def test_a_write_that_changes_nothing_is_no_write(rig: Rig) -> None:
    pod = await rig.cluster.create(Pod, a_pod(labels={"a": "b"}))
    before = rig.store.revision
    assert await rig.cluster.patch(Pod, "p", {"metadata": {"labels": {"a": "b"}}}, "team") == pod
    status = {"status": {"phase": "Pending"}}
    assert await rig.cluster.patch(Pod, "p", status, "team", subresource="status") == pod
    assert await rig.cluster.patch(Pod, "p", {}, "team", subresource="status") == pod
    assert rig.store.revision == before


async def test_an_object_has_to_be_named_in_full(cluster: Cluster) -> None:
    for attempt in (
        cluster.get(Pod, "p"),
        cluster.get(Node, ""),
        cluster.patch(Pod, "p", {}),
        cluster.replace(Pod, {"metadata": {"namespace": "team"}}),
        cluster.delete(Pod, "", "team"),
        cluster.bind("p", "", Binding("n")),
    ):
        with pytest.raises(BadRequest, match="is needed to name one of"):
            await attempt


# Status.


async def test_status_and_the_rest_are_written_apart(cluster: Cluster) -> None:
    await cluster.create(TrainingJob, {**a_job(), "status": {"phase": "Running"}})
    job = await cluster.get(TrainingJob, "j", "team")
    assert job.status.phase == "Pending"
    both = {"spec": {"spares": 2}, "status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}
    job = await cluster.patch(TrainingJob, "j", both, "team", subresource="status")
    assert (job.status.phase, job.spec.spares, job.labels, job.metadata.generation) == ("Running", 0, {}, 1)
    both["status"] = {"phase": "Failed"}
    job = await cluster.patch(TrainingJob, "j", both, "team")
    assert (job.status.phase, job.spec.spares, job.labels, job.metadata.generation) == ("Running", 2, {"a": "b"}, 2)
    replaced = msgspec.structs.replace(job, spec=TrainingJob().spec, status=TrainingJob().status)
    job = await cluster.replace(TrainingJob, replaced, subresource="status")
    assert (job.status.phase, job.spec.spares) == ("Pending", 2)


async def test_only_kinds_with_a_status_have_one_to_write(cluster: Cluster) -> None:
    await cluster.create(ConfigMap, {"metadata": {"name": "n", "namespace": "team"}})
    with pytest.raises(NotFound):
        await cluster.patch(ConfigMap, "n", {"status": {}}, "team", subresource="status")


async def test_what_an_agent_sees_is_the_status_of_its_ledger_and_the_rest_is_not_in_its_reach(
    cluster: Cluster,
) -> None:
    made = await cluster.create(NodeDevices, {"metadata": {"name": "n"}, "status": {"model": "forged"}})
    assert made.observed.model == ""
    order = {"reason": "ByOperator"}
    await cluster.patch(NodeDevices, "n", {"quarantine": {"gpu-0": order}, "verdicts": [{"device": "d"}]})
    forged: JsonObject = {"quarantine": None, "orders": {"x": {"action": "reboot"}}, "verdicts": []}
    forged["status"] = {"model": "m"}
    found = await cluster.patch(NodeDevices, "n", forged, subresource="status")
    assert (found.observed.model, found.metadata.generation) == ("m", 2)
    assert (list(found.quarantine), list(found.orders), len(found.verdicts)) == (["gpu-0"], [], 1)
    found = await cluster.patch(NodeDevices, "n", {"status": {"model": "forged"}, "orders": {"x": {"action": "probe"}}})
    assert (found.observed.model, list(found.orders)) == ("m", ["x"])


async def test_a_node_registers_with_its_status(cluster: Cluster) -> None:
    node = await cluster.create(Node, {"metadata": {"name": "n"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}})
    assert node.status.capacity == {"nvidia.com/gpu": "8"}


# Admission of our own kinds.


def a_job() -> dict[str, Any]:
    worker = {
        "name": "worker",
        "replicas": 1,
        "template": {"spec": {"containers": [{"name": "m", "command": ["true"]}]}},
    }
    return {"metadata": {"name": "j", "namespace": "team"}, "spec": {"roles": [worker]}}


async def test_an_unknown_field_is_refused_with_the_right_name(cluster: Cluster) -> None:
    job = a_job()
    job["spec"]["spare"] = 1
    with pytest.raises(Invalid, match=r"UnknownField: `spec\.spare` is not a field\. Did you mean `spares`\?"):
        await cluster.create(TrainingJob, job)
    job = a_job()
    made = await cluster.create(TrainingJob, job)
    with pytest.raises(Invalid, match="UnknownField"):
        await cluster.patch(TrainingJob, "j", {"spec": {"spare": 1}}, "team")
    job["metadata"]["resourceVersion"] = made.metadata.resource_version
    job["spec"]["roles"][0]["replicas"] = -1
    with pytest.raises(Invalid, match="replicas"):
        await cluster.replace(TrainingJob, job)


async def test_an_object_that_newer_rules_refuse_can_still_be_let_go(rig: Rig) -> None:
    job = a_job()
    job["metadata"]["finalizers"] = ["a.b/c"]
    await rig.cluster.create(TrainingJob, job)
    key = TrainingJob.resource.key("j", "team")
    record = rig.store.get(key)
    assert record is not None
    await rig.store.put(key, {**record.body, "spec": {**record.body["spec"], "spares": -1}})
    await rig.cluster.delete(TrainingJob, "j", "team")
    with pytest.raises(Invalid):
        await rig.cluster.patch(TrainingJob, "j", {"spec": {"spares": -2}}, "team")
    await rig.cluster.patch(TrainingJob, "j", {"metadata": {"finalizers": None}}, "team")
    assert (await rig.cluster.list(TrainingJob)).items == []


# Deleting.


async def test_delete_checks_its_preconditions(cluster: Cluster) -> None:
    pod = await cluster.create(Pod, a_pod())
    with pytest.raises(Conflict):
        await cluster.delete(Pod, "p", "team", when=Preconditions(uid="another"))
    with pytest.raises(Conflict):
        await cluster.delete(Pod, "p", "team", when=Preconditions(resource_version="1"))
    await cluster.delete(Pod, "p", "team", when=Preconditions(pod.uid, pod.metadata.resource_version))
    with pytest.raises(NotFound):
        await cluster.get(Pod, "p", "team")


async def test_a_pod_on_a_node_is_only_marked(rig: Rig) -> None:
    cluster = rig.cluster
    await cluster.create(Pod, a_pod())
    await cluster.bind("p", "team", Binding("n"))
    await cluster.delete(Pod, "p", "team", grace_s=20)
    pod = await cluster.get(Pod, "p", "team")
    assert pod.metadata.deletion_timestamp is not None
    assert pod.metadata.deletion_timestamp.timestamp() == rig.clock.now + 20
    assert pod.metadata.deletion_grace_period_seconds == 20
    rig.clock.now += 3
    await cluster.delete(Pod, "p", "team", grace_s=25)  # may not take longer than promised
    assert await cluster.get(Pod, "p", "team") == pod
    await cluster.delete(Pod, "p", "team", grace_s=5)
    shorter = await cluster.get(Pod, "p", "team")
    assert shorter.metadata.deletion_timestamp is not None
    assert shorter.metadata.deletion_timestamp.timestamp() == rig.clock.now - 3 + 5
    status = {"status": {"phase": "Running"}}
    assert (await cluster.patch(Pod, "p", status, "team", subresource="status")).is_deleting
    await cluster.delete(Pod, "p", "team", grace_s=0)
    assert (await cluster.list(Pod)).items == []


async def binding_is_known(cluster: Cluster) -> None:
    """A kube-apiserver's delete looks at its watch cache first. If that still has the pod without a node, the pod goes at once,
    whatever its grace. A list waits for the cache."""
    await cluster.list(Pod)


async def test_the_default_grace_is_the_pods_own(cluster: Cluster) -> None:
    body = a_pod()
    body["spec"]["terminationGracePeriodSeconds"] = 7
    await cluster.create(Pod, body)
    await cluster.bind("p", "team", Binding("n"))
    await binding_is_known(cluster)
    await cluster.delete(Pod, "p", "team")
    assert (await cluster.get(Pod, "p", "team")).metadata.deletion_grace_period_seconds == 7


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_goes_at_once(cluster: Cluster, phase: str) -> None:
    await cluster.create(Pod, a_pod())
    await cluster.bind("p", "team", Binding("n"))
    await cluster.patch(Pod, "p", {"status": {"phase": phase}}, "team", subresource="status")
    await cluster.delete(Pod, "p", "team")
    assert (await cluster.list(Pod)).items == []


async def test_finalizers_hold_a_deleted_object(cluster: Cluster) -> None:
    await cluster.create(NodeDevices, {"metadata": {"name": "n", "finalizers": ["a.b/c", "a.b/d"]}})
    since = (await cluster.list(NodeDevices)).resource_version
    await cluster.delete(NodeDevices, "n")
    held = await cluster.get(NodeDevices, "n")
    assert held.is_deleting
    await cluster.delete(NodeDevices, "n")
    assert await cluster.get(NodeDevices, "n") == held
    with pytest.raises(Invalid, match="no new finalizers"):
        await cluster.patch(NodeDevices, "n", {"metadata": {"finalizers": ["a.b/c", "e.f/g"]}})
    await cluster.patch(NodeDevices, "n", {"metadata": {"finalizers": ["a.b/d"]}})
    last = await cluster.patch(NodeDevices, "n", {"metadata": {"finalizers": None}})
    assert last.is_deleting
    with pytest.raises(NotFound):
        await cluster.get(NodeDevices, "n")
    events = await take(cluster, NodeDevices, since, 3)
    assert [e.type for e in events] == ["MODIFIED", "MODIFIED", "DELETED"]


async def test_a_pod_with_finalizers_outlives_its_grace(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod(finalizers=["a.b/c"]))
    await cluster.bind("p", "team", Binding("n"))
    await binding_is_known(cluster)
    await cluster.delete(Pod, "p", "team")
    await cluster.patch(Pod, "p", {"metadata": {"finalizers": None}}, "team")
    assert (await cluster.get(Pod, "p", "team")).is_deleting  # its node has not let go yet
    await cluster.patch(Pod, "p", {"metadata": {"annotations": {"x": "y"}}}, "team")
    await cluster.delete(Pod, "p", "team", grace_s=0)
    assert (await cluster.list(Pod)).items == []


# Binding.


async def test_binding_puts_the_pod_on_the_node_with_its_annotations(cluster: Cluster) -> None:
    pod = await cluster.create(Pod, a_pod(annotations={"kept": "1"}))
    meta = ObjectMeta(uid=pod.uid, annotations={"remuda.dev/devices": "gpu-0,gpu-1"})
    await cluster.bind("p", "team", Binding("n1", meta))
    bound = await cluster.get(Pod, "p", "team")
    assert bound.spec.node_name == "n1"
    assert bound.annotations == {"kept": "1", "remuda.dev/devices": "gpu-0,gpu-1"}
    assert [(c.type, c.status) for c in bound.status.conditions] == [("PodScheduled", "True")]
    with pytest.raises(Conflict, match='already assigned to node "n1"'):
        await cluster.bind("p", "team", Binding("n2"))


async def test_binding_refuses_another_or_a_deleted_pod(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod(finalizers=["a.b/c"]))
    with pytest.raises(Conflict, match="uid"):
        await cluster.bind("p", "team", Binding("n", ObjectMeta(uid="another")))
    with pytest.raises(BadRequest):
        await cluster.bind("p", "team", Binding(""))
    await cluster.delete(Pod, "p", "team")
    with pytest.raises(Conflict, match="being deleted"):
        await cluster.bind("p", "team", Binding("n"))


# Lists and selectors.


async def test_lists_are_sorted_and_scoped(cluster: Cluster) -> None:
    for namespace, name in (("b", "x"), ("a", "y"), ("a", "x"), ("ab", "x")):
        await cluster.create(Pod, {"metadata": {"name": name, "namespace": namespace}})
    assert [(p.namespace, p.name) for p in (await cluster.list(Pod)).items] == [
        ("a", "x"),
        ("a", "y"),
        ("ab", "x"),
        ("b", "x"),
    ]
    assert [p.name for p in (await cluster.list(Pod, "a")).items] == ["x", "y"]
    assert (await cluster.list(Lease)).items == []


async def test_selectors(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod("a", labels={"gang": "g1", "role": "worker"}))
    await cluster.create(Pod, a_pod("b", labels={"gang": "g2"}))
    await cluster.create(Pod, a_pod("c"))
    await cluster.bind("b", "team", Binding("n1"))

    async def names(labels: str = "", fields: str = "") -> list[str]:
        found = await cluster.list(Pod, labels=parse_selector(labels), fields=parse_api_field_selector(fields))
        return [pod.name for pod in found.items]

    assert await names("gang=g1") == ["a"]
    assert await names("gang in (g1,g2)") == ["a", "b"]
    assert await names("gang,gang notin (g1)") == ["b"]
    assert await names("!gang") == ["c"]
    assert await names(fields="spec.nodeName=n1") == ["b"]
    assert await names(fields="spec.nodeName=,metadata.name!=c") == ["a"]
    assert await names("gang", "metadata.namespace=other") == []


# Watching.


async def test_a_watch_from_a_list_misses_nothing(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod("before"))
    since = (await cluster.list(Pod)).resource_version
    await cluster.create(Pod, a_pod("a"))
    await cluster.create(Node, {"metadata": {"name": "other-kind"}})
    watching = asyncio.create_task(take(cluster, Pod, since, 5))
    await cluster.bind("a", "team", Binding("n"))
    await cluster.patch(Pod, "a", {"status": {"phase": "Running"}}, "team", subresource="status")
    await cluster.delete(Pod, "a", "team", grace_s=0)
    await cluster.create(Pod, a_pod("a"))
    events = await watching
    assert [e.type for e in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED", "ADDED"]
    versions = [int(e.resource_version) for e in events]
    assert versions == sorted(set(versions))
    assert all(e.obj is not None and e.obj.metadata.resource_version == e.resource_version for e in events)
    assert events[2].obj is not None
    assert events[2].obj.status.phase == "Running"
    assert events[3].obj is not None
    assert events[4].obj is not None
    assert events[3].obj.uid != events[4].obj.uid
    # Any version seen on the way is a good place to start from.
    assert await take(cluster, Pod, events[1].resource_version, 3) == events[2:]


async def test_a_watch_without_a_version_starts_with_what_is_there(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod("a"))
    watching = asyncio.create_task(take(cluster, Pod, "", 2))
    await cluster.create(Pod, a_pod("b"))
    assert [(e.type, e.obj and e.obj.name) for e in await watching] == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_selective_watch_sees_objects_come_and_go(cluster: Cluster) -> None:
    since = (await cluster.list(Pod)).resource_version
    await cluster.create(Pod, a_pod("a"))
    await cluster.create(Pod, {"metadata": {"name": "a", "namespace": "other", "labels": {"x": "1"}}})
    await cluster.patch(Pod, "a", {"metadata": {"labels": {"x": "1"}}}, "team")
    await cluster.patch(Pod, "a", {"status": {"phase": "Running"}}, "team", subresource="status")
    gone = await cluster.patch(Pod, "a", {"metadata": {"labels": {"x": "2"}}}, "team")
    await cluster.patch(Pod, "a", {"metadata": {"labels": {"y": "2"}}}, "team")
    await cluster.patch(Pod, "a", {"metadata": {"labels": {"x": "1"}}}, "team")
    await cluster.delete(Pod, "a", "team")
    events = await take(cluster, Pod, since, 5, namespace="team", labels=parse_selector("x=1"))
    assert [e.type for e in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    left = events[2].obj
    assert left is not None
    assert (left.labels, left.metadata.resource_version) == ({"x": "1"}, gone.metadata.resource_version)


async def test_a_watcher_is_told_only_of_what_it_selects(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod("a"))
    await cluster.bind("a", "team", Binding("n1"))
    stream = cluster.watch(Pod, "", fields=parse_api_field_selector("spec.nodeName=n1"))
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(stream)).type == "ADDED"
        coming = asyncio.ensure_future(anext(stream))
        for number in range(3 * HISTORY):  # more than the history holds: whoever is not concerned does not fall behind
            await asyncio.sleep(0)
            await cluster.create(Pod, a_pod(f"x{number}"))
        await cluster.delete(Pod, "a", "team", grace_s=0)
        event = await coming
    assert (event.type, event.obj and event.obj.name) == ("DELETED", "a")
    await cast(AsyncGenerator[Any, None], stream).aclose()


async def test_history_that_is_gone_is_expired(cluster: Cluster) -> None:
    await cluster.create(Pod, a_pod("a"))
    since = (await cluster.list(Pod)).resource_version
    for step in range(2 * HISTORY):
        await cluster.patch(Pod, "a", {"status": {"message": str(step)}}, "team", subresource="status")
    with pytest.raises(Expired, match="list again"):
        await take(cluster, Pod, since, 1)
    fresh = (await cluster.list(Pod)).resource_version
    await cluster.create(Pod, a_pod("b"))
    assert [e.type for e in await take(cluster, Pod, fresh, 1)] == ["ADDED"]


async def test_a_version_from_the_future_is_expired(cluster: Cluster) -> None:
    with pytest.raises(Expired):
        await take(cluster, Pod, "999999", 1)
    with pytest.raises(BadRequest):
        await take(cluster, Pod, "yesterday", 1)


async def test_concurrent_writers_of_one_object_never_lose_an_update(cluster: Cluster) -> None:
    await cluster.create(Namespace, {"metadata": {"name": "counter", "annotations": {"n": "0"}}})

    async def add() -> None:
        while True:
            now = await cluster.get(Namespace, "counter")
            patch = {"metadata": {"annotations": {"n": str(int(now.annotations["n"]) + 1)}}}
            try:
                await cluster.patch(
                    Namespace, "counter", patch, when=Preconditions(resource_version=now.metadata.resource_version)
                )
                return
            except Conflict:
                continue

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(add() for _ in range(10)))
    assert (await cluster.get(Namespace, "counter")).annotations == {"n": "10"}


async def test_the_callers_objects_are_not_shared(cluster: Cluster) -> None:
    body = a_pod(labels={"a": "b"})
    await cluster.create(Pod, body)
    body["metadata"]["labels"]["a"] = "changed"
    assert (await cluster.get(Pod, "p", "team")).labels == {"a": "b"}

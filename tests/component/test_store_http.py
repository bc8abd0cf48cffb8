"""The HTTP face itself: status codes and bodies, streams, sockets, and shutting down while someone watches."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.errors import ApiError, Refusal, Unavailable
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.apiserver import asgi_server
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import serve_asgi_unix
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore, StoreEvent
from remuda.embedded.apiserver.store.journal import CommitDone
from remuda.embedded.apiserver.store.storage_trouble import storage_trouble
from remuda.kube.client.http_cluster import HttpCluster
from tests.builders.waiting import PATIENCE_S
from tests.component.wire_rig import AppOnSocket

POD = {"metadata": {"name": "p", "namespace": "team"}}
PODS = "/api/v1/namespaces/team/pods"


class Server(AppOnSocket):
    """Without admission, and with little history."""

    def __init__(self, path: Path, **app: Any) -> None:
        uids = itertools.count()
        self.path = path
        self.store = ObjectStore(MemoryJournal(), history=8)
        self.local = LocalCluster(self.store, clock=lambda: 0.0, new_uid=lambda: f"u{next(uids)}")
        self.app = ApiServerApp(self.local, version="test", **app)

    async def ask(self, method: str, path: str, body: Any = None, type_: str = "application/json") -> tuple[int, Any]:
        answer = await self.send(method, path, body, **{"Content-Type": type_})
        return answer.code, answer.body


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "api.sock") as server:
        yield server


async def test_health_and_version(server: Server) -> None:
    assert await server.ask("GET", "/healthz") == (200, "ok")
    code, version = await server.ask("GET", "/version")
    assert (code, version["major"]) == (200, "1")


async def test_objects_and_lists_are_kubernetes_json(server: Server) -> None:
    code, pod = await server.ask("POST", PODS, {**POD, "spec": {"nodeName": "n", "unknown": [1, {"a": None}]}})
    assert code == 201
    assert (pod["apiVersion"], pod["kind"], pod["metadata"]["uid"]) == ("v1", "Pod", "u0")
    assert pod["spec"]["nodeName"] == "n"
    assert "unknown" not in pod["spec"]
    assert await server.ask("GET", f"{PODS}/p") == (200, pod)
    code, listing = await server.ask("GET", "/api/v1/pods?labelSelector=")
    bare = {name: value for name, value in pod.items() if name not in ("apiVersion", "kind")}
    assert (listing["kind"], listing["items"]) == ("PodList", [bare])
    assert listing["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    code, gone = await server.ask("DELETE", f"{PODS}/p?gracePeriodSeconds=0")
    assert (code, gone["kind"], gone["metadata"]["name"]) == (200, "Pod", "p")
    assert (await server.ask("GET", f"{PODS}/p"))[0] == 404
    await server.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    code, gone = await server.ask("DELETE", "/api/v1/nodes/n")
    assert (code, gone["kind"], gone["status"], gone["details"]["name"]) == (200, "Status", "Success", "n")


@pytest.mark.parametrize(
    ("method", "path", "body", "type_", "code", "reason"),
    [
        ("GET", f"{PODS}/none", None, "", 404, "NotFound"),
        ("GET", "/api/v1/unicorns", None, "", 404, "NotFound"),
        ("GET", "/apis/remuda.dev/v1/trainingjobs", None, "", 404, "NotFound"),
        ("GET", "/api/v1/pods/p", None, "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/team/nodes", None, "", 404, "NotFound"),
        ("GET", f"{PODS}/p/exec", None, "", 404, "NotFound"),
        ("GET", f"{PODS}/p/shell", None, "", 404, "NotFound"),
        ("GET", "/", None, "", 404, "NotFound"),
        ("DELETE", "/api/v1/namespaces", None, "", 405, "MethodNotAllowed"),
        ("POST", f"{PODS}/p", POD, "application/json", 405, "MethodNotAllowed"),
        ("POST", PODS, POD, "application/xml", 415, "UnsupportedMediaType"),
        (
            "PATCH",
            "/apis/remuda.dev/v1alpha1/nodedevices/n",
            {},
            "application/strategic-merge-patch+json",
            415,
            "UnsupportedMediaType",
        ),
        ("PATCH", f"{PODS}/p", {}, "application/json", 415, "UnsupportedMediaType"),
        ("PATCH", f"{PODS}/p", b"[]", "application/merge-patch+json", 400, "BadRequest"),
        ("POST", PODS, b"{", "application/json", 400, "BadRequest"),
        ("POST", PODS, b"[]", "application/json", 400, "BadRequest"),
        ("POST", PODS, {"metadata": {"name": "p", "namespace": "other"}}, "application/json", 400, "BadRequest"),
        ("POST", PODS, {"metadata": []}, "application/json", 400, "BadRequest"),
        ("PUT", f"{PODS}/q", POD, "application/json", 400, "BadRequest"),
        ("POST", "/api/v1/pods", {"metadata": {"name": "p"}}, "application/json", 400, "BadRequest"),
        ("POST", f"{PODS}/p/binding", {"target": 3}, "application/json", 400, "BadRequest"),
        ("DELETE", f"{PODS}/p", {"gracePeriodSeconds": "soon"}, "application/json", 400, "BadRequest"),
        ("GET", "/api/v1/pods?labelSelector=a%20in", None, "", 400, "BadRequest"),
        ("GET", "/api/v1/pods?watch=perhaps", None, "", 400, "BadRequest"),
        ("GET", "/api/v1/pods?watch=1&resourceVersion=999", None, "", 410, "Expired"),
        ("POST", PODS, {"metadata": {"name": "P"}}, "application/json", 422, "Invalid"),
        ("POST", PODS, b" " * (3 * 1024 * 1024 + 1), "application/json", 413, "RequestEntityTooLarge"),
    ],
)
async def test_errors_are_status_bodies(
    server: Server, method: str, path: str, body: Any, type_: str, code: int, reason: str
) -> None:
    answered, status = await server.ask(method, path, body, type_)
    assert (answered, status["code"], status["reason"]) == (code, code, reason)
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert status["message"]


async def test_an_object_is_named_by_its_path(server: Server) -> None:
    await server.ask("POST", PODS, {"metadata": {"name": "p"}})
    code, pod = await server.ask("PUT", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
    assert (code, pod["metadata"]["namespace"], pod["metadata"]["labels"]) == (200, "team", {"a": "b"})
    code, pod = await server.ask("PUT", f"{PODS}/p/status", {"status": {"phase": "Running"}})
    assert (code, pod["status"], pod["metadata"]["labels"]) == (200, {"phase": "Running"}, {"a": "b"})
    assert await server.ask("GET", f"{PODS}/p/status") == (200, pod)


async def test_delete_takes_its_grace_from_body_or_query(server: Server) -> None:
    await server.ask("POST", PODS, POD)
    await server.ask("POST", f"{PODS}/p/binding", {"target": {"name": "n"}})
    code, pod = await server.ask("DELETE", f"{PODS}/p?gracePeriodSeconds=9")
    assert (code, pod["kind"], pod["metadata"]["deletionGracePeriodSeconds"]) == (200, "Pod", 9)
    code, pod = await server.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 4})
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 4
    assert (await server.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0}))[0] == 200
    assert (await server.ask("GET", f"{PODS}/p"))[0] == 404


async def test_a_watch_that_times_out_ends_cleanly_and_can_go_on(server: Server) -> None:
    await server.ask("POST", PODS, POD)
    query = "watch=true&timeoutSeconds=0"
    async with asyncio.timeout(PATIENCE_S), server.session.get(f"{PODS}?{query}") as response:
        assert response.status == 200
        await response.read()


async def test_bookmarks_tell_how_far_an_idle_watch_is(tmp_path: Path) -> None:
    async with Server(tmp_path / "api.sock", bookmark_every_s=0.01) as server:
        await server.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
        async with HttpCluster(uds=server.path) as cluster, asyncio.timeout(PATIENCE_S):
            async for event in cluster.watch(Pod, "1"):
                assert (event.type, event.resource_version, event.obj) == ("BOOKMARK", str(server.store.revision), None)
                break


async def test_a_watcher_that_falls_behind_is_told_in_the_stream(server: Server) -> None:
    sent: list[bytes] = []
    started = asyncio.Event()
    go_on = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) == 2:  # the headers, then the first chunk
            started.set()
            await go_on.wait()

    scope = {"type": "http", "method": "GET", "path": "/api/v1/pods", "query_string": b"watch=1&resourceVersion=1"}
    async with asyncio.timeout(PATIENCE_S):
        watching = asyncio.create_task(server.app({**scope, "headers": []}, receive, send))
        await started.wait()
        for number in range(20):
            await server.local.create(Pod, {"metadata": {"name": f"p{number}", "namespace": "team"}})
        go_on.set()
        await watching
    line = json.loads(b"".join(sent).splitlines()[-1])
    assert (line["type"], line["object"]["code"], line["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_large_objects_pass_through_a_watch(server: Server) -> None:
    async with HttpCluster(uds=server.path) as cluster, asyncio.timeout(PATIENCE_S):
        big = {"metadata": {**POD["metadata"], "annotations": {"a": "x" * 2_500_000}}}
        await cluster.create(Pod, big)
        async for event in cluster.watch(Pod, ""):
            assert event.obj is not None
            assert len(event.obj.annotations["a"]) == 2_500_000
            break


async def test_shutting_down_ends_open_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_server, "_SHUTDOWN_S", 3600)  # what requests under way get: the watches must not need it
    async with Server(tmp_path / "api.sock") as server, HttpCluster(uds=server.path) as cluster:
        streams = [cluster.watch(Pod, "") for _ in range(5)]
        await server.ask("POST", PODS, POD)
        for stream in streams:
            await anext(stream)
        async with asyncio.timeout(PATIENCE_S):
            await server.stop()
            for stream in streams:
                assert [event async for event in stream] == []
        assert not server.path.exists()
        with pytest.raises(Unavailable, match="cannot reach the API"):
            await cluster.list(Pod)


async def test_a_client_that_hangs_up_leaves_nothing_behind(server: Server) -> None:
    async with HttpCluster(uds=server.path) as cluster, asyncio.timeout(PATIENCE_S):
        await cluster.create(Pod, POD)
        stream = cluster.watch(Pod, "")
        await anext(stream)
        waiting = server.store._collection(Pod.resource.prefix)._waiting
        while not waiting:  # noqa: ASYNC110 - the server has no event to tell this by
            await asyncio.sleep(0)
        await stream.aclose()
        while waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_the_socket_is_private_and_may_have_a_long_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    path = deep / "api.sock"
    uids = itertools.count()
    local = LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: 0.0, new_uid=lambda: f"u{next(uids)}")
    ready = asyncio.Event()
    task = asyncio.create_task(serve_asgi_unix(ApiServerApp(local), path, ready=ready))
    await asyncio.wait_for(ready.wait(), PATIENCE_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with HttpCluster(uds=path) as cluster:
        await cluster.create(Pod, POD)
        assert len((await cluster.list(Pod)).items) == 1
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE_S)
    assert not path.exists()


async def test_a_dead_servers_socket_is_replaced_and_a_living_ones_is_not(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "api.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    async with Server(path) as server:
        with pytest.raises(Refusal) as caught:
            await serve_asgi_unix(server.app, path)
        assert caught.value.reason == "SocketInUse"
        assert (await server.ask("GET", "/healthz"))[0] == 200


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    for path in (tmp_path / "none.sock", tmp_path / ("x" * 120) / "none.sock"):
        async with HttpCluster(uds=path) as cluster:
            with pytest.raises(Unavailable, match="cannot reach the API"):
                await cluster.get(Pod, "p", "team")
            with pytest.raises(Unavailable):
                await anext(cluster.watch(Pod, ""))


class FullJournal(MemoryJournal):
    trouble: ApiError | None = None

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None:
        if self.trouble is not None:
            done(self.trouble)
        else:
            super().commit(group, compact_to, done)


async def test_a_full_disk_is_a_plain_status_and_not_ready_and_reads_go_on(tmp_path: Path) -> None:
    server = Server(tmp_path / "api.sock")
    journal = FullJournal()
    server.store = ObjectStore(journal, history=8)
    server.local = LocalCluster(server.store, clock=lambda: 0.0, new_uid=lambda: "u")
    server.app = ApiServerApp(server.local, version="test")
    async with server:
        assert (await server.ask("POST", PODS, POD))[0] == 201
        journal.trouble = storage_trouble(tmp_path / "store.db", OSError(errno.ENOSPC, "No space left on device"))
        code, status = await server.ask("POST", PODS, {"metadata": {"name": "q", "namespace": "team"}})
        assert (code, status["kind"], status["reason"], status["code"]) == (507, "Status", "StorageFull", 507)
        assert status["message"].endswith("Free some space on it.")
        assert (await server.ask("GET", "/livez")) == (200, "ok")
        code, told = await server.ask("GET", "/readyz")
        assert code == 500
        assert "[-]storage failed: StorageFull: The disk of" in told
        code, found = await server.ask("GET", PODS)
        assert (code, len(found["items"])) == (200, 1)
        journal.trouble = None
        assert (await server.ask("POST", PODS, {"metadata": {"name": "q", "namespace": "team"}}))[0] == 201
        assert (await server.ask("GET", "/readyz")) == (200, "ok")

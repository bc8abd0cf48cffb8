"""What a client goes through when its API server restarts and history is thrown away. On a control plane of its own."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.errors import Expired, Unavailable
from remuda.api.kubernetes.core_v1 import Lease
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.client.transport import TransportOptions
from remuda.kube.cluster import WatchEvent
from remuda.kube.runtime.backoff import Backoff
from remuda.kube.runtime.informer import Informer
from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ControlPlane
from tests.kube.planes import own_plane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with own_plane(tmp_path_factory.mktemp("outage")) as plane:
        yield plane


@pytest_asyncio.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    options = TransportOptions(page_size=2)
    access = load_kubeconfig(plane.kubeconfig)
    async with asyncio.timeout(PATIENCE_S), HttpCluster(access=access, options=options) as cluster:
        yield cluster


def a_lease(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"holderIdentity": "x"}}


def end(plane: ControlPlane) -> list[str]:
    """Kill it and return its command. Asked politely, it would wait a minute for its watchers to leave."""
    process = plane.processes.pop("kube-apiserver")
    process.kill()
    process.wait(timeout=30)
    assert isinstance(process.args, list)
    return [str(part) for part in process.args]


def begin(plane: ControlPlane, command: list[str]) -> None:
    with (plane.directory / "kube-apiserver.log").open("ab") as log:
        plane.processes["kube-apiserver"] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


async def restart(plane: ControlPlane) -> None:
    begin(plane, end(plane))
    await asyncio.to_thread(plane._wait_until_ready)


def compact(plane: ControlPlane, revision: str) -> None:
    """Throw away what came before, as the API server itself does every five minutes."""
    arguments = plane.processes["kube-apiserver"].args
    assert isinstance(arguments, list)
    etcd = next(found[1] for each in arguments if (found := re.match(r"--etcd-servers=(.*)", str(each))))
    body = json.dumps({"revision": revision, "physical": True}).encode()
    request = urllib.request.Request(f"{etcd}/v3/kv/compaction", method="POST", data=body)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        answer.read()


async def test_a_watch_survives_a_restart_of_the_server(plane: ControlPlane, cluster: HttpCluster) -> None:
    since = (await cluster.list(Lease, "default")).resource_version
    async with aclosing(cluster.watch(Lease, since, "default")) as stream:
        await cluster.create(Lease, a_lease("before"))
        before = await anext(stream)
        assert (before.type, before.obj and before.obj.name) == ("ADDED", "before")
        restarting = asyncio.create_task(restart(plane))
        reading = asyncio.create_task(_next_object(stream))  # reads on while the server is away
        await restarting
        await cluster.create(Lease, a_lease("after"))
        # The new server's watch cache begins at the revision it starts with. When anything was written in between (its
        # own start-up writes), what this watch saw last is older than that and 410 is the only honest answer.
        try:
            after = await reading
        except Expired:
            return
        assert (after.type, after.obj and after.obj.name) == ("ADDED", "after")


async def test_an_informer_misses_nothing_over_a_restart_of_the_server(
    plane: ControlPlane, cluster: HttpCluster
) -> None:
    informer = Informer(cluster, Lease, "default", backoff=Backoff(0.01, 0.1))
    seen: list[str] = []
    known = {name: asyncio.Event() for name in ("told-before", "told-after", "told-last")}

    def hear(old: Lease | None, new: Lease | None) -> None:
        name = new.name if new is not None else ""
        if name in known:
            seen.append(f"{old and old.name} -> {name}")
            known[name].set()

    informer.subscribe(hear)
    following = asyncio.create_task(informer.run())
    try:
        await cluster.create(Lease, a_lease("told-before"))
        await known["told-before"].wait()
        await restart(plane)
        for name in ("told-after", "told-last"):
            await cluster.create(Lease, a_lease(name))
            await known[name].wait()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert seen == [f"None -> {name}" for name in known]  # each once, in order: resumed or relisted


async def _next_object(stream: Any) -> WatchEvent[Lease]:
    while True:
        event: WatchEvent[Lease] = await anext(stream)
        if event.obj is not None:
            return event


async def test_a_read_during_the_outage_is_unavailable(plane: ControlPlane, cluster: HttpCluster) -> None:
    command = end(plane)
    with pytest.raises(Unavailable, match=r"Nothing answers at|cannot reach the API"):
        await cluster.list(Lease, "default")
    begin(plane, command)
    await asyncio.to_thread(plane._wait_until_ready)
    await cluster.list(Lease, "default")


async def test_history_that_was_compacted_is_expired(plane: ControlPlane, cluster: HttpCluster) -> None:
    for number in range(5):
        await cluster.create(Lease, a_lease(f"l{number}"))
    since = (await cluster.list(Lease, "default")).resource_version
    pages = cluster.pages(Lease, "default")
    async with aclosing(pages):
        first = await anext(pages)
        assert len(first.items) == 2
        # An informer that has seen this far, and then nothing until all is over.
        informer = Informer(cluster, Lease, "default", backoff=Backoff(0.01, 0.1))
        heard: list[str] = []
        informer.subscribe(lambda old, new: heard.append(f"{old and old.name} {new and new.name}"))
        await informer._list()
        del heard[:]
        await cluster.patch(Lease, "l0", {"spec": {"holderIdentity": "y"}}, "default")
        await cluster.delete(Lease, "l1", "default")
        compact(plane, (await cluster.list(Lease, "default")).resource_version)
        await restart(plane)  # or its cache would still know
        with pytest.raises(Expired):
            await anext(pages)
    with pytest.raises(Expired):
        await anext(cluster.watch(Lease, since, "default"))
    names = [lease.name for lease in (await cluster.list(Lease, "default")).items]
    assert "l0" in names
    assert "l1" not in names
    task = asyncio.create_task(informer.run())
    while informer.relists < 2:  # noqa: ASYNC110 - its counter is all there is
        await asyncio.sleep(0.01)
    assert sorted(heard) == ["l0 l0", "l1 None"]
    task.cancel()
    await asyncio.wait([task])

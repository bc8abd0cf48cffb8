"""`HttpCluster` on a real kube-apiserver: the port's promises, one by one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.errors import AlreadyExists, ApiError, BadRequest, Conflict, Invalid, NotFound, Refusal, Unavailable
from remuda.api.kubernetes.core_v1 import Binding, Lease, Namespace, Node, Pod
from remuda.api.meta import ObjectMeta
from remuda.api.selectors import parse_api_field_selector, parse_selector
from remuda.api.training import TrainingJob
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.http_errors import Unauthorized
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.client.transport import Request, TransportOptions
from remuda.kube.cluster import Preconditions, WatchEvent
from remuda.kube.runtime.informer import Informer
from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ControlPlane


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> str:
    """A namespace with the service account that pods need; no controller makes one here."""
    name = "".join(each if each.isalnum() else "-" for each in str(request.node.name).lower())[:60].strip("-")
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": name}}),
        (f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}),
    ):
        created = control_plane.request("POST", path, body)
        assert created.status == 201, created
    return name


@pytest_asyncio.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    async with HttpCluster(access=load_kubeconfig(control_plane.kubeconfig)) as cluster, asyncio.timeout(PATIENCE_S):
        yield cluster


def a_pod(namespace: str, name: str = "p", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"containers": [{"name": "main", "image": "none"}], "hostNetwork": True},
    }


def a_lease(namespace: str, name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": {"holderIdentity": "x"}}


async def take(cluster: HttpCluster, kind: Any, since: str, namespace: str, count: int) -> list[WatchEvent[Any]]:
    """The next events that are not bookmarks."""
    found: list[WatchEvent[Any]] = []
    async with aclosing(cluster.watch(kind, since, namespace)) as stream:
        async for event in stream:
            if event.obj is not None:
                found.append(event)
            if len(found) == count:
                break
    return found


# Objects.


async def test_create_get_and_create_again(cluster: HttpCluster, namespace: str) -> None:
    pod = await cluster.create(Pod, a_pod(namespace, labels={"a": "b"}))
    assert pod.uid
    assert pod.metadata.creation_timestamp is not None
    assert pod.status.phase == "Pending"
    assert await cluster.get(Pod, "p", namespace) == pod
    with pytest.raises(AlreadyExists, match='pods "p" already exists'):
        await cluster.create(Pod, a_pod(namespace))
    with pytest.raises(NotFound, match='pods "q" not found'):
        await cluster.get(Pod, "q", namespace)
    generated = await cluster.create(Lease, {"metadata": {"generateName": "w-", "namespace": namespace}})
    assert generated.name.startswith("w-")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"metadata": {"name": "p", "namespace": ""}}, BadRequest),
        ({"metadata": {"name": "Upper"}, "spec": {"containers": [{"name": "m", "image": "x"}]}}, Invalid),
        ({"kind": "Node", "metadata": {"name": "p"}}, BadRequest),
        ({"metadata": {"name": "p"}, "spec": {"containers": []}}, Invalid),
        ({"metadata": {"name": "p"}, "spec": {"containers": "one"}}, BadRequest),
        ({"metadata": {"name": "p", "namespace": "nowhere"}, "spec": {"containers": [{"name": "m"}]}}, NotFound),
    ],
)
async def test_bad_bodies(cluster: HttpCluster, namespace: str, body: dict[str, Any], error: type[ApiError]) -> None:
    placed = {**body, "metadata": {"namespace": namespace, **body["metadata"]}}
    with pytest.raises(error):
        await cluster.create(Pod, placed)


async def test_a_kind_that_is_not_served_is_not_said_to_lack_the_object(cluster: HttpCluster, namespace: str) -> None:
    with pytest.raises(NotFound) as caught:
        await cluster.get(Pod, "q", namespace)
    assert caught.value.is_about_object("pods", "", "q")
    with pytest.raises(NotFound) as caught:  # no CRD of ours is on this one
        await cluster.get(TrainingJob, "q", namespace)
    assert not caught.value.is_about_object("trainingjobs", "remuda.dev", "q")


async def test_a_stale_replace_conflicts(cluster: HttpCluster, namespace: str) -> None:
    first = await cluster.create(Lease, a_lease(namespace, "l"))
    body = a_lease(namespace, "l", resourceVersion=first.metadata.resource_version, labels={"n": "1"})
    second = await cluster.replace(Lease, body)
    assert second.labels == {"n": "1"}
    with pytest.raises(Conflict, match="the object has been modified"):
        await cluster.replace(Lease, body)
    with pytest.raises(Conflict):
        await cluster.replace(Lease, a_lease(namespace, "l", uid="another"))


async def test_patch_and_its_preconditions(cluster: HttpCluster, namespace: str) -> None:
    pod = await cluster.create(Pod, a_pod(namespace, labels={"a": "1", "b": "2"}))
    patch = {"metadata": {"labels": {"a": None, "c": "3"}}}
    for wrong in (Preconditions(uid="another"), Preconditions(resource_version="1")):
        with pytest.raises(Conflict):
            await cluster.patch(Pod, "p", patch, namespace, when=wrong)
        status = {"status": {"phase": "Running"}}
        with pytest.raises(Conflict):
            await cluster.patch(Pod, "p", status, namespace, subresource="status", when=wrong)
    right = Preconditions(pod.uid, pod.metadata.resource_version)
    changed = await cluster.patch(Pod, "p", patch, namespace, when=right)
    assert changed.labels == {"b": "2", "c": "3"}
    with pytest.raises(Conflict):
        await cluster.patch(Pod, "p", patch, namespace, when=right)
    assert await cluster.patch(Pod, "p", {}, namespace) == changed  # nothing to do is no write
    with pytest.raises(BadRequest):
        await cluster.patch(Pod, "p", {"metadata": {"name": "q"}}, namespace)


async def test_status_and_the_rest_are_written_apart(cluster: HttpCluster, namespace: str) -> None:
    await cluster.create(Pod, a_pod(namespace))
    both = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running", "message": "m"}}
    pod = await cluster.patch(Pod, "p", both, namespace)
    assert (pod.labels, pod.status.phase) == ({"a": "b"}, "Pending")
    pod = await cluster.patch(Pod, "p", {"status": both["status"]}, namespace, subresource="status")
    assert (pod.status.phase, pod.status.message) == ("Running", "m")
    with pytest.raises(NotFound):
        await cluster.patch(Lease, "l", {"status": {}}, namespace, subresource="status")


async def test_binding_and_deleting(cluster: HttpCluster, namespace: str) -> None:
    pod = await cluster.create(Pod, a_pod(namespace, annotations={"kept": "1"}))
    with pytest.raises(Conflict):
        await cluster.bind("p", namespace, Binding("n", ObjectMeta(uid="another")))
    with pytest.raises(NotFound):
        await cluster.bind("q", namespace, Binding("n"))
    await cluster.bind("p", namespace, Binding("n", ObjectMeta(uid=pod.uid, annotations={"remuda.dev/devices": "0"})))
    bound = await cluster.get(Pod, "p", namespace)
    assert (bound.spec.node_name, bound.annotations) == ("n", {"kept": "1", "remuda.dev/devices": "0"})
    with pytest.raises(Conflict):
        await cluster.bind("p", namespace, Binding("m"))
    for wrong in (Preconditions(uid="another"), Preconditions(resource_version="1")):
        with pytest.raises(Conflict):
            await cluster.delete(Pod, "p", namespace, when=wrong)
    await cluster.delete(Pod, "p", namespace, grace_s=20)
    marked = await cluster.get(Pod, "p", namespace)
    assert marked.is_deleting
    assert marked.metadata.deletion_grace_period_seconds == 20
    await cluster.delete(Pod, "p", namespace, grace_s=0, when=Preconditions(uid=pod.uid))
    with pytest.raises(NotFound):
        await cluster.delete(Pod, "p", namespace)


async def test_kinds_without_a_namespace(cluster: HttpCluster, namespace: str) -> None:
    node = await cluster.create(
        Node, {"metadata": {"name": namespace}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
    )
    assert node.status.capacity == {"nvidia.com/gpu": "8"}
    assert namespace in [each.name for each in (await cluster.list(Namespace)).items]
    await cluster.delete(Node, namespace)


# Lists and watches.


async def test_lists_come_in_pages_of_one_version(
    cluster: HttpCluster, control_plane: ControlPlane, namespace: str
) -> None:
    for number in range(7):
        await cluster.create(Lease, a_lease(namespace, f"l{number}", labels={"odd": str(number % 2)}))
    access = load_kubeconfig(control_plane.kubeconfig)
    async with HttpCluster(access=access, options=TransportOptions(page_size=3)) as paged:
        pages = []
        async for page in paged.pages(Lease, namespace):
            pages.append(page)
            await cluster.create(Lease, a_lease(namespace, f"later-{len(pages)}"))
        assert [[lease.name for lease in page.items] for page in pages] == [
            ["l0", "l1", "l2"],
            ["l3", "l4", "l5"],
            ["l6"],
        ]
        assert len({page.resource_version for page in pages}) == 1
        odd = await paged.list(Lease, namespace, labels=parse_selector("odd=1"))
        assert [lease.name for lease in odd.items] == ["l1", "l3", "l5"]
        one = await paged.list(Lease, namespace, fields=parse_api_field_selector("metadata.name=l4"))
        assert [lease.name for lease in one.items] == ["l4"]
        assert len((await paged.list(Lease, namespace)).items) == 10


async def test_a_watch_from_a_list_misses_nothing(cluster: HttpCluster, namespace: str) -> None:
    await cluster.create(Pod, a_pod(namespace, "before"))
    since = (await cluster.list(Pod, namespace)).resource_version
    await cluster.create(Pod, a_pod(namespace, "a"))
    watching = asyncio.create_task(take(cluster, Pod, since, namespace, 6))
    await cluster.bind("a", namespace, Binding("n"))
    await cluster.patch(Pod, "a", {"status": {"phase": "Running"}}, namespace, subresource="status")
    await cluster.delete(Pod, "a", namespace, grace_s=0)
    await cluster.create(Pod, a_pod(namespace, "a"))
    events = await watching
    # The third change: kube-apiserver marks a pod that is on a node even when it removes it at once.
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED", "ADDED"]
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(set(versions))
    assert await take(cluster, Pod, events[1].resource_version, namespace, 4) == events[2:]
    assert [event.type for event in await take(cluster, Pod, "", namespace, 2)] == ["ADDED", "ADDED"]


async def test_a_watch_is_taken_up_again_when_the_server_ends_it(control_plane: ControlPlane, namespace: str) -> None:
    options = TransportOptions(watch_s=1.0)
    async with (
        asyncio.timeout(PATIENCE_S),
        HttpCluster(access=load_kubeconfig(control_plane.kubeconfig), options=options, jitter=lambda: 0.0) as cluster,
    ):
        since = (await cluster.list(Lease, namespace)).resource_version
        opened = _count_streams(cluster)
        watching = asyncio.create_task(take(cluster, Lease, since, namespace, 3))
        for number in range(3):
            await opened.reach(number + 1)
            await cluster.create(Lease, a_lease(namespace, f"l{number}"))
        events = await watching
    assert [event.obj and event.obj.name for event in events] == ["l0", "l1", "l2"]
    assert opened.count >= 3


class _Opened:
    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Condition()

    async def one(self) -> None:
        async with self._changed:
            self.count += 1
            self._changed.notify_all()

    async def reach(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.count >= count)


def _count_streams(cluster: HttpCluster) -> _Opened:
    opened = _Opened()
    send = cluster.transport._send

    async def counted(request: Request, *args: Any) -> Any:
        response = await send(request, *args)
        if "watch" in request.query:
            await opened.one()
        return response

    cluster.transport._send = counted  # type: ignore[method-assign, assignment]
    return opened


async def test_an_informer_follows(cluster: HttpCluster, namespace: str) -> None:
    await cluster.create(Lease, a_lease(namespace, "a"))
    informer = Informer(cluster, Lease, namespace)
    heard: asyncio.Queue[str] = asyncio.Queue()
    informer.subscribe(lambda old, new: heard.put_nowait(f"{old and old.name} {new and new.name}"))
    task = asyncio.create_task(informer.run())
    await informer.synced()
    await cluster.create(Lease, a_lease(namespace, "b"))
    await cluster.patch(Lease, "a", {"spec": {"holderIdentity": "y"}}, namespace)
    await cluster.delete(Lease, "b", namespace)
    assert [await heard.get() for _ in range(4)] == ["None a", "None b", "a a", "b None"]
    assert [lease.name for lease in informer.items()] == ["a"]
    task.cancel()
    await asyncio.wait([task])


# Who we are.


async def test_a_wrong_token_is_refused_with_the_fix(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    async with HttpCluster(access=load_kubeconfig(path)) as cluster:
        for attempt in (cluster.list(Pod), cluster.get(Pod, "p", "default"), cluster.create(Pod, a_pod("default"))):
            with pytest.raises(Unauthorized, match="does not accept the credentials of user `admin`") as caught:
                await attempt
            assert str(path) in caught.value.fix
        with pytest.raises(Unauthorized):
            await anext(cluster.watch(Pod, "1"))


async def test_nobody_may_do_nothing(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    async with HttpCluster(access=load_kubeconfig(path)) as cluster:
        with pytest.raises(ApiError) as caught:
            await cluster.list(Pod)
    assert caught.value.code in (401, 403)
    assert caught.value.fix


async def test_an_impersonated_user_is_forbidden_and_told_so(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] |= {"as": "bob", "as-groups": ["nobodies"]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    async with HttpCluster(access=load_kubeconfig(path)) as cluster:
        with pytest.raises(ApiError, match='User "bob" cannot list resource "pods"') as caught:
            await cluster.list(Pod)
    assert (caught.value.code, caught.value.reason) == (403, "Forbidden")


async def test_a_plugins_token_and_a_rotated_file(control_plane: ControlPlane, tmp_path: Path) -> None:
    program, token = tmp_path / "login", tmp_path / "token"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": control_plane.token},
    }
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(credential)!r})\n")
    program.chmod(0o700)
    token.write_text("not-yet")
    config = json.loads(control_plane.kubeconfig.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "interactiveMode": "Never"}
    for user, is_good in (({"exec": plugin}, True), ({"tokenFile": "token"}, False)):
        config["users"][0]["user"] = user
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        async with HttpCluster(access=load_kubeconfig(tmp_path / "kubeconfig")) as cluster:
            if not is_good:
                with pytest.raises(Unauthorized):
                    await cluster.list(Namespace)
                token.write_text(control_plane.token)
            assert (await cluster.list(Namespace)).items


async def test_a_pod_finds_its_way_in(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The service account's files and variables, as a kubelet lays them out."""
    for name, text in (
        ("token", control_plane.token),
        ("ca.crt", control_plane.ca_file.read_text()),
        ("namespace", "n"),
    ):
        (tmp_path / name).write_text(text)
    host, port = control_plane.url.removeprefix("https://").split(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    access = load_kubeconfig(environ=environ, home=tmp_path, service_account=tmp_path)
    async with HttpCluster(access=access) as cluster:
        assert (await cluster.list(Namespace)).items


async def test_a_server_we_have_no_reason_to_trust(control_plane: ControlPlane, tmp_path: Path) -> None:
    config = json.loads(control_plane.kubeconfig.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority"]
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    async with HttpCluster(access=load_kubeconfig(tmp_path / "kubeconfig")) as cluster:
        with pytest.raises(Unavailable) as caught:
            await cluster.list(Pod)
    assert caught.value.reason == "CertificateNotTrusted"
    with pytest.raises(Refusal, match="ContextNotFound"):
        load_kubeconfig(control_plane.kubeconfig, context="tset")

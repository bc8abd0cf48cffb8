"""The port between the kubelet rows and the node they are run on: a real kubelet, or the embedded node.

A row says what a stock plugin and a few pods experience. It reads what any user could: the API, podresources, the container's own
output. It waits on conditions with a deadline; the two nodes differ in speed, never in outcome.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc

from remuda.link.device_plugin_port import ContainerDevices
from remuda.link.kubelet_proto import KubeletMethod
from tests.builders.waiting import PATIENCE_S, until
from tests.kubelet_rows.stock_plugin import StockPlugin

T = TypeVar("T")

Body = dict[str, Any]
IMAGE = "remuda.test/box:1"


class NodeRig(Protocol):
    """One node with an API in front of it. Pods are bound to it directly: no scheduler has a say in a row."""

    name: str
    plugin_directory: Path

    async def create_pod(self, body: Body) -> None: ...

    async def pod(self, name: str) -> Body:
        """As the API has it; {} when there is none."""
        ...

    async def delete_pod(self, name: str, grace_s: int = 0) -> None: ...

    async def node(self) -> Body: ...

    async def pod_resources(self) -> tuple[ContainerDevices, ...]: ...

    async def healthy_devices(self) -> dict[str, tuple[str, ...]]:
        """Resource -> what the node could hand out: what plugins have told it since it started."""
        ...

    async def output(self, pod: str, container: str = "main") -> str:
        """All that the container has written, over its restarts."""
        ...

    async def kill_container(self, pod: str, container: str = "main") -> None:
        """Its first process gets SIGKILL; the node sees it die by itself."""
        ...

    async def stop_kubelet(self) -> None:
        """Containers run on."""
        ...

    async def start_kubelet(self, first: Awaitable[None] | None = None) -> None:
        """Returns when plugins can register. `first`: what happens between the sockets being made and the pods being looked
        at; on a real kubelet that is most of a second."""
        ...

    async def lose_containers(self) -> None:
        """While the kubelet is stopped: every container is gone, as after a reboot."""
        ...

    async def lose_checkpoint(self) -> None:
        """While the kubelet is stopped: the device manager's file is gone, as on a node made anew."""
        ...


async def ask_pod_resources(socket: Path, method: KubeletMethod[None, T]) -> T:
    # Not the process's shared connections: one to a kubelet that was restarted would wait before it is tried again.
    async with grpc.aio.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(
            method.path,
            request_serializer=method.request.encode,
            response_deserializer=method.response.decode,
        )
        answer: T = await call(None, timeout=PATIENCE_S, wait_for_ready=True)
    return answer


def pod_body(
    name: str, resource: str = "", count: int = 1, *, restart: str = "Always", grace_s: int = 0, **spec: Any
) -> Body:
    """A pod that shows its environment and then waits."""
    container: Body = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "env; exec sleep 3600"],
    }
    if resource:
        container["resources"] = {"limits": {resource: str(count)}}
    body: Body = {
        "containers": [container],
        "restartPolicy": restart,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_s,
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


class Once:
    """Containers that end with a code in their first run, and stay in their next: a volume tells them apart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ending(self, body: Body, code: int, rules: list[Body]) -> Body:
        """`body`'s first container. The directory is the machine's own, on a kubelet by a volume."""
        name = body["metadata"]["name"]
        place = self._directory / name
        place.mkdir()
        mark = place / "ran"
        words = f"[ -e {mark} ] && echo again && exec sleep 3600; echo first > {mark}; sleep 1; exit {code}"
        body["spec"]["volumes"] = [{"name": "kept", "hostPath": {"path": str(place)}}]
        return {
            **body["spec"]["containers"][0],
            "command": ["sh", "-c", words],
            "restartPolicy": "Never",
            "restartPolicyRules": rules,
            "volumeMounts": [{"name": "kept", "mountPath": str(place)}],
        }


# --- reading what the API says ------------------------------------------------------------------------------------------


def counts(node: Body, resource: str) -> tuple[str | None, str | None]:
    """(capacity, allocatable) as written; None where the key is absent."""
    status = node.get("status", {})
    return status.get("capacity", {}).get(resource), status.get("allocatable", {}).get(resource)


def container_status(pod: Body, name: str = "main") -> Body:
    found: list[Body] = pod.get("status", {}).get("containerStatuses", [])
    return next((c for c in found if c["name"] == name), {})


def is_running(pod: Body, name: str = "main") -> bool:
    return "running" in container_status(pod, name).get("state", {})


def health(pod: Body, resource: str, name: str = "main") -> dict[str, str]:
    """Device id -> health, as the pod's status says."""
    rows = container_status(pod, name).get("allocatedResourcesStatus", [])
    return {r["resourceID"]: r["health"] for row in rows if row["name"] == resource for r in row.get("resources", [])}


def restarts(pod: Body, name: str = "main") -> int:
    return int(container_status(pod, name).get("restartCount", 0))


def devices_of(rows: tuple[ContainerDevices, ...], pod: str, container: str = "main") -> tuple[str, ...]:
    return tuple(sorted(d for row in rows if row.pod == pod and row.container == container for d in row.device_ids))


def phase(pod: Body) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def init_restarts(pod: Body, name: str) -> int:
    found = pod["status"].get("initContainerStatuses", [])
    return next(int(c["restartCount"]) for c in found if c["name"] == name)


def condition(pod: Body, kind: str) -> str:
    found = pod.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in found if c["type"] == kind), "")


# --- the words that rows are written in --------------------------------------------------------------------------------

FOUR = ("d0", "d1", "d2", "d3")


class StartPlugin(Protocol):
    def __call__(self, resource: str, devices: tuple[str, ...] = FOUR, **options: Any) -> Awaitable[StockPlugin]:
        """Serving and registered; stopped when the test ends."""
        ...


@asynccontextmanager
async def stock_plugins(directory: Path) -> AsyncIterator[StartPlugin]:
    """Registers those it is asked for, and stops them in the end."""
    started: list[StockPlugin] = []

    async def start(resource: str, devices: tuple[str, ...] = FOUR, **options: Any) -> StockPlugin:
        stock = StockPlugin(directory, resource, devices, **options)
        started.append(stock)
        await stock.serve()
        await stock.register()
        return stock

    yield start
    for stock in started:
        await stock.stop()


async def serving(rig: NodeRig, plugin: StartPlugin, resource: str, **options: Any) -> StockPlugin:
    """A plugin with four devices that the node counts."""
    stock = await plugin(resource, **options)
    await see_counts(rig, resource, 4, 4)
    await see_healthy(rig, resource, 4)
    return stock


async def see_counts(rig: NodeRig, resource: str, capacity: int | None, allocatable: int | None) -> None:
    wanted = tuple(None if n is None else str(n) for n in (capacity, allocatable))
    seen: tuple[str | None, str | None] = (None, None)

    async def there() -> bool:
        nonlocal seen
        seen = counts(await rig.node(), resource)
        return seen == wanted

    try:
        await until(f"{resource} to read {wanted}", there)
    except AssertionError as error:
        raise AssertionError(f"{error}; it reads {seen}") from None


async def see_healthy(rig: NodeRig, resource: str, count: int) -> None:
    """The counts of a node may still be those from before its restart; this is what it hands out."""

    async def there() -> bool:
        return len(set((await rig.healthy_devices()).get(resource, ()))) == count

    await until(f"{count} devices of {resource} to hand out", there)


async def see_pod(rig: NodeRig, name: str, what: str, holds: Callable[[Body], bool]) -> Body:
    last: Body = {}

    async def there() -> bool:
        nonlocal last
        last = await rig.pod(name)
        return holds(last)

    try:
        await until(f"pod {name}: {what}", there)
    except AssertionError as error:
        raise AssertionError(f"{error}; its status is {last.get('status')}") from None
    return last


async def run_pod(rig: NodeRig, body: Body) -> Body:
    await rig.create_pod(body)
    return await see_pod(rig, body["metadata"]["name"], "running", is_running)


async def reject_pod(rig: NodeRig, body: Body) -> Body:
    """The status of a pod that the node refuses to admit."""
    await rig.create_pod(body)
    pod = await see_pod(rig, body["metadata"]["name"], "ended", lambda p: phase(p) in ("Failed", "Running"))
    assert phase(pod) == "Failed", pod["status"]
    status: Body = pod["status"]
    return status


async def held(rig: NodeRig, pod: str, container: str = "main") -> tuple[str, ...]:
    return devices_of(await rig.pod_resources(), pod, container)


async def see_held(rig: NodeRig, pod: str, devices: tuple[str, ...]) -> None:
    async def there() -> bool:
        return await held(rig, pod) == devices

    await until(f"podresources to say that {pod} has {devices}", there)

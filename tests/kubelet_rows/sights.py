"""The words that rows are written in: a stock plugin that serves, pods that run or are refused, and what is seen of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.kubelet_rows.rig import Body, NodeRig, counts, devices_of, is_running, phase, until
from tests.kubelet_rows.stock_plugin import StockPlugin

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

"""What others do while a controller runs: the steps of a `Scenario` (`controller_tables`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from remuda.api.meta import JsonObject, KObject, to_time
from remuda.sim.virtual_time_loop import EPOCH

if TYPE_CHECKING:
    from tests.builders.controller_tables import ControllerStage

Happening = Callable[["ControllerStage"], Awaitable[None]]


def after(seconds: float) -> Any:
    """So long after the story's beginning, as the API says it."""
    return to_time(EPOCH + seconds)


def put(*objects: KObject) -> Happening:
    """Somebody makes these, or replaces what is there: status and all."""

    async def happen(stage: ControllerStage) -> None:
        for obj in objects:
            await stage.put(obj)

    return happen


def patch(kind: type[KObject], name: str, change: JsonObject) -> Happening:
    """Somebody changes any part of an object."""

    async def happen(stage: ControllerStage) -> None:
        await stage.change(kind, name, change)

    return happen


def delete(kind: type[KObject], name: str) -> Happening:
    """It is gone at once."""

    async def happen(stage: ControllerStage) -> None:
        record = stage.store.get(store_key(kind, name))
        assert record is not None, f"there is no {name}"
        await stage.store.remove(record.key, record.body, expect=record.rv)

    return happen


def wait(seconds: float) -> Happening:
    async def happen(stage: ControllerStage) -> None:
        await asyncio.sleep(seconds)

    return happen


def do(act: Callable[[ControllerStage], object]) -> Happening:
    """Something that is no write, such as a heartbeat."""

    async def happen(stage: ControllerStage) -> None:
        act(stage)

    return happen


async def restart(stage: ControllerStage) -> None:
    """The controller dies, and another one starts on the same API."""
    await stage.stop()
    await stage.start()


def store_key(kind: type[KObject], name: str) -> str:
    """`name`, or namespace/name."""
    namespace, _, last = name.rpartition("/")
    return kind.resource.key(last, namespace)

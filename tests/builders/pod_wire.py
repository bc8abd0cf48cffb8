"""Pods as an API server sends them: pages of a list and lines of a watch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.builders.http_server import Reply, a_status

GONE = Reply(410, a_status(410, "Expired", "The provided continue parameter is too old"))


def a_pod(name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}, **more}


def a_page(*names: str, version: int = 50, more: str = "") -> Reply:
    meta = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return Reply(body={"kind": "PodList", "metadata": meta, "items": [a_pod(name) for name in names]})


def a_line(type_: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def told(*lines: bytes, is_cut: bool = False, hold: asyncio.Event | None = None) -> Reply:
    async def stream() -> AsyncIterator[bytes]:
        for line in lines:
            yield line
        if hold is not None:
            await hold.wait()

    return Reply(stream=stream(), is_cut=is_cut)


def added(name: str, version: int) -> bytes:
    return a_line("ADDED", a_pod(name, version))

"""Servers on a unix socket, and a plain HTTP client of them: any app, or one with admission (`Wire`)."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from pathlib import Path
from typing import Any, Self

import aiohttp

from remuda.api.kubernetes.core_v1 import Namespace
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import serve_asgi_unix
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from tests.builders.waiting import PATIENCE_S

TEAM = "/api/v1/namespaces/team"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


class Answer:
    def __init__(self, code: int, body: Any, warnings: list[str]) -> None:
        self.code = code
        self.body = body
        self.warnings = warnings

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def fields(self) -> list[str]:
        return [cause.get("field", "") for cause in self.body["details"].get("causes", ())]


class AppOnSocket:
    """`app`, served at `path`; `session` is the client."""

    app: ApiServerApp
    path: Path

    async def __aenter__(self) -> Self:
        ready = asyncio.Event()
        self.task = asyncio.create_task(serve_asgi_unix(self.app, self.path, ready=ready))
        await asyncio.wait_for(ready.wait(), PATIENCE_S)
        self.session = aiohttp.ClientSession("http://remuda", connector=aiohttp.UnixConnector(str(self.path)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.stop()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task], timeout=PATIENCE_S)
        assert self.task.cancelled()

    async def send(self, method: str, path: str, body: Any, **headers: str) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self.session.request(method, path, data=data and io.BytesIO(data), headers=headers) as response:
            text = await response.text()
            found = json.loads(text) if text.startswith("{") else text
            return Answer(response.status, found, response.headers.getall("Warning", []))


class Wire(AppOnSocket):
    def __init__(self, path: Path, **app: Any) -> None:
        self._uids = itertools.count()
        self.path = path
        self.now = 1_700_000_000.0
        self.store = ObjectStore(MemoryJournal(), history=64)
        self.local = LocalCluster(
            self.store, clock=lambda: self.now, new_uid=lambda: f"u{next(self._uids)}", admission=AdmissionChain
        )
        self.app = ApiServerApp(self.local, version="test", **app)

    async def __aenter__(self) -> Self:
        for name in ("default", "team"):
            await self.local.create(Namespace, {"metadata": {"name": name}})
        return await super().__aenter__()

    async def ask(
        self, method: str, path: str, body: Any = None, type_: str = "application/json", **headers: str
    ) -> Answer:
        return await self.send(method, path, body, **{"Content-Type": type_, "User-Agent": "tester/1.0", **headers})

    async def get(self, path: str) -> Any:
        answer = await self.ask("GET", path)
        assert answer.code == 200, answer.body
        return answer.body

    async def create(self, path: str, body: JsonObject) -> Any:
        answer = await self.ask("POST", path, body)
        assert answer.code == 201, answer.body
        return answer.body


def a_pod(name: str, **labels: str) -> JsonObject:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}

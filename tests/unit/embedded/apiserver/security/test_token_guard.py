from __future__ import annotations

import itertools
from typing import Any

import pytest

from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.security.token_guard import TokenGuard
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore

RIGHT = b"Bearer secret"


async def ask(path: str, *authorization: bytes, method: str = "GET") -> int:
    uids = itertools.count()
    cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: 0.0, new_uid=lambda: f"u{next(uids)}")
    guarded = TokenGuard(ApiServerApp(cluster), "secret")
    codes: list[int] = []

    async def receive() -> Any:
        raise AssertionError("nothing is read of a request without a right token")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            codes.append(message["status"])

    headers = [(b"authorization", value) for value in authorization]
    await guarded({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    return codes[0]


@pytest.mark.parametrize("path", ["/api/v1/pods", "/version", "/", "/nowhere", "/openapi/v3", "/healthz/x"])
async def test_without_the_token_there_is_only_401(path: str) -> None:
    for wrong in ([], [b"Bearer wrong"], [b"Basic secret"], [b"secret"], [b"Bearer "], [b""], [RIGHT, RIGHT]):
        assert await ask(path, *wrong) == 401
    assert await ask(path, method="POST") == 401


async def test_health_is_for_everyone_but_not_for_wrong_tokens() -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        assert await ask(path) == 200
        assert await ask(path, RIGHT) == 200
        assert await ask(path, b"Bearer wrong") == 401
        assert await ask(path, method="POST") == 401


async def test_with_the_token_everything_is_open() -> None:
    assert await ask("/api/v1/pods", RIGHT) == 200
    assert await ask("/api/v1/pods", b"bearer secret") == 200
    assert await ask("/nowhere", RIGHT) == 404

"""The API of a cluster, as a kubeconfig names it: address, trust, token, and an HTTP session."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml


class Target:
    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.url: str = cluster["server"]
        self.token: str = config["users"][0]["user"]["token"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tls = ssl.create_default_context(cadata=authority)
        where = urlsplit(self.url)
        self.host, self.port = str(where.hostname), int(where.port or 443)
        self.session: aiohttp.ClientSession
        self._tasks: set[asyncio.Task[Any]] = set()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Until the session ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@asynccontextmanager
async def open_target(kubeconfig: Path) -> AsyncIterator[Target]:
    target = Target(kubeconfig)
    headers = {"Authorization": f"Bearer {target.token}"}
    connector = aiohttp.TCPConnector(ssl=target.tls, limit=0)
    async with aiohttp.ClientSession(target.url, headers=headers, connector=connector) as session:
        target.session = session
        yield target
        for task in list(target._tasks):
            task.cancel()

"""What the first tenant notices while a second one does harm: its gang, its writes, the leases, the server's memory.

stall       the longest answer of /livez on the unix socket; one is asked every 20 ms, so a stall of the loop shows whole
heartbeat   renewing a lease over the unix socket, as the agents of a split cluster do
write       changing 1 KB over TLS
leases      the oldest renewal of a node's lease that was seen, by the machine's clock
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.hostile_targets import Target
from bench.marks import Broken
from remuda.api.codec import encode
from remuda.api.meta import to_seconds
from remuda.api.training import TrainingJob

LIVEZ_EVERY_S, WRITE_EVERY_S, LOOK_EVERY_S = 0.02, 0.05, 0.5
GIVEN_UP_S = 60.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
JOBS = "/apis/remuda.dev/v1alpha1/namespaces/default/trainingjobs"
MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Noticed(msgspec.Struct):
    livez: list[float] = []
    heartbeats: list[float] = []
    writes: list[float] = []
    failures: int = 0
    oldest_lease_s: float = 0.0
    peak_mib: float = 0.0


class Gang(msgspec.Struct, frozen=True):
    """What must stay as it is."""

    attempt: int
    uids: tuple[str, ...]
    step: int


class FirstTenant:
    def __init__(self, target: Target, local: aiohttp.ClientSession, pid: int) -> None:
        self._target = target
        self._local = local
        self._pid = pid

    async def prepare(self) -> None:
        await self.create(f"{LEASES}", {"metadata": {"name": "bench"}, "spec": {"holderIdentity": "bench"}})
        await self.create(MAPS, {"metadata": {"name": "bench"}, "data": {"a": "x" * 1000}})

    async def start_gang(self, job: TrainingJob, timeout_s: float) -> None:
        await self.create(JOBS, json.loads(encode(job)))
        ends = time.monotonic() + timeout_s
        while not (await self.gang()).step:
            if time.monotonic() > ends:
                raise Broken(f"the gang did not train within {timeout_s:g} s")
            await asyncio.sleep(0.5)

    async def gang(self) -> Gang:
        status = (await self._get(f"{JOBS}/bench")).get("status") or {}
        members = sorted(status.get("members") or (), key=lambda member: member.get("rank", 0))
        step = (status.get("progress") or {}).get("step") or 0
        return Gang(status.get("attempt") or 0, tuple(str(member.get("uid")) for member in members), step)

    def rss_mib(self) -> float:
        try:
            pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        except OSError:
            raise Broken("the cluster has died") from None
        return pages * 4096 / 2**20

    async def notice(self, until: Callable[[], bool]) -> Noticed:
        found = Noticed()
        count = 0

        async def livez() -> None:
            async with self._local.get("/livez") as answer:
                await answer.read()

        async def heartbeat() -> None:
            nonlocal count
            count += 1
            await self._patch(self._local, f"{LEASES}/bench", {"spec": {"leaseTransitions": count}})

        async def write() -> None:
            await self._patch(self._target.session, f"{MAPS}/bench", {"data": {"a": f"{time.time_ns()}" + "x" * 980}})

        async def look() -> None:
            found.peak_mib = max(found.peak_mib, self.rss_mib())
            leases = (await self._get(LEASES))["items"]
            ages = [time.time() - to_seconds(_time(lease)) for lease in leases if lease["spec"].get("renewTime")]
            found.oldest_lease_s = max([found.oldest_lease_s, *ages])

        await asyncio.gather(
            self._every(LIVEZ_EVERY_S, livez, found.livez, found, until),
            self._every(WRITE_EVERY_S, heartbeat, found.heartbeats, found, until),
            self._every(WRITE_EVERY_S, write, found.writes, found, until),
            self._every(LOOK_EVERY_S, look, [], found, until),
        )
        return found

    async def _every(
        self,
        seconds: float,
        act: Callable[[], Awaitable[None]],
        times: list[float],
        found: Noticed,
        until: Callable[[], bool],
    ) -> None:
        while not until():
            began = time.monotonic()
            try:
                async with asyncio.timeout(GIVEN_UP_S):
                    await act()
            except (aiohttp.ClientError, OSError, TimeoutError):
                found.failures += 1
            times.append(time.monotonic() - began)
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))

    async def _get(self, path: str) -> Any:
        async with self._local.get(path) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def create(self, path: str, body: Any) -> None:
        async with self._local.post(path, json=body) as answer:
            if answer.status not in (201, 409):
                raise Broken(f"{path}: {await answer.text()}")

    async def _patch(self, session: aiohttp.ClientSession, path: str, body: Any) -> None:
        async with session.patch(path, data=json.dumps(body), headers=MERGE) as answer:
            await answer.read()
            answer.raise_for_status()


def _time(lease: Any) -> datetime:
    return msgspec.convert(lease["spec"]["renewTime"], type=datetime)

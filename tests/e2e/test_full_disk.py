"""A whole cluster with a gang that trains, on a disk that fills up and is freed again: nobody notices but who writes."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Node
from remuda.api.meta import ObjectMeta
from remuda.kube.client.rest_paths import reachable_http_socket_path
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.rig import RANKS, Rig, kept, sweep
from tests.e2e.small_disk import SmallDisk, small_disk

LEASE_S = 5.0
STOP_AT, LATER, LAST = 14, 120, 160


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """It is the state directory: database, logs of the cluster and of the pods. Checkpoints are elsewhere."""
    state = tmp_path / "state"
    with small_disk(state, "24m") as disk:
        (tmp_path / "checkpoints").mkdir()
        (state / "checkpoints").symlink_to(tmp_path / "checkpoints")
        try:
            yield disk
        finally:
            sweep(state)


@pytest.mark.parametrize("parts", [(), ("--split", "--groups=2")], ids=["whole", "split"])
async def test_a_gang_trains_through_a_full_disk(disk: SmallDisk, tmp_path: Path, parts: tuple[str, ...]) -> None:
    up = Up(disk.path, LEASE_S)
    up.start(*parts)
    try:
        async with up.rig() as rig:
            rig.limit_file = tmp_path / "limit"
            rig.let_run_to(STOP_AT)
            await rig.submit(rig.job(spares=1))
            before = await rig.trained_to(STOP_AT, spares=1)
            launchers, children = rig.launchers(), rig.started(1)

            disk.fill()
            await until("the disk to be found full", lambda: asyncio.to_thread(is_refused, disk.path, "full"))
            assert disk.is_full()
            with pytest.raises(ApiError) as caught:
                await rig.api.create(Namespace, Namespace(metadata=ObjectMeta(name="late")))
            assert (caught.value.code, caught.value.reason) == (507, "StorageFull")
            assert "Free some space" in caught.value.message
            assert ask(disk.path, "/livez") == (200, "ok")
            told = status(up)
            assert told["running"]
            assert told["storage"].startswith("StorageFull: ")
            assert len(await rig.pods()) == RANKS + 1, "reading goes on"

            # Training goes on, output and all, for longer than any lease; and so does the cluster's word for its nodes.
            rig.let_run_to(LATER)
            await until("steps on a full disk", lambda: has_saved(rig, LATER - 4))
            await until("leases to be renewed for longer than they last", lambda: are_renewed(rig, 3 * LEASE_S))
            assert disk.is_full()

            disk.free()
            await until("the cluster to be ready again", lambda: asyncio.to_thread(is_refused, disk.path, ""))
            await rig.api.create(Namespace, Namespace(metadata=ObjectMeta(name="late")))
            assert status(up)["storage"] == ""
            rig.let_run_to(LAST)
            after = await rig.trained_to(LAST, spares=1)
            assert after.status.attempt == 1
            kept(before, after)
            assert rig.launchers() == launchers
            assert rig.started(1) == children
            restarts = [c.restart_count for p in await rig.pods() for c in p.status.container_statuses]
            assert restarts == [0] * (RANKS + 1)
            assert list((await rig.api.list(Incident)).items) == []
            await rig.check_invariants()
    finally:
        up.kill()


def ask(state: Path, path: str) -> tuple[int, str]:
    with reachable_http_socket_path(state / "api.sock") as place, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(place)
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        response = http.client.HTTPResponse(sock)
        response.begin()
        return response.status, response.read().decode()


def is_refused(state: Path, word: str) -> bool:
    """/readyz says that the disk refuses writes, in that word; "": that it does not."""
    code, text = ask(state, "/readyz")
    return word in text if code == 500 and word else (code == 200 and not word)


def status(up: Up) -> dict[str, Any]:
    ran = subprocess.run(up.command("status", "-o", "json"), capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


async def has_saved(rig: Rig, step: int) -> bool:
    return all(rig.checkpoints(rank)[-1:] and rig.checkpoints(rank)[-1] >= step for rank in range(RANKS))


_RENEWED: dict[str, float] = {}


async def are_renewed(rig: Rig, length_s: float) -> bool:
    """Every node is ready, and its lease has been renewed for that long since this was asked first."""
    nodes = {node.name: node for node in (await rig.api.list(Node)).items}
    assert all(c.status == "True" for n in nodes.values() for c in n.status.conditions if c.type == "Ready")
    leases = [lease for lease in (await rig.api.list(Lease, NODE_LEASE_NAMESPACE)).items if lease.name in nodes]
    assert len(leases) == len(nodes)
    ages = []
    for lease in leases:
        assert lease.spec.renew_time is not None
        renewed = lease.spec.renew_time.timestamp()
        ages.append(renewed - _RENEWED.setdefault(lease.uid, renewed))
    return min(ages) > length_s

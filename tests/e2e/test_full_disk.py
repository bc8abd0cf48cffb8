"""A whole cluster with a gang that trains, on a disk that refuses writes for a while: nobody notices but who writes."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda.api.errors import ApiError
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Node
from remuda.api.meta import ObjectMeta
from remuda.kube.client.rest_paths import rest_socket_path_within_limit
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.rig import RANKS, Rig, kept, sweep
from tests.e2e.small_disk import SmallDisk, skip_or_fail, small_disk

READONLY_DISK = Path(__file__).with_name("readonly_disk.c")
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


class DiskTrouble(msgspec.Struct, frozen=True):
    """How a disk is made to refuse writes and to take them again, and what the API says meanwhile."""

    begin: Callable[[], None]
    end: Callable[[], None]
    code: int
    reason: str
    fix: str


@pytest.mark.parametrize("parts", [(), ("--split", "--groups=2")], ids=["whole", "split"])
async def test_a_gang_trains_through_a_full_disk(disk: SmallDisk, tmp_path: Path, parts: tuple[str, ...]) -> None:
    """The log of the cluster and those of the pods are on that disk, too."""
    up = Up(disk.path, LEASE_S)
    up.start(*parts)
    try:
        await train_through(up, tmp_path, DiskTrouble(disk.fill, disk.free, 507, "StorageFull", "Free some space"))
    finally:
        up.kill()


async def test_a_gang_trains_through_a_disk_that_becomes_read_only(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "is-read-only"
    monkeypatch.setenv("LD_PRELOAD", str(build_readonly_disk(tmp_path)))
    monkeypatch.setenv("READONLY_BELOW", str(state))
    monkeypatch.setenv("READONLY_WHEN", str(flag))
    up = Up(state, LEASE_S)
    up.start()
    for name in ("LD_PRELOAD", "READONLY_BELOW", "READONLY_WHEN"):
        monkeypatch.delenv(name)  # the cluster has it; nobody else
    try:
        await train_through(up, tmp_path, DiskTrouble(flag.touch, flag.unlink, 503, "StorageReadOnly", "remount,rw"))
    finally:
        up.kill()


def build_readonly_disk(directory: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        skip_or_fail("no C compiler: a disk that becomes read-only is not tested; install gcc")
    target = directory / "readonly_disk.so"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([str(compiler), *flags, "-o", str(target), str(READONLY_DISK), "-ldl"], check=True)
    return target


async def train_through(up: Up, tmp_path: Path, trouble: DiskTrouble) -> None:
    async with up.rig() as rig:
        rig.limit_file = tmp_path / "limit"
        rig.let_run_to(STOP_AT)
        await rig.submit(rig.job(spares=1))
        before = await rig.trained_to(STOP_AT, spares=1)
        launchers, children = rig.launchers(), rig.started(1)

        trouble.begin()
        await until("the disk to be found out", lambda: asyncio.to_thread(is_refused, up.state, trouble.reason))
        with pytest.raises(ApiError) as caught:
            await rig.api.create(Namespace, Namespace(metadata=ObjectMeta(name="late")))
        assert (caught.value.code, caught.value.reason) == (trouble.code, trouble.reason)
        assert trouble.fix in caught.value.message
        assert ask(up.state, "/livez") == (200, "ok")
        told = status(up)
        assert told["running"]
        assert told["storage"].startswith(f"{trouble.reason}: ")
        assert len(await rig.pods()) == RANKS + 1, "reading goes on"

        # Training goes on, output and all, for longer than any lease; and so does the cluster's word for its nodes.
        rig.let_run_to(LATER)
        await until("steps meanwhile", lambda: has_saved(rig, LATER - 4))
        first = await renewals(rig)
        await until("leases to be renewed for longer than they last", lambda: are_renewed(rig, first, 3 * LEASE_S))
        assert is_refused(up.state, trouble.reason), "the disk refused all the while"

        trouble.end()
        await until("the cluster to be ready again", lambda: asyncio.to_thread(is_refused, up.state, ""))
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
    token = (up.state / "token").read_text().strip()
    for path in [*up.state.glob("*.log*"), *up.state.glob("parts/*.log*")]:
        assert token not in path.read_text(), f"the token is in {path}"


def ask(state: Path, path: str) -> tuple[int, str]:
    with rest_socket_path_within_limit(state / "api.sock") as place, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(place)
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        response = http.client.HTTPResponse(sock)
        response.begin()
        return response.status, response.read().decode()


def is_refused(state: Path, word: str) -> bool:
    """/readyz says that the disk refuses writes, with that reason; "": that it does not."""
    code, text = ask(state, "/readyz")
    return word in text if code == 500 and word else (code == 200 and not word)


def status(up: Up) -> dict[str, Any]:
    ran = subprocess.run(up.command("status", "-o", "json"), capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


async def has_saved(rig: Rig, step: int) -> bool:
    return all(rig.checkpoints(rank)[-1:] and rig.checkpoints(rank)[-1] >= step for rank in range(RANKS))


async def renewals(rig: Rig) -> dict[str, float]:
    """When each node's lease was renewed last. Every node is ready."""
    nodes = {node.name: node for node in (await rig.api.list(Node)).items}
    assert all(c.status == "True" for n in nodes.values() for c in n.status.conditions if c.type == "Ready")
    leases = {lease.name: lease for lease in (await rig.api.list(Lease, NODE_LEASE_NAMESPACE)).items}
    times = {name: leases[name].spec.renew_time for name in nodes}
    return {name: time.timestamp() for name, time in times.items() if time is not None}


async def are_renewed(rig: Rig, since: dict[str, float], length_s: float) -> bool:
    now = await renewals(rig)
    assert set(now) == set(since)
    return all(now[name] - since[name] > length_s for name in now)

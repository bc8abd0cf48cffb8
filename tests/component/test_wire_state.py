"""What belongs to a state directory: backup and restore, and the log files behind `pods/log`."""

from __future__ import annotations

import asyncio
import io
import itertools
import stat
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from remuda.api.codec import decode, encode
from remuda.api.errors import BadRequest, Refusal
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import serve_asgi_unix
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.log_source import LogQuery
from remuda.embedded.apiserver.store import ObjectStore, SqliteJournal
from remuda.embedded.node import pod_logs
from remuda.embedded.node.pod_logs import PodLogFiles
from remuda.runtime.backup import BACKUP_PATH, MANIFEST, BackupManifest, answer_backup, make_backup, restore_backup
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig
from tests.builders.waiting import PATIENCE_S


@asynccontextmanager
async def running(state: StateDir) -> AsyncIterator[LocalCluster]:
    """The parts of a running cluster that a backup has to do with."""
    with state.locked():
        state.remember(ClusterConfig(nodes=3))
        journal = SqliteJournal(state.database)
        store, uids = ObjectStore(journal), itertools.count()
        local = LocalCluster(store, clock=lambda: 0.0, new_uid=lambda: f"u{next(uids)}")
        ready = asyncio.Event()
        app = ApiServerApp(local, extra={BACKUP_PATH: answer_backup(journal, state)})
        task = asyncio.create_task(serve_asgi_unix(app, state.socket, ready=ready))
        await asyncio.wait_for(ready.wait(), PATIENCE_S)
        try:
            yield local
        finally:
            task.cancel()
            await asyncio.wait([task])
            await store.close()


def objects(state: StateDir) -> list[str]:
    journal = SqliteJournal(state.database)
    try:
        return sorted(row.key for row in journal.load().objects)
    finally:
        journal.close()


async def test_a_running_cluster_is_copied_and_runs_on(tmp_path: Path) -> None:
    state, file = StateDir(tmp_path / "a"), tmp_path / "backup.tgz"
    async with running(state) as cluster:
        await cluster.create(Node, {"metadata": {"name": "before"}})
        manifest = await asyncio.to_thread(make_backup, state, file, 5.0)
        await cluster.create(Node, {"metadata": {"name": "after"}})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (manifest.made_at, set(manifest.files)) == (5.0, {"store.db", "config.json"})
    other = StateDir(tmp_path / "b")
    restore_backup(file, other)
    assert objects(other) == ["//nodes/before"]
    assert objects(state) == ["//nodes/after", "//nodes/before"]
    assert other.remembered() == ClusterConfig(nodes=3)
    assert [p.name for p in state.path.iterdir() if p.name.startswith(".")] == []
    assert [p.name for p in other.path.iterdir() if p.name.startswith(".")] == []


async def test_a_stopped_cluster_is_copied_too(tmp_path: Path) -> None:
    state, file = StateDir(tmp_path / "a"), tmp_path / "backup.tgz"
    async with running(state) as cluster:
        await cluster.create(Node, {"metadata": {"name": "n"}})
    make_backup(state, file, 0.0)
    restore_backup(file, StateDir(tmp_path / "b"))
    assert objects(StateDir(tmp_path / "b")) == ["//nodes/n"]


def reason_of(work: object) -> str:
    assert callable(work)
    with pytest.raises(Refusal) as caught:
        work()
    assert caught.value.fix
    return caught.value.reason


async def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    state, file = StateDir(tmp_path / "a"), tmp_path / "backup.tgz"
    assert reason_of(lambda: make_backup(state, file, 0.0)) == "NothingToBackUp"
    async with running(state):
        await asyncio.to_thread(make_backup, state, file, 0.0)
        assert reason_of(lambda: restore_backup(file, state)) == "StateInUse"
    assert reason_of(lambda: make_backup(state, file, 0.0)) == "FileExists"
    assert reason_of(lambda: restore_backup(file, state)) == "StateNotEmpty"


def repacked(source: Path, target: Path, change: dict[str, bytes | None], **manifest: object) -> Path:
    """The archive with files replaced (None: left out) and the manifest's fields changed."""
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for entry in old.getmembers():
            stream = old.extractfile(entry)
            assert stream is not None
            data: bytes | None = stream.read()
            if entry.name == MANIFEST and manifest:
                assert data is not None
                data = encode({**decode(dict, data), **manifest})
            data = change.get(entry.name, data)
            if data is not None:
                info = tarfile.TarInfo(entry.name)
                info.size = len(data)
                new.addfile(info, io.BytesIO(data))
        for name in change.keys() - set(old.getnames()):
            data = change[name]
            assert data is not None
            info = tarfile.TarInfo(name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))
    return target


async def test_bad_backups_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    state, file = StateDir(tmp_path / "a"), tmp_path / "backup.tgz"
    async with running(state):
        manifest = await asyncio.to_thread(make_backup, state, file, 0.0)
    assert isinstance(manifest, BackupManifest)
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"nonsense")
    cases = {
        "BackupTooNew": repacked(file, tmp_path / "new.tgz", {}, format=99),
        "BackupDamaged": repacked(file, tmp_path / "damaged.tgz", {"store.db": b"other"}),
        "NotABackup": repacked(file, tmp_path / "path.tgz", {"../evil": b"x"}),
    }
    for expected, bad in [*cases.items(), ("NotABackup", nonsense)]:
        target = StateDir(tmp_path / f"to-{bad.name}")
        assert reason_of(lambda bad=bad, target=target: restore_backup(bad, target)) == expected
        assert [p.name for p in target.path.iterdir()] == ["lock"]
    assert not (tmp_path / "evil").exists()


# Logs.


def a_pod(phase: str = "Running") -> JsonObject:
    running = {"name": "main", "state": {"running": {}}}
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": phase, "containerStatuses": [running]},
    }


class Logs:
    def __init__(self, root: Path) -> None:
        self.file = root / "team" / "p_u" / "p_u" / "main.log"
        self.file.parent.mkdir(parents=True)
        self.pod: JsonObject | None = a_pod()
        self.source = PodLogFiles(root, lambda namespace, name: self.pod)

    async def read(self, **query: object) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            asked = LogQuery("main", **query)  # type: ignore[arg-type]
            return b"".join([piece async for piece in self.source.read(self.pod or a_pod(), asked)])


async def test_tails_and_limits(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.file.write_bytes(b"one\ntwo\nthree\n")
    assert await logs.read() == b"one\ntwo\nthree\n"
    assert await logs.read(tail=2) == b"two\nthree\n"
    assert await logs.read(tail=0) == b""
    assert await logs.read(tail=99) == b"one\ntwo\nthree\n"
    assert await logs.read(limit_bytes=5) == b"one\nt"


async def test_following_ends_with_the_pod_and_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "POLL_S", 0.0)
    logs = Logs(tmp_path)
    looks = itertools.count()

    def write(text: bytes) -> None:
        with logs.file.open("ab") as file:
            file.write(text)

    def look(namespace: str, name: str) -> JsonObject:
        """Between two looks something is written; the last words come together with the end of the pod."""
        number = next(looks)
        write(b"line %d\n" % number)
        return a_pod("Succeeded" if number == 3 else "Running")

    logs.source = PodLogFiles(tmp_path, look)
    write(b"begin\n")
    assert await logs.read(follow=True) == b"begin\nline 0\nline 1\nline 2\nline 3\n"


async def test_the_previous_run_is_the_attempt_before(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.file.write_bytes(b"one\n")
    with pytest.raises(BadRequest, match="previous terminated container"):
        await logs.read(previous=True)
    marks = [f"--- remuda attempt={n} rank=0 host=p time={n}.0 ---\nattempt {n}\n".encode() for n in (1, 2)]
    logs.file.write_bytes(b"".join(marks))
    assert await logs.read(previous=True) == b"attempt 1\n"


async def test_a_container_that_has_not_started_has_no_log(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.pod is not None
    logs.pod["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": {"reason": "Pulling"}}}]
    with pytest.raises(BadRequest, match="waiting to start: Pulling"):
        await logs.read()

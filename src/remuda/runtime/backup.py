"""Backup and restore of a state directory: one tar file that only its owner can read.

In it are the database (every API object and the recent history), what the cluster was made as, and its certificates and
token, so that kubeconfigs handed out stay good. Logs and checkpoints of pods are not: they are large and belong to the jobs.

A running cluster copies its own database between two commits (nobody else can open it); a stopped one is copied under the
directory's lock. `manifest.json` says which program and which state format wrote it, and a digest of every file; a newer
format is refused, as is a file that does not match.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import secrets
import socket
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from remuda import __version__
from remuda.api.codec import decode, encode
from remuda.api.errors import Refusal
from remuda.embedded.apiserver.store.acked_mark import acked_mark_path
from remuda.embedded.apiserver.store.rows import FORMAT
from remuda.embedded.apiserver.store.sqlite_journal import SqliteJournal, check_database, copy_database
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest
from remuda.kube.client.rest_paths import rest_socket_path_within_limit
from remuda.runtime.state_dir import StateDir

BACKUP_PATH = "/remuda/backup"
MANIFEST = "manifest.json"
DATABASE = "store.db"
_KEPT = ("config.json", "token", "pki/ca.crt", "pki/ca.key", "pki/server.crt", "pki/server.key")
_MAX_BYTES = 16 * 1024**3
_ANSWER_WITHIN_S = 600.0


class BackupManifest(msgspec.Struct, frozen=True, rename="camel"):
    remuda: str
    format: int
    made_at: float
    files: dict[str, str]  # name -> sha256


def answer_backup(journal: SqliteJournal, state: StateDir) -> Callable[[HttpRequest], Awaitable[None]]:
    """The running cluster's half: makes a copy beside the database and says where it is."""

    async def answer(request: HttpRequest) -> None:
        if request.method != "POST":
            await request.answer(b"use POST\n", 405, media="text/plain")
            return
        name = f".backup-{secrets.token_hex(8)}.db"
        await journal.copy_to(state.path / name)
        await request.answer(encode({"name": name}))

    return answer


def make_backup(state: StateDir, target: Path, now: float) -> BackupManifest:
    if target.exists():
        raise Refusal("FileExists", f"{target} is there already.", "Give another name, or delete it first.")
    if not state.database.exists():
        raise Refusal("NothingToBackUp", f"{state.path} has no cluster.", "Give its directory with --state.")
    copy = _copy_state_database(state)
    try:
        files = {DATABASE: copy} | {name: state.path / name for name in _KEPT if (state.path / name).exists()}
        manifest = BackupManifest(__version__, FORMAT, now, {name: _file_digest(path) for name, path in files.items()})
        made = target.with_name(f".{target.name}.new")
        made.unlink(missing_ok=True)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            _add_state_backup_entry(archive, MANIFEST, encode(manifest))
            for name, path in files.items():
                archive.add(path, name, recursive=False)
            archive.close()
            file.flush()
            os.fsync(file.fileno())
        made.replace(target)
    finally:
        copy.unlink(missing_ok=True)
    return manifest


def _copy_state_database(state: StateDir) -> Path:
    """A copy of the database, by whoever has it."""
    if state.holder() is not None:
        return state.path / _ask_cluster_for_state_copy(state)
    copy = state.path / f".backup-{secrets.token_hex(8)}.db"
    with state.locked():
        copy_database(state.database, copy)
    return copy


def _ask_cluster_for_state_copy(state: StateDir) -> str:
    with rest_socket_path_within_limit(state.socket) as path, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ANSWER_WITHIN_S)
        try:
            sock.connect(path)
            sock.sendall(f"POST {BACKUP_PATH} HTTP/1.1\r\nhost: remuda\r\ncontent-length: 0\r\n\r\n".encode())
            response = http.client.HTTPResponse(sock)
            response.begin()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Refusal(
                "ClusterNotAnswering", f"The cluster in {state.path} did not answer: {error}.", "See <state>/up.log."
            ) from None
    if response.status != 200:
        raise Refusal(
            "BackupFailed", f"The cluster refused: {body[:200].decode(errors='replace')}.", "See <state>/up.log."
        )
    return str(decode(dict[str, str], body)["name"])


def restore_backup(source: Path, state: StateDir) -> BackupManifest:
    """Into a directory without a cluster; nothing is there before everything has been checked."""
    state.prepare()
    with state.locked():
        if state.database.exists():
            raise Refusal(
                "StateNotEmpty", f"{state.path} has a cluster already.", "Give an empty directory with --state."
            )
        staging = state.path / f".restore-{secrets.token_hex(8)}"
        staging.mkdir(mode=0o700)
        try:
            manifest = _unpack_state_backup(source, staging)
            check_database(staging / DATABASE)
            acked_mark_path(state.database).unlink(
                missing_ok=True
            )  # of a state that was here before, and newer perhaps
            for name in sorted(
                manifest.files, key=lambda name: name == DATABASE
            ):  # the database last: it makes a cluster
                target = state.path / name
                target.parent.mkdir(mode=0o700, exist_ok=True)
                (staging / name).replace(target)
        finally:
            _remove_state_staging(staging)
    return manifest


def _unpack_state_backup(source: Path, staging: Path) -> BackupManifest:
    known = {DATABASE, *_KEPT}
    try:
        with tarfile.open(source, "r:*") as archive:
            first = archive.next()
            if first is None or first.name != MANIFEST or not first.isfile() or first.size > 1 << 20:
                raise _not_a_backup(source, "it does not begin with a manifest")
            manifest = decode(BackupManifest, _read_state_backup_entry(archive, first))
            if manifest.format > FORMAT:
                raise Refusal(
                    "BackupTooNew",
                    f"{source} was made by Remuda {manifest.remuda} (state format {manifest.format}, this one knows "
                    f"{FORMAT}).",
                    "Restore it with that version or a newer one.",
                )
            while (entry := archive.next()) is not None:
                # Names are compared, never trusted: an archive cannot write anywhere else.
                if entry.name not in known or entry.name not in manifest.files or not entry.isfile():
                    raise _not_a_backup(source, f"`{entry.name}` has no business in it")
                if entry.size > _MAX_BYTES:
                    raise _not_a_backup(source, f"`{entry.name}` is too large")
                _write_state_backup_entry(archive, entry, staging / entry.name)
    except (tarfile.TarError, OSError, EOFError, msgspec.MsgspecError) as error:
        raise _not_a_backup(source, str(error)) from None
    for name, digest in manifest.files.items():
        path = staging / name
        if name not in known or not path.exists() or _file_digest(path) != digest:
            raise Refusal("BackupDamaged", f"`{name}` in {source} is missing or damaged.", "Use another backup.")
    if DATABASE not in manifest.files:
        raise _not_a_backup(source, "it has no database")
    return manifest


def _write_state_backup_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(mode=0o700, exist_ok=True)
    stream = archive.extractfile(entry)
    assert stream is not None
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while piece := stream.read(1 << 20):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _read_state_backup_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(entry)
    assert stream is not None
    return stream.read()


def _add_state_backup_entry(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_state_staging(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()


def _not_a_backup(source: Path, why: str) -> Refusal:
    return Refusal(
        "NotABackup", f"{source} is not a backup of Remuda: {why}.", "Give a file that `remuda backup` made."
    )

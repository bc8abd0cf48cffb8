"""The state directory: everything an embedded cluster keeps, and the lock that lets one process have it.

    <state>/lock         flock held by the running cluster; its text is the pid
    <state>/config.json  what the cluster was made as; a later `up_command` must not contradict it
    <state>/store.db     the API's objects and history
    <state>/api.sock     where the CLI finds the API, mode 0600
    <state>/kubeconfig   how kubectl and others find it over TCP; with <state>/token and <state>/pki, all 0600
    <state>/nodes/ logs/ checkpoints/ bin/
    <state>/link.sock    of a split cluster: where agents reach the manager; <state>/link-secret makes their tokens, 0600
    <state>/parts/       of a split cluster: the pid of each part, its lock, and its log

The lock is the kernel's, so a killed process frees it and a living one cannot be overlooked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from remuda.api.codec import decode, encode
from remuda.api.errors import Refusal
from remuda.runtime.up_config import ClusterConfig


def default_state_path() -> Path:
    if chosen := os.environ.get("REMUDA_STATE"):
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "remuda"


class StateDir:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def database(self) -> Path:
        return self.path / "store.db"

    @property
    def socket(self) -> Path:
        return self.path / "api.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def up_log(self) -> Path:
        return self.path / "up.log"

    @property
    def parts(self) -> Path:
        return self.path / "parts"

    @property
    def link_socket(self) -> Path:
        return self.path / "link.sock"

    @property
    def link_secret(self) -> Path:
        return self.path / "link-secret"

    def part_log(self, name: str) -> Path:
        return self.parts / f"{name}.log"

    def prepare(self) -> None:
        """The directory is there, ours, and nobody else can look into it: tokens, keys and what pods print are in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Refusal(
                "StateNotWritable",
                f"{self.path} cannot be made: {error.strerror}.",
                "Give another directory with --state or REMUDA_STATE.",
            ) from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise Refusal("StateNotWritable", f"{self.path} is not writable.", "Give another directory with --state.")
        self._make_private()

    def _make_private(self) -> None:
        found = self.path.stat()
        if found.st_uid != os.geteuid():
            raise Refusal(
                "StateNotPrivate",
                f"{self.path} belongs to another user (uid {found.st_uid}), who could read its token and its secrets.",
                f"Give another directory with --state, or run: chown {os.geteuid()} {self.path}",
            )
        if not stat.S_IMODE(found.st_mode) & 0o077:
            return
        # A directory that holds other things (/tmp, a home) is somebody's: to shut it would do more harm than to refuse.
        names = set(os.listdir(self.path))
        if names and not names & {"lock", "config.json", "store.db", "up.log"}:
            raise Refusal(
                "StateNotPrivate",
                f"{self.path} can be read by other users and holds other files.",
                f"Give a directory of its own with --state, or run: chmod 700 {self.path}",
            )
        self.path.chmod(0o700)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory; a second instance gets StateInUse with the holder's pid."""
        self.prepare()

        with _lock_exclusively(self.path / "lock", self.in_use) as descriptor:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield

    def command_line(self, words: str) -> str:
        """`remuda <words>` as it works when pasted: on this directory."""
        is_default = self.path == StateDir(default_state_path()).path
        return f"remuda {words}" if is_default else f"remuda --state {shlex.quote(str(self.path))} {words}"

    def in_use(self) -> Refusal:
        return Refusal(
            "StateInUse",
            f"A cluster is already running in {self.path} (pid {self.holder() or 'unknown'}).",
            f"Use that cluster, stop it with `{self.command_line('down')}`, or choose another directory with --state.",
        )

    @contextlib.contextmanager
    def part_locked(self, name: str) -> Iterator[None]:
        """Holds one part of a split cluster: two managers, or two agents of one node, would undo each other's work."""
        self.parts.mkdir(mode=0o700, parents=True, exist_ok=True)

        def in_use() -> Refusal:
            return Refusal(
                "PartInUse",
                f"The part {name} of {self.path} is already running.",
                "`remuda up --split` starts the parts; stop all of them with `remuda down`.",
            )

        with _lock_exclusively(self.parts / f"{name}.lock", in_use):
            yield

    def holder(self) -> int | None:
        """Pid of the process that has the directory, or None when nobody has."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                return int(text) if text.isdigit() else None
            return None
        finally:
            os.close(descriptor)

    def remembered(self) -> ClusterConfig | None:
        """The config this directory was made with."""
        try:
            data = (self.path / "config.json").read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refusal(
                "StateNotReadable",
                f"{self.path} cannot be used as the state directory: {error.strerror}.",
                "Give another directory with --state or REMUDA_STATE.",
            ) from None
        return decode(ClusterConfig, data)

    def remember(self, config: ClusterConfig) -> None:
        made = self.path / "config.json.new"
        made.write_bytes(encode(config))
        made.replace(self.path / "config.json")


def open_state_dir_log(path: Path) -> BinaryIO:
    """To append to; its owner's alone, also when it was there with another mode. No link is followed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab", buffering=0)


@contextlib.contextmanager
def _lock_exclusively(path: Path, in_use: Callable[[], Refusal]) -> Iterator[int]:
    """Holds that file's lock, and gives its descriptor; `in_use` says what to refuse with when another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise in_use() from None
        yield descriptor
    finally:
        os.close(descriptor)

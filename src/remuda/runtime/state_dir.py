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
from collections.abc import Callable, Iterator
from pathlib import Path

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

    def prepare(self) -> None:
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

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory; a second instance gets StateInUse with the holder's pid."""
        self.prepare()

        with _lock_exclusively(self.path / "lock", self.in_use) as descriptor:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield

    def in_use(self) -> Refusal:
        return Refusal(
            "StateInUse",
            f"A cluster is already running in {self.path} (pid {self.holder() or 'unknown'}).",
            "Use that cluster, stop it with `remuda down`, or choose another directory with --state.",
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

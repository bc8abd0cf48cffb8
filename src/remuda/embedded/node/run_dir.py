"""One run of a container on disk: `pods/<uid>/<container>/<run>/{spec,pid,status}.json`.

The specification is written, whole, before the shim starts; the shim writes the other two. A shim that was killed leaves no
status: once nothing of the container is left, one is written in its place, so the end reads the same whenever it is asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from remuda.api.codec import decode, encode
from remuda.embedded.node.container_record import ContainerExit
from remuda.embedded.node.runtime_port import ContainerKey

T = TypeVar("T", bound=msgspec.Struct)

log = structlog.get_logger(__name__)


class RunSpec(msgspec.Struct, frozen=True):
    """spec.json: what the shim needs, and what an adopting node wants to know."""

    id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    status: str
    pidfile: str
    address: str
    started_at: float
    launched: bool


class RunStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """status.json."""

    code: int
    finished_at: float
    started_at: float = 0.0
    signal: int | None = None
    message: str = ""
    reason: str = ""


class RunDirectory:
    def __init__(self, pods: Path, key: ContainerKey, number: int) -> None:
        self.key = key
        self.number = number
        self.path = pods / key.uid / key.container / str(number)
        self.spec_path = self.path / "spec.json"
        self.pid_path = self.path / "pid.json"
        self.status_path = self.path / "status.json"

    def has_begun(self) -> bool:
        """The shim got far enough to say something."""
        return self.pid_path.exists() or self.status_path.exists()

    def create(self, spec: RunSpec) -> None:
        if self.path.exists():  # the remains of a start that never happened
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True)
        Path(spec.log).parent.mkdir(parents=True, exist_ok=True)
        _write_run_file(self.spec_path, spec)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def drop_older(self) -> None:
        """Runs before the last one: the API has long told of them."""
        for number in container_runs_in_run_dir(self.path.parent):
            if number < self.number - 1:
                shutil.rmtree(self.path.with_name(str(number)), ignore_errors=True)

    def read_spec(self) -> RunSpec | None:
        return _read_run_file(RunSpec, self.spec_path)

    def read_exit(self) -> ContainerExit | None:
        status = _read_run_file(RunStatus, self.status_path)
        if status is None:
            return None
        return ContainerExit(status.code, status.finished_at, status.signal or 0, status.reason, status.message)

    def write_exit(self, end: ContainerExit, started_at: float) -> None:
        try:
            _write_run_file(
                self.status_path, RunStatus(end.code, end.time, started_at, end.signal, end.message, end.reason)
            )
        except FileNotFoundError:
            pass  # forgotten meanwhile
        except OSError as error:  # a full disk: the end is told now, and found out anew after a restart
            log.warning("node.exit_not_written", path=str(self.status_path), error=str(error))


def container_keys_below(pods: Path) -> Iterator[ContainerKey]:
    for path in sorted(pods.glob("*/*")):
        if path.is_dir():
            yield ContainerKey(path.parent.name, path.name)


def container_runs_in_run_dir(container: Path) -> list[int]:
    """Numbers of the runs there are, oldest first."""
    return sorted(int(d.name) for d in container.iterdir() if d.name.isdecimal()) if container.is_dir() else []


def _read_run_file(kind: type[T], path: Path) -> T | None:
    try:
        return decode(kind, path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def _write_run_file(path: Path, value: msgspec.Struct) -> None:
    partial = path.with_suffix(".tmp")
    partial.touch(mode=0o600)  # it holds the container's environment, and there may be values of Secrets in that
    partial.write_bytes(encode(value))
    partial.replace(path)

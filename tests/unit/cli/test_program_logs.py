"""The program's own log: no secrets in it, bounded, its owner's alone, and never a reason to die."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from remuda.api.errors import Refusal
from remuda.cli.own_log import OwnLog
from remuda.cli.program_logs import show_program_logs
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest
from remuda.runtime.state_dir import StateDir, open_state_dir_log

TOKEN = "s3cr3t-token-of-the-cluster"


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


async def a_failed_request(handler: Callable[[HttpRequest], Any]) -> int:
    """A request with a token, to a handler that breaks."""
    api = LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: 0.0, new_uid=lambda: "uid")
    app = ApiServerApp(api, extra={"/broken": handler})
    codes: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        codes.append(message.get("status", 0))

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    await app({"type": "http", "method": "GET", "path": "/broken", "headers": headers}, receive, send)
    return codes[0]


def test_a_token_in_a_local_of_a_failed_handler_is_not_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    show_program_logs(logging.INFO)

    async def broken(request: HttpRequest) -> None:
        token = request.headers["authorization"]
        assert token
        raise RuntimeError("broken")

    assert asyncio.run(a_failed_request(broken)) == 500
    told = capsys.readouterr().err
    assert "api.failed" in told
    assert "RuntimeError: broken" in told, "the traceback itself is there"
    assert TOKEN not in told


def test_a_token_in_the_words_of_an_error_is_not_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    show_program_logs(logging.INFO)

    async def broken(request: HttpRequest) -> None:
        raise RuntimeError(f"no such thing: {request.headers}")

    assert asyncio.run(a_failed_request(broken)) == 500
    told = capsys.readouterr().err
    assert "no such thing" in told
    assert TOKEN not in told


def test_a_log_on_a_full_disk_loses_lines_and_nothing_else() -> None:
    """/dev/full refuses every write with ENOSPC."""
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        own = OwnLog(full)
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(own))  # type: ignore[arg-type]
        structlog.get_logger().warning("this cannot be written")
        print("nor this", file=own)
        assert own.dropped >= 2
        with pytest.raises(OSError, match="No space left"):
            full.close()


def test_what_was_dropped_is_told_when_there_is_room_again() -> None:
    class Disk(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    disk = Disk()
    own = OwnLog(disk)
    own.write("one\n")
    own.write("two\n")
    disk.is_full = False
    own.write("three\n")
    assert disk.getvalue() == "2 lines of this log could not be written and are lost\nthree\n"


def test_a_log_in_the_background_is_bounded_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "up.log"
    path.write_text("of an older version\n")
    path.chmod(0o644)
    with open_state_dir_log(path) as file:
        own = OwnLog(io.TextIOWrapper(file), path, max_bytes=1000, files=3)
        for number in range(200):
            own.write(f"line {number} {'x' * 40}\n")
        kept = sorted(tmp_path.iterdir())
        assert [p.name for p in kept] == ["up.log", "up.log.1", "up.log.2"]
        assert all(p.stat().st_size <= 1000 for p in kept)
        assert {stat.S_IMODE(p.stat().st_mode) for p in kept} == {0o600}
        lines = [line for p in reversed(kept) for line in p.read_text().splitlines()]
        assert lines[-1].startswith("line 199 ")
        numbers = [int(line.split()[1]) for line in lines]
        assert numbers == list(range(numbers[0], 200)), "nothing is lost between two files"


def test_what_a_process_in_the_background_prints_cannot_fail(tmp_path: Path) -> None:
    """Its stdout and stderr are a disk that is full."""
    program = (
        "import logging, sys, pathlib, click, structlog\n"
        "from remuda.cli.program_logs import show_program_logs\n"
        f"show_program_logs(logging.INFO, pathlib.Path({str(tmp_path / 'up.log')!r}))\n"
        "for _ in range(50): structlog.get_logger().warning('x' * 100); click.echo('hello'); print('there')\n"
        "open(sys.argv[1], 'w').write('alive')\n"
    )
    said = tmp_path / "said"
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", program, str(said)]
        subprocess.run(command, stdout=full, stderr=full, check=False, timeout=60)
    assert said.read_text() == "alive"


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o750, 0o1777])
def test_a_state_directory_that_others_can_read_is_shut(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(mode)
    with StateDir(path).locked():
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(mode)  # now with a state in it
    with StateDir(path).locked():
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_directory_with_other_files_is_not_shut_but_refused(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir()
    path.chmod(0o755)
    (path / "thesis.tex").write_text("")
    with pytest.raises(Refusal) as caught:
        StateDir(path).prepare()
    assert caught.value.reason == "StateNotPrivate"
    assert f"chmod 700 {path}" in caught.value.fix
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    path.chmod(0o700)
    StateDir(path).prepare()


def test_a_state_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    with pytest.raises(Refusal) as caught:
        StateDir(tmp_path).prepare()
    assert caught.value.reason == "StateNotPrivate"
    assert "--state" in caught.value.fix

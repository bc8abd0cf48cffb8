"""A launcher as a real process, and the agent's end of its socket."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from remuda.launch import protocol
from remuda.launch.protocol import Exited, Heartbeat, Hello, Message, MessageLineReader, Ready, Running, Start, Stop
from remuda.launch.zipapp import launcher_zipapp_argv
from tests.builders.waiting import PATIENCE_S

PYTHON = os.environ.get("REMUDA_TEST_PYTHON") or sys.executable  # runs the launcher under test
M = TypeVar("M", bound=Message)


def is_running(pid: int) -> bool:
    """Alive and not merely a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Agent:
    """Listens in one allocation's directory and talks to one launcher."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen: list[Message] = []
        self.listener: socket.socket | None = None
        self.connection: socket.socket | None = None
        self.listen()

    def listen(self) -> None:
        handle = os.open(self.directory, os.O_RDONLY)
        (self.directory / "agent.sock").unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(PATIENCE_S)
        self.listener.bind(f"/proc/self/fd/{handle}/agent.sock")
        self.listener.listen()
        os.close(handle)

    def accept(self) -> Hello:
        assert self.listener is not None
        if self.connection is not None:
            self.connection.close()
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(PATIENCE_S)
        self._lines = self._read()
        first = self.next()
        assert isinstance(first, Hello), first
        return first

    def _read(self) -> Iterator[bytes]:
        assert self.connection is not None
        reader = MessageLineReader()
        while data := self.connection.recv(65536):
            yield from reader.feed(data)

    def next(self) -> Message:
        message = protocol.decode_launch_message(next(self._lines))
        assert message is not None
        self.seen.append(message)
        return message

    def expect(self, kind: type[M], where: Callable[[M], bool] = lambda message: True) -> M:
        """The next message of the kind; only heartbeats, and words of doubt, may come before it."""
        while True:
            message = self.next()
            if isinstance(message, kind) and where(message):
                return message
            is_doubt = isinstance(message, Ready) and message.unreadable
            assert is_doubt or isinstance(message, Heartbeat), f"wanted {kind.__name__}, got {message}"

    def send(self, *messages: Message) -> None:
        self.send_raw(b"".join(protocol.encode_launch_message(message) for message in messages))

    def send_raw(self, data: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(data)

    def is_hung_up(self) -> bool:
        assert self.connection is not None
        readable, _, _ = select.select([self.connection], [], [], PATIENCE_S)
        return bool(readable) and self.connection.recv(1) == b""

    def start(self, attempt: int, env: dict[str, str] | None = None, stop: Stop | None = None) -> Running:
        """Through the barrier to a running child."""
        self.send(stop or Stop(attempt))
        assert self.expect(Ready).attempt == attempt
        self.send(Start(attempt, env or {}))
        return self.expect(Running, lambda message: message.attempt == attempt)

    def exited(self) -> Exited:
        return self.expect(Exited)

    def go(self) -> None:
        for sock in (self.connection, self.listener):
            if sock is not None:
                sock.close()
        self.connection = self.listener = None


class Container:
    """Starts launchers in an allocation directory, and sees to it that none outlives its test."""

    def __init__(self, directory: Path, pyz: Path) -> None:
        self.directory = directory
        self.pyz = pyz
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.env = {"PATH": os.environ["PATH"], "REMUDA_POD_NAME": "train-0", "REMUDA_POD_UID": "uid-0"}
        self.env["REMUDA_STOP_GRACE"] = "0.5"  # so that a test with a stubborn child ends soon

    def run(self, *command: str, alloc: str | None = "", **env: str) -> subprocess.Popen[bytes]:
        return self.run_program(launcher_zipapp_argv(list(command), self.pyz, PYTHON), alloc, **env)

    def run_program(self, argv: list[str], alloc: str | None = "", **env: str) -> subprocess.Popen[bytes]:
        alloc_env = {} if alloc is None else {"REMUDA_ALLOC_DIR": alloc or str(self.directory)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, env={**self.env, **alloc_env, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self.process

    def python(self, code: str, **env: str) -> subprocess.Popen[bytes]:
        """The user's command is a Python script; PYTHONPATH counts, as it does for users."""
        return self.run(sys.executable, "-S", "-c", code, **env)

    def output(self) -> str:
        return self.log.read_text()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

"""`DriverChild`: the parent's side of the process that talks to a driver library (`driver_child`).

Every call has a deadline. When it passes, the process is killed and `DriverHang` is raised; the next call starts a new one. So
the caller decides what a hang means, and nothing waits behind it. A process that keeps failing is started less and less often:
until its time comes, calls fail at once with `DriverDown`. One call that succeeds resets that.

A process stuck in the kernel does not die when killed. It is left behind and looked after later, never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import structlog

log = structlog.get_logger(__name__)

CALL_S = 5.0
START_S = 30.0  # importing Python modules on a loaded machine is not a hanging driver
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 30.0
LINE_LIMIT = 1 << 20

OnEvent = Callable[[dict[str, Any]], None]


class DriverError(Exception):
    """The library refused. `code` is its own word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class DriverHang(Exception):
    """A call did not return in time, or the process died over it."""


class DriverDown(Exception):
    """The process failed lately and is not started again yet."""


class DriverChild:
    def __init__(
        self,
        make: str,
        on_event: OnEvent,
        *,
        environment: Mapping[str, str] | None = None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_start`: called after a process was started in the place of one that failed."""
        self._make = make
        self._on_event = on_event
        self._on_start = on_start
        self._environment = dict(environment if environment is not None else os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._graves: list[subprocess.Popen[bytes]] = []
        self._lock = asyncio.Lock()
        self._next = 0
        self._failures = 0
        self._not_before = 0.0  # the event loop's time
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def call(self, call: str, deadline_s: float = CALL_S, **params: Any) -> Any:
        """The library's answer. DriverError, DriverHang or DriverDown instead."""
        async with self._lock:
            if self._writer is None:
                await self._start()
            self._next += 1
            request = {"id": self._next, "call": call, "params": params}
            try:
                answer = await self._ask(self._next, json.dumps(request).encode() + b"\n", deadline_s)
            except TimeoutError:
                self._fail()
                raise DriverHang(f"{call} did not return within {deadline_s:g} s") from None
            except (ConnectionError, EOFError):
                self._fail()
                raise DriverHang(f"{call} ended the process that made it") from None
        self._failures = 0
        if "error" in answer:
            raise DriverError(answer["error"]["code"], answer["error"]["message"])
        return answer.get("result")

    async def ready(self) -> None:
        """Returns when a call may be made: at once, or when a process that failed may be started again."""
        delay = self._not_before - asyncio.get_running_loop().time()
        if self._writer is None and delay > 0:
            await asyncio.sleep(delay)

    async def close(self) -> None:
        async with self.let_go():
            pass

    @contextlib.asynccontextmanager
    async def let_go(self) -> AsyncIterator[None]:
        """Within, there is no process and so nothing of the driver is open; calls wait."""
        async with self._lock:
            self._stop()
            if self._reader_task is not None:
                await asyncio.wait([self._reader_task])
            for process in self._graves:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, 2.0)
            yield

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            raise DriverDown(f"the driver process failed; next start in {self._not_before - loop.time():.1f} s")
        self._graves = [p for p in self._graves if p.poll() is None]
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: whatever lies in the agent's working directory is not to be imported.
            command = [
                sys.executable,
                "-P",
                "-m",
                "remuda.agent.hardware.driver_child",
                str(theirs.fileno()),
                self._make,
            ]
            # Not asyncio's: its watcher waits for the process to end, and one stuck in a driver never does.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # libraries print; the agent's own output is not theirs
                env=self._environment,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        self.starts += 1
        try:
            async with asyncio.timeout(START_S):
                line = await reader.readline()
        except TimeoutError:
            line = b""
        if not line:
            self._fail()
            raise DriverDown("the driver process did not start")
        self._reader_task = loop.create_task(self._read(reader, self._writer), name=f"driver {self._make}")
        if self.starts > 1:
            log.warning("driver.restarted", make=self._make, starts=self.starts)
            self._on_start()

    async def _ask(self, number: int, line: bytes, deadline_s: float) -> dict[str, Any]:
        assert self._writer is not None
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(deadline_s):
                self._writer.write(line)
                return await future
        finally:
            self._waiting.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "event" in message:
                    self._on_event(message["event"])
                    continue
                waiting = self._waiting.get(message.get("id", -1))
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        except (ConnectionError, ValueError) as error:
            log.warning("driver.garbled", make=self._make, error=str(error))
        finally:
            if writer is self._writer:
                # It died between calls, or over one: that one must not wait for its deadline.
                for future in self._waiting.values():
                    if not future.done():
                        future.set_exception(EOFError())
                if not self._waiting:
                    self._fail()
            writer.close()

    def _fail(self) -> None:
        """Kill the process and put off the next start: at once after the first failure, then longer and longer."""
        self._stop()
        delay = min(BACKOFF_FIRST_S * 2 ** (self._failures - 1), BACKOFF_MAX_S) if self._failures else 0.0
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + delay

    def _stop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._graves.append(process)

"""/dev/kmsg read as it comes: the shell around `core.devices.kernel_log`, which knows what the lines mean.

The kernel hands out one record per read. A pipe or a file (a recorded log) is read by lines instead; lines that begin with a
blank belong to the record before. Where reading stopped is kept in a file, by boot id and sequence number, so that a restarted
agent neither misses a record nor takes an old one for new; only records that were overwritten meanwhile are lost, and then the
node reports kmsg-gap with their number.

A record about a device this node does not know (an NVSwitch, a device whose id is not known yet) is the node's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from remuda.agent.hardware.device_ids import write_whole_hardware_file
from remuda.agent.hardware.signal_listeners import NODE
from remuda.core.devices.kernel_log import KernelFault, KernelLogCursor, KernelLogGap, KernelLogParser

log = structlog.get_logger(__name__)

SOURCE = "kmsg"
RECORD_BYTES = 16 << 10  # the kernel refuses a read that cannot take a whole record
TURN = 1000  # records per turn of the event loop: a flood must not stop the agent
POLL_S = 1.0  # of a file that cannot be waited for
SAVE_EVERY = 1000  # records; a cursor that is behind only makes the next agent read some again


class SignalReports(Protocol):
    """The part of a backend this needs."""

    def report(self, device: str, source: str, code: str, message: str = "", at: float | None = None) -> None: ...

    def device_at(self, key: str) -> str: ...


class KmsgSource:
    """`uptime`: seconds on the clock of the records' times."""

    def __init__(
        self,
        backend: SignalReports,
        boot: str,
        *,
        path: Path = Path("/dev/kmsg"),
        cursor: Path | None = None,
        clock: Callable[[], float],
        uptime: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._path = path
        self._cursor = cursor
        self._clock = clock
        self._uptime = uptime
        self._reader = KernelLogParser(boot, _load_kmsg_cursor(cursor))
        self._saved = self._reader.cursor
        self._fd = -1
        self._is_device = False
        self._rest = b""
        self._task: asyncio.Task[None] | None = None

    @property
    def cursor(self) -> KernelLogCursor:
        return self._reader.cursor

    async def open(self) -> None:
        """Begin to read. OSError when the file cannot be: no permission, or no such file."""
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_device = stat.S_ISCHR(os.fstat(self._fd).st_mode)
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(self._fd, self.pump)
        except PermissionError:  # a regular file is always readable, so it cannot be waited for
            self._task = loop.create_task(self._poll(), name="kmsg")
        self._backend.report(NODE, SOURCE, "kmsg-back")
        self.pump()

    async def close(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(PermissionError, ValueError):
            asyncio.get_running_loop().remove_reader(self._fd)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        os.close(self._fd)
        self._fd = -1
        self._save()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            self.pump()

    def pump(self) -> None:
        """Read what is there, at most TURN records of it."""
        for _ in range(TURN):
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overwritten under our hands; the next record's number tells how many
                log.warning("kmsg.unreadable", path=str(self._path), error=str(error))
                self._hang_up()
                break
            if not data:
                if not self._is_device and self._task is None:
                    self._hang_up()  # the writer's end of a pipe was closed: it would be "readable" for ever
                break
            for record in [data] if self._is_device else self._records(data):
                self._take(record)
        if self._reader.cursor.seq - self._saved.seq >= SAVE_EVERY:
            self._save()

    def _records(self, data: bytes) -> list[bytes]:
        """Whole records out of a stream of lines."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        records: list[bytes] = []
        for line in lines:
            if line.startswith(b" ") and records:
                records[-1] += b"\n" + line
            elif line:
                records.append(line)
        return records

    def _take(self, record: bytes) -> None:
        events = self._reader.feed(record)
        for event in events:
            if isinstance(event, KernelLogGap):
                said = f"{event.missing} kernel messages ({event.first} to {event.last}) were overwritten before they were read."
                self._backend.report(NODE, SOURCE, "kmsg-gap", said)
            else:
                self._tell(event)
        if events:
            self._save()

    def _tell(self, sighting: KernelFault) -> None:
        age_s = max(0.0, self._uptime() - sighting.usec / 1e6)
        more = f" ({sighting.skipped} more like it before)" if sighting.skipped else ""
        device = self._backend.device_at(sighting.pci) if sighting.pci else NODE
        self._backend.report(device, SOURCE, sighting.code, f"{sighting.message}{more}", self._clock() - age_s)

    def _hang_up(self) -> None:
        with contextlib.suppress(PermissionError, ValueError):
            asyncio.get_running_loop().remove_reader(self._fd)
        self._backend.report(NODE, SOURCE, "kmsg-lost", f"{self._path} cannot be read any more.")

    def _save(self) -> None:
        if self._cursor is not None and self._reader.cursor != self._saved:
            write_whole_hardware_file(self._cursor, msgspec.json.encode(self._reader.cursor))
        self._saved = self._reader.cursor


def _load_kmsg_cursor(path: Path | None) -> KernelLogCursor | None:
    if path is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=KernelLogCursor)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        log.warning("kmsg.cursor", path=str(path), error=str(error))
        return None

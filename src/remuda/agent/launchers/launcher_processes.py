"""The processes behind a launcher's connection, for drills: who dialled, as the kernel says it, and its child.

What a launcher says of itself is not believed: a pid in a message could be anybody's, and the agent is root. The kernel names
the process that dialled (SO_PEERCRED), and with the moment of its start it cannot be mistaken for a later one of the same number.
Only a process of that container reaches that socket, so a pod can have nothing ended by this but itself.

An agent in a process namespace of its own sees no process of other pods: the kernel says 0 then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class LauncherProcess(msgspec.Struct, frozen=True):
    """`pid` 0: not to be seen from here. `started`: in ticks since the boot."""

    pid: int = 0
    started: int = -1


def launcher_process_behind_socket(sock: Any) -> LauncherProcess:
    """Who is at the other end of a Unix socket."""
    try:
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(found)[0]
    except (OSError, AttributeError, struct.error):
        return LauncherProcess()
    return LauncherProcess(pid, _stat_field(pid, _STARTED)) if pid > 0 else LauncherProcess()


def signal_launcher_process(process: LauncherProcess, number: signal.Signals) -> None:
    """ProcessLookupError when it is gone."""
    with _held_process(process) as fd:
        signal.pidfd_send_signal(fd, number)


def signal_user_process(process: LauncherProcess, number: signal.Signals) -> bool:
    """To the launcher's child that leads a process group, and to that group: the user's command. (A scan of checkpoints is a
    child, too, and leads none.) False when there is none now. ProcessLookupError when the launcher is gone."""
    with _held_process(process):
        for child in _children_of(process.pid):
            is_the_command = _stat_field(child, _GROUP) == child and _stat_field(child, _PARENT) == process.pid
            if is_the_command:
                os.killpg(child, number)
                return True
    return False


@contextlib.contextmanager
def _held_process(process: LauncherProcess) -> Iterator[int]:
    """A descriptor of exactly this process: while it is held no other one is meant, whatever becomes of the number."""
    if process.pid in (0, os.getpid()) or process.started < 0:
        raise ProcessLookupError("its process is not to be seen from here")
    fd = os.pidfd_open(process.pid)
    try:
        if _stat_field(process.pid, _STARTED) != process.started:
            raise ProcessLookupError("the process that dialled is gone")
        yield fd
    finally:
        os.close(fd)


_PARENT, _GROUP, _STARTED = 1, 2, 19  # fields of /proc/PID/stat, counted from the state


def _stat_field(pid: int, field: int) -> int:
    """-1 when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[field])  # the name in brackets may hold anything
    except (OSError, IndexError, ValueError):
        return -1


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    return sorted(found, key=lambda child: _stat_field(child, _STARTED))

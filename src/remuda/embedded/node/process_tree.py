"""Reading /proc: who is whose child, and which processes belong to a container.

Every process of a container carries the container's id in its environment, so its processes are found even when whatever
tied them together (shim, launcher, process group) is gone. Reads only; every process may end at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_NEWBORN_S = 5.0  # an exec takes microseconds; whoever shows no arguments for longer has none


def child_processes(pid: int) -> list[int]:
    """Direct children, oldest first."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return sorted(found, key=lambda child: _stat_number(child, 19))


def is_process_tree_group_leader(pid: int) -> bool:
    return _stat_number(pid, 2) == pid


class FoundProcesses(NamedTuple):
    """`unsure`: some process is in the middle of its exec and shows nothing of itself yet; look again."""

    pids: list[int]
    unsure: bool = False

    def __bool__(self) -> bool:
        return bool(self.pids) or self.unsure


def processes_tagged(name: str, values: Collection[str]) -> FoundProcesses:
    """Processes with `name=value` in their environment, for any of the values."""
    if not values:
        return FoundProcesses([])
    return _search_processes("environ", {f"{name}={value}".encode() for value in values})


def processes_with_shim_argument(argument: str) -> FoundProcesses:
    """Processes with exactly this argument on their command line."""
    return _search_processes("cmdline", {argument.encode()})


def _search_processes(file_name: str, wanted: set[bytes]) -> FoundProcesses:
    pids, unsure = [], False
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        data = _read_proc_file(f"/proc/{entry}/{file_name}")
        if data == b"":
            if _is_newborn_process(int(entry)):
                unsure = True
                continue
            data = _read_proc_file(f"/proc/{entry}/{file_name}")  # its exec may have ended between the two looks
        if data and not wanted.isdisjoint(data.split(b"\0")):  # None: it ended, or is not ours to look into
            pids.append(int(entry))
    return FoundProcesses(pids, unsure)


def _is_newborn_process(pid: int) -> bool:
    """Between exec and the setting up of its arguments. (Kernel threads and zombies show none either.)"""
    fields = _proc_stat(pid)
    if (
        fields is None
        or fields[0] in (b"Z", b"X")
        or int(fields[6]) & _KERNEL_THREAD
        or _read_proc_file(f"/proc/{pid}/cmdline")
    ):
        return False
    uptime = _read_proc_file("/proc/uptime") or b"0"
    age_s = float(uptime.split()[0]) - int(fields[19]) / _TICKS_PER_S
    return age_s < _NEWBORN_S


def _read_proc_file(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _proc_stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on."""
    data = _read_proc_file(f"/proc/{pid}/stat")
    return data.rsplit(b")", 1)[1].split() if data else None  # the name in brackets may hold anything


def _stat_number(pid: int, field: int) -> int:
    """-1 when the process is gone."""
    fields = _proc_stat(pid)
    return int(fields[field]) if fields is not None else -1

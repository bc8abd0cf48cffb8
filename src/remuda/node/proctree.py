"""Reading /proc: who is whose child, and which processes belong to a container.

Every process of a container carries the container's id in its environment, so its processes are found even when whatever
tied them together (shim, launcher, process group) is gone. Reads only; every process may end at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator


def children(pid: int) -> list[int]:
    """Direct children, oldest first."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return sorted(found, key=lambda child: _number(child, 19))


def leads_group(pid: int) -> bool:
    return _number(pid, 2) == pid


def tagged(name: str, values: Collection[str]) -> list[int]:
    """Processes with `name=value` in their environment, for any of the values."""
    if not values:
        return []
    wanted = {f"{name}={value}".encode() for value in values}
    mark = f"{name}=".encode()
    return [pid for pid, data in _each("environ") if mark in data and not wanted.isdisjoint(data.split(b"\0"))]


def running(argument: str) -> list[int]:
    """Processes with exactly this argument on their command line."""
    wanted = argument.encode()
    return [pid for pid, data in _each("cmdline") if wanted in data.split(b"\0")]


def _each(file_name: str) -> Iterator[tuple[int, bytes]]:
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/{file_name}", "rb") as file:
                    yield int(entry), file.read()
            except OSError:
                continue  # it ended, or is not ours to look into


def _number(pid: int, field: int) -> int:
    """A field of /proc/PID/stat, counted from the state; -1 when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[field])
    except (OSError, IndexError, ValueError):
        return -1

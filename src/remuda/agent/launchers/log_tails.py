"""The end of what a rank wrote, from the log file that the kubelet's runtime keeps of its container.

On a kubelet a container's output is a pipe into the runtime, so the launcher cannot read it back as it does where its log is a
file. The runtime writes what comes out of the pipe to `<root>/<namespace>_<pod>_<uid>/<container>/<restarts>.log`, in the form of
the CRI: time, stream, P or F (part of a line, or its end), text. Read there, and nothing about the rank's process is touched:
no pipe of ours that it could block on or die of.

The runtime empties its pipes at its own pace. So the exit of a rank whose end is asked for is held back until two looks, SETTLE_S
apart, show the same words: nearly always the same time, lest one rank of a gang be heard long before another; longer while its
attempt has written nothing or still writes. Never an error: what cannot be read is "".
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.gang.kubelet_pods import LAUNCHER_NAME
from remuda.launch.protocol import MAX_TAIL
from remuda.link.untrusted_files import read_untrusted_end

SETTLE_S = 0.25
LOOKS = 12  # at most: a rank that ended without a word is not waited for any longer
WINDOW_BYTES = 256 * 1024  # of the file: short lines are mostly time and stream

_LINE = re.compile(rb"\d{4}-\d\d-\d\dT\S+ (stdout|stderr) ([PF])\S* (.*)", re.DOTALL)
_MARKER = re.compile(r"--- remuda attempt=(\d+) rank=\S+ host=\S+ time=[\d.]+ ---\n$")
_CURRENT = re.compile(r"(\d+)\.log")


class LauncherLogTails(Protocol):
    async def read(self, pod: str, uid: str, namespace: str, container: str, attempt: int) -> str:
        """The end of what that attempt wrote; "" when nobody knows."""
        ...


class LauncherPodLogTails:
    """`root`: the kubelet's podLogsDir."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    async def read(self, pod: str, uid: str, namespace: str, container: str, attempt: int) -> str:
        directory = self._root / f"{namespace}_{pod}_{uid}" / container
        if not container or not directory.is_dir():
            return ""
        before: str | None = None
        for _ in range(LOOKS):
            await asyncio.sleep(SETTLE_S)
            found = launcher_log_tail(await asyncio.to_thread(read_launcher_log_tail_window, directory), attempt)
            if found and found == before:
                break
            before = found
        return before or ""


def container_running_launcher_process(pod: Pod) -> str:
    """The container that runs the launcher."""
    containers = pod.spec.containers
    found = (c.name for c in containers if f"/{LAUNCHER_NAME}" in " ".join(c.command))
    return next(found, containers[0].name if containers else "")


def launcher_log_tail(window: bytes, attempt: int) -> str | None:
    """What the attempt wrote last, from the end of a file. None: nothing of it is there, only what others wrote before.

    The launcher writes a marker before each start on either stream, and the runtime writes the two in any order: a line is of
    the attempt whose marker it follows on its own stream. A stream without one (it stands further up) goes by the other's.
    """
    lines = list(_launcher_log_lines(window))
    marks = [(at, stream, int(found[1])) for at, (stream, text) in enumerate(lines) if (found := _MARKER.search(text))]
    if not marks:
        return "".join(text for _, text in lines)[-MAX_TAIL:]  # it began further up
    last = {stream: (at, whose) for at, stream, whose in marks}
    begun = {stream: at if whose == attempt else len(lines) for stream, (at, whose) in last.items()}
    if min(begun.values()) == len(lines):
        return None
    others = marks[-1][0] if marks[-1][2] == attempt else len(lines)
    kept = (text for at, (stream, text) in enumerate(lines) if at > begun.get(stream, others))
    return "".join(kept)[-MAX_TAIL:]


def _launcher_log_lines(window: bytes) -> Iterator[tuple[str, str]]:
    """(stream, line), each when it is whole; what has no end yet comes last."""
    parts = {"stdout": "", "stderr": ""}
    for line in window.split(b"\n"):
        found = _LINE.fullmatch(line)
        if found is None:  # as the first, which may have lost its beginning
            continue
        stream = found[1].decode()
        parts[stream] += found[3].decode("utf-8", "replace")
        if found[2] == b"F":
            yield stream, parts[stream] + "\n"
            parts[stream] = ""
    yield from ((stream, text) for stream, text in parts.items() if text)


def read_launcher_log_tail_window(directory: Path) -> bytes:
    """The last WINDOW_BYTES of a container's newest log; when that was begun anew a moment ago, of the one before it, too."""
    try:
        names = os.listdir(directory)
    except OSError:
        return b""
    runs = [int(found[1]) for name in names if (found := _CURRENT.fullmatch(name))]
    if not runs:
        return b""
    current = f"{max(runs)}.log"
    window = _read_launcher_log_end(directory, current, WINDOW_BYTES)
    if len(window) < WINDOW_BYTES:
        rotated = sorted(
            n for n in names if n.startswith(f"{current}.") and n[len(current) + 1 :].replace("-", "").isdigit()
        )
        if rotated:
            window = _read_launcher_log_end(directory, rotated[-1], WINDOW_BYTES - len(window)) + window
    return window


def _read_launcher_log_end(directory: Path, name: str, size: int) -> bytes:
    """No link is followed: where logs are links (docker), what they point at is not ours to read."""
    try:
        return read_untrusted_end(directory, name, size)
    except OSError:
        return b""

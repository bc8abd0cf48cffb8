"""Commands a manager may have run on this node: which, with what around them, and for how long.

Whoever may write NodeDevices could otherwise run anything as root on every node, so the node's own configuration has the say
(`--allow-hook`), and its default is none. A pattern is written as a command line; each word is a shell pattern for one argument,
and a last word `...` stands for any that follow. The program is an absolute path, compared directory by directory, so that `*`
never reaches into another one. There is no shell in between, and of the order's variables only REMUDA_* are passed on:
LD_PRELOAD would make any program every program.

A command is its own process group, killed whole at the deadline or when the agent ends. Of its output the end is kept, as long as
a message may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from remuda.api.errors import Refusal

LONGEST_OUTPUT = 1024
REST = "..."
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LANG": "C.UTF-8"}


class HookOutput(msgspec.Struct, frozen=True):
    code: int  # as a shell says it: 128 + n after signal n
    output: str  # the end of what it wrote


Run = Callable[[Sequence[str], Mapping[str, str]], Awaitable[HookOutput]]


def parse_node_hooks(patterns: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Refusal InvalidHookPattern."""
    found: list[tuple[str, ...]] = []
    for pattern in patterns:
        try:
            words = tuple(shlex.split(pattern))
        except ValueError as error:
            raise _invalid_node_hook(pattern, str(error)) from None
        if not words or not words[0].startswith("/") or os.path.normpath(words[0]) != words[0]:
            raise _invalid_node_hook(pattern, "its program must be an absolute path")
        found.append(words)
    return tuple(found)


def _invalid_node_hook(pattern: str, why: str) -> Refusal:
    return Refusal(
        "InvalidHookPattern",
        f"`{pattern}` cannot be allowed: {why}.",
        "Write for example --allow-hook '/opt/site/recycle-node --force ...'.",
        "allow-hook",
    )


def is_node_command_order_allowed(command: Sequence[str], allowed: Sequence[Sequence[str]]) -> bool:
    return any(_hook_matches(command, pattern) for pattern in allowed)


def _hook_matches(command: Sequence[str], pattern: Sequence[str]) -> bool:
    is_open = len(pattern) > 1 and pattern[-1] == REST
    words = pattern[:-1] if is_open else pattern
    if not command or len(command) < len(words) or (len(command) > len(words) and not is_open):
        return False
    return _is_hook_program(command[0], words[0]) and all(map(fnmatchcase, command[1:], words[1:]))


def _is_hook_program(path: str, pattern: str) -> bool:
    parts, wanted = path.split("/"), pattern.split("/")
    is_plain = path.startswith("/") and os.path.normpath(path) == path
    return is_plain and len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def check_node_command_order(
    command: Sequence[str], env: Mapping[str, str], allowed: Sequence[Sequence[str]], node: str
) -> None:
    """Refusal HookNotAllowed or VariableNotAllowed."""
    if not is_node_command_order_allowed(command, allowed):
        raise Refusal(
            "HookNotAllowed",
            f"{node} does not allow `{shlex.join(command)}`.",
            "To allow it, start the node's agent with --allow-hook for it.",
            "command",
        )
    if foreign := sorted(name for name in env if not name.startswith("REMUDA_")):
        raise Refusal(
            "VariableNotAllowed", f"{', '.join(foreign)} may not be set for a hook.", "Name variables REMUDA_*.", "env"
        )


async def run_node_hook(command: Sequence[str], env: Mapping[str, str]) -> HookOutput:
    """Until it ends. Cancelled, its whole process group is killed and not waited for: one stuck in a driver never ends."""
    reader, writer = os.pipe()
    try:
        # Not asyncio's: it waits for the process when it is cancelled.
        process = subprocess.Popen(  # noqa: ASYNC220
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.STDOUT,
            env={**ENVIRONMENT, **env},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        os.close(reader)
        return HookOutput(127, f"It could not be started: {error}.")
    finally:
        os.close(writer)
    _graves[:] = [grave for grave in _graves if grave.poll() is None]
    loop, ended, output = asyncio.get_running_loop(), asyncio.Event(), _HookOutputTail(reader)
    exits = os.pidfd_open(process.pid)
    loop.add_reader(exits, ended.set)
    loop.add_reader(reader, output.read)
    output.on_end = lambda: loop.remove_reader(reader)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(exits)
        loop.remove_reader(reader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left in its group goes with it
        if process.poll() is None:
            _graves.append(process)
        while output.read():
            pass
        os.close(exits)
        os.close(reader)
    code = process.returncode
    return HookOutput(code if code >= 0 else 128 - code, output.text)


_graves: list[subprocess.Popen[bytes]] = []  # killed, and not known to be gone


class _HookOutputTail:
    """The last of what comes through a pipe."""

    def __init__(self, file: int) -> None:
        os.set_blocking(file, False)
        self._file = file
        self._kept = b""
        self.on_end: Callable[[], object] = lambda: None

    def read(self) -> bool:
        """Whether there was anything."""
        try:
            piece = os.read(self._file, 65536)
        except BlockingIOError:
            return False
        self._kept = (self._kept + piece)[-LONGEST_OUTPUT:]
        if not piece:
            self.on_end()
        return bool(piece)

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace").strip()

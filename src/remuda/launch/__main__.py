"""`remuda-launch -- COMMAND [ARG ...]`: the first process of a training container.

With REMUDA_ALLOC_DIR it waits at the barrier for its node's agent. Without it, or when that directory never appears, it
runs the command once, as attempt 1, and exits with its code: an image stays usable where there is no Remuda.
"""

import os
import select
import sys

from remuda.launch.launcher_machine import LauncherIdentity
from remuda.launch.launcher_shell import (
    MESSAGE_SIGNALS,
    LauncherShell,
    LauncherSignalPipe,
    launcher_clock,
    write_launcher_log,
)

USAGE = "usage: remuda-launch [--] COMMAND [ARG ...]"
DIRECTORY_WAIT_S = 10.0  # mounts exist before the container starts; this only covers a slow bind mount
DIRECTORY_POLL_MS = 20
DEFAULT_GRACE_S = 5.0


def main(argv: list[str] | None = None) -> int:
    args = sys.argv[1:] if argv is None else argv
    if args[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    command = args[1:] if args[:1] == ["--"] else args
    if not command or command[0].startswith("-") or "" in command[:1]:
        write_launcher_log(f"NoCommand: there is nothing to run. {USAGE}")
        return 2
    _undo_locale_coercion()
    signals = LauncherSignalPipe()
    directory = os.environ.get("REMUDA_ALLOC_DIR") or None
    if directory is None:
        write_launcher_log("no Remuda agent here (REMUDA_ALLOC_DIR is not set): running the command once, by itself")
    else:
        directory = os.path.abspath(directory)
        found = _wait_for_alloc_directory(directory, signals)
        if found is None:
            return 128 + MESSAGE_SIGNALS[0]
        if not found:
            write_launcher_log(f"{directory} (REMUDA_ALLOC_DIR) did not appear: running the command once, by itself")
            directory = None
    identity = LauncherIdentity(
        pod=os.environ.get("REMUDA_POD_NAME") or os.uname().nodename,
        uid=os.environ.get("REMUDA_POD_UID", ""),
        pid=os.getpid(),
        stop_grace=_stop_grace_seconds(),
        standalone=directory is None,
    )
    return LauncherShell(command, signals, identity, directory).run()


def _undo_locale_coercion() -> None:
    """In the C locale the interpreter sets LC_CTYPE for itself (PEP 538); the user's command must not inherit that."""
    if os.environ.get("LC_CTYPE", "").upper().endswith("UTF-8"):
        with open("/proc/self/environ", "rb") as file:
            if b"LC_CTYPE" not in (entry.partition(b"=")[0] for entry in file.read().split(b"\0")):
                del os.environ["LC_CTYPE"]


def _wait_for_alloc_directory(directory: str, signals: LauncherSignalPipe) -> bool | None:
    """None = told to terminate while waiting."""
    poll = select.poll()
    poll.register(signals.fd, select.POLLIN)
    until = launcher_clock() + _seconds_from_env("REMUDA_ALLOC_WAIT", DIRECTORY_WAIT_S)
    while not os.path.isdir(directory):
        if poll.poll(DIRECTORY_POLL_MS) and any(number in MESSAGE_SIGNALS for number in signals.read()):
            return None
        if launcher_clock() >= until:
            return False
    return True


def _stop_grace_seconds() -> float:
    return _seconds_from_env("REMUDA_STOP_GRACE", DEFAULT_GRACE_S)


def _seconds_from_env(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
        if not 0 <= value < 1e9:
            raise ValueError
    except ValueError:
        write_launcher_log(f"{name} must be a number of seconds, not {text!r}: using {default:g}")
        return default
    return value


if __name__ == "__main__":
    sys.exit(main())

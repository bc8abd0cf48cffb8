"""What the container wrote, read back from the log that a pipe leads to.

On an embedded node the container's output is a pipe to its shim, which keeps the log (`embedded.node.shim`) and says in
REMUDA_LOG_FILE where. What was written is there once the pipe is empty and the shim has nothing in its hands; while it has, it
holds the pipe's lock. A log that has grown too long is begun anew, and what was before is in `<log>.<position of its first
byte>`. Positions count all that was ever written. Never an error: what cannot be read is not there.
"""

import os
import time

LOG_FILE = "REMUDA_LOG_FILE"
_SETTLE_S = 1.0  # a shim that has not written it by then waits for a disk
_FIONREAD, _LOCK_SH, _LOCK_NB = 0x541B, 1, 4


def has_user_output_log() -> bool:
    return bool(os.environ.get(LOG_FILE))


def log_file_position() -> int:
    """Where the next byte will be; -1 when there is no log to be read."""
    path = os.environ.get(LOG_FILE, "")
    if not path:
        return -1
    held = _all_written()
    try:
        _, begin, length = _newest_older_log(path)
        return begin + length + _file_size(path)
    finally:
        _let_go(held)


def user_output_log_end(since: int, size: int) -> bytes:
    """The last bytes of what was written from that position on."""
    path = os.environ.get(LOG_FILE, "")
    if not path or since < 0:
        return b""
    held = _all_written()
    try:
        older, begin, length = _newest_older_log(path)
        window = _file_end(path, size)
        if len(window) < size and older:
            window = _file_end(older, size - len(window)) + window
        written = begin + length + _file_size(path) - since
        return window[-min(size, written) :] if written > 0 else b""
    finally:
        _let_go(held)


def _all_written() -> int:
    """A descriptor that holds the pipe's lock, -1 when it could not be had in time."""
    import fcntl

    try:
        pipe = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        try:
            # First empty, then locked: what the shim had read by then it has written.
            if not any(fcntl.ioctl(pipe, _FIONREAD, bytes(4))):
                fcntl.flock(pipe, _LOCK_SH | _LOCK_NB)
                return pipe
        except BlockingIOError:
            pass
        except OSError:
            break
        time.sleep(0.001)
    os.close(pipe)
    return -1


def _let_go(pipe: int) -> None:
    if pipe >= 0:
        os.close(pipe)


def _newest_older_log(path: str) -> tuple[str, int, int]:
    """What was the log before the present one: its path, where it begins and how long it is."""
    directory, name = os.path.split(path)
    try:
        found = [n for n in os.listdir(directory) if n.startswith(f"{name}.") and n[len(name) + 1 :].isdigit()]
    except OSError:
        return "", 0, 0
    if not found:
        return "", 0, 0
    newest = max(found)
    return os.path.join(directory, newest), int(newest[len(name) + 1 :]), _file_size(os.path.join(directory, newest))


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _file_end(path: str, size: int) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except OSError:
        return b""

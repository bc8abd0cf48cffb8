"""Where user code's progress arrives: datagrams of the helper, or the file a script without it writes.

The file is looked at four times a second, and no longer once a datagram has come: whoever has the helper needs no file.
"""

import os

from remuda.launch import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
else:  # the C module: `socket` imports `enum`, `selectors` and half the library
    import _socket as socket

FILE_POLL_S = 0.25
REGULAR_FILE = 0o100000


class ProgressInbox:
    def __init__(self, directory: str, complain: "Callable[[str], None]") -> None:
        self.socket_path: str | None = f"{directory}/progress.sock"
        self.file_path = f"{directory}/progress.json"
        self.poll_file_at: float | None = None
        self._complain = complain
        self._has_complained = False
        self._seen: tuple[int, int] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                try:
                    os.unlink("progress.sock", dir_fd=handle)
                except FileNotFoundError:
                    pass
                self._socket.bind(f"/proc/self/fd/{handle}/progress.sock")
            finally:
                os.close(handle)
        except OSError as error:
            self.socket_path = None
            complain(f"no progress socket in {directory} ({error}): only the progress file is read")

    def fileno(self) -> int:
        return self._socket.fileno()

    def open(self, now: float) -> None:
        """A new child begins: what an older one left must not be taken for its word."""
        try:
            os.unlink(self.file_path)
        except OSError:
            pass
        while self._receive() is not None:
            pass
        self._seen = None
        self._has_complained = False
        self.poll_file_at = now + FILE_POLL_S

    def close(self) -> None:
        """The child is gone."""
        self.poll_file_at = None

    def read_datagrams(self) -> list[protocol.Progress]:
        reports = []
        while (data := self._receive()) is not None:
            self.poll_file_at = None
            reports += self._parse(data)
        return reports

    def read_file(self, now: float) -> list[protocol.Progress]:
        if self.poll_file_at is None:
            return []
        self.poll_file_at = now + FILE_POLL_S
        try:
            # Never waits: what the child put there may be a pipe that nobody writes to, or lead to a file system that hangs.
            fd = os.open(self.file_path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(fd, "rb", buffering=0) as file:
                found = os.fstat(fd)
                if found.st_mode & 0o170000 != REGULAR_FILE or (found.st_ino, found.st_mtime_ns) == self._seen:
                    return []
                self._seen = (found.st_ino, found.st_mtime_ns)
                data = file.read(protocol.MAX_LINE_BYTES)
        except OSError:
            return []
        return self._parse(data)

    def _receive(self) -> bytes | None:
        try:
            return self._socket.recv(protocol.MAX_LINE_BYTES)
        except OSError:
            return None

    def _parse(self, data: bytes) -> list[protocol.Progress]:
        try:
            return [protocol.decode_user_process_progress(data)]
        except protocol.ProtocolError as error:
            if not self._has_complained:  # once a child is enough
                self._has_complained = True
                self._complain(f"ignored a progress report: {error}")
            return []

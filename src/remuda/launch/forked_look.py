"""A question to a file system that may never answer, asked by a forked process.

A call into a file system whose server is away does not return until that is back, and nothing wakes the caller. So whatever the
launcher wants to know of the user's volumes is asked by a process of its own, which answers through a pipe:

- The answer is one line of JSON. Whoever ends without one (killed, out of memory) has said nothing about what is there.
- Nobody waits for it for longer than is asked for. Given up it is killed; one that the kernel cannot end stays until its call
  returns, and does nothing more then.
- It is none of the user's processes. It holds neither the log nor any socket of the launcher: those who wait for their end
  would wait for the file system.
"""

import os
import select
import time

from remuda.launch import jsonline
from remuda.launch.protocol import SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
    from typing import Any
else:  # the C module: `signal` imports `enum` and half the library
    import _signal as signal

_READ_BYTES = 1 << 16


class AnswerPipe:
    """What a forked process says, up to its end. `fd` can be read when `is_over` has something new to find."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._data = b""
        self._is_over = False

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Takes in what was said, waiting that long for the end."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        until = time.monotonic() + wait_s
        while not self._is_over and poll.poll(max(0, int((until - time.monotonic()) * 1000))):
            data = os.read(self.fd, _READ_BYTES)
            self._data += data
            self._is_over = not data
        return self._is_over

    def answers(self) -> "list[Any]":
        """The values of its lines, up to the first that is not whole."""
        found = []
        for line in self._data.splitlines():
            try:
                found.append(jsonline.parse_json_line(line))
            except ValueError:
                break
        return found

    def close(self) -> None:
        os.close(self.fd)


class ForkedLook:
    """`pid` is to be waited for by whoever reaps children."""

    def __init__(self, question: "Callable[[], object]", close: "Iterable[int]" = ()) -> None:
        """`question`: what it does; its result is the answer. `close`: descriptors that are not its business. Raises OSError when
        there can be no such process."""
        read, write = os.pipe2(os.O_CLOEXEC)
        self.pipe = AnswerPipe(read)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            raise
        if self.pid == 0:
            _look(question, write, close)
        os.close(write)

    def answer(self) -> "Any":
        """Once it is over. None when it ended without one."""
        found = self.pipe.answers()
        return found[0] if found else None

    def give_up(self, *, is_reaped: bool) -> None:
        """Nobody waits for it any more. Once it is reaped its number may be another's."""
        self.pipe.close()
        if not is_reaped:
            os.kill(self.pid, SIGNALS["KILL"])


def _look(question: "Callable[[], object]", write: int, close: "Iterable[int]") -> None:
    """The forked process, to its end."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (SIGNALS["TERM"], SIGNALS["INT"], SIGNALS["HUP"]):
            signal.signal(number, signal.SIG_DFL)
        for fd in close:
            os.close(fd)
        nothing = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.write(write, jsonline.encode_launch_json_line(question()).encode())
    finally:
        os._exit(0)

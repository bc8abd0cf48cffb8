"""Connections to launchers: a Unix socket per allocation, or a plain function for a simulated pod.

The socket is `agent.sock` in the allocation's directory, so reaching it at all identifies the allocation. Whose that is may
not be known yet: then the first to say hello waits, unread, while `meet` finds out, and goes on when its pod is the one
(`listen` again, with the uid). Socket paths are limited to 107 bytes and state directories are not, hence
/proc/self/fd/<directory>/agent.sock. It is bound in the directory above, given its mode, and renamed into place: a launcher that
waits for it never meets one it may not use, and nothing in a directory that a container can write is followed.

What comes in is not trusted. The first line must be a `hello` with the pod's uid; only then does a connection count, and it
replaces the one before it (the launcher was restarted, or its old connection is a corpse). Anything malformed ends the
connection with a logged reason; the launcher dials again. A launcher that talks too fast is not read from until it has slowed
down, so its own socket buffer fills and not our memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Protocol

import structlog

from remuda.agent.launchers.in_process_messages import (
    parse_in_process_launcher_message,
    render_in_process_launcher_message,
)
from remuda.agent.launchers.launcher_processes import LauncherProcess, launcher_process_behind_socket
from remuda.launch.protocol import (
    Exited,
    Heartbeat,
    Hello,
    MessageLineReader,
    ProtocolError,
    Ready,
    Running,
    ToAgent,
    ToLauncher,
    decode_launch_message,
    encode_launch_message,
)
from remuda.link.allocation_port import Deliver, Message
from remuda.link.untrusted_files import untrusted_directory

log = structlog.get_logger(__name__)

SOCKET = "agent.sock"
RATE = 200.0  # messages a second a launcher may send in the long run; ten heartbeats a second are the most it has reason to
BURST = 400.0
PAUSE_S = 0.1  # between two looks at a launcher that has used up its share
HELLO_WITHIN_S = 10.0
MAX_STRANGERS = 8  # connections of one allocation that have not said hello
MAX_UNREAD_BYTES = 1 << 20  # for a launcher that does not read what it is told

_TO_AGENT = (Hello, Ready, Running, Exited, Heartbeat)


class LauncherChannel(Protocol):
    def send(self, message: ToLauncher) -> None: ...

    def close(self) -> None:
        """Nothing more is heard from it."""
        ...


class LauncherConnections:
    """The live connection of each allocation. `hear` and `lose` are called for live connections only."""

    def __init__(self, node: str, hear: Callable[[str, ToAgent], None], lose: Callable[[str], None]) -> None:
        self.node = node
        self.meet: Callable[[str, Hello], None] = lambda directory, hello: None  # said at a door that is nobody's yet
        self.socket_mode = 0o600
        self._hear = hear
        self._lose = lose
        self._live: dict[str, LauncherChannel] = {}
        self._doors: dict[str, LauncherDoor] = {}  # by directory: a pod may have several

    async def listen(self, uid: str, directory: str) -> None:
        """Open the allocation's socket for the pod; uid "" when it is not known yet. Open already, it is the pod's now."""
        door = self._doors.get(directory)
        if door is not None and door.uid in ("", uid):
            door.claim(uid)
            return
        if door is not None:
            self.shut(directory)
        sock = bind_agent_launcher_socket(directory, self.socket_mode)
        door = self._doors[directory] = LauncherDoor(self, uid, directory)
        try:
            await door.open(sock)
        except BaseException:
            sock.close()
            del self._doors[directory]
            raise

    def shut(self, directory: str) -> None:
        """Stop listening there."""
        door = self._doors.pop(directory, None)
        if door is not None:
            door.close()

    def connect(self, uid: str, deliver: Deliver) -> Deliver:
        """A simulated pod's channel: `deliver` gets what the agent says, the result takes what the launcher says."""
        channel = InProcessChannel(self, uid, deliver)
        return channel.receive

    def send(self, uid: str, message: ToLauncher) -> None:
        """To the live connection, if there is one."""
        channel = self._live.get(uid)
        if channel is not None:
            channel.send(message)

    def process_of(self, uid: str) -> LauncherProcess | None:
        """Who dialled the live connection; None without one."""
        channel = self._live.get(uid)
        return channel.process if isinstance(channel, SocketChannel) else None

    def hang_up(self, uid: str) -> None:
        """Forget the live connection without a word about it."""
        channel = self._live.pop(uid, None)
        if channel is not None:
            channel.close()

    def close(self, uid: str) -> None:
        """Hang up and stop listening."""
        self.hang_up(uid)
        for directory in [at for at, door in self._doors.items() if door.uid == uid]:
            self.shut(directory)

    def close_all(self) -> None:
        for uid in tuple(self._live):
            self.hang_up(uid)
        for directory in tuple(self._doors):
            self.shut(directory)

    # --- for channels ---------------------------------------------------------------------------------------------------

    def take(self, uid: str, channel: LauncherChannel, message: ToAgent) -> None:
        """A message; a hello makes its channel the live one."""
        if isinstance(message, Hello) and self._live.get(uid) is not channel:
            old = self._live.get(uid)
            self._live[uid] = channel
            if old is not None:
                log.info("launcher.replaced", node=self.node, uid=uid, pid=message.pid)
                old.close()
        if self._live.get(uid) is channel:
            self._hear(uid, message)

    def drop(self, uid: str, channel: LauncherChannel) -> None:
        if self._live.get(uid) is channel:
            del self._live[uid]
            self._lose(uid)


class InProcessChannel:
    def __init__(self, launchers: LauncherConnections, uid: str, deliver: Deliver) -> None:
        self._launchers = launchers
        self._uid = uid
        self._deliver = deliver
        self._closed = False

    def send(self, message: ToLauncher) -> None:
        self._deliver(render_in_process_launcher_message(message))

    def receive(self, data: Message) -> None:
        message = parse_in_process_launcher_message(data)
        if message is not None and not self._closed:
            self._launchers.take(self._uid, self, message)

    def close(self) -> None:
        self._closed = True


class LauncherDoor:
    """The listening socket of one allocation and the connections through it."""

    def __init__(self, launchers: LauncherConnections, uid: str, directory: str) -> None:
        self.launchers = launchers
        self.uid = uid  # of the pod; empty until it is known
        self.directory = directory
        self.channels: set[SocketChannel] = set()
        self._server: asyncio.Server | None = None
        self._is_closed = False

    def claim(self, uid: str) -> None:
        """Now it is known whose this is; those who wait are let in, or not."""
        if uid and not self.uid:
            self.uid = uid
            for channel in tuple(self.channels):
                channel.admit()

    async def open(self, sock: socket.socket) -> None:
        try:
            server = await asyncio.get_running_loop().create_unix_server(lambda: SocketChannel(self), sock=sock)
        except BaseException:
            sock.close()
            raise
        if self._is_closed:  # while it was being opened
            server.close()
        else:
            self._server = server

    def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for channel in tuple(self.channels):
            channel.close()


class SocketChannel(asyncio.Protocol):
    def __init__(self, door: LauncherDoor) -> None:
        self._door = door
        self._reader = MessageLineReader()
        self._lines: Iterator[bytes] = iter(())
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._tokens = BURST
        self._filled_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None  # while not reading
        self._no_hello: asyncio.TimerHandle | None = None
        self._waiting: Hello | None = None  # said, while nobody knew whose the allocation is
        self.is_known = False
        self.process = LauncherProcess()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.process = launcher_process_behind_socket(transport.get_extra_info("socket"))
        strangers = sum(not c.is_known for c in self._door.channels)
        self._door.channels.add(self)
        if strangers >= MAX_STRANGERS:
            self._refuse("TooManyConnections", f"{strangers} connections have not said hello.")
            return
        self._no_hello = self._loop.call_later(
            HELLO_WITHIN_S, self._refuse, "NoHello", f"nothing was said for {HELLO_WITHIN_S:g} s."
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.channels.discard(self)
        for timer in (self._timer, self._no_hello):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self._door.launchers.drop(self._door.uid, self)

    def data_received(self, data: bytes) -> None:
        if (
            self._timer is not None or self._waiting is not None
        ):  # a loop may deliver once more after it was asked not to
            self._lines = chain(self._lines, self._reader.feed(data))
            return
        self._lines = self._reader.feed(data)
        self._work()

    def _work(self) -> None:
        """Take lines while the launcher has tokens for them; then leave the rest, and the socket, alone for a while."""
        was_paused, self._timer = self._timer is not None, None
        if self._must_wait():
            return
        now = self._loop.time()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * RATE)
        self._filled_at = now
        try:
            while self._transport is not None and not self._transport.is_closing():
                if self._tokens < 1.0:
                    if not was_paused:
                        self._transport.pause_reading()
                    self._timer = self._loop.call_later(PAUSE_S, self._work)
                    return
                line = next(self._lines, None)
                if line is None:
                    if was_paused:
                        self._transport.resume_reading()
                    return
                self._tokens -= 1.0
                self._take(decode_launch_message(line))
                if self._must_wait():
                    if not was_paused:
                        self._transport.pause_reading()
                    return
        except ProtocolError as error:
            self._refuse(error.reason, error.message)

    def _take(self, message: object) -> None:
        if not isinstance(message, _TO_AGENT):
            return  # unknown, or one of ours come back: neither means anything
        if isinstance(message, Hello):
            if not self._door.uid:
                self._door.launchers.meet(self._door.directory, message)
            if not self._door.uid:
                self._waiting = message
                return
            if message.uid != self._door.uid:
                raise ProtocolError("WrongPod", f"hello names pod {message.uid:.64}, the socket is another's.")
            self.is_known = True
            if self._no_hello is not None:
                self._no_hello.cancel()
        elif not self.is_known:
            raise ProtocolError("NoHello", "the first message must be hello.")
        self._door.launchers.take(self._door.uid, self, message)

    def _must_wait(self) -> bool:
        return self._waiting is not None

    def admit(self) -> None:
        """The allocation is somebody's now: go on with the hello that waited."""
        hello, self._waiting = self._waiting, None
        if hello is None or self._transport is None or self._transport.is_closing():
            return
        try:
            self._take(hello)
        except ProtocolError as error:
            self._refuse(error.reason, error.message)
            return
        self._transport.resume_reading()
        self._work()

    def _refuse(self, reason: str, message: str) -> None:
        launchers = self._door.launchers
        log.warning("launcher.refused", node=launchers.node, uid=self._door.uid, reason=reason, message=message)
        if self._transport is not None:
            self._transport.abort()

    def send(self, message: ToLauncher) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._refuse("NotReading", "it does not read what it is told.")
            return
        try:
            line = encode_launch_message(message)
        except ProtocolError as error:
            log.error("launcher.unsendable", node=self._door.launchers.node, uid=self._door.uid, message=error.message)
        else:
            self._transport.write(line)

    def close(self) -> None:
        """What was said last is still sent."""
        if self._transport is not None:
            self._transport.close()


def bind_agent_launcher_socket(directory: str, mode: int = 0o600) -> socket.socket:
    """A listening `agent.sock` in `directory` in the place of whatever was there. The directory may be full of traps (a container
    may have written it); the one above is the agent's alone, so the socket is made and given its mode up there."""
    above, name = os.path.split(directory)
    made = f".door-{os.getpid()}"
    with untrusted_directory(above) as top, untrusted_directory(above, name) as fd:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made, dir_fd=top)
            sock.bind(f"/proc/self/fd/{top}/{made}")
            os.chmod(made, mode, dir_fd=top)
            sock.listen(MAX_STRANGERS)
            try:
                os.rename(made, SOCKET, src_dir_fd=top, dst_dir_fd=fd)
            except IsADirectoryError:
                os.rename(SOCKET, f"{SOCKET}.{os.urandom(4).hex()}", src_dir_fd=fd, dst_dir_fd=fd)
                os.rename(made, SOCKET, src_dir_fd=top, dst_dir_fd=fd)
        except BaseException:
            sock.close()
            raise
        return sock

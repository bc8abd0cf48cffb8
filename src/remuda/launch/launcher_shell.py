"""The launcher's shell: one thread, one poll loop. Everything that happens becomes an input of the machine, every action
of the machine a system call. It decides nothing.

In the directory of the allocation: `agent.sock` (dialled). In the work directory: `progress.sock` and `progress.json` (see
`progress_inbox`) and `checkpoint-request.json` (written here). Sockets are addressed through the directory's descriptor,
because a socket address holds 107 bytes and paths do not.

Actions are carried out in order from one queue; an answer that comes at once puts its own actions at the end of it.
"""

import os
import select
import time

from remuda.launch import checkpoints, jsonline, protocol, user_process
from remuda.launch.actions import (
    Action,
    Connect,
    Exit,
    KillChild,
    LookForManager,
    ScanCheckpoints,
    Send,
    SetTimer,
    SignalChild,
    SpawnChild,
    WriteCheckpointRequest,
)
from remuda.launch.checkpoints import CheckpointListing, CheckpointScan
from remuda.launch.launcher_machine import LauncherIdentity, LaunchMachine
from remuda.launch.progress_inbox import ProgressInbox
from remuda.launch.protocol import SIGNALS, ProtocolError
from remuda.launch.work_directory import launcher_work_directory, remove_launcher_work_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
else:  # the C modules: `signal` and `socket` import `enum` and half the library
    import _signal as signal
    import _socket as socket

INLINE_SCAN_BYTES = 8 << 20  # about 30 ms of hashing; more is done by a forked process so that signals are still heard
MAX_UNSENT_BYTES = 256 << 10  # minutes of heartbeats: such an agent is as good as gone; what counts is said again
MESSAGE_SIGNALS = (SIGNALS["TERM"], SIGNALS["INT"], SIGNALS["HUP"])
SIGCHLD = 17
USER_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pythonpath")


def write_launcher_log(text: str) -> None:
    """One line on the container's log; a closed log is no reason to stop."""
    try:
        os.write(2, f"remuda-launch: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def launcher_clock() -> float:
    """Unix time that never jumps: set once, then carried on by the clock that also counts suspend."""
    return _EPOCH + time.clock_gettime(time.CLOCK_BOOTTIME)


def _is_listening(path: str) -> bool:
    """Somebody has that socket open, though it may be stopped. What is neither there nor open belongs to nobody."""
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        there.setblocking(False)
        there.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True  # its line is full, or it cannot be looked at: in doubt there is one
    finally:
        there.close()
    return True


_EPOCH = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class LauncherSignalPipe:
    """Signals as bytes on a descriptor."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (SIGCHLD, *MESSAGE_SIGNALS):
            signal.signal(number, lambda *_: None)

    def read(self) -> bytes:
        try:
            return os.read(self.fd, 512)
        except BlockingIOError:
            return b""


class LauncherShell:
    def __init__(
        self, argv: list[str], signals: LauncherSignalPipe, identity: LauncherIdentity, directory: str | None
    ) -> None:
        self._argv = argv
        self._environ = dict(os.environ)
        self._signals = signals
        self._machine = LaunchMachine(identity)
        self._pod = identity.pod
        self._directory = directory
        self._queue: list[Action] = []
        self._exit_code: int | None = None
        self._timer: float | None = None
        self._poll = select.poll()
        self._poll.register(signals.fd, select.POLLIN)
        self._agent: socket.socket | None = None
        self._reader = protocol.MessageLineReader()
        self._unsent = b""
        self._child: int | None = None  # pid of the main process until it is reaped
        self._child_attempt = 0
        self._output_from = -1
        self._scans: dict[int, tuple[ScanCheckpoints, CheckpointListing]] = {}  # pipe -> what a forked process works on
        self._looked: tuple[ScanCheckpoints, CheckpointListing, CheckpointScan] | None = (
            None  # the last look and its answer
        )
        self._unreadable = ""  # as it was last said in the log
        self._place: tuple[str, int] | None = None  # where the child's checkpoints are, and its rank
        self._sought: tuple[int, bool, float] = (
            -1,
            False,
            0.0,
        )  # checkpoint looked for, whether it was there, when to look again
        self._work = launcher_work_directory(directory) if directory is not None else ""
        self._inbox = ProgressInbox(self._work, write_launcher_log) if directory is not None else None
        if self._inbox is not None:
            self._poll.register(self._inbox.fileno(), select.POLLIN)

    def run(self) -> int:
        self._input(self._machine.begin(launcher_clock()))
        user_process.make_launcher_subreaper()  # also counts for processes that exist already, so the greeting goes first
        while self._exit_code is None:
            for fd, events in self._poll.poll(self._timeout_ms()):
                self._ready(fd, events)
            now = launcher_clock()
            if self._inbox is not None and self._inbox.poll_file_at is not None and self._inbox.poll_file_at <= now:
                self._report(self._inbox.read_file(now))
            if self._timer is not None and self._timer <= now:
                self._timer = None
                self._input(self._machine.timer(now))
        if self._directory is not None:
            remove_launcher_work_directory(self._work, self._directory)
        return self._exit_code

    def _timeout_ms(self) -> int | None:
        polled = self._inbox.poll_file_at if self._inbox is not None else None
        due = [at for at in (self._timer, polled) if at is not None]
        return max(0, int((min(due) - launcher_clock()) * 1000) + 1) if due else None

    def _ready(self, fd: int, events: int) -> None:
        if fd == self._signals.fd:
            self._read_signals()
        elif self._inbox is not None and fd == self._inbox.fileno():
            self._report(self._inbox.read_datagrams())
        elif self._agent is not None and fd == self._agent.fileno():
            if events & select.POLLOUT:
                self._flush()
            if events & ~select.POLLOUT:
                self._read_agent()
        elif fd in self._scans:
            self._finish_scan(fd)

    def _input(self, actions: list[Action]) -> None:
        """Queue the actions of one input; the outermost call works the queue off."""
        is_working = bool(self._queue)
        self._queue += actions
        while not is_working and self._queue and self._exit_code is None:
            self._do(self._queue[0])
            del self._queue[0]

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._unsent += protocol.encode_launch_message(action.message)
            self._flush()
        elif isinstance(action, SetTimer):
            self._timer = action.at
        elif isinstance(action, SpawnChild):
            self._spawn(action)
        elif isinstance(action, SignalChild):
            if self._child is not None:
                if action.group:
                    user_process.signal_user_processes(self._child, action.signal)
                elif not user_process.user_process_dies_of(
                    self._child, action.signal
                ):  # a script that only polls never asked for signals
                    user_process.signal_user_process(self._child, action.signal)
        elif isinstance(action, KillChild):
            user_process.kill_user_processes(self._child)
        elif isinstance(action, LookForManager):
            is_there = _is_listening(action.socket)
            self._input(self._machine.manager_looked_for(launcher_clock(), is_there=is_there))
        elif isinstance(action, ScanCheckpoints):
            self._scan(action)
        elif isinstance(action, WriteCheckpointRequest):
            self._write_request(action)
        elif isinstance(action, Connect):
            self._connect()
        elif isinstance(action, Exit):
            self._exit_code = action.code

    # --- the agent ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.setblocking(False)
        handle = -1
        try:
            handle = os.open(self._directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            agent.connect(f"/proc/self/fd/{handle}/agent.sock")
        except OSError:
            agent.close()
            self._input(self._machine.disconnected(launcher_clock()))
            return
        finally:
            if handle >= 0:
                os.close(handle)
        self._agent, self._reader, self._unsent = agent, protocol.MessageLineReader(), b""
        self._poll.register(agent.fileno(), select.POLLIN)
        self._input(self._machine.connected(launcher_clock()))

    def _lost(self) -> None:
        if self._agent is not None:
            self._poll.unregister(self._agent.fileno())
            self._agent.close()
            self._agent, self._unsent = None, b""
            self._input(self._machine.disconnected(launcher_clock()))

    def _flush(self) -> None:
        if self._agent is None:
            self._unsent = b""
            return
        try:
            while self._unsent:
                self._unsent = self._unsent[self._agent.send(self._unsent) :]
        except BlockingIOError:
            if len(self._unsent) > MAX_UNSENT_BYTES:
                self._lost()
                return
        except OSError:
            self._lost()
            return
        self._poll.modify(self._agent.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def _read_agent(self) -> None:
        assert self._agent is not None
        try:
            data = self._agent.recv(protocol.MAX_LINE_BYTES)
            for line in self._reader.feed(data):
                self._read_line(line)
        except BlockingIOError:
            return
        except ProtocolError as error:
            write_launcher_log(f"{error}")
            data = b""
        except OSError:
            data = b""
        if not data:
            self._lost()

    def _read_line(self, line: bytes) -> None:
        try:
            message = protocol.decode_launch_message(line)
        except ProtocolError as error:
            write_launcher_log(f"ignored a message of the agent: {error}")
            return
        if message is not None:
            self._input(self._machine.received(launcher_clock(), message))

    # --- the child ----------------------------------------------------------------------------------------------------

    def _request_path(self) -> str:
        return f"{self._work}/checkpoint-request.json"

    def _spawn(self, action: SpawnChild) -> None:
        env = {**self._environ, **action.env, "REMUDA_ATTEMPT": str(action.attempt)}
        env["PYTHONPATH"] = ":".join(filter(None, (env.get("PYTHONPATH"), USER_PATH)))
        if self._inbox is not None:
            env["REMUDA_PROGRESS_FILE"] = self._inbox.file_path
            env["REMUDA_CHECKPOINT_REQUEST_FILE"] = self._request_path()
            if self._inbox.socket_path is not None:
                env["REMUDA_PROGRESS_SOCKET"] = self._inbox.socket_path
            try:
                os.unlink(self._request_path())  # a request to an older child
            except OSError:
                pass
            self._inbox.open(launcher_clock())
            self._place, self._sought = _checkpoint_place(env), (-1, False, 0.0)
            self._abandon_checkpoints(env)
            self._mark_log(action.attempt, env)
        self._output_from = user_process.user_output_size()
        try:
            self._child = user_process.spawn_user_process(self._argv, env)
        except user_process.SpawnError as error:
            write_launcher_log(error.message)
            self._input(self._machine.child_failed(launcher_clock(), action.attempt, error.code, error.message))
            return
        self._child_attempt = action.attempt
        self._input(self._machine.child_started(launcher_clock(), action.attempt, self._child))

    def _abandon_checkpoints(self, env: dict[str, str]) -> None:
        """REMUDA_RESUME_STEP=N: history goes on after N; empty: from the beginning; not set: not Remuda's business."""
        resume = env.get("REMUDA_RESUME_STEP")
        if resume is None or self._place is None or not (resume.isdigit() or resume == ""):
            return
        directory, rank = self._place
        attempt = env.get("REMUDA_ATTEMPT", "?")
        why = f"attempt {attempt} went on from {f'step {resume}' if resume else 'the beginning'}"
        try:
            marked = checkpoints.abandon_checkpoints_above(directory, rank, int(resume) if resume else -1, why)
        except OSError as error:
            write_launcher_log(f"could not mark abandoned checkpoints in {directory}: {error}")
            return
        if marked:
            write_launcher_log(f"checkpoints {', '.join(map(str, marked))} are abandoned: {why}")

    def _mark_log(self, attempt: int, env: dict[str, str]) -> None:
        """The line that lets one container log be split by attempt. On each stream, if they are two: a runtime that keeps the
        log of both writes them in any order, so what a rank says on one may stand before what it said earlier on the other."""
        rank = env.get("REMUDA_RANK") or env.get("RANK") or "-"
        line = f"--- remuda attempt={attempt} rank={rank} host={self._pod} time={launcher_clock():.3f} ---\n"
        if user_process.user_output_is_mid_line():  # a killed child need not have finished its last line
            line = "\n" + line
        for stream in (1, 2) if user_process.has_two_output_streams() else (1,):
            try:
                os.write(stream, line.encode("utf-8", "backslashreplace"))
            except OSError:
                pass

    def _read_signals(self) -> None:
        numbers = self._signals.read()
        if SIGCHLD in numbers:
            self._reap()
        if any(number in numbers for number in MESSAGE_SIGNALS):
            self._input(self._machine.terminate(launcher_clock()))

    def _reap(self) -> None:
        ended, is_childless = user_process.reap_user_processes(self._child)
        for one in ended:
            if one.pid == self._child:
                if self._inbox is not None:  # its last words, before its end
                    self._report(self._inbox.read_datagrams() + self._inbox.read_file(launcher_clock()))
                    self._inbox.close()
                self._child = None
                text = user_process.describe_user_process_end(one, self._output_from)
                tail = user_process.user_output_tail(self._output_from) if one.code else ""
                actions = self._machine.child_exited(
                    launcher_clock(), self._child_attempt, one.code, one.signal, text, tail
                )
                self._input(actions)
        if is_childless:
            self._input(self._machine.tree_gone(launcher_clock()))

    # --- progress and checkpoints -------------------------------------------------------------------------------------

    def _report(self, reports: list[protocol.Progress]) -> None:
        for report in reports:
            if report.checkpoint is not None and self._place is not None and self._is_saved(report.checkpoint):
                report = report.replace(kept=report.checkpoint)
            self._input(self._machine.progress(launcher_clock(), report))

    def _is_saved(self, step: int) -> bool:
        """Whether that checkpoint has been seen on disk. Looked for once, and once a second for as long as it is not there."""
        now = launcher_clock()
        if step != self._sought[0] or (not self._sought[1] and now >= self._sought[2]):
            is_there = self._place is not None and checkpoints.is_checkpoint_kept(*self._place, step)
            self._sought = step, is_there, now + 1.0
        return self._sought[1]

    def _write_request(self, request: WriteCheckpointRequest) -> None:
        path = self._request_path()
        try:
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                file.write(jsonline.render_json_line({"deadline": request.deadline, "step": request.step}))
            os.replace(path + ".tmp", path)
        except OSError as error:
            write_launcher_log(f"could not ask for a checkpoint: {error}")

    def _scan(self, scan: ScanCheckpoints) -> None:
        listing = checkpoints.list_checkpoints(scan.directory, scan.rank)
        if self._looked is not None and self._looked[:2] == (scan, listing):  # nothing new: nothing is read again
            self._answer_scan(scan, listing, self._looked[2])
            return
        work = sum(one.size for one in listing.candidates if one.size <= checkpoints.DIGEST_LIMIT_BYTES)
        if work <= INLINE_SCAN_BYTES:
            self._answer_scan(scan, listing, checkpoints.examine_checkpoints(listing))
            return
        read, write = os.pipe2(os.O_CLOEXEC)
        if os.fork() == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(SIGNALS["TERM"], signal.SIG_DFL)
                answer = checkpoints.examine_checkpoints(listing).__dict__
                os.write(write, jsonline.render_json_line(answer).encode())
            finally:
                os._exit(0)
        os.close(write)
        self._scans[read] = scan, listing
        self._poll.register(read, select.POLLIN)

    def _finish_scan(self, fd: int) -> None:
        scan, listing = self._scans.pop(fd)
        self._poll.unregister(fd)
        data = os.read(fd, protocol.MAX_LINE_BYTES)
        os.close(fd)
        # Nothing: it was killed. "No checkpoints" would throw the work of days away, so look again, here.
        if data:
            read = jsonline.parse_json_line(data)
            steps, corrupt, abandoned = (tuple(read[name]) for name in ("steps", "corrupt", "abandoned"))
            answer = CheckpointScan(steps, corrupt, abandoned, read["unreadable"])
        else:
            answer = checkpoints.examine_checkpoints(listing)
        self._answer_scan(scan, listing, answer)

    def _answer_scan(self, scan: ScanCheckpoints, listing: CheckpointListing, found: CheckpointScan) -> None:
        if found.unreadable and found.unreadable != self._unreadable:
            write_launcher_log(f"checkpoints could not be read, looking again: {found.unreadable}")
        self._unreadable = found.unreadable
        # What could not be read is read again: the listing may be the same when it can be.
        self._looked = None if found.unreadable and not listing.unreadable else (scan, listing, found)
        self._input(
            self._machine.scanned(launcher_clock(), scan, found.steps, found.corrupt, found.abandoned, found.unreadable)
        )


def _checkpoint_place(env: dict[str, str]) -> tuple[str, int] | None:
    directory, rank = env.get("REMUDA_CHECKPOINT_DIR"), env.get("REMUDA_RANK") or env.get("RANK") or ""
    return (directory, int(rank)) if directory and rank.isascii() and rank.isdigit() else None

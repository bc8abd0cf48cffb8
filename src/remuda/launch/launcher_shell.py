"""The launcher's shell: one thread, one poll loop. Everything that happens becomes an input of the machine, every action
of the machine a system call. It decides nothing.

In the directory of the allocation: `agent.sock` (dialled). In the work directory: `progress.sock` and `progress.json` (see
`progress_inbox`) and `checkpoint-request.json` (written here). Sockets are addressed through the directory's descriptor,
because a socket address holds 107 bytes and paths do not.

The loop waits for no volume of the user's, which may hang: a deadline that it misses is a rank that runs twice. What is there is
looked at by processes of their own (`checkpoint_looks`, `user_process`). Both directories above and the log are the node's or the
container's own. Deadlines come before what was said: a message may have waited while we stood still.

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
from remuda.launch.checkpoint_looks import CheckpointLooks
from remuda.launch.checkpoints import CheckpointScan
from remuda.launch.forked_look import AnswerPipe
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

KEPT_WAIT_S = 0.05  # a checkpoint is nearly always told together with whether it is on disk
LAST_KEPT_WAIT_S = 1.0  # the child has ended, and nothing of it is left to be stopped
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
        self._starting: AnswerPipe | None = None  # of a child whose command does not run yet
        self._start_error: user_process.SpawnError | None = None
        self._output_from = -1
        self._looks = CheckpointLooks(self._poll, self._own_fds)
        self._unreadable = ""  # as it was last said in the log
        self._work = launcher_work_directory(directory) if directory is not None else ""
        self._inbox = ProgressInbox(self._work, write_launcher_log) if directory is not None else None
        if self._inbox is not None:
            self._poll.register(self._inbox.fileno(), select.POLLIN)

    def run(self) -> int:
        self._input(self._machine.begin(launcher_clock()))
        user_process.make_launcher_subreaper()  # also counts for processes that exist already, so the greeting goes first
        while self._exit_code is None:
            happened = self._poll.poll(self._timeout_ms())
            now = launcher_clock()
            if self._timer is not None and self._timer <= now:
                self._timer = None
                self._input(self._machine.timer(now))
            for fd, events in happened:
                self._ready(fd, events)
            if self._inbox is not None and self._inbox.poll_file_at is not None and self._inbox.poll_file_at <= now:
                self._report(self._inbox.read_file(now))
        self._looks.give_up()
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
        elif self._starting is not None and fd == self._starting.fd:
            self._finish_start()
        elif self._looks.owns(fd):
            self._hear_looks()

    def _own_fds(self) -> list[int]:
        """What no process of ours may hold: the other end would wait for its end."""
        own = [self._signals.fd]
        own += [one.fileno() for one in (self._agent, self._inbox) if one is not None]
        return own + ([] if self._starting is None else [self._starting.fd])

    def _input(self, actions: list[Action]) -> None:
        """Queue the actions of one input; the outermost call works the queue off."""
        is_working = bool(self._queue)
        self._queue += actions
        while not is_working and self._queue and self._exit_code is None:
            self._do(self._queue[0])
            del self._queue[0]

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._log_doubt(action.message)
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
            user_process.kill_user_processes(self._child, self._looks.pids)
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
        if isinstance(message, protocol.Vouch) and message.at is not None:
            message = message.replace(at=_EPOCH + message.at)  # as `launcher_clock` has it
        if message is not None:
            self._input(self._machine.received(launcher_clock(), message))

    # --- the child ----------------------------------------------------------------------------------------------------

    def _request_path(self) -> str:
        return f"{self._work}/checkpoint-request.json"

    def _spawn(self, action: SpawnChild) -> None:
        env, place = {**self._environ, **action.env, "REMUDA_ATTEMPT": str(action.attempt)}, None
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
            place = _checkpoint_place(env)
            self._looks.child_begins(place)
        self._output_from = -1
        self._child_attempt = action.attempt
        try:
            self._child, self._starting = user_process.start_user_process(
                self._argv, env, lambda: self._prepare_child(action.attempt, place, env), self._own_fds()
            )
        except user_process.SpawnError as error:
            self._fail_start(error)
        else:
            self._poll.register(self._starting.fd, select.POLLIN)

    def _prepare_child(self, attempt: int, place: tuple[str, int] | None, env: dict[str, str]) -> int:
        """In its own process, before the command runs. Returns where its output begins."""
        if self._inbox is not None:
            self._abandon_checkpoints(place, env)
            self._mark_log(attempt, env)
        return user_process.user_output_size()

    def _finish_start(self) -> None:
        """The command runs, or could not be run, or its process was killed before it could. In all but the first it is about to
        be reaped."""
        if self._starting is None or not self._starting.is_over():
            return
        answers = self._starting.answers()
        self._poll.unregister(self._starting.fd)
        self._starting.close()
        self._starting = None
        if answers:
            self._output_from = answers[0]
        if len(answers) > 1:
            self._start_error = user_process.SpawnError(*answers[1])
        elif self._child is not None:
            self._input(self._machine.child_started(launcher_clock(), self._child_attempt, self._child))

    def _fail_start(self, error: user_process.SpawnError) -> None:
        write_launcher_log(error.message)
        if self._inbox is not None:
            self._inbox.close()
        self._input(self._machine.child_failed(launcher_clock(), self._child_attempt, error.code, error.message))

    def _abandon_checkpoints(self, place: tuple[str, int] | None, env: dict[str, str]) -> None:
        """REMUDA_RESUME_STEP=N: history goes on after N; empty: from the beginning; not set: not Remuda's business."""
        resume = env.get("REMUDA_RESUME_STEP")
        if resume is None or place is None or not (resume.isdigit() or resume == ""):
            return
        directory, rank = place
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
        for stream in (1, 2) if user_process.user_output_has_two_streams() else (1,):
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
        ended, is_childless = user_process.reap_user_processes(self._child, self._looks.pids)
        for one in ended:
            if one.pid == self._child:
                self._finish_start()
                self._child = None
                error, self._start_error = self._start_error, None
                if error is not None:
                    self._fail_start(error)
                    continue
                # What is left of it ends with it, before anything is waited for.
                user_process.kill_user_processes(None, self._looks.pids)
                if self._inbox is not None:  # its last words, before its end
                    self._report(self._inbox.read_datagrams() + self._inbox.read_file(launcher_clock()))
                    self._tell_kept(self._looks.kept(LAST_KEPT_WAIT_S))
                    self._inbox.close()
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
        self._finish_start()  # who reports runs: that is said first
        for report in reports:
            if report.checkpoint is not None and self._looks.is_kept(report.checkpoint, launcher_clock(), KEPT_WAIT_S):
                report = report.replace(kept=report.checkpoint)
            self._input(self._machine.progress(launcher_clock(), report))

    def _tell_kept(self, step: int | None) -> None:
        if step is not None:
            self._input(self._machine.progress(launcher_clock(), protocol.Progress(kept=step)))

    def _write_request(self, request: WriteCheckpointRequest) -> None:
        path = self._request_path()
        try:
            try:
                os.unlink(path + ".tmp")
            except FileNotFoundError:
                pass
            with open(path + ".tmp", "x", encoding="utf-8") as file:  # whatever the child puts there is not opened
                file.write(jsonline.encode_launch_json_line({"deadline": request.deadline, "step": request.step}))
            os.replace(path + ".tmp", path)
        except OSError as error:
            write_launcher_log(f"could not ask for a checkpoint: {error}")

    def _scan(self, scan: ScanCheckpoints) -> None:
        found = self._looks.scan(scan)
        if found is not None:
            self._answer_scan(scan, found)

    def _hear_looks(self) -> None:
        self._tell_kept(self._looks.kept())
        answer = self._looks.scanned()
        if answer is not None:
            self._answer_scan(*answer)

    def _answer_scan(self, scan: ScanCheckpoints, found: CheckpointScan) -> None:
        self._input(
            self._machine.scanned(launcher_clock(), scan, found.steps, found.corrupt, found.abandoned, found.unreadable)
        )

    def _log_doubt(self, message: protocol.ToAgent) -> None:
        if isinstance(message, protocol.Ready) and message.unreadable != self._unreadable:
            self._unreadable = message.unreadable
            if message.unreadable:
                write_launcher_log(f"checkpoints could not be read, looking again: {message.unreadable}")


def _checkpoint_place(env: dict[str, str]) -> tuple[str, int] | None:
    directory, rank = env.get("REMUDA_CHECKPOINT_DIR"), env.get("REMUDA_RANK") or env.get("RANK") or ""
    return (directory, int(rank)) if directory and rank.isascii() and rank.isdigit() else None

"""The shim: one small process beside each container process, so that nothing is lost when `remuda up` is killed.

    python -I -S shim.py SPEC.json

SPEC.json: {"id", "argv", "env", "cwd", "log", "status", "pidfile"}, and "logBytes" and "logFiles" where they are not the usual
ones. The shim leaves its parent's session, starts argv in a process group of its own, appends its output to `log`, writes
`pidfile`, waits, and writes `status`:

    pidfile  {"id", "shim": PID, "pid": PID, "startTime": {"shim": TICKS, "pid": TICKS}, "boot": BOOT ID}
    status   {"code": C, "signal": S|null, "startedAt": T, "finishedAt": T, "message": M}

Invariants:
- The death of the main process is the death of the container: everything below the shim is killed before `status` is
  written, so whoever reads `status` may give the devices away. Orphans cannot hide: the shim is a child subreaper.
- `status` appears whole and once, also when the command could not be started (127 not found, 126 not runnable, 128 the
  container could not be set up). A shim that is gone without a status was itself killed: the outcome is unknown.
- A pid alone proves nothing, it may have been given to another process; pid and kernel start time together do.
- What the container writes goes through a pipe to the shim and from there to `log`. A disk that is full or broken costs lines of
  the log, which is said in it, and never stops or ends the container. Room for `pidfile` and `status` is taken before the
  command starts; where they cannot be written all the same, that is tried until they can, and until then the shim stays.
- The log is bounded: at `logBytes` it becomes `<log>.<position of its first byte in all that was ever written>`, 20 digits, and
  the oldest beyond `logFiles` is removed (`link.log_segments` reads them as one). Lines are not cut in two by that.

Signals: SIGTERM is passed on to the main process, SIGUSR1 kills everything at once. Both are only *waited* for (blocked
and fetched), so none is lost between two instructions. SIGHUP and SIGINT are ignored.

Standard library only and one file. As a script it avoids the slow modules (`json`, `signal`, `ctypes` take longer to
import than the interpreter to start, and a node starts many shims at once); as a module it offers the node `shim_argv`,
`probe_container` and `read_shim_status`.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any
else:
    import _signal as signal

NOT_FOUND, NOT_RUNNABLE, NOT_SET_UP = 127, 126, 128
REKILL_S = 0.05  # between two passes over processes that fork while they are being killed
GIVE_UP_S = 10.0  # a process in uninterruptible sleep: report the end rather than hold the status back for ever
RETRY_S = 0.2  # between two tries to write what must be written
_RESERVED_BYTES = 4096
_PR_SET_CHILD_SUBREAPER = 36

LOG_BYTES, LOG_FILES = 10 * 1024 * 1024, 5  # as a kubelet's containerLogMaxSize and containerLogMaxFiles
LONGEST_LINE = 1024 * 1024  # longer ones are cut in two
DRAIN_S = 2.0  # for the last of the output, when somebody else holds the pipe open
_PIPE_BYTES = 256 * 1024

# As Linux has them: whatever is imported at the start keeps every container waiting.
_F_SETPIPE_SZ, _LOCK_EX, _LOCK_NB, _LOCK_UN = 1031, 2, 4, 8
_ENOSPC, _EROFS, _EIO, _EDQUOT = 28, 30, 5, 122
SIGHUP, SIGINT, SIGKILL, SIGUSR1, SIGTERM, SIGCHLD, SIGSTOP = 1, 2, 9, 10, 15, 17, 19


# --- files ------------------------------------------------------------------------------------------------------------


def _shim_json_codec() -> "tuple[Callable[[str], Any], Callable[[str], str]]":
    """Parse a document and quote a string, by the C half of `json` alone."""
    from _json import encode_basestring_ascii, make_scanner

    class Options:
        strict, object_hook, object_pairs_hook = True, None, None
        parse_float, parse_int, parse_constant = float, int, float

    scan: Any = make_scanner(Options())  # type: ignore[arg-type]
    return (lambda text: scan(text.strip(), 0)[0]), encode_basestring_ascii


def _reserve_shim_file(path: str) -> None:
    """Take the room that `path` will need, so that a disk which fills up meanwhile cannot keep it from being written."""
    with open(f"{path}.tmp-{os.getpid()}", "wb") as file:
        file.write(b" " * _RESERVED_BYTES)


def _write_shim_file(path: str, text: str, durable: bool) -> None:
    temporary = f"{path}.tmp-{os.getpid()}"
    data = text.encode("utf-8", "backslashreplace")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Over the reserved bytes, and with their length: what is left of them is white space, which JSON does not mind.
        os.pwrite(descriptor, data.ljust(_RESERVED_BYTES), 0)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def _write_shim_file_at_last(path: str, text: str, durable: bool) -> None:
    """However long the disk refuses it. Not when its directory is gone: then nobody wants to know."""
    while True:
        try:
            return _write_shim_file(path, text, durable)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(RETRY_S)


def _proc_stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()  # the name in brackets may hold anything
    except (OSError, IndexError):
        return None


def process_start_ticks(pid: int) -> int | None:
    """When the kernel started the process, in clock ticks since boot; None when it does not run (a zombie does not)."""
    fields = _proc_stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def _node_boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


# --- for the node -----------------------------------------------------------------------------------------------------


def shim_argv(spec_path: str, python: str | None = None) -> list[str]:
    """The command that runs the shim. Its compiled file, where there is one of this very source, spares compiling it."""
    script = __file__
    if python is None and __spec__.cached is not None and os.path.exists(__spec__.cached):
        from importlib.util import MAGIC_NUMBER

        found = os.stat(__file__)
        made_of = (int(found.st_mtime) | found.st_size << 32).to_bytes(8, "little")
        with open(__spec__.cached, "rb") as file:
            if file.read(16) == MAGIC_NUMBER + bytes(4) + made_of:
                script = __spec__.cached
    return [python or sys.executable, "-I", "-S", "-X", "utf8", script, spec_path]


def read_shim_status(path: str) -> "dict[str, Any] | None":
    """How the container ended; None while it has not (or cannot be known to have). Also reads any other JSON object."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def probe_container(pidfile: str) -> tuple[int | None, int | None]:
    """The pids of the shim and of the main process, each None unless that very process is alive.

    A main process without a shim is an orphan: nobody will record its end, so it has to be killed.
    """
    record = read_shim_status(pidfile) or {}
    ticks = record.get("startTime")
    if not isinstance(ticks, dict) or record.get("boot") != _node_boot_id():
        return None, None
    shim, main = (
        pid if isinstance(pid, int) and pid > 1 and process_start_ticks(pid) == ticks.get(name, -1) else None
        for name, pid in (("shim", record.get("shim")), ("pid", record.get("pid")))
    )
    return shim, main


# --- its log ----------------------------------------------------------------------------------------------------------


class ContainerNotStarted(Exception):
    """Holds the code and the message of a container that could not be started."""


class LogPump:
    """Moves what the container writes from a pipe to its log, in a thread of its own, until nobody holds the pipe.

    While bytes are on their way (read, and not yet written) the pipe is locked with flock, so that somebody inside who wants to
    read the log back knows when all of it is there: locked by himself, and empty. The lock is asked for and never waited for.
    """

    def __init__(self, path: str, max_bytes: int, files: int) -> None:
        import _thread
        from fcntl import fcntl, flock

        self._path, self._max_bytes, self._files = path, max_bytes, files
        self._flock = flock
        self._log, self._size = -1, 0
        self._lost = 0  # bytes that could not be written
        self._is_mid_line = False
        self._open_log()  # refused here, and not later, when it is no matter of a disk that is full or broken
        self._pipe, output = os.pipe2(os.O_CLOEXEC)
        try:
            fcntl(output, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass  # the user has many pipes; the usual size will do
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        self._done = _thread.allocate_lock()
        self._done.acquire()
        _thread.start_new_thread(self._run, ())

    def finish(self) -> None:
        """Everything written so far is in the log, as far as it can be."""
        leave_shim_output()
        self._done.acquire(timeout=DRAIN_S)

    def _run(self) -> None:
        from select import POLLIN, poll

        waiting = poll()
        waiting.register(self._pipe, POLLIN)
        try:
            while True:
                waiting.poll()
                self._lock(_LOCK_EX | _LOCK_NB)
                chunk = os.read(self._pipe, 65536)
                if not chunk:
                    return
                self._take(chunk)
                self._lock(_LOCK_UN)
        finally:
            self._done.release()

    def _lock(self, how: int) -> None:
        try:
            self._flock(self._pipe, how)
        except OSError:
            pass

    def _take(self, chunk: bytes) -> None:
        if self._size + len(chunk) > self._max_bytes:
            end = chunk.find(b"\n") + 1
            if end or self._size > self._max_bytes + LONGEST_LINE:
                self._write(chunk[:end])
                chunk = chunk[end:]
                self._rotate()
        self._write(chunk)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            if self._log < 0:
                self._open_log()
            if self._lost and self._log >= 0:
                start = "\n" if self._is_mid_line else ""
                note = f"{start}remuda: {self._lost} bytes of this log could not be written and are lost\n".encode()
                self._size += os.write(self._log, note)
                self._lost = 0
            while data and self._log >= 0:
                count = os.write(self._log, data)
                self._size += count
                self._is_mid_line = data[count - 1] != 10
                data = data[count:]
        except (OSError, ContainerNotStarted):
            pass  # a full or broken disk, or a log that was removed; also a container that fills one must not be ended by that
        self._lost += len(data)

    def _open_log(self) -> None:
        """-1 while the disk refuses a new file."""
        try:
            self._log = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            self._size = os.fstat(self._log).st_size
        except OSError as error:
            if error.errno not in (_ENOSPC, _EROFS, _EIO, _EDQUOT):
                raise ContainerNotStarted(NOT_SET_UP, f"cannot write the log {self._path}: {error.strerror}") from None

    def _rotate(self) -> None:
        """On failure the log just goes on, and the next line tries again."""
        directory, name = os.path.split(self._path)
        fresh = f"{self._path}.new"
        try:
            older = sorted(
                n for n in os.listdir(directory) if n.startswith(f"{name}.") and n[len(name) + 1 :].isdigit()
            )
            start = 0
            if older:
                newest = older[-1]
                start = int(newest[len(name) + 1 :]) + os.stat(os.path.join(directory, newest)).st_size
            for excess in older[: max(0, len(older) + 2 - self._files)]:
                os.unlink(os.path.join(directory, excess))
            log = os.open(
                fresh, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            os.rename(self._path, f"{self._path}.{start:020d}")
            os.rename(fresh, self._path)
        except OSError:
            return
        os.close(self._log)
        self._log, self._size = log, 0


def leave_shim_output() -> None:
    """Our own ends of the pipe: what is left of it is the container's."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


# --- the process ------------------------------------------------------------------------------------------------------


def _make_shim_subreaper() -> None:
    try:
        from _ctypes import call_function, dlopen, dlsym

        call_function(dlsym(dlopen(None, 2), "prctl"), (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))  # type: ignore[arg-type]
    except (ImportError, OSError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _write_pidfile(path: str, text: str) -> None:
    """Where the disk refuses it, beside the work: signals must be heard and the container's end be seen."""
    try:
        _write_shim_file(path, text, durable=False)
    except OSError:
        import _thread

        _thread.start_new_thread(_write_shim_file_at_last, (path, text, False))


def _detach_shim() -> None:
    if os.getsid(0) != os.getpid():
        os.setsid()
    signal.signal(SIGHUP, signal.SIG_IGN)
    signal.signal(SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if null > 2:
        os.close(null)


def _reserve_records(spec: "dict[str, Any]") -> None:
    try:
        for name in ("pidfile", "status"):
            _reserve_shim_file(spec[name])
    except OSError as error:
        raise ContainerNotStarted(NOT_SET_UP, f"cannot keep a record of the container: {error.strerror}") from None


def _start_main_process(spec: "dict[str, Any]") -> int:
    argv, env, cwd = spec["argv"], spec["env"], spec.get("cwd")
    if not argv or not argv[0]:
        raise ContainerNotStarted(NOT_FOUND, "the container has no command")
    if cwd:
        try:
            os.chdir(cwd)
        except OSError as error:
            raise ContainerNotStarted(
                NOT_SET_UP, f"cannot enter the working directory {cwd}: {error.strerror}"
            ) from None
    os.environ["PATH"] = env.get("PATH", os.defpath)  # where posix_spawnp looks
    try:
        # Ignored signals survive into the command, and who started the node may have left any of them so.
        to_default = [n for n in range(1, 32) if n not in (SIGKILL, SIGSTOP)]
        return os.posix_spawnp(argv[0], argv, env, setpgroup=0, setsigmask=[], setsigdef=to_default)
    except FileNotFoundError:
        raise ContainerNotStarted(NOT_FOUND, f"command not found: {argv[0]}") from None
    except PermissionError:
        raise ContainerNotStarted(NOT_RUNNABLE, f"permission denied: {argv[0]} (is it an executable file?)") from None
    except (OSError, ValueError, TypeError) as error:
        raise ContainerNotStarted(
            NOT_RUNNABLE, f"cannot run {argv[0]}: {getattr(error, 'strerror', None) or error}"
        ) from None
    finally:
        os.chdir("/")


def _shim_children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN: look at every process
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if (_proc_stat(pid) or [b"", b""])[1] == b"%d" % os.getpid()]


def _kill_process(pid: int, number: int, is_group: bool = False) -> None:
    try:
        (os.killpg if is_group else os.kill)(pid, number)
    except ProcessLookupError:
        pass


def _wait_for_container(main: int) -> tuple[int, bool]:
    """Wait until the main process, and then everything else, is gone: its wait status, and whether all of it went."""
    status: int | None = None
    deadline, is_killing = 0.0, False
    wanted = (SIGTERM, SIGUSR1, SIGCHLD)
    while True:
        got = signal.sigtimedwait(wanted, REKILL_S) if is_killing else signal.sigwaitinfo(wanted)
        if got is not None and got.si_signo == SIGTERM and status is None:
            _kill_process(main, SIGTERM)
        elif got is not None and got.si_signo == SIGUSR1:
            is_killing = True
        try:
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == main:  # while its zombie keeps the number, the group is certainly ours
                    is_killing = True
                    _kill_process(main, SIGKILL, is_group=True)
                _, ended_status = os.waitpid(ended.si_pid, 0)
                status = ended_status if ended.si_pid == main else status
        except ChildProcessError:
            return status or 0, True
        if is_killing:
            deadline = deadline or time.monotonic() + GIVE_UP_S
            if status is None:
                _kill_process(main, SIGKILL, is_group=True)
            elif time.monotonic() > deadline:
                return status, False
            for pid in _shim_children():
                _kill_process(pid, SIGKILL)


def run_container(spec: "dict[str, Any]", quote: "Callable[[str], str]") -> None:
    started = time.time()
    code, number, message = 0, None, ""
    pump: LogPump | None = None
    signal.signal(SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would make the kernel throw exit codes away
    signal.pthread_sigmask(signal.SIG_BLOCK, (SIGTERM, SIGUSR1, SIGCHLD))
    try:
        _detach_shim()
        _make_shim_subreaper()
        pump = LogPump(spec["log"], int(spec.get("logBytes") or LOG_BYTES), int(spec.get("logFiles") or LOG_FILES))
        _reserve_records(spec)
        main = _start_main_process(spec)
        leave_shim_output()
        me = os.getpid()
        ticks = f'{{"shim":{process_start_ticks(me)},"pid":{process_start_ticks(main) or -1}}}'
        text = f'{{"id":{quote(str(spec.get("id", "")))},"shim":{me},"pid":{main},"startTime":{ticks},"boot":'
        _write_pidfile(spec["pidfile"], f"{text}{quote(_node_boot_id())}}}\n")
        status, is_all_gone = _wait_for_container(main)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if number is None else 128 + number
        message = "" if code == 0 else f"exit code {code}" if number is None else f"killed by signal {number}"
        if not is_all_gone:
            message += f"; some of its processes did not die within {GIVE_UP_S:g} s"
    except ContainerNotStarted as refusal:
        code, message = refusal.args
        os.write(2, f"{message}\n".encode("utf-8", "replace"))
    if pump is not None:
        pump.finish()  # whoever reads the status may read the log, too
    text = f'{{"code":{code},"signal":{"null" if number is None else number},"startedAt":{started!r},'
    text += f'"finishedAt":{time.time()!r},"message":{quote(message)}}}\n'
    _write_shim_file_at_last(spec["status"], text, durable=True)


def main() -> int:
    try:
        parse, quote = _shim_json_codec()
        with open(sys.argv[1], encoding="utf-8") as file:
            spec = parse(file.read())
        spec |= {name: os.path.abspath(spec[name]) for name in ("log", "status", "pidfile")}
        spec["argv"], spec["env"]
    except (OSError, ValueError, LookupError, TypeError, StopIteration, SystemError) as error:  # the C scanner's last
        os.write(2, f"shim: BadSpec: the specification cannot be used: {type(error).__name__} {error}\n".encode())
        return 2
    run_container(spec, quote)
    return 0


if __name__ == "__main__":
    sys.exit(main())

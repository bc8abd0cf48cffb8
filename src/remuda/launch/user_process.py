"""The user's process tree: starting it, signalling it, and making sure that none of it is left.

The child leads its own session, so one signal to its process group reaches the ordinary tree. Processes that left the
group are caught another way: the launcher is PID 1 of the container or, elsewhere, a *child subreaper*, so every orphan
below it becomes its own child. Killing one's own children again and again, until `waitpid` says there are none, hence
ends any tree, and "no children" is the proof that it is gone. (Direct children cannot be recycled pids: a pid stays
taken until its parent has waited for it.) The launcher's own helpers are children, too, and one may hang for as long as a file
system does; they start nothing, so no children but helpers is the same proof.

From the fork on the process is the user's: what has to be done before the command runs, the log and the command itself may be on
a file system that does not answer. Then it hangs there, where it can be signalled and killed, and the launcher does not.
"""

import os

from remuda.launch import jsonline, log_readback
from remuda.launch.forked_look import AnswerPipe
from remuda.launch.protocol import MAX_TEXT, SIGNAL_NAMES, SIGNALS
from remuda.launch.small_records import SmallRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signals
    from collections.abc import Callable, Iterable
else:  # the C module: `signal` imports `enum` and half the library
    import _signal as signals

NOT_FOUND, NOT_RUNNABLE = 127, 126  # what a shell would exit with
_PR_SET_CHILD_SUBREAPER = 36
_TAIL_BYTES = 4096
# Ignored signals survive into the child: the interpreter ignores two for itself, and a script's background job (`remuda up &`)
# inherits more. The child gets every signal that can be set in its default state.
_TO_DEFAULT = [n for n in range(1, 32) if n not in (SIGNALS["KILL"], SIGNALS["STOP"])]


class EndedProcess(SmallRecord):
    pid: int
    code: int
    signal: int | None


class SpawnError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def make_launcher_subreaper() -> bool:
    """Orphans below this process become its children. Not needed (and not asked for) as PID 1."""
    if os.getpid() == 1:
        return True
    try:
        try:  # the C half of ctypes is all this takes; the Python half would cost 4 ms of every start
            from _ctypes import call_function, dlopen, dlsym

            prctl = dlsym(dlopen(None, 2), "prctl")  # type: ignore[arg-type]
            return bool(call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0)
        except ImportError:
            import ctypes

            return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def start_user_process(
    argv: list[str], env: dict[str, str], prepare: "Callable[[], object]", close: "Iterable[int]"
) -> tuple[int, AnswerPipe]:
    """Fork the process that becomes the user's: in a session of its own, standard streams inherited, it does `prepare` and then
    runs the command. Returns its pid, and a pipe that ends when the command runs or the process is gone. Its answers: what
    `prepare` returned and, if the command could not be run, exit code and why. `close`: descriptors that are not its business."""
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError as error:
        os.close(read)
        os.close(write)
        raise SpawnError(NOT_RUNNABLE, f"cannot run {argv[0]}: {error.strerror}") from None
    if pid == 0:
        _become_user_process(argv, env, prepare, write, close)
    os.close(write)
    os.read(read, 1)  # from now on a signal to its group reaches it
    return pid, AnswerPipe(read)


def _become_user_process(
    argv: list[str], env: dict[str, str], prepare: "Callable[[], object]", write: int, close: "Iterable[int]"
) -> None:
    """The forked process, until it is the user's or its end."""
    error = SpawnError(NOT_RUNNABLE, f"cannot run {argv[0]}")
    try:
        os.setsid()
        signals.set_wakeup_fd(-1)
        for number in _TO_DEFAULT:
            signals.signal(number, signals.SIG_DFL)
        signals.pthread_sigmask(signals.SIG_SETMASK, ())
        for fd in close:
            os.close(fd)
        os.write(write, b"\n")
        os.write(write, jsonline.encode_launch_json_line(prepare()).encode() + b"\n")
        error = _run_user_command(argv, env)
    finally:  # nothing that goes wrong here may come back as a second launcher
        os.write(write, jsonline.encode_launch_json_line((error.code, error.message[:MAX_TEXT])).encode())
        os._exit(error.code)


def _run_user_command(argv: list[str], env: dict[str, str]) -> SpawnError:
    """Returns only when it could not be run."""
    try:
        os.execvpe(argv[0], argv, env)
    except FileNotFoundError:
        if "/" in argv[0] and os.path.exists(argv[0]):
            return SpawnError(NOT_FOUND, f"the interpreter named in the first line of {argv[0]} does not exist")
        return SpawnError(NOT_FOUND, f"command not found: {argv[0]}")
    except PermissionError:
        return SpawnError(NOT_RUNNABLE, f"permission denied: {argv[0]} (is it an executable file?)")
    except (OSError, ValueError) as error:
        return SpawnError(NOT_RUNNABLE, f"cannot run {argv[0]}: {getattr(error, 'strerror', None) or error}")


def signal_user_process(pid: int, signal: int) -> None:
    try:
        os.kill(pid, signal)
    except ProcessLookupError:
        pass


def user_process_dies_of(pid: int, signal: int) -> bool:
    """Whether the process neither catches, ignores nor waits for the signal, as far as can be told."""
    masks = {}
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line[:3] == b"Sig" and line[3:7] in (b"Blk:", b"Ign:", b"Cgt:"):
                    masks[line[3:6]] = int(line[7:], 16)
        taken = masks[b"Ign"] | masks[b"Cgt"]
        # Blocked alone it is waited for; blocked with all the others it is so for a moment only, say while a shell forks.
        if not masks[b"Blk"] >> (SIGNALS["TERM"] - 1) & 1:
            taken |= masks[b"Blk"]
    except (OSError, ValueError, KeyError):
        return True
    return not taken >> (signal - 1) & 1


def signal_user_processes(pid: int, signal: int) -> None:
    """To every process of the group led by `pid`, and wake those that are stopped so that they can act on it."""
    for number in (signal, SIGNALS["CONT"]):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return


def own_child_pids() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        me = os.getpid()
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent_pid(name) == me]


def _parent_pid(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[1])
    except (OSError, ValueError, IndexError):
        return -1


def kill_user_processes(main_pid: int | None, helpers: set[int]) -> None:
    """One pass: the group of the main process while its pid is still ours, and every direct child but the launcher's helpers."""
    if main_pid is not None:
        signal_user_processes(main_pid, SIGNALS["KILL"])
    for pid in own_child_pids():
        if pid not in helpers:
            signal_user_process(pid, SIGNALS["KILL"])


def reap_user_processes(main_pid: int | None, helpers: set[int]) -> tuple[list[EndedProcess], bool]:
    """Wait for all that has ended; the second value says that no child is left but helpers. Helpers that have ended are taken out
    of `helpers`: their numbers may be anybody's from then on."""
    ended: list[EndedProcess] = []
    while True:
        try:
            peek = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ended, True
        if peek is None:
            # A whole list: who ends while it is read stays in it until reaped here, and nobody comes but from one who is in it.
            return ended, bool(helpers) and set(own_child_pids()) <= helpers
        if peek.si_pid == main_pid:  # while its zombie keeps the number, the group is certainly ours
            signal_user_processes(main_pid, SIGNALS["KILL"])
        _, status = os.waitpid(peek.si_pid, 0)
        helpers.discard(peek.si_pid)
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        ended.append(EndedProcess(peek.si_pid, os.WEXITSTATUS(status) if signal is None else 128 + signal, signal))


def user_output_size(fd: int = 2) -> int:
    """Bytes in the log behind a standard stream; -1 when it cannot be read again."""
    try:
        found = os.fstat(fd)
    except OSError:
        return -1
    return found.st_size if found.st_mode & 0o170000 == 0o100000 else log_readback.log_file_position()


def user_output_has_two_streams() -> bool:
    """Standard output and standard error lead to different places."""
    try:
        out, error = os.fstat(1), os.fstat(2)
    except OSError:
        return False
    return (out.st_dev, out.st_ino) != (error.st_dev, error.st_ino)


def user_output_is_mid_line() -> bool:
    """Does the log behind standard output end without a newline? Of a pipe nobody can tell, unless its log is known."""
    try:
        size = user_output_size(1)
        if size <= 0:
            return False
        if log_readback.has_user_output_log():
            return log_readback.user_output_log_end(0, 1) != b"\n"
        with open("/proc/self/fd/1", "rb", buffering=0) as file:
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    except OSError:
        return False


def describe_user_process_end(ended: EndedProcess, output_from: int) -> str:
    """One line for people: how it ended and, where the log is a file, the last thing it said."""
    if ended.code == 0:
        return ""
    if ended.signal is not None:
        text = f"killed by SIG{SIGNAL_NAMES.get(ended.signal, ended.signal)}"
    else:
        text = f"exit code {ended.code}"
    last = _last_output_line(output_from)
    return f"{text}: {last}" if last else text


def _last_output_line(output_from: int) -> str:
    lines = user_output_tail(output_from).strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""


def user_output_tail(output_from: int) -> str:
    """The end of what was written since then to the log behind standard error; "" when it cannot be read again."""
    if log_readback.has_user_output_log():
        return log_readback.user_output_log_end(output_from, _TAIL_BYTES).decode("utf-8", "replace")
    size = user_output_size()
    if output_from < 0 or size <= output_from:
        return ""
    try:
        with open("/proc/self/fd/2", "rb", buffering=0) as file:
            file.seek(max(output_from, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""

"""The shim as a real process: what it records, what it survives, and what it never leaves behind."""

import importlib.util
import json
import os
import py_compile
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda.embedded.node import shim
from remuda.link.log_segments import log_begin, log_end, log_segments, read_log_segments
from tests.builders.waiting import PATIENCE_S, wait_until

# A main process with a child that left its group and session, both deaf to SIGTERM; says when they are up.
TREE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
name = "main"
if os.fork() == 0:
    os.setsid()
    name = "child" if os.fork() else "grandchild"
with open(f"{sys.argv[1]}/{name}.tmp", "w") as f: f.write(str(os.getpid()))
os.rename(f"{sys.argv[1]}/{name}.tmp", f"{sys.argv[1]}/{name}.pid")
time.sleep(1000)
"""
PYTHON = (sys.executable, "-I", "-S", "-c")


class Box:
    """One container directory and the shims started in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shims: list[subprocess.Popen[bytes]] = []

    def __getattr__(self, name: str) -> str:
        return str(self.directory / name)  # box.log, box.status, box.pidfile

    def spec(self, *argv: str, env: dict[str, str] | None = None, cwd: str | None = None, **more: str) -> str:
        paths = {"log": self.log, "status": self.status, "pidfile": self.pidfile}
        full_env = {"PATH": os.environ["PATH"], **(env or {})}
        spec = {"id": 'pod/"c"', "argv": list(argv), "env": full_env, "cwd": cwd, **paths, **more}
        Path(self.specfile).write_text(json.dumps(spec))
        return self.specfile

    def run(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(shim.shim_argv(self.spec(*argv, **options)))
        self.shims.append(process)
        return process

    def started(self) -> dict[str, Any]:
        wait_until("the pidfile", lambda: Path(self.pidfile).exists())
        found: dict[str, Any] = json.loads(Path(self.pidfile).read_text())
        return found

    def ended(self) -> dict[str, Any]:
        wait_until("the status", lambda: shim.read_shim_status(self.status))
        found = shim.read_shim_status(self.status)
        assert found is not None
        return found

    def tree(self) -> list[int]:
        self.run(*PYTHON, TREE, str(self.directory))
        paths = [self.directory / f"{name}.pid" for name in ("main", "child", "grandchild")]
        wait_until("the tree", lambda: all(path.exists() for path in paths))
        return [int(path.read_text()) for path in paths]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    found = Box(tmp_path)
    yield found
    kill_container(found.pidfile)
    for process in found.shims:
        process.wait(PATIENCE_S)


def is_alive(pidfile: str) -> bool:
    """Is anything of the container still running, the shim that is about to record its end included?"""
    return shim.probe_container(pidfile) != (None, None)


def kill_container(pidfile: str) -> bool:
    """Through the shim or, where that is gone, the main process and its group."""
    shim_pid, main = shim.probe_container(pidfile)
    if shim_pid is not None:
        os.kill(shim_pid, signal.SIGUSR1)
    elif main is not None:
        os.killpg(main, signal.SIGKILL)
    return (shim_pid, main) != (None, None)


def is_running(pid: int) -> bool:
    return shim.process_start_ticks(pid) is not None


def test_it_runs_the_command_and_records_its_end(box: Box, tmp_path: Path) -> None:
    before = time.time()
    process = box.run(
        "sh", "-c", 'pwd; echo "$GREETING"; echo error >&2; exit 3', env={"GREETING": "hé"}, cwd=str(tmp_path)
    )
    status = box.ended()
    assert process.wait(PATIENCE_S) == 0
    assert (status["code"], status["signal"], status["message"]) == (3, None, "exit code 3")
    assert before <= status["startedAt"] <= status["finishedAt"] <= time.time()
    assert Path(box.log).read_text() == f"{tmp_path}\nhé\nerror\n"


def test_success_and_death_by_signal(box: Box) -> None:
    box.run("true")
    assert (box.ended()["code"], box.ended()["message"]) == (0, "")
    Path(box.status).unlink()
    box.run("sh", "-c", "kill -SEGV $$")
    status = box.ended()
    assert (status["code"], status["signal"], status["message"]) == (139, 11, "killed by signal 11")


def test_the_log_is_appended_to(box: Box) -> None:
    Path(box.log).write_text("before\n")
    box.run("echo", "after")
    box.ended()
    assert Path(box.log).read_text() == "before\nafter\n"


def test_the_pidfile_names_both_processes_beyond_doubt(box: Box) -> None:
    process = box.run("sleep", "1000")
    record = box.started()
    assert (record["id"], record["shim"]) == ('pod/"c"', process.pid)
    assert record["startTime"] == {
        "shim": shim.process_start_ticks(process.pid),
        "pid": shim.process_start_ticks(record["pid"]),
    }
    assert shim.probe_container(box.pidfile) == (process.pid, record["pid"])
    assert is_alive(box.pidfile)
    assert shim.read_shim_status(box.status) is None
    assert os.getpgid(record["pid"]) == record["pid"]
    assert os.getsid(process.pid) == process.pid


@pytest.mark.parametrize(
    ("content", "mode", "code", "message"),
    [
        (None, 0, 127, "command not found: {}"),
        ("#!/bin/sh\n", 0o644, 126, "permission denied: {} (is it an executable file?)"),
        ("rubbish", 0o755, 126, "cannot run {}: Exec format error"),
    ],
)
def test_a_command_that_cannot_be_run(
    box: Box, tmp_path: Path, content: str | None, mode: int, code: int, message: str
) -> None:
    command = tmp_path / "command"
    if content is not None:
        command.write_text(content)
        command.chmod(mode)
    box.run(str(command))
    status = box.ended()
    assert (status["code"], status["signal"], status["message"]) == (code, None, message.format(command))
    assert message.format(command) in Path(box.log).read_text()
    assert not is_alive(box.pidfile)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cwd": "/no/such/place"}, "cannot enter the working directory /no/such/place: No such file or directory"),
        ({"log": "/no/such/place/log"}, "cannot write the log /no/such/place/log: No such file or directory"),
    ],
)
def test_a_container_that_cannot_be_set_up(box: Box, options: dict[str, Any], message: str) -> None:
    box.run("true", **options)
    assert (box.ended()["code"], box.ended()["message"]) == (128, message)


def test_no_command_at_all(box: Box) -> None:
    box.run()
    assert (box.ended()["code"], box.ended()["message"]) == (127, "the container has no command")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"argv": ["true"], "env": {}}'])
def test_a_bad_specification_is_refused(box: Box, text: str) -> None:
    Path(box.specfile).write_text(text)
    result = subprocess.run(shim.shim_argv(box.specfile), capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "shim: BadSpec" in result.stderr


def test_relative_paths_are_of_where_the_shim_was_started(box: Box, tmp_path: Path) -> None:
    spec = box.spec("pwd", log="l", status="s", pidfile="p", cwd="/")
    subprocess.run(shim.shim_argv(spec), cwd=tmp_path, check=True)
    assert (tmp_path / "l").read_text() == "/\n"
    assert shim.read_shim_status(str(tmp_path / "s"))


def test_sigterm_is_passed_on_to_the_main_process(box: Box) -> None:
    process = box.run("sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done")
    wait_until("the command", lambda: Path(box.log).exists() and "up" in Path(box.log).read_text())
    os.kill(process.pid, signal.SIGTERM)
    assert box.ended()["code"] == 9


def test_sigusr1_kills_everything(box: Box) -> None:
    pids = box.tree()
    os.kill(box.shims[0].pid, signal.SIGTERM)  # which they ignore
    assert kill_container(box.pidfile)
    status = box.ended()
    assert (status["code"], status["signal"]) == (137, 9)
    assert not any(map(is_running, pids))
    assert not is_alive(box.pidfile) or box.shims[0].wait(PATIENCE_S) == 0


def test_the_death_of_the_main_process_is_the_death_of_all(box: Box) -> None:
    main, *others = box.tree()
    os.kill(main, signal.SIGKILL)
    box.ended()
    assert not any(map(is_running, others))  # already, when the status appears


def test_orphans_are_reaped_while_the_main_process_lives(box: Box, tmp_path: Path) -> None:
    box.run("sh", "-c", f"(sleep 0 & echo $! >{tmp_path}/orphan); echo up; exec sleep 1000")
    wait_until("the command", lambda: Path(box.log).exists() and "up" in Path(box.log).read_text())
    orphan = (tmp_path / "orphan").read_text().strip()
    wait_until("the orphan to be waited for", lambda: not Path(f"/proc/{orphan}").exists())


def test_it_survives_the_killing_of_its_parent_and_records_the_end(box: Box, tmp_path: Path) -> None:
    spec = box.spec("sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.01; done; exit 7")
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(1000)"
    parent = subprocess.Popen([sys.executable, "-c", code, *shim.shim_argv(spec)], start_new_session=True)
    record = box.started()
    os.killpg(parent.pid, signal.SIGKILL)
    os.kill(record["shim"], signal.SIGHUP)  # what a terminal that closes would send
    parent.wait()
    assert is_alive(box.pidfile)
    (tmp_path / "end").touch()
    assert box.ended()["code"] == 7
    wait_until("the shim to go", lambda: not is_alive(box.pidfile))


def test_a_parent_that_ignores_sigchld_does_not_cost_the_exit_code(box: Box) -> None:
    spec = box.spec("sh", "-c", "exit 7")
    code = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK,"
        " signal.valid_signals()); os.execv(sys.argv[1], sys.argv[1:])"
    )
    box.shims.append(subprocess.Popen([sys.executable, "-c", code, *shim.shim_argv(spec)]))
    assert box.ended()["code"] == 7


def test_the_command_gets_a_clean_signal_state_and_only_its_environment(box: Box) -> None:
    box.run("sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; tr '\\0' '\\n' </proc/self/environ", env={"A": "1"})
    box.ended()
    blocked, ignored, *env = Path(box.log).read_text().splitlines()
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) & 0x7FFFFFFF == 0  # 32 and 33 are the C library's own
    assert {line.split("=")[0] for line in env} - {"PWD", "OLDPWD", "SHLVL", "_"} == {"A", "PATH"}


# --- who is alive -----------------------------------------------------------------------------------------------------


def write_pidfile(path: str, **changes: Any) -> None:
    ticks = shim.process_start_ticks(os.getpid())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record = {"shim": os.getpid(), "pid": os.getpid(), "startTime": {"shim": ticks, "pid": ticks}, "boot": boot}
    Path(path).write_text(json.dumps({**record, **changes}))


def test_a_recycled_pid_is_not_mistaken(box: Box) -> None:
    """This very process has the pid that the file names, but it was not started when the file says."""
    write_pidfile(box.pidfile)
    assert is_alive(box.pidfile)
    ticks = shim.process_start_ticks(os.getpid())
    assert ticks is not None
    write_pidfile(box.pidfile, startTime={"shim": ticks + 1, "pid": ticks - 1})
    assert not is_alive(box.pidfile)
    assert not kill_container(box.pidfile)
    write_pidfile(box.pidfile, boot="of another boot")
    assert not is_alive(box.pidfile)
    Path(box.pidfile).unlink()


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "{}", '{"shim": 1, "pid": 0, "startTime": {}}', '{"shim": "x", "startTime": 3}']
)
def test_a_broken_pidfile_names_nobody(box: Box, content: str | None) -> None:
    if content is not None:
        Path(box.pidfile).write_text(content)
    assert shim.probe_container(box.pidfile) == (None, None)
    assert not is_alive(box.pidfile)


def test_a_zombie_is_not_alive(box: Box) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert shim.process_start_ticks(process.pid) is None
    process.wait()


def test_a_name_full_of_brackets_is_read(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "1000"])
    try:
        wait_until("the exec", lambda: Path(f"/proc/{process.pid}/comm").read_text() == "a) S 1 (b\n")
        assert abs((shim.process_start_ticks(process.pid) or 0) - (shim.process_start_ticks(os.getpid()) or 0)) < 1e7
    finally:
        process.kill()
        process.wait()


def test_without_its_shim_a_container_is_an_orphan_and_can_be_killed(box: Box) -> None:
    process = box.run("sleep", "1000")
    main = box.started()["pid"]
    process.kill()
    process.wait()
    assert shim.probe_container(box.pidfile) == (None, main)
    assert is_alive(box.pidfile)
    assert kill_container(box.pidfile)
    wait_until("the orphan to die", lambda: not is_alive(box.pidfile))
    assert shim.read_shim_status(box.status) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"code": 1'])
def test_half_a_status_is_no_status(box: Box, content: str) -> None:
    Path(box.status).write_text(content)
    assert shim.read_shim_status(box.status) is None


def test_nothing_slow_is_imported_at_start() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import shim; print(*sorted(sys.modules))"
    argv = [*PYTHON, code, str(Path(shim.__file__).parent)]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert "posix" in loaded
    assert not set(loaded) & {"collections", "ctypes", "enum", "json", "re", "signal", "subprocess", "typing"}


def test_only_a_compiled_file_of_this_very_source_is_run(tmp_path: Path) -> None:
    """Bytecode may be left from an older version where Python is told not to write any."""
    source = tmp_path / "shim_copy.py"
    source.write_text(Path(shim.__file__).read_text())
    spec = importlib.util.spec_from_file_location("shim_copy", source)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert spec.cached is not None
    Path(spec.cached).unlink(missing_ok=True)
    assert copy.shim_argv("s")[-2:] == [str(source), "s"]
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    assert copy.shim_argv("s")[-2:] == [spec.cached, "s"]
    assert copy.shim_argv("s", "python3")[0::5] == ["python3", str(source)]
    source.write_text(source.read_text() + "# changed\n")
    assert copy.shim_argv("s")[-2:] == [str(source), "s"]


# --- the log ----------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_costs_lines_and_not_the_container(box: Box) -> None:
    """/dev/full refuses every write with ENOSPC. A program that wrote to it directly would die of that."""
    code = "import sys\nfor _ in range(20000): print('x' * 99)\nsys.stdout.flush(); print('y', file=sys.stderr, flush=True)"
    box.run(*PYTHON, code, log="/dev/full")
    assert (box.ended()["code"], box.ended()["message"]) == (0, "")


def test_what_could_not_be_written_is_said_in_the_log_when_it_can(tmp_path: Path) -> None:
    pump = object.__new__(shim.LogPump)
    pump._path, pump._max_bytes, pump._files = str(tmp_path / "main.log"), 10_000, 3
    pump._log, pump._size, pump._lost, pump._is_mid_line = -1, 0, 0, False
    pump._take(b"one\nhalf a li")
    with open("/dev/full", "wb") as full:
        log, pump._log = pump._log, full.fileno()
        pump._take(b"ne\nlost\n")
        pump._log = log
    pump._take(b"three\n")
    text = (tmp_path / "main.log").read_text()
    assert text == "one\nhalf a li\nremuda: 8 bytes of this log could not be written and are lost\nthree\n"
    os.close(pump._log)


def test_a_log_is_bounded_and_its_end_is_all_there(box: Box) -> None:
    box.run(*PYTHON, "for n in range(60000): print(f'line {n:05d}')", logBytes="100000", logFiles="3")
    assert box.ended()["code"] == 0
    log = Path(box.log)
    segments = log_segments(log)
    assert len(segments) == 3
    assert all(segment.size <= 100_000 + 65536 for segment in segments)
    assert log_end(log) == 60_000 * len("line 00000\n"), "positions count all that was ever written"
    begin, kept = read_log_segments(log, 0, 1 << 20)
    lines = kept.decode().splitlines()
    assert begin == log_begin(log) > 0
    assert lines == [f"line {n:05d}" for n in range(60_000 - len(lines), 60_000)], "whole lines, none missing"
    box.run("echo", "the next run", logBytes="100000", logFiles="3")
    wait_until("the next run", lambda: b"the next run\n" in read_log_segments(log, begin, 1 << 20)[1])
    assert {path.stat().st_mode & 0o777 for path in log.parent.glob("log*")} == {0o600}


def test_a_line_longer_than_a_log_is_kept_in_bounds(box: Box) -> None:
    box.run(*PYTHON, "import sys; sys.stdout.write('x' * 5_000_000)", logBytes="4096", logFiles="2")
    assert box.ended()["code"] == 0
    assert log_end(Path(box.log)) == 5_000_000
    assert sum(s.size for s in log_segments(Path(box.log))) < 2 * (shim.LONGEST_LINE + 4096 + 2 * 65536)


def test_output_that_somebody_else_holds_does_not_hold_the_end_up(box: Box) -> None:
    """A process that left the container by being somebody else's child may have its output still."""
    box.run("sh", "-c", "echo up; while :; do sleep 0.01; done")
    record = box.started()
    wait_until("the command", lambda: "up" in Path(box.log).read_text())
    held = os.open(f"/proc/{record['pid']}/fd/1", os.O_WRONLY)
    try:
        os.kill(record["shim"], signal.SIGUSR1)
        assert box.ended()["code"] == 137
    finally:
        os.close(held)


def test_the_end_is_recorded_when_the_disk_takes_it_again(box: Box, tmp_path: Path) -> None:
    """A directory without room is played by a name that cannot be replaced."""
    box.run("sh", "-c", f"echo up; until [ -e {tmp_path}/end ]; do sleep 0.01; done; exit 5")
    box.started()
    blocked = Path(box.status)
    blocked.mkdir()
    (blocked / "in-the-way").touch()
    (tmp_path / "end").touch()
    wait_until("the command's end", lambda: shim.probe_container(box.pidfile)[1] is None)
    assert shim.probe_container(box.pidfile)[0] is not None, "the shim stays until it is written"
    (blocked / "in-the-way").unlink()
    blocked.rmdir()
    assert box.ended()["code"] == 5


def test_what_was_written_can_be_read_back_at_once_from_within(box: Box, tmp_path: Path) -> None:
    """As a launcher does for the last words of its rank: all of it is there, over rotations, however busy the machine is."""
    code = (
        "import os, sys\n"
        "from remuda.launch import log_readback as log\n"
        "for n in range(200):\n"
        "    begin = log.log_file_position()\n"
        "    words = b'x' * (n * 37) + b'\\nwords %d\\n' % n\n"
        "    os.write(1 + n % 2, words)\n"
        "    found = log.user_output_log_end(begin, 4096)\n"
        "    if found != words[-4096:]: sys.exit(f'{n}: {found[-60:]!r}')\n"
        "    if log.log_file_position() != begin + len(words): sys.exit(f'{n}: position')\n"
    )
    source = str(Path(shim.__file__).parents[3])
    env = {"PYTHONPATH": source, "REMUDA_LOG_FILE": box.log}
    box.run(sys.executable, "-S", "-c", code, env=env, logBytes="20000", logFiles="3")
    assert box.ended()["code"] == 0, Path(box.log).read_text()[-300:]
    assert len(log_segments(Path(box.log))) == 3

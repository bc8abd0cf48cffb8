"""The real launcher beside a file system that does not answer: it hears its agent, keeps its deadlines, and never calls it empty.

A pipe in the place of a side file stands for a file server that is away: whoever opens it waits until somebody writes to it.
Where the launcher only asks for a file's status, its program is changed for the test, and waits for such a pipe there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from remuda.launch import checkpoints, user_process
from remuda.launch.actions import Action, Exit, SetTimer
from remuda.launch.launcher_machine import LauncherIdentity, LaunchMachine
from remuda.launch.launcher_shell import LauncherShell
from remuda.launch.protocol import (
    Checkpoint,
    Fence,
    Heartbeat,
    Hello,
    Message,
    Ready,
    Running,
    Start,
    Stop,
    Vouch,
    encode_launch_message,
)
from tests.builders.hanging_file import HangingFile
from tests.builders.waiting import PATIENCE_S, wait_until
from tests.unit.launch.rig import PYTHON, Agent, Container, is_running
from tests.unit.launch.test_launcher_process import SLEEP

RANK = 6
# Saves nothing: it only says so.
SAVING = "import remuda_train as r, time\nr.report(7, checkpoint=7)\ntime.sleep(1000)"


def boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def a_volume_that_hangs(place: Path) -> HangingFile:
    """A checkpoint whose side file does not answer."""
    checkpoints.save(str(place), RANK, 10, b"weights")
    return HangingFile(place / f"rank-{RANK}/step-10.json")


def at(place: Path, attempt: int, **fields: float) -> Stop:
    return Stop(attempt, rank=RANK, checkpoint_dir=str(place), **fields)  # type: ignore[arg-type]


def env_of(place: Path, **more: str) -> dict[str, str]:
    return {"REMUDA_RANK": str(RANK), "REMUDA_CHECKPOINT_DIR": str(place), **more}


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_a_look_that_hangs_is_doubt_and_never_empty(container: Container, agent: Agent, tmp_path: Path) -> None:
    container.run(*SLEEP)
    agent.accept()
    side = a_volume_that_hangs(tmp_path)
    agent.send(at(tmp_path, 1))
    said = agent.expect(Ready)
    assert (said.attempt, said.checkpoints) == (1, ())
    assert said.unreadable == f"{tmp_path}/rank-{RANK} has not answered for 2 s"
    assert f"checkpoints could not be read, looking again: {said.unreadable}" in container.output()
    side.answer()
    while (said := agent.expect(Ready)).unreadable:
        assert said.checkpoints == ()
    assert said == Ready(1, (10,))


def test_everything_is_heard_while_a_look_hangs_and_what_hangs_is_bounded(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    process = container.run(*SLEEP)
    agent.accept()
    a_volume_that_hangs(tmp_path)
    for attempt in range(1, 12):
        agent.send(at(tmp_path, attempt))
        agent.send(Stop(attempt, rank=RANK, checkpoint_dir=str(tmp_path / "elsewhere")))  # another question at once
        assert agent.expect(Ready) == Ready(attempt), "the volume that is well answers"
    agent.send(at(tmp_path, 12))
    wait_until("one look, and those before gone", lambda: len(children_of(process.pid)) == 1)
    agent.send(Start(11, {}), Fence(), Stop(13))
    assert agent.expect(Ready).attempt == 13
    process.send_signal(signal.SIGTERM)
    assert container.wait() == 143


def test_a_rank_is_started_and_stopped_while_a_look_of_before_hangs(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    """With consent a gang goes on without what cannot be read."""
    container.run(*SLEEP)
    agent.accept()
    a_volume_that_hangs(tmp_path)
    agent.send(at(tmp_path, 1))
    assert agent.expect(Ready).unreadable
    agent.send(Start(1, {}))
    pid = agent.expect(Running).pid
    agent.send(Stop(2))
    assert agent.expect(Ready) == Ready(2)
    assert not is_running(pid)


def hang_on_status(container: Container, pipe: Path) -> None:
    """From now on asking whether a checkpoint is there waits for the pipe."""
    changed = (
        "from remuda.launch import checkpoints;checkpoints.is_checkpoint_commit_on_disk=lambda *a:open(%r).read()==''"
    )
    run = f"import sys;sys.path.insert(0,sys.argv.pop(1));{changed % str(pipe)};"
    run += "from remuda.launch.__main__ import main;sys.exit(main())"
    os.mkfifo(pipe)
    program = [PYTHON, "-I", "-S", "-X", "utf8", "-c", run, str(container.pyz), "--"]
    container.run_program([*program, sys.executable, "-S", "-c", SAVING])


@pytest.fixture
def running(container: Container, agent: Agent, tmp_path: Path) -> Running:
    """A child that has reported a checkpoint, on a volume that does not answer since."""
    hang_on_status(container, tmp_path / "away")
    agent.accept()
    found = agent.start(1, env_of(tmp_path))
    beat = agent.expect(Heartbeat)
    assert (beat.checkpoint, beat.kept) == (7, None)
    return found


def test_the_agents_word_ends_in_time_while_the_volume_hangs(running: Running, agent: Agent) -> None:
    agent.send(Vouch(0.2, at=boot_clock()))
    while agent.expect(Hello).state != "parked":
        pass  # late itself, on a busy machine, it asks first
    assert not is_running(running.pid)


@pytest.mark.parametrize("how", ["stopped", "fenced", "terminated"])
def test_a_rank_is_ended_while_the_volume_hangs(running: Running, container: Container, agent: Agent, how: str) -> None:
    assert container.process is not None
    if how == "stopped":
        agent.send(Stop(2))
        assert agent.expect(Ready) == Ready(2)
    elif how == "fenced":
        agent.send(Fence())
        agent.expect(Hello)
    else:
        container.process.send_signal(signal.SIGTERM)
        assert container.wait() == 143
    assert not is_running(running.pid)


def test_what_is_seen_on_disk_late_is_told_then(running: Running, agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "away").write_bytes(b"")  # waits for a reader, and lets it go on
    beat = agent.expect(Heartbeat)
    assert (beat.step, beat.checkpoint, beat.kept) == (7, 7, 7)


def test_a_start_that_the_volume_holds_up_can_be_stopped(container: Container, agent: Agent, tmp_path: Path) -> None:
    """What is no longer built on is marked before the command runs, and so the command does not run."""
    process = container.run("touch", str(tmp_path / "ran"))
    agent.accept()
    agent.send(at(tmp_path, 1))
    assert agent.expect(Ready) == Ready(1)
    a_volume_that_hangs(tmp_path)
    agent.send(Start(1, env_of(tmp_path, REMUDA_RESUME_STEP="")))
    wait_until("the process that will be the command", lambda: len(children_of(process.pid)) == 1)
    (pid,) = children_of(process.pid)
    agent.send(Checkpoint(5000.5, "USR1"))  # heard, and no reason to end what has not begun
    agent.send(Stop(2, grace=1000.0))
    assert agent.expect(Ready) == Ready(2)
    assert not is_running(pid)
    assert not (tmp_path / "ran").exists()


def test_a_start_that_the_volume_holds_up_goes_on_with_it(container: Container, agent: Agent, tmp_path: Path) -> None:
    container.run(*SLEEP)
    agent.accept()
    agent.send(at(tmp_path, 1))
    assert agent.expect(Ready) == Ready(1)
    side = a_volume_that_hangs(tmp_path)
    agent.send(Start(1, env_of(tmp_path, REMUDA_RESUME_STEP="")))
    side.answer()
    assert agent.expect(Running).attempt == 1
    assert (tmp_path / f"rank-{RANK}/step-10.abandoned").exists()


# --- words that have waited -------------------------------------------------------------------------------------------------


def test_a_word_that_is_read_late_counts_from_when_it_was_said(container: Container, agent: Agent) -> None:
    container.run(*SLEEP)
    agent.accept()
    pid = agent.start(1).pid
    agent.send(Vouch(1e6, at=boot_clock()))
    agent.send(Vouch(1e3, at=boot_clock() - 1e3))  # said so long ago that it is over now
    assert agent.expect(Hello).state in ("running", "parked"), "asks, or has stopped already"
    wait_until("the child to be stopped", lambda: not is_running(pid))


class Noting(LaunchMachine):
    """Whose deadline is over from the beginning; ends with the first message."""

    heard: list[str]

    def begin(self, now: float) -> list[Action]:
        self.heard = []
        return [SetTimer(now)]

    def timer(self, now: float) -> list[Action]:
        self.heard.append("deadline")
        return []

    def received(self, now: float, message: Message) -> list[Action]:
        self.heard.append("message")
        return [Exit(0)]


def test_deadlines_come_before_what_was_said_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stood still finds both when it wakes."""
    monkeypatch.setattr(user_process, "make_launcher_subreaper", lambda: True)
    signals, write = os.pipe()
    agent, end = socket.socketpair()
    machine = Noting(LauncherIdentity("p", "u", 1))
    shell = LauncherShell(["true"], SimpleNamespace(fd=signals), machine.identity, str(tmp_path))  # type: ignore[arg-type]
    shell._machine, shell._agent = machine, end
    shell._poll.register(end.fileno(), select.POLLIN)
    agent.send(encode_launch_message(Vouch(5.0)))
    assert shell.run() == 0
    assert machine.heard == ["deadline", "message"]
    for one in (agent, end, shell._inbox._socket):  # type: ignore[union-attr]
        one.close()
    for fd in (signals, write):
        os.close(fd)


# --- its own processes are not the user's -----------------------------------------------------------------------------------

REAPING = """
import os, signal, sys
from remuda.launch import user_process
def a_process(code):
    pid = os.fork()
    if pid == 0:
        signal.pause() if code is None else os._exit(code)
    return pid
helper, user, done = a_process(None), a_process(None), a_process(3)
os.waitid(os.P_PID, done, os.WEXITED | os.WNOWAIT)
helpers = {helper}
print([one.code for one in user_process.reap_user_processes(done, helpers)[0]], helpers == {helper})
print(user_process.reap_user_processes(None, helpers)[1])
user_process.kill_user_processes(None, helpers)
os.waitid(os.P_PID, user, os.WEXITED | os.WNOWAIT)
ended, is_gone = user_process.reap_user_processes(None, helpers)
print([one.pid == user for one in ended], is_gone, user_process.reap_user_processes(None, set())[1])
os.kill(helper, signal.SIGKILL)
os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
print(user_process.reap_user_processes(None, helpers)[1], helpers)
"""


def test_a_helper_that_nobody_can_end_does_not_keep_the_tree_alive() -> None:
    argv = [sys.executable, "-c", REAPING]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.splitlines() == ["[3] True", "False", "[True] True False", "True set()"], done.stderr


LOOKING = """
import json, os, select, sys
from remuda.launch.actions import ScanCheckpoints
from remuda.launch.checkpoint_looks import MAX_LOOKS, CheckpointLooks
looks = CheckpointLooks(select.poll(), lambda: [])
place = (os.path.dirname(sys.argv[1]), 6)
looks.child_begins(place)
print(sum(looks.is_kept(step, 0.0, 60.0) for step in range(3 * MAX_LOOKS)), "are kept")
for pid in looks.pids:  # they have answered; now they are gone, too
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
kill, os.kill = os.kill, lambda *_: None  # the kernel cannot end them
told = [looks.scan(ScanCheckpoints(attempt, 6, sys.argv[1])) for attempt in range(MAX_LOOKS + 1)]
print(told[:-1] == [None] * MAX_LOOKS, told[-1].unreadable)
kill(min(looks.pids), 9)
os.waitid(os.P_PID, min(looks.pids), os.WEXITED | os.WNOWAIT)
print(looks.scan(ScanCheckpoints(9, 6, sys.argv[1])))
for pid in looks.pids:
    kill(pid, 9)
"""


def test_looks_that_do_not_end_are_bounded_and_others_are_not(tmp_path: Path) -> None:
    for step in range(12):
        checkpoints.save(str(tmp_path), RANK, step, b"x", keep=12)
    away = tmp_path / "away"
    a_volume_that_hangs(away)
    argv = [sys.executable, "-c", LOOKING, str(away)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    words = f"{away}/rank-6: nobody could look: 4 looks before this one have not ended"
    assert done.stdout.splitlines() == ["12 are kept", f"True {words}", "None"], done.stderr


def test_a_look_that_is_killed_has_said_nothing(container: Container, agent: Agent, tmp_path: Path) -> None:
    process = container.run(*SLEEP)
    agent.accept()
    side = a_volume_that_hangs(tmp_path)
    agent.send(at(tmp_path, 1))
    wait_until("the look", lambda: len(children_of(process.pid)) == 1)
    (pid,) = children_of(process.pid)
    os.kill(pid, signal.SIGKILL)
    words = f"{tmp_path}/rank-{RANK}: the look at it ended without an answer"
    agent.expect(Ready, lambda said: said.unreadable == words)
    side.answer()
    while (said := agent.expect(Ready)).unreadable:
        pass
    assert said == Ready(1, (10,)), "looked again"


def test_who_waits_for_the_launchers_end_does_not_wait_for_a_look(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    process = container.run(*SLEEP)
    agent.accept()
    side = a_volume_that_hangs(tmp_path)
    agent.send(at(tmp_path, 1))
    wait_until("the look", lambda: len(children_of(process.pid)) == 1)
    (pid,) = children_of(process.pid)
    wait_until("it to let go of the log", lambda: os.readlink(f"/proc/{pid}/fd/2") == "/dev/null")
    process.kill()
    process.wait()
    assert agent.connection is not None
    while agent.connection.recv(65536):
        pass  # up to the end, which comes
    assert is_running(pid)
    side.answer()
    wait_until("the look to end", lambda: not is_running(pid))


def test_a_request_is_written_whatever_the_child_has_put_in_its_way(
    container: Container, agent: Agent, alloc: Path
) -> None:
    container.run(*SLEEP)
    agent.accept()
    agent.start(1)
    os.mkfifo(alloc / "checkpoint-request.json.tmp")
    agent.send(Checkpoint(5000.5))
    wait_until("the request", (alloc / "checkpoint-request.json").is_file)
    assert json.loads((alloc / "checkpoint-request.json").read_text())["deadline"] == 5000.5

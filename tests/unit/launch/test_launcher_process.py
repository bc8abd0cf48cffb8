"""The real launcher: processes, signals and sockets."""

import json
import os
import select
import signal
import sys
from pathlib import Path

import pytest

from remuda.launch import checkpoints
from remuda.launch.protocol import Checkpoint, Fence, Heartbeat, Hello, Ready, Running, Start, Stop
from tests.builders.waiting import PATIENCE_S, wait_until
from tests.unit.launch.rig import Agent, Container, is_running

SLEEP = ("sleep", "1000")
# Ignores SIGTERM, and has a child that left the process group; says so once both are set up.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        name = "grandchild"
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        name = "child"
else:
    name = "main"
with open(f"{sys.argv[1]}/{name}.tmp", "w") as f: f.write(str(os.getpid()))
os.rename(f"{sys.argv[1]}/{name}.tmp", f"{sys.argv[1]}/{name}.pid")
time.sleep(1000)
"""


def stubborn_tree(container: Container, agent: Agent, tmp_path: Path) -> list[int]:
    container.run(sys.executable, "-I", "-S", "-c", STUBBORN, str(tmp_path))
    agent.accept()
    agent.start(1)
    return pids_of(tmp_path)


def pids_of(tmp_path: Path) -> list[int]:
    paths = [tmp_path / f"{name}.pid" for name in ("main", "child", "grandchild")]
    wait_until("the tree to be set up", lambda: all(path.exists() for path in paths))
    pids = [int(path.read_text()) for path in paths]
    for path in paths:
        path.unlink()
    return pids


def test_it_greets_parks_and_starts(container: Container, agent: Agent) -> None:
    process = container.run("sh", "-c", 'echo "rank $RANK of $WORLD_SIZE pod $REMUDA_POD_NAME"; exec sleep 1000')
    hello = agent.accept()
    assert (hello.pod, hello.uid, hello.pid, hello.state, hello.attempt, hello.version) == (
        "train-0", "uid-0", process.pid, "parked", 0, 1,
    )  # fmt: skip
    running = agent.start(1, {"RANK": "4", "REMUDA_RANK": "4", "WORLD_SIZE": "8"})
    assert is_running(running.pid)
    assert os.getsid(running.pid) == running.pid
    wait_until("the child's output", lambda: "rank 4 of 8 pod train-0\n" in container.output())
    marker, line = container.output().splitlines()
    assert marker.startswith("--- remuda attempt=1 rank=4 host=train-0 time=")
    assert marker.endswith(" ---")
    assert line == "rank 4 of 8 pod train-0"


def test_restart_in_place_keeps_the_launcher_and_changes_the_child(container: Container, agent: Agent) -> None:
    process = container.run(*SLEEP)
    agent.accept()
    pids = [agent.start(attempt).pid for attempt in (1, 2, 3)]
    assert len(set(pids)) == 3
    assert [is_running(pid) for pid in pids] == [False, False, True]
    assert process.poll() is None
    assert [line.split()[2] for line in container.output().splitlines()] == ["attempt=1", "attempt=2", "attempt=3"]


def test_a_stopped_process_that_ignores_sigterm_and_a_runaway_grandchild_are_all_gone_before_ready(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    pids = stubborn_tree(container, agent, tmp_path)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    agent.send(Stop(2, "TERM", 0.1))
    assert agent.expect(Ready).attempt == 2
    assert not any(map(is_running, pids))


def test_a_suspended_process_is_woken_to_act_on_the_signal(container: Container, agent: Agent, tmp_path: Path) -> None:
    code = (
        "import signal,sys,time\n"
        "def bye(*_):\n open(sys.argv[1] + '/bye', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\nopen(sys.argv[1] + '/up', 'w').close()\nwhile True: time.sleep(1000)\n"
    )
    container.run(sys.executable, "-I", "-S", "-c", code, str(tmp_path))
    agent.accept()
    running = agent.start(1)
    wait_until("the child", (tmp_path / "up").exists)
    os.kill(running.pid, signal.SIGSTOP)
    agent.send(Stop(2, "TERM", 1000.0))
    agent.expect(Ready)
    assert (tmp_path / "bye").exists()


def test_when_the_main_process_dies_its_descendants_do_too(container: Container, agent: Agent, tmp_path: Path) -> None:
    main, *others = stubborn_tree(container, agent, tmp_path)
    os.kill(main, signal.SIGKILL)
    exited = agent.exited()
    assert (exited.attempt, exited.code, exited.signal) == (1, 137, 9)
    assert exited.message == "killed by SIGKILL"
    wait_until("the descendants to die", lambda: not any(map(is_running, others)))
    agent.send(Stop(2))
    agent.expect(Ready)
    agent.send(Start(2, {}))
    agent.expect(Running)
    assert all(map(is_running, pids_of(tmp_path)))


def test_the_launcher_stays_at_the_barrier_after_the_child_has_ended(container: Container, agent: Agent) -> None:
    process = container.run("true")
    agent.accept()
    agent.start(1)
    assert (agent.exited().code, process.poll()) == (0, None)
    agent.start(2)
    assert agent.exited().attempt == 2
    process.send_signal(signal.SIGTERM)
    assert container.wait() == 0


def test_the_marker_begins_a_line_even_after_half_a_line(container: Container, agent: Agent) -> None:
    container.run("sh", "-c", "printf 'half a line'; exec sleep 1000")
    agent.accept()
    agent.start(1)
    wait_until("the first child's output", lambda: container.output().count("half a line") == 1)
    agent.start(2)
    wait_until("the second child's output", lambda: container.output().count("half a line") == 2)
    starts = [line.partition("=")[0] for line in container.output().splitlines()]
    assert starts == ["--- remuda attempt", "half a line"] * 2


def test_the_environment_of_one_attempt_does_not_reach_the_next(container: Container, agent: Agent) -> None:
    container.run("/bin/sh", "-c", "echo $PATH $EXTRA")
    agent.accept()
    agent.start(1, {"PATH": "/one", "EXTRA": "x"})
    assert agent.exited().code == 0
    agent.start(2)
    assert agent.exited().code == 0
    assert [line for line in container.output().splitlines() if "remuda" not in line] == [
        "/one x",
        os.environ["PATH"],
    ]


def test_the_exit_message_ends_with_the_last_line_of_the_log(container: Container, agent: Agent) -> None:
    container.run("sh", "-c", "echo first; echo 'ValueError: no such thing' >&2; exit 3")
    agent.accept()
    agent.start(1)
    exited = agent.exited()
    assert (exited.code, exited.signal, exited.message) == (3, None, "exit code 3: ValueError: no such thing")


def test_the_end_of_the_log_comes_with_a_failure_and_is_bounded(container: Container, agent: Agent) -> None:
    words = "import sys; print('first', 'x' * 9000); print('CUDA out of memory', file=sys.stderr); print('bye'); sys.exit(3)"
    container.run(sys.executable, "-u", "-c", words)
    agent.accept()
    agent.start(1)
    tail = agent.exited().tail
    assert tail.endswith("CUDA out of memory\nbye\n")
    assert len(tail) == 4096
    assert "first" not in tail


def test_a_process_that_ends_well_has_no_tail(container: Container, agent: Agent) -> None:
    container.run("sh", "-c", "echo done")
    agent.accept()
    agent.start(1)
    assert agent.exited().tail == ""


def test_the_exit_message_is_of_this_attempt_only(container: Container, agent: Agent) -> None:
    container.run("sh", "-c", '[ "$REMUDA_ATTEMPT" = 2 ] || echo old words; exit 3')
    agent.accept()
    agent.start(1, {"REMUDA_ATTEMPT": "1"})
    assert agent.exited().message == "exit code 3: old words"
    agent.start(2, {"REMUDA_ATTEMPT": "2"})
    assert agent.exited().message == "exit code 3"


def test_a_command_that_does_not_exist(container: Container, agent: Agent) -> None:
    process = container.run("no-such-command-anywhere", "x")
    agent.accept()
    agent.send(Stop(1))
    agent.expect(Ready)
    agent.send(Start(1, {}))
    exited = agent.exited()
    assert (exited.code, exited.message) == (127, "command not found: no-such-command-anywhere")
    process.send_signal(signal.SIGTERM)
    assert container.wait() == 127


@pytest.mark.parametrize(
    ("content", "mode", "code", "message"),
    [
        ("#!/bin/sh\n", 0o644, 126, "permission denied: {} (is it an executable file?)"),
        ("#!/no/such/interpreter\n", 0o755, 127, "the interpreter named in the first line of {} does not exist"),
        ("not a program", 0o755, 126, "cannot run {}: Exec format error"),
    ],
)
def test_commands_that_cannot_be_run(
    container: Container, agent: Agent, tmp_path: Path, content: str, mode: int, code: int, message: str
) -> None:
    script = tmp_path / "script"
    script.write_text(content)
    script.chmod(mode)
    container.run(str(script))
    agent.accept()
    agent.send(Stop(1))
    agent.expect(Ready)
    agent.send(Start(1, {}))
    exited = agent.exited()
    assert (exited.code, exited.message) == (code, message.format(script))


def test_the_command_is_looked_up_in_the_path_of_the_attempt(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    (tmp_path / "only-here").write_text("#!/bin/sh\nexit 5\n")
    (tmp_path / "only-here").chmod(0o755)
    container.run("only-here")
    agent.accept()
    agent.start(1, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert agent.exited().code == 5


# --- the agent comes and goes -----------------------------------------------------------------------------------------


def test_training_goes_on_without_the_agent_and_what_happened_is_told_on_its_return(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    container.run("sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.01; done; exit 4")
    agent.accept()
    running = agent.start(1)
    agent.go()
    assert is_running(running.pid)
    (tmp_path / "end").touch()
    wait_until("the child to end", lambda: not is_running(running.pid))
    agent.listen()
    hello = agent.accept()
    assert (hello.state, hello.attempt) == ("exited", 1)
    assert agent.expect(Running) == running
    assert agent.exited().code == 4
    agent.start(2)


def test_the_launcher_waits_for_an_agent_that_comes_late(container: Container, alloc: Path) -> None:
    container.run(*SLEEP)
    wait_until("the launcher to be up", (alloc / "progress.sock").exists)
    late = Agent(alloc)
    assert late.accept().state == "parked"
    late.start(1)
    late.go()


def test_a_line_without_end_closes_the_connection_and_the_child_goes_on(container: Container, agent: Agent) -> None:
    container.run(*SLEEP)
    agent.accept()
    running = agent.start(1)
    agent.send_raw(b"x" * 70_000)
    assert agent.is_hung_up()
    assert agent.accept().state == "running"
    assert is_running(running.pid)
    assert "LineTooLong" in container.output()


def test_a_bad_message_is_dropped_and_the_next_one_counts(container: Container, agent: Agent) -> None:
    container.run(*SLEEP)
    agent.accept()
    agent.send_raw(b'nonsense\n{\n[1,\n{"type":"stop","attempt":"x"}\n{"type":"dance"}\n\n')
    agent.start(1)
    assert container.output().count("ignored a message of the agent") == 4


def test_late_and_repeated_orders_change_nothing(container: Container, agent: Agent) -> None:
    container.run(*SLEEP)
    agent.accept()
    running = agent.start(5)
    agent.send(Stop(5), Stop(4), Start(4, {}), Start(6, {}), Start(5, {}))
    assert agent.expect(Running) == running
    assert is_running(running.pid)


def test_a_fence_kills_at_once_and_holds_until_a_higher_attempt(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    pids = stubborn_tree(container, agent, tmp_path)
    agent.send(Fence())
    wait_until("everything to die", lambda: not any(map(is_running, pids)))
    assert agent.expect(Hello).state == "parked"
    agent.send(Stop(1), Start(1, {}), Stop(2))
    assert agent.expect(Ready).attempt == 2


# --- SIGTERM and standing alone ---------------------------------------------------------------------------------------


def test_sigterm_ends_the_child_and_passes_its_code_on(container: Container, agent: Agent) -> None:
    container.env["REMUDA_STOP_GRACE"] = "30"  # a child that answers has the time to, whatever else runs
    process = container.run("sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done")
    agent.accept()
    agent.start(1)
    wait_until("the child", lambda: "up\n" in container.output())
    process.send_signal(signal.SIGTERM)
    assert container.wait() == 9


def test_sigterm_kills_a_stubborn_tree_after_the_grace(container: Container, agent: Agent, tmp_path: Path) -> None:
    container.env["REMUDA_STOP_GRACE"] = "0.1"
    pids = stubborn_tree(container, agent, tmp_path)
    assert container.process is not None
    container.process.send_signal(signal.SIGTERM)
    assert container.wait() == 137
    assert not any(map(is_running, pids))


def test_sigterm_at_the_barrier(container: Container, agent: Agent) -> None:
    process = container.run(*SLEEP)
    agent.accept()
    process.send_signal(signal.SIGTERM)
    assert container.wait() == 143


def test_orphans_are_reaped(container: Container, agent: Agent, tmp_path: Path) -> None:
    process = container.run("sh", "-c", f"(sleep 0 & echo $! > {tmp_path}/orphan) ; echo up; exec sleep 1000")
    agent.accept()
    agent.start(1)
    wait_until("the child", lambda: "up\n" in container.output())
    orphan = int((tmp_path / "orphan").read_text())
    wait_until("the orphan to be waited for", lambda: not Path(f"/proc/{orphan}").exists())
    assert process.poll() is None


def test_without_an_allocation_it_just_runs_the_command(container: Container) -> None:
    container.run("sh", "-c", "echo attempt $REMUDA_ATTEMPT; exit 6", alloc=None)
    assert container.wait() == 6
    assert container.output().splitlines() == [
        "remuda-launch: no Remuda agent here (REMUDA_ALLOC_DIR is not set): running the command once, by itself",
        "attempt 1",
    ]


def test_an_allocation_directory_that_never_appears(container: Container, tmp_path: Path) -> None:
    container.run("true", alloc=str(tmp_path / "nowhere"), REMUDA_ALLOC_WAIT="0.05")
    assert container.wait() == 0
    assert "nowhere (REMUDA_ALLOC_DIR) did not appear: running the command once" in container.output()


def test_an_allocation_directory_that_appears_late(container: Container, tmp_path: Path) -> None:
    late = tmp_path / "late"
    container.run(*SLEEP, alloc=str(late))
    late.mkdir()
    agent = Agent(late)
    assert agent.accept().state == "parked"
    agent.go()


def test_sigterm_while_waiting_for_the_directory(container: Container, tmp_path: Path) -> None:
    process = container.run("true", alloc=str(tmp_path / "nowhere"), REMUDA_ALLOC_WAIT="1000")

    def catches_sigterm() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    wait_until("the launcher to listen to signals", catches_sigterm)
    process.send_signal(signal.SIGTERM)
    assert container.wait() == 143


@pytest.mark.parametrize("args", [[], ["--"], [""], ["--frobnicate"]], ids=repr)
def test_no_command_is_refused(container: Container, args: list[str]) -> None:
    container.run(*args)
    assert container.wait() == 2
    assert "NoCommand" in container.output()
    assert "usage: remuda-launch" in container.output()


def test_a_bad_grace_is_named_and_the_default_used(container: Container) -> None:
    container.run("true", alloc=None, REMUDA_STOP_GRACE="soon")
    assert container.wait() == 0
    assert "REMUDA_STOP_GRACE must be a number of seconds, not 'soon': using 5" in container.output()


def test_the_child_gets_a_clean_signal_state_and_an_unchanged_environment(container: Container, agent: Agent) -> None:
    container.run(
        "sh", "-c", "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; tr '\\0' '\\n' </proc/self/environ; echo up"
    )
    agent.accept()
    agent.start(1)
    agent.exited()
    lines = container.output().splitlines()
    blocked, ignored = (int(line.split()[1], 16) for line in lines[1:3])
    assert blocked == 0
    assert ignored & 0x7FFFFFFF == 0  # above are 32 and 33, which the C library keeps to itself
    names = {line.split("=")[0] for line in lines[4:-1]}
    assert names - {"PATH", "PWD", "OLDPWD", "SHLVL", "_"} == {
        "PYTHONPATH", "REMUDA_STOP_GRACE", "REMUDA_POD_NAME", "REMUDA_POD_UID", "REMUDA_ALLOC_DIR", "REMUDA_ATTEMPT",
        "REMUDA_PROGRESS_FILE",
        "REMUDA_PROGRESS_SOCKET", "REMUDA_CHECKPOINT_REQUEST_FILE",
    }  # fmt: skip


# --- progress and checkpoints -----------------------------------------------------------------------------------------


def test_the_helper_reports_steps_and_checkpoints(container: Container, agent: Agent, tmp_path: Path) -> None:
    container.python(
        "import remuda_train as r, sys\n"
        "assert 'remuda' not in sys.modules\n"
        "r.report(1, step_time=0.5, self_time=0.25); r.save(1, b'weights'); r.report(2, step_time=0.5)\n"
    )
    agent.accept()
    env = {"REMUDA_CHECKPOINT_DIR": str(tmp_path), "RANK": "3", "REMUDA_RANK": "3", "REMUDA_ATTEMPT": "1"}
    agent.start(1, env)
    assert agent.exited().code == 0
    beats = [message for message in agent.seen if isinstance(message, Heartbeat)]
    assert (beats[0].attempt, beats[0].step, beats[0].step_time, beats[0].self_time) == (1, 1, 0.5, 0.25)
    assert (beats[-1].step, beats[-1].checkpoint) == (2, 1)  # the last words are heard even when it exits at once
    assert any(beat.checkpoint == 1 and beat.checkpoint_time is not None for beat in beats)
    agent.send(Stop(2, rank=3, checkpoint_dir=str(tmp_path)))
    assert agent.expect(Ready).checkpoints == (1,)


def test_it_is_said_that_the_child_runs_before_what_it_reports(container: Container, agent: Agent) -> None:
    """An agent passes over the progress of a rank that does not run."""
    container.python("import remuda_train as r, time\nr.report(1)\ntime.sleep(1000)")
    agent.accept()
    for attempt in range(1, 16):
        agent.send(Stop(attempt))
        agent.expect(Ready)
        agent.send(Start(attempt, {}))
        assert [type(agent.next()), type(agent.next())] == [Running, Heartbeat]


def test_what_is_said_about_checkpoints_stands_before_the_attempt_in_the_log(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    for step in (10, 20):
        checkpoints.save(str(tmp_path), 6, step, b"x")
    container.run("sh", "-c", "echo up; exit 3")
    agent.accept()
    env = {"REMUDA_RANK": "6", "REMUDA_CHECKPOINT_DIR": str(tmp_path), "REMUDA_RESUME_STEP": "10"}
    agent.start(1, env, Stop(1, rank=6, checkpoint_dir=str(tmp_path)))
    assert agent.exited().tail == "up\n"
    lines = [line.partition("=")[0] for line in container.output().splitlines()]
    assert lines == [
        "remuda-launch: checkpoints 20 are abandoned: attempt 1 went on from step 10",
        "--- remuda attempt",
        "up",
    ]


def test_the_progress_file_is_read_without_any_helper(container: Container, agent: Agent) -> None:
    container.run(
        "sh",
        "-c",
        'echo \'{"step":12,"stepTime":0.5,"checkpoint":10}\' > $REMUDA_PROGRESS_FILE.new; '
        "mv $REMUDA_PROGRESS_FILE.new $REMUDA_PROGRESS_FILE; exec sleep 1000",
    )
    agent.accept()
    agent.start(1)
    beat = agent.expect(Heartbeat)
    assert (beat.step, beat.step_time, beat.self_time, beat.checkpoint) == (12, 0.5, None, 10)


def test_nothing_an_old_attempt_left_is_taken_for_progress(container: Container, agent: Agent, alloc: Path) -> None:
    (alloc / "progress.json").write_text('{"step": 99}')
    (alloc / "checkpoint-request.json").write_text('{"deadline": 1}')
    container.python("import remuda_train as r; assert r.checkpoint_requested() is None; r.report(1)")
    agent.accept()
    agent.start(1)
    assert agent.exited().code == 0
    assert {message.step for message in agent.seen if isinstance(message, Heartbeat)} == {1}


def test_an_old_progress_file_is_not_taken_for_progress(container: Container, agent: Agent, alloc: Path) -> None:
    (alloc / "progress.json").write_text('{"step": 99}')
    container.run("true")
    agent.accept()
    agent.start(1)
    agent.exited()
    assert not [message for message in agent.seen if isinstance(message, Heartbeat)]


def test_broken_progress_is_named_once(container: Container, agent: Agent) -> None:
    container.run("sh", "-c", 'echo \'{"step":"x"}\' > $REMUDA_PROGRESS_FILE')
    agent.accept()
    agent.start(1)
    agent.exited()
    assert container.output().count("ignored a progress report: BadField") == 1


def test_a_checkpoint_is_requested_of_the_child(container: Container, agent: Agent, alloc: Path) -> None:
    container.python(
        "import remuda_train as r, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "r.report(1)\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        "assert r.checkpoint_requested() == 5000.5\n"
    )
    agent.accept()
    agent.start(1)
    agent.expect(Heartbeat)
    agent.send(Checkpoint(5000.5, "USR1"))
    assert agent.exited().code == 0
    assert json.loads((alloc / "checkpoint-request.json").read_text()) == {"deadline": 5000.5, "step": 0}


def test_a_script_that_knows_no_signals_is_not_killed_by_the_request(container: Container, agent: Agent) -> None:
    container.run("sh", "-c", "while ! test -s $REMUDA_CHECKPOINT_REQUEST_FILE; do sleep 0.05; done; sleep 0.2; exit 4")
    agent.accept()
    agent.start(1)
    agent.send(Checkpoint(5000.5, "USR1", 3))
    ended = agent.exited()
    assert (ended.code, ended.signal) == (4, None)


def test_checkpoints_of_the_rank_are_offered_and_a_corrupt_one_is_not(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    for step in (10, 20, 30):
        checkpoints.save(str(tmp_path), 6, step, b"weights of %d" % step)
    (tmp_path / "rank-6/step-30.ckpt").write_bytes(b"weights of xx")
    container.run(*SLEEP)
    agent.accept()
    agent.send(Stop(1, rank=6, checkpoint_dir=str(tmp_path)))
    assert agent.expect(Ready).checkpoints == (20, 10)


def test_a_long_scan_leaves_the_launcher_responsive_and_finds_the_same(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    for step in (10, 20, 30):
        checkpoints.save(str(tmp_path), 6, step, bytes(5 << 20))
    with (tmp_path / "rank-6/step-20.ckpt").open("r+b") as file:
        file.write(b"x")
    container.run(*SLEEP)
    agent.accept()
    agent.send(Stop(1, rank=6, checkpoint_dir=str(tmp_path)))
    assert agent.expect(Ready).checkpoints == (30, 10)
    agent.start(2, stop=Stop(2))  # the forked reader is gone without a trace


@pytest.mark.parametrize(("resume", "left"), [("10", (10,)), ("", ()), (None, (30, 20, 10))], ids=str)
def test_what_the_new_attempt_does_not_build_on_is_not_offered_again(
    container: Container, agent: Agent, tmp_path: Path, resume: str | None, left: tuple[int, ...]
) -> None:
    for step in (10, 20, 30):
        checkpoints.save(str(tmp_path), 6, step, b"x")
    container.run(*SLEEP)
    agent.accept()
    stop = Stop(1, rank=6, checkpoint_dir=str(tmp_path))
    env = {"REMUDA_RANK": "6", "REMUDA_CHECKPOINT_DIR": str(tmp_path)}
    agent.start(1, {**env, **({} if resume is None else {"REMUDA_RESUME_STEP": resume})}, stop)
    agent.send(Stop(2, rank=6, checkpoint_dir=str(tmp_path)))
    assert agent.expect(Ready).checkpoints == left


def test_an_agent_that_does_not_read_is_left_and_told_the_newest_later(
    container: Container, agent: Agent, tmp_path: Path
) -> None:
    """A launcher whose agent hangs must neither block its child's reports nor grow without bound."""
    container.python(
        "import remuda_train as r, os, sys\n"
        f"n = 0\nwhile not os.path.exists('{tmp_path}/end'):\n"
        " n += 1; r.report(n, checkpoint=n)\n"
        f"open('{tmp_path}/last', 'w').write(str(n))\nsys.exit(3)\n"
    )
    agent.accept()
    agent.start(1)
    assert agent.connection is not None
    poll = select.poll()
    poll.register(agent.connection, select.POLLRDHUP)
    assert poll.poll(PATIENCE_S * 1000), "the launcher did not hang up"
    (tmp_path / "end").touch()
    exited = None
    while exited is None:
        agent.accept()
        try:
            agent.expect(Running)
            exited = agent.exited()
        except StopIteration:
            continue  # this connection, too, was full before anybody took it
    beats = [message for message in agent.seen if isinstance(message, Heartbeat)]
    assert exited.code == 3
    assert beats[-1].checkpoint == int((tmp_path / "last").read_text())

"""Every input in every state, as tables, and the behaviours that take several inputs."""

from collections.abc import Callable

import pytest

from remuda.launch.actions import (
    Action,
    Connect,
    Exit,
    KillChild,
    ScanCheckpoints,
    Send,
    SetTimer,
    SignalChild,
    SpawnChild,
    WriteCheckpointRequest,
)
from remuda.launch.launcher_machine import HANG_S, LauncherIdentity, LaunchMachine
from remuda.launch.protocol import (
    Checkpoint,
    End,
    Exited,
    Fence,
    Heartbeat,
    Hello,
    Message,
    Progress,
    Ready,
    Running,
    Start,
    Stop,
    Vouch,
)

T = 1000.0
SCAN_2 = ScanCheckpoints(2, 4, "/ckpt")


def stop(attempt: int, grace: float = 2.0, rank: int | None = 4, signal: str = "TERM") -> Stop:
    return Stop(attempt, signal, grace, rank, "/ckpt")


def parked() -> LaunchMachine:
    machine = LaunchMachine(LauncherIdentity("p-0", "u1", 77))
    assert machine.begin(T) == [Connect()]
    assert machine.connected(T) == [Send(Hello("p-0", "u1", 77, "parked", 0))]
    return machine


def ready() -> LaunchMachine:
    machine = parked()
    machine.received(T, stop(2))
    machine.scanned(T, SCAN_2, (30, 20))
    return machine


def running() -> LaunchMachine:
    machine = ready()
    machine.received(T, Start(2, {"RANK": "4"}))
    machine.child_started(T, 2, 500)
    return machine


def stopping() -> LaunchMachine:
    """Told to become ready for 3; the child of 2 has its grace."""
    machine = running()
    machine.received(T, stop(3))
    return machine


def clearing() -> LaunchMachine:
    """As `stopping`, but the main process is gone and others of its tree are not."""
    machine = stopping()
    machine.child_exited(T, 2, 143, 15)
    return machine


def scanning() -> LaunchMachine:
    machine = clearing()
    machine.tree_gone(T)
    return machine


def exited() -> LaunchMachine:
    machine = running()
    machine.child_exited(T, 2, 1, None, "boom")
    machine.tree_gone(T)
    return machine


def fencing() -> LaunchMachine:
    machine = running()
    machine.received(T, Fence())
    return machine


def fenced() -> LaunchMachine:
    machine = fencing()
    machine.child_exited(T, 2, 137, 9)
    machine.tree_gone(T)
    return machine


def terminating() -> LaunchMachine:
    machine = running()
    machine.terminate(T)
    return machine


SETUPS: dict[str, Callable[[], LaunchMachine]] = {
    setup.__name__: setup
    for setup in (parked, ready, running, stopping, clearing, scanning, exited, fencing, fenced, terminating)
}
STATE_OF = {
    "parked": "parked", "ready": "ready", "running": "running", "stopping": "stopping", "clearing": "stopping",
    "scanning": "stopping", "exited": "exited", "fencing": "stopping", "fenced": "parked", "terminating": "stopping",
}  # fmt: skip


def without_timers(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, SetTimer)]


def kinds(actions: list[Action]) -> str:
    return " ".join(
        type(action.message).__name__ if isinstance(action, Send) else type(action).__name__
        for action in without_timers(actions)
    )


@pytest.mark.parametrize("name", SETUPS)
def test_each_set_up_is_in_its_state(name: str) -> None:
    machine = SETUPS[name]()
    assert machine.state == STATE_OF[name]
    assert machine.attempt == (0 if name == "parked" else 2)


# What each message does in each state: "kinds of actions -> state afterwards"; what is not listed does nothing.
MESSAGES: dict[str, Message] = {
    "stop1": stop(1),
    "stop2": stop(2),
    "stop3": stop(3),
    "stop4": stop(4),
    "start1": Start(1, {}),
    "start2": Start(2, {}),
    "start3": Start(3, {}),
    "checkpoint": Checkpoint(T + 60),
    "fence": Fence(),
    "vouch": Vouch(5.0),
    "hello": Hello("x", "y", 1, "parked", 9),  # a launcher's own words mean nothing to it
    "ready": Ready(9),
}
EFFECTS: dict[str, dict[str, tuple[str, str]]] = {
    "parked": {
        "stop1": ("ScanCheckpoints", "stopping"),
        "stop2": ("ScanCheckpoints", "stopping"),
        "stop3": ("ScanCheckpoints", "stopping"),
        "stop4": ("ScanCheckpoints", "stopping"),
    },
    "ready": {
        "stop2": ("Ready", "ready"),
        "stop3": ("ScanCheckpoints", "stopping"),
        "stop4": ("ScanCheckpoints", "stopping"),
        "start2": ("SpawnChild", "running"),
        "fence": ("", "parked"),
    },
    "running": {
        "stop3": ("SignalChild", "stopping"),
        "stop4": ("SignalChild", "stopping"),
        "start2": ("Running", "running"),
        "checkpoint": ("WriteCheckpointRequest", "running"),
        "fence": ("KillChild", "stopping"),
    },
    "stopping": {"fence": ("KillChild", "stopping")},
    "clearing": {"fence": ("KillChild", "stopping")},
    "scanning": {"stop4": ("ScanCheckpoints", "stopping"), "fence": ("", "parked")},
    "exited": {
        "stop3": ("ScanCheckpoints", "stopping"),
        "stop4": ("ScanCheckpoints", "stopping"),
        "start2": ("Exited", "exited"),
        "fence": ("", "parked"),
    },
    "fencing": {"fence": ("KillChild", "stopping")},
    "fenced": {"stop3": ("ScanCheckpoints", "stopping"), "stop4": ("ScanCheckpoints", "stopping")},
    "terminating": {"fence": ("KillChild", "stopping")},
}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_in_every_state(name: str, message: str) -> None:
    machine = SETUPS[name]()
    actions = machine.received(T + 1, MESSAGES[message])
    assert (kinds(actions), machine.state) == EFFECTS[name].get(message, ("", STATE_OF[name]))


# The same for everything that is not a message. ScanCheckpoints answers, exits and starts are of attempt 2.
INPUTS: dict[str, Callable[[LaunchMachine], list[Action]]] = {
    "connected": lambda m: m.connected(T + 1),
    "disconnected": lambda m: m.disconnected(T + 1),
    "child_started": lambda m: m.child_started(T + 1, 2, 501),
    "child_failed": lambda m: m.child_failed(T + 1, 2, 127, "command not found: x"),
    "child_exited": lambda m: m.child_exited(T + 1, 2, 1, None, "boom"),
    "old_child_exited": lambda m: m.child_exited(T + 1, 1, 1, None),
    "tree_gone": lambda m: m.tree_gone(T + 1),
    "progress": lambda m: m.progress(T + 1, Progress(step=7)),
    "old_progress": lambda m: m.progress(T + 1, Progress(step=7, attempt=1)),
    "scanned": lambda m: m.scanned(T + 1, ScanCheckpoints(3, 4, "/ckpt"), (30,)),
    "old_scanned": lambda m: m.scanned(T + 1, SCAN_2, (30,)),
    "terminate": lambda m: m.terminate(T + 1),
    "timer": lambda m: m.timer(T + 1),
}
INPUT_EFFECTS: dict[str, dict[str, tuple[str, str]]] = {
    "parked": {"connected": ("Hello", "parked"), "terminate": ("Exit", "stopping")},
    "ready": {"connected": ("Hello Ready", "ready"), "terminate": ("Exit", "stopping")},
    "running": {
        "connected": ("Hello Running", "running"),
        "child_started": ("Running", "running"),
        "child_failed": ("Exited", "exited"),
        "child_exited": ("KillChild Exited", "exited"),
        "progress": ("Heartbeat", "running"),
        "terminate": ("SignalChild", "stopping"),
    },
    "stopping": {
        "connected": ("Hello Running", "stopping"),
        "child_failed": ("ScanCheckpoints", "stopping"),
        "child_exited": ("KillChild", "stopping"),
        "progress": ("Heartbeat", "stopping"),
    },
    "clearing": {
        "connected": ("Hello Running", "stopping"),
        "tree_gone": ("ScanCheckpoints", "stopping"),
        "timer": ("KillChild", "stopping"),
    },
    "scanning": {
        "connected": ("Hello Running", "stopping"),
        "scanned": ("Ready", "ready"),
        "terminate": ("Exit", "stopping"),
    },
    "exited": {"connected": ("Hello Running Exited", "exited"), "terminate": ("Exit", "exited")},
    "fencing": {
        "connected": ("Hello", "stopping"),
        "child_failed": ("Hello", "parked"),
        "child_exited": ("KillChild", "stopping"),
        "timer": ("KillChild", "stopping"),
    },
    "fenced": {"connected": ("Hello", "parked"), "terminate": ("Exit", "stopping")},
    "terminating": {
        "connected": ("Hello Running", "stopping"),
        "child_failed": ("Exit", "stopping"),
        "child_exited": ("KillChild", "stopping"),
        "progress": ("Heartbeat", "stopping"),
    },
}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("given", INPUTS)
def test_every_input_in_every_state(name: str, given: str) -> None:
    machine = SETUPS[name]()
    actions = INPUTS[given](machine)
    assert (kinds(actions), machine.state) == INPUT_EFFECTS[name].get(given, ("", STATE_OF[name]))


# --- what the actions say ---------------------------------------------------------------------------------------------


def test_from_parked_to_running() -> None:
    machine = parked()
    assert machine.received(T, stop(2)) == [SCAN_2, SetTimer(T + HANG_S)]
    said = machine.scanned(T, SCAN_2, tuple(range(40, 0, -1)))
    assert said == [Send(Ready(2, tuple(range(40, 24, -1))))], "looked at again when it would have been called hanging"
    assert machine.received(T, Start(2, {"RANK": "4"})) == [SpawnChild(2, {"RANK": "4"}), SetTimer(None)]
    assert machine.child_started(T + 1, 2, 500) == [Send(Running(2, 500, T + 1))]


def test_stop_signals_the_group_then_kills_after_the_grace_then_waits_for_the_tree() -> None:
    machine = running()
    assert machine.received(T, stop(3, grace=2.0)) == [SignalChild(15, group=True), SetTimer(T + 2)]
    assert machine.timer(T + 1.9) == [SetTimer(T + 2)]
    assert machine.timer(T + 2) == [KillChild(), SetTimer(T + 2.05)]
    assert machine.timer(T + 2.05)[:1] == [KillChild()]
    assert machine.child_exited(T + 2.1, 2, 137, 9)[0] == KillChild()
    assert machine.tree_gone(T + 2.2) == [ScanCheckpoints(3, 4, "/ckpt"), SetTimer(T + 2.2 + HANG_S)]
    assert without_timers(machine.scanned(T + 2.3, ScanCheckpoints(3, 4, "/ckpt"), (10,))) == [Send(Ready(3, (10,)))]


def test_passes_over_an_unkillable_tree_slow_down_and_never_claim_to_be_ready() -> None:
    machine = clearing()
    now, gaps = T, []
    for _ in range(10):
        actions = machine.timer(now + 5)
        assert kinds(actions) == "KillChild"
        timer = actions[-1]
        assert isinstance(timer, SetTimer)
        assert timer.at is not None
        gaps.append(timer.at - now - 5)
        now += 5
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(1.0)
    assert machine.state == "stopping"


def test_stop_uses_the_signal_asked_for() -> None:
    assert running().received(T, stop(3, signal="INT"))[0] == SignalChild(2, group=True)


def test_a_repeated_stop_signals_once_and_may_only_shorten_the_grace() -> None:
    machine = stopping()
    assert machine.received(T, stop(3, grace=60)) == []
    assert machine.received(T, stop(3, grace=0.5)) == [SetTimer(T + 0.5)]
    assert machine.received(T, stop(4, grace=60)) == []
    machine.child_exited(T, 2, 143, 15)
    assert without_timers(machine.tree_gone(T)) == [ScanCheckpoints(4, 4, "/ckpt")]


def test_a_newer_stop_during_the_scan_asks_again_and_the_old_answer_is_dropped() -> None:
    machine = scanning()
    assert machine.received(T, stop(4)) == [ScanCheckpoints(4, 4, "/ckpt")]
    assert machine.scanned(T, ScanCheckpoints(3, 4, "/ckpt"), (30,)) == []
    assert without_timers(machine.scanned(T, ScanCheckpoints(4, 4, "/ckpt"), (20,))) == [Send(Ready(4, (20,)))]


def test_another_rank_for_the_same_attempt_is_scanned_anew() -> None:
    machine = ready()
    other = ScanCheckpoints(2, 5, "/ckpt")
    assert without_timers(machine.received(T, stop(2, rank=5))) == [other]
    assert machine.scanned(T, SCAN_2, (30,)) == []
    assert without_timers(machine.scanned(T, other, (10,))) == [Send(Ready(2, (10,)))]
    assert machine.received(T, stop(2, rank=5)) == [Send(Ready(2, (10,)))]


# --- checkpoints are looked at again ----------------------------------------------------------------------------------


def rescan(machine: LaunchMachine, now: float) -> None:
    assert SCAN_2 in machine.timer(now)


def timer_of(actions: list[Action]) -> float:
    found = [action.at for action in actions if isinstance(action, SetTimer)]
    assert found
    assert found[-1] is not None
    return found[-1]


def test_checkpoints_that_cannot_be_read_are_looked_at_again_ever_more_seldom() -> None:
    machine = parked()
    machine.received(T, stop(2))
    said = machine.scanned(T, SCAN_2, (), unreadable="/ckpt: a loop")
    assert said[0] == Send(Ready(2, unreadable="/ckpt: a loop"))
    now, gaps = T, []
    for _ in range(10):
        at = timer_of(said)
        gaps.append(at - now)
        now = at
        rescan(machine, now)
        said = machine.scanned(now, SCAN_2, (), unreadable="/ckpt: a loop")
        assert without_timers(said) == []  # the same again is not said again
    assert gaps == sorted(gaps)
    assert [gaps[0], gaps[-1]] == pytest.approx([0.2, 5.0])
    rescan(machine, timer_of(said))
    assert without_timers(machine.scanned(now, SCAN_2, (30, 20))) == [Send(Ready(2, (30, 20)))]
    assert machine.state == "ready"


def test_what_comes_back_while_it_waits_is_said_and_said_again_after_a_reconnect() -> None:
    machine = ready()
    rescan(machine, T + 2)
    assert without_timers(machine.scanned(T + 2, SCAN_2, (40, 30, 20), (50,), (60,))) == [
        Send(Ready(2, (40, 30, 20), (50,), (60,)))
    ]
    machine.disconnected(T + 3)
    assert Send(Ready(2, (40, 30, 20), (50,), (60,))) in machine.connected(T + 3.1)


def test_a_start_ends_the_looking_and_a_late_answer_is_dropped() -> None:
    machine = ready()
    rescan(machine, T + 2)
    assert kinds(machine.received(T + 2, Start(2, {}))) == "SpawnChild"
    assert machine.scanned(T + 3, SCAN_2, (), unreadable="x") == []
    assert machine.state == "running"


@pytest.mark.parametrize("end", ["fence", "terminate"])
def test_nobody_looks_once_it_is_over(end: str) -> None:
    machine = ready()
    rescan(machine, T + 2)
    if end == "fence":
        machine.received(T + 2, Fence())
    else:
        machine.terminate(T + 2)
    assert machine.scanned(T + 3, SCAN_2, (30,)) == []
    assert ScanCheckpoints not in map(type, machine.timer(T + 100))


def test_a_spare_has_nothing_to_look_at() -> None:
    machine = parked()
    machine.received(T, Stop(2, "TERM", 2.0))
    assert machine.scanned(T, ScanCheckpoints(2, None, None), ()) == [Send(Ready(2))]


def test_a_fenced_launcher_obeys_only_a_higher_attempt() -> None:
    machine = fenced()
    assert machine.received(T, stop(2)) == []
    assert machine.received(T, Start(2, {})) == []
    assert without_timers(machine.received(T, stop(3))) == [ScanCheckpoints(3, 4, "/ckpt")]


def test_a_fence_while_stopping_forgets_the_attempt_it_was_stopping_for() -> None:
    machine = stopping()
    machine.received(T, Fence())
    machine.child_exited(T, 2, 137, 9)
    assert kinds(machine.tree_gone(T)) == "Hello"
    assert (machine.state, machine.attempt) == ("parked", 3)  # says which attempts it will not take
    assert machine.received(T, stop(3)) == []
    assert kinds(machine.received(T, stop(4))) == "ScanCheckpoints"


def test_a_stop_that_comes_while_fencing_waits_for_the_tree() -> None:
    machine = fencing()
    assert without_timers(machine.received(T, stop(3))) == []
    machine.child_exited(T, 2, 137, 9)
    assert kinds(machine.tree_gone(T)) == "ScanCheckpoints"


def test_a_child_that_ended_by_itself_is_reported_at_once_and_its_tree_is_killed() -> None:
    machine = running()
    actions = machine.child_exited(T + 1, 2, 139, 11, "killed by SIGSEGV")
    assert without_timers(actions) == [KillChild(), Send(Exited(2, 139, 11, T + 1, "killed by SIGSEGV"))]
    assert kinds(machine.received(T + 1, stop(3))) == ""  # not ready while others of it are alive
    assert kinds(machine.tree_gone(T + 1)) == "ScanCheckpoints"


def test_a_stopped_child_is_not_reported_as_exited() -> None:
    assert kinds(stopping().child_exited(T, 2, 0, None)) == "KillChild"


def test_a_command_that_cannot_be_started() -> None:
    machine = ready()
    machine.received(T, Start(2, {}))
    assert machine.child_failed(T, 2, 127, "command not found: x") == [
        Send(Exited(2, 127, None, T, "command not found: x"))
    ]
    assert kinds(machine.received(T, stop(3))) == "ScanCheckpoints"


def test_long_messages_are_cut() -> None:
    machine = running()
    sent = [a.message for a in machine.child_exited(T, 2, 1, None, "x" * 5000) if isinstance(a, Send)]
    assert isinstance(sent[0], Exited)
    assert len(sent[0].message) == 1024


def test_a_checkpoint_request_may_signal_the_main_process_alone() -> None:
    assert running().received(T, Checkpoint(T + 60, "USR1")) == [
        WriteCheckpointRequest(T + 60),
        SignalChild(10, group=False),
    ]


# --- the agent comes and goes -----------------------------------------------------------------------------------------


def test_reconnecting_backs_off_up_to_a_second_and_starts_over_after_success() -> None:
    machine = LaunchMachine(LauncherIdentity("p", "u", 1))
    machine.begin(T)
    delays = []
    for _ in range(7):
        timer = machine.disconnected(T)[-1]
        assert isinstance(timer, SetTimer)
        assert timer.at is not None
        delays.append(timer.at - T)
        assert machine.timer(timer.at) == [Connect()]
    assert delays == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    machine.connected(T)
    assert machine.disconnected(T) == [SetTimer(T + 0.05)]


def test_the_child_outlives_the_agent_and_the_newest_of_each_kind_is_said_again() -> None:
    machine = running()
    machine.disconnected(T)
    assert without_timers(machine.progress(T + 1, Progress(step=10, checkpoint=10))) == []
    assert without_timers(machine.progress(T + 2, Progress(step=11))) == []
    assert kinds(machine.child_exited(T + 3, 2, 1, None, "boom")) == "KillChild"
    machine.tree_gone(T + 3)
    assert without_timers(machine.connected(T + 4)) == [
        Send(Hello("p-0", "u1", 77, "exited", 2, floor=2)),
        Send(Running(2, 500, T)),
        Send(Heartbeat(2, 11, None, None, 10, None, T + 2)),
        Send(Exited(2, 1, None, T + 3, "boom")),
    ]


def test_what_was_sent_is_said_again_too_because_the_agent_may_have_died_with_it_unread() -> None:
    machine = exited()
    machine.disconnected(T)
    assert kinds(machine.connected(T)) == "Hello Running Exited"
    machine.received(T, stop(3))
    machine.scanned(T, ScanCheckpoints(3, 4, "/ckpt"), ())
    machine.disconnected(T)
    assert kinds(machine.connected(T)) == "Hello Ready"  # nothing of the attempt that is over


def test_answers_wait_for_the_connection() -> None:
    machine = scanning()
    machine.disconnected(T)
    assert without_timers(machine.scanned(T, ScanCheckpoints(3, 4, "/ckpt"), (1,))) == []
    assert kinds(machine.connected(T)) == "Hello Ready"


# --- progress ---------------------------------------------------------------------------------------------------------


def test_heartbeats_are_limited_to_ten_a_second_and_the_newest_wins() -> None:
    machine = running()
    sent = []
    for tick in range(1000):  # a report each millisecond
        now = T + tick / 1000
        actions = machine.progress(now, Progress(step=tick)) + machine.timer(now)
        sent += [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Heartbeat)]
    assert 9 <= len(sent) <= 11
    assert sent[-1].step >= 890
    timer = machine.timer(T + 5)  # the last report is not forgotten
    assert [a.message.step for a in timer if isinstance(a, Send) and isinstance(a.message, Heartbeat)] == [999]


def test_a_new_checkpoint_never_waits_and_stays_in_later_heartbeats() -> None:
    machine = running()
    machine.progress(T, Progress(step=1))
    now = T + 0.01
    assert without_timers(machine.progress(now, Progress(checkpoint=1, checkpoint_time=0.5))) == [
        Send(Heartbeat(2, 1, None, None, 1, 0.5, now))
    ]
    assert kinds(machine.progress(now, Progress(step=2, checkpoint=2))) == "Heartbeat"
    assert kinds(machine.progress(now, Progress(step=3, checkpoint=2))) == ""  # said again by the helper: not new
    later = machine.timer(T + 1)
    assert without_timers(later) == [Send(Heartbeat(2, 3, None, None, 2, None, now))]


def test_times_not_yet_sent_are_kept_and_sent_ones_are_not_repeated() -> None:
    machine = running()
    machine.progress(T, Progress(step=1, step_time=0.1, self_time=0.05))
    machine.progress(T + 0.01, Progress(step=2, step_time=0.2))
    assert without_timers(machine.progress(T + 0.02, Progress(checkpoint=2))) == [
        Send(Heartbeat(2, 2, 0.2, None, 2, None, T + 0.02))
    ]
    assert without_timers(machine.progress(T + 1, Progress(step=3))) == [
        Send(Heartbeat(2, 3, None, None, 2, None, T + 1))
    ]


def test_a_checkpoint_that_is_seen_on_disk_later_is_told_by_itself() -> None:
    machine = running()
    machine.progress(T, Progress(step=3, checkpoint=3, checkpoint_time=0.5))
    assert without_timers(machine.progress(T + 0.01, Progress(kept=3))) == [
        Send(Heartbeat(2, 3, None, None, 3, 0.5, T + 0.01, kept=3))
    ]


def test_a_report_that_says_nothing_is_dropped() -> None:
    assert running().progress(T, Progress(step_time=0.5)) == []


def test_progress_of_another_attempt_is_dropped_and_a_new_attempt_starts_afresh() -> None:
    machine = running()
    machine.progress(T, Progress(step=50, checkpoint=50))
    machine.received(T, stop(3))
    machine.child_exited(T, 2, 143, 15)
    machine.tree_gone(T)
    machine.scanned(T, ScanCheckpoints(3, 4, "/ckpt"), (50,))
    machine.received(T, Start(3, {}))
    machine.child_started(T, 3, 600)
    assert machine.progress(T, Progress(step=51, attempt=2)) == []
    assert without_timers(machine.progress(T, Progress(step=51, attempt=3))) == [Send(Heartbeat(3, 51, time=T))]


def test_the_last_progress_goes_before_the_exit() -> None:
    machine = running()
    machine.progress(T, Progress(step=1))
    machine.progress(T + 0.01, Progress(step=2))
    assert kinds(machine.child_exited(T + 0.02, 2, 0, None)) == "KillChild Heartbeat Exited"


# --- SIGTERM and standing alone ---------------------------------------------------------------------------------------


def test_sigterm_stops_the_child_and_exits_with_its_code() -> None:
    machine = running()
    assert machine.terminate(T) == [SignalChild(15, group=True), SetTimer(T + 5)]
    assert machine.terminate(T + 1) == []
    assert kinds(machine.child_exited(T + 2, 2, 3, None)) == "KillChild"
    assert machine.tree_gone(T + 2) == [Exit(3)]


def test_sigterm_kills_after_the_grace_and_gives_up_on_what_cannot_die() -> None:
    machine = LaunchMachine(LauncherIdentity("p", "u", 1, stop_grace=1.0))
    machine.begin(T)
    machine.received(T, Stop(1))
    machine.scanned(T, ScanCheckpoints(1, None, None), ())
    machine.received(T, Start(1, {}))
    assert SetTimer(T + 1) in machine.terminate(T)
    assert kinds(machine.timer(T + 1)) == "KillChild"
    assert kinds(machine.timer(T + 2)) == "KillChild"
    assert machine.timer(T + 3) == [Exit(143)]


@pytest.mark.parametrize(("name", "code"), [("parked", 143), ("ready", 143), ("scanning", 143), ("exited", 1)])
def test_sigterm_without_a_child(name: str, code: int) -> None:
    assert SETUPS[name]().terminate(T) == [Exit(code)]


def test_a_job_that_is_done_exits_with_zero_when_its_pod_is_ended() -> None:
    machine = running()
    machine.child_exited(T, 2, 0, None)
    machine.tree_gone(T)
    assert machine.terminate(T) == [Exit(0)]


def test_a_job_that_is_over_leaves_with_zero_whatever_the_child_says() -> None:
    """With another code a kubelet would start the container again, and its log would begin anew."""
    machine = running()
    assert machine.received(T, End(2.0)) == [SignalChild(15, group=True), SetTimer(T + 2)]
    assert kinds(machine.child_exited(T + 1, 2, 3, None)) == "KillChild"
    assert machine.tree_gone(T + 1) == [Exit(0)]


@pytest.mark.parametrize("name", ["parked", "ready", "scanning", "exited", "fenced"])
def test_the_end_of_the_job_without_a_child(name: str) -> None:
    assert SETUPS[name]().received(T, End()) == [Exit(0)]


def test_exit_is_final() -> None:
    machine = parked()
    machine.terminate(T)
    for given in INPUTS.values():
        assert given(machine) == []
    for message in MESSAGES.values():
        assert machine.received(T, message) == []


def test_standing_alone_runs_the_command_once() -> None:
    machine = LaunchMachine(LauncherIdentity("p", "u", 1, standalone=True))
    assert machine.begin(T) == [SpawnChild(1, {})]
    assert machine.child_started(T, 1, 500) == []
    assert kinds(machine.child_exited(T, 1, 4, None)) == "KillChild"
    assert machine.tree_gone(T) == [Exit(4)]


def test_standing_alone_with_a_command_that_does_not_exist() -> None:
    machine = LaunchMachine(LauncherIdentity("p", "u", 1, standalone=True))
    machine.begin(T)
    assert machine.child_failed(T, 1, 127, "command not found: x") == [Exit(127)]

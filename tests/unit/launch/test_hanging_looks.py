"""The machine, when a look at the checkpoints does not end: the doubt is said, the barrier waits, and the launcher goes on."""

from remuda.launch.actions import ScanCheckpoints, Send, SetTimer
from remuda.launch.launcher_machine import ASLEEP_S, HANG_S, RESCAN_FIRST_S, LaunchMachine
from remuda.launch.protocol import Fence, Ready, Start
from tests.unit.launch.test_launcher_machine import SCAN_2, T, kinds, ready, scanning, stop, without_timers

SCAN_3 = ScanCheckpoints(3, 4, "/ckpt")


def doubt(seconds: float, *steps: int, attempt: int = 3) -> Ready:
    return Ready(attempt, steps, unreadable=f"/ckpt/rank-4 has not answered for {seconds:g} s")


def hanging() -> LaunchMachine:
    """Stopped for attempt 3, and nothing is heard of its checkpoints."""
    machine = scanning()
    assert without_timers(machine.timer(T + HANG_S)) == [Send(doubt(HANG_S))]
    return machine


def test_it_is_ready_in_doubt_and_says_ever_more_seldom_for_how_long() -> None:
    machine = hanging()
    assert (machine.state, machine.attempt) == ("ready", 3)
    for waited in (4, 8, 16, 32):
        assert kinds(machine.timer(T + waited - 0.1)) == ""
        assert without_timers(machine.timer(T + waited)) == [Send(doubt(waited))]


def test_the_question_is_asked_once_and_its_answer_told_whenever_it_comes() -> None:
    machine = hanging()
    assert not any(isinstance(action, ScanCheckpoints) for at in range(3, 60) for action in machine.timer(T + at))
    answer = machine.scanned(T + 60, SCAN_3, (30, 20))
    assert answer == [Send(Ready(3, (30, 20))), SetTimer(T + 60 + RESCAN_FIRST_S)]


def test_an_answer_in_time_is_all_there_is_to_say() -> None:
    machine = scanning()
    machine.scanned(T + 1, SCAN_3, (30,))
    assert kinds(machine.timer(T + HANG_S)) == "", "no doubt, and not yet time for another look"


def test_what_was_found_before_stays_said_while_another_look_hangs() -> None:
    machine = ready()
    assert SCAN_2 in machine.timer(T + RESCAN_FIRST_S)
    said = machine.timer(T + RESCAN_FIRST_S + HANG_S)
    assert without_timers(said) == [Send(doubt(HANG_S, 30, 20, attempt=2))]
    assert machine.scanned(T + 20, SCAN_2, (30, 20))[0] == Send(Ready(2, (30, 20)))


def test_an_agent_that_comes_back_is_told_of_the_doubt() -> None:
    machine = hanging()
    machine.disconnected(T + 3)
    assert kinds(machine.connected(T + 4)) == "Hello Ready"


def test_it_hears_everything_while_the_look_hangs() -> None:
    machine = hanging()
    assert without_timers(machine.received(T + 3, stop(3))) == [Send(doubt(HANG_S))]
    assert kinds(machine.received(T + 3, stop(4))) == "ScanCheckpoints"
    assert kinds(machine.scanned(T + 4, SCAN_3, (30,))) == "", "an answer that nobody waits for any more"
    assert without_timers(machine.timer(T + 3 + HANG_S)) == [Send(doubt(HANG_S, attempt=4))]
    assert kinds(machine.received(T + 6, Fence())) == ""
    assert machine.state == "parked"
    assert kinds(machine.timer(T + 60)) == ""


def test_with_consent_it_starts_and_looks_no_more() -> None:
    machine = hanging()
    assert kinds(machine.received(T + 3, Start(3, {}))) == "SpawnChild"
    assert kinds(machine.scanned(T + 4, SCAN_3, (30,))) == ""
    assert kinds(machine.timer(T + 60)) == ""
    assert kinds(hanging().terminate(T + 3)) == "Exit"


def test_our_own_stall_is_not_the_file_system_s() -> None:
    machine = scanning()
    late = T + HANG_S + ASLEEP_S + 60
    assert kinds(machine.timer(late)) == "", "its answer may be here"
    assert without_timers(machine.scanned(late, SCAN_3, (30,))) == [Send(Ready(3, (30,)))]

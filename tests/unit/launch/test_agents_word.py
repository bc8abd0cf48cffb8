"""For how long the agent says that the rank may run: when that is over the launcher fences itself, whatever the agent does."""

from collections.abc import Callable

import pytest

from remuda.launch.actions import KillChild, LookForManager, ScanCheckpoints, Send, SpawnChild
from remuda.launch.launcher_machine import ASK_S, ASLEEP_S, LOOK_S, LaunchMachine
from remuda.launch.protocol import Hello, Ready, Start, Vouch
from tests.unit.launch.test_launcher_machine import T, kinds, parked, ready, running, stop, stopping, terminating

PARKED_IN_2 = Send(Hello("p-0", "u1", 77, "parked", 2, floor=2))
STOPPED: list[Callable[[LaunchMachine], object]] = [
    lambda m: None,  # the connection stands, and nobody speaks
    lambda m: m.disconnected(T + 1),  # the process is gone
]


def vouched(machine: LaunchMachine, seconds: float | None = 5.0, at: float = T) -> LaunchMachine:
    assert kinds(machine.received(at, Vouch(seconds))) == ""
    return machine


@pytest.mark.parametrize("fall_silent", STOPPED)
def test_it_fences_itself_when_the_word_is_over(fall_silent: Callable[[LaunchMachine], object]) -> None:
    machine = vouched(running())
    fall_silent(machine)
    machine.timer(T + 4.9)
    assert machine.state == "running"
    assert KillChild() in machine.timer(T + 5.0)
    assert machine.state == "stopping"


def test_with_no_manager_on_the_machine_nothing_is_handed_on_and_the_rank_runs_on() -> None:
    machine = running()
    machine.received(T, Vouch(5.0, "/state/link.sock"))
    machine.disconnected(T + 1)
    now = T + 5.0
    for _ in range(600):
        assert LookForManager("/state/link.sock") in machine.timer(now)
        assert KillChild() not in machine.manager_looked_for(now, is_there=False)
        now += LOOK_S
    assert machine.state == "running"
    since = now - LOOK_S  # nobody was there then, so whoever is there now hands nothing on before a whole word is over
    machine.timer(now)
    assert KillChild() not in machine.manager_looked_for(now, is_there=True)
    assert kinds(machine.timer(since + 4.9)) == ""
    assert LookForManager("/state/link.sock") in machine.timer(since + 5.0)
    assert KillChild() in machine.manager_looked_for(since + 5.0, is_there=True)


def test_an_answer_about_the_manager_that_comes_after_a_new_word_changes_nothing() -> None:
    machine = running()
    machine.received(T, Vouch(5.0, "/state/link.sock"))
    machine.timer(T + 5.0)
    machine.received(T + 5.1, Vouch(5.0, "/state/link.sock"))
    assert KillChild() not in machine.manager_looked_for(T + 5.2, is_there=True)
    assert machine.state == "running"
    assert LookForManager("/state/link.sock") in machine.timer(T + 10.1), "the new word ends when it said"


def test_afterwards_it_is_as_after_a_fence() -> None:
    machine = vouched(running())
    machine.timer(T + 5.0)
    machine.child_exited(T + 5.1, 2, 137, 9)
    assert machine.tree_gone(T + 5.2)[0] == PARKED_IN_2
    assert kinds(machine.received(T + 60, Start(2, {}))) == "", "deaf to the attempt it was stopped in"
    vouched(machine, at=T + 60)
    assert kinds(machine.received(T + 60, stop(3))) == "ScanCheckpoints"
    machine.scanned(T + 60, ScanCheckpoints(3, 4, "/ckpt"), (30,))
    assert kinds(machine.received(T + 61, Start(3, {}))) == "SpawnChild"


def test_every_word_begins_anew_and_only_the_last_counts() -> None:
    machine = running()
    for second in range(20):
        vouched(machine, at=T + second)
        machine.timer(T + second + 0.5)
    assert machine.state == "running"
    vouched(machine, 1.0, at=T + 20)
    assert KillChild() in machine.timer(T + 21)


@pytest.mark.parametrize("word", [[], [Vouch(5.0), Vouch(None)]], ids=["never told", "lifted"])
def test_without_a_limit_it_runs_for_ever(word: list[Vouch]) -> None:
    machine = running()
    for one in word:
        machine.received(T, one)
    machine.disconnected(T + 1)
    machine.timer(T + 1e6)
    assert machine.state == "running"


def test_a_grace_does_not_outlast_the_word() -> None:
    machine = running()
    vouched(machine)
    machine.received(T + 1, stop(3, grace=60.0))
    assert KillChild() in machine.timer(T + 5.0)
    assert (machine.state, machine.attempt) == ("stopping", 3)
    ending = vouched(terminating(), 1.0)
    vouched(ending, 1.0, at=T + 0.9)
    assert kinds(ending.timer(T + 1.0)) == "", "nor does it cut a grace short that is still vouched for"
    assert KillChild() in ending.timer(T + 1.9)


@pytest.mark.parametrize("setup", [parked, ready])
def test_who_runs_nothing_stays_what_it_is(setup: Callable[[], LaunchMachine]) -> None:
    machine = vouched(setup())
    state = machine.state
    machine.timer(T + 60)
    assert machine.state == state


def test_an_end_that_was_said_stays_said() -> None:
    machine = vouched(running())
    machine.child_exited(T + 1, 2, 1, None, "boom")  # others of its tree are still there
    machine.timer(T + 5.0)
    machine.disconnected(T + 6)
    assert "Exited" in kinds(machine.connected(T + 7))


def test_nothing_is_started_on_a_word_that_is_over() -> None:
    """An agent that has just woken up may believe that the barrier is still open."""
    machine = vouched(ready())
    assert kinds(machine.received(T + 60, Start(2, {"RANK": "4"}))) == ""
    assert machine.received(T + 61, Vouch(5.0))[0] == SpawnChild(2, {"RANK": "4"})
    stale = vouched(ready())
    stale.received(T + 60, Start(2, {}))
    stale.received(T + 60, stop(3))
    assert "SpawnChild" not in kinds(stale.received(T + 61, Vouch(5.0)))


def test_a_new_agent_starts_what_is_ready_whatever_the_old_one_said() -> None:
    """It may be one that does not know the message."""
    machine = vouched(ready())
    machine.disconnected(T + 1)
    machine.connected(T + 60)
    assert kinds(machine.received(T + 61, Start(2, {}))) == "SpawnChild"


def test_a_new_connection_alone_is_no_new_word_for_what_runs() -> None:
    machine = vouched(running())
    machine.disconnected(T + 1)
    machine.connected(T + 2)
    assert KillChild() in machine.timer(T + 5.0)


def test_who_stood_still_itself_asks_first() -> None:
    """A machine that slept, manager and all: the agent is awake again as well, and the rank has lost nothing."""
    late = T + 5.0 + ASLEEP_S + 60
    machine = vouched(running())
    assert kinds(machine.timer(late)) == "Hello"
    vouched(machine, at=late + ASK_S / 2)
    machine.timer(late + ASK_S)
    assert machine.state == "running"


def test_and_stops_when_there_is_no_answer() -> None:
    late = T + 5.0 + ASLEEP_S + 60
    machine = vouched(running())
    machine.timer(late)
    assert KillChild() in machine.timer(late + ASK_S)
    cut_off = vouched(running())
    cut_off.disconnected(T + 1)
    assert KillChild() in cut_off.timer(late), "there is nobody to ask"


# --- a word that has waited: it counts from when it was said --------------------------------------------------------------


def test_a_word_counts_from_when_it_was_said() -> None:
    machine = running()
    machine.received(T + 3, Vouch(5.0, at=T))
    machine.timer(T + 4.9)
    assert machine.state == "running"
    assert KillChild() in machine.timer(T + 5.0)


def test_a_moment_that_lies_ahead_is_now() -> None:
    """A container with a kernel of its own: its clock began later."""
    machine = running()
    machine.received(T, Vouch(5.0, at=T + 1e6))
    assert KillChild() in machine.timer(T + 5.0)


def test_a_word_that_was_over_when_it_was_read_starts_nothing() -> None:
    machine = vouched(ready())
    assert kinds(machine.received(T + 60, Start(2, {}))) == ""
    assert kinds(machine.received(T + 60, Vouch(5.0, at=T + 50))) == ""
    assert machine.received(T + 61, Vouch(5.0, at=T + 61))[0] == SpawnChild(2, {})


def test_a_word_that_was_over_when_it_was_read_is_no_answer_to_who_asked() -> None:
    """The launcher stood still while words came in, and the agent has fallen silent since."""
    late = T + 5.0 + ASLEEP_S + 60
    machine = vouched(running())
    assert kinds(machine.timer(late)) == "Hello"
    machine.received(late, Vouch(5.0, at=T + 2))
    machine.received(late, Vouch(5.0, at=T + 4))
    assert KillChild() in machine.timer(late + ASK_S)


def test_a_shorter_word_counts_however_late_it_comes() -> None:
    machine = vouched(running(), 60.0)
    machine.received(T + 3, Vouch(1.0, at=T + 1.5))
    assert KillChild() in machine.timer(T + 3)


def test_an_agent_with_a_shorter_lease_is_waited_for_by_its_own_word() -> None:
    """The operator has shortened --lease: a manager that comes back waits no longer than that."""
    machine = running()
    machine.received(T, Vouch(27.5, "/state/link.sock"))
    machine.disconnected(T + 1)
    machine.connected(T + 10)
    for second in (10, 12):
        machine.received(T + second, Vouch(7.0, "/state/link.sock"))
    machine.disconnected(T + 13)
    now = T + 19.0
    machine.timer(now)
    machine.manager_looked_for(now, is_there=False)
    machine.timer(now + LOOK_S)
    assert KillChild() not in machine.manager_looked_for(now + LOOK_S, is_there=True)
    assert LookForManager("/state/link.sock") in machine.timer(now + 7.0)
    assert KillChild() in machine.manager_looked_for(now + 7.0, is_there=True)


def test_a_word_does_not_disturb_a_stop() -> None:
    machine = vouched(stopping())
    machine.child_exited(T + 1, 2, 143, 15)
    machine.tree_gone(T + 1)
    assert Send(Ready(3, (7,))) in machine.scanned(T + 1, ScanCheckpoints(3, 4, "/ckpt"), (7,))

"""The record of one launcher: what each message, and time, makes of it."""

from __future__ import annotations

import pytest

from remuda.agent.launchers import launcher_state as records
from remuda.agent.launchers.launcher_state import (
    LauncherRecord,
    inherit_launcher,
    launcher_disconnected,
    launcher_gone,
    launcher_state_after_fence,
    launcher_state_as_time_passes,
    launcher_stopped,
    receive_launcher_message,
)
from remuda.api.devices import LauncherReport
from remuda.api.meta import to_time
from remuda.api.training import Failure
from remuda.launch.protocol import Exited, Heartbeat, Hello, ToAgent
from tests.unit.agent.scene import NOW, a_launcher, heard, hello, ready, running

REJOIN_S = 5.0


def words(launcher: LauncherRecord) -> tuple[str, int]:
    assert launcher.report is not None
    return launcher.report.state, launcher.report.attempt


def exited(attempt: int, code: int = 1, message: str = "boom") -> Exited:
    return Exited(attempt, code, None, NOW, message)


def test_a_launcher_that_never_spoke_has_no_report() -> None:
    assert a_launcher().report is None


def test_the_usual_life() -> None:
    launcher = a_launcher()
    life: list[tuple[ToAgent, tuple[str, int]]] = [
        (hello(), ("parked", 0)),
        (ready(1, 30, 20), ("ready", 1)),
        (running(1), ("running", 1)),
        (exited(1, 7), ("exited", 1)),
        (ready(2), ("ready", 2)),
    ]
    for message, state in life:
        update = receive_launcher_message(launcher, message, NOW)
        assert update.transition
        launcher = update.launcher
        assert words(launcher) == state


def test_reports_carry_the_details() -> None:
    launcher = heard(hello(), ready(1, 30, 20))
    assert launcher.report == LauncherReport("pod-a", "a", "ready", 1, checkpoints=[30, 20], time=to_time(NOW))
    launcher = heard(hello(), ready(1), running(1), exited(1, 7, "x" * 5000))
    assert launcher.report is not None
    assert launcher.report.code == 7
    assert len(launcher.report.message) == 1024


@pytest.mark.parametrize(
    ("before", "late"),
    [
        ([ready(2)], ready(1)),
        ([ready(2), running(2)], ready(2)),
        ([ready(2), running(2)], running(1)),
        ([ready(2), running(2)], exited(1)),
        ([ready(2), running(2), exited(2)], running(2)),
        ([ready(2), running(2), exited(2)], ready(2)),
        ([ready(2)], Heartbeat(1, 5)),
        ([ready(2), running(2)], Heartbeat(1, 5)),
    ],
)
def test_what_is_late_changes_nothing(before: list[ToAgent], late: ToAgent) -> None:
    launcher = heard(hello(), *before)
    update = receive_launcher_message(launcher, late, NOW + 1)
    assert update.launcher == launcher
    assert not update.transition
    assert update.beat is None


def test_saying_it_again_is_no_transition() -> None:
    launcher = heard(hello(), ready(1, 5))
    assert not receive_launcher_message(launcher, ready(1, 5), NOW + 1).transition
    assert receive_launcher_message(launcher, ready(1, 6), NOW + 1).transition
    launcher = heard(hello(), ready(1), running(1))
    assert not receive_launcher_message(launcher, running(1), NOW + 1).transition


def test_a_reconnect_without_news_is_no_transition() -> None:
    launcher = heard(hello(), ready(1, 5))
    back = receive_launcher_message(launcher_disconnected(launcher, NOW + 1), hello("ready", 1), NOW + 2)
    assert not back.transition
    assert back.launcher.connected
    assert back.launcher.report == launcher.report


def test_ready_is_not_reported_before_its_checkpoints_are_known() -> None:
    """An agent that was away meets a launcher that got ready meanwhile: for an instant it knows the state only."""
    launcher = inherit_launcher(a_launcher(), LauncherReport("pod-a", "a", "running", 1, time=to_time(NOW)), NOW)
    update = receive_launcher_message(launcher, hello("ready", 2), NOW + 1)
    assert not update.transition
    assert words(update.launcher) == ("running", 1)
    update = receive_launcher_message(update.launcher, ready(2, 40), NOW + 1)
    assert update.transition
    assert words(update.launcher) == ("ready", 2)


def test_exited_is_not_reported_before_its_code_is_known() -> None:
    launcher = inherit_launcher(a_launcher(), LauncherReport("pod-a", "a", "running", 1, time=to_time(NOW)), NOW)
    launcher = receive_launcher_message(launcher, hello("exited", 1), NOW + 1).launcher
    assert words(launcher) == ("running", 1)
    # The launcher says everything of its attempt again, in order.
    launcher = receive_launcher_message(launcher, running(1), NOW + 1).launcher
    assert words(launcher) == ("running", 1)
    launcher = receive_launcher_message(launcher, exited(1, 3), NOW + 1).launcher
    assert launcher.report is not None
    assert (words(launcher), launcher.report.code) == (("exited", 1), 3)


def test_a_state_whose_details_never_come_is_reported_all_the_same() -> None:
    launcher = receive_launcher_message(a_launcher(), hello("exited", 1), NOW).launcher
    update, again_at = launcher_state_as_time_passes(launcher, None, NOW + 1, REJOIN_S)
    assert (update.transition, again_at) == (False, NOW + REJOIN_S)
    update, again_at = launcher_state_as_time_passes(launcher, None, NOW + REJOIN_S, REJOIN_S)
    assert (update.transition, again_at) == (True, None)
    assert words(update.launcher) == ("exited", 1)


def test_a_restarted_launcher_says_so() -> None:
    launcher = heard(hello(), ready(3), running(3))
    launcher = launcher_gone(launcher, 137, "The container ended with code 137.", NOW)
    assert words(launcher) == ("gone", 3)
    update = receive_launcher_message(launcher, hello(), NOW + 1)
    assert update.transition
    assert words(update.launcher) == ("parked", 0)
    assert update.launcher.report is not None
    assert update.launcher.report.message.startswith("LauncherRestarted: ")


def test_times_of_the_launcher_are_believed_unless_they_are_in_the_future() -> None:
    launcher = receive_launcher_message(heard(hello(), ready(1)), running(1, NOW - 2), NOW).launcher
    assert launcher.report is not None
    assert launcher.report.time == to_time(NOW - 2)
    launcher = receive_launcher_message(heard(hello(), ready(1)), running(1, NOW + 9), NOW).launcher
    assert launcher.report is not None
    assert launcher.report.time == to_time(NOW)


# --- heartbeats ---------------------------------------------------------------------------------------------------------


def test_a_heartbeat_is_passed_on_and_is_no_transition() -> None:
    launcher = heard(hello(), ready(1), running(1))
    update = receive_launcher_message(launcher, Heartbeat(1, 7, 0.5, 0.4, 6, 0.1, NOW - 1), NOW)
    assert not update.transition
    beat = update.beat
    assert beat is not None
    assert (beat.namespace, beat.gang, beat.pod, beat.uid) == ("default", "job", "pod-a", "a")
    assert (beat.attempt, beat.step, beat.step_seconds, beat.self_seconds) == (1, 7, 0.5, 0.4)
    assert (beat.checkpoint, beat.checkpoint_seconds, beat.time) == (6, 0.1, NOW - 1)
    assert update.launcher.report == launcher.report


def test_a_heartbeat_from_the_future_does_not_block_later_ones() -> None:
    beat = receive_launcher_message(heard(hello(), ready(1), running(1)), Heartbeat(1, 7, time=NOW + 1e6), NOW).beat
    assert beat is not None
    assert beat.time == NOW


# --- silence and hangs --------------------------------------------------------------------------------------------------


def test_a_lost_connection_is_forgiven_for_a_while() -> None:
    launcher = launcher_disconnected(heard(hello(), ready(1), running(1)), NOW)
    update, again_at = launcher_state_as_time_passes(launcher, None, NOW + 4.9, REJOIN_S)
    assert (update.transition, again_at) == (False, NOW + REJOIN_S)
    update, again_at = launcher_state_as_time_passes(launcher, None, NOW + REJOIN_S, REJOIN_S)
    assert (update.transition, again_at) == (True, None)
    assert words(update.launcher) == ("gone", 1)
    back = receive_launcher_message(update.launcher, hello("running", 1), NOW + 9)
    assert back.transition
    assert words(back.launcher) == ("running", 1)


def test_silence_means_nothing_for_one_that_never_spoke_or_is_gone() -> None:
    assert launcher_state_as_time_passes(a_launcher(), None, NOW + 1e6, REJOIN_S) == (
        records.LauncherUpdate(a_launcher()),
        None,
    )
    dead = launcher_gone(heard(hello()), 1, "", NOW)
    assert launcher_state_as_time_passes(dead, None, NOW + 1e6, REJOIN_S) == (records.LauncherUpdate(dead), None)


HANG = Failure(hang_after_seconds=10.0, start_deadline_seconds=100.0)


def step(launcher: LauncherRecord, number: int, now: float) -> LauncherRecord:
    return receive_launcher_message(launcher, Heartbeat(1, number, time=now), now).launcher


def test_no_new_step_for_too_long_is_a_hang() -> None:
    launcher = step(heard(hello(), ready(1), running(1)), 5, NOW + 20)
    launcher = step(launcher, 5, NOW + 29)  # alive, but not a new step
    update, again_at = launcher_state_as_time_passes(launcher, HANG, NOW + 29, REJOIN_S)
    assert (update.transition, again_at) == (False, NOW + 30)
    update, again_at = launcher_state_as_time_passes(launcher, HANG, NOW + 30, REJOIN_S)
    assert (update.transition, again_at) == (True, None)
    assert update.launcher.report is not None
    assert update.launcher.report.hung_since == to_time(NOW + 20)
    assert words(update.launcher) == ("running", 1)
    assert not launcher_state_as_time_passes(update.launcher, HANG, NOW + 99, REJOIN_S)[0].transition


def test_a_new_step_ends_the_hang() -> None:
    launcher = step(heard(hello(), ready(1), running(1)), 5, NOW)
    launcher = launcher_state_as_time_passes(launcher, HANG, NOW + 10, REJOIN_S)[0].launcher
    assert not receive_launcher_message(launcher, Heartbeat(1, 5, time=NOW + 11), NOW + 11).transition
    update = receive_launcher_message(launcher, Heartbeat(1, 6, time=NOW + 12), NOW + 12)
    assert update.transition
    assert update.launcher.report is not None
    assert update.launcher.report.hung_since is None
    assert launcher_state_as_time_passes(update.launcher, HANG, NOW + 12, REJOIN_S)[1] == NOW + 22


def test_before_the_first_step_there_is_the_start_deadline() -> None:
    launcher = heard(hello(), ready(1), running(1))
    assert launcher_state_as_time_passes(launcher, HANG, NOW + 109, REJOIN_S) == (
        records.LauncherUpdate(launcher),
        NOW + 110,
    )
    update, _ = launcher_state_as_time_passes(launcher, HANG, NOW + 110, REJOIN_S)
    assert update.launcher.report is not None
    assert update.launcher.report.hung_since == to_time(NOW + 100)


@pytest.mark.parametrize("messages", [[], [ready(1)], [ready(1), running(1), exited(1, 0)]])
def test_only_a_running_one_can_hang(messages: list[ToAgent]) -> None:
    launcher = heard(hello(), *messages)
    assert launcher_state_as_time_passes(launcher, HANG, NOW + 1e6, REJOIN_S) == (
        records.LauncherUpdate(launcher),
        None,
    )


def test_hang_detection_is_off_unless_asked_for() -> None:
    launcher = heard(hello(), ready(1), running(1))
    assert launcher_state_as_time_passes(launcher, Failure(), NOW + 1e6, REJOIN_S) == (
        records.LauncherUpdate(launcher),
        None,
    )


def test_a_new_attempt_starts_with_a_clean_count() -> None:
    launcher = step(heard(hello(), ready(1), running(1)), 50, NOW)
    launcher = launcher_state_as_time_passes(launcher, HANG, NOW + 10, REJOIN_S)[0].launcher
    launcher = receive_launcher_message(launcher, ready(2), NOW + 11).launcher
    launcher = receive_launcher_message(launcher, running(2, NOW + 12), NOW + 12).launcher
    assert launcher.report is not None
    assert launcher.report.hung_since is None
    assert launcher_state_as_time_passes(launcher, HANG, NOW + 50, REJOIN_S)[1] == NOW + 12 + 110


# --- fence --------------------------------------------------------------------------------------------------------------


def test_a_fenced_launcher_is_parked_and_hears_nothing_of_that_attempt() -> None:
    launcher = launcher_state_after_fence(heard(hello(), ready(2), running(2)), NOW)
    assert words(launcher) == ("parked", 2)
    for late in (running(2), exited(2), Heartbeat(2, 9)):
        assert receive_launcher_message(launcher, late, NOW).launcher == launcher
    assert words(receive_launcher_message(launcher, ready(3), NOW).launcher) == ("ready", 3)


def test_a_fence_covers_the_attempt_it_was_being_stopped_for() -> None:
    launcher = records.change_launcher(heard(hello(), ready(2), running(2)), asked=(3, 0, None))
    launcher = launcher_state_after_fence(launcher, NOW)
    assert words(launcher) == ("parked", 3)
    assert receive_launcher_message(launcher, ready(3), NOW).launcher == launcher  # was on its way


def test_a_fence_covers_what_an_agent_before_this_one_told_it() -> None:
    """It stops for attempt 3, as the agent before asked: the fence makes it deaf to that one, and a ready of it is late."""
    launcher = launcher_state_after_fence(heard(Hello("pod-a", "a", 42, "stopping", 2, floor=3)), NOW)
    assert words(launcher) == ("parked", 3)
    assert receive_launcher_message(launcher, ready(3), NOW).launcher == launcher


def test_a_launcher_started_anew_knows_of_no_fence() -> None:
    launcher = launcher_gone(launcher_state_after_fence(heard(hello(), ready(2), running(2)), NOW), 137, "", NOW)
    launcher = receive_launcher_message(launcher, hello(), NOW).launcher
    assert words(receive_launcher_message(launcher, ready(2), NOW).launcher) == ("ready", 2)


def test_an_absent_launcher_is_not_called_parked() -> None:
    launcher = launcher_disconnected(heard(hello(), ready(2), running(2)), NOW)
    assert words(launcher_state_after_fence(launcher, NOW)) == ("running", 2)
    assert launcher_state_after_fence(launcher, NOW).fenced == 2


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], False),
        ([hello()], False),
        ([hello(), ready(1)], False),
        ([hello(), ready(1), running(1)], True),
        ([hello("stopping", 1)], True),
        ([hello(), ready(1), running(1), exited(1)], False),
    ],
)
def test_who_may_have_a_child(messages: list[ToAgent], expected: bool) -> None:
    assert records.launcher_state_may_have_child(heard(*messages)) is expected


def test_one_that_was_just_told_to_start_may_have_a_child() -> None:
    assert records.launcher_state_may_have_child(records.change_launcher(heard(hello(), ready(1)), started=1))


# --- a node that is stopped on purpose ----------------------------------------------------------------------------------


def test_a_stop_on_purpose_is_known_until_the_launcher_is_back_at_the_barrier() -> None:
    old = launcher_stopped(heard(hello(), ready(2), running(2)), NOW)
    assert words(old) == ("gone", 2)
    assert old.report is not None
    launcher = inherit_launcher(a_launcher(), old.report, NOW + 60)  # by the agent of the next start
    launcher = launcher_gone(launcher, 143, "The container ended with code 143.", NOW + 61)
    launcher = receive_launcher_message(launcher, hello(), NOW + 62).launcher
    assert words(launcher) == ("parked", 0)
    assert launcher.report is not None
    assert launcher.report.planned
    launcher = receive_launcher_message(launcher, ready(3), NOW + 63).launcher
    assert launcher.report is not None
    assert not launcher.report.planned


def test_what_had_ended_before_the_stop_stays_said() -> None:
    launcher = launcher_stopped(heard(hello(), ready(2), running(2), exited(2, 7)), NOW)
    assert launcher.report is not None
    assert (launcher.report.state, launcher.report.code, launcher.report.planned) == ("exited", 7, True)


def test_who_never_spoke_or_was_gone_already_is_not_stopped() -> None:
    assert launcher_stopped(a_launcher(), NOW) == a_launcher()
    lost = launcher_gone(heard(hello(), ready(2), running(2)), 137, "", NOW)
    assert launcher_stopped(lost, NOW) == lost

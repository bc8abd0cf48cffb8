"""What the agent knows of one launcher, and how each message changes that. Pure: record and message in, record out.

The launcher is the authority on its own state; this record follows it. Three things it adds:

- *started*: the highest attempt it was told to start, or is known to have run, so that no start is said twice.
- *told*: after a reconnect `hello` names the state and the message with the details (checkpoints, exit code) follows. The
  report keeps its old words until then: "ready, no checkpoints" for an instant would restart a job from step 0.
- *fenced*: no message of an attempt up to this one counts any more. It never covers less than the launcher itself will be
  deaf to (`floor`), nor more: a launcher that was started anew has heard of no fence and answers what it is told.

Attempts only grow within one connection; a message of an older attempt is late and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from remuda.api.devices import LauncherReport
from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Failure
from remuda.core.health.own_stalls import NO_STALLS, StallHistory
from remuda.launch.protocol import (
    EXITED,
    MAX_TAIL,
    MAX_TEXT,
    PARKED,
    READY,
    RUNNING,
    STOPPING,
    Exited,
    Heartbeat,
    Hello,
    Ready,
    Running,
    ToAgent,
)
from remuda.link.progress_board import Heartbeat as Beat

GONE = "gone"
FENCED = "Fenced: the node could not reach the API for too long."
NEVER_HEARD = ""

StopOrder = tuple[int, int | None, str | None]  # attempt, rank, checkpoint directory


class LauncherRecord(msgspec.Struct, frozen=True):
    """One allocation's launcher. `state` is the launcher's own word, or gone, or empty when it never spoke."""

    pod: str
    uid: str
    namespace: str = ""
    gang: str = ""
    gpus: int = 0
    simulated: bool = False
    connected: bool = False
    state: str = NEVER_HEARD
    attempt: int = 0
    since: float = 0.0  # of this state
    told: bool = False
    asked: StopOrder | None = None  # the stop sent on this connection, so that it is not sent on every event
    checkpoint_asked: int = 0  # id of the checkpoint request sent on this connection
    started: int = 0
    floor: int = 0  # the highest attempt it had been told of when it connected
    fenced: int = -1
    lost_at: float | None = None  # when the connection ended
    step: int | None = None  # newest of this attempt
    step_at: float = 0.0  # when it was new
    report: LauncherReport | None = None  # what the API says; changed by transitions only
    container: str = ""  # where it runs


class LauncherUpdate(msgspec.Struct, frozen=True):
    launcher: LauncherRecord
    transition: bool = False
    beat: Beat | None = None


def change_launcher(launcher: LauncherRecord, **fields: Any) -> LauncherRecord:
    return msgspec.structs.replace(launcher, **fields)


def launcher_with_report(launcher: LauncherRecord, at: float, **fields: Any) -> LauncherRecord:
    """The launcher with a fresh report of its state: a transition."""
    report = LauncherReport(
        pod=launcher.pod, uid=launcher.uid, state=launcher.state, attempt=launcher.attempt, time=to_time(at), **fields
    )
    return change_launcher(launcher, report=report, told=True)


def inherit_launcher(launcher: LauncherRecord, report: LauncherReport, now: float) -> LauncherRecord:
    """A launcher as an earlier agent reported it: believed until it speaks, or stays silent for too long."""
    return change_launcher(
        launcher,
        state=report.state,
        attempt=report.attempt,
        since=to_seconds(report.time) if report.time is not None else now,
        told=True,
        lost_at=None if report.state == GONE else now,
        report=report,
    )


# --- what the launcher says ---------------------------------------------------------------------------------------------


def receive_launcher_message(launcher: LauncherRecord, message: ToAgent, now: float) -> LauncherUpdate:
    """The record after `message`; `transition` when the report changed, `beat` when there is progress to pass on."""
    return _RECEIVE[type(message)](launcher, message, now)


def _receive_hello(launcher: LauncherRecord, message: Hello, now: float) -> LauncherUpdate:
    started = launcher.started
    if message.state in (RUNNING, EXITED, STOPPING):
        started = max(started, message.attempt)
    elif message.state == READY:
        started = min(started, message.attempt - 1)  # it says itself that a start it was sent never arrived
    floor = max(message.floor, message.attempt)
    # Parked in an attempt: only a fence does that, an agent's or its own when no agent vouched for it in time.
    is_fenced = message.state == PARKED and message.attempt > 0
    fenced = floor if is_fenced else min(launcher.fenced, floor)
    here = change_launcher(launcher, connected=True, lost_at=None, asked=None, checkpoint_asked=0, started=started)
    here = change_launcher(here, floor=floor, fenced=fenced)
    if (message.state, message.attempt) == (launcher.state, launcher.attempt):
        return LauncherUpdate(here)
    here = change_launcher(
        here,
        state=message.state,
        attempt=message.attempt,
        since=now,
        step=None,
        told=message.state not in (READY, EXITED),
    )
    if not here.told:
        return LauncherUpdate(here)
    words, planned = "", False
    if message.state == PARKED and message.attempt < launcher.attempt:
        words = f"LauncherRestarted: the launcher came back and knows nothing of attempt {launcher.attempt}."
        planned = _was_launcher_end_planned(launcher)
    elif is_fenced:
        words = FENCED
    return LauncherUpdate(launcher_with_report(here, now, message=words, planned=planned), transition=True)


def _receive_ready(launcher: LauncherRecord, message: Ready, now: float) -> LauncherUpdate:
    if _is_late_launcher_message(launcher, message.attempt, RUNNING, EXITED):
        return LauncherUpdate(launcher)
    found = {
        "checkpoints": list(message.checkpoints),
        "corrupt": list(message.corrupt),
        "abandoned": list(message.abandoned),
        "unreadable": message.unreadable[:MAX_TEXT],
    }
    old = launcher.report
    is_ready = (launcher.state, launcher.attempt, launcher.told) == (READY, message.attempt, True)
    if is_ready and old is not None and old.state == READY:
        if all(getattr(old, name) == value for name, value in found.items()):
            return LauncherUpdate(launcher)
        # Another look at the checkpoints: it has been ready since it first said so.
        new = launcher_with_report(launcher, launcher.since, **found)
        return LauncherUpdate(new, transition=True)
    new = change_launcher(launcher, state=READY, attempt=message.attempt, since=now, step=None)
    return LauncherUpdate(launcher_with_report(new, now, **found), transition=True)


def _receive_running(launcher: LauncherRecord, message: Running, now: float) -> LauncherUpdate:
    if _is_late_launcher_message(launcher, message.attempt, EXITED):
        return LauncherUpdate(launcher)
    started = max(launcher.started, message.attempt)
    if (launcher.state, launcher.attempt, launcher.told) == (RUNNING, message.attempt, True):
        return LauncherUpdate(change_launcher(launcher, started=started))
    at = _believable_launcher_time(message.time, now)
    new = change_launcher(launcher, state=RUNNING, attempt=message.attempt, since=at, started=started, step=None)
    return LauncherUpdate(launcher_with_report(new, at), transition=True)


def _receive_exited(launcher: LauncherRecord, message: Exited, now: float) -> LauncherUpdate:
    if _is_late_launcher_message(launcher, message.attempt):
        return LauncherUpdate(launcher)
    if (launcher.state, launcher.attempt, launcher.told) == (EXITED, message.attempt, True):
        return LauncherUpdate(launcher)
    at = _believable_launcher_time(message.time, now)
    started = max(launcher.started, message.attempt)
    new = change_launcher(launcher, state=EXITED, attempt=message.attempt, since=at, started=started)
    words = {"message": message.message[:MAX_TEXT], "tail": message.tail[-MAX_TAIL:]}
    return LauncherUpdate(launcher_with_report(new, at, code=message.code, **words), transition=True)


def _receive_heartbeat(launcher: LauncherRecord, message: Heartbeat, now: float) -> LauncherUpdate:
    if launcher.state != RUNNING or message.attempt != launcher.attempt:
        return LauncherUpdate(launcher)
    new = launcher
    if message.step != launcher.step:
        new = change_launcher(launcher, step=message.step, step_at=now)
    beat = Beat(
        namespace=launcher.namespace,
        gang=launcher.gang,
        pod=launcher.pod,
        uid=launcher.uid,
        attempt=message.attempt,
        step=message.step,
        step_seconds=message.step_time,
        self_seconds=message.self_time,
        checkpoint=message.checkpoint,
        checkpoint_seconds=message.checkpoint_time,
        time=_believable_launcher_time(message.time, now),
        total_steps=message.total_steps,
        kept=message.kept,
    )
    if new is not launcher and new.report is not None and new.report.hung_since is not None:
        return LauncherUpdate(launcher_with_report(new, now), transition=True, beat=beat)
    return LauncherUpdate(new, beat=beat)


_RECEIVE: dict[type[Any], Callable[[LauncherRecord, Any, float], LauncherUpdate]] = {
    Hello: _receive_hello,
    Ready: _receive_ready,
    Running: _receive_running,
    Exited: _receive_exited,
    Heartbeat: _receive_heartbeat,
}


def _is_late_launcher_message(launcher: LauncherRecord, attempt: int, *later_states: str) -> bool:
    """Of an older attempt, of a fenced one, or overtaken by a state that comes later in the same attempt."""
    return (
        attempt < launcher.attempt
        or attempt <= launcher.fenced
        or (attempt == launcher.attempt and launcher.state in later_states)
    )


def _believable_launcher_time(moment: float, now: float) -> float:
    """The launcher's own time when it is believable: a clock ahead of ours would make later news look old."""
    return moment if 0 < moment <= now else now


# --- what happens to it -------------------------------------------------------------------------------------------------


def launcher_disconnected(launcher: LauncherRecord, now: float) -> LauncherRecord:
    return change_launcher(launcher, connected=False, lost_at=now, asked=None)


def launcher_gone(launcher: LauncherRecord, code: int | None, message: str, now: float) -> LauncherRecord:
    new = change_launcher(launcher, connected=False, state=GONE, since=now, lost_at=None, asked=None, step=None)
    return launcher_with_report(new, now, code=code, message=message, planned=_was_launcher_end_planned(launcher))


def launcher_stopped(launcher: LauncherRecord, now: float) -> LauncherRecord:
    """Its node is stopped on purpose, and it with it. Said before it happens, and kept until it is back at the barrier: whoever
    finds it gone knows that nothing broke. What it had ended with before stays said."""
    report = launcher.report
    if report is None or launcher.state in (NEVER_HEARD, GONE):
        return launcher
    if launcher.state == EXITED:
        return change_launcher(launcher, report=msgspec.structs.replace(report, planned=True))
    new = change_launcher(launcher, connected=False, state=GONE, since=now, lost_at=None, asked=None, step=None)
    return launcher_with_report(new, now, message="NodeStopped: the node was stopped on purpose.", planned=True)


def _was_launcher_end_planned(launcher: LauncherRecord) -> bool:
    return launcher.report is not None and launcher.report.planned


def launcher_state_may_have_child(launcher: LauncherRecord) -> bool:
    """It runs one, is about to, or may not have ended an older one yet. Parked, ready and exited launchers have none."""
    if launcher.state == READY:
        return launcher.started >= launcher.attempt
    return launcher.state in (RUNNING, STOPPING)


def launcher_state_after_fence(launcher: LauncherRecord, now: float) -> LauncherRecord:
    """The launcher as it is once the fence arrives: parked, deaf to every attempt it may have been told of."""
    highest = max(launcher.attempt, launcher.floor, launcher.asked[0] if launcher.asked else 0)
    deaf = change_launcher(launcher, fenced=max(launcher.fenced, highest))
    if not launcher.connected:
        return deaf  # it is told when it comes back, and until then it is what it was
    new = change_launcher(deaf, state=PARKED, attempt=highest, since=now, step=None)
    return launcher_with_report(new, now, message=FENCED)


def launcher_state_as_time_passes(
    launcher: LauncherRecord, failure: Failure | None, now: float, rejoin_s: float, stalls: StallHistory = NO_STALLS
) -> tuple[LauncherUpdate, float | None]:
    """What the passing of time alone means for the launcher, and when to look again (None = not before it speaks). `stalls`:
    the agent's own, in which no launcher could be heard."""
    if launcher.lost_at is not None and launcher.state not in (NEVER_HEARD, GONE):
        silent_at = stalls.countdown_ends_at(launcher.lost_at, rejoin_s)
        if now >= silent_at:
            words = f"LauncherSilent: the launcher has not been heard for {rejoin_s:g} s."
            return LauncherUpdate(launcher_gone(launcher, None, words, now), transition=True), None
        return LauncherUpdate(launcher), silent_at
    if launcher.state in (READY, EXITED) and not launcher.told:
        untold_at = stalls.countdown_ends_at(launcher.since, rejoin_s)
        if now >= untold_at:
            unknown = "the launcher has not said which it has" if launcher.state == READY else ""
            new = launcher_with_report(launcher, launcher.since, unreadable=unknown)
            return LauncherUpdate(new, transition=True), None
        return LauncherUpdate(launcher), untold_at
    return _look_for_launcher_hang(launcher, failure, now, stalls)


def _look_for_launcher_hang(
    launcher: LauncherRecord, failure: Failure | None, now: float, stalls: StallHistory
) -> tuple[LauncherUpdate, float | None]:
    report = launcher.report
    if failure is None or failure.hang_after_seconds <= 0 or launcher.state != RUNNING or report is None:
        return LauncherUpdate(launcher), None
    if report.hung_since is not None:
        return LauncherUpdate(launcher), None  # until a new step comes
    quiet_since = launcher.step_at if launcher.step is not None else launcher.since + failure.start_deadline_seconds
    hangs_at = stalls.countdown_ends_at(quiet_since, failure.hang_after_seconds)
    if now < hangs_at:
        return LauncherUpdate(launcher), hangs_at
    hung = msgspec.structs.replace(report, hung_since=to_time(quiet_since), time=to_time(now))
    return LauncherUpdate(change_launcher(launcher, report=hung), transition=True), None

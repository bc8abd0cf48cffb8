"""The agent's side of the barrier: what to tell each launcher, given its job. Pure.

A job's status steers with two fields, `attempt` and `barrier`. For a launcher in the job's member list:

    Closed, attempt behind the job's  -> stop{attempt, rank}: end what runs, say which checkpoints are usable
    Open, ready for exactly it        -> start{attempt, env}; a member of a held role is treated as if it were Closed
    Open, runs it, a request is open  -> checkpoint{deadline, step}, once per request
    anything else                     -> nothing: it runs, or it waits for the next attempt

When the job has failed, every launcher is told to end and leave: its pod stays for the log (`core.training.finished_pods`).

The barrier opens only when every member has said ready, so a member that is behind an open one is a launcher that died with its
child and came back empty. It must not join: the other ranks still talk to the process that is gone. It waits, reported as what
it is, and the controller raises the attempt for all.

A launcher that is not a member is a spare and stays parked; one that still belongs to an older attempt is stopped.

Invariants, whatever the order of job events, messages, reconnects and restarts:
- start names the attempt of the job as last seen, with its barrier Open, and the launcher's own `ready` of that attempt;
- no pod runs an attempt twice;
- an order is sent once per connection, and again after a reconnect until the launcher shows that it has it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from remuda.agent.launchers.launcher_state import (
    GONE,
    NEVER_HEARD,
    LauncherRecord,
    change_launcher,
    launcher_state_may_have_child,
    launcher_with_report,
)
from remuda.agent.launchers.launcher_state import launcher_state_after_fence as fenced_launcher
from remuda.api.meta import to_seconds
from remuda.api.training import Member, TrainingJob
from remuda.core.gang.checkpoint_dirs import job_checkpoint_dir
from remuda.launch.protocol import (
    EXITED,
    READY,
    RUNNING,
    SIGNALS,
    STOPPING,
    Checkpoint,
    End,
    Fence,
    Start,
    Stop,
    ToLauncher,
)

OPEN = "Open"
END = (-1, None, None)  # what a launcher was asked last: to leave
CANNOT_WRITE = 73  # EX_CANTCREAT of sysexits.h

EnvOf = Callable[[TrainingJob, Member, int], dict[str, str]]


class BarrierSite(msgspec.Struct, frozen=True):
    """What a plan needs to know of the node: where the job's checkpoints go, and whether that place can be written.

    `fault`: None = not looked yet, "" = fine, else why not. `may_start`: False while the node's lease is not good.
    `is_complete`: False while checkpoints of the rank are still on their way here: it stops, and is not asked for any yet."""

    checkpoint_dir: str
    fault: str | None
    env_of: EnvOf
    may_start: bool = True
    is_complete: bool = True


class LauncherOrders(msgspec.Struct, frozen=True):
    """What to do: the record after the messages are sent; `check` asks the shell to look at the checkpoint directory."""

    launcher: LauncherRecord
    message: ToLauncher | None = None
    transition: bool = False
    check: bool = False


def plan_launcher_barrier_orders(
    job: TrainingJob | None, launcher: LauncherRecord, site: BarrierSite, now: float
) -> LauncherOrders:
    """The next order for one launcher, if any."""
    if not launcher.connected or launcher.state in (NEVER_HEARD, GONE):
        return LauncherOrders(launcher)
    if launcher.attempt <= launcher.fenced and launcher_state_may_have_child(launcher):
        return LauncherOrders(fenced_launcher(launcher, now), Fence(), transition=True)  # it missed the fence
    if job is not None and job.status.phase == "Failed" and launcher.asked != END:
        message = End(job.spec.failure.stop_grace_seconds)
        return LauncherOrders(change_launcher(launcher, asked=END), message)
    if job is None or job.status.attempt <= 0 or job.is_finished:
        return LauncherOrders(launcher)
    member = launcher_registry_roster(job).get(launcher.uid)
    if member is None:
        return _tell_other_launcher(job, launcher, now)
    return _tell_member_launcher(job, member, launcher, site, now)


def _tell_member_launcher(
    job: TrainingJob, member: Member, launcher: LauncherRecord, site: BarrierSite, now: float
) -> LauncherOrders:
    attempt = job.status.attempt
    is_ready = launcher.state == READY and launcher.attempt == attempt
    if job.status.barrier == OPEN and member.role not in job.status.held_roles:
        if is_ready and launcher.started < attempt and site.may_start:
            return _tell_launcher_to_start(job, member, launcher, site, now)
        if launcher.state == RUNNING and launcher.attempt == attempt:
            return _ask_launcher_for_checkpoint(job, launcher, now)
    elif is_ready or launcher.attempt < attempt:
        # Ready already, after a reconnect: nobody knows for which rank, and asking again is free.
        if not site.is_complete:
            return _tell_launcher_to_stop(job, launcher, None, None, now)
        return _tell_launcher_to_stop(job, launcher, member.rank, site.checkpoint_dir, now)
    return LauncherOrders(launcher)


def _tell_other_launcher(job: TrainingJob, launcher: LauncherRecord, now: float) -> LauncherOrders:
    if launcher.attempt < job.status.attempt and launcher.state in (READY, RUNNING, STOPPING):
        return _tell_launcher_to_stop(job, launcher, None, None, now)
    return LauncherOrders(launcher)


def _tell_launcher_to_stop(
    job: TrainingJob, launcher: LauncherRecord, rank: int | None, directory: str | None, now: float
) -> LauncherOrders:
    order = (job.status.attempt, rank, directory)
    if launcher.asked == order:
        return LauncherOrders(launcher)
    # Ready, but with another rank's checkpoints: not ready any more until it has looked again.
    again = launcher.state == READY and launcher.attempt == order[0] and launcher.asked is not None
    message = Stop(
        attempt=job.status.attempt,
        signal="TERM",
        grace=job.spec.failure.stop_grace_seconds,
        rank=rank,
        checkpoint_dir=directory,
    )
    new = change_launcher(launcher, asked=order)
    if again:
        return LauncherOrders(
            launcher_with_report(change_launcher(new, state=STOPPING, since=now), now), message, transition=True
        )
    return LauncherOrders(new, message)


def _tell_launcher_to_start(
    job: TrainingJob, member: Member, launcher: LauncherRecord, site: BarrierSite, now: float
) -> LauncherOrders:
    attempt = job.status.attempt
    if site.fault is None and not launcher.simulated:
        return LauncherOrders(launcher, check=True)
    if site.fault and not launcher.simulated:
        # Said in the child's place, so that the job fails with the reason and not with whatever the user's code makes of it.
        new = change_launcher(launcher, state=EXITED, attempt=attempt, since=now, started=attempt)
        words = f"CheckpointPathNotWritable: {site.fault}"
        return LauncherOrders(launcher_with_report(new, now, code=CANNOT_WRITE, message=words), transition=True)
    env = {**site.env_of(job, member, launcher.gpus), "REMUDA_CHECKPOINT_DIR": site.checkpoint_dir}
    return LauncherOrders(change_launcher(launcher, started=attempt), Start(attempt, env))


def _ask_launcher_for_checkpoint(job: TrainingJob, launcher: LauncherRecord, now: float) -> LauncherOrders:
    request = job.status.checkpoint_request
    if (
        request is None
        or request.attempt != job.status.attempt
        or request.answered_at is not None
        or request.id == launcher.checkpoint_asked
        or to_seconds(request.deadline) <= now
    ):
        return LauncherOrders(launcher)
    signal = job.spec.checkpoint.signal.removeprefix("SIG") or None
    message = Checkpoint(to_seconds(request.deadline), signal if signal in SIGNALS else None, request.step)
    return LauncherOrders(change_launcher(launcher, checkpoint_asked=request.id), message)


# --- who is who ---------------------------------------------------------------------------------------------------------

_ROSTERS = 64  # jobs whose member index is kept: agents of one process share it, so a change of a job is indexed once
_rosters: dict[tuple[str, str], tuple[list[Member], dict[str, Member]]] = {}


def launcher_registry_roster(job: TrainingJob) -> dict[str, Member]:
    """The job's members by pod uid. Kept per member list: objects are values, so the same list means the same members."""
    key = (job.namespace, job.name)
    kept = _rosters.get(key)
    if kept is not None and kept[0] is job.status.members:
        return kept[1]
    index = {member.uid: member for member in job.status.members if member.uid}
    _rosters.pop(key, None)
    while len(_rosters) >= _ROSTERS:
        del _rosters[next(iter(_rosters))]
    _rosters[key] = (job.status.members, index)
    return index


def checkpoint_dir_for_launchers(job: TrainingJob, root: str) -> str:
    """Where the job's checkpoints go: where its spec says, else a directory of its own below `root`.

    Its own by uid: a new job that takes the name of a deleted one must not resume from the other's weights.
    """
    return job.spec.checkpoint.directory or job_checkpoint_dir(root, job.namespace, job.name, job.uid)

"""The agent's side of the barrier: what to tell each launcher, given its job. Pure.

A job's status steers with two fields, `attempt` and `barrier_orders`. For a launcher in the job's member list:

    Closed, attempt behind the job's  -> stop{attempt, rank}: end what runs, say which checkpoints are usable
    Open, ready for exactly it        -> start{attempt, env}; a member of a held role is treated as if it were Closed
    Open, runs it, a request is open  -> checkpoint{deadline, step}, once per request
    anything else                     -> nothing: it runs, or it waits for the next attempt

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

from remuda.agent.launchers.launcher_state import GONE, NEVER_HEARD, Launcher, changed, may_have_child, shown
from remuda.agent.launchers.launcher_state import fence as fenced_launcher
from remuda.api.meta import to_seconds
from remuda.api.training import Member, TrainingJob
from remuda.launch.protocol import (
    EXITED,
    READY,
    RUNNING,
    SIGNALS,
    STOPPING,
    Checkpoint,
    Fence,
    Start,
    Stop,
    ToLauncher,
)

OPEN = "Open"
CANNOT_WRITE = 73  # EX_CANTCREAT of sysexits.h

EnvOf = Callable[[TrainingJob, Member, int], dict[str, str]]


class Site(msgspec.Struct, frozen=True):
    """What a plan needs to know of the node: where the job's checkpoints go, and whether that place can be written.

    `fault`: None = not looked yet, "" = fine, else why not. `may_start`: False while the node's lease is not good."""

    checkpoint_dir: str
    fault: str | None
    env_of: EnvOf
    may_start: bool = True


class Orders(msgspec.Struct, frozen=True):
    """What to do: the record after the messages are sent; `check` asks the shell to look at the checkpoint directory."""

    launcher: Launcher
    message: ToLauncher | None = None
    transition: bool = False
    check: bool = False


def plan(job: TrainingJob | None, launcher: Launcher, site: Site, now: float) -> Orders:
    """The next order for one launcher, if any."""
    if not launcher.connected or launcher.state in (NEVER_HEARD, GONE):
        return Orders(launcher)
    if launcher.attempt <= launcher.fenced and may_have_child(launcher):
        return Orders(fenced_launcher(launcher, now), Fence(), transition=True)  # it missed the fence
    if job is None or job.status.attempt <= 0 or job.is_finished:
        return Orders(launcher)
    member = roster(job).get(launcher.uid)
    if member is None:
        return _plan_other(job, launcher, now)
    return _plan_member(job, member, launcher, site, now)


def _plan_member(job: TrainingJob, member: Member, launcher: Launcher, site: Site, now: float) -> Orders:
    attempt = job.status.attempt
    is_ready = launcher.state == READY and launcher.attempt == attempt
    if job.status.barrier == OPEN and member.role not in job.status.held_roles:
        if is_ready and launcher.started < attempt and site.may_start:
            return _start(job, member, launcher, site, now)
        if launcher.state == RUNNING and launcher.attempt == attempt:
            return _ask_for_checkpoint(job, launcher, now)
    elif is_ready or launcher.attempt < attempt:
        # Ready already, after a reconnect: nobody knows for which rank, and asking again is free.
        return _stop(job, launcher, member.rank, site.checkpoint_dir, now)
    return Orders(launcher)


def _plan_other(job: TrainingJob, launcher: Launcher, now: float) -> Orders:
    if launcher.attempt < job.status.attempt and launcher.state in (READY, RUNNING, STOPPING):
        return _stop(job, launcher, None, None, now)
    return Orders(launcher)


def _stop(job: TrainingJob, launcher: Launcher, rank: int | None, directory: str | None, now: float) -> Orders:
    order = (job.status.attempt, rank, directory)
    if launcher.asked == order:
        return Orders(launcher)
    # Ready, but with another rank's checkpoints: not ready any more until it has looked again.
    again = launcher.state == READY and launcher.attempt == order[0] and launcher.asked is not None
    message = Stop(
        attempt=job.status.attempt,
        signal="TERM",
        grace=job.spec.failure.stop_grace_seconds,
        rank=rank,
        checkpoint_dir=directory,
    )
    new = changed(launcher, asked=order)
    if again:
        return Orders(shown(changed(new, state=STOPPING, since=now), now), message, transition=True)
    return Orders(new, message)


def _start(job: TrainingJob, member: Member, launcher: Launcher, site: Site, now: float) -> Orders:
    attempt = job.status.attempt
    if site.fault is None and not launcher.simulated:
        return Orders(launcher, check=True)
    if site.fault and not launcher.simulated:
        # Said in the child's place, so that the job fails with the reason and not with whatever the user's code makes of it.
        new = changed(launcher, state=EXITED, attempt=attempt, since=now, started=attempt)
        words = f"CheckpointPathNotWritable: {site.fault}"
        return Orders(shown(new, now, code=CANNOT_WRITE, message=words), transition=True)
    env = {**site.env_of(job, member, launcher.gpus), "REMUDA_CHECKPOINT_DIR": site.checkpoint_dir}
    return Orders(changed(launcher, started=attempt), Start(attempt, env))


def _ask_for_checkpoint(job: TrainingJob, launcher: Launcher, now: float) -> Orders:
    request = job.status.checkpoint_request
    if (
        request is None
        or request.attempt != job.status.attempt
        or request.answered_at is not None
        or request.id == launcher.checkpoint_asked
        or to_seconds(request.deadline) <= now
    ):
        return Orders(launcher)
    signal = job.spec.checkpoint.signal.removeprefix("SIG") or None
    message = Checkpoint(to_seconds(request.deadline), signal if signal in SIGNALS else None, request.step)
    return Orders(changed(launcher, checkpoint_asked=request.id), message)


# --- who is who ---------------------------------------------------------------------------------------------------------

_ROSTERS = 64  # jobs whose member index is kept: agents of one process share it, so a change of a job is indexed once
_rosters: dict[tuple[str, str], tuple[list[Member], dict[str, Member]]] = {}


def roster(job: TrainingJob) -> dict[str, Member]:
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


def checkpoint_dir(job: TrainingJob, root: str) -> str:
    """Where the job's checkpoints go: where its spec says, else a directory of its own below `root`.

    Its own by uid: a new job that takes the name of a deleted one must not resume from the other's weights.
    """
    return job.spec.checkpoint.path or f"{root}/{job.namespace}/{job.name}-{job.uid[:8]}"

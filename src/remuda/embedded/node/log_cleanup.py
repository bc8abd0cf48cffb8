"""Logs go with their owner. `plan_log_cleanup` decides which directories are kept (pure), `keep_logs_clean` does it.

    <root>/<namespace>/<owner>_<uid>/<pod>_<uid>/

- A pod without a gang owns its logs: they go when its object goes, as a kubelet removes them.
- A gang's logs belong to its job, which may outlive many pods: `remuda logs` shows earlier attempts, and those ran on pods that
  are gone. Of the pods that are gone, the KEPT_PODS written last are kept.
- Of jobs that are gone, the KEPT_JOBS written last are kept, for KEPT_S at most: somebody who deleted a job may still want to
  know why it failed. A job that has a successor of the same name is not kept.

Nothing is removed that is younger than YOUNG_S: a pod's directory is made a moment before the pod is seen everywhere. Nothing
is removed while the pods or jobs are not known; a look that fails removes nothing. No link is followed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

from remuda.link.rank_logs import rank_log_directory_name, rank_log_directory_uid

KEPT_PODS = 64
KEPT_JOBS = 10
KEPT_S = 24 * 3600.0
YOUNG_S = 30.0
LOOK_S = 10.0

log = structlog.get_logger(__name__)


class PodLogs(msgspec.Struct, frozen=True):
    """The directory of one pod's logs, and when anything in it was written last."""

    path: Path
    written: float


class OwnerLogs(msgspec.Struct, frozen=True):
    path: Path
    pods: Sequence[PodLogs]
    written: float  # when the directory itself was changed last, or anything below it


def plan_log_cleanup(
    found: Sequence[OwnerLogs], *, pods: frozenset[str], owners: frozenset[str], now: float
) -> list[Path]:
    """The directories to remove. `pods` and `owners`: uids of the pods and of the jobs that the API has."""
    doomed: list[Path] = []
    gone: list[OwnerLogs] = []
    for owner in found:
        uid = rank_log_directory_uid(owner.path)
        if any(rank_log_directory_uid(pod.path) in pods for pod in owner.pods) or uid in owners or uid in pods:
            dead = [p for p in owner.pods if rank_log_directory_uid(p.path) not in pods and _is_old(p.written, now)]
            doomed += [p.path for p in sorted(dead, key=lambda p: p.written, reverse=True)[KEPT_PODS:]]
        elif _is_old(owner.written, now):
            gone.append(owner)
    names = {(o.path.parent, rank_log_directory_name(o.path)) for o in found if o not in gone}
    kept = 0
    for owner in sorted(gone, key=lambda o: o.written, reverse=True):
        name = (owner.path.parent, rank_log_directory_name(owner.path))
        is_own_pod = all(rank_log_directory_uid(pod.path) == rank_log_directory_uid(owner.path) for pod in owner.pods)
        if is_own_pod or name in names or kept >= KEPT_JOBS or now - owner.written > KEPT_S:
            doomed.append(owner.path)
        else:
            kept += 1
            names.add(name)
    return doomed


def _is_old(written: float, now: float) -> bool:
    return now - written > YOUNG_S


def look_for_logs_to_clean(root: Path) -> list[OwnerLogs]:
    found: list[OwnerLogs] = []
    for namespace in _directories(root):
        for owner in _directories(namespace):
            pods = [PodLogs(pod, _written(pod)) for pod in _directories(owner)]
            found.append(OwnerLogs(owner, pods, max([owner.lstat().st_mtime, *(p.written for p in pods)])))
    return found


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _written(directory: Path) -> float:
    with os.scandir(directory) as entries:
        return max([directory.lstat().st_mtime, *(e.stat(follow_symlinks=False).st_mtime for e in entries)])


async def keep_logs_clean(
    root: Path, known: Callable[[], tuple[Iterable[str], Iterable[str]] | None], clock: Callable[[], float]
) -> None:
    """Until cancelled. `known`: the uids of all pods and of all jobs; None while they are not known."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await clean_logs_once(root, known, clock)
        except OSError as error:
            log.warning("logs.not_cleaned", error=str(error))


async def clean_logs_once(
    root: Path, known: Callable[[], tuple[Iterable[str], Iterable[str]] | None], clock: Callable[[], float]
) -> None:
    found = await asyncio.to_thread(look_for_logs_to_clean, root)
    now_known = known()  # after the look: what was made meanwhile is not in it, and what is gone stays gone
    if now_known is None:
        return
    pods, owners = (frozenset(uids) for uids in now_known)
    for path in plan_log_cleanup(found, pods=pods, owners=owners, now=clock()):
        await asyncio.to_thread(_remove_log_directory, path)


def _remove_log_directory(path: Path) -> None:
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
            log.info("logs.removed", path=str(path))
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("logs.not_removed", path=str(path), error=str(error))

"""Removes what nobody can want any more: checkpoints and copies of jobs that are gone, and copies that another node has instead.

*Gone* is what the API says when asked for that very job, and nothing else: an informer that shows less, an API that cannot be
read, or does not serve TrainingJobs, is no answer. It must say so for `ttl_s`. What counts is the time between two looks of one
agent, by a clock that nobody sets, and no more than a look may take: a clock that jumps ahead ends no grace, nor does an agent
that stood still. It is noted in a file, so that restarts do not count anew.

A copy is another's once the job's status names another node for the rank. It stays a while longer: the rank may be just about to
fetch it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from remuda.agent.copies.copy_ports import JobKey
from remuda.agent.copies.copy_service import CopyService
from remuda.agent.copies.copy_store import remove_copy_files
from remuda.api.errors import ApiError, NotFound
from remuda.api.names import GROUP
from remuda.api.training import TrainingJob
from remuda.core.gang.checkpoint_dirs import job_directory
from remuda.core.training.checkpoint_copies import copies_of_rank
from remuda.kube.cluster import Cluster
from remuda.link.untrusted_files import remove_untrusted_trees

log = structlog.get_logger(__name__)

LOOK_S = 600.0
TTL_S = 86_400.0
RELEASE_S = 900.0
MOST_A_LOOK_S = 2 * LOOK_S  # that counts, however long ago the last one was


class CopyCleanup:
    """`wall`: as the dates of files are. `monotonic`: nobody sets it."""

    def __init__(
        self,
        service: CopyService,
        cluster: Cluster,
        ttl_s: float,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._service = service
        self._files = service.files
        self._store = service.store
        self._cluster = cluster
        self._ttl_s = ttl_s
        self._wall = wall
        self._monotonic = monotonic
        self._gone: dict[str, tuple[float, float]] = {}  # by directory: for how long, and when that was last said

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except OSError as error:
                log.warning("copies.not_cleaned", error=str(error))

    async def look(self) -> None:
        await self._files.run(self._files.drop_old_partials, self._wall() - self._ttl_s)
        for directory in sorted(await self._files.run(self._directories)):
            namespace, _, rest = directory.partition("/")
            name, _, uid8 = rest.rpartition("-")
            if not name or len(uid8) != 8:
                continue  # nobody's of ours
            job: TrainingJob | None = None
            try:
                job = await self._cluster.get(TrainingJob, name, namespace)
            except NotFound as error:
                if not error.is_about_object("trainingjobs", GROUP, name):
                    continue  # the kind is not served, or somebody else answered
            except (ApiError, OSError, TimeoutError):
                continue  # nobody knows
            if job is not None and job_directory(job.namespace, job.name, job.uid) == directory:
                await self._files.run(self._forget_gone, directory)
                await self._release(job, directory)
            elif await self._files.run(self._is_gone_for_long, directory):
                await self._remove(directory)

    def _directories(self) -> set[str]:
        found = {directory for directory, _ in self._store.ranks()}
        for root in (self._files.root, self._store.root):
            for namespace in root.iterdir():
                if not namespace.name.startswith(".") and namespace.is_dir() and not namespace.is_symlink():
                    found.update(f"{namespace.name}/{entry.name}" for entry in namespace.iterdir())
        return found

    # --- gone -----------------------------------------------------------------------------------------------------------

    def _note(self, directory: str) -> Path:
        return self._files.own / "gone" / directory.replace("/", "~")

    def _forget_gone(self, directory: str) -> None:
        self._gone.pop(directory, None)
        self._note(directory).unlink(missing_ok=True)

    def _is_gone_for_long(self, directory: str) -> bool:
        note, now = self._note(directory), self._monotonic()
        before, said_at = self._gone.get(directory) or (_noted_s(note), now)
        gone_s = before + min(MOST_A_LOOK_S, now - said_at)
        self._gone[directory] = (gone_s, now)
        try:
            note.parent.mkdir(mode=0o700, exist_ok=True)
            note.write_text(f"{gone_s:.3f}", encoding="ascii")
        except OSError as error:  # a full disk is what this may help against
            log.warning("copies.gone_not_noted", job=directory, error=str(error))
        return gone_s >= self._ttl_s

    async def _remove(self, directory: str) -> None:
        log.info("copies.removed", job=directory)
        for known, rank in self._store.ranks():
            if known == directory:
                self._store.forget(known, rank, list(self._store.marks_in(known, rank)))
        await self._files.run(self._remove_files, directory)

    def _remove_files(self, directory: str) -> None:
        shutil.rmtree(self._store.root / directory, ignore_errors=True)
        trash = self._files.own / "trash"
        trash.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._files.root / directory, trash / os.urandom(8).hex())
        remove_untrusted_trees(trash)
        for name in ("homes", "held"):
            shutil.rmtree(self._files.own / name / directory.replace("/", "~"), ignore_errors=True)
        self._forget_gone(directory)

    # --- another's ------------------------------------------------------------------------------------------------------

    async def _release(self, job: TrainingJob, directory: str) -> None:
        key = JobKey(job.namespace, job.name, job.uid)
        for known, rank in self._store.ranks():
            entry = copies_of_rank(job.status, rank) if known == directory else None
            if entry is None or entry.copy == self._service.node:
                continue
            marks = self._store.marks(key, rank)
            ages = [await self._files.run(self._age, directory, rank, step) for step in marks]
            if min(ages, default=0.0) >= RELEASE_S:
                await self._files.run(remove_copy_files, self._store.forget(directory, rank, marks))

    def _age(self, directory: str, rank: int, step: int) -> float:
        try:
            mark = self._store.path(directory, rank, step).with_suffix(".json")
            return self._wall() - mark.stat().st_mtime
        except FileNotFoundError:
            return RELEASE_S


def _noted_s(note: Path) -> float:
    """0 when nothing is noted, or nothing that can be read: then it begins anew."""
    try:
        seconds = float(note.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return 0.0
    return seconds if 0.0 <= seconds < math.inf else 0.0

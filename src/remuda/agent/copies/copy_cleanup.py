"""Removes what nobody can want any more: checkpoints and copies of jobs that are gone, and copies that another node has instead.

*Gone* is what the API says when asked for that very job, and nothing else: an informer that shows less, or an API that cannot be
read, is no answer. It must say so for `ttl_s`; the first time is noted in a file, so that restarts do not count anew.

A copy is another's once the job's status names another node for the rank. It stays a while longer: the rank may be just about to
fetch it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import structlog

from remuda.agent.copies.copy_ports import JobKey
from remuda.agent.copies.copy_service import CopyService
from remuda.agent.copies.copy_store import remove_copy_files
from remuda.api.errors import ApiError, NotFound
from remuda.api.training import TrainingJob
from remuda.core.gang.checkpoint_dirs import job_directory
from remuda.core.training.checkpoint_copies import copies_of_rank
from remuda.kube.cluster import Cluster
from remuda.link.untrusted_files import remove_untrusted_trees

log = structlog.get_logger(__name__)

LOOK_S = 600.0
TTL_S = 86_400.0
RELEASE_S = 900.0


class CopyCleanup:
    def __init__(self, service: CopyService, cluster: Cluster, ttl_s: float, clock: Callable[[], float]) -> None:
        self._service = service
        self._files = service.files
        self._store = service.store
        self._cluster = cluster
        self._ttl_s = ttl_s
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except OSError as error:
                log.warning("copies.not_cleaned", error=str(error))

    async def look(self) -> None:
        await self._files.run(self._files.drop_old_partials, self._clock() - self._ttl_s)
        for directory in sorted(await self._files.run(self._directories)):
            namespace, _, rest = directory.partition("/")
            name, _, uid8 = rest.rpartition("-")
            if not name or len(uid8) != 8:
                continue  # nobody's of ours
            job: TrainingJob | None = None
            try:
                job = await self._cluster.get(TrainingJob, name, namespace)
            except NotFound:
                pass
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
        self._note(directory).unlink(missing_ok=True)

    def _is_gone_for_long(self, directory: str) -> bool:
        note, now = self._note(directory), self._clock()
        note.parent.mkdir(mode=0o700, exist_ok=True)
        if not note.exists():
            note.touch(mode=0o600)
            os.utime(note, (now, now))
        return now - note.stat().st_mtime >= self._ttl_s

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
        self._note(directory).unlink(missing_ok=True)

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
            return self._clock() - mark.stat().st_mtime
        except FileNotFoundError:
            return RELEASE_S

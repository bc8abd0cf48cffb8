"""The holder's side of copies: takes them, lists them, gives them out (`link.copy_wire`).

*Who may.* The certificate says which node asks. A node brings, lists and gets copies of a rank only while it hosts that rank:
while the job's status, as this agent sees it in the API, has the rank on that node. So a node whose key is stolen gets what the
manager places on it, and nothing else. A holder that has not heard of the placement yet refuses; the asker comes again.

Names and paths come from the job as the API has it, never from the asker. Connections, their time and their bytes are bounded
apart from the door's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import structlog

from remuda.agent.copies.byte_pace import BytePace
from remuda.agent.copies.copy_ports import CopyRefused, JobKey
from remuda.agent.copies.copy_store import CopyStore, IncomingCopy, remove_copy_files
from remuda.agent.copies.job_files import JobCheckpointFiles
from remuda.api.training import TrainingJob
from remuda.core.training.checkpoint_copies import copies_to_drop, is_in_history, is_rank_hosted_by
from remuda.link.copy_wire import (
    CHUNK,
    GO,
    AskGet,
    AskList,
    AskPut,
    CopyMark,
    Say,
    SayGo,
    SayHas,
    SayKept,
    SayRefused,
    SaySends,
    copy_wire_line,
    read_copy_ask,
    read_copy_line,
    read_copy_wire_chunk,
    widen_copy_wire_streams,
)

log = structlog.get_logger(__name__)

MAX_OPEN, MAX_OPEN_FROM_ONE = 32, 6
ASK_S = 10.0  # for the question
STALL_S = 30.0  # for the next bytes
LEAST_BYTES_S = 1 << 20  # slower than that a connection may not be for long
SETTLE_S = 60.0  # beside the bytes: flushing a large file takes its time

FindJob = Callable[[str, str], TrainingJob | None]  # namespace, name


class CopyService:
    """`find_job`: as this agent sees the API."""

    def __init__(
        self,
        node: str,
        files: JobCheckpointFiles,
        store: CopyStore,
        find_job: FindJob,
        pace_in: BytePace,
        pace_out: BytePace,
    ) -> None:
        self.node = node
        self.files = files
        self.store = store
        self._find_job = find_job
        self._pace_in = pace_in
        self._pace_out = pace_out
        self._open: Counter[str] = Counter()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_open = True

    def stop(self) -> None:
        self._is_open = False
        for writer in self._writers:
            writer.transport.abort()

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: str) -> None:
        """One connection, from the word `copies` on. A `Talk` of the door."""
        if not self._is_open or not asker or self._open.total() >= MAX_OPEN or self._open[asker] >= MAX_OPEN_FROM_ONE:
            return
        self._open[asker] += 1
        reader, writer = await widen_copy_wire_streams(reader, writer)
        self._writers.add(writer)
        try:
            async with asyncio.timeout(ASK_S):
                writer.write(GO)
                ask = read_copy_ask(await read_copy_line(reader))
            size = ask.mark.size if isinstance(ask, AskPut | AskGet) else 0
            async with asyncio.timeout(SETTLE_S + size / LEAST_BYTES_S):
                try:
                    await self._answer(reader, writer, asker, ask)
                except CopyRefused as refused:
                    log.info("copies.refused", asker=asker, reason=refused.reason, job=ask.job, rank=ask.rank)
                    await _say(writer, SayRefused(refused.reason, refused.message))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            log.info("copies.talk_ended", asker=asker, error=str(error) or type(error).__name__)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._open[asker] -= 1
            if not self._open[asker]:
                del self._open[asker]

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: str, ask: AskPut | AskList | AskGet
    ) -> None:
        job = self._find_job(ask.namespace, ask.job)
        if job is None or not is_rank_hosted_by(job, ask.uid, ask.rank, asker):
            raise CopyRefused(
                "NotAMember", f"Rank {ask.rank} of that job is not on {asker}, as far as {self.node} knows."
            )
        key = JobKey(job.namespace, job.name, job.uid)
        if isinstance(ask, AskPut):
            if ask.mark.attempt > job.status.attempt:
                raise CopyRefused("NotAMember", f"There is no attempt {ask.mark.attempt} yet.")
            await self._take(reader, writer, key, ask, job)
        elif isinstance(ask, AskList):
            marks, home = await self.has(key, ask.rank)
            await _say(writer, SayHas(tuple(marks), home))
        else:
            await self._give(writer, key, ask)

    # --- put ------------------------------------------------------------------------------------------------------------

    async def _take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: JobKey, ask: AskPut, job: TrainingJob
    ) -> None:
        mark = ask.mark
        known = self.store.marks(key, ask.rank).get(mark.step)
        if known is not None and (known.size, known.sha256) == (mark.size, mark.sha256):
            if known.attempt < mark.attempt:
                await self.files.run(self.store.write_mark, key, ask.rank, mark)
                self.store.keep(key, ask.rank, mark)
        else:
            await self._receive(reader, writer, key, ask.rank, mark)
        gang = [kept.step for kept in job.status.progress.kept]
        marks = self.store.marks(key, ask.rank)
        dropped = [step for step, m in marks.items() if not is_in_history(job.status, step, m.attempt)]
        dropped += copies_to_drop(marks.keys() - set(dropped), gang)
        await self.files.run(remove_copy_files, self.store.forget(key.directory, ask.rank, dropped))
        kept = self.store.marks(key, ask.rank).values()
        await _say(writer, SayKept(tuple((m.step, m.attempt) for m in kept)))

    async def _receive(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: JobKey, rank: int, mark: CopyMark
    ) -> None:
        self.store.promise_room(mark)
        coming: IncomingCopy | None = None
        try:
            try:
                coming = await self.files.run(self.store.incoming, mark)
                await _say(writer, SayGo())
                await self._receive_bytes(reader, coming, mark.size)
                await self.files.run(self.store.commit, key, rank, coming)
            except OSError as error:
                if isinstance(error, ConnectionError | TimeoutError):
                    raise
                raise CopyRefused("NoSpaceForCopies", f"It could not be written: {error.strerror or error}.") from None
            self.store.keep(key, rank, mark)
        finally:
            self.store.give_back_room(mark)
            if coming is not None:
                await self.files.run(coming.close)

    async def _receive_bytes(self, reader: asyncio.StreamReader, coming: IncomingCopy, size: int) -> None:
        while size > 0:
            chunk = await read_copy_wire_chunk(reader, size, STALL_S)
            await self.files.run(coming.write, chunk)
            size -= len(chunk)
            await self._pace_in.take(len(chunk))

    # --- list and get ---------------------------------------------------------------------------------------------------

    async def has(self, key: JobKey, rank: int) -> tuple[list[CopyMark], int]:
        """Copies of the rank, and what is in the job's own directory when it ran here; the newer of two. And in which attempt
        that was."""
        marks = self.store.marks(key, rank)
        home = await self.files.home(key, rank)
        if home:
            for step in await self.files.settle(key, rank, None, frozenset()):
                mark = await self.files.run(self.files.read_mark, key, rank, step)
                if mark is not None and (step not in marks or marks[step].attempt < home):
                    marks[step] = CopyMark(step, mark.size, mark.sha256, home)
        for step, mark in (await self.files.run(self.files.held_marks, key, rank)).items():
            if step not in marks or marks[step].attempt < mark.attempt:
                marks[step] = mark
        return list(marks.values()), home

    async def _give(self, writer: asyncio.StreamWriter, key: JobKey, ask: AskGet) -> None:
        async with self.opened(key, ask.rank, ask.mark) as fd:
            await _say(writer, SaySends())
            await send_bytes(self.files, writer, fd, ask.offset, ask.mark.size, self._pace_out)

    @contextlib.asynccontextmanager
    async def opened(self, key: JobKey, rank: int, mark: CopyMark) -> AsyncIterator[int]:
        """A descriptor of that very checkpoint, from the copies or from the job's directory. CopyRefused NoSuchCopy."""
        known = self.store.marks(key, rank).get(mark.step)
        source = self._source(key, rank, mark, is_copy=known is not None and known.sha256 == mark.sha256)
        try:
            fd = await self.files.run(source.__enter__)
        except (FileNotFoundError, NotADirectoryError):
            raise CopyRefused("NoSuchCopy", f"There is no copy of step {mark.step} here.") from None
        except OSError as error:
            raise CopyRefused(
                "NoSuchCopy", f"Step {mark.step} cannot be read here: {error.strerror or error}."
            ) from None
        try:
            yield fd
        finally:
            source.__exit__(None, None, None)

    @contextlib.contextmanager
    def _source(self, key: JobKey, rank: int, mark: CopyMark, *, is_copy: bool) -> Iterator[int]:
        """In a thread. OSError when it is not there, or not that checkpoint."""
        if is_copy:
            fd = os.open(self.store.path(key.directory, rank, mark.step), os.O_RDONLY | os.O_CLOEXEC)
        elif (held := self.files.open_held(key, rank, mark)) is not None:
            fd = held
        else:
            with self.files.open_checkpoint(key, rank, mark) as fd:
                yield fd
            return
        try:
            yield fd
        finally:
            os.close(fd)


async def send_bytes(
    files: JobCheckpointFiles, writer: asyncio.StreamWriter, fd: int, offset: int, size: int, pace: BytePace
) -> None:
    """Exactly from `offset` to `size`. EOFError when the file ends before that; what it has beyond that is not read."""
    while offset < size:
        chunk = await files.run(os.pread, fd, min(CHUNK, size - offset), offset)
        if not chunk:
            raise EOFError("the file became shorter while it was read")
        offset += len(chunk)
        await pace.take(len(chunk))
        async with asyncio.timeout(STALL_S):
            await writer.drain()  # of the chunk before: it goes out while this one was read
        writer.write(chunk)
    async with asyncio.timeout(STALL_S):
        await writer.drain()


async def _say(writer: asyncio.StreamWriter, message: Say) -> None:
    writer.write(copy_wire_line(message))
    await writer.drain()

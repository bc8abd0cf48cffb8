"""The asker's side of copies: brings this node's checkpoints to others and fetches them from there (`link.copy_wire`).

Where a node listens is known from the manager's list of peers, for those that are given copies; whoever is asked for some is
looked up in the API, which happens when a rank moves and never for a checkpoint. Who answers must prove to be the node that was
meant. What comes is checked against the digest that was said before it counts, and goes on where it broke off.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from remuda.agent.copies.byte_pace import BytePace
from remuda.agent.copies.copy_ports import CopyList, CopyNodeGone, CopyRefused, CopySourceGone, JobKey
from remuda.agent.copies.copy_service import STALL_S, CopyService, send_bytes
from remuda.agent.copies.copy_store import write_and_hash
from remuda.agent.copies.job_files import hash_file_so_far
from remuda.api.devices import NodeDevices
from remuda.api.errors import ApiError, NotFound
from remuda.core.health.peer_vouching import PeerPlace
from remuda.kube.cluster import Cluster
from remuda.link.copy_wire import (
    CHUNK,
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
    dial_copy_wire,
    read_copy_line,
    read_copy_wire_chunk,
    read_copy_wire_say,
)

log = structlog.get_logger(__name__)

DIAL_S = 10.0
ANSWER_S = 30.0
KEPT_S = 120.0  # for the other side to have a large file on its disk


class CopyDialler:
    """Implements `CopyTransport`. `tls`: None while there is no certificate. `places`: peers by node."""

    def __init__(
        self,
        service: CopyService,
        cluster: Cluster,
        tls: Callable[[], ssl.SSLContext | None],
        places: Callable[[], dict[str, PeerPlace]],
        pace_out: BytePace,
    ) -> None:
        self._service = service
        self._files = service.files
        self._cluster = cluster
        self._tls = tls
        self._places = places
        self._pace_out = pace_out

    # --- put ------------------------------------------------------------------------------------------------------------

    async def put(self, node: str, key: JobKey, rank: int, step: int, attempt: int) -> dict[int, int]:
        try:
            mark = await self._files.run(self._files.read_mark, key, rank, step)
            if mark is None:
                raise CopySourceGone
            mark = msgspec.structs.replace(mark, attempt=attempt)
            source = self._files.open_checkpoint(key, rank, mark)
            fd = await self._files.run(source.__enter__)
        except OSError as error:
            raise CopySourceGone from error  # what cannot be read is not copied, and does not count as safe
        try:
            if mark.size > self._service.store.limits.largest:
                raise CopyRefused("CopyTooLarge", "It is larger than this node copies.")
            place = self._places().get(node)
            if place is None:
                raise ConnectionError(f"nobody knows where {node} listens")
            reader, writer = await self._dial(node, place.host, place.port)
            try:
                try:
                    await self._files.run(self._files.hold, key, rank, mark, fd)
                except OSError as error:
                    log.info("copies.not_held", job=key.directory, rank=rank, step=step, error=str(error))
                return await self._put(reader, writer, AskPut(key.namespace, key.name, key.uid, rank, mark), fd)
            finally:
                writer.transport.abort()
        finally:
            source.__exit__(None, None, None)

    async def _put(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: AskPut, fd: int
    ) -> dict[int, int]:
        writer.write(copy_wire_line(ask))
        said = await _heard(reader, ANSWER_S)
        if isinstance(said, SayGo):
            try:
                await send_bytes(self._files, writer, fd, 0, ask.mark.size, self._pace_out)
            except EOFError:
                raise CopySourceGone from None
            try:
                said = await _heard(reader, KEPT_S)
            except CopyRefused as refused:
                if refused.reason == "CopyCorrupt":
                    raise CopySourceGone from None  # by its own side file; it is no better elsewhere
                raise
        if not isinstance(said, SayKept) or (ask.mark.step, ask.mark.attempt) not in said.steps:
            raise ConnectionError("that was no answer")
        return dict(said.steps)

    # --- list and get ---------------------------------------------------------------------------------------------------

    async def ask(self, node: str, key: JobKey, rank: int) -> CopyList:
        if node == self._service.node:
            marks, home = await self._service.has(key, rank)
            return CopyList(tuple(marks), home)
        reader, writer = await self._dial(node, *await self._door_of(node))
        try:
            writer.write(copy_wire_line(AskList(key.namespace, key.name, key.uid, rank)))
            said = await _heard(reader, ANSWER_S)
        finally:
            writer.transport.abort()
        if not isinstance(said, SayHas):
            raise ConnectionError("that was no answer")
        return CopyList(said.marks, said.home)

    async def fetch(self, node: str, key: JobKey, rank: int, mark: CopyMark, said: Callable[[int], None]) -> None:
        if mark.size > self._service.store.limits.largest:
            raise CopyRefused("CopyTooLarge", "It is larger than this node copies.")
        fd = await self._files.run(self._files.open_partial, key, rank, mark)
        try:
            await self._fill(fd, node, key, rank, mark, said)
            await self._files.run(self._files.place, key, rank, mark)
        finally:
            os.close(fd)

    async def _fill(
        self, fd: int, node: str, key: JobKey, rank: int, mark: CopyMark, said: Callable[[int], None]
    ) -> None:
        """CopyRefused CopyCorrupt when that is not what comes; then nothing of it is left."""
        offset, digest = await self._files.run(hash_file_so_far, fd)
        write = partial(write_and_hash, fd, digest)
        if node == self._service.node:
            await self._copy_own(key, rank, mark, offset, write)
        elif offset < mark.size:
            await self._get(node, key, rank, mark, offset, write, said)
        await self._files.run(os.fsync, fd)
        if offset > mark.size or digest.hexdigest() != mark.sha256:
            await self._files.run(os.unlink, self._files.partial(key, rank, mark))
            raise CopyRefused("CopyCorrupt", "What came is not what was said.")

    async def _copy_own(
        self, key: JobKey, rank: int, mark: CopyMark, offset: int, write: Callable[[bytes], None]
    ) -> None:
        async with self._service.opened(key, rank, mark) as source:
            while offset < mark.size:
                chunk = await self._files.run(os.pread, source, min(CHUNK, mark.size - offset), offset)
                if not chunk:
                    raise ConnectionError("it ended too soon")
                await self._files.run(write, chunk)
                offset += len(chunk)

    async def _get(
        self,
        node: str,
        key: JobKey,
        rank: int,
        mark: CopyMark,
        offset: int,
        write: Callable[[bytes], None],
        said: Callable[[int], None],
    ) -> None:
        reader, writer = await self._dial(node, *await self._door_of(node))
        try:
            writer.write(copy_wire_line(AskGet(key.namespace, key.name, key.uid, rank, mark, offset)))
            answer = await _heard(reader, ANSWER_S)
            if not isinstance(answer, SaySends):
                raise ConnectionError("that was no answer")
            while offset < mark.size:
                chunk = await read_copy_wire_chunk(reader, mark.size - offset, STALL_S)
                await self._files.run(write, chunk)
                offset += len(chunk)
                said(offset)
        finally:
            writer.transport.abort()

    # --- where ----------------------------------------------------------------------------------------------------------

    async def _dial(self, node: str, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = self._tls()
        if tls is None:
            raise ConnectionError("there is no certificate for peers yet")
        return await dial_copy_wire(node, host, port, tls, DIAL_S)

    async def _door_of(self, node: str) -> tuple[str, int]:
        try:
            found = await self._cluster.get(NodeDevices, node)
        except NotFound:
            raise CopyNodeGone(node) from None
        except ApiError as error:
            raise ConnectionError(f"the API does not say where {node} listens: {error}") from error
        host, _, port = found.observed.door.rpartition(":")
        if not host or not port.isdecimal() or len(port) > 5:
            raise ConnectionError(f"{node} does not say where it listens")
        return host.strip("[]"), int(port)


async def _heard(reader: asyncio.StreamReader, within_s: float) -> Say:
    """CopyRefused when that is the answer."""
    async with asyncio.timeout(within_s):
        line = await read_copy_line(reader)
    try:
        said = read_copy_wire_say(line)
    except ValueError as error:
        raise ConnectionError("that was no answer") from error
    if isinstance(said, SayRefused):
        raise CopyRefused(said.reason[:64], said.message[:256])
    return said

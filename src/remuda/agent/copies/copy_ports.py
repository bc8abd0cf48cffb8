"""What the care for a rank's checkpoints needs: files of this node, and a way to other nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from remuda.core.gang.checkpoint_dirs import job_directory
from remuda.link.copy_wire import CopyMark


class JobKey(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str

    @property
    def directory(self) -> str:
        """Below the root of checkpoints, and of copies."""
        return job_directory(self.namespace, self.name, self.uid)


class CopyList(msgspec.Struct, frozen=True):
    """What a node has of one rank. `home`: the newest attempt in which the rank ran there; 0 = it never did."""

    marks: tuple[CopyMark, ...] = ()
    home: int = 0


class CopyRefused(Exception):
    """The other node answers, and will not. A stable reason and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class CopySourceGone(Exception):
    """There is no such checkpoint here, any more or at all: nothing to copy."""


class CopyNodeGone(Exception):
    """The cluster does not have that node any more: nobody is there to be asked."""


class CheckpointFiles(Protocol):
    """The job's own directory on this node. OSError: it cannot be read, which says nothing about what is there."""

    async def home(self, key: JobKey, rank: int) -> int:
        """The newest attempt in which the rank was started here; 0 = never, as far as is known."""
        ...

    async def note_home(self, key: JobKey, rank: int, attempt: int) -> None: ...

    async def drop_held(self, key: JobKey, rank: int, but: frozenset[int]) -> None:
        """Of the checkpoints that `put` holds on to, however soon the program removes them, those of other steps go."""
        ...

    async def settle(self, key: JobKey, rank: int, newest: int | None, but: frozenset[int]) -> tuple[int, ...]:
        """The steps that are whole here, newest first. Those above `newest`, except `but`, are of a history that was given up,
        and are marked so."""
        ...


class CopyTransport(Protocol):
    """OSError and TimeoutError: the other node was not reached, or not to the end."""

    async def put(self, node: str, key: JobKey, rank: int, step: int, attempt: int) -> dict[int, int]:
        """The steps that the node has of this rank now, this one among them, on its disk; each with its attempt. This node
        holds on to the step, too. CopySourceGone, CopyRefused."""
        ...

    async def ask(self, node: str, key: JobKey, rank: int) -> CopyList:
        """CopyNodeGone, CopyRefused."""
        ...

    async def fetch(self, node: str, key: JobKey, rank: int, mark: CopyMark, said: Callable[[int], None]) -> None:
        """Brings it into the job's directory here, whole or not at all. `said`: hears how many bytes have come. CopyRefused."""
        ...

"""The API as one controller has it: writes are written down, and a scenario refuses, overtakes, loses or delays what passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from remuda.api.errors import ApiError, Unavailable
from remuda.api.meta import KObject
from remuda.kube.cluster import Cluster, WatchEvent
from tests.builders.happenings import Happening
from tests.builders.taps import RelayedCluster

if TYPE_CHECKING:
    from tests.builders.controller_tables import ControllerStage

K = TypeVar("K", bound=KObject)
T = TypeVar("T")

HEARD_S = 0.01  # from somebody's write to the informer's word of it


def refuse_next(write: str, error: ApiError | None = None, times: int = 1) -> Happening:
    """The API answers the next such write (its beginning, as in the log) with an error. Reads: "list Node", "get Node/n1"."""

    async def happen(stage: ControllerStage) -> None:
        stage.api.refused += [(write, error or Unavailable("try later"))] * times

    return happen


def before_next(write: str, *happenings: Happening) -> Happening:
    """Somebody is faster: this happens just before the controller's next such write arrives."""

    async def happen(stage: ControllerStage) -> None:
        stage.api.meddled.append((write, happenings))

    return happen


def lose_answer(write: str, error: Exception | None = None) -> Happening:
    """The next such write is done, and its answer is lost: the writer gets the error instead."""

    async def happen(stage: ControllerStage) -> None:
        stage.api.unanswered.append((write, error or Unavailable("the connection broke")))

    return happen


def late(kind: type[KObject], seconds: float) -> Happening:
    """From now on the informer hears of each change of that kind so much later."""

    async def happen(stage: ControllerStage) -> None:
        stage.api.late[kind] = seconds

    return happen


class TappedCluster(RelayedCluster):
    """The `Cluster` port of the controller: every write is written down, and may be refused, overtaken or left unanswered."""

    def __init__(self, stage: ControllerStage, inner: Cluster) -> None:
        super().__init__(inner)
        self._stage = stage
        self.log: list[str] = []
        self.refused: list[tuple[str, ApiError]] = []
        self.meddled: list[tuple[str, Sequence[Happening]]] = []
        self.unanswered: list[tuple[str, Exception]] = []
        self.late: dict[type[KObject], float] = {}

    async def _write(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for entry in [e for e in self.meddled if what.startswith(e[0])][:1]:
            self.meddled.remove(entry)
            for happening in entry[1]:
                await happening(self._stage)
            await asyncio.sleep(HEARD_S)
        try:
            self._read(what)
            answer = await work()
        except ApiError as error:
            self.log.append(f"{what} !{error.reason}")
            raise
        self.log.append(what)
        for lost in [e for e in self.unanswered if what.startswith(e[0])][:1]:
            self.unanswered.remove(lost)
            raise lost[1]
        return answer

    def _read(self, what: str) -> None:
        """Raises what the next such call is refused with, a write or a read; reads are not written down."""
        for refusal in [e for e in self.refused if what.startswith(e[0])][:1]:
            self.refused.remove(refusal)
            raise refusal[1]

    async def _deliver(self, kind: type[K], stream: AsyncIterator[WatchEvent[K]]) -> AsyncIterator[WatchEvent[K]]:
        async for event in stream:
            if late_s := self.late.get(kind):
                await asyncio.sleep(late_s)
            yield event

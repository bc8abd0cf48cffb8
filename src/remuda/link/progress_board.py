"""The fast path of progress: heartbeats of launchers, reduced to the newest per pod.

Heartbeats never go through the API (transitions do). Losing the board costs numbers in a status, never a recovery: what
recovery needs (who is ready, which checkpoints are usable) is in NodeDevices. A new manager is told it again by those who have
it (`PodPast`), so that a rank which was about to be called slow, or hung, does not get its time anew.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from remuda.core.health.step_samples import WINDOW, StepSample
from remuda.link.step_window import StepSampleBoard

MAX_PODS = 64  # an agent remembers the steps of


class Heartbeat(msgspec.Struct, frozen=True):
    namespace: str
    gang: str
    pod: str
    uid: str
    attempt: int
    step: int
    step_seconds: float | None = None
    self_seconds: float | None = None
    checkpoint: int | None = None
    checkpoint_seconds: float | None = None
    time: float = 0.0
    total_steps: int | None = None
    kept: int | None = None
    safe: tuple[int, ...] | None = None  # the newest checkpoints that outlive the node; None = all that are kept do


class PodProgress(msgspec.Struct, frozen=True):
    """Newest heartbeat of a pod and what must not be forgotten between two looks."""

    last: Heartbeat
    first_step_time: float  # of the attempt the last heartbeat belongs to
    checkpoint: int | None = None  # newest checkpoint reported
    checkpoint_time: float = 0.0
    checkpoint_seconds: float = 0.0  # the longest one took
    kept: int | None = None  # newest of this attempt that the launcher saw where it looks for it at a restart


class PodPast(msgspec.Struct, frozen=True):
    """What is remembered of one pod: its newest heartbeat, and the newest steps of that attempt, oldest first."""

    beat: Heartbeat
    steps: list[StepSample] = []


class ProgressBoard:
    """Newest progress per gang and pod, in memory. Listeners hear of each gang at most as often as heartbeats come."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[str, str], dict[str, PodProgress]] = {}
        self._listeners: list[Callable[[str, str, bool], None]] = []
        self.samples = StepSampleBoard()  # the newest steps of each pod, for who looks at more than the last one

    def subscribe(self, listener: Callable[[str, str, bool], None]) -> None:
        """`listener(namespace, gang, notable)`; notable = first step of an attempt, or a new checkpoint."""
        self._listeners.append(listener)

    def report(self, beat: Heartbeat) -> None:
        pods = self._gangs.setdefault((beat.namespace, beat.gang), {})
        old = pods.get(beat.uid)
        if old is not None and (beat.attempt, beat.time) < (old.last.attempt, old.last.time):
            return  # late: a newer one has been seen
        self.samples.add(beat)
        fresh = old is None or old.last.attempt != beat.attempt
        saved = beat.checkpoint is not None and (old is None or beat.checkpoint != old.checkpoint)
        pods[beat.uid] = PodProgress(
            last=beat,
            first_step_time=beat.time if fresh or old is None else old.first_step_time,
            checkpoint=beat.checkpoint if beat.checkpoint is not None else (old.checkpoint if old else None),
            checkpoint_time=beat.time if saved else (old.checkpoint_time if old else 0.0),
            checkpoint_seconds=max(beat.checkpoint_seconds or 0.0, old.checkpoint_seconds if old else 0.0),
            kept=beat.kept if beat.kept is not None or fresh or old is None else old.kept,
        )
        for listener in self._listeners:
            listener(beat.namespace, beat.gang, fresh or saved)

    def past(self) -> list[PodPast]:
        """What another board has to be told to know what this one does, as far as anybody looks at it."""
        newest = [progress.last for pods in self._gangs.values() for progress in pods.values()]
        return [
            PodPast(beat, [_short_step_sample(s) for s in list(self.samples.of_pod(beat))[-WINDOW:]]) for beat in newest
        ]

    def recall(self, past: PodPast) -> None:
        """Told again. What is known already changes nothing."""
        self.samples.recall(past.beat, past.steps)
        self.report(past.beat)

    def of_gang(self, namespace: str, gang: str) -> dict[str, PodProgress]:
        """By pod uid."""
        return self._gangs.get((namespace, gang), {})

    def clear(self) -> None:
        """A new reader: nothing known, nobody listening."""
        self._gangs.clear()
        self._listeners.clear()
        self.samples.clear()

    def forget(self, namespace: str, gang: str) -> None:
        self._gangs.pop((namespace, gang), None)
        self.samples.forget(namespace, gang)

    def forget_pod(self, namespace: str, gang: str, uid: str) -> None:
        pods = self._gangs.get((namespace, gang), {})
        pods.pop(uid, None)
        if not pods:
            self._gangs.pop((namespace, gang), None)
        self.samples.forget_pod(namespace, gang, uid)


def _short_step_sample(sample: StepSample) -> StepSample:
    """Microseconds are enough, and a third of the bytes."""
    own, step = sample.self_seconds, sample.step_seconds
    return StepSample(
        sample.step,
        None if own is None else round(own, 6),
        None if step is None else round(step, 6),
        round(sample.time, 3),
    )

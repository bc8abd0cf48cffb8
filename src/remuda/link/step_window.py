"""The newest steps of each rank, as heartbeats told them: what the straggler watch looks at.

A bounded window of the current attempt only, in memory: O(1) for a heartbeat. The first steps of an attempt (compiling, filling
caches) are not kept. Both ends of the stream have it: an agent of its own pods, the manager of all; so a new manager is told the
agents' (`recall`) and nobody starts over. Steps only grow within an attempt, so what both know is one set of steps, in whatever
order and however often it is told. It is lost only when agent and manager end at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from remuda.core.health.step_samples import WARM_UP, WINDOW, StepSample

if TYPE_CHECKING:
    from remuda.link.progress_board import Heartbeat

KEPT = 2 * WINDOW  # some steps are told by few ranks only
ROUNDING = 1.05  # own time and step time are measured apart


def _own_step_time(beat: Heartbeat) -> float | None:
    """The rank's own time. More of it than the step took is no measurement: nobody is called slow for it."""
    own, step = beat.self_seconds, beat.step_seconds
    return None if own is not None and step is not None and own > step * ROUNDING else own


class _StepRing:
    __slots__ = ("last", "samples", "skipped")

    def __init__(self) -> None:
        self.samples: deque[StepSample] = deque(maxlen=KEPT)
        self.last = -1
        self.skipped = 0


class _GangSteps:
    __slots__ = ("attempt", "newest", "rings")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.rings: dict[str, _StepRing] = {}
        self.newest = 0


class StepSampleBoard:
    def __init__(self) -> None:
        self._gangs: dict[tuple[str, str], _GangSteps] = {}

    def add(self, beat: Heartbeat) -> None:
        """One heartbeat. A step is a sample once; a beat that only tells a checkpoint is none."""
        key = (beat.namespace, beat.gang)
        gang = self._gangs.get(key)
        if gang is None or beat.attempt > gang.attempt:
            gang = self._gangs[key] = _GangSteps(beat.attempt)
        elif beat.attempt < gang.attempt:
            return
        ring = gang.rings.get(beat.uid)
        if ring is None:
            ring = gang.rings[beat.uid] = _StepRing()
        if beat.step <= ring.last or (beat.self_seconds is None and beat.step_seconds is None):
            return
        ring.last = beat.step
        if ring.skipped < WARM_UP:
            ring.skipped += 1
            return
        ring.samples.append(StepSample(beat.step, _own_step_time(beat), beat.step_seconds, beat.time))
        gang.newest = max(gang.newest, beat.step)

    def recall(self, beat: Heartbeat, steps: Sequence[StepSample]) -> None:
        """What an agent still knows of the steps of the pod that `beat` is of."""
        key = (beat.namespace, beat.gang)
        gang = self._gangs.get(key)
        if not steps or (gang is not None and beat.attempt < gang.attempt):
            return
        if gang is None or beat.attempt > gang.attempt:
            gang = self._gangs[key] = _GangSteps(beat.attempt)
        ring = gang.rings.setdefault(beat.uid, _StepRing())
        known = {sample.step: sample for sample in (*steps, *ring.samples)}
        ring.samples = deque((known[step] for step in sorted(known)), maxlen=KEPT)
        ring.last, ring.skipped = max(ring.last, max(known)), WARM_UP  # the agent has left the first ones out
        gang.newest = max(gang.newest, ring.last)

    def of_pod(self, beat: Heartbeat) -> Sequence[StepSample]:
        """What is kept of the pod's steps in the attempt of `beat`."""
        gang = self._gangs.get((beat.namespace, beat.gang))
        ring = gang.rings.get(beat.uid) if gang is not None and gang.attempt == beat.attempt else None
        return ring.samples if ring is not None else ()

    def of_gang(self, namespace: str, gang: str, attempt: int) -> Mapping[str, Sequence[StepSample]]:
        """By pod uid; empty for an attempt that nothing was heard of."""
        found = self._gangs.get((namespace, gang))
        if found is None or found.attempt != attempt:
            return {}
        return {uid: ring.samples for uid, ring in found.rings.items()}

    def newest(self, namespace: str, gang: str) -> tuple[int, int]:
        """(attempt, newest step kept): whether there is anything to look at that was not there at the last look."""
        found = self._gangs.get((namespace, gang))
        return (found.attempt, found.newest) if found is not None else (0, 0)

    def clear(self) -> None:
        self._gangs.clear()

    def forget(self, namespace: str, gang: str) -> None:
        self._gangs.pop((namespace, gang), None)

    def forget_pod(self, namespace: str, gang: str, uid: str) -> None:
        found = self._gangs.get((namespace, gang))
        if found is not None:
            found.rings.pop(uid, None)
            if not found.rings:
                del self._gangs[(namespace, gang)]

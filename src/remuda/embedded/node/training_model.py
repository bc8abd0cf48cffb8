"""A model of training, for pods without processes: what their program does, and the checkpoints it leaves.

The child takes a step every `step_s`, reports it, and leaves a checkpoint every few steps in a store that all simulated
nodes share (as a file system would be), so a rank finds its checkpoints wherever it moves. It can be killed, hung, or told to
fail. It runs on the loop's time alone and takes chance from the generator it is given.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import msgspec

from remuda.launch.protocol import MAX_CHECKPOINTS, Progress

Job = tuple[str, str]  # (namespace, gang)
_KEPT = 4 * MAX_CHECKPOINTS


class SimulatedBehaviour(msgspec.Struct, frozen=True):
    """How a simulated pod behaves. Times in seconds."""

    start_s: float = 0.05  # container start to the launcher's first word
    child_start_s: float = 0.1  # process start to the begin of the first step: imports, loading the checkpoint
    step_s: float = 1.0
    jitter: float = 0.0  # of each step, as a fraction of it
    checkpoint_every: int = 10  # steps; 0 = never
    steps: int = 0  # done (exit 0) after so many; 0 = goes on for ever
    total_steps: int | None = None  # that it says there will be
    stop_s: float = 0.05  # TERM to gone; more than the grace means it has to be killed
    kill_s: float = 0.0  # KILL to gone; more than nothing is a process the kernel cannot end yet (D state)
    run_s: float | None = None  # a pod without launcher: exits 0 after that
    init_s: float = 0.1  # an init container exits 0 after that


# Usable, corrupt, abandoned, why it cannot be read.
Look = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]


class SimulatedCheckpoints:
    """Checkpoints by job and rank. `corrupt` breaks one, as a failed digest would show; `lose` takes all away, as a disk that
    is not mounted does; `make_unreadable` makes a rank's directory one that cannot be read."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Job, int], list[int]] = {}
        self._corrupt: dict[tuple[Job, int], set[int]] = {}
        self._abandoned: dict[tuple[Job, int], set[int]] = {}
        self._unreadable: dict[tuple[Job, int], str] = {}

    def save(self, job: Job, rank: int, step: int) -> None:
        steps = self._steps.setdefault((job, rank), [])
        if step in steps:
            steps.remove(step)
        steps.append(step)
        self._corrupt.get((job, rank), set()).discard(step)
        self._abandoned.get((job, rank), set()).discard(step)
        for dropped in steps[:-_KEPT]:
            self._abandoned.get((job, rank), set()).discard(dropped)
        del steps[:-_KEPT]

    def usable(self, job: Job, rank: int) -> tuple[int, ...]:
        """Newest first."""
        abandoned = self._abandoned.get((job, rank), ())
        return tuple(sorted((s for s in self._steps.get((job, rank), ()) if s not in abandoned), reverse=True))

    def look(self, job: Job, rank: int | None) -> Look:
        """As a launcher's look at its directory."""
        if rank is None:
            return (), (), (), ""
        if (job, rank) in self._unreadable:
            return (), (), (), self._unreadable[job, rank]
        corrupt = sorted(self._corrupt.get((job, rank), ()), reverse=True)
        abandoned = sorted(self._abandoned.get((job, rank), ()), reverse=True)
        return self.usable(job, rank), tuple(corrupt), tuple(abandoned), ""

    def go_on_from(self, job: Job, rank: int, step: int) -> None:
        """History goes on behind that step (-1 = from the beginning): what is ahead of it is abandoned."""
        abandoned = self._abandoned.setdefault((job, rank), set())
        abandoned.discard(step)
        abandoned.update(s for s in self._steps.get((job, rank), ()) if s > step)

    def corrupt(self, job: Job, rank: int, step: int | None = None) -> int | None:
        """Break one checkpoint (the newest unless told); returns which, None when there is none."""
        steps = self._steps.get((job, rank))
        if not steps:
            return None
        victim = max(self.usable(job, rank) or steps) if step is None else step
        if victim in steps:
            steps.remove(victim)
            self._corrupt.setdefault((job, rank), set()).add(victim)
        return victim

    def lose(self, job: Job, rank: int) -> list[int]:
        """Take all of a rank's checkpoints away; returns what they were, for `restore`."""
        return self._steps.pop((job, rank), [])

    def restore(self, job: Job, rank: int, steps: list[int]) -> None:
        self._steps.setdefault((job, rank), []).extend(steps)

    def make_unreadable(self, job: Job, rank: int, why: str) -> None:
        self._unreadable[job, rank] = why

    def make_readable(self, job: Job, rank: int) -> None:
        self._unreadable.pop((job, rank), None)


class SimulatedTraining:
    """One run of the user's program. Calls `report` with progress and `ended(code, signal, message)` exactly once."""

    def __init__(
        self,
        behaviour: SimulatedBehaviour,
        env: Mapping[str, str],
        job: Job,
        store: SimulatedCheckpoints,
        rng: random.Random,
        report: Callable[[Progress], None],
        ended: Callable[[int, int | None, str], None],
    ) -> None:
        self.step = int(env.get("REMUDA_RESUME_STEP", "0") or 0)
        self.resumed_at = self.step
        self.attempt = int(env.get("REMUDA_ATTEMPT", "0") or 0)
        self.rank = int(env.get("REMUDA_RANK", env.get("RANK", "0")) or 0)
        if "REMUDA_RESUME_STEP" in env:
            store.go_on_from(job, self.rank, self.step or -1)
        self.is_alive = True
        self.is_hung = False
        self.speed = 1.0  # less when its device is slow
        self._behaviour = behaviour
        self._job = job
        self._store = store
        self._rng = rng
        self._report = report
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(behaviour.child_start_s, self._begin_step)
        self._ending: asyncio.TimerHandle | None = None
        self._is_killed = False
        self._asked: int | None = None  # a checkpoint of this step or a later one

    def terminate(self) -> None:
        """TERM (and CONT: a stopped process wakes up to die of it)."""
        if self.is_alive and self._ending is None:
            self._timer.cancel()
            self._ending = self._loop.call_later(self._behaviour.stop_s, self._end, 143, 15, "killed by SIGTERM")

    def kill(self) -> None:
        if not self._behaviour.kill_s:
            self._end(137, 9, "killed by SIGKILL")
        elif self.is_alive and not self._is_killed:
            self._is_killed = True
            self._timer.cancel()
            if self._ending is not None:
                self._ending.cancel()
            self._ending = self._loop.call_later(self._behaviour.kill_s, self._end, 137, 9, "killed by SIGKILL")

    def fail(self, code: int, message: str) -> None:
        self._end(code, None, message)

    def hang(self) -> None:
        self.is_hung = True
        self._timer.cancel()

    def resume(self) -> None:
        """CONT: takes a hang back. The step that was under way begins anew."""
        if self.is_hung and self.is_alive:
            self.is_hung = False
            self._begin_step()

    def save(self, first: int = 0) -> None:
        """A checkpoint on request, at the next end of a step that is not before `first`."""
        self._asked = first

    def vanish(self) -> None:
        """Dead, and nobody is told: the power is gone."""
        self.is_alive = False
        self._timer.cancel()
        if self._ending is not None:
            self._ending.cancel()

    def _begin_step(self) -> None:
        behaviour = self._behaviour
        if behaviour.steps and self.step >= behaviour.steps:
            self._end(0, None, "")
            return
        took = behaviour.step_s / self.speed
        if behaviour.jitter:
            took *= 1.0 + behaviour.jitter * (2.0 * self._rng.random() - 1.0)
        self._timer = self._loop.call_later(took, self._end_step, took)

    def _end_step(self, took: float) -> None:
        self.step += 1
        every = self._behaviour.checkpoint_every
        is_asked = self._asked is not None and self.step >= self._asked
        saved = self.step if is_asked or (every and self.step % every == 0) else None
        if saved is not None:
            self._asked = None if is_asked else self._asked
            self._store.save(self._job, self.rank, self.step)
        self._report(
            Progress(
                step=self.step,
                step_time=took,
                self_time=took,
                checkpoint=saved,
                kept=saved,
                total_steps=self._behaviour.total_steps,
            )
        )
        if self.is_alive and not self.is_hung and self._ending is None:
            self._begin_step()

    def _end(self, code: int, signal: int | None, message: str) -> None:
        if self.is_alive:
            self.vanish()
            self._ended(code, signal, message)

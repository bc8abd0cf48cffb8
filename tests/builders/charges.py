"""Charges to budgets as the history shows them, and what they are held against. Pure.

A `Stop` is something that really happened to a pod, a node or everything. It may be charged to its own causes only, to whom it
hit, while it could be felt, and so many times. Charges and stops are matched as well as they can be (`unexplained`); a charge
that is left over was made for nothing, or to the wrong cause. What the stops are: `tests.builders.stops`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from remuda.api.training import Cause, TrainingJob, TrainingJobStatus


class Charge(msgspec.Struct, frozen=True):
    at: float
    job: str
    cause: str
    reason: str
    nodes: frozenset[str]  # where the failed members sat; of a pod that had no rank, wherever the job is


class Stop(msgspec.Struct, frozen=True):
    """`node` and `job` "" = any."""

    what: str
    causes: frozenset[Cause]
    since: float
    until: float
    job: str = ""
    node: str = ""
    times: int = 1  # to one job

    def explains(self, charge: Charge) -> bool:
        return (
            charge.cause in self.causes
            and self.since <= charge.at <= self.until
            and self.job in ("", charge.job)
            and (not self.node or self.node in charge.nodes)
        )


class ChargeBook:
    """Budgets as the history shows them. A charge that moves to another cause is one of that cause from then on."""

    def __init__(self) -> None:
        self.made: list[Charge] = []

    def see(self, job: TrainingJob, old: TrainingJobStatus, now: float, nodes: Iterable[str]) -> None:
        new = job.status
        last = new.recoveries[-1] if new.recoveries and new.recoveries != old.recoveries else None
        seats = {seat.node for seat in last.seats if seat.node} if last is not None else set()
        for cause in Cause:
            by = new.used.get(cause, 0) - old.used.get(cause, 0)
            for _ in range(by):
                reason = last.reason if last is not None else ""
                self.made.append(Charge(now, job.name, cause, reason, frozenset(seats or nodes)))
            for _ in range(-by):
                self._take_back(job.name, cause)

    def _take_back(self, job: str, cause: str) -> None:
        mine = [n for n, charge in enumerate(self.made) if (charge.job, charge.cause) == (job, cause)]
        if mine:
            del self.made[mine[-1]]


def unexplained(charges: Sequence[Charge], stops: Sequence[Stop]) -> list[Charge]:
    """Those left over when as many as possible have a stop of their own."""
    seats = [number for number, stop in enumerate(stops) for _ in range(stop.times)]
    taken: dict[int, int] = {}  # seat -> charge

    def find(mine: int, tried: set[int]) -> bool:
        for seat, number in enumerate(seats):
            if seat not in tried and stops[number].explains(charges[mine]):
                tried.add(seat)
                if seat not in taken or find(taken[seat], tried):
                    taken[seat] = mine
                    return True
        return False

    return [charge for mine, charge in enumerate(charges) if not find(mine, set())]

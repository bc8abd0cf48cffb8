"""What the demo promises, as checks on what the API and the logs say before and after. A broken promise is a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remuda.api.incidents import Incident
from remuda.api.training import Cause, Recovery, Remedy, TrainingJob

Findings = Mapping[tuple[str, str], str]  # (node, device) -> what the straggler watch says of it

MOST_LOST = 4  # steps, when the gang is stopped right after a checkpoint


class DemoGangBefore(msgspec.Struct, frozen=True):
    """The gang as it was when a fault was about to be injected."""

    job: TrainingJob
    racks: Mapping[str, str]  # node -> rack

    @property
    def spare_uids(self) -> set[str]:
        return {s.uid for s in self.job.status.spares if s.parked}


class DemoGangAfter(msgspec.Struct, frozen=True):
    """The gang after the recovery; `resumed` is what each rank itself printed about the step it started from."""

    job: TrainingJob
    racks: Mapping[str, str]
    resumed: Mapping[int, int]

    @property
    def recovery(self) -> Recovery:
        return self.job.status.recoveries[-1]


def demo_promises_broken_by_restart(before: DemoGangBefore, after: DemoGangAfter) -> list[str]:
    """(a) a process died: everybody restarts in the same pod on the same devices."""
    problems = _broken_demo_kept_pods(before, after, moved=set()) + _broken_resume(before, after)
    if after.recovery.remedy is not Remedy.RESTART_IN_PLACE or after.recovery.cause is not Cause.CODE:
        problems.append(
            f"remedy was {after.recovery.remedy} for {after.recovery.cause}, expected RestartInPlace for code"
        )
    return problems


def demo_promises_broken_by_device(
    before: DemoGangBefore, after: DemoGangAfter, rank: int, bad: tuple[str, str], *, by_spare: bool
) -> list[str]:
    """(b), (c) a device died: one rank moves, in the same rack, off the bad device; the others keep pod and devices."""
    problems = _broken_demo_kept_pods(before, after, moved={rank}) + _broken_resume(before, after)
    old = {m.rank: m for m in before.job.status.members}[rank]
    new = {m.rank: m for m in after.job.status.members}[rank]
    if new.uid == old.uid:
        problems.append(f"rank {rank} still has pod {old.pod} on the failed device")
    if by_spare and new.uid not in before.spare_uids:
        problems.append(f"rank {rank} went to {new.pod}, which was not the parked spare")
    if after.racks.get(new.node) != before.racks.get(old.node):
        problems.append(f"rank {rank} left its rack: {before.racks.get(old.node)} -> {after.racks.get(new.node)}")
    if any((new.node, device) == bad for device in new.devices):
        problems.append(f"rank {rank} was given the failed device {bad[0]}/{bad[1]} again")
    if after.recovery.cause is not Cause.DEVICE:
        problems.append(f"the recovery was charged to {after.recovery.cause}, not to the device")
    if after.job.status.used.get(Cause.CODE, 0) != before.job.status.used.get(Cause.CODE, 0):
        problems.append("the broken device changed the budget of the code")
    return problems


def demo_promises_broken_by_slowness(
    before: DemoGangBefore, after: DemoGangAfter, rank: int, slow: tuple[str, str], found: Findings
) -> list[str]:
    """(d) a device became slow: it alone is named, with rank, pod and node; the spare takes its rank at a checkpoint."""
    problems = demo_promises_broken_by_device(before, after, rank, slow, by_spare=True)
    old = {m.rank: m for m in before.job.status.members}[rank]
    if set(found) != {slow}:
        problems.append(f"{sorted('/'.join(place) for place in found)} were called slow, not {'/'.join(slow)} alone")
    said = found.get(slow, "")
    missing = [word for word in (f"Rank {rank} ", old.pod, old.node, slow[1]) if word not in said]
    if missing:
        problems.append(f"the finding does not name {', '.join(missing)}: {said!r}")
    if after.recovery.reason != "SlowRank":
        problems.append(f"the recovery's reason was {after.recovery.reason}, not SlowRank")
    lost = after.recovery.step_at_fault - after.recovery.resume_step
    if lost > MOST_LOST:
        problems.append(f"{lost} steps were lost: it was not swapped at a checkpoint")
    return problems


def demo_promises_broken_in_incidents(incidents: Sequence[Incident], bad: Sequence[tuple[str, str]]) -> list[str]:
    """Every device that failed or became slow has its incident."""
    known = {(i.spec.subject.node, i.spec.subject.device) for i in incidents}
    return [f"there is no incident for {node}/{device}" for node, device in bad if (node, device) not in known]


def demo_promises_broken_by_spare(before: DemoGangBefore, after: TrainingJob) -> list[str]:
    """A fresh spare is parked, and it is not the one that was used."""
    parked = {s.uid for s in after.status.spares if s.parked}
    if not parked:
        return ["no fresh spare was parked"]
    return ["the parked spare is the old one"] if parked & before.spare_uids else []


def _broken_demo_kept_pods(before: DemoGangBefore, after: DemoGangAfter, moved: set[int]) -> list[str]:
    problems: list[str] = []
    now = {m.rank: m for m in after.job.status.members}
    for old in before.job.status.members:
        new = now.get(old.rank)
        if new is None:
            problems.append(f"rank {old.rank} is gone")
        elif old.rank not in moved:
            if new.uid != old.uid:
                problems.append(f"rank {old.rank} lost its pod: {old.pod} -> {new.pod}")
            if (new.node, new.devices) != (old.node, old.devices):
                problems.append(f"rank {old.rank} lost its devices")
    return problems


def _broken_resume(before: DemoGangBefore, after: DemoGangAfter) -> list[str]:
    problems: list[str] = []
    wanted = after.recovery.resume_step
    if after.job.status.attempt <= before.job.status.attempt:
        problems.append("the attempt was not raised")
    if wanted <= 0:
        problems.append("training started over instead of resuming from a checkpoint")
    for rank in range(len(after.job.status.members)):
        said = after.resumed.get(rank)
        if said != wanted:
            problems.append(f"rank {rank} resumed after step {said}, the gang after step {wanted}")
    return problems

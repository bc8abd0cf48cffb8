"""Real processes on a node that is about to go: they are elsewhere before it does, and lose next to nothing."""

from __future__ import annotations

from remuda.api.drills import Drill, DrillKind, DrillSpec
from remuda.api.meta import ObjectMeta
from remuda.api.training import Cause, Remedy, TrainingJob
from tests.e2e.rig import Rig


async def test_a_planned_maintenance_finds_the_gang_gone(rig: Rig) -> None:
    await rig.submit(rig.job(rack=True))
    before = await rig.trained_to(20)
    victim = before.status.members[1]
    notice = DrillSpec(type=DrillKind.MAINTENANCE_NOTICE, node=victim.node, seconds=600.0)
    await rig.api.create(Drill, Drill(metadata=ObjectMeta(name="notice"), spec=notice))

    def has_moved(job: TrainingJob) -> bool:
        return job.status.attempt == 2 and job.status.barrier == "Open"

    record = (await rig.until("the gang to have moved", has_moved)).status.recoveries[-1]
    after = await rig.trained_to(record.resume_step + 5, attempt=2)
    assert victim.node not in {m.node for m in after.status.members}
    assert (record.cause, record.reason, record.remedy) == (
        Cause.MAINTENANCE,
        "MaintenancePlanned",
        Remedy.REPLACE_POD,
    )
    assert record.step_at_fault - record.resume_step < 60, "hardly a second of work is done again"
    assert after.status.used == {"maintenance": 1}
    await rig.check_invariants()

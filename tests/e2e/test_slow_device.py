"""A device turned slow on purpose: the node holds its holder's process back, the program does not help."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from remuda.api.drills import Drill, DrillKind
from remuda.api.training import Member
from tests.e2e.rig import Rig, until

BUSY = [sys.executable, "-c", "while True: pass"]
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def user_process(rig: Rig, member: Member) -> int | None:
    launcher = rig.launchers().get(member.uid)
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split() if launcher else []
    return int(children[0]) if children else None


async def spent(rig: Rig, slow: Member, fast: Member, budget_s: float = 1.0) -> float:
    """CPU time the process of `slow` gets while that of `fast` uses up `budget_s`, as a fraction of it."""
    pids = [user_process(rig, member) for member in (slow, fast)]
    assert pids[0]
    assert pids[1]
    begun = cpu_s(pids[0]), cpu_s(pids[1])

    async def used_up() -> bool:
        return cpu_s(pids[1] or 0) - begun[1] >= budget_s

    await until("the other rank to have worked", used_up)
    return (cpu_s(pids[0]) - begun[0]) / (cpu_s(pids[1]) - begun[1])


async def test_a_slow_device_slows_its_holder_and_nobody_else(rig: Rig) -> None:
    await rig.submit(rig.job(replicas=2, gpus=1, command=BUSY))
    job = await rig.until("both to run", lambda j: j.status.barrier == "Open" and len(j.status.members) == 2)
    slow, fast = job.status.members

    async def both_run() -> bool:
        return all(user_process(rig, member) for member in (slow, fast))

    await until("both processes", both_run)
    await rig.drill(DrillKind.DEVICE_SLOW, node=slow.node, device=slow.devices[0], factor=4.0)
    assert await spent(rig, slow, fast) < 0.6

    [drill] = (await rig.api.list(Drill)).items
    await rig.api.patch(Drill, drill.name, {"spec": {"undo": True}})

    async def undone() -> bool:
        return (await rig.api.get(Drill, drill.name)).status.phase == "Undone"

    await until("the drill to be taken back", undone)
    assert await spent(rig, slow, fast) > 0.65

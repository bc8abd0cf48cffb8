"""A device turned slow on purpose: the node holds its holder's process back, the program does not help. Its rank is found by its
own time, named with pod, node and device, and let go when it is normal again, or swapped for the spare at a checkpoint."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from remuda.api.devices import DeviceState, NodeDevices, Signal
from remuda.api.drills import Drill, DrillKind
from remuda.api.training import Cause, DegradedPolicy, Failure, Member, Straggler
from remuda.cli import demo
from tests.builders.waiting import PATIENCE_S, until
from tests.e2e.rig import Rig

BUSY = [sys.executable, "-c", "while True: pass"]
COUPLED = [sys.executable, str(Path(demo.__file__).with_name("train.py"))]


def user_process(rig: Rig, member: Member) -> int | None:
    launcher = rig.launchers().get(member.uid)
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split() if launcher else []
    return int(children[0]) if children else None


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def undo(rig: Rig) -> None:
    [drill] = (await rig.api.list(Drill)).items
    await rig.api.patch(Drill, drill.name, {"spec": {"undo": True}})

    async def undone() -> bool:
        return (await rig.api.get(Drill, drill.name)).status.phase == "Undone"

    await until("the drill to be taken back", undone)


async def found(rig: Rig) -> dict[tuple[str, str], Signal]:
    nodes = (await rig.api.list(NodeDevices)).items
    return {
        (node.name, device): signal
        for node in nodes
        for device, signals in node.findings.items()
        for signal in signals
        if signal.source == "straggler"
    }


async def start_coupled(rig: Rig, policy: DegradedPolicy, *, spares: int = 0) -> Member:
    """Four ranks whose every step is a collective; the one to be slowed."""
    failure = Failure(straggler=Straggler(policy=policy))
    await rig.submit(rig.job(replicas=4, gpus=1, spares=spares, command=COUPLED, failure=failure))
    job = await rig.until("training", lambda j: j.status.progress.step >= 20, 60.0)
    assert await found(rig) == {}
    member = job.status.members[2]
    await rig.drill(DrillKind.DEVICE_SLOW, node=member.node, device=member.devices[0], factor=3.0)
    return member


def check_named(member: Member, findings: dict[tuple[str, str], Signal]) -> None:
    [(where, signal)] = findings.items()
    assert where == (member.node, member.devices[0])
    for word in (f"Rank {member.rank} ", member.pod, member.node, member.devices[0]):
        assert word in signal.message


async def test_the_slow_rank_of_a_coupled_gang_is_named_and_let_go_when_it_is_normal(rig: Rig) -> None:
    member = await start_coupled(rig, DegradedPolicy.CARRY_ON)

    async def is_found() -> bool:
        return bool(await found(rig))

    await until("the straggler to be found", is_found, PATIENCE_S)
    check_named(member, await found(rig))

    async def is_degraded() -> bool:
        node = await rig.api.get(NodeDevices, member.node)
        return any(
            v.device == member.devices[0] and v.state is DeviceState.DEGRADED and v.reason == "SlowRank"
            for v in node.verdicts
        )

    await until("the device to be Degraded", is_degraded)
    assert (await rig.get()).status.attempt == 1
    await undo(rig)

    async def is_cleared() -> bool:
        return not await found(rig)

    await until("the finding to be taken back", is_cleared, PATIENCE_S)


async def test_the_slow_rank_is_swapped_for_the_spare_at_a_checkpoint(rig: Rig) -> None:
    member = await start_coupled(rig, DegradedPolicy.SWAP_AT_CHECKPOINT, spares=1)
    job = await rig.until(
        "the swap",
        lambda j: bool(j.status.recoveries) and j.status.recoveries[-1].first_step_at is not None,
        PATIENCE_S,
    )
    check_named(member, await found(rig))
    [recovery] = job.status.recoveries
    assert (recovery.cause, recovery.reason, recovery.members) == (Cause.DEVICE, "SlowRank", [member.pod])
    moved = job.status.members[2]
    assert moved.uid != member.uid
    assert (moved.node, moved.devices) != (member.node, member.devices)
    assert recovery.resume_step > 0


async def test_a_slow_device_slows_its_holder_and_nobody_else(rig: Rig) -> None:
    await rig.submit(rig.job(replicas=2, gpus=1, command=BUSY))
    job = await rig.until("both to run", lambda j: j.status.barrier == "Open" and len(j.status.members) == 2)
    slow, fast = job.status.members

    async def both_run() -> bool:
        return all(user_process(rig, member) for member in (slow, fast))

    await until("both processes", both_run)
    held, free = (user_process(rig, member) or 0 for member in (slow, fast))
    await rig.drill(DrillKind.DEVICE_SLOW, node=slow.node, device=slow.devices[0], factor=4.0)
    for turn in (True, False, True, False):  # in turns; how much of the time is the node's matter

        async def is_so(turn: bool = turn) -> bool:
            assert not is_stopped(free)
            return is_stopped(held) is turn

        await until("the slow one to be stopped" if turn else "the slow one to be let go", is_so)

    await undo(rig)
    for _ in range(100):  # several turns, if there were any
        assert not is_stopped(held)
        await asyncio.sleep(0.005)

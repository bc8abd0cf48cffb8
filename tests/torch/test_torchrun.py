"""A PyTorch job (DistributedDataParallel, gloo, torchrun) on four processes survives what can happen to it.

One run is left alone. Another loses a process, a device, and has a device turn slow. Every step's loss of the second must be the
first one's, to 1e-5, and no step may be missing: nothing was skipped, repeated with other data, or resumed from a mixture.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remuda.api.drills import DrillKind
from remuda.api.meta import ObjectMeta
from remuda.api.training import PodTemplate, Role, TrainingJob, TrainingJobSpec
from remuda.link.rank_logs import find_sections, read_section
from tests.e2e.rig import NAME, NAMESPACE, Rig

EXAMPLE = Path(__file__).parents[2] / "examples" / "06-torchrun"
RANKS, STEPS, EVERY = 4, 160, 5
PATIENCE_S = 120.0
TOLERANCE = 1e-5


@pytest.mark.timeout(600)
async def test_losses_are_those_of_the_undisturbed_run(rig: Rig, torch: str) -> None:
    expected = await undisturbed(rig, torch)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert expected[STEPS] < expected[1], "the model learns"

    await rig.submit(job(torch))
    started = await reached(rig, 10)
    await rig.strike(DrillKind.PROCESS_KILL, started.status.members[2])
    after_kill = await reached(rig, 30, attempt=2)
    assert [m.uid for m in after_kill.status.members] == [m.uid for m in started.status.members], "restarted in place"

    member = after_kill.status.members[1]
    await rig.fail_device(member.node, member.devices[0])
    after_fail = await reached(rig, 50, attempt=3)
    moved = [
        m.rank for m, n in zip(after_kill.status.members, after_fail.status.members, strict=True) if m.uid != n.uid
    ]
    assert moved == [1], "the spare took the rank over, and nobody else moved"

    await slow(rig, after_fail)
    done = await rig.until("the end", lambda j: j.is_finished, PATIENCE_S)
    assert (done.status.phase, done.status.reason) == ("Succeeded", "AllRanksDone")
    seen = losses(rig)
    assert sorted(seen) == list(range(1, STEPS + 1)), f"missing: {sorted(set(expected) - set(seen))}"
    for step, values in seen.items():
        for value in values:
            assert abs(value - expected[step]) <= TOLERANCE, f"step {step}: {value} is not {expected[step]}"
    assert any(len(values) > RANKS for values in seen.values()), "some steps were run again, and gave the same"


async def slow(rig: Rig, job: TrainingJob) -> None:
    """A device works at a third of its speed: found, named, and swapped at a checkpoint."""
    member = job.status.members[3]
    await rig.drill(DrillKind.DEVICE_SLOW, node=member.node, device=member.devices[0], factor=3.0)
    after = await reached(rig, 0, attempt=job.status.attempt + 1)
    last = after.status.recoveries[-1]
    assert last.reason == "SlowRank", last
    assert last.members == [member.pod]
    assert member.devices[0] in last.message
    assert after.status.members[3].uid != member.uid


async def undisturbed(rig: Rig, torch: str) -> dict[int, float]:
    await rig.submit(job(torch))
    await rig.until("the end of the undisturbed run", lambda j: j.is_finished, PATIENCE_S)
    assert (await rig.get()).status.phase == "Succeeded", losses(rig)
    found = {step: values[0] for step, values in losses(rig).items()}
    await rig.api.delete(TrainingJob, NAME, NAMESPACE)
    await gone(rig)
    for section in find_sections(rig.state / "logs", NAMESPACE, NAME):
        section.path.unlink(missing_ok=True)
    return found


async def gone(rig: Rig) -> None:
    from tests.e2e.rig import until

    async def holds() -> bool:
        return not await rig.pods()

    await until("the pods to be gone", holds, PATIENCE_S)


async def reached(rig: Rig, step: int, attempt: int = 1) -> TrainingJob:
    """Every rank runs that attempt and has got so far, or further."""

    def holds(found: TrainingJob) -> bool:
        status = found.status
        is_over = not status.recoveries or status.recoveries[-1].first_step_at is not None
        is_there = status.attempt >= attempt and status.progress.step >= step
        return is_there and status.phase == "Running" and is_over and all(s.parked for s in status.spares)

    return await rig.until(f"step {step} of attempt {attempt}", holds, PATIENCE_S)


def losses(rig: Rig) -> dict[int, list[float]]:
    """Of all ranks in all attempts, by step."""
    found: dict[int, list[float]] = {}
    for section in find_sections(rig.state / "logs", NAMESPACE, NAME):
        text = b"".join(read_section(section)).decode(errors="replace")
        for step, loss in re.findall(r"^step (\d+) loss ([0-9.]+)$", text, re.MULTILINE):
            found.setdefault(int(step), []).append(float(loss))
    return found


def job(torch: str) -> TrainingJob:
    variables = {"STEPS": STEPS, "EVERY": EVERY, "PAUSE_S": 0.03, "PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
    container = {
        "name": "main",
        "command": [torch, "-m", "torch.distributed.run", str(EXAMPLE / "train.py")],
        "env": [{"name": name, "value": str(value)} for name, value in variables.items()],
    }
    template = PodTemplate(spec={"containers": [container]})
    return TrainingJob(
        metadata=ObjectMeta(name=NAME, namespace=NAMESPACE),
        spec=TrainingJobSpec(roles=[Role(replicas=RANKS, gpus=1, template=template)], spares=1),
    )

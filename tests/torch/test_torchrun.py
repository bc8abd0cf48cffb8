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
from remuda.link.rank_logs import find_log_sections, read_rank_log_section
from tests.builders.waiting import until
from tests.e2e.rig import NAME, NAMESPACE, Rig

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "06-torchrun"
RANKS, STEPS, EVERY = 4, 240, 5
KILLED_AT, FAILED_AT = 12, 33  # between two checkpoints: what came after the last one is done again
REPEATED = {11, 12, 31, 32, 33}
PATIENCE_S = 300.0  # a bound for a hang; importing torch takes its time
TOLERANCE = 1e-5


@pytest.mark.timeout(1200)
async def test_losses_are_those_of_the_undisturbed_run(rig: Rig, torch: str) -> None:
    expected = await undisturbed(rig, torch)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert expected[STEPS] < expected[1], "the model learns"

    rig.let_run_to(KILLED_AT)
    await rig.submit(job(rig, torch))
    started = await standing(rig, KILLED_AT)
    await rig.strike(DrillKind.PROCESS_KILL, started.status.members[2])
    await standing(rig, KILLED_AT, attempt=2, times=2)
    rig.let_run_to(FAILED_AT)
    after_kill = await standing(rig, FAILED_AT, attempt=2)
    assert [m.uid for m in after_kill.status.members] == [m.uid for m in started.status.members], "restarted in place"

    member = after_kill.status.members[1]
    await rig.fail_device(member.node, member.devices[0])
    after_fail = await standing(rig, FAILED_AT, attempt=3, times=2)
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
    again = {step for step, values in seen.items() if len(values) > RANKS}
    assert again >= REPEATED, "steps after the last checkpoint were run again, and gave the same"


async def slow(rig: Rig, job: TrainingJob) -> None:
    """A device works at a tenth of its speed: found, named, and swapped at a checkpoint."""
    member = job.status.members[3]
    await rig.drill(DrillKind.DEVICE_SLOW, node=member.node, device=member.devices[0], factor=10.0)
    rig.let_run_to(STEPS - 1)  # whoever is not found by then never is; the end must not come first
    after = await rig.until("the swap", lambda j: is_over(j, job.status.attempt + 1), PATIENCE_S)
    rig.let_run_to(STEPS + 1)
    last = after.status.recoveries[-1]
    assert last.reason == "SlowRank", last
    assert last.members == [member.pod]
    assert member.devices[0] in last.message
    assert after.status.members[3].uid != member.uid


async def undisturbed(rig: Rig, torch: str) -> dict[int, float]:
    await rig.submit(job(rig, torch))
    await rig.until("the end of the undisturbed run", lambda j: j.is_finished, PATIENCE_S)
    assert (await rig.get()).status.phase == "Succeeded", losses(rig)
    found = {step: values[0] for step, values in losses(rig).items()}
    await rig.api.delete(TrainingJob, NAME, NAMESPACE)
    await gone(rig)
    for section in find_log_sections(rig.state / "logs", NAMESPACE, NAME):
        section.path.unlink(missing_ok=True)
    return found


async def gone(rig: Rig) -> None:
    async def holds() -> bool:
        return not await rig.pods()

    await until("the pods to be gone", holds, PATIENCE_S)


def is_over(job: TrainingJob, attempt: int) -> bool:
    """The gang runs that attempt and has made a step in it."""
    status = job.status
    has_begun = not status.recoveries or status.recoveries[-1].first_step_at is not None
    return status.attempt >= attempt and status.phase == "Running" and has_begun


async def standing(rig: Rig, step: int, attempt: int = 1, times: int = 1) -> TrainingJob:
    """Every rank of that attempt has printed the step, where it stands, for that many times; spares are parked."""

    def holds(found: TrainingJob) -> bool:
        is_ready = is_over(found, attempt) and all(s.parked for s in found.status.spares)
        return is_ready and len(losses(rig).get(step, ())) == times * RANKS

    return await rig.until(f"everybody at step {step} of attempt {attempt}", holds, PATIENCE_S)


def losses(rig: Rig) -> dict[int, list[float]]:
    """Of all ranks in all attempts, by step."""
    found: dict[int, list[float]] = {}
    for section in find_log_sections(rig.state / "logs", NAMESPACE, NAME):
        text = b"".join(read_rank_log_section(section)).decode(errors="replace")
        for step, loss in re.findall(r"^step (\d+) loss ([0-9.]+)$", text, re.MULTILINE):
            found.setdefault(int(step), []).append(float(loss))
    return found


def job(rig: Rig, torch: str) -> TrainingJob:
    variables = {"STEPS": STEPS, "EVERY": EVERY, "PAUSE_S": 0.03, "PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
    variables |= {"E2E_LIMIT": rig.limit_file}
    container = {
        "name": "main",
        "command": [torch, "-m", "torch.distributed.run", str(HERE / "gated.py"), str(EXAMPLE / "train.py")],
        "env": [{"name": name, "value": str(value)} for name, value in variables.items()],
    }
    template = PodTemplate(spec={"containers": [container]})
    return TrainingJob(
        metadata=ObjectMeta(name=NAME, namespace=NAMESPACE),
        spec=TrainingJobSpec(roles=[Role(replicas=RANKS, gpus=1, template=template)], spares=1),
    )

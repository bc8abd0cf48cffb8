"""Real scripts that say numbers no training has, on a real `remuda up`: their own affair. Somebody else's gang trains on."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from remuda.api.meta import ObjectMeta
from remuda.api.training import TrainingJob
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.rig import NAMESPACE, Rig

BAD = ("bad-0", "bad-1", "bad-2")
# A step a time, each with a total that would be reached long after the end of the calendar; then sensible numbers.
WILD = """
import os, time
def say(text):
    path = os.environ["REMUDA_PROGRESS_FILE"]
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)
for step in range(1, 21):
    say('{"step": %d, "stepTime": 0.3, "totalSteps": %d}' % (step, 2**62))
    time.sleep(0.3)
say('{"step": 20, "stepTime": 1e300, "totalSteps": 9000000000000000}')
time.sleep(1)
print("wild numbers said", flush=True)
while True:
    say('{"step": 21, "stepTime": 0.3, "totalSteps": 100}')
    time.sleep(0.3)
"""


def wild_job(rig: Rig, name: str) -> TrainingJob:
    job = rig.job(replicas=1, gpus=1, command=[sys.executable, "-c", WILD])
    return msgspec.structs.replace(job, metadata=ObjectMeta(name=name, namespace=NAMESPACE))


async def test_scripts_that_say_wild_totals_touch_nobody_elses_gang(up: Up, state: Path) -> None:
    async with up.rig() as rig:
        await rig.submit(rig.job(gpus=1))
        before = await rig.trained_to(4)
        for name in BAD:
            await rig.submit(wild_job(rig, name))

        async def all_are_followed() -> bool:
            jobs = [await rig.api.get(TrainingJob, name, NAMESPACE) for name in BAD]
            return all(j.status.progress.step == 21 and j.status.progress.total_steps == 100 for j in jobs)

        await until("the jobs to be followed once their numbers are sensible", all_are_followed)
        for name in BAD:
            job = await rig.api.get(TrainingJob, name, NAMESPACE)
            assert (job.status.phase, job.status.attempt) == ("Running", 1)
        after = await rig.get()
        assert (after.status.attempt, after.status.interruptions) == (1, 0)
        assert [m.uid for m in after.status.members] == [m.uid for m in before.status.members]
        await rig.check_invariants()
    words = (state / "up.log").read_text()
    assert "controller.failed" not in words
    assert "ignored a progress report: BadField" in all_logs(state), "the script's author is told"


def all_logs(state: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in (state / "logs").rglob("*") if p.is_file())


async def test_a_total_that_cannot_be_is_refused_on_the_command_line(up: Up, tmp_path: Path) -> None:
    code, said = await up.run("train", "huge", "--total-steps", "9000000000000000", "--", sys.executable, "-c", "pass")
    assert (code, "InvalidSteps" in said) == (2, True), said
    assert "Give a number from 0 to 1000000000000000." in said


async def test_a_gang_of_100000_is_told_so_and_makes_no_pod(up: Up) -> None:
    async with up.rig() as rig:
        await rig.submit(rig.job(replicas=100_000, gpus=1))
        job = await rig.until("the answer", lambda j: j.status.reason == "GangTooLarge")
        assert "Ask for at most 32 replicas, or add nodes for 99968 more." in job.status.message
        assert not await rig.pods()
        code, said = await up.run("job", "job")
        assert code == 0, said
        assert "GangTooLarge" in said

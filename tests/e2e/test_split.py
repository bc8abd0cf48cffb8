"""A split cluster whose parts are killed with SIGKILL, at random moments, while a gang trains and breaks.

Each schedule is drawn from its seed: a few acts (kill the server, the manager, a group of agents, or several at once; kill a
rank's process; fail the device under a rank), some while the gang still recovers from the last one. In the end the gang runs on
or has failed for a named reason, and everything holds that must: no device twice, nobody on a device that is out of use, ranks
unique and each run by one process, budgets charged to the right cause, nothing remediated twice.

Twenty schedules run on four clusters, five jobs one after another on each. One again, alone:

    python -m pytest tests/e2e/test_split.py --seed 7
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.drills import DrillKind
from remuda.api.errors import AlreadyExists, ApiError, NotFound
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.training import Failure, TrainingJob
from remuda.runtime.cluster_client import cluster_client_for_state_dir
from remuda.runtime.state_dir import StateDir
from tests.builders.waiting import PATIENCE_S, until
from tests.e2e.clusters import Up
from tests.e2e.rig import NAME, NAMESPACE, Rig

SCHEDULES, PER_CLUSTER = 20, 5
PARTS = ("server", "manager", "nodes-1", "nodes-2")
LEASE_S = 120.0  # longer than a busy machine takes to start every part again: no node is to be taken for dead
PATIENT = Failure(stop_deadline_seconds=120.0)  # nor a rank that stops when its agent is back


class Act(msgspec.Struct, frozen=True):
    wait_s: float
    kill: tuple[str, ...] = ()
    drill: str = ""  # process | device
    rank: int = 0


def draw(seed: int) -> list[Act]:
    chance = random.Random(f"split-{seed}")
    acts = []
    for _ in range(chance.randint(2, 4)):
        wait_s = chance.choice([0.0, 0.05, 0.3, 1.0])
        killed = tuple(sorted(chance.sample(PARTS, chance.choice([1, 1, 1, 2, 3]))))
        acts.append(Act(wait_s, killed, chance.choice(["", "", "process", "device"]), chance.randrange(3)))
    return acts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        one = metafunc.config.getoption("--seed")
        starts = range(0, SCHEDULES, PER_CLUSTER)
        chunks = [range(one, one + 1)] if one is not None else [range(s, s + PER_CLUSTER) for s in starts]
        metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


@pytest.fixture
def up(state: Path) -> Iterator[Up]:
    made = Up(state, lease_s=LEASE_S)
    made.start("--split", "--groups=2")
    yield made
    made.kill()


@asynccontextmanager
async def attached(state: Path) -> AsyncIterator[Rig]:
    async with cluster_client_for_state_dir(StateDir(state)) as api:
        yield Rig(api, state)


@pytest.mark.timeout(900)
async def test_schedules_of_kills(up: Up, state: Path, seeds: range) -> None:
    async with attached(state) as rig:
        for seed in seeds:
            acts = draw(seed)
            print(f"seed {seed}: {acts}")
            try:
                await play(rig, state, acts)
            except AssertionError as error:
                words = f"seed {seed}: python -m pytest tests/e2e/test_split.py --seed {seed}\n{acts}\n{error}"
                raise AssertionError(words) from error


async def play(rig: Rig, state: Path, acts: list[Act]) -> None:
    await patiently(lambda: rig.submit(rig.job(replicas=3, gpus=2, spares=1, failure=PATIENT)))
    job = await running(rig, after=None)
    for act in acts:
        await asyncio.sleep(act.wait_s)
        before = job
        if act.drill:
            await strike(rig, act, job)
        for part in act.kill:
            kill(state, part)
        job = await running(rig, after=before)
    await check(rig, job, acts)
    await patiently(lambda: rig.api.delete(TrainingJob, NAME, NAMESPACE))
    await until("every pod of the job to be gone", lambda: _no_pods(rig), PATIENCE_S)
    shutil.rmtree(state / "logs", ignore_errors=True)  # the next job has the same name, and its own story


async def strike(rig: Rig, act: Act, job: TrainingJob) -> None:
    member = job.status.members[act.rank]
    if act.drill == "process":
        try:
            await rig.drill(DrillKind.PROCESS_KILL, pod=member.pod, namespace=NAMESPACE)
        except AssertionError as error:
            # The gang may still recover from the act before, whose news had to wait for the server: the pod is on its way out.
            if not str(error).startswith(("NoSuchPod", "NotRunning")):
                raise
    else:
        await rig.fail_device(member.node, member.devices[0])


def kill(state: Path, part: str) -> None:
    """As the kernel would. The supervisor starts it again."""
    pid = int((state / "parts" / f"{part}.pid").read_text())
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it is just being started again


async def running(rig: Rig, after: TrainingJob | None) -> TrainingJob:
    """The gang has made steps since. `after`: as it was before the blow."""
    floor = after.status.progress.step if after is not None else 0
    found: list[TrainingJob] = []

    async def holds() -> bool:
        job = await rig.get()
        status = job.status
        assert status.phase != "Failed", f"{status.reason}: {status.message}"
        is_over = not status.recoveries or status.recoveries[-1].first_step_at is not None
        moved = status.progress.step > floor or (after is not None and status.attempt > after.status.attempt)
        found[:] = [job]
        return status.phase == "Running" and is_over and moved and status.progress.step > 0

    await patiently_until("the gang to train on", holds)
    return found[0]


async def check(rig: Rig, job: TrainingJob, acts: list[Act]) -> None:
    async def holds() -> bool:
        await rig.check_invariants()
        return True

    await patiently_until("the invariants to hold", holds, also=(AssertionError, KeyError))
    job = await rig.get()
    struck = {act.drill for act in acts} - {""}
    # Killing a part of Remuda costs the job nothing: only what was broken under it is charged, each cause by its own drills.
    allowed = {"process": {"code", "device"}, "device": {"device", "code"}}
    causes = {cause for kind in struck for cause in allowed[kind]}
    told = [(r.cause.value, r.reason, r.message) for r in job.status.recoveries]
    assert set(job.status.used) <= causes, f"charged {job.status.used} for {sorted(struck)}: {told}"
    most = sum(1 for act in acts if act.drill)
    assert sum(job.status.used.values()) <= most, f"charged {job.status.used}, {most} drills"
    # The news of the last drill may come after the steps that `running` saw: its part was killed with it.
    await patiently_until(
        "nobody on devices that are out of use", lambda: _is_on_good_devices(rig), also=(AssertionError,)
    )


async def _is_on_good_devices(rig: Rig) -> bool:
    bad = await _unfit(rig)
    held = {(m.node, d) for m in (await rig.get()).status.members for d in m.devices}
    assert not held & bad, f"on devices that are out of use: {sorted(held & bad)}"
    return True


async def _unfit(rig: Rig) -> set[tuple[str, str]]:
    out = (DeviceState.UNHEALTHY, DeviceState.QUARANTINED)
    nodes = (await rig.api.list(NodeDevices)).items
    return {(n.name, v.device) for n in nodes for v in n.verdicts if v.state in out}


async def _no_pods(rig: Rig) -> bool:
    try:
        return not (await rig.api.list(Pod, NAMESPACE)).items
    except ApiError:
        return False


async def patiently_until(
    what: str, holds: Callable[[], Awaitable[bool]], also: tuple[type[Exception], ...] = ()
) -> None:
    """Through the time in which the server is being started again. `also`: what else may be so only for now."""
    last: list[Exception] = []
    passing: tuple[type[Exception], ...] = (ApiError, OSError, *also)

    async def quietly() -> bool:
        try:
            return await holds()
        except passing as error:
            last[:] = [error]
            return False

    try:
        await until(what, quietly, PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; last: {last}") from None


async def patiently(call: Callable[[], Awaitable[object]]) -> None:
    """An answer may be lost with the server that gave it: done before counts as done."""

    async def holds() -> bool:
        with contextlib.suppress(NotFound, AlreadyExists):
            await call()
        return True

    await patiently_until("the API to answer", holds)

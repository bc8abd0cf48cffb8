"""Jobs on a real kubelet where things are not as our own plugin would have them: a vendor's plugin hands out the devices, an
image lacks what the launcher runs on, a node has no agent. And where checkpoints live: on the node, or on the job's volume.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio

from remuda.agent.agent import Agent
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.training import Budgets, Checkpoint, TrainingJob
from remuda.core.gang.checkpoint_dirs import job_checkpoint_dir
from tests.builders.evidence import note
from tests.builders.waiting import PATIENCE_S, until
from tests.kube.real_node import RealNode
from tests.kube.real_node_agent import agent_root, manager_of, running_agent
from tests.kube.real_node_images import BOX
from tests.kube.real_node_rig import RealRig
from tests.kube.test_kubelet_heart import NAME, SAVED, STOP_AT, Heart, job_place
from tests.kubelet_rows.rig import see_counts
from tests.kubelet_rows.stock_plugin import StockPlugin

GPU = "nvidia.com/gpu"


@pytest_asyncio.fixture
async def heart(real_node: RealNode, tmp_path: Path) -> AsyncIterator[Heart]:
    """With a manager, and no agent yet."""
    async with job_place(real_node) as made, manager_of(real_node, tmp_path / "manager.log"):
        yield made
        await end_jobs(made)


async def end_jobs(heart: Heart) -> None:
    for job in (await heart.api.list(TrainingJob, heart.rig.namespace)).items:
        await heart.api.delete(TrainingJob, job.name, heart.rig.namespace)


def with_checkpoint(job: TrainingJob, checkpoint: Checkpoint) -> TrainingJob:
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, checkpoint=checkpoint))


def with_container(job: TrainingJob, **fields: Any) -> TrainingJob:
    (role,) = job.spec.roles
    role.template.spec["containers"][0].update(fields)
    return job


def vendor_plugin(rig: RealRig, agent: Agent) -> StockPlugin:
    """It names devices by UUID, as vendors do, and brings nothing of ours into a container."""
    return StockPlugin(rig.plugin_directory, GPU, [row.uuid for row in agent.inventory.rows.values()])


async def test_beside_a_vendor_s_plugin_a_job_trains_and_recovers(heart: Heart) -> None:
    """Launcher and door come by themselves. A killed process restarts all in place; a device that fails is found by who holds it,
    whatever the scheduler had in mind, and the spare takes over."""
    rig = heart.rig
    async with running_agent(rig.real, heart.api, mode="health-only") as agent, vendor_plugin(rig, agent) as plugin:
        await see_counts(rig, GPU, 8, 8)
        heart.let_run_to(STOP_AT)
        await heart.api.create(TrainingJob, heart.job(replicas=2))
        calm, first = await heart.trained_to(STOP_AT, attempt=1, ranks=2)
        assert {line["env"]["PET_NPROC_PER_NODE"] for line in first.values()} == {"1"}
        given = {line["rank"]: line["env"]["TEST_DEVICES"] for line in first.values()}
        calm = await heart.until("the spare", lambda job: any(s.parked for s in job.status.spares))
        members = calm.status.members
        before = await heart.containers(members)

        os.kill(await heart.training_process(members[1]), signal.SIGKILL)
        restarted, again = await heart.trained_to(STOP_AT, attempt=2, ranks=2)
        assert [m.uid for m in restarted.status.members] == [m.uid for m in members]
        assert {rank: line["resumed"] for rank, line in again.items()} == {0: SAVED, 1: SAVED}
        assert await heart.containers(members) == before

        held = await heart.until(
            "the holders", lambda job: {_uuid(agent, m.devices[0]) for m in job.status.members} == set(given.values())
        )
        victim = next(m for m in held.status.members if _uuid(agent, m.devices[0]) == given[1])
        assert victim.rank == 1
        holders = {m.pod: m.devices for m in held.status.members}
        await until("pods that are said to hold what they hold", lambda: heart.are_annotations_true(holders))
        await plugin.set_health(given[1])  # its own health check sees the same
        agent.inject_fault(victim.devices[0], "xid-79")
        promoted, third = await heart.trained_to(STOP_AT, attempt=3, ranks=2)
        assert promoted.status.recoveries[-1].cause == "device"
        assert {rank: line["resumed"] for rank, line in third.items()} == {0: SAVED, 1: SAVED}
        assert promoted.status.members[0].uid == members[0].uid
        assert third[1]["env"]["TEST_DEVICES"] != given[1]
        note(
            "kubelet beside a vendor's plugin (health-only): a job trains; a killed process restarts all in place, "
            "a failed device costs one pod"
        )
        await end_jobs(heart)


def _uuid(agent: Agent, device: str) -> str:
    return agent.inventory.rows[device].uuid


async def test_a_pod_is_not_bound_where_no_agent_lives(heart: Heart) -> None:
    heart.let_run_to(STOP_AT)
    await heart.api.create(TrainingJob, heart.job(replicas=1, gpus=0, spares=0))
    waiting = await heart.until("the reason", lambda job: job.status.reason == "NoAgent")
    assert heart.rig.name in waiting.status.message
    assert not [p for p in (await heart.api.list(Pod, heart.rig.namespace)).items if p.spec.node_name]
    async with running_agent(heart.rig.real, heart.api):
        await heart.trained_to(STOP_AT, attempt=1, ranks=1)
        await end_jobs(heart)


async def test_a_launcher_that_cannot_start_is_named_and_given_up(heart: Heart) -> None:
    async with running_agent(heart.rig.real, heart.api):
        job = with_container(heart.job(replicas=1, gpus=0, spares=0), image=BOX, command=["sh", "-c", "sleep 1000"])
        failure = msgspec.structs.replace(job.spec.failure, budgets=Budgets(code=1), backoff_max_seconds=1.0)
        job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, failure=failure))
        await heart.api.create(TrainingJob, job)
        await heart.until("its name", lambda job: job.status.reason == "NoPython")
        failed = await heart.until("the end", lambda job: job.status.phase == "Failed")
        assert failed.status.reason == "CodeBudgetExhausted"
        assert "has no python3" in failed.status.message
        assert "executable file not found" in failed.status.message
        assert [r.reason for r in failed.status.recoveries] == ["NoPython", "NoPython"]


async def test_an_image_that_is_not_there_is_named(heart: Heart) -> None:
    async with running_agent(heart.rig.real, heart.api):
        job = with_container(heart.job(replicas=1, gpus=0, spares=0), image="remuda.test/none:1")
        await heart.api.create(TrainingJob, job)
        named = await heart.until("its name", lambda job: job.status.reason == "ImageNotPulled")
        assert (named.status.phase, named.status.recoveries) == ("Starting", [])
        await end_jobs(heart)


async def test_a_pod_that_is_replaced_on_its_node_finds_its_checkpoints(heart: Heart) -> None:
    """The job says nothing of where they go, and its container has a user of its own."""
    async with running_agent(heart.rig.real, heart.api):
        job = with_checkpoint(heart.job(replicas=2, gpus=0, spares=0), Checkpoint())
        heart.let_run_to(STOP_AT)
        made = await heart.api.create(
            TrainingJob, with_container(job, securityContext={"runAsUser": 1234, "runAsGroup": 1234})
        )
        calm, first = await heart.trained_to(STOP_AT, attempt=1, ranks=2)
        place = job_checkpoint_dir(str(agent_root(heart.rig.real) / "checkpoints"), made.namespace, NAME, made.uid)
        assert {line["env"]["REMUDA_CHECKPOINT_DIR"] for line in first.values()} == {place}
        assert sorted(os.listdir(place)) == ["rank-0", "rank-1"]
        old = calm.status.members[1]
        await heart.rig.delete_pod(old.pod)
        after, second = await heart.trained_to(STOP_AT, attempt=2, ranks=2)
        assert after.status.members[1].uid != old.uid
        assert {rank: line["resumed"] for rank, line in second.items()} == {0: SAVED, 1: SAVED}
        said = {c.type: c.status for c in after.status.conditions}
        assert said["CheckpointsNotShared"] == "True"
        await end_jobs(heart)


async def test_the_job_s_volume_is_mounted_at_its_path(heart: Heart) -> None:
    volume = heart.shared / "volume"
    volume.mkdir(mode=0o777)
    place = Checkpoint(path="/data/ckpt", volume={"hostPath": {"path": str(volume)}})
    async with running_agent(heart.rig.real, heart.api):
        heart.let_run_to(STOP_AT)
        await heart.api.create(TrainingJob, with_checkpoint(heart.job(replicas=1, gpus=0, spares=0), place))
        job, first = await heart.trained_to(STOP_AT, attempt=1, ranks=1)
        assert first[0]["env"]["REMUDA_CHECKPOINT_DIR"] == "/data/ckpt"

        async def saved() -> bool:
            return await asyncio.to_thread(lambda: any(volume.glob(f"rank-0/*{SAVED}*")))

        await until("the checkpoint on the volume", saved, PATIENCE_S)
        assert "CheckpointsNotShared" not in {c.type for c in job.status.conditions}
        await end_jobs(heart)

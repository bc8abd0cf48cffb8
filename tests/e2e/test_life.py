"""The life of a job without faults: it starts, every dialect of environment is there, it ends, nothing is left."""

from __future__ import annotations

import sys

from remuda.api.training import TrainingJob
from remuda.core.training.rendezvous import rendezvous_ports
from tests.builders.waiting import until
from tests.e2e.rig import RANKS, Rig, left_running


async def test_a_job_whose_ranks_exit_0_succeeds_and_leaves_nothing(rig: Rig) -> None:
    await rig.submit(rig.job(spares=1, steps=6))

    done = await rig.until("the job to end", lambda job: job.is_finished)

    assert (done.status.phase, done.status.reason) == ("Succeeded", "AllRanksDone")
    assert done.status.progress.step == 6
    assert done.status.attempt == 1
    assert done.status.recoveries == []

    async def nothing_left() -> bool:
        return not await rig.pods() and not left_running(rig.state)

    await until("pods and processes to be gone", nothing_left)
    assert set(rig.started(1)) == set(range(RANKS)), "logs outlive the pods"


async def test_every_rank_is_told_who_it_is_in_every_dialect(rig: Rig) -> None:
    rig.let_run_to(1)
    await rig.submit(rig.job(gpus=2))
    job = await rig.trained_to(1)
    started = await rig.all_started(1)

    assert len({line.env["POD_IP"] for line in started.values()}) == RANKS
    seen: set[tuple[str, str]] = set()
    for rank, line in started.items():
        env, member = line.env, job.status.members[rank]
        master = job.status.members[0].address
        assert _environment(job, rank, master).items() <= env.items()
        assert env["POD_NAME"] == env["HOSTNAME"] == env["REMUDA_POD_NAME"] == member.pod
        assert (env["NODE_NAME"], env["POD_IP"]) == (member.node, member.address)
        assert env["REMUDA_VISIBLE_DEVICES"].split(",") == member.devices
        assert env["CUDA_VISIBLE_DEVICES"].split(",") == [device.removeprefix("gpu-") for device in member.devices]
        seen |= {(env["NODE_NAME"], device) for device in member.devices}
    assert len(seen) == 2 * RANKS


def _environment(job: TrainingJob, rank: int, master: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(rendezvous_ports(master)[0]),
        "PET_NNODES": str(RANKS),
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": master,
        "PET_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "JAX_NUM_PROCESSES": str(RANKS),
        "JAX_PROCESS_ID": str(rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "REMUDA_JOB": job.name,
        "REMUDA_ATTEMPT": "1",
        "REMUDA_RANK": str(rank),
        "REMUDA_RESUME_STEP": "",
    }


async def test_a_command_that_does_not_exist_fails_the_job_and_says_so(rig: Rig) -> None:
    await rig.submit(rig.job(command=["no-such-command"]))

    failed = await rig.until("the job to fail", lambda job: job.is_finished)

    assert (failed.status.phase, failed.status.reason) == ("Failed", "CommandNotFound")
    assert "no-such-command" in failed.status.message


async def test_a_torchrun_like_agent_starts_a_process_per_device(rig: Rig) -> None:
    """As torchrun does it: one agent per pod reads PET_*, and gives each of its own processes a rank and a device."""
    agent = (
        "import os,subprocess,sys\n"
        "e=os.environ;n=int(e['PET_NPROC_PER_NODE']);first=int(e['PET_NODE_RANK'])*n\n"
        "devices=e['CUDA_VISIBLE_DEVICES'].split(',')\n"
        "code=\"import os;print(os.environ['RANK'],os.environ['LOCAL_RANK'],os.environ['CUDA_VISIBLE_DEVICES'],flush=True)\"\n"
        "kids=[subprocess.Popen([sys.executable,'-c',code],env={**e,'RANK':str(first+i),'LOCAL_RANK':str(i),"
        "'WORLD_SIZE':str(n*int(e['PET_NNODES'])),'CUDA_VISIBLE_DEVICES':devices[i]}) for i in range(n)]\n"
        "sys.exit(max(kid.wait() for kid in kids))\n"
    )
    await rig.submit(rig.job(replicas=2, gpus=2, command=[sys.executable, "-c", agent]))

    done = await rig.until("the job to end", lambda job: job.is_finished)

    assert done.status.phase == "Succeeded", done.status.message
    said = sorted(tuple(map(int, line.split())) for line in rig.lines(1))
    assert [(rank, local) for rank, local, _ in said] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert len({device for _, _, device in said}) == 4, "two pods on one node, four devices"

"""The environment that tells a member who it is: every dialect at once, so that no job needs a wrapper script.

A pod is one *node* of the job in torchrun's sense: with g devices it may run g local ranks (torchrun, LOCAL_RANK -> device),
or one process that drives them all. The plain variables (RANK, WORLD_SIZE) count pods; torchrun overrides them for its own
children. PET_* are torchrun's flags as variables; its own restarts are off because the gang's restart is ours.

Pods with an address of their own machine's loopback share that machine's ports, and frameworks listen on all addresses at once
(torch's store on [::]): two gangs on one port would end each other, so there the port follows from the master's address.
"""

from __future__ import annotations

from remuda.api.training import Member, TrainingJob
from remuda.core.training.checkpoint_sizes import checkpoint_ranks_at
from remuda.core.training.role_stages import world_size

MASTER_PORT = 29500
JAX_PORT = 55527
LOOPBACK_PORTS = (10_000, 20_000)  # the first of ten thousand each, below those that kernels give to clients


def rendezvous_ports(address: str) -> tuple[int, int]:
    """Where the pod with this address listens as master: for torch, and for JAX."""
    if not address.startswith("127."):
        return MASTER_PORT, JAX_PORT
    _, second, third, fourth = (int(part) for part in address.split("."))
    place = (second << 16 | third << 8 | fourth) % 10_000
    return LOOPBACK_PORTS[0] + place, LOOPBACK_PORTS[1] + place


def rendezvous_env_of_rank(job: TrainingJob, member: Member, gpus: int) -> dict[str, str]:
    """Variables for the child of `member`'s launcher in the job's current attempt."""
    members = job.status.members
    world = world_size(job)
    first = members[0] if members else member
    master = first.address or "127.0.0.1"
    master_port, jax_port = rendezvous_ports(first.address)
    attempt = job.status.attempt
    local = max(gpus, 1)
    hosts = ",".join(m.address or m.pod for m in members)
    run_id = f"{job.name}-{attempt}"
    env = {
        "REMUDA_JOB": job.name,
        "REMUDA_NAMESPACE": job.namespace,
        "REMUDA_ATTEMPT": str(attempt),
        "REMUDA_RANK": str(member.rank),
        "REMUDA_WORLD_SIZE": str(world),
        "REMUDA_ROLE": member.role,
        "REMUDA_HOSTS": hosts,
        # one process per pod
        "RANK": str(member.rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(member.rank),
        "GROUP_RANK": str(member.rank),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(master_port),
        # torchrun: one agent per pod, a process per device
        "PET_NNODES": str(world),
        "PET_NPROC_PER_NODE": str(local),
        "PET_NODE_RANK": str(member.rank),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(master_port),
        "PET_RDZV_ID": run_id,
        "PET_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": str(max(attempt - 1, 0)),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # JAX
        "JAX_COORDINATOR_ADDRESS": f"{master}:{jax_port}",
        "JAX_NUM_PROCESSES": str(world),
        "JAX_PROCESS_ID": str(member.rank),
        # MPI-style launchers that read the rank from the environment
        "OMPI_COMM_WORLD_RANK": str(member.rank),
        "OMPI_COMM_WORLD_SIZE": str(world),
        "PMI_RANK": str(member.rank),
        "PMI_SIZE": str(world),
    }
    # Empty means "from the beginning", which the launcher must hear: checkpoints of a history given up are then never used again.
    resume = job.status.resume_step
    env["REMUDA_RESUME_STEP"] = "" if resume is None else str(resume)
    worlds = job.status.worlds
    if resume is not None and (len(worlds) > 1 or any(one.ranks != len(members) for one in worlds)):
        env["REMUDA_CHECKPOINT_RANKS"] = str(checkpoint_ranks_at(worlds, resume))
    return env

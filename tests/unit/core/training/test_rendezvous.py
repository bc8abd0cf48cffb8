"""The environment of a rank: every dialect says the same."""

from remuda.api.training import Member
from remuda.core.training.rendezvous import rendezvous_env_of_rank, rendezvous_ports
from tests.builders.gangs import a_job

MEMBERS = [Member(r, "worker", f"job-worker-{r}", f"u{r}", address=f"127.1.0.{r + 1}") for r in range(2)]


def env_of(rank: int, **status: object) -> dict[str, str]:
    job = a_job().status(members=MEMBERS, attempt=3, **status).build()
    return rendezvous_env_of_rank(job, MEMBERS[rank], gpus=4)


def test_all_dialects_agree() -> None:
    env = env_of(1)
    for name in ("RANK", "NODE_RANK", "PET_NODE_RANK", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "REMUDA_RANK"):
        assert env[name] == "1", name
    for name in ("WORLD_SIZE", "PET_NNODES", "JAX_NUM_PROCESSES", "OMPI_COMM_WORLD_SIZE"):
        assert env[name] == "2", name
    for name in ("MASTER_ADDR", "PET_MASTER_ADDR"):
        assert env[name] == "127.1.0.1", name
    assert env["PET_NPROC_PER_NODE"] == "4"


def test_gangs_that_share_a_machines_ports_have_a_port_of_their_own() -> None:
    """Frameworks listen on all addresses at once, whatever address they are told."""
    ports = [rendezvous_ports(f"127.7.8.{n}") for n in range(1, 255)]
    assert len({port for pair in ports for port in pair}) == 2 * 254
    assert all(10_000 <= torch < 20_000 <= jax < 30_000 for torch, jax in ports)
    assert rendezvous_ports("10.1.2.3") == (29500, 55527), "a pod that has its ports to itself"
    env = env_of(1)
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == str(rendezvous_ports("127.1.0.1")[0])


def test_torchruns_own_restarts_are_off_and_the_attempt_is_told() -> None:
    env = env_of(0)
    assert (env["PET_MAX_RESTARTS"], env["TORCHELASTIC_RESTART_COUNT"], env["REMUDA_ATTEMPT"]) == ("0", "2", "3")


def test_the_resume_step_is_told() -> None:
    assert env_of(0, resume_step=40)["REMUDA_RESUME_STEP"] == "40"

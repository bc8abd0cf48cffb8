"""The environment of a rank: every dialect says the same."""

from remuda.api.training import Member
from remuda.core.training.rendezvous import rank_env
from tests.builders.gangs import a_job

MEMBERS = [Member(r, "worker", f"job-worker-{r}", f"u{r}", address=f"127.1.0.{r + 1}") for r in range(2)]


def env_of(rank: int, **status: object) -> dict[str, str]:
    job = a_job().status(members=MEMBERS, attempt=3, **status).build()
    return rank_env(job, MEMBERS[rank], gpus=4)


def test_all_dialects_agree() -> None:
    env = env_of(1)
    for name in ("RANK", "NODE_RANK", "PET_NODE_RANK", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "REMUDA_RANK"):
        assert env[name] == "1", name
    for name in ("WORLD_SIZE", "PET_NNODES", "JAX_NUM_PROCESSES", "OMPI_COMM_WORLD_SIZE"):
        assert env[name] == "2", name
    for name in ("MASTER_ADDR", "PET_MASTER_ADDR"):
        assert env[name] == "127.1.0.1", name
    assert env["PET_NPROC_PER_NODE"] == "4"


def test_torchruns_own_restarts_are_off_and_the_attempt_is_told() -> None:
    env = env_of(0)
    assert (env["PET_MAX_RESTARTS"], env["TORCHELASTIC_RESTART_COUNT"], env["REMUDA_ATTEMPT"]) == ("0", "2", "3")


def test_the_resume_step_is_told() -> None:
    assert env_of(0, resume_step=40)["REMUDA_RESUME_STEP"] == "40"

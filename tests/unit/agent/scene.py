"""Jobs, members and launchers for the agent's tests, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remuda.agent.launchers.barrier_orders import Site
from remuda.agent.launchers.launcher_state import Launcher, receive
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import ObjectMeta
from remuda.api.names import LABEL_GANG
from remuda.api.training import Checkpoint, Failure, Member, TrainingJob, TrainingJobSpec, TrainingJobStatus
from remuda.launch.protocol import Hello, Ready, Running, ToAgent

NOW = 1_700_000_000.0


def a_job(
    attempt: int = 1,
    barrier: str = "Closed",
    members: Sequence[str] = ("a",),
    *,
    name: str = "job",
    phase: str = "Running",
    path: str = "",
    version: int = 1,
    **failure: Any,
) -> TrainingJob:
    """`members`: pod uids in order of rank."""
    return TrainingJob(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", resource_version=str(version)),
        spec=TrainingJobSpec(checkpoint=Checkpoint(path=path), failure=Failure(**failure)),
        status=TrainingJobStatus(
            phase=phase,
            attempt=attempt,
            barrier=barrier,
            members=[Member(rank, "worker", f"pod-{uid}", uid) for rank, uid in enumerate(members)],
        ),
    )


def a_pod(uid: str = "a", gang: str = "job") -> Pod:
    labels = {LABEL_GANG: gang} if gang else {}
    return Pod(metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=uid, labels=labels))


def a_launcher(uid: str = "a", **fields: Any) -> Launcher:
    return Launcher(f"pod-{uid}", uid, "default", "job", **fields)


def hello(state: str = "parked", attempt: int = 0, uid: str = "a") -> Hello:
    return Hello(f"pod-{uid}", uid, 42, state, attempt)


def heard(*messages: ToAgent, uid: str = "a", now: float = NOW, **fields: Any) -> Launcher:
    """A launcher after it said all this."""
    launcher = a_launcher(uid, **fields)
    for message in messages:
        launcher = receive(launcher, message, now).launcher
    return launcher


def ready(attempt: int, *steps: int) -> Ready:
    return Ready(attempt, steps)


def running(attempt: int, time: float = NOW) -> Running:
    return Running(attempt, 43, time)


def a_site(fault: str | None = "", directory: str = "/ckpt") -> Site:
    return Site(directory, fault, lambda job, member, gpus: {"RANK": str(member.rank), "GPUS": str(gpus)})

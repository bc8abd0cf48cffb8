"""For the agent's tests: jobs, members and launchers in few words; and `Scene`, an agent's parts without an API: devices of a
model, grants, a plugin, and the pods it believes are bound here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from remuda.agent.allocation.device_grants import AllocationGrants, GrantPlace
from remuda.agent.allocation.mig_slicing import MigSlicer
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.inventory import Inventory
from remuda.agent.launchers.barrier_orders import BarrierSite
from remuda.agent.launchers.launcher_registry import LauncherRegistry
from remuda.agent.launchers.launcher_state import LauncherRecord, receive_launcher_message
from remuda.agent.plugin.preferred_devices import plugin_best_linked_devices
from remuda.agent.plugin.resource_plugin import ResourcePlugin
from remuda.api.kubernetes.core_v1 import Container, Pod, PodSpec, PodStatus, ResourceRequirements
from remuda.api.meta import ObjectMeta
from remuda.api.names import ANNOTATION_DEVICES, LABEL_GANG, RESOURCE_GPU
from remuda.api.training import Checkpoint, Failure, Member, TrainingJob, TrainingJobSpec, TrainingJobStatus
from remuda.core.devices.links import machine_model_chooser
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.informer import Informer
from remuda.launch.protocol import Hello, Ready, Running, ToAgent
from remuda.link.progress_board import ProgressBoard

NODE = "node-01"
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


def gang_pod(uid: str = "a", gang: str = "job") -> Pod:
    labels = {LABEL_GANG: gang} if gang else {}
    return Pod(metadata=ObjectMeta(name=f"pod-{uid}", namespace="default", uid=uid, labels=labels))


def a_launcher(uid: str = "a", **fields: Any) -> LauncherRecord:
    return LauncherRecord(f"pod-{uid}", uid, "default", "job", **fields)


def hello(state: str = "parked", attempt: int = 0, uid: str = "a") -> Hello:
    return Hello(f"pod-{uid}", uid, 42, state, attempt)


def heard(*messages: ToAgent, uid: str = "a", now: float = NOW, **fields: Any) -> LauncherRecord:
    """A launcher after it said all this."""
    launcher = a_launcher(uid, **fields)
    for message in messages:
        launcher = receive_launcher_message(launcher, message, now).launcher
    return launcher


def ready(attempt: int, *steps: int) -> Ready:
    return Ready(attempt, steps)


def running(attempt: int, time: float = NOW) -> Running:
    return Running(attempt, 43, time)


def a_site(fault: str | None = "", directory: str = "/ckpt") -> BarrierSite:
    return BarrierSite(directory, fault, lambda job, member, gpus: {"RANK": str(member.rank), "GPUS": str(gpus)})


@contextmanager
def short_directory() -> Iterator[Path]:
    """Socket paths are limited to 107 bytes, and the names pytest gives are long."""
    with tempfile.TemporaryDirectory(prefix="rm-") as name:
        yield Path(name)


def a_pod(
    name: str,
    gpus: int = 1,
    devices: str = "",
    *,
    created: float = 0.0,
    resource: str = RESOURCE_GPU,
    started: bool = False,
    uid: str = "",
) -> Pod:
    stamp = datetime.fromtimestamp(NOW + created, UTC)
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=uid or f"uid-{name}",
            creation_timestamp=stamp,
            annotations={ANNOTATION_DEVICES: devices} if devices else {},
            labels={LABEL_GANG: "job"},
        ),
        spec=PodSpec(
            node_name=NODE, containers=[Container(name="main", resources=ResourceRequirements(limits={resource: gpus}))]
        ),
        status=PodStatus(start_time=stamp if started else None),
    )


class Scene:
    def __init__(self, root: Path, model: str = "dgx-h100", *, sockets: bool = True, **place: Any) -> None:
        self.now = NOW
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=self.clock, new_uid=lambda: "uid")
        self.model = load_built_in_machine_model(model)
        self.backend = FakeBackend(self.model, NODE, self.clock)
        self.inventory = Inventory(NODE, self.backend.inventory())
        self.backend.subscribe(self.inventory.hear)
        self.backend.subscribe_inventory(lambda: self.inventory.renew(self.backend.inventory()))
        self.launchers = LauncherRegistry(
            NODE,
            str(root / "checkpoints"),
            jobs=Informer(cluster, TrainingJob),
            board=ProgressBoard(),
            clock=self.clock,
            env_of=lambda job, member, gpus: {},
            rejoin_s=5.0,
            announce=lambda: None,
        )
        self.root = root / "alloc"
        self.news = 0
        self.grants = AllocationGrants(
            GrantPlace(NODE, str(self.root), sockets, **place),
            self.inventory,
            self.launchers,
            clock=self.clock,
            changed=self._count,
            device_files=self.backend.device_files,
        )
        self.slicer = MigSlicer(self.backend, self.inventory, self.grants, {})
        self.bound: Sequence[Pod] = ()
        self.pods_error: Exception | None = None

    def clock(self) -> float:
        return self.now

    def _count(self) -> None:
        self.news += 1

    async def pods(self) -> Sequence[Pod]:
        if self.pods_error is not None:
            raise self.pods_error
        return self.bound

    def plugin(self, resource: str = RESOURCE_GPU, **fields: Any) -> ResourcePlugin:
        return ResourcePlugin(
            resource,
            inventory=self.inventory,
            grants=self.grants,
            pods=self.pods,
            best=plugin_best_linked_devices(machine_model_chooser(self.model), self.inventory),
            **fields,
        )

    def close(self) -> None:
        self.launchers.silence()

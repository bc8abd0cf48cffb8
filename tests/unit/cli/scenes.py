"""A small cluster as the CLI sees it: objects made by hand in a store in memory, a fixed clock, and `run` for a command line.

cli = Cli(tmp_path, [*machines(), a_job()])
result = cli.run("jobs", "-o", "json")
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, RenderableType

from remuda.api.codec import to_wire
from remuda.api.devices import DeviceState, LauncherReport, NodeDevices, Observed, ObservedDevice, Verdict
from remuda.api.drills import Drill
from remuda.api.kubernetes.core_v1 import Node, NodeStatus, Pod, PodSpec, PodStatus
from remuda.api.meta import Condition, JsonObject, KObject, ObjectMeta, to_time
from remuda.api.names import ANNOTATION_DEVICES, LABEL_GANG
from remuda.api.training import (
    Budgets,
    Cause,
    Failure,
    Goodput,
    Member,
    Placement,
    PodTemplate,
    Progress,
    Recovery,
    Remedy,
    Role,
    SparePod,
    TrainingJob,
    TrainingJobSpec,
    TrainingJobStatus,
)
from remuda.cli.app import main
from remuda.cli.session import Session
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore
from remuda.embedded.apiserver.store.journal import MemoryJournal
from remuda.kube.cluster import Cluster
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import RACK_LABEL

NOW = 1_800_000_000.0
GPUS = [f"gpu-{i}" for i in range(8)]


def at(seconds: float) -> datetime:
    return to_time(NOW + seconds)


def pod_uid(index: int) -> str:
    return f"uid-{index}"


def a_recovery(**changes: Any) -> Recovery:
    fault = Recovery(
        attempt=2,
        cause=Cause.DEVICE,
        remedy=Remedy.PROMOTE_SPARE,
        reason="Xid79",
        message="gpu-2 on node-02 is Unhealthy: xid-79: GPU has fallen off the bus.",
        price_gpu_hours=0.1234,
        members=["hello-worker-1"],
        replaced=["hello-worker-3"],
        why_not=["RestartInPlace: hello-worker-1 cannot be used again (Xid79)"],
        signal_at=at(-60),
        detected_at=at(-59.95),
        stopped_at=at(-59.4),
        opened_at=at(-59.0),
        first_step_at=at(-58.5),
        step_at_fault=123,
        resume_step=120,
        lost_gpu_seconds=40.0,
    )
    return msgspec.structs.replace(fault, **changes)


def a_job(name: str = "hello", **status: Any) -> TrainingJob:
    """Three ranks of eight GPUs in rack-1, running after one recovery, with a parked spare."""
    template = PodTemplate(spec={"containers": [{"name": "main", "command": ["python", "train.py"]}]})
    members = [
        Member(rank, "worker", f"{name}-worker-{index}", pod_uid(index), f"node-0{index + 1}", GPUS)
        for rank, index in ((0, 0), (1, 3), (2, 2))
    ]
    fields: dict[str, Any] = {
        "phase": "Running",
        "reason": "BarrierOpen",
        "message": "All 3 ranks run attempt 2.",
        "attempt": 2,
        "barrier": "Open",
        "members": members,
        "spares": [SparePod(f"{name}-worker-4", pod_uid(4), "worker", "node-05", GPUS, parked=True)],
        "placement": Placement(RACK_LABEL, "rack-1"),
        "progress": Progress(140, 140, at(-3), 0.2, at(0), [140, 140, 141]),
        "used": {"device": 1},
        "recoveries": [a_recovery()],
        "interruptions": 1,
        "goodput": Goodput(ettr=0.9712, wall_seconds=120, lost_seconds=3.4, lost_gpu_seconds={"device": 82.5}),
        "started_at": at(-120),
        **status,
    }
    return TrainingJob(
        metadata=ObjectMeta(name=name, namespace="default", creation_timestamp=at(-125)),
        spec=TrainingJobSpec(
            roles=[Role(replicas=3, gpus=8, template=template)],
            spares=1,
            failure=Failure(budgets=Budgets()),
        ),
        status=TrainingJobStatus(**fields),
    )


def a_pod(index: int, job: str = "hello", **changes: Any) -> Pod:
    pod = Pod(
        metadata=ObjectMeta(
            name=f"{job}-worker-{index}",
            namespace="default",
            uid=pod_uid(index),
            labels={LABEL_GANG: job},
            annotations={ANNOTATION_DEVICES: ",".join(GPUS)},
        ),
        spec=PodSpec(node_name=f"node-0{index + 1}"),
        status=PodStatus(phase="Running"),
    )
    return msgspec.structs.replace(pod, **changes)


def a_report(index: int, state: str = "running", attempt: int = 2, **changes: Any) -> LauncherReport:
    report = LauncherReport(pod=f"hello-worker-{index}", uid=pod_uid(index), state=state, attempt=attempt)
    return msgspec.structs.replace(report, **changes)


def a_node(number: int, rack: str = "rack-1", *, ready: bool = True) -> Node:
    condition = Condition("Ready", "True" if ready else "Unknown", "" if ready else "LeaseExpired")
    return Node(
        metadata=ObjectMeta(name=f"node-0{number}", labels={RACK_LABEL: rack}, creation_timestamp=at(-300)),
        status=NodeStatus(conditions=[condition], allocatable={"nvidia.com/gpu": "8"}),
    )


def devices_of_node(
    number: int, reports: Iterable[LauncherReport] = (), bad: dict[str, Verdict] | None = None
) -> NodeDevices:
    bad = bad or {}
    return NodeDevices(
        metadata=ObjectMeta(name=f"node-0{number}"),
        observed=Observed(
            model="dgx-h100", devices=[ObservedDevice(id=g, type="H100") for g in GPUS], launchers=list(reports)
        ),
        verdicts=[bad.get(g, Verdict(device=g, since=at(-300))) for g in GPUS],
    )


def holding(*devices: str, name: str = "hello-worker-1", **fields: Any) -> ObjectMeta:
    """Metadata of a pod that holds those devices."""
    annotations = {ANNOTATION_DEVICES: ",".join(devices)}
    return ObjectMeta(name=name, namespace="default", annotations=annotations, **fields)


def a_full_node(number: int = 2, model: str = "dgx-h100", *, sliced: bool = False) -> NodeDevices:
    """A node that says all of its devices an agent can say; gpu-2 is bad. `sliced`: gpu-1 is cut in two."""
    rows: list[ObservedDevice] = []
    for d in load_built_in_machine_model(model).devices:
        row = ObservedDevice(
            id=d.id,
            type=d.type,
            index=d.index,
            memory_bytes=d.memory_bytes,
            numa=d.numa,
            nic=d.nic,
            uuid=f"GPU-3d2f8e4c-1111-2222-3333-44445555666{d.index}",
            pci=f"0000:{0x1B + 18 * d.index:02x}:00.0",
        )
        rows.append(row)
        if sliced and d.index == 1:
            rows[-1] = msgspec.structs.replace(row, resource="")
    if sliced:
        rows += [
            msgspec.structs.replace(
                rows[1],
                id=f"gpu-1-3g.40gb-{start}",
                uuid=f"MIG-3d2f8e4c-1111-2222-3333-44445555666{start}",
                memory_bytes=rows[1].memory_bytes // 2,
                resource="nvidia.com/mig-3g.40gb",
                parent="gpu-1",
                profile="3g.40gb",
                start=start,
            )
            for start in (0, 4)
        ]
    return NodeDevices(
        metadata=ObjectMeta(name=f"node-0{number}"),
        observed=Observed(model=model, devices=rows),
        verdicts=[XID if r.id == "gpu-2" else Verdict(device=r.id, since=at(-300)) for r in rows],
    )


def a_sliced_node() -> NodeDevices:
    return a_full_node(sliced=True)


XID = Verdict(
    device="gpu-2",
    state=DeviceState.UNHEALTHY,
    reason="Xid79",
    message="xid-79: GPU has fallen off the bus.",
    since=at(-60),
)


def machines() -> list[KObject]:
    """Five nodes in rack-1, one in rack-2; the device under the old pod of rank 1 is bad, the job's pods report."""
    made: list[KObject] = []
    for number in range(1, 7):
        made.append(a_node(number, "rack-1" if number < 6 else "rack-2"))
        index = number - 1
        reports = [a_report(index)] if index in (0, 2, 3) else [a_report(4, "parked", 0)] if index == 4 else []
        made.append(devices_of_node(number, reports, {"gpu-2": XID} if number == 2 else None))
    return made


def pods() -> list[Pod]:
    return [a_pod(index) for index in (0, 2, 3, 4)]


def text_of(renderable: RenderableType, width: int) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


class Result(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class RealSession(Session):
    """As if a kubeconfig had been named."""

    is_real = True


class Cli:
    """Runs command lines against a store that lives from one to the next. `drills`: the status each drill is given."""

    def __init__(self, state: Path, objects: Iterable[KObject] = (), *, drills: JsonObject | None = None) -> None:
        self.state = state
        self.session = Session
        self._journal = MemoryJournal()
        self._objects = list(objects)
        self._drills = drills
        self._uids = 0
        self._next_uid = ""  # objects made by hand keep the uid they were given

    def run(self, *argv: str, tty: bool = False) -> Result:
        out, err = Terminal() if tty else io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(argv, self.session(self.state, connect=self.connect, clock=lambda: NOW))
        return Result(code, out.getvalue(), err.getvalue())

    def objects(self, kind: type[KObject]) -> list[Any]:
        async def look() -> list[Any]:
            async with self.connect(StateDir(self.state)) as cluster:
                return list((await cluster.list(kind)).items)

        return asyncio.run(look())

    @contextlib.asynccontextmanager
    async def connect(self, state: StateDir) -> AsyncIterator[Cluster]:
        store = ObjectStore(self._journal)
        cluster = LocalCluster(store, clock=lambda: NOW, new_uid=self._new_uid)
        for obj in self._objects:
            self._next_uid = obj.uid
            await _put(cluster, obj)
        self._next_uid = ""
        self._objects.clear()
        answering = asyncio.create_task(_answer(cluster, self._drills)) if self._drills else None
        try:
            yield cluster
        finally:
            if answering is not None:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
            self._journal = MemoryJournal(self._journal.rows())
            await store.close()

    def _new_uid(self) -> str:
        self._uids += 1
        return self._next_uid or f"made-{self._uids}"


async def _put(cluster: LocalCluster, obj: KObject) -> None:
    """Create, then the status, which `create` drops as the API does."""
    made = await cluster.create(type(obj), obj)
    status = to_wire(obj).get("status")
    if status is not None and "status" in obj.resource.subresources:
        await cluster.patch(type(obj), made.name, {"status": status}, made.namespace, subresource="status")


async def _answer(cluster: LocalCluster, status: JsonObject) -> None:
    async for event in cluster.watch(Drill, "0"):
        if event.obj is not None and event.obj.status.phase == "Pending":
            await cluster.patch(Drill, event.obj.name, {"status": status}, subresource="status")

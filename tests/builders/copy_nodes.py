"""Nodes that keep copies for each other over real TLS on loopback, with real files: doors, certificates, stores and job
directories are the real ones; the API is a stand-in that knows jobs and where nodes listen."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from remuda.agent.copies.byte_pace import BytePace
from remuda.agent.copies.copy_dialler import CopyDialler
from remuda.agent.copies.copy_ports import JobKey
from remuda.agent.copies.copy_service import CopyService
from remuda.agent.copies.copy_store import CopyLimits, CopyStore
from remuda.agent.copies.job_files import JobCheckpointFiles
from remuda.api.devices import NodeDevices, Observed
from remuda.api.errors import ApiError, NotFound, StatusDetails
from remuda.api.meta import ObjectMeta
from remuda.api.names import GROUP
from remuda.api.training import Member, TrainingJob, TrainingJobSpec, TrainingJobStatus
from remuda.core.health.peer_vouching import PeerPlace
from remuda.kube.cluster import Cluster
from remuda.link.copy_wire import VERB, CopyMark
from remuda.link.peer_certificates import PeerAuthority, PeerKey
from remuda.link.peer_door import PeerDoor
from tests.builders.waiting import until

KEY = JobKey("default", "job", "0123456789ab")


def training_job(*nodes: str, attempt: int = 1, **status: Any) -> TrainingJob:
    """A rank on each of those nodes."""
    members = [Member(rank, "worker", f"pod-{rank}", f"uid-{rank}", node) for rank, node in enumerate(nodes)]
    return TrainingJob(
        metadata=ObjectMeta(name=KEY.name, namespace=KEY.namespace, uid=KEY.uid),
        spec=TrainingJobSpec(roles=[]),
        status=TrainingJobStatus(attempt=attempt, opened_attempt=attempt, barrier="Open", members=members, **status),
    )


class CopyApi:
    """As much of the API as is asked."""

    def __init__(self) -> None:
        self.job: TrainingJob | None = None
        self.doors: dict[str, str] = {}
        self.is_away = False
        self.instead: ApiError | None = None  # what is answered about jobs
        self.asked = 0

    async def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
        self.asked += 1
        if self.is_away:
            raise OSError("the API is away")
        if kind is TrainingJob and self.instead is not None:
            raise self.instead
        if kind is NodeDevices and name in self.doors:
            return NodeDevices(metadata=ObjectMeta(name=name), observed=Observed(door=self.doors[name]))
        if kind is TrainingJob and self.job is not None and (name, namespace) == (self.job.name, self.job.namespace):
            return self.job
        plural = kind.__name__.lower() if kind is NodeDevices else f"{kind.__name__.lower()}s"
        raise NotFound(f"{name} is not there", details=StatusDetails(name, plural, GROUP))


class CopyNode:
    def __init__(self, nodes: CopyNodes, name: str, limits: CopyLimits, bandwidth: float) -> None:
        self.name, self.nodes = name, nodes
        self.home = nodes.root / name
        self.home.mkdir(parents=True)
        self._work = ThreadPoolExecutor(4)
        self.files = JobCheckpointFiles(self.home / "checkpoints", self._work)
        self.files.prepare()
        self.store = CopyStore(self.home / "copies", limits)
        self.store.open()
        pace = BytePace(bandwidth)
        self.service = CopyService(name, self.files, self.store, self._find_job, BytePace(bandwidth), pace)
        self.key = PeerKey()
        self.door = PeerDoor(self._answer)
        self.door.further[VERB] = self.service.serve
        self.places: dict[str, PeerPlace] = {}
        self.asker: Any = None
        api = cast(Cluster, nodes.api)
        self.dialler = CopyDialler(self.service, api, lambda: self.asker, lambda: self.places, pace)

    def _find_job(self, namespace: str, name: str) -> TrainingJob | None:
        job = self.nodes.api.job
        return job if job is not None and (job.namespace, job.name) == (namespace, name) else None

    async def _answer(self) -> str:
        return "reaches"

    async def start(self) -> None:
        certificate = self.nodes.authority.sign(self.name, self.key.csr)
        self.door.tls, self.asker = self.key.contexts(certificate, [self.nodes.authority.ca])
        self.port = await self.door.start("127.0.0.1", 0)
        self.nodes.api.doors[self.name] = f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self.door.stop()
        self.service.stop()

        async def is_idle() -> bool:
            return not self.door.is_busy and not self.service.is_busy

        await until("nobody is at the door", is_idle)
        for _ in range(5):
            await asyncio.sleep(0)
        self._work.shutdown()

    # --- files ----------------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self.files.root / KEY.directory

    def save(self, rank: int, step: int, data: bytes, **side: Any) -> CopyMark:
        """As a rank does."""
        folder = self.folder / f"rank-{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"step-{step}.ckpt").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        body = {"step": step, "bytes": len(data), "sha256": digest} | side
        (folder / f"step-{step}.json").write_text(json.dumps(body), encoding="ascii")
        return CopyMark(step, len(data), digest, attempt=0)

    def data(self, rank: int, step: int) -> bytes:
        return (self.folder / f"rank-{rank}" / f"step-{step}.ckpt").read_bytes()

    def held(self, rank: int) -> dict[int, int]:
        """Steps and attempts of the copies here, as they are on disk."""
        found = CopyStore(self.store.root, CopyLimits())
        marks = json_marks(found.root / KEY.directory / f"rank-{rank}")
        return {body["step"]: body["attempt"] for body in marks}


def json_marks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(side.read_text(encoding="ascii")) for side in sorted(folder.glob("step-*.json"))]


class CopyNodes:
    """All of them know each other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.api = CopyApi()
        self.authority = PeerAuthority(time.time)
        self.nodes: list[CopyNode] = []

    async def add(self, name: str, limits: CopyLimits | None = None, bandwidth: float = 0.0) -> CopyNode:
        node = CopyNode(self, name, limits or CopyLimits(1 << 30, 1 << 28), bandwidth)
        await node.start()
        self.nodes.append(node)
        for one in self.nodes:
            one.places = {n.name: PeerPlace(n.name, "127.0.0.1", n.port) for n in self.nodes if n is not one}
        return node

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


async def pair(nodes: CopyNodes) -> tuple[CopyNode, CopyNode]:
    home, holder = await nodes.add("home"), await nodes.add("holder")
    nodes.api.job = training_job("home")
    return home, holder


async def put(home: CopyNode, step: int, attempt: int = 1, to: str = "holder") -> dict[int, int]:
    return await home.dialler.put(to, KEY, 0, step, attempt)


async def fetched(node: CopyNode, source: str, mark: CopyMark) -> None:
    await node.dialler.fetch(source, KEY, 0, mark, lambda count: None)

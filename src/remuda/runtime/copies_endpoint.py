"""Copies of checkpoints on a real node: puts the parts of `agent.copies` together around the door where peers meet.

Without peers (no stream to the manager, no address for them) checkpoints stay where they were saved, nothing of them counts as
kept, and the job says so.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from remuda.agent.agent import Agent
from remuda.agent.copies.byte_pace import BytePace
from remuda.agent.copies.copy_cleanup import TTL_S, CopyCleanup
from remuda.agent.copies.copy_dialler import CopyDialler
from remuda.agent.copies.copy_ports import JobKey
from remuda.agent.copies.copy_service import CopyService
from remuda.agent.copies.copy_store import CopyLimits, CopyStore
from remuda.agent.copies.job_files import JobCheckpointFiles
from remuda.agent.copies.rank_copies import RankCopies
from remuda.api.errors import Refusal
from remuda.api.training import TrainingJob
from remuda.core.health.peer_vouching import PeerPlace
from remuda.core.training.checkpoint_copies import CopyCandidate, has_checkpoints_per_node
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer
from remuda.link.copy_wire import VERB
from remuda.link.peer_door import PeerDoor
from remuda.runtime.background_tasks import run_beside

log = structlog.get_logger(__name__)

THREADS = 4
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


class CopyConfig(msgspec.Struct, frozen=True):
    """`limits`: what this node keeps for others. `bandwidth`: bytes a second, each way; 0 = no limit. `ttl_s`: how long what a
    job left behind outlives it. `is_shared`: all nodes have one directory, and nothing is to be copied."""

    limits: CopyLimits = CopyLimits()
    bandwidth: float = 512 * 1024 * 1024
    ttl_s: float = TTL_S
    is_shared: bool = False


def parse_copies_endpoint_bytes(text: str, option: str) -> int:
    """`200Gi`; Refusal InvalidSize."""
    number, unit = text.rstrip("KMGTi"), text[len(text.rstrip("KMGTi")) :]
    if not number.isdecimal() or unit not in UNITS or len(number) > 15:
        raise Refusal("InvalidSize", f"`{text}` is not a number of bytes.", "Say for instance 200Gi.", option)
    return int(number) * UNITS[unit]


class CopyEndpoint(Protocol):
    """Where this node meets its peers."""

    door: PeerDoor
    introduced: list[Callable[[], None]]
    apart: frozenset[str]

    @property
    def asker(self) -> ssl.SSLContext | None: ...

    @property
    def places(self) -> dict[str, PeerPlace]: ...


class NodeCopies:
    """The parts of one node. `meets_peers`: it will be told where to (`meet`)."""

    def __init__(
        self,
        agent: Agent,
        jobs: Informer[TrainingJob],
        cluster: Cluster,
        config: CopyConfig,
        copies_root: Path,
        *,
        meets_peers: bool = True,
    ) -> None:
        self._agent = agent
        self._meets_peers = meets_peers
        self._work = ThreadPoolExecutor(THREADS, "copies")
        self.files = JobCheckpointFiles(agent.config.checkpoint_root, self._work)
        self.store = CopyStore(copies_root, config.limits)
        pace_in, pace_out = BytePace(config.bandwidth), BytePace(config.bandwidth)
        node = agent.config.node
        self.service = CopyService(node, self.files, self.store, lambda ns, name: jobs.get(name, ns), pace_in, pace_out)
        self.endpoint: CopyEndpoint | None = None
        self.dialler = CopyDialler(
            self.service,
            cluster,
            lambda: self.endpoint.asker if self.endpoint is not None else None,
            lambda: self.endpoint.places if self.endpoint is not None else {},
            pace_out,
        )
        self.care = RankCopies(
            node,
            files=self.files,
            transport=self.dialler,
            candidates=self._candidates,
            find_job=lambda key: _same_job(jobs.get(key.name, key.namespace), key),
            covers=has_checkpoints_per_node,
            report=agent.launchers.tell_beat,
            changed=agent.launchers.copies_changed,
        )
        self.cleanup = CopyCleanup(self.service, cluster, config.ttl_s, time.time, time.monotonic)

    def _candidates(self) -> list[CopyCandidate] | None:
        if self.endpoint is None:
            return [] if self._meets_peers else None
        return [CopyCandidate(node, node in self.endpoint.apart) for node in sorted(self.endpoint.places)]

    def prepare(self) -> None:
        """OSError when the directories cannot be had. The launchers' registry knows of it from here on."""
        self.files.prepare()
        self.store.open()
        self._agent.launchers.copies = self.care
        self.care.silenced = self.service.stop

    def meet(self, endpoint: CopyEndpoint, host: str, port: int) -> None:
        """Peers may ask from now on, and be asked."""
        self.endpoint = endpoint
        endpoint.door.further[VERB] = self.service.serve
        endpoint.introduced.append(self.care.peers_changed)
        self._agent.open_door(copies_endpoint_address_text(host, port))

    def close(self) -> None:
        self.care.silence()
        self._work.shutdown(wait=False, cancel_futures=True)


@contextlib.asynccontextmanager
async def copies_endpoint_kept_clean(copies: NodeCopies) -> AsyncIterator[None]:
    """For as long as the block lasts what is of no use any more is removed."""
    try:
        async with run_beside(copies.cleanup.run(), "copies-cleanup"):
            yield
    finally:
        copies.close()


def copies_endpoint_address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _same_job(job: TrainingJob | None, key: JobKey) -> TrainingJob | None:
    return job if job is not None and job.uid == key.uid else None

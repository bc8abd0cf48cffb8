"""An embedded cluster on a state directory, and its API on the directory's sockets."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from remuda import __version__
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.training import TrainingJob
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.store.sqlite_journal import SqliteJournal
from remuda.embedded.node.log_cleanup import keep_logs_clean
from remuda.embedded.node.log_times import keep_log_times
from remuda.embedded.node.pod_logs import PodLogFiles
from remuda.embedded.pod_fields.judge_pod import PodHost
from remuda.runtime.api_endpoint import ApiEndpoint
from remuda.runtime.backup import BACKUP_PATH, answer_backup
from remuda.runtime.embedded_cluster import EmbeddedCluster
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig


class EmbeddedClusterServer:
    """The cluster that a state directory keeps; not started. `recover_to`: the revision to go back to when it is damaged.
    `is_api_only`: manager and machines are other processes."""

    def __init__(
        self, config: ClusterConfig, state: StateDir, recover_to: int | None = None, *, is_api_only: bool = False
    ) -> None:
        host = PodHost(os.getuid(), os.getgid(), is_simulated=config.runtime == "simulated")
        self.state = state
        self.journal = SqliteJournal(state.database, recover_to=recover_to)
        self.cluster = EmbeddedCluster(
            config,
            self.journal,
            root=state.path,
            clock=time.time,
            chance=random.Random(),
            new_uid=lambda: str(uuid.uuid4()),
            admission=lambda read: AdmissionChain(read, host),
            is_api_only=is_api_only,
            host=host,
        )

    @asynccontextmanager
    async def serving(self, endpoint: ApiEndpoint) -> AsyncIterator[asyncio.Task[None]]:
        """The API of the started cluster, which answers when the block is entered. Gives the task that serves it: it ends only
        if that fails."""
        logs = PodLogFiles(self.state.logs, self._find_pod)
        extra = {BACKUP_PATH: answer_backup(self.journal, self.state)}
        app = ApiServerApp(self.cluster.api, version=__version__, logs=logs, extra=extra)
        ready = asyncio.Event()
        face = asyncio.create_task(endpoint.serve(app, ready), name="api")
        beside = [
            asyncio.create_task(keep_log_times(logs.times, self.state.logs, self.cluster.machines.pods.items)),
            asyncio.create_task(keep_logs_clean(self.state.logs, self._log_owners, time.time)),
            asyncio.create_task(_wait_for_embedded_cluster(ready)),
        ]
        try:
            await asyncio.wait([face, beside[-1]], return_when=asyncio.FIRST_COMPLETED)
            if face.done():
                face.result()
            yield face
        finally:
            for task in (face, *beside):
                task.cancel()
            await asyncio.gather(face, *beside, return_exceptions=True)

    def _log_owners(self) -> tuple[list[str], list[str]]:
        """The uids of all pods and of all jobs."""
        found = (self.cluster.store.scan(kind.resource.prefix) for kind in (Pod, TrainingJob))
        pods, jobs = ([record.body["metadata"].get("uid") or "" for record in records] for records in found)
        return pods, jobs

    def _find_pod(self, namespace: str, name: str) -> JsonObject | None:
        record = self.cluster.store.get(Pod.resource.key(name, namespace))
        return None if record is None else record.body


async def _wait_for_embedded_cluster(event: asyncio.Event) -> None:
    await event.wait()

"""`remuda up`: an embedded cluster in the foreground, with its API on a socket in the state directory and on TCP."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import uuid
from collections.abc import Callable

import structlog

from remuda import __version__
from remuda.api.core_v1 import Pod
from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject
from remuda.apiserver.admission import Admission
from remuda.apiserver.app import App
from remuda.apiserver.store.sqlite import SqliteJournal
from remuda.runtime.backup import BACKUP_PATH, answer_backup
from remuda.runtime.config import ClusterConfig, check_config
from remuda.runtime.embedded import EmbeddedCluster
from remuda.runtime.endpoint import LOOPBACK, Endpoint
from remuda.runtime.podlogs import FileLogs, FindPod
from remuda.runtime.state import StateDir

log = structlog.get_logger(__name__)


def agree(config: ClusterConfig, remembered: ClusterConfig | None) -> None:
    """A state directory keeps the shape it was made with: pods are bound to its nodes and hold their devices."""
    if remembered is None:
        return
    for field in ("nodes", "racks", "model", "runtime"):
        old, new = getattr(remembered, field), getattr(config, field)
        if old != new:
            raise Refusal(
                "StateMadeDifferently",
                f"This state directory was made with --{field} {old}, not {new}.",
                f"Use --{field} {old}, or another directory with --state.",
                field,
            )


def run_up(
    config: ClusterConfig,
    state: StateDir,
    *,
    on_ready: Callable[[], None],
    port: int | None = None,
    bind: str = LOOPBACK,
    recover_to: int | None = None,
) -> int:
    """Runs until SIGINT or SIGTERM, then ends every container. A second instance on the directory is refused.

    `port` None: the one of last time, if it is free; 0: any free one. `recover_to`: the revision to go back to when the
    state is damaged.
    """
    check_config(config)
    with state.locked():
        agree(config, state.remembered())
        state.remember(config)
        return asyncio.run(_up(config, state, on_ready, Endpoint(state, port, bind, time.time()), recover_to))


async def _up(
    config: ClusterConfig,
    state: StateDir,
    on_ready: Callable[[], None],
    endpoint: Endpoint,
    recover_to: int | None,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    journal = SqliteJournal(state.database, recover_to=recover_to)
    cluster = EmbeddedCluster(
        config,
        journal,
        root=state.path,
        clock=time.time,
        chance=random.Random(),
        new_uid=lambda: str(uuid.uuid4()),
        admission=Admission,
    )
    async with cluster:
        ready = asyncio.Event()
        app = App(
            cluster.api,
            version=__version__,
            logs=FileLogs(state.logs, _pods(cluster)),
            extra={BACKUP_PATH: answer_backup(journal, state)},
        )
        face = asyncio.create_task(endpoint.serve(app, ready))
        waits = [asyncio.create_task(w) for w in (stop.wait(), cluster.wait_failed(), _announce(ready, on_ready))]
        try:
            await asyncio.wait([waits[0], waits[1], face], return_when=asyncio.FIRST_COMPLETED)
            for task in (waits[1], face):
                if task.done():
                    task.result()
        finally:
            for task in (*waits, face):
                task.cancel()
            await asyncio.gather(*waits, face, return_exceptions=True)
    return 0


def _pods(cluster: EmbeddedCluster) -> FindPod:
    def find(namespace: str, name: str) -> JsonObject | None:
        record = cluster.store.get(Pod.resource.key(name, namespace))
        return None if record is None else record.body

    return find


async def _announce(ready: asyncio.Event, on_ready: Callable[[], None]) -> None:
    await ready.wait()
    on_ready()

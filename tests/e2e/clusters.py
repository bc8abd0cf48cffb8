"""The two ways a test gets a cluster: in this process, or `remuda up` as a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from remuda.embedded.apiserver.store.sqlite_journal import SqliteJournal
from remuda.runtime.cluster_client import cluster_client_for_state_dir
from remuda.runtime.embedded_cluster import EmbeddedCluster
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig
from tests.builders.waiting import PATIENCE_S
from tests.e2e.rig import Rig

CONFIG = ClusterConfig(nodes=4, racks=2, lease_seconds=10.0)  # longer than a busy machine holds a process up


@asynccontextmanager
async def embedded(state: Path, config: ClusterConfig = CONFIG) -> AsyncIterator[Rig]:
    cluster = EmbeddedCluster(
        config,
        SqliteJournal(state / "store.db"),
        root=state,
        clock=time.time,
        chance=random.Random(0),
        new_uid=lambda: str(uuid.uuid4()),
    )
    async with cluster:
        yield Rig(cluster.api, state)


class Up:
    """`remuda up` on a state directory. Its words go to <state>/up.log."""

    def __init__(self, state: Path, lease_s: float = 10.0) -> None:
        self.state = state
        self._lease_s = lease_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Returns when the cluster is ready, as it says itself through the pipe that `up --detach` uses."""
        reader, writer = os.pipe()
        try:
            with (self.state / "up.log").open("ab") as log:
                self._process = subprocess.Popen(
                    self.command("up", "--nodes=4", "--racks=2", f"--lease={self._lease_s:g}", *options),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "REMUDA_READY_FD": str(writer)},
                    pass_fds=(writer,),
                    start_new_session=True,
                )
        finally:
            os.close(writer)
        try:
            told, _, _ = select.select([reader], [], [], PATIENCE_S)
            is_ready = bool(told) and os.read(reader, 1) == b"1"
        finally:
            os.close(reader)
        if not is_ready:
            self.kill()
            raise AssertionError(f"the cluster did not get ready: {(self.state / 'up.log').read_text()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "remuda.cli", "--state", str(self.state), *words]

    def kill(self) -> None:
        """As the kernel would when memory runs out. Harmless when it has ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    async def run(self, *words: str) -> tuple[int, str]:
        """Another command line on the same state directory: exit code and everything it said."""
        process = await asyncio.create_subprocess_exec(
            *self.command(*words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()

    @asynccontextmanager
    async def rig(self) -> AsyncIterator[Rig]:
        async with cluster_client_for_state_dir(StateDir(self.state)) as api:
            yield Rig(api, self.state)

"""`remuda up --split`: the supervisor of a cluster whose server, manager and nodes are processes of their own.

The supervisor holds the state directory's lock and runs nothing itself. It starts the server, then the manager and the groups of
nodes, and starts a part that ended again, after a pause that grows while the part keeps ending. It is there to be tried hard:
any part may be killed (`<state>/parts/<part>.pid` says which process it is), and the rest must cope until it is back.

Told to stop it ends the parts in order: the manager first, so that nothing is recovered while nodes go; then the nodes with all
their containers; the server last. When the supervisor itself is killed, the kernel kills the parts with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec
import structlog

from remuda.api.errors import Refusal
from remuda.kube.runtime.backoff import Backoff
from remuda.runtime.cluster_parts import HALT_GRACE_S
from remuda.runtime.split_parts import MANAGER, NODES, SERVER, PartConfig
from remuda.runtime.state_dir import StateDir, open_state_dir_log
from remuda.runtime.up_command import check_same_config
from remuda.runtime.up_config import ClusterConfig, check_cluster_config

log = structlog.get_logger(__name__)

READY_FD = "REMUDA_PART_READY_FD"
READY_S = 60.0
STOP_S = HALT_GRACE_S + 12.0
STEADY_S = 10.0  # a part that ran so long starts again without a pause
RESTART = Backoff(base_s=0.1, max_s=5.0)
_PR_SET_PDEATHSIG = 1


class SplitConfig(msgspec.Struct, frozen=True):
    groups: int = 2  # processes the nodes are spread over
    port: int | None = None
    bind: str = "127.0.0.1"
    recover_to: int | None = None


def die_with_split_supervisor() -> None:
    """Called first in a part: the kernel sends SIGKILL when the supervisor is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class SupervisedPart:
    """One child process, started again when it ends."""

    def __init__(self, config: PartConfig, argv: Sequence[str], state: StateDir) -> None:
        self.config = config
        self._argv = list(argv)
        self._state = state
        self._process: asyncio.subprocess.Process | None = None
        self._failures = 0
        self.restarts = 0

    async def start(self) -> None:
        """Returns when it is ready. Refusal when it ends before that, or takes too long."""
        reader, writer = os.pipe()
        log_path = self._state.part_log(self.config.name)
        try:
            with open_state_dir_log(log_path) as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, READY_FD: str(writer)},
                    pass_fds=(writer,),
                    start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends the parts in order
                )
        finally:
            os.close(writer)
        try:
            (self._state.parts / f"{self.config.name}.pid").write_text(str(self._process.pid), encoding="ascii")
        except OSError as error:  # a full disk: the part is there all the same
            log.warning("part.pid_not_written", part=self.config.name, error=str(error))
        if not await _is_split_part_ready(reader):
            raise Refusal(
                "PartNotStarted",
                f"{self.config.name} of the split cluster did not get ready.",
                f"Read {log_path}.",
            )

    async def watch(self) -> None:
        """Until cancelled: start it again whenever it ends."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if self._process is not None:
                code = await self._process.wait()
                self._failures = 0 if loop.time() - began >= STEADY_S else self._failures + 1
                log.warning("part ended", part=self.config.name, code=code, restarts=self.restarts)
                if self._failures:
                    await asyncio.sleep(RESTART.delay(self._failures))
            self.restarts += 1
            with contextlib.suppress(Refusal, OSError):  # its log says why; the next try has a longer pause
                await self.start()

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("part killed", part=self.config.name, after_s=STOP_S)
            process.kill()
            await process.wait()


async def _is_split_part_ready(reader: int) -> bool:
    """Whether the part wrote its byte; False when the pipe was closed without one."""
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb", closefd=True)
    )
    try:
        async with asyncio.timeout(READY_S):
            return await stream.read(1) == b"1"
    except TimeoutError:
        return False
    finally:
        transport.close()


def split_part_names(groups: int) -> list[str]:
    return [SERVER, MANAGER, *(f"{NODES}-{number}" for number in range(1, groups + 1))]


def run_split(config: ClusterConfig, state: StateDir, split: SplitConfig, *, on_ready: Callable[[], None]) -> int:
    """Until SIGINT or SIGTERM."""
    check_cluster_config(config)
    if not 1 <= split.groups <= config.nodes:
        raise Refusal(
            "InvalidGroups", f"--groups is {split.groups}.", f"Give a number from 1 to {config.nodes}.", "groups"
        )
    with state.locked():
        check_same_config(config, state.remembered())
        state.remember(config)
        state.parts.mkdir(mode=0o700, exist_ok=True)
        return asyncio.run(_supervise_parts(_make_parts(state, split), on_ready))


def _make_parts(state: StateDir, split: SplitConfig) -> list[SupervisedPart]:
    made: list[SupervisedPart] = []
    for name in split_part_names(split.groups):
        part = PartConfig(name, split.groups, split.port, split.bind, split.recover_to)
        argv = [sys.executable, "-m", "remuda.cli", "--state", str(state.path), "part", name]
        argv += [f"--groups={part.groups}", f"--bind={part.bind}"]
        argv += [f"--port={part.port}"] if part.port is not None else []
        argv += [f"--recover-to={part.recover_to}"] if part.recover_to is not None else []
        made.append(SupervisedPart(part, argv, state))
    return made


async def _supervise_parts(parts: list[SupervisedPart], on_ready: Callable[[], None]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server, manager, *nodes = parts
    watches: list[asyncio.Task[None]] = []
    try:
        await server.start()
        await asyncio.gather(manager.start(), *(part.start() for part in nodes))
        watches = [asyncio.create_task(part.watch(), name=f"watch-{part.config.name}") for part in parts]
        on_ready()
        await stop.wait()
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await manager.stop()
        await asyncio.gather(*(part.stop() for part in nodes))
        await server.stop()
    return 0

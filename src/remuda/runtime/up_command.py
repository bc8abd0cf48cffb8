"""`remuda up`: an embedded cluster in the foreground, with its API on a socket in the state directory and on TCP."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

from remuda.api.errors import Refusal
from remuda.runtime.api_endpoint import LOOPBACK, ApiEndpoint
from remuda.runtime.device_sharing import cluster_config_mig_words, cluster_config_replica_words
from remuda.runtime.embedded_server import EmbeddedClusterServer
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig, check_cluster_config


def check_same_config(config: ClusterConfig, remembered: ClusterConfig | None) -> None:
    """A state directory keeps the shape it was made with: pods are bound to its nodes and hold their devices."""
    if remembered is None:
        return
    fields = ("nodes", "racks", "model", "runtime", "mig", "replicas")
    differ = [f for f in fields if getattr(remembered, f) != getattr(config, f)]
    if differ:
        old, new = (" ".join(_cluster_config_words(c, field) for field in differ) for c in (remembered, config))
        raise Refusal(
            "StateMadeDifferently",
            f"This state directory was made with {old}, not with {new}.",
            f"Use {old}, or another directory with --state.",
            differ[0],
        )


def _cluster_config_words(config: ClusterConfig, field: str) -> str:
    """The option as it is given."""
    value = getattr(config, field)
    match field:
        case "mig":
            words = cluster_config_mig_words(value)
        case "replicas":
            words = cluster_config_replica_words(value)
        case _:
            words = [str(value)]
    return " ".join(f"--{field} {word}" for word in words) or f"no --{field}"


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
    check_cluster_config(config)
    with state.locked():
        check_same_config(config, state.remembered())
        state.remember(config)
        return asyncio.run(
            _run_embedded(config, state, on_ready, ApiEndpoint(state, port, bind, time.time()), recover_to)
        )


async def _run_embedded(
    config: ClusterConfig,
    state: StateDir,
    on_ready: Callable[[], None],
    endpoint: ApiEndpoint,
    recover_to: int | None,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    local = EmbeddedClusterServer(config, state, recover_to)
    async with local.cluster, local.serving(endpoint) as face:
        on_ready()
        ends: list[asyncio.Task[Any]] = [
            asyncio.create_task(stop.wait()),
            asyncio.create_task(local.cluster.wait_failed()),
            face,
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in ends[1:]:
                if task.done():
                    task.result()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
    return 0

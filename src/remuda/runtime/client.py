"""How a command finds the cluster: the API socket in the state directory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from remuda.api.errors import Refusal
from remuda.kube.cluster import Cluster
from remuda.kube.http import HttpCluster
from remuda.runtime.state import StateDir


@contextlib.asynccontextmanager
async def connect(state: StateDir) -> AsyncIterator[Cluster]:
    """The running cluster of that directory; ClusterNotRunning when there is none."""
    if state.holder() is None or not state.socket.exists():
        raise Refusal("ClusterNotRunning", f"No cluster is running in {state.path}.", "Start one with `remuda up`.")
    async with HttpCluster(uds=state.socket) as cluster:
        yield cluster

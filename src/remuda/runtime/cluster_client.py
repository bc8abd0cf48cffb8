"""How a command finds the cluster: the API socket in the state directory, or its address for others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import yaml

from remuda.api.errors import Refusal
from remuda.kube.client.access import Access
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.cluster import Cluster
from remuda.runtime.state_dir import StateDir


def api_address(state: StateDir) -> str:
    """Where the cluster's API listens for others, as its kubeconfig says; "" when it does not."""
    try:
        config = yaml.safe_load(state.kubeconfig.read_bytes())
        return str(config["clusters"][0]["cluster"]["server"])
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError):
        return ""


@contextlib.asynccontextmanager
async def cluster_client_for_state_dir(
    state: StateDir, warn: Callable[[str], None] | None = None
) -> AsyncIterator[Cluster]:
    """The running cluster of that directory; ClusterNotRunning when there is none. `warn`: told what the API warns of."""
    if state.holder() is None or not state.socket.exists():
        raise Refusal(
            "ClusterNotRunning",
            f"No cluster is running in {state.path}.",
            f"Start one with `{state.command_line('up -d')}`, choose another state directory with --state, or name a "
            "real cluster with --kubeconfig.",
        )
    async with HttpCluster(uds=state.socket) as cluster:
        if warn is not None:
            cluster.transport.warn = warn
        yield cluster


@contextlib.asynccontextmanager
async def cluster_client_for_access(
    access: Access, warn: Callable[[str], None] | None = None
) -> AsyncIterator[Cluster]:
    """The cluster of a kubeconfig. What may be done there is what its API allows."""
    async with HttpCluster(access=access) as cluster:
        if warn is not None:
            cluster.transport.warn = warn
        yield cluster

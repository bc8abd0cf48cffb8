"""Remuda on a cluster that is there already: control plane and machines over any `Cluster`, with no store of their own.

`async with AttachedCluster(config, cluster, root=...) as attached:` gives running ones. What the API is, and what else works
on it, is the cluster's business: owner garbage collection, node lifecycle and the other controllers that every Kubernetes has
are not started here. The cluster must serve our kinds (deploy/crds) and have the namespace of the node leases; both are looked
for first, so that what is missing is said in one sentence and not by a dozen informers that retry.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from remuda.api.errors import NotFound, Refusal
from remuda.api.kinds import OWN_KINDS
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Namespace
from remuda.kube.cluster import Cluster
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.cluster_parts import ClusterParts
from remuda.runtime.control_plane import ControlPlane
from remuda.runtime.machines import Machines
from remuda.runtime.up_config import ClusterConfig

# On somebody else's cluster pods are ours only when they say so: the rest has a scheduler.
ATTACHED_SCHEDULERS = frozenset({"remuda"})


class AttachedCluster(ClusterParts):
    """`api` stays the caller's: it is not closed here."""

    def __init__(
        self,
        config: ClusterConfig,
        api: Cluster,
        *,
        root: Path,
        clock: Callable[[], float] = time.time,
        chance: random.Random | None = None,
    ) -> None:
        self.config = config
        self.api = api
        self.board = ProgressBoard()
        chance = chance or random.Random()
        super().__init__(Machines(config, api, self.board, root=root, clock=clock, chance=chance))
        self.control = ControlPlane(api, self.board, clock, chance=chance, schedulers=ATTACHED_SCHEDULERS)

    async def start(self) -> None:
        """Returns when every node is registered and the control plane runs."""
        await check_cluster(self.api)
        await self.start_machines()
        self.spawn("control-plane", self.control.run())


async def check_cluster(api: Cluster) -> None:
    """Refusal unless the cluster has what we stand on."""
    for kind in OWN_KINDS:
        try:
            await api.list(kind)
        except NotFound:
            resource = kind.resource
            raise Refusal(
                "KindNotInstalled",
                f"The cluster does not serve {resource.plural}.{resource.group}.",
                "Install our kinds first: kubectl apply -f deploy/crds.",
            ) from None
    try:
        await api.get(Namespace, NODE_LEASE_NAMESPACE)
    except NotFound:
        raise Refusal(
            "NamespaceNotFound",
            f"The cluster has no namespace {NODE_LEASE_NAMESPACE}, where nodes keep their leases.",
            f"Create it: kubectl create namespace {NODE_LEASE_NAMESPACE}.",
        ) from None

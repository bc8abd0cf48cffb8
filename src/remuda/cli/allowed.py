"""Reading what a person may or may not be allowed to: who has one namespace need not see the cluster's nodes and devices."""

from __future__ import annotations

from typing import TypeVar

from remuda.api.errors import ApiError
from remuda.api.meta import KObject
from remuda.kube.cluster import Cluster

K = TypeVar("K", bound=KObject)


async def list_if_allowed(cluster: Cluster, kind: type[K]) -> list[K] | None:
    """None when the API does not allow it: what follows from that is nothing, and not "there are none"."""
    try:
        return (await cluster.list(kind)).items
    except ApiError as error:
        if error.reason == "Forbidden":
            return None
        raise

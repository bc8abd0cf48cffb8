"""Before the agent serves a node: is there one of that name?

An agent may come up before its kubelet has registered the node, so an absent one is waited for, aloud. A name that is merely
wrong ends in a refusal: an agent under it would report devices that no pod can ever be given. Only the API's own "not found"
counts; one that does not answer, or does not let us look, is no reason to leave a node without its agent.
"""

from __future__ import annotations

import asyncio
from difflib import get_close_matches

import structlog

from remuda.api.errors import NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Node
from remuda.kube.cluster import Cluster

log = structlog.get_logger(__name__)

WAIT_S, LOOK_S = 60.0, 2.0
NAMED = 8  # so many nodes are named when none is near


class NodeNotFound(Refusal):
    """It was waited for."""


async def check_own_node_name_exists(cluster: Cluster, name: str) -> None:
    """Returns when the node is there; NodeNotFound when it has not come within WAIT_S."""
    end = asyncio.get_running_loop().time() + WAIT_S
    is_told = False
    while True:
        try:
            await cluster.get(Node, name)
            return
        except NotFound:
            pass
        except Exception as error:
            log.warning("agent.node_unseen", node=name, error=str(error))
            return
        if asyncio.get_running_loop().time() >= end:
            message = f"The cluster has no node `{name}`, and none came within {WAIT_S:g} s."
            raise NodeNotFound("NodeNotFound", message, await _known_nodes_hint(cluster, name), "node")
        if not is_told:
            log.warning("agent.waits_for_node", node=name, seconds=WAIT_S, fix=await _known_nodes_hint(cluster, name))
            is_told = True
        await asyncio.sleep(LOOK_S)


async def _known_nodes_hint(cluster: Cluster, name: str) -> str:
    """The fix. Agents may read their own node only, so others are named where that is allowed."""
    try:
        names = sorted(node.name for node in (await cluster.list(Node)).items)
    except Exception as error:
        log.debug("agent.nodes_unseen", error=str(error))
        names = []
    if near := get_close_matches(name, names, n=1):
        return f"Did you mean --node {near[0]}?"
    if not names:
        return "Give --node its name in the cluster: kubectl get nodes."
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"Give --node one of {', '.join(names[:NAMED])}{more}."

"""`remuda manager`: the control plane on somebody else's cluster, one at work at a time.

Scheduler, failure and workload controllers run while this process holds the Lease; they write through a `FencedCluster`, so a
process that was frozen meanwhile writes nothing when it wakes. The lease has a connection of its own: behind the work's rate
limit it would wait for the work that it guards. Nothing is kept in memory that the API does not have.

What runs the pods are kubelets, so pods are written in their words (`core.gang.kubelet_pods`).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from remuda.api.errors import NotFound, Refusal
from remuda.api.kinds import OWN_KINDS
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Namespace
from remuda.core.gang.checkpoint_dirs import NODE_CHECKPOINTS
from remuda.core.gang.kubelet_pods import LAUNCHER_FILE, KubeletGangPodForm
from remuda.core.health.mass_silence import MassSilenceRule
from remuda.core.health.own_stalls import API, API_LATE_S, OwnStalls
from remuda.core.remedies.hook_kinds import HookKind
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.cluster import Cluster
from remuda.kube.guarded_cluster import FencedCluster
from remuda.kube.runtime.leader import LeaderTerm, LeaseContender, LeasePlace, suspend_aware_lease_clock_s
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.kube.runtime.stall_watch import prove_stall_watch_hearing
from remuda.launch.zipapp import launcher_zipapp_argv
from remuda.link.peer_registry import PeerRegistry
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.background_tasks import run_until_told
from remuda.runtime.control_plane import ControlPlane
from remuda.runtime.link_endpoint import LinkConfig, link_served

LEASE = "remuda-manager"
# On somebody else's cluster pods are ours only when they say so: the rest has a scheduler.
ATTACHED_SCHEDULERS = frozenset({"remuda"})


class ManagerConfig(msgspec.Struct, frozen=True):
    """`kubeconfig` and `context`: None and "" = as kubectl would choose. `agent_root`: the agents' state on their machines."""

    kubeconfig: str | None = None
    context: str = ""
    lease_namespace: str = "kube-system"
    timing: LeaseTiming = LeaseTiming()
    agent_root: str = "/var/lib/remuda"
    link: LinkConfig | None = None  # None: agents speak through the API only
    hook_kinds: tuple[HookKind, ...] = ()  # what objects of hooks may be
    nodes_on_demand: bool = False  # waiting pods bring nodes, so a gang larger than the cluster makes them
    mass_silence: MassSilenceRule = MassSilenceRule()


def manager_process_kubelet_form(agent_root: str) -> KubeletGangPodForm:
    root = Path(agent_root)
    launcher = launcher_zipapp_argv([], LAUNCHER_FILE)
    return KubeletGangPodForm(
        tuple(launcher),
        alloc_root=str(root / "alloc"),
        launcher_dir=str(root / "bin"),
        checkpoint_root=str(root / NODE_CHECKPOINTS),
    )


def manager_identity() -> str:
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"


async def check_cluster(api: Cluster) -> None:
    """Refusal unless the cluster has what we stand on: said in one sentence, not by a dozen informers that retry."""
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


class ManagerVoice(Protocol):
    """Who wants to know how far it is."""

    def waiting(self) -> None: ...

    def leading(self, term: LeaderTerm) -> None: ...


async def run_manager(
    config: ManagerConfig,
    cluster: Cluster,
    lease: Cluster,
    *,
    identity: str,
    said: ManagerVoice,
    clock: Callable[[], float] = time.time,
    elapsed: Callable[[], float] = suspend_aware_lease_clock_s,
) -> None:
    """Until cancelled. Refusal when the cluster lacks what we stand on."""
    await check_cluster(cluster)
    said.waiting()
    chance = random.Random()

    stalls = OwnStalls()

    async def work(term: LeaderTerm) -> None:
        said.leading(term)
        stalls.expect(API, config.timing.retry_s + API_LATE_S, clock())
        fenced, board = FencedCluster(cluster, term), ProgressBoard()
        plane = ControlPlane(
            fenced,
            board,
            clock,
            chance=chance,
            schedulers=ATTACHED_SCHEDULERS,
            form=manager_process_kubelet_form(config.agent_root),
            hook_kinds=config.hook_kinds,
            stalls=stalls,
            proves_api=True,  # the lease does
            term_left=term.left_s,
            nodes_on_demand=config.nodes_on_demand,
            mass_silence=config.mass_silence,
        )
        async with contextlib.AsyncExitStack() as stack:
            if config.link is not None:
                peers = PeerRegistry(plane.view.labels_of_agents, plane.view.peers_speak_for_s, clock)
                served = link_served(
                    config.link,
                    cluster,
                    board,
                    hear=lambda node, device, signal: plane.verdicts.hear(node, device, signal, clock()),
                    is_on=plane.view.has_beat,
                    clock=clock,
                    publish=fenced,
                    promise=lambda node: plane.view.promise(node, clock()),
                    peers=peers,
                )
                await stack.enter_async_context(served)
            await plane.run()

    place = LeasePlace(LEASE, config.lease_namespace, identity)
    contender = LeaseContender(
        lease,
        place,
        config.timing,
        clock=clock,
        elapsed=elapsed,
        jitter=chance.random,
        renewed=lambda: prove_stall_watch_hearing(stalls, API, clock(), LEASE),
    )
    await contender.lead(work)


async def serve_manager(config: ManagerConfig, said: ManagerVoice) -> None:
    """Until SIGTERM or SIGINT; the lease is given back then."""
    access = load_kubeconfig(config.kubeconfig, context=config.context)
    async with HttpCluster(access=access) as cluster, HttpCluster(access=access) as lease:
        work = run_manager(config, cluster, lease, identity=manager_identity(), said=said)
        await run_until_told(work, "manager")

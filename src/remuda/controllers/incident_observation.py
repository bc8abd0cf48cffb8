"""What a look at incidents is made of, joined from the informers; and the one thing they do not keep: pods that just went.

Those are a cache of news. A manager that starts without it knows the same from the API, except how a container ended whose pod
was removed before the device's report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from remuda.api.incidents import Evidence, Incident
from remuda.api.kubernetes.core_v1 import Pod
from remuda.controllers.cluster_view import ClusterView, pod_gang_index_key
from remuda.core.health.correlation import DomainSuspect
from remuda.core.incidents.gang_incidents import GangIncidentView
from remuda.core.incidents.pods import NodeIncidentView, incident_evidence_of_launcher_exit
from remuda.core.state.snapshot import snapshot_devices_of_pod

KEPT_S, KEPT = 120.0, 64


class GonePods:
    """Pods that had devices, for a while after they went: by node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pods: dict[str, list[tuple[float, Pod]]] = {}

    def add(self, pod: Pod) -> None:
        if pod.spec.node_name and snapshot_devices_of_pod(pod):
            kept = self._pods.setdefault(pod.spec.node_name, [])
            kept.append((self._clock(), pod))
            del kept[:-KEPT]

    def of(self, node: str) -> tuple[Pod, ...]:
        now = self._clock()
        kept = [(at, pod) for at, pod in self._pods.get(node, ()) if now - at < KEPT_S]
        if kept:
            self._pods[node] = kept
        else:
            self._pods.pop(node, None)
        return tuple(pod for _, pod in kept)


def node_incident_observation(view: ClusterView, name: str, gone: Sequence[Pod], now: float) -> NodeIncidentView:
    pods = view.pods.by_index("node", name)
    present = frozenset(p.uid for p in pods)
    node = view.nodes.get(name)
    expiry = view.lease_expiry(name) if view.is_dead(name, now) else None
    ranks: dict[str, int] = {}
    for gang in {pod_gang_index_key(p) for p in pods if p.owner("TrainingJob") is not None}:
        namespace, _, job_name = gang.partition("/")
        job = view.jobs.get(job_name, namespace)
        ranks |= {m.uid: m.rank for m in job.status.members} if job is not None else {}
    return NodeIncidentView(
        name=name,
        devices=view.devices.get(name),
        node_uid=node.uid if node is not None else "",
        pods=(*pods, *(p for p in gone if p.uid not in present)),
        present=present,
        ranks=ranks,
        dead_since=expiry,
    )


def gang_incident_observation(view: ClusterView, namespace: str, name: str) -> GangIncidentView:
    job = view.jobs.get(name, namespace)
    exits: list[Evidence] = []
    for pod in view.pods.by_index("gang", f"{namespace}/{name}"):
        if (report := view.reports.get(pod.uid)) is not None:
            exits += incident_evidence_of_launcher_exit([report], {pod.uid}, 0.0, pod.spec.node_name)
    return GangIncidentView(namespace, name, job, tuple(exits))


def cluster_view_incidents_by_member(
    view: ClusterView, suspects: Sequence[DomainSuspect]
) -> Mapping[str, Sequence[Incident]]:
    """The incidents of what failed in those domains, by member."""
    parts: dict[str, list[Incident]] = {}
    for node in sorted({node for suspect in suspects for node in suspect.nodes}):
        for incident in view.incidents.by_index("node", node):
            subject = incident.spec.subject
            member = f"{subject.node}/{subject.device}" if subject.device else subject.node
            parts.setdefault(member, []).append(incident)
    return parts

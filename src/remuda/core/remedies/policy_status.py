"""How a policy stands: its nodes, what of them is under remedy or held back, its breaker. Pure.

The manager writes this into the status of each RemedyPolicy. The built-in one has no object and so no status; whoever asks about
it works it out here, from the same incidents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.incidents import Incident, SubjectKind
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import to_seconds
from remuda.api.remedies import RemedyPolicy, RemedyPolicyStatus
from remuda.core.remedies.breaker import NodeFailure, breaker_status
from remuda.core.remedies.ladder.climb import BY
from remuda.core.remedies.policies import device_type_for_remedy_policy, remedy_policy_for
from remuda.core.remedies.rungs import is_remedy_held_back, is_under_remedy

REMEMBERED_S = 86_400.0  # how far back failures matter to a breaker
_FAILED = (DeviceState.UNHEALTHY, DeviceState.UNKNOWN)


def breaker_failure(incident: Incident) -> NodeFailure | None:
    """The incident as the breaker sees it. What an operator takes out is no failure."""
    subject, opened, verdict = incident.spec.subject, incident.status.opened_at, incident.status.verdict
    is_bad = verdict.state in _FAILED or (verdict.state is DeviceState.QUARANTINED and verdict.source == BY)
    if subject.kind not in (SubjectKind.DEVICE, SubjectKind.NODE) or not is_bad or opened is None:
        return None
    return NodeFailure(to_seconds(opened), subject.node)


def work_out_policy_status(
    policy: RemedyPolicy,
    policies: Iterable[RemedyPolicy],
    nodes: Iterable[Node],
    ledgers: Mapping[str, NodeDevices],
    incidents: Iterable[Incident],
    now: float,
) -> RemedyPolicyStatus:
    """Of nodes that are recycled as a whole domain, the one that failed is named."""
    among = list(policies)
    mine = {
        node.name
        for node in nodes
        if node.name in ledgers
        and remedy_policy_for(device_type_for_remedy_policy(ledgers[node.name]), node.labels, among).name == policy.name
    }
    found = [i for i in incidents if i.spec.subject.node in mine]
    failures = [f for i in found if (f := breaker_failure(i)) is not None and f.at >= now - REMEMBERED_S]
    return RemedyPolicyStatus(
        nodes=len(mine),
        under_remedy=sorted({i.spec.subject.node for i in found if is_under_remedy(i)}),
        held_back=sum(map(is_remedy_held_back, found)),
        breaker=breaker_status(policy.spec.breaker, failures, len(mine), now),
    )

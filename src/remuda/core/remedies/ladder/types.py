"""What the device ladder looks at, and what it answers: values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remuda.api.devices import DeviceOrder, DeviceState, NodeDevices, ObservedDevice, QuarantineOrder
from remuda.api.incidents import Incident, IncidentStatus, Subject
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.remedies import RemedyPolicy
from remuda.core.remedies.drain import DrainPlan, DrainRequest, RecycleDomain
from remuda.core.remedies.hook_objects import HookCall, HookResult
from remuda.core.remedies.limits import RemedyGate


class LadderCase(msgspec.Struct, frozen=True):
    """One incident and all it has to do with. `nodes`, `ledgers` and `pods` are by node, of the subject's whole domain."""

    incident: Incident
    policy: RemedyPolicy
    domain: RecycleDomain
    nodes: Mapping[str, Node] = {}
    ledgers: Mapping[str, NodeDevices] = {}
    pods: Mapping[str, Sequence[Pod]] = {}
    gate: RemedyGate | None = None  # None: nothing stands in the way
    at_work: frozenset[str] = frozenset()  # other open incidents, and roll-outs: a node with one's name on it is theirs
    made: HookResult | None = None
    is_silent: bool = False  # the node's agent has not been heard of
    cause: Incident | None = None  # the open incident of what several nodes share, when this one is a part of it

    @property
    def subject(self) -> Subject:
        return self.incident.spec.subject

    @property
    def devices(self) -> NodeDevices | None:
        return self.ledgers.get(self.subject.node)

    @property
    def device_row(self) -> ObservedDevice | None:
        """The subject's row."""
        rows = self.devices.observed.devices if self.devices is not None else ()
        return next((d for d in rows if d.id == self.subject.device), None)

    @property
    def is_device_well(self) -> bool:
        """The subject's device is Healthy, and may be in use again."""
        verdicts = self.devices.verdicts if self.devices is not None else ()
        return any(v.device == self.subject.device and v.state is DeviceState.HEALTHY for v in verdicts)

    @property
    def is_replaced(self) -> bool:
        """The node was made anew, or another device is in the place of the one that failed: what was owed to that one is not owed
        to this."""
        status, node, seen = self.incident.status, self.nodes.get(self.subject.node), self.device_row
        is_new_node = node is not None and bool(status.node_uid) and node.uid != status.node_uid
        is_swapped = seen is not None and bool(seen.uuid and status.device_uuid) and seen.uuid != status.device_uuid
        return is_new_node or is_swapped


class LadderStep(msgspec.Struct, frozen=True):
    """What should stand. `orders` and `nodes` are whole: what is of this incident and not in them is taken away."""

    status: IncidentStatus
    quarantine: QuarantineOrder | None = None  # of the subject's device; None = lifted, when it is this incident's
    hold: frozenset[str] = frozenset()  # nodes that are to be ours
    cordon: frozenset[str] = frozenset()
    request: DrainRequest | None = None  # to gangs on the cordoned nodes
    orders: Mapping[str, Mapping[str, DeviceOrder]] = {}  # by node, by order id
    drain: DrainPlan | None = None
    call: HookCall | None = None
    look_again_s: float | None = None


def ladder_execution_order_id(incident: Incident, key: str) -> str:
    """The idempotency key of a record's execution."""
    return f"{incident.name}.{key}"

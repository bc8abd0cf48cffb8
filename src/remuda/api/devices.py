"""NodeDevices: the home of the ledger, one object per node.

NodeDevices has two writers that never touch each other's part: the node's agent writes `status`, which is what it observes, and
through that subresource nothing else; the manager makes the object and writes `verdicts`, `notices`, `findings` and `history`;
`quarantine`, `withheld` and `orders` take orders from operators and controllers. All write transitions only, never heartbeats.
Counts (capacity, free) are derived, never stored.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec

from remuda.api.meta import KObject, Resource
from remuda.api.names import GROUP, RESOURCE_GPU, VERSION
from remuda.api.untrusted_times import UntrustedTimes


class DeviceState(StrEnum):
    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"
    QUARANTINED = "Quarantined"


def api_signal_origin(source: str, code: str) -> str:
    """Who reported what, in one word: "kmsg/xid-79". Made here and read by `Verdict.origin`, nowhere else."""
    return f"{source}/{code}"


class Signal(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """One observation from one source, say ("kmsg", "xid-79")."""

    source: str
    code: str
    message: str = ""
    time: datetime | None = None

    @property
    def origin(self) -> str:
        return api_signal_origin(self.source, self.code)


class ObservedDevice(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    id: str
    type: str
    index: int = 0
    memory_bytes: int = 0
    numa: int = 0
    signals: list[Signal] = []  # newest last, bounded
    uuid: str = ""  # the maker's; stays over a reboot
    pci: str = ""  # bus address, say 0000:1b:00.0
    nic: str = ""  # nearest
    resource: str = RESOURCE_GPU  # the resource it counts for; "" while it is only the parent of slices
    parent: str = ""  # of a slice: the id of its device
    profile: str = ""  # of a slice: say 3g.40gb
    start: int = 0  # of a slice: its first memory slice on the device
    flaps: list[datetime] = []  # when a fault that comes and goes went, newest last, bounded
    idle_since: datetime | None = None  # held and hardly used since then
    idle_utilisation: float | None = None  # how much, 0 to 1, when it was found so


class ObservedLink(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Each device of `among` reaches each other one directly."""

    kind: str
    among: list[str]


class PluginReport(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """One device plugin of the node, as its agent sees it."""

    resource: str
    state: str  # Starting | Registered | Lost
    since: datetime | None = None
    message: str = ""
    started_at: datetime | None = None  # when its socket was served
    published_at: datetime | None = None  # when the Node was seen to name the resource, after the last registration


class Holding(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """Devices a container was given, as podresources says it. `chosen`: what the scheduler had asked for, when the kubelet
    took others (KubeletChoseOtherDevices)."""

    pod: str  # namespace/name
    container: str
    resource: str
    devices: list[str]
    uid: str = ""
    chosen: list[str] = []
    since: datetime | None = None


class LauncherReport(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """What the agent knows of one pod's launcher: its state at the barrier. A transition each, never a heartbeat."""

    pod: str
    uid: str
    state: str  # parked | ready | running | stopping | exited | gone
    attempt: int = 0
    code: int | None = None
    message: str = ""
    tail: str = ""  # the last of its log when it failed, for jobs whose rules ask for it
    checkpoints: list[int] = []
    corrupt: list[int] = []  # checkpoints that failed their own check
    abandoned: list[int] = []  # whole, but of a history that was given up
    unreadable: str = ""  # what could not be read when it looked for checkpoints, and why
    hung_since: datetime | None = None
    time: datetime | None = None
    planned: bool = False  # it ended because its node was stopped on purpose
    per_node: bool = False  # its checkpoints lie on its node alone, and on the one that has copies
    shared: bool = False  # where its node would keep them all nodes have one directory
    copied_to: str = ""  # the node that has copies of its checkpoints, of a job without a shared directory
    not_copied: str = (
        ""  # why no node takes any, while that is so; of a rank that is ready, which copies turned out damaged
    )


class OrderAnswer(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """What became of an order (`NodeDevices.orders`), by its id. An agent carries an id out once, whatever restarts meanwhile."""

    id: str
    action: str
    outcome: str  # Running | Succeeded | Failed | TimedOut | Refused
    device: str = ""
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    time: datetime | None = None


class Observed(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    model: str = ""
    devices: list[ObservedDevice] = []
    launchers: list[LauncherReport] = []
    links: list[ObservedLink] = []
    plugins: list[PluginReport] = []
    holdings: list[Holding] = []
    signals: list[
        Signal
    ] = []  # of the node as a whole: devices missing, driver hanging, kmsg gap; newest last, bounded
    boot: str = ""  # boot id
    door: str = ""  # host:port, where peers ask for copies of checkpoints; "" = it keeps none
    answers: list[OrderAnswer] = []  # to orders, newest last, bounded


class Verdict(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """What the signals of one device mean, and who holds the device. `remedy` and `scope` are the fault table's, so that nobody
    who acts on a verdict has to look the code up again."""

    device: str
    state: DeviceState = DeviceState.HEALTHY
    reason: str = ""
    message: str = ""
    source: str = ""  # origin of the signal that decides, or who ordered the quarantine
    since: datetime | None = None
    holder: str = ""  # namespace/pod
    holder_uid: str = ""
    remedy: str = ""  # the rung that the fault table asks for; "" when no fault decides
    scope: str = "device"  # what is broken: process | device | link | switch | node

    @property
    def origin(self) -> tuple[str, str]:
        """(source, code) of the signal that decides; the code is "" where an order does."""
        source, _, code = self.source.partition("/")
        return source, code


class Notice(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """Something about the node that is no device's fault: a plugin lost, devices missing, a driver that hangs.

    `holding_until`: the hold-down. Until then it may be a restart that passes, and nothing is to be made of it."""

    reason: str
    message: str
    resource: str = ""
    since: datetime | None = None
    holding_until: datetime | None = None


class QuarantineOrder(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """Keep this device out of use whatever its signals say, until the order is taken back."""

    reason: str
    message: str = ""
    by: str = ""
    since: datetime | None = None
    incident: str = ""  # whose remedy it is, when it is one's


class Rejection(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """A pod that the node refused to admit."""

    pod: str  # namespace/name
    uid: str
    message: str = ""
    time: datetime | None = None


class DeviceOrder(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """Something the node's agent is to do: probe | reset | reboot | command. Taken away by who gave it, once it is answered."""

    action: str
    device: str = ""  # "" = the node
    command: list[str] = []
    env: dict[str, str] = {}
    by: str = ""
    since: datetime | None = None
    deadline: datetime | None = None


class DeviceHistory(UntrustedTimes, frozen=True, rename="camel", omit_defaults=True):
    """What is remembered of a device when its signals are gone."""

    failures: list[datetime] = []  # when it turned Unhealthy, newest last, bounded
    minor: list[Signal] = []  # when which minor fault was seen, without words, newest last, bounded
    uuid: str = ""  # of the device all this is about: another one in its place has none of it
    incidents: list[str] = []  # names, newest last, bounded


class NodeDevices(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        GROUP, VERSION, "NodeDevices", "nodedevices", namespaced=False, short=("nd",), subresources=("status",)
    )

    observed: Observed = msgspec.field(default=Observed(), name="status")  # by the agent
    # Where agents wrote before there was a status. It counts until the agent has written its status; nobody writes it any more.
    observed_before: Observed | None = msgspec.field(default=None, name="observed")
    verdicts: list[Verdict] = []
    summary: str = ""  # of the verdicts in a few words, for tables; written with them
    notices: list[Notice] = []  # by the manager
    quarantine: dict[str, QuarantineOrder] = {}  # by device id; a map, so that orders from several hands merge
    withheld: dict[
        str, QuarantineOrder
    ] = {}  # by resource: nothing of it is to be placed here, whatever its devices say
    rejections: dict[
        str, list[Rejection]
    ] = {}  # by resource: pods refused for it, newest last, bounded; by the manager
    findings: dict[str, list[Signal]] = {}  # by device: what the manager itself found, judged beside what the agent saw
    history: dict[str, DeviceHistory] = {}  # by device, by the manager
    orders: dict[str, DeviceOrder] = {}  # by order id, for the agent

    @property
    def is_observed_before(self) -> bool:
        """Whether the agent has yet to write its status, and `observed` is what an earlier one left."""
        return self.observed is self.observed_before

    def __post_init__(self) -> None:
        if self.observed_before is not None and self.observed == Observed():
            msgspec.structs.force_setattr(self, "observed", self.observed_before)

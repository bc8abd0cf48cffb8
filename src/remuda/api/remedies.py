"""RemedyPolicy: what Remuda may do to devices and nodes without asking, how, and how much of it at a time.

Every device has one policy: of those whose selector matches, the highest `priority`, then the most selective, then the first
name; the policy named `default` (or, when there is none, the built-in one) applies to all other devices. Contradictions within
one policy are refused when it is written; two policies of equal priority and selectivity that overlap say so in a condition.

A *ladder* belongs to a device remedy of the fault table (RestartApp, ResetDevice, RebootNode, Replace) or to a reason; its
rungs are climbed one after another, each with a deadline and a budget of attempts, until a probe passes and the soak ends.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec

from remuda.api.meta import Condition, JsonObject, KObject, Resource
from remuda.api.names import GROUP, VERSION

DEFAULT_POLICY = "default"


class Mode(StrEnum):
    OBSERVE = "Observe"  # record what would be done
    APPROVE = "Approve"  # wait for an operator's yes, rung by rung
    AUTO = "Auto"


class Action(StrEnum):
    """Rungs of the device ladder, cheapest first."""

    PROBE = "probe"  # an active test of the device
    RESET = "reset"
    REBOOT = "reboot"  # of the node, drained first
    REPLACE = "replace"  # hand the node to whoever replaces it (a hook), drained first
    TICKET = "ticket"  # an RMA ticket: a hook or a webhook; the device stays out of use


class PolicySelector(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Empty = everything. `deviceTypes` are shell patterns: "NVIDIA-H100*"."""

    device_types: list[str] = []
    nodes: dict[str, str] = {}  # labels the node must have


class Hook(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """How an action is done where Remuda cannot do it itself: one of the two.

    `command` is run by the node's agent with REMUDA_NODE, REMUDA_DEVICE, REMUDA_UUID, REMUDA_INCIDENT, REMUDA_ACTION set; 0 is
    success. `object` is made through the API with {node}, {device}, {uuid}, {incident}, {action} filled in; it has succeeded
    when the condition `successCondition` of its status is True, and failed when `failureCondition` is.
    """

    command: list[str] = []
    object: JsonObject = {}
    success_condition: str = "Succeeded"
    failure_condition: str = "Failed"


class Rung(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    action: Action
    timeout_seconds: float = 600.0
    attempts: int = 1
    hook: Hook | None = None
    after_seconds: float = 0.0  # does not start before the incident has been open this long


class Ladder(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`when`: a device remedy of the fault table, a verdict's reason (say Xid79, DeviceFlapping), or "*"."""

    when: str
    rungs: list[Rung]


class Limits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Nodes under remedy at a time: a number, or a share like "20%" (rounded down, at least 1). 0 = none, "" = no limit.

    `pool` counts the nodes the policy selects; `rack` those of one value of `rackLabel`; `tenant` those that a namespace's pods
    held devices on; `reservation` those of one value of the label remuda.dev/reservation; `cause` those of one reason. `perHour`
    limits how many may start in an hour. Putting devices back into use is never limited.
    """

    pool: str = "10%"
    rack: str = ""
    tenant: str = ""
    reservation: str = ""
    cause: str = ""
    per_hour: str = ""
    rack_label: str = "topology.remuda.dev/rack"


class Breaker(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Opens when more than `share` of the pool's nodes (and more than `atLeast`) failed within `windowSeconds`: that looks like a
    fault of the monitoring, the network or the power, not of devices. Closes by itself when `cooldownSeconds` pass without
    another. While it is open no device is newly taken out of use or repaired; repaired devices are still put back into use."""

    share: str = "30%"
    at_least: int = 3
    window_seconds: float = 300.0
    cooldown_seconds: float = 600.0


class Drain(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Before a node is rebooted or replaced: cordon, ask gangs for a checkpoint, move them, evict the rest (PDBs honoured until
    the deadline)."""

    patience_seconds: float = 3600.0  # how long pods on the node's other devices are protected first; 0 = not at all
    checkpoint_seconds: float = 120.0  # how long to wait for the checkpoint that was asked for
    deadline_seconds: float = 900.0  # then pods are deleted
    whole_domain: bool = True  # a node of a multi-node domain is drained and recycled with all of it, never alone
    take_over: bool = (
        False  # go on with a node that somebody else cordoned; that cordon stays. False: wait until it is gone
    )


class Soak(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A device comes back only when a probe has passed and no new fault was reported for this long after it."""

    seconds: float = 600.0


class Offender(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """More than `incidents` of one device within the window: the ladder starts at `action`."""

    incidents: int = 3
    window_seconds: float = 604_800.0
    action: Action = Action.REPLACE


class Timers(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What keeps a flap from becoming a failure. A node has the policy of its first device.

    Hold-down: how long a plugin or kubelet may be gone before it counts as lost. Debounce: how long a fault that
    comes and goes must last before it counts. More than `flapLimit` flaps within the window quarantine the device. (Look-back
    is the workload's: `spec.failure.lookBackSeconds` of a TrainingJob.)
    """

    hold_down_seconds: float = 60.0
    debounce_seconds: float = 5.0
    flap_window_seconds: float = 3600.0
    flap_limit: int = 3


class Idle(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Devices that are held but not used. `action`: Warn (condition and event) or Reclaim (the holder is deleted, DeviceIdle)."""

    after_seconds: float = 0.0  # 0 = off
    action: str = "Warn"
    gpu_hour_price: float = 0.0  # for the cost shown
    exempt_namespaces: list[str] = []


class Webhook(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Gets a POST with a JSON body when an incident opens or closes, or one of its remedies changes."""

    url: str
    on: list[str] = []  # Opened | Remedy | AwaitingApproval | Closed | Breaker; empty = all


class Pause(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """No new remedy starts during a pause. What runs already is finished, and repaired devices are still put back into use."""

    by: str = ""
    message: str = ""
    since: datetime | None = None
    until: datetime | None = None


class RemedyPolicySpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    selector: PolicySelector = PolicySelector()
    priority: int = 0
    mode: Mode = Mode.AUTO
    ladders: list[Ladder] = []  # empty = the built-in ladders
    limits: Limits = Limits()
    breaker: Breaker = Breaker()
    drain: Drain = Drain()
    soak: Soak = Soak()
    offender: Offender = Offender()
    timers: Timers = Timers()
    idle: Idle = Idle()
    webhooks: list[Webhook] = []
    pause: Pause | None = None


class BreakerStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`since` and `closesAt` of a closed breaker say when it was last open."""

    open: bool = False
    since: datetime | None = None
    closes_at: datetime | None = None
    message: str = ""


class RemedyPolicyStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    nodes: int = 0  # that it is the policy of
    under_remedy: list[str] = []  # nodes
    held_back: int = 0  # remedies waiting for a limit
    breaker: BreakerStatus = BreakerStatus()
    conditions: list[Condition] = []


class RemedyPolicy(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What Remuda may do to devices and nodes without asking: ladders, modes, limits, breaker, soak."""

    resource: ClassVar[Resource] = Resource(
        GROUP,
        VERSION,
        "RemedyPolicy",
        "remedypolicies",
        namespaced=False,
        subresources=("status",),
        short=("rp",),
    )

    spec: RemedyPolicySpec = RemedyPolicySpec()
    status: RemedyPolicyStatus = RemedyPolicyStatus()

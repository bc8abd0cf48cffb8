"""Drill: a fault injected on purpose. What can be broken, on whom, and what undoing it means.

A drill names exactly one target: a pod, a device, a node, or a plugin (a resource of a node). Those that last (`lasts`) end
after `spec.seconds`, or when `spec.undo` is set; without either they stay. The others happen once and cannot be undone: what
they broke heals, or does not, as it would after a real failure.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from remuda.api.codec import to_wire
from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject, KObject, Resource
from remuda.api.names import GROUP, VERSION


class DrillKind(StrEnum):
    PROCESS_KILL = "process-kill"
    PROCESS_HANG = "process-hang"
    LAUNCHER_KILL = "launcher-kill"
    POD_DELETE = "pod-delete"
    DEVICE_FAIL = "device-fail"
    DEVICE_DROP = "device-drop"
    DEVICE_FLAP = "device-flap"
    DEVICE_SLOW = "device-slow"
    DEVICE_IDLE = "device-idle"
    DEVICE_REPLACE = "device-replace"
    ECC_TREND = "ecc-trend"
    POWER_CAP = "power-cap"
    PLUGIN_KILL = "plugin-kill"
    PLUGIN_HANG = "plugin-hang"
    ALLOCATE_FAIL = "allocate-fail"
    KUBELET_RESTART = "kubelet-restart"
    NODE_LOST = "node-lost"
    NODE_REBOOT = "node-reboot"
    NODE_PARTITION = "node-partition"
    SPOT_NOTICE = "spot-notice"
    MAINTENANCE_NOTICE = "maintenance-notice"


class Aim(StrEnum):
    """What a drill is aimed at, and so which fields of its spec must be there."""

    POD = "pod"
    DEVICE = "device"
    NODE = "node"
    PLUGIN = "plugin"


NEEDS: dict[Aim, tuple[str, ...]] = {
    Aim.POD: ("pod", "namespace"),
    Aim.DEVICE: ("node", "device"),
    Aim.NODE: ("node",),
    Aim.PLUGIN: ("node", "resource"),
}


class DrillKindFacts(msgspec.Struct, frozen=True):
    """`does`: a sentence without its full stop. `undoing`: what undoing it does; "" when it happens once and cannot be undone."""

    aim: Aim
    does: str
    example: str
    undoing: str = ""

    @property
    def lasts(self) -> bool:
        return bool(self.undoing)


DRILLS: dict[DrillKind, DrillKindFacts] = {
    DrillKind.PROCESS_KILL: DrillKindFacts(Aim.POD, "A rank's process is killed", "process-kill JOB --rank 3"),
    DrillKind.PROCESS_HANG: DrillKindFacts(
        Aim.POD, "A rank's process stops making progress", "process-hang JOB --rank 3", "the process continues"
    ),
    DrillKind.LAUNCHER_KILL: DrillKindFacts(
        Aim.POD, "The launcher of a rank's pod is killed", "launcher-kill JOB --rank 3"
    ),
    DrillKind.POD_DELETE: DrillKindFacts(Aim.POD, "A rank's pod is deleted", "pod-delete JOB --rank 3"),
    DrillKind.DEVICE_FAIL: DrillKindFacts(
        Aim.DEVICE, "A GPU reports a fault code", "device-fail JOB --rank 5 --code 79", "a probe passes"
    ),
    DrillKind.DEVICE_DROP: DrillKindFacts(
        Aim.DEVICE, "The driver no longer lists a GPU", "device-drop JOB --rank 5", "it is listed again"
    ),
    DrillKind.DEVICE_FLAP: DrillKindFacts(
        Aim.DEVICE, "A GPU fails and recovers, several times", "device-flap JOB --rank 5 --times 4"
    ),
    DrillKind.DEVICE_SLOW: DrillKindFacts(
        Aim.DEVICE,
        "A GPU becomes slow; the node slows down its process",
        "device-slow JOB --rank 5 --factor 2",
        "it works at full speed",
    ),
    DrillKind.DEVICE_IDLE: DrillKindFacts(
        Aim.DEVICE, "A GPU is held but hardly used", "device-idle JOB --rank 5", "its holder uses it again"
    ),
    DrillKind.DEVICE_REPLACE: DrillKindFacts(
        Aim.DEVICE, "A GPU is replaced by another one", "device-replace --node node-03 --device gpu-5"
    ),
    DrillKind.ECC_TREND: DrillKindFacts(
        Aim.DEVICE, "A GPU's corrected memory errors rise", "ecc-trend JOB --rank 5 --times 5000"
    ),
    DrillKind.POWER_CAP: DrillKindFacts(
        Aim.NODE,
        "All GPUs of a node slow down under a power cap",
        "power-cap node-03 --factor 1.5",
        "the cap is lifted",
    ),
    DrillKind.PLUGIN_KILL: DrillKindFacts(
        Aim.PLUGIN, "A device plugin dies: its socket and streams end", "plugin-kill node-03", "it is started again"
    ),
    DrillKind.PLUGIN_HANG: DrillKindFacts(
        Aim.PLUGIN, "A device plugin no longer answers", "plugin-hang node-03", "it answers again"
    ),
    DrillKind.ALLOCATE_FAIL: DrillKindFacts(
        Aim.PLUGIN, "A device plugin refuses every Allocate", "allocate-fail node-03", "it allocates again"
    ),
    DrillKind.KUBELET_RESTART: DrillKindFacts(
        Aim.NODE, "The kubelet restarts; its pods keep running", "kubelet-restart node-03"
    ),
    DrillKind.NODE_LOST: DrillKindFacts(Aim.NODE, "A node loses power", "node-lost node-03"),
    DrillKind.NODE_REBOOT: DrillKindFacts(Aim.NODE, "A node reboots: every container is gone", "node-reboot node-03"),
    DrillKind.NODE_PARTITION: DrillKindFacts(
        Aim.NODE,
        "A node cannot reach the API; its pods keep running",
        "node-partition node-03 --seconds 5",
        "it can reach it again",
    ),
    DrillKind.SPOT_NOTICE: DrillKindFacts(
        Aim.NODE,
        "The cloud gives notice, then takes the node away",
        "spot-notice node-03 --seconds 120",
        "the notice is withdrawn",
    ),
    DrillKind.MAINTENANCE_NOTICE: DrillKindFacts(
        Aim.NODE,
        "Maintenance is announced, then the node reboots",
        "maintenance-notice node-03 --seconds 600",
        "the notice is withdrawn",
    ),
}

# kinds whose own numbers have a default
DEFAULT_TIMES = {DrillKind.DEVICE_FLAP: 1, DrillKind.ECC_TREND: 5000}
DEFAULT_FACTOR = {DrillKind.DEVICE_SLOW: 2.0, DrillKind.POWER_CAP: 1.5}
DEFAULT_SECONDS = {DrillKind.NODE_PARTITION: 5.0, DrillKind.SPOT_NOTICE: 120.0, DrillKind.MAINTENANCE_NOTICE: 600.0}


class DrillSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`node` says where; `pod`, `device` or `resource` what it breaks; `code` which fault, say "xid-79".
    `factor`: how many times slower. `seconds`: how long it lasts, or until a notice comes true. `heals`: what cures the fault
    code, reset | reboot | replace | never; "" = what the fault table says."""

    type: DrillKind
    node: str = ""
    pod: str = ""
    namespace: str = ""
    device: str = ""
    code: str = ""
    resource: str = ""
    times: int = 0
    factor: float = 0.0
    seconds: float = 0.0
    undo: bool = False
    heals: str = ""


UNDER_WAY = ("Pending", "Running")  # phases of a drill that nobody has answered yet
LONGEST_MESSAGE = 1024


class DrillStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    phase: str = "Pending"  # Pending | Running | Done | Refused | Undone
    reason: str = ""
    message: str = ""
    time: datetime | None = None
    undone_at: datetime | None = None


class Drill(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource(
        GROUP, VERSION, "Drill", "drills", namespaced=False, subresources=("status",)
    )

    spec: DrillSpec
    status: DrillStatus = DrillStatus()


def refused_drill_status(refusal: Refusal, at: datetime | None = None) -> DrillStatus:
    words = f"{refusal.message} {refusal.fix or ''}".strip()
    return DrillStatus("Refused", refusal.reason, words, at)


def drill_status_patch(status: DrillStatus) -> JsonObject:
    """Of what was said before nothing stays: a field that is left out of a patch would."""
    status = replace(status, message=status.message[:LONGEST_MESSAGE])
    return {"status": {"reason": None, "message": None, **to_wire(status)}}

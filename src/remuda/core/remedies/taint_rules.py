"""DeviceTaintRule: how a device is kept from ResourceClaims (DRA), where pods do not ask the device plugin for it.

One rule per device, by a name that follows from the device, so that it is made once whoever makes it. The selector is exact
(driver, pool, device): the drivers we know publish a node's devices in a pool of the node's name. NoSchedule keeps new claims
away; who has the device keeps it. What is removed is only what carries our label.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from remuda.api.devices import NodeDevices
from remuda.api.meta import JsonObject

GROUP, KIND, PLURAL = "resource.k8s.io", "DeviceTaintRule", "devicetaintrules"
VERSIONS = ("v1", "v1beta2", "v1alpha3")  # newest first
OURS = "remuda.dev/managed-by"
TAINT = "remuda.dev/device"
DRIVERS = {"nvidia.com/": "gpu.nvidia.com", "amd.com/": "gpu.amd.com"}  # by how the device's resource begins
NO_SCHEDULE = "NoSchedule"

_NOT_A_NAME = re.compile(r"[^a-z0-9-]+")
_NOT_A_VALUE = re.compile(r"[^A-Za-z0-9._-]+")


class TaintedDevice(msgspec.Struct, frozen=True):
    """`name`: the device's name in its ResourceSlice; usually the ledger's id."""

    node: str
    device: str
    driver: str
    name: str = ""


def taint_rule_driver_for(resource: str) -> str:
    """The DRA driver that would publish a device of this resource; "" when nobody knows."""
    return next((driver for prefix, driver in DRIVERS.items() if resource.startswith(prefix)), "")


def taint_rule_name(device: TaintedDevice) -> str:
    """Stable, and different for different devices however their names are cut."""
    plain = _NOT_A_NAME.sub("-", f"{device.node}-{device.device}".lower())[:200].strip("-")
    key = hashlib.sha256(f"{device.node}/{device.driver}/{device.device}".encode()).hexdigest()[:8]
    return f"remuda-{plain}-{key}"


def taint_rule_body(device: TaintedDevice, reason: str, effect: str, version: str) -> JsonObject:
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": KIND,
        "metadata": {"name": taint_rule_name(device), "labels": {OURS: "remuda"}},
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.node, "device": device.name or device.device},
            "taint": {"key": TAINT, "value": taint_value(reason), "effect": effect},
        },
    }


def taint_value(reason: str) -> str:
    return _NOT_A_VALUE.sub("-", reason)[:63].strip("._-")


class TaintRulePlan(msgspec.Struct, frozen=True):
    make: dict[TaintedDevice, str] = {}  # with the reason of its order
    remove: tuple[TaintedDevice, ...] = ()


def plan_taint_rules(node: str, devices: NodeDevices | None, standing: Mapping[TaintedDevice, str]) -> TaintRulePlan:
    """What is to be done so that exactly the devices under an order have a rule. `devices`: None = the node is gone.
    `standing`: what each rule of ours says. A device that is not reported just now keeps the rule it has."""
    orders = devices.quarantine if devices is not None else {}
    resources = {row.id: row.resource for row in devices.observed.devices} if devices is not None else {}
    make: dict[TaintedDevice, str] = {}
    for id, order in orders.items():
        device = TaintedDevice(node, id, taint_rule_driver_for(resources.get(id, "")))
        if device.driver and standing.get(device) != taint_value(order.reason):
            make[device] = order.reason
    remove = (device for device in standing if device.node == node and device.device not in orders)
    return TaintRulePlan(make, tuple(sorted(remove, key=lambda device: device.device)))

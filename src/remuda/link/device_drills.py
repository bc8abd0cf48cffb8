"""Drills on the devices and plugins of one node, through its agent: the same for an embedded node and beside a kubelet.

What a slow device does to its holder's process is not here: an embedded node slows the process down itself.
"""

from __future__ import annotations

from remuda.api.drills import DEFAULT_FACTOR, DrillKind, DrillSpec
from remuda.api.errors import Refusal
from remuda.link.allocation_port import FAIL, HANG, KILL, MEND, NodeAgentLink

_PLUGIN = {
    DrillKind.PLUGIN_KILL: (KILL, "died"),
    DrillKind.PLUGIN_HANG: (HANG, "answers no call"),
    DrillKind.ALLOCATE_FAIL: (FAIL, "refuses every Allocate"),
}


def device_drill_factor(spec: DrillSpec) -> float:
    return spec.factor or DEFAULT_FACTOR.get(spec.type, 1.0)


def inject_device_drill_over_link(agent: NodeAgentLink, spec: DrillSpec) -> str:
    """What was done, in one sentence. Refusal RealHardware, UnknownDevice, UnknownDrill."""
    where = f"{spec.device} of {spec.node}"
    if spec.type is DrillKind.DEVICE_FAIL:
        agent.inject_fault(spec.device, spec.code, spec.heals)
        return f"{where} reports {spec.code}."
    hardware = agent.hardware()
    factor = device_drill_factor(spec)
    match spec.type:
        case DrillKind.DEVICE_DROP:
            hardware.drop(spec.device)
            return f"{where} is gone from the driver's list."
        case DrillKind.DEVICE_FLAP:
            hardware.flap(spec.device, spec.times)
            return f"{where} turned bad and good again {spec.times} times."
        case DrillKind.DEVICE_SLOW:
            hardware.set_speed(spec.device, 1.0 / factor)
            return f"{where} works {factor:g} times slower."
        case DrillKind.DEVICE_IDLE:
            hardware.set_utilisation(spec.device, 0.0)
            return f"{where} is hardly used."
        case DrillKind.DEVICE_REPLACE:
            hardware.replace(spec.device)
            return f"{where} was replaced by another device."
        case DrillKind.ECC_TREND:
            hardware.count_ecc(spec.device, corrected=spec.times)
            return f"{where} counted {spec.times} more corrected memory errors."
        case DrillKind.POWER_CAP:
            hardware.cap_power(1.0 / factor)
            return f"Every device of {spec.node} works {factor:g} times slower under a power cap."
    raise Refusal("UnknownDrill", f"This node cannot do a {spec.type}.", "See `remuda drill list`.")


def inject_plugin_drill_over_link(agent: NodeAgentLink, spec: DrillSpec) -> str:
    fault, words = _PLUGIN[spec.type]
    agent.inject_plugin_fault(spec.resource, fault)
    return f"The plugin for {spec.resource} on {spec.node} {words}."


def take_back_drill_over_link(agent: NodeAgentLink, spec: DrillSpec) -> None:
    """One on devices or plugins that lasts."""
    match spec.type:
        case DrillKind.DEVICE_FAIL:
            agent.hardware().mend(spec.device)
        case DrillKind.DEVICE_DROP:
            agent.hardware().restore(spec.device)
        case DrillKind.DEVICE_SLOW:
            agent.hardware().set_speed(spec.device, 1.0)
        case DrillKind.DEVICE_IDLE:
            agent.hardware().set_utilisation(spec.device, 1.0)
        case DrillKind.POWER_CAP:
            agent.hardware().cap_power(1.0)
        case DrillKind.PLUGIN_KILL | DrillKind.PLUGIN_HANG | DrillKind.ALLOCATE_FAIL:
            agent.inject_plugin_fault(spec.resource, MEND)
        case _:
            raise Refusal("CannotBeUndone", f"A {spec.type} cannot be taken back.", "Repair what it broke.")

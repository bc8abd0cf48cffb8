"""Are all devices there? What the driver shows, against what the node is known and its model is said to have.

Kubernetes cannot ask this: a node that boots with seven of its eight devices offers seven, and seven of seven looks whole. A
device that is known by id and not shown is named, with its UUID and place. A shortfall against the model beyond those (the
device was never seen on this node) cannot be named, only counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remuda.agent.hardware.device_ids import SeenDevice, device_id
from remuda.agent.hardware.signal_listeners import NODE, HardwareSignalListeners


def report_missing_devices(
    listeners: HardwareSignalListeners,
    source: str,
    known: Mapping[int, SeenDevice],
    missing: Sequence[int],
    expected: int,
    why: Mapping[int, str],
) -> None:
    """Report each missing device and the node's shortfall, or that all is complete. `expected`: by the model, 0 = unknown.
    `why`: what is known of a missing device's absence."""
    for number, seen in known.items():
        if number in missing:
            reason = why.get(number) or "the driver does not show it"
            listeners.tell(
                device_id(number), source, "device-missing", f"{missing_hardware_device_name(number, seen)}: {reason}."
            )
        else:
            listeners.tell(device_id(number), source, "device-back")
    sentence = missing_hardware_summary(known, missing, expected)
    if sentence:
        listeners.tell(NODE, source, "devices-missing", sentence)
    else:
        listeners.tell(NODE, source, "devices-complete", f"All {len(known)} devices are there.")


def missing_hardware_summary(known: Mapping[int, SeenDevice], missing: Sequence[int], expected: int) -> str:
    """What is not there, in one sentence; empty when all is."""
    total = max(len(known), expected)
    never = total - len(known)
    if not missing and not never:
        return ""
    there = len(known) - len(missing)
    parts = [missing_hardware_device_name(n, known[n]) for n in missing]
    if never:
        parts.append(f"{never} never seen on this node")
    return f"{there} of {total} devices are there; missing: {'; '.join(parts)}."


def missing_hardware_device_name(number: int, seen: SeenDevice) -> str:
    details = ", ".join(word for word in (seen.uuid, f"PCI {seen.pci}" if seen.pci else "") if word)
    return f"{device_id(number)} ({details})" if details else device_id(number)

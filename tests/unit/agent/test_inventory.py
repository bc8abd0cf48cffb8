"""Rows and signals of a node's devices: what survives a look at the hardware, a restart, a replacement."""

from __future__ import annotations

import msgspec

from remuda.agent.inventory import Inventory, inventory_device_of_plugin_id
from remuda.api.devices import ObservedDevice, Signal
from remuda.core.devices.fault_codes import classify_device_fault_code

XID = Signal("kmsg", "xid-79")


def a_device(number: int, uuid: str = "", **fields: object) -> ObservedDevice:
    return msgspec.structs.replace(ObservedDevice(f"gpu-{number}", "X", number, uuid=uuid or f"GPU-{number}"), **fields)


def an_inventory() -> tuple[Inventory, list[int]]:
    made = Inventory("node-01", [a_device(0), a_device(1)])
    calls: list[int] = []
    made.subscribe(lambda: calls.append(1))
    return made, calls


def reason(inventory: Inventory, device: str) -> str:
    fault = inventory.fault(device)
    return fault.reason if fault else ""


def test_a_signal_is_kept_and_told_once() -> None:
    inventory, calls = an_inventory()
    inventory.hear("gpu-0", XID)
    inventory.hear("gpu-9", XID)  # of no device of ours
    assert (len(calls), reason(inventory, "gpu-0"), reason(inventory, "gpu-1")) == (1, "Xid79", "")


def test_a_look_at_the_hardware_keeps_what_is_known_of_the_same_device() -> None:
    inventory, calls = an_inventory()
    inventory.hear("gpu-0", XID)
    inventory.renew([a_device(0), a_device(1)])
    assert len(calls) == 1  # nothing new
    inventory.renew([a_device(0, numa=1), a_device(1)])
    assert reason(inventory, "gpu-0") == "Xid79"
    inventory.renew([a_device(0, "GPU-new"), a_device(1)])
    assert reason(inventory, "gpu-0") == ""  # another device in its place
    assert len(calls) == 3


def test_a_restart_launders_nothing_and_a_replacement_while_nobody_looked_is_one() -> None:
    inventory, _ = an_inventory()
    earlier = [a_device(0, signals=[XID]), a_device(1, "GPU-old", signals=[XID]), a_device(2, signals=[XID])]
    inventory.load(earlier)
    assert (reason(inventory, "gpu-0"), reason(inventory, "gpu-1")) == ("Xid79", "")
    assert list(inventory.rows) == ["gpu-0", "gpu-1"]


def test_what_is_withheld_for_one_reason_is_not_freed_by_another() -> None:
    inventory, calls = an_inventory()
    fault = classify_device_fault_code("kmsg", "xid-79")
    inventory.withhold("A", {"gpu-0": fault})
    inventory.withhold("B", {"gpu-0": fault, "gpu-1": fault})
    inventory.withhold("B", {})
    assert reason(inventory, "gpu-0") == "Xid79"
    assert reason(inventory, "gpu-1") == ""
    inventory.withhold("A", {})
    inventory.withhold("A", {})
    assert len(calls) == 4


def test_resources_follow_the_rows() -> None:
    inventory, _ = an_inventory()
    piece = a_device(0, id="gpu-0-1g.10gb-0", parent="gpu-0", resource="nvidia.com/mig-1g.10gb")
    inventory.renew([a_device(0, resource=""), piece, a_device(1)])
    assert inventory.resources() == ("nvidia.com/mig-1g.10gb", "nvidia.com/gpu")
    assert [row.id for row in inventory.of("nvidia.com/gpu")] == ["gpu-1"]
    assert inventory.slices("gpu-0") == [piece]
    inventory.withhold("A", {"gpu-0": classify_device_fault_code("kmsg", "xid-79")})
    assert reason(inventory, piece.id) == "Xid79"


def test_a_share_is_of_its_device() -> None:
    assert inventory_device_of_plugin_id("gpu-0::3") == "gpu-0"
    assert inventory_device_of_plugin_id("gpu-0") == "gpu-0"

"""Links as a driver describes them, to the classes a scheduler counts with."""

from __future__ import annotations

from remuda.agent.hardware.device_links import observed_hardware_links
from remuda.api.devices import Observed, ObservedDevice, ObservedLink
from remuda.core.devices.links import device_pair_class
from remuda.core.devices.observed_model import machine_model_of

IDS = {f"0000:{n:02x}:00.0": f"gpu-{n}" for n in range(4)}
PCIS = list(IDS)


def test_links_to_switches_join_all() -> None:
    ends = {pci: [{"switch": True, "pci": "0000:fe:00.0"}] * (18 if pci != PCIS[0] else 17) for pci in PCIS}
    assert observed_hardware_links(IDS, ends, []) == (ObservedLink("nv17", list(IDS.values())),)


def test_links_to_devices_join_two_and_are_counted_once() -> None:
    ends = {
        PCIS[0]: [{"switch": False, "pci": PCIS[1]}] * 2,
        PCIS[1]: [{"switch": False, "pci": PCIS[0]}] * 2,
        PCIS[2]: [{"switch": False, "pci": "0000:aa:00.0"}],
    }
    assert observed_hardware_links(IDS, ends, []) == (ObservedLink("nv2", ["gpu-0", "gpu-1"]),)
    assert observed_hardware_links(IDS, ends, [], "xgmi") == (ObservedLink("xgmi", ["gpu-0", "gpu-1"]),)


def test_a_node_of_no_known_make_is_as_near_as_its_driver_says() -> None:
    a, b, c, d = PCIS
    pairs = [[a, b, "PIX"], [a, c, "PXB"], [b, c, "PXB"], [a, d, "PHB"], [b, d, "PHB"], [c, d, "PHB"]]
    links = observed_hardware_links(IDS, {}, pairs)
    assert ObservedLink("PIX", ["gpu-0", "gpu-1"]) in links
    observed = Observed(devices=[ObservedDevice(id=i, type="H100") for i in IDS.values()], links=list(links))
    model = machine_model_of(observed)
    assert model is not None
    assert [device_pair_class(model, x, y) for x, y in ((0, 1), (0, 2), (1, 2), (0, 3), (2, 3))] == [
        "PIX",
        "PXB",
        "PXB",
        "PHB",
        "PHB",
    ]

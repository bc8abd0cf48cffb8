"""The machine model of a node as it reports itself."""

from __future__ import annotations

import pytest

from remuda.api.devices import Observed, ObservedDevice, ObservedLink
from remuda.core.devices.links import device_pair_class
from remuda.core.devices.machine_models import (
    MachineModel,
    known_machine_models,
    load_built_in_machine_model,
    parse_machine_model,
)
from remuda.core.devices.observed_model import links_of_model, machine_model_of


def shown(count: int, model: str = "", *links: ObservedLink) -> Observed:
    devices = [ObservedDevice(id=f"gpu-{i}", type="X", index=i, numa=2 * i // count) for i in range(count)]
    return Observed(model=model, devices=devices, links=list(links))


def test_a_model_this_build_knows() -> None:
    assert machine_model_of(shown(8, "dgx-h100")) is load_built_in_machine_model("dgx-h100")
    assert machine_model_of(shown(7, "dgx-h100")) is load_built_in_machine_model(
        "dgx-h100"
    )  # one is missing; the machine is the same


def test_a_model_that_does_not_have_the_devices_shown_is_not_believed() -> None:
    found = machine_model_of(shown(8, "l40s-4x-pcie"))
    assert found is not None
    assert len(found.devices) == 8


def test_a_users_model_goes_first() -> None:
    devices = [{"index": i, "type": "X", "memoryBytes": 1} for i in range(2)]
    own = parse_machine_model({"name": "mine", "devices": devices})
    assert machine_model_of(shown(2, "mine"), [own]) is own


def test_an_unknown_make_is_what_it_shows() -> None:
    links = [ObservedLink("NV4", ["gpu-0", "gpu-1"]), ObservedLink("xgmi", ["gpu-2", "gpu-3"])]
    found = machine_model_of(shown(4, "homemade", *links))
    assert found is not None
    assert (found.name, found.numa_nodes) == ("homemade", 2)
    assert [device_pair_class(found, 0, b) for b in range(4)] == ["X", "NV4", "SYS", "SYS"]
    assert device_pair_class(found, 2, 3) == "XGMI"


def as_shown(model: MachineModel) -> Observed:
    rows = [ObservedDevice(id=d.id, type=d.type, index=d.index, numa=d.numa) for d in model.devices]
    return Observed(model="never-heard-of", devices=rows, links=links_of_model(model))


def classes(model: MachineModel) -> list[str]:
    return [device_pair_class(model, a, b) for a in range(len(model.devices)) for b in range(len(model.devices))]


@pytest.mark.parametrize("name", known_machine_models())
def test_a_node_can_show_all_there_is_to_know_of_its_pairs(name: str) -> None:
    made = machine_model_of(as_shown(load_built_in_machine_model(name)))
    assert made is not None
    assert made is not load_built_in_machine_model(name)
    assert classes(made) == classes(load_built_in_machine_model(name))


def test_also_of_a_machine_with_every_kind_of_path() -> None:
    places = [
        ("r0", "s0/a"),
        ("r0", "s0/a"),
        ("r0", "s0/b"),
        ("r0", "s1"),
        ("r0", ""),
        ("r1", ""),
        ("", ""),
        ("r1", "s2"),
    ]
    devices = [
        {"index": i, "type": "X", "memoryBytes": 1, "root": root, "switch": switch}
        for i, (root, switch) in enumerate(places)
    ]
    links = [{"kind": "nvlink", "among": [5, 6], "count": 3}, {"kind": "xgmi", "among": [3, 7]}]
    model = parse_machine_model({"name": "all", "devices": devices, "links": links})
    made = machine_model_of(as_shown(model))
    assert made is not None
    assert classes(made) == classes(model)
    assert {"X", "PIX", "PXB", "PHB", "NODE", "NV3", "XGMI"} == set(classes(model))


def test_slices_and_holes_do_not_disturb() -> None:
    rows = [
        ObservedDevice(id="gpu-0", type="X", resource=""),
        ObservedDevice(id="gpu-0-3g.40gb-4", type="X", parent="gpu-0", profile="3g.40gb"),
        ObservedDevice(id="gpu-3", type="X", numa=1, nic="nic-1"),
    ]
    found = machine_model_of(Observed(devices=rows, links=[ObservedLink("nvlink", ["gpu-0", "gpu-9"])]))
    assert found is not None
    assert [d.id for d in found.devices] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert [d.type for d in found.devices] == ["X", "unknown", "unknown", "X"]
    assert [(n.name, n.numa) for n in found.nics] == [("nic-1", 1)]
    assert found.links == []


@pytest.mark.parametrize("ids", [[], ["tpu-0"], ["gpu-x"], ["gpu-99"], ["gpu--1"]])
def test_devices_that_cannot_be_numbered_make_no_machine(ids: list[str]) -> None:
    assert machine_model_of(Observed(devices=[ObservedDevice(id=i, type="X") for i in ids])) is None

"""Machine models: those that ship are what the makers publish, and what a user's own file may and may not say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import (
    MachineModel,
    known_machine_models,
    load_built_in_machine_model,
    parse_machine_model,
)

GIB = 1 << 30


def a_model(**changes: Any) -> bytes:
    body: dict[str, Any] = {
        "name": "mine",
        "numaNodes": 1,
        "devices": [{"index": 0, "type": "X", "memoryBytes": GIB}, {"index": 1, "type": "X", "memoryBytes": GIB}],
        "nics": [{"name": "nic-0"}],
        "links": [],
    }
    return json.dumps({**body, **changes}).encode()


def device(**changes: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "type": "X", "memoryBytes": 1, **changes}]


def test_dgx_h100_is_what_the_vendor_sells() -> None:
    model = load_built_in_machine_model("dgx-h100")
    assert [d.id for d in model.devices] == [f"gpu-{i}" for i in range(8)]
    assert {d.type for d in model.devices} == {"NVIDIA-H100-80GB-HBM3"}
    assert all(80e9 < d.memory_bytes < 80 * GIB for d in model.devices)
    assert [d.numa for d in model.devices] == [0] * 4 + [1] * 4
    assert {d.nic for d in model.devices} == {n.name for n in model.nics}
    assert len(model.nics) == 8
    assert {link.kind for a in range(8) for b in range(8) if a != b and (link := model.link(a, b))} == {"nvlink"}
    assert all((model.link(a, b) is None) == (a == b) for a in range(8) for b in range(8))
    assert model.resource == "nvidia.com/gpu"


# name -> devices, NUMA nodes, sockets, GB of memory, resource, direct link (kind, bonded, GB/s), MIG geometry, NICs
PUBLISHED = {
    "dgx-a100": (8, 8, 2, 80, "nvidia.com/gpu", ("nvlink", 12, 600), "a100-80gb", 8),
    "dgx-h100": (8, 2, 2, 80, "nvidia.com/gpu", ("nvlink", 18, 900), "h100-80gb", 8),
    "dgx-h200": (8, 2, 2, 141, "nvidia.com/gpu", ("nvlink", 18, 900), "h200-141gb", 8),
    "hgx-b200": (8, 2, 2, 180, "nvidia.com/gpu", ("nvlink", 18, 1800), "b200-180gb", 8),
    "gb200-nvl72-tray": (4, 2, 2, 186, "nvidia.com/gpu", ("nvlink", 18, 1800), "gb200-186gb", 4),
    "l40s-4x-pcie": (4, 2, 2, 48, "nvidia.com/gpu", None, "", 2),
    "two-socket-4x-pcie": (4, 2, 2, 80, "nvidia.com/gpu", None, "a100-80gb", 2),
    "mi300x-8x": (8, 2, 2, 192, "amd.com/gpu", ("xgmi", 1, 128), "", 0),
}


def test_the_table_here_has_every_model_that_ships() -> None:
    assert sorted(PUBLISHED) == list(known_machine_models())


@pytest.mark.parametrize("name", known_machine_models())
def test_a_shipped_model_has_the_published_figures(name: str) -> None:
    count, numa_nodes, sockets, gigabytes, resource, link, mig, nics = PUBLISHED[name]
    model = load_built_in_machine_model(name)
    assert model.name == name
    assert (len(model.devices), model.numa_nodes, len(model.nics)) == (count, numa_nodes, nics)
    assert len({model.socket(n) for n in range(numa_nodes)}) == sockets
    assert model.resource == resource
    assert {d.mig for d in model.devices} == {mig}
    assert all(0.93 * gigabytes * GIB <= d.memory_bytes <= 1.08 * gigabytes * GIB for d in model.devices)
    assert model.source
    assert model.description
    found = model.link(0, count - 1)
    assert (found and (found.kind, found.count, found.gbytes_per_s)) == link
    # every socket has its share
    assert all(sum(model.socket(d.numa) == s for d in model.devices) == count // sockets for s in range(sockets))


def test_a_rack_of_trays_is_one_nvlink_domain() -> None:
    model = load_built_in_machine_model("gb200-nvl72-tray")
    assert model.fabric is not None
    assert model.fabric.nodes * len(model.devices) == 72
    assert model.fabric.label == "nvidia.com/gpu.clique"


def test_which_devices_can_be_sliced() -> None:
    geometry = load_built_in_machine_model("dgx-h100").geometry(0)
    assert geometry is not None
    assert geometry.name == "h100-80gb"
    assert load_built_in_machine_model("l40s-4x-pcie").geometry(0) is None
    assert load_built_in_machine_model("mi300x-8x").geometry(0) is None


def test_unknown_model_names_the_known_ones_and_says_how_a_file_is_named() -> None:
    with pytest.raises(Refusal) as caught:
        load_built_in_machine_model("dgx-h1000")
    assert caught.value.reason == "UnknownMachineModel"
    assert "dgx-h1000" in caught.value.message
    assert "dgx-h100" in caught.value.fix
    assert ".json" in caught.value.fix


def test_a_name_is_not_a_path() -> None:
    with pytest.raises(Refusal, match="UnknownMachineModel"):
        load_built_in_machine_model("../models/dgx-h100")


def test_a_model_of_ones_own_from_bytes_or_an_object() -> None:
    model = parse_machine_model(a_model())
    assert isinstance(model, MachineModel)
    assert model.link(0, 1) is None
    assert parse_machine_model(json.loads(a_model())) == model


def test_links_are_by_group() -> None:
    devices = [{"index": i, "type": "X", "memoryBytes": GIB} for i in range(4)]
    links = [{"kind": "nvlink", "among": [0, 1]}, {"kind": "nvlink", "among": [2, 3]}]
    model = parse_machine_model(a_model(devices=devices, links=links))
    assert (model.link(0, 1), model.link(2, 3), model.link(1, 2)) == (*model.links, None)


def test_a_user_may_declare_a_profile_the_maker_has_not() -> None:
    own = {"name": "h100-80gb", "profiles": [{"name": "3g.30gb", "compute": 3, "memory": 3, "starts": [0, 3]}]}
    model = parse_machine_model(a_model(devices=device(mig="h100-80gb"), migGeometries=[own]))
    geometry = model.geometry(0)
    assert geometry is not None
    assert geometry.profile("3g.30gb").starts == [0, 3]


def geometry(**changes: Any) -> list[dict[str, Any]]:
    profile = {"name": "1g", "compute": 1, "memory": 1, "starts": [0]}
    changed = {**profile, **changes.pop("profile", {})}
    return [{"name": "g", "profiles": [changed], **changes}]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"\xff\xfe", "invalid"),
        (a_model(name=""), "no name"),
        (a_model(devices=[]), "it has no devices"),
        (a_model(devices="eight"), "$.devices"),
        (a_model(devices=[{"index": 0}]), "$.devices[0]"),
        (a_model(devices=device(memoryBytes="80GB")), "$.devices[0].memoryBytes"),
        (a_model(devices=device(index=1)), "indexes count from 0"),
        (a_model(devices=device(memoryBytes=0)), "devices[0] has no memory"),
        (a_model(devices=device(type="")), "devices[0] has no type"),
        (a_model(devices=device(numa=1)), "devices[0] is on NUMA node 1"),
        (a_model(devices=device(numa=-1)), "NUMA node -1"),
        (a_model(devices=device(nic="nic-9")), "nic-9"),
        (a_model(devices=device(mig="h900")), "MIG geometry `h900`; there are a100-40gb"),
        (a_model(devices=[d for i in range(65) for d in device(index=i)]), "65 devices"),
        (a_model(numaNodes=0), "numaNodes is 0"),
        (a_model(numaNodes=10**9), "numaNodes is 1000000000"),
        (a_model(sockets=[0, 1]), "sockets has 2 entries for 1 NUMA nodes"),
        (a_model(cpus=["0", "1"]), "cpus has 2 entries for 1 NUMA nodes"),
        (a_model(nics=[{"name": "nic-0", "numa": 3}]), "NUMA node 3"),
        (a_model(nics=[{"name": "n"}, {"name": "n"}]), "nics names `n` twice"),
        (a_model(nics=[{"name": ""}]), "nics has an entry without a name"),
        (a_model(links=[{"kind": "nvlink", "among": [0, 2]}]), "links[0] names device 2"),
        (a_model(links=[{"kind": "nvlink", "among": [0, -1]}]), "links[0] names device -1"),
        (a_model(links=[{"kind": "nvlink", "among": [1, 1]}]), "links[0] must name two or more different"),
        (a_model(links=[{"kind": "nvlink", "among": [1]}]), "links[0] must name two or more different"),
        (a_model(links=[{"kind": "nvlink", "among": [0, 1], "count": 0}]), "links[0] has count 0"),
        (a_model(links=[{"kind": "", "among": [0, 1]}]), "links[0] has no kind"),
        (a_model(fabric={"kind": "nvlink", "label": "x", "nodes": 1}), "fabric.nodes is 1"),
        (
            a_model(numaNodes=2, devices=device(root="r"), nics=[{"name": "n", "numa": 1, "root": "r"}]),
            "root `r` of n is on NUMA nodes 0 and 1",
        ),
        (
            a_model(devices=device(root="a", switch="s/x"), nics=[{"name": "n", "root": "b", "switch": "s/y"}]),
            "switch `s` of n is below roots `a` and `b`",
        ),
        (a_model(migGeometries=geometry(name="")), "migGeometries[0] has no name"),
        (a_model(migGeometries=geometry(memorySlices=99)), "migGeometries[0] has 99 memory slices"),
        (a_model(migGeometries=geometry(profile={"compute": 8})), "profile `1g` has 8 compute slices of 7"),
        (a_model(migGeometries=geometry(profile={"starts": []})), "needs memory slices and different starts"),
        (a_model(migGeometries=geometry(profile={"starts": [8]})), "does not fit 8 memory slices"),
        (a_model(migGeometries=[*geometry(), *geometry()]), "migGeometries names `g` twice"),
        (a_model(migGeometries=[{"name": "g", "profiles": []}]), "migGeometries[0] has no profiles"),
        (a_model(colour="green"), "colour"),
    ],
)
def test_a_broken_model_is_refused_with_the_part_that_is_wrong(data: bytes, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_machine_model(data)
    assert caught.value.reason == "InvalidMachineModel"
    assert words.lower() in caught.value.message.lower()
    assert "dgx-h100" in caught.value.fix

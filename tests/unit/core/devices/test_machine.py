"""Machine models: the one that ships, and what a user's own file may and may not say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remuda.api.errors import Refusal
from remuda.core.devices.machine import MachineModel, known_models, load_model, parse_model

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


def test_dgx_h100_is_what_the_vendor_sells() -> None:
    model = load_model("dgx-h100")
    assert [d.id for d in model.devices] == [f"gpu-{i}" for i in range(8)]
    assert {d.type for d in model.devices} == {"NVIDIA-H100-80GB-HBM3"}
    assert all(80e9 < d.memory_bytes < 80 * GIB for d in model.devices)
    assert [d.numa for d in model.devices] == [0] * 4 + [1] * 4
    assert {d.nic for d in model.devices} == {n.name for n in model.nics}
    assert len(model.nics) == 8
    assert all(model.linked(a, b) == "nvlink" for a in range(8) for b in range(8) if a != b)
    assert model.linked(3, 3) == ""
    assert model.resource == "nvidia.com/gpu"


def test_every_shipped_model_parses_and_is_named_like_its_file() -> None:
    assert known_models()
    assert [load_model(name).name for name in known_models()] == list(known_models())


def test_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(Refusal) as caught:
        load_model("dgx-h1000")
    assert caught.value.reason == "UnknownMachineModel"
    assert "dgx-h1000" in caught.value.message
    assert "dgx-h100" in caught.value.fix


def test_a_name_is_not_a_path() -> None:
    with pytest.raises(Refusal, match="UnknownMachineModel"):
        load_model("../models/dgx-h100")


def test_a_model_of_ones_own() -> None:
    model = parse_model(a_model())
    assert isinstance(model, MachineModel)
    assert model.linked(0, 1) == ""


def test_links_are_by_group() -> None:
    devices = [{"index": i, "type": "X", "memoryBytes": GIB} for i in range(4)]
    links = [{"kind": "nvlink", "among": [0, 1]}, {"kind": "nvlink", "among": [2, 3]}]
    model = parse_model(a_model(devices=devices, links=links))
    assert (model.linked(0, 1), model.linked(2, 3), model.linked(1, 2)) == ("nvlink", "nvlink", "")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (a_model(name=""), "no name"),
        (a_model(devices=[{"index": 1, "type": "X", "memoryBytes": 1}]), "indexes count from 0"),
        (a_model(devices=[{"index": 0, "type": "X", "memoryBytes": 0}]), "no memory"),
        (a_model(devices=[{"index": 0, "type": "X", "memoryBytes": 1, "numa": 1}]), "NUMA node 1"),
        (a_model(devices=[{"index": 0, "type": "X", "memoryBytes": 1, "nic": "nic-9"}]), "nic-9"),
        (a_model(nics=[{"name": "nic-0", "numa": 3}]), "NUMA node 3"),
        (a_model(links=[{"kind": "nvlink", "among": [0, 2]}]), "device 2"),
        (a_model(colour="green"), "colour"),
    ],
)
def test_a_broken_model_is_refused_with_the_part_that_is_wrong(data: bytes, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_model(data)
    assert caught.value.reason == "InvalidMachineModel"
    assert words in caught.value.message
    assert "dgx-h100" in caught.value.fix

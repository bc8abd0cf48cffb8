"""Machine models: what a node of a given make has inside, as data files (`models/*.json`).

A model lists devices (index, type, memory, NUMA node, nearest NIC), NICs, and links. A link entry says which devices reach
each other *directly* by one kind of link; an all-to-all switch is one entry, a mesh several. Whatever no entry covers is
reached over the host (same NUMA node, or across sockets). Device ids are per node and made from the index: gpu-0, gpu-1, ...

Invariants a parsed model keeps: indexes are 0..n-1 in order, every NUMA node, NIC and link end named exists.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from remuda.api.errors import Refusal
from remuda.api.names import RESOURCE_GPU

DEVICE_PREFIX = "gpu-"


class DeviceModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    index: int
    type: str
    memory_bytes: int
    arch: str = ""  # generation letter as the fault table spells it
    numa: int = 0
    nic: str = ""  # the NIC under the same PCIe switch

    @property
    def id(self) -> str:
        return f"{DEVICE_PREFIX}{self.index}"


class NicModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    name: str
    type: str = ""
    gbps: int = 0
    numa: int = 0


class LinkModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Each device of `among` reaches each other one directly over `kind`."""

    kind: str
    among: list[int]


class MachineModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    name: str
    devices: list[DeviceModel]
    description: str = ""
    resource: str = RESOURCE_GPU
    numa_nodes: int = 1
    nics: list[NicModel] = []
    links: list[LinkModel] = []

    def linked(self, a: int, b: int) -> str:
        """The kind of direct link between two devices; empty when they meet over the host only."""
        return next((link.kind for link in self.links if a != b and a in link.among and b in link.among), "")


@cache
def known_models() -> tuple[str, ...]:
    files = resources.files(__package__).joinpath("models").iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


@cache
def load_model(name: str) -> MachineModel:
    """A model of this build by name, or Refusal UnknownMachineModel."""
    if name not in known_models():
        known = ", ".join(known_models())
        raise Refusal(
            "UnknownMachineModel",
            f"`{name}` is not a machine model this build knows.",
            f"Known: {known}; or give the path of a model file of your own.",
        )
    return parse_model(resources.files(__package__).joinpath("models", f"{name}.json").read_bytes())


def parse_model(data: bytes) -> MachineModel:
    """A model from the bytes of its file, or Refusal InvalidMachineModel that says which part is wrong."""
    try:
        model = msgspec.json.decode(data, type=MachineModel)
    except msgspec.DecodeError as error:
        raise _invalid(f"{error}") from None
    if not model.name:
        raise _invalid("it has no name")
    for position, device in enumerate(model.devices):
        where = f"devices[{position}]"
        if device.index != position:
            raise _invalid(f"{where} has index {device.index}; indexes count from 0 in order")
        if device.memory_bytes <= 0:
            raise _invalid(f"{where} has no memory")
        if not 0 <= device.numa < model.numa_nodes:
            raise _invalid(f"{where} is on NUMA node {device.numa}, but there are {model.numa_nodes}")
        if device.nic and device.nic not in {nic.name for nic in model.nics}:
            raise _invalid(f"{where} names NIC `{device.nic}`, which is not listed")
    for nic in model.nics:
        if not 0 <= nic.numa < model.numa_nodes:
            raise _invalid(f"NIC `{nic.name}` is on NUMA node {nic.numa}, but there are {model.numa_nodes}")
    for position, link in enumerate(model.links):
        for index in link.among:
            if not 0 <= index < len(model.devices):
                raise _invalid(f"links[{position}] names device {index}, but there are {len(model.devices)}")
    return model


def _invalid(what: str) -> Refusal:
    example = ", ".join(known_models())
    return Refusal(
        "InvalidMachineModel",
        f"The machine model cannot be used: {what}.",
        f"Take a known one as the example: {example}.",
    )

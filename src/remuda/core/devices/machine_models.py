"""Machine models: what a node of a given make has inside, as data files (`models/*.json`) or a user's own file.

A model lists devices, NICs and links. Three things place a device or a NIC: its NUMA node, the PCIe root (host bridge) and the
path of PCIe switches below that root (`"sw-0/gpu-1"`: outermost first). Two that name the same path hang on one switch; two
whose paths begin alike meet in a switch further up; what is left empty is not known and shares nothing with anybody. A link
entry says which devices reach each other *directly* by one kind of link: an all-to-all switch is one entry, a mesh several.
`fabric` says that the links go on into other nodes (an NVLink domain of several trays), and which node label names the domain.
What a pair of devices is worth to each other is `links`'s job; how a device is cut into slices is `mig`'s.

Device ids are per node and made from the index: gpu-0, gpu-1, ...

Invariants a parsed model keeps: indexes are 0..n-1 in order; every NUMA node, NIC, link end and MIG geometry named exists; a
root is on one NUMA node and a switch below one root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from remuda.api.errors import Refusal
from remuda.api.names import RESOURCE_GPU
from remuda.core.devices.mig import MigGeometry, check_mig_geometry, known_mig_geometries

DEVICE_PREFIX = "gpu-"
MAX_DEVICES = 64  # masks of devices stay within a machine word
MAX_NUMA_NODES = 1024  # as the kernel


class DeviceModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    index: int
    type: str
    memory_bytes: int
    arch: str = ""  # generation letter as the fault table spells it
    numa: int = 0
    nic: str = ""  # the nearest NIC, where the maker says which
    root: str = ""  # PCIe host bridge
    switch: str = ""  # path of PCIe switches below the root, outermost first
    mig: str = ""  # name of the MIG geometry; "" = it cannot be sliced

    @property
    def id(self) -> str:
        return f"{DEVICE_PREFIX}{self.index}"


class NicModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    name: str
    type: str = ""
    gbps: int = 0  # gigabits a second
    numa: int = 0
    root: str = ""
    switch: str = ""


class LinkModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Each device of `among` reaches each other one directly over `kind`."""

    kind: str  # nvlink | xgmi | a maker's own word
    among: list[int]
    count: int = 1  # links a pair has between it, bonded
    gbytes_per_s: int = 0  # of one pair, both directions together; 0 = not published


class FabricModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The links go on into `nodes` nodes of this model; nodes of one domain have the same value of `label`."""

    kind: str
    label: str
    nodes: int


class MachineModel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    name: str
    devices: list[DeviceModel]
    description: str = ""
    source: str = ""  # where the facts are published
    resource: str = RESOURCE_GPU
    numa_nodes: int = 1
    sockets: list[int] = []  # socket of each NUMA node; empty = every NUMA node is a socket
    cpus: list[str] = []  # CPU list of each NUMA node as the kernel writes it; empty = depends on the CPU fitted
    nics: list[NicModel] = []
    links: list[LinkModel] = []
    fabric: FabricModel | None = None
    mig_geometries: list[MigGeometry] = []  # a user's own, or a shipped one under the same name with other profiles

    def link(self, a: int, b: int) -> LinkModel | None:
        return next((link for link in self.links if a != b and a in link.among and b in link.among), None)

    def socket(self, numa: int) -> int:
        return self.sockets[numa] if self.sockets else numa

    def geometry(self, index: int) -> MigGeometry | None:
        """How the device can be sliced, or None: it cannot."""
        name = self.devices[index].mig
        own = next((g for g in self.mig_geometries if g.name == name), None)
        return own or known_mig_geometries().get(name)


@cache
def known_machine_models() -> tuple[str, ...]:
    files = resources.files(__package__).joinpath("models").iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


@cache
def load_built_in_machine_model(name: str) -> MachineModel:
    """A model of this build by name, or Refusal UnknownMachineModel."""
    if name not in known_machine_models():
        raise Refusal(
            "UnknownMachineModel",
            f"`{name}` is not a machine model this build knows.",
            f"Known: {', '.join(known_machine_models())}; or a file of your own: a path with a / in it or ending in .json or "
            ".yaml.",
        )
    return parse_machine_model(resources.files(__package__).joinpath("models", f"{name}.json").read_bytes())


def parse_machine_model(data: bytes | Mapping[str, Any]) -> MachineModel:
    """A model from the bytes of its JSON file or from the decoded object, or Refusal InvalidMachineModel naming the part."""
    try:
        body = msgspec.json.decode(data) if isinstance(data, bytes) else data
        model = msgspec.convert(body, MachineModel)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid_machine_model(f"{error}") from None
    _check_machine(model)
    _check_devices(model)
    _check_nics(model)
    _check_links(model)
    _check_places(model)
    return model


def _check_machine(model: MachineModel) -> None:
    if not model.name:
        raise _invalid_machine_model("it has no name")
    if not model.devices:
        raise _invalid_machine_model("it has no devices")
    if len(model.devices) > MAX_DEVICES:
        raise _invalid_machine_model(f"it has {len(model.devices)} devices, the most is {MAX_DEVICES}")
    if not 1 <= model.numa_nodes <= MAX_NUMA_NODES:
        raise _invalid_machine_model(f"numaNodes is {model.numa_nodes}; 1 to {MAX_NUMA_NODES} are possible")
    for field, entries in (("sockets", model.sockets), ("cpus", model.cpus)):
        if entries and len(entries) != model.numa_nodes:
            raise _invalid_machine_model(f"{field} has {len(entries)} entries for {model.numa_nodes} NUMA nodes")
    if model.fabric and model.fabric.nodes < 2:
        raise _invalid_machine_model(f"fabric.nodes is {model.fabric.nodes}; a fabric joins at least two nodes")
    for position, geometry in enumerate(model.mig_geometries):
        if wrong := check_mig_geometry(geometry):
            raise _invalid_machine_model(f"migGeometries[{position}] {wrong}")
    _check_machine_model_names("migGeometries", [g.name for g in model.mig_geometries])


def _check_devices(model: MachineModel) -> None:
    nics = {nic.name for nic in model.nics}
    for position, device in enumerate(model.devices):
        where = f"devices[{position}]"
        if device.index != position:
            raise _invalid_machine_model(f"{where} has index {device.index}; indexes count from 0 in order")
        if not device.type:
            raise _invalid_machine_model(f"{where} has no type")
        if device.memory_bytes <= 0:
            raise _invalid_machine_model(f"{where} has no memory")
        if not 0 <= device.numa < model.numa_nodes:
            raise _invalid_machine_model(f"{where} is on NUMA node {device.numa}, but there are {model.numa_nodes}")
        if device.nic and device.nic not in nics:
            raise _invalid_machine_model(f"{where} names NIC `{device.nic}`, which is not listed")
        if device.mig and model.geometry(position) is None:
            known = ", ".join(sorted({*known_mig_geometries(), *(g.name for g in model.mig_geometries)}))
            raise _invalid_machine_model(f"{where} names MIG geometry `{device.mig}`; there are {known}")


def _check_nics(model: MachineModel) -> None:
    _check_machine_model_names("nics", [nic.name for nic in model.nics])
    for nic in model.nics:
        if not 0 <= nic.numa < model.numa_nodes:
            raise _invalid_machine_model(
                f"NIC `{nic.name}` is on NUMA node {nic.numa}, but there are {model.numa_nodes}"
            )


def _check_links(model: MachineModel) -> None:
    for position, link in enumerate(model.links):
        where = f"links[{position}]"
        if not link.kind:
            raise _invalid_machine_model(f"{where} has no kind")
        if link.count < 1:
            raise _invalid_machine_model(f"{where} has count {link.count}")
        for index in link.among:
            if not 0 <= index < len(model.devices):
                raise _invalid_machine_model(f"{where} names device {index}, but there are {len(model.devices)}")
        if len(set(link.among)) != len(link.among) or len(link.among) < 2:
            raise _invalid_machine_model(f"{where} must name two or more different devices")


def _check_places(model: MachineModel) -> None:
    numa_of: dict[str, int] = {}
    root_of: dict[str, str] = {}
    things: list[DeviceModel | NicModel] = [*model.devices, *model.nics]
    for thing in things:
        name = thing.id if isinstance(thing, DeviceModel) else thing.name
        if thing.root and numa_of.setdefault(thing.root, thing.numa) != thing.numa:
            raise _invalid_machine_model(
                f"root `{thing.root}` of {name} is on NUMA nodes {numa_of[thing.root]} and {thing.numa}"
            )
        outermost = thing.switch.split("/")[0]
        if outermost and root_of.setdefault(outermost, thing.root) != thing.root:
            raise _invalid_machine_model(
                f"switch `{outermost}` of {name} is below roots `{root_of[outermost]}` and `{thing.root}`"
            )


def _check_machine_model_names(where: str, names: Sequence[str]) -> None:
    for name in names:
        if not name or names.count(name) > 1:
            raise _invalid_machine_model(
                f"{where} has an entry without a name" if not name else f"{where} names `{name}` twice"
            )


def _invalid_machine_model(what: str) -> Refusal:
    example = ", ".join(known_machine_models())
    return Refusal(
        "InvalidMachineModel",
        f"The machine model cannot be used: {what}.",
        f"Take a known one as the example: {example}.",
    )

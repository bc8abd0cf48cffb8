"""How a node's devices are joined, for eyes: the link matrix as `nvidia-smi topo -m` draws it, and the tree of domains.

The matrix has a row per device and a column per device and NIC. Where the terminal is too narrow for all of it, the NICs get a
table of their own below. The tree goes from the zone down to the device, leaves out levels that say nothing (a PCIe switch with
one thing below it), and marks each device with its state and holder: the same glyphs as `remuda devices`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from remuda.cli.devices.device_list import GLYPHS, LedgerScreenEntry, shown_device_condition
from remuda.cli.output import plain_table
from remuda.cli.text import age_text, plural_text
from remuda.core.devices.links import device_pair_class, link_bandwidth, machine_model_path_class
from remuda.core.devices.machine_models import DeviceModel, MachineModel, NicModel
from remuda.core.devices.mig import count_slices_that_fit

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text
    from rich.tree import Tree

Thing = DeviceModel | NicModel

LEGEND = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "one PCIe host bridge",
    "NODE": "one NUMA node, two host bridges",
    "SYS": "across NUMA nodes",
}
_KINDS = {"nvlink": "NVLink", "xgmi": "xGMI link"}
_STYLES = {"X": "dim", "PIX": "cyan", "PXB": "cyan", "SYS": "dim"}


class NodePlace(msgspec.Struct, frozen=True):
    """A node and where it is. `domains`: (level, name) from the outside in. No entries: only the model is shown."""

    machine: MachineModel
    name: str = ""
    status: str = ""
    domains: tuple[tuple[str, str], ...] = ()
    fabric: str = ""  # the domain its links reach into, where the machine has such
    entries: tuple[LedgerScreenEntry, ...] = ()

    def entry(self, device: str) -> LedgerScreenEntry | None:
        return next((e for e in self.entries if e.row.device == device), None)


def topology_screen_link_matrix(machine: MachineModel) -> dict[str, dict[str, str]]:
    """device -> (device or NIC) -> class."""
    return {
        a.id: {b.id: device_pair_class(machine, a.index, b.index) for b in machine.devices}
        | {nic.name: machine_model_path_class(a, nic) for nic in machine.nics}
        for a in machine.devices
    }


class MatrixView:
    """The matrix in one table, or in two where one is too wide."""

    def __init__(self, place: NodePlace) -> None:
        self._place = place
        self._cells = topology_screen_link_matrix(place.machine)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        machine = self._place.machine
        devices, nics = [d.id for d in machine.devices], [n.name for n in machine.nics]
        side = [*(["CPU affinity"] if machine.cpus else []), "NUMA"]
        if self._width([*devices, *nics, *side]) <= options.max_width or not nics:
            yield self._table([*devices, *nics, *side])
        else:
            yield self._table([*devices, *side])
            yield Text()
            yield self._table(nics)
        yield Text()
        yield link_legend(machine)

    def _cell(self, device: DeviceModel, column: str) -> str:
        machine = self._place.machine
        if column == "CPU affinity":
            return machine.cpus[device.numa]
        return str(device.numa) if column == "NUMA" else self._cells[device.id][column]

    def _width(self, columns: Sequence[str]) -> int:
        devices = self._place.machine.devices
        widths = [max(len(c), *(len(self._cell(d, c)) for d in devices)) for c in columns]
        return max(len(d.id) for d in devices) + sum(w + 1 for w in widths)

    def _table(self, columns: Sequence[str]) -> RenderableType:
        from rich.text import Text

        table = plain_table("", *columns, right=("NUMA",), tight=True)
        for device in self._place.machine.devices:
            cells = [self._cell(device, c) for c in columns]
            table.add_row(Text(device.id, style=self._style(device.id)), *(Text(c, style=link_style(c)) for c in cells))
        return table

    def _style(self, device: str) -> str:
        entry = self._place.entry(device)
        if entry is None:
            return "bold" if not self._place.entries else "dim"
        return "bold" if entry.row.state == "Healthy" else GLYPHS[entry.row.state.value][2]


def link_style(name: str) -> str:
    return "green" if name.startswith("NV") or name == "XGMI" else _STYLES.get(name, "")


def link_legend(machine: MachineModel) -> RenderableType:
    """A line for each class the matrix shows."""
    from rich.text import Text

    shown = {name for row in topology_screen_link_matrix(machine).values() for name in row.values()}
    table = plain_table("", "")
    table.show_header = False
    direct: dict[str, str] = {}
    for link in machine.links:
        name = device_pair_class(machine, link.among[0], link.among[1])
        speed = link_bandwidth(machine, link.among[0], link.among[1])
        kind = _KINDS.get(link.kind, f"{link.kind} link")
        what = f"{link.count} {kind}s, bonded" if link.count > 1 else f"one {kind}"
        direct[name] = what + (f": {speed} GB/s a pair, both ways together" if speed else "")
    for name, words in {**direct, **{k: v for k, v in LEGEND.items() if k in shown}}.items():
        table.add_row(Text(name, style=link_style(name)), Text(words, style="dim"))
    return table


def render_topology_tree(place: NodePlace, now: float, *, plain: bool = False) -> RenderableType:
    from rich.text import Text
    from rich.tree import Tree

    machine = place.machine
    kinds = dict.fromkeys(d.type for d in machine.devices)
    title = Text(place.name or machine.name, style="bold")
    about = f"  {machine.name}: " if place.name else "  "
    title.append(about + f"{len(machine.devices)} x {' / '.join(kinds)}", style="")
    if place.status:
        title.append(f"  {place.status}", style="green" if place.status == "Ready" else "bold red")
    tree: Tree | None = None
    at: Tree | None = None
    for level, name in (*place.domains, *fabric_domain_screen_rows(place)):
        line = Text(f"{level} ", style="dim").append(name, style="bold")
        if at is None:
            tree = at = Tree(line, guide_style="dim")
        else:
            at = at.add(line)
    if at is None:
        tree = node = Tree(title, guide_style="dim")
    else:
        node = at.add(title)
    for numa in sorted({*(d.numa for d in machine.devices), *(n.numa for n in machine.nics)}):
        _add_numa_branch(node, place, numa, now, plain)
    assert tree is not None
    return tree


def fabric_domain_screen_rows(place: NodePlace) -> tuple[tuple[str, str], ...]:
    """The domain the node's links go on into, innermost of all; without a node, which label would name it."""
    fabric = place.machine.fabric
    if fabric is None or (place.name and not place.fabric):
        return ()
    level = f"{_KINDS.get(fabric.kind, fabric.kind)} domain of {plural_text(fabric.nodes, 'node')}"
    return (
        (f"{level}, {fabric.nodes * len(place.machine.devices)} devices:", place.fabric or f"label {fabric.label}"),
    )


def _add_numa_branch(node: Tree, place: NodePlace, numa: int, now: float, plain: bool) -> None:
    from rich.text import Text

    machine = place.machine
    things: list[Thing] = [d for d in machine.devices if d.numa == numa]
    things += [n for n in machine.nics if n.numa == numa]
    line = Text(f"NUMA {numa}")
    if machine.sockets:
        line.append(f"  socket {machine.socket(numa)}", style="dim")
    if machine.cpus:
        line.append(f"  CPUs {machine.cpus[numa]}", style="dim")
    _add_pcie_branches(node.add(line), [(_pcie_path(t), t) for t in things], place, now, plain)


def _pcie_path(thing: Thing) -> list[str]:
    return [part for part in (thing.root, *thing.switch.split("/")) if part]


def _add_pcie_branches(
    node: Tree, things: Sequence[tuple[list[str], Thing]], place: NodePlace, now: float, plain: bool
) -> None:
    """Things by the first part of their path; a part with one thing below it is left out, a chain of parts is one line."""
    from rich.text import Text

    groups: dict[str, list[tuple[list[str], Thing]]] = {}
    for number, (path, thing) in enumerate(things):
        groups.setdefault(path[0] if path else f"\0{number}", []).append((path, thing))
    for name, members in groups.items():
        if len(members) == 1:
            _add_device_line(node, members[0][1], place, now, plain)
            continue
        chain = [name]
        while True:
            members = [(path[1:], thing) for path, thing in members]
            following = {path[0] if path else "" for path, _ in members}
            if len(following) > 1 or "" in following:
                break
            chain += following
        _add_pcie_branches(node.add(Text(f"PCIe {', '.join(chain)}", style="dim")), members, place, now, plain)


def _add_device_line(node: Tree, thing: Thing, place: NodePlace, now: float, plain: bool) -> None:
    from rich.text import Text

    if isinstance(thing, NicModel):
        speed = f"{thing.gbps} Gb/s" if thing.gbps else ""
        words = "  ".join(filter(None, (thing.name, thing.type, speed)))
        node.add(
            Text(("  " if place.entries else "") + words, style="dim")
        )  # below the devices' names, not their glyphs
        return
    memory = f"{thing.memory_bytes / (1 << 30):.1f} GiB"
    entry = place.entry(thing.id)
    if entry is None:
        gone = Text(f"{thing.id}  {memory}") if not place.entries else Text(f"? {thing.id}  missing", style="bold red")
        node.add(gone)
        return
    branch = node.add(_topology_device_line(entry, memory, now, plain))
    for piece in place.entries:
        if piece.seen.parent == thing.id:
            branch.add(_topology_device_line(piece, f"{piece.seen.memory_bytes / (1 << 30):.1f} GiB", now, plain))


def _topology_device_line(entry: LedgerScreenEntry, memory: str, now: float, plain: bool) -> Text:
    from rich.text import Text

    row = entry.row
    glyph, ascii_glyph, style, word = GLYPHS[shown_device_condition(entry)]
    line = Text(f"{ascii_glyph if plain else glyph} ", style=style)
    line.append(entry.row.device, style="" if row.state == "Healthy" else style)
    if memory != "0.0 GiB":
        line.append(f"  {memory}", style="dim")
    if row.state != "Healthy":
        line.append("  " + " ".join(filter(None, (row.state.value, row.reason))), style=style)
        line.append(f" for {age_text(entry.since, now)}" if entry.since else "", style=style)
    if row.holder:
        line.append(f"  {row.holder}" + (" (draining)" if row.draining else ""))
    elif row.state == "Healthy":
        line.append(f"  {word}", style="dim")
    return line


def slices_line(machine: MachineModel) -> str:
    """Which profiles its devices can be cut into, with how many of each fit one device."""
    found: list[str] = []
    for name in dict.fromkeys(d.mig for d in machine.devices if d.mig):
        geometry = machine.geometry(next(d.index for d in machine.devices if d.mig == name))
        if geometry:
            profiles = ", ".join(f"{p.name} ({count_slices_that_fit(p, 0)})" for p in geometry.profiles)
            found.append(f"Slices of {geometry.name}: {profiles}.")
    return " ".join(found) or "These devices cannot be sliced."


def topology_document(place: NodePlace) -> dict[str, Any]:
    """The shape of `-o json`."""
    machine = place.machine
    entries: Mapping[str, LedgerScreenEntry] = {e.row.device: e for e in place.entries}
    return {
        "node": place.name,
        "model": machine.name,
        "domains": dict(place.domains),
        "fabric": {**msgspec.to_builtins(machine.fabric), "domain": place.fabric} if machine.fabric else None,
        "devices": [
            {
                "device": d.id,
                "type": d.type,
                "memoryBytes": d.memory_bytes,
                "numa": d.numa,
                "socket": machine.socket(d.numa),
                "root": d.root,
                "switch": d.switch,
                "nic": d.nic,
                "state": entries[d.id].row.state.value if d.id in entries else "",
                "holder": entries[d.id].row.holder if d.id in entries else "",
            }
            for d in machine.devices
        ],
        "nics": msgspec.to_builtins(machine.nics),
        "links": topology_screen_link_matrix(machine),
    }

"""`remuda devices`: the ledger on the screen. One glyph per device, or with -o wide one row."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from remuda.cli.output import is_document, make_console, output_option, plain_table, print_document, show
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.api.core_v1 import Node, Pod
    from remuda.api.devices import NodeDevices
    from remuda.core.failure.ledger import Row


class Entry(msgspec.Struct, frozen=True):
    """A row of the ledger, and what the screen adds to it."""

    row: Row
    rack: str
    since: datetime | None


# condition -> (glyph, plain glyph, style, word). In the order of the legend.
GLYPHS: dict[str, tuple[str, str, str, str]] = {
    "free": ("○", ".", "green", "free"),
    "held": ("●", "#", "blue", "held"),
    "draining": ("◌", "-", "yellow", "draining"),
    "Degraded": ("◐", "~", "yellow", "degraded"),
    "Unhealthy": ("✗", "X", "bold red", "unhealthy"),
    "Quarantined": ("⊘", "Q", "magenta", "quarantined"),
    "Unknown": ("?", "?", "dim", "unknown"),
}


def entries(nodes: Sequence[Node], devices: Sequence[NodeDevices], pods: Sequence[Pod]) -> list[Entry]:
    from remuda.core.failure.ledger import rows
    from remuda.runtime.config import RACK_LABEL

    racks = {n.name: n.labels.get(RACK_LABEL, "") for n in nodes}
    since = {(d.name, v.device): v.since for d in devices for v in d.verdicts}
    return [Entry(r, racks.get(r.node, ""), since.get((r.node, r.device))) for r in rows(devices, pods)]


def by_node(ledger: Sequence[Entry]) -> Mapping[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for e in ledger:
        found.setdefault(e.row.node, []).append(e)
    return found


def condition(row: Row) -> str:
    """What matters most about a device: a bad state, else whether somebody has it."""
    if row.state != "Healthy":
        return row.state.value
    if row.draining:
        return "draining"
    return "held" if row.holder else "free"


def document(ledger: Sequence[Entry]) -> dict[str, Any]:
    """The shape of `-o json`."""
    return {
        "devices": [
            {
                "node": e.row.node,
                "rack": e.rack,
                "device": e.row.device,
                "type": e.row.type,
                "state": e.row.state.value,
                "reason": e.row.reason,
                "message": e.row.message,
                "since": e.since.isoformat().replace("+00:00", "Z") if e.since else None,
                "holder": e.row.holder,
                "draining": e.row.draining,
            }
            for e in ledger
        ]
    }


def render_rows(ledger: Sequence[Entry], now: float) -> RenderableType:
    from rich.text import Text

    from remuda.cli.text import NOTHING, age

    table = plain_table("NODE", "DEVICE", "TYPE", "STATE", "REASON", "HOLDER", "SINCE", right=("SINCE",))
    for e in ledger:
        state = Text(e.row.state.value, style="" if e.row.state == "Healthy" else GLYPHS[e.row.state.value][2])
        holder = (e.row.holder + (" (draining)" if e.row.draining else "")) or NOTHING
        table.add_row(e.row.node, e.row.device, e.row.type, state, e.row.reason or NOTHING, holder, age(e.since, now))
    return table


def render_ledger(ledger: Sequence[Entry], now: float, *, plain: bool = False) -> RenderableType:
    """A line per node, the legend with counts, and every device that is not well with its reason."""
    from rich.console import Group
    from rich.text import Text

    if not ledger:
        return Text("No devices. Nodes report theirs when they start.")
    at = 1 if plain else 0
    types = list(dict.fromkeys(e.row.type for e in ledger))
    table = plain_table(
        "NODE", "RACK", *(["TYPE"] if len(types) > 1 else []), "DEVICES", "FREE", "HOLDERS", right=("FREE",)
    )
    table.columns[-1].no_wrap = False
    for node, found in by_node(ledger).items():
        glyphs = Text()
        for e in found:
            glyph = GLYPHS[condition(e.row)]
            glyphs.append(glyph[at], style=glyph[2])
        free = sum(1 for e in found if condition(e.row) == "free")
        kind = [found[0].row.type] if len(types) > 1 else []
        table.add_row(node, found[0].rack or "-", *kind, glyphs, str(free), _holders(found))
    counts = Counter(condition(e.row) for e in ledger)
    legend = Text()
    for name, glyph in GLYPHS.items():
        if counts[name] or name in ("free", "held"):
            legend.append(glyph[at], style=glyph[2]).append(f" {counts[name]} {glyph[3]}   ")
    if len(types) == 1:
        legend.append(f"all {types[0]}", style="dim")
    parts: list[RenderableType] = [table, Text(), legend]
    bad = [e for e in ledger if e.row.state != "Healthy"]
    if bad:
        parts += [Text(), _troubles(bad, now)]
    return Group(*parts)


def _holders(found: Sequence[Entry]) -> str:
    """Pods on the node, without the namespace when it is the usual one."""
    names = dict.fromkeys(e.row.holder.removeprefix("default/") for e in found if e.row.holder)
    return ", ".join(names)


def _troubles(bad: Sequence[Entry], now: float) -> RenderableType:
    from rich.text import Text

    from remuda.cli.text import age

    table = plain_table("NODE", "DEVICE", "STATE", "SINCE", "REASON", right=("SINCE",))
    table.columns[-1].no_wrap = False
    for e in bad:
        why = f"{e.row.reason}: {e.row.message}" if e.row.message else e.row.reason
        state = Text(e.row.state.value, style=GLYPHS[e.row.state.value][2])
        table.add_row(e.row.node, e.row.device, state, age(e.since, now), why)
    return table


@click.command()
@output_option()
@with_session
def devices(session: Session, form: str) -> None:
    """The ledger: state, reason and holder of every device; one line per node, -o wide one row per device.

    -o json prints {"devices": [{node, rack, device, type, state, reason, message, since, holder, draining}]}.
    """
    from remuda.api.core_v1 import Node, Pod
    from remuda.api.devices import NodeDevices

    async def look() -> list[Entry]:
        async with session.connect() as cluster:
            nodes, pods = (await cluster.list(Node)).items, (await cluster.list(Pod)).items
            return entries(nodes, (await cluster.list(NodeDevices)).items, pods)

    ledger = asyncio.run(look())
    console = make_console()
    if is_document(form):
        print_document(form, document(ledger))
    elif form == "wide":
        show(render_rows(ledger, session.clock()))
    else:
        plain = not console.encoding.lower().startswith("utf")
        show(render_ledger(ledger, session.clock(), plain=plain))

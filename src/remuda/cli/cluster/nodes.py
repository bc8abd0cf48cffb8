"""`remuda nodes`: one line per node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from remuda.cli.devices.device_list import (
    LedgerScreenEntry,
    device_list_entries,
    device_list_entries_by_node,
    shown_device_condition,
)
from remuda.cli.output import (
    is_document_output_form,
    output_list_document,
    output_option,
    plain_table,
    print_document,
    print_screen,
)
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.api.kubernetes.core_v1 import Node


def render_nodes(
    found: Sequence[Node], ledger: Sequence[LedgerScreenEntry], now: float, *, wide: bool = False
) -> RenderableType:
    from rich.text import Text

    from remuda.api.conditions import find_condition
    from remuda.cli.text import NOTHING, age_text

    if not found:
        return Text("No nodes. They register when `remuda up` starts.")
    devices = device_list_entries_by_node(ledger)
    columns = ["NAME", "RACK", "STATUS", "GPUS", "FREE", "BAD", "PODS", "AGE"]
    table = plain_table(
        *columns, *(["REASON"] if wide else []), right=("GPUS", "FREE", "BAD", "PODS", "AGE"), words=("REASON",)
    )
    for node in sorted(found, key=lambda n: n.name):
        own = devices.get(node.name, [])
        ready = find_condition(node.status.conditions, "Ready")
        status, style = ("Ready", "green") if ready and ready.status == "True" else ("NotReady", "bold red")
        if node.spec.unschedulable:
            status, style = f"{status},Cordoned", "yellow"
        whole = [e for e in own if not e.is_slice]
        bad = sum(1 for e in whole if e.row.state != "Healthy")
        cells: list[str | Text] = [
            node.name,
            next((e.rack for e in own if e.rack), NOTHING),
            Text(status, style=style),
            str(len(whole)),
            str(sum(1 for e in whole if shown_device_condition(e) == "free")),
            Text(str(bad), style="bold red" if bad else ""),
            str(len({e.row.holder for e in own if e.row.holder})),
            age_text(node.metadata.creation_timestamp, now),
        ]
        if wide:
            cells.append(f"{ready.reason}: {ready.message}" if ready and ready.reason else NOTHING)
        table.add_row(*cells)
    return table


@click.command()
@output_option()
@with_session
def nodes(session: Session, form: str) -> None:
    """List nodes: rack, ready or not, GPUs free and bad, and how many pods use GPUs. -o json prints a List of Node objects."""
    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node, Pod

    async def look() -> tuple[list[Node], list[LedgerScreenEntry]]:
        async with session.connect() as cluster:
            found, pods = (await cluster.list(Node)).items, (await cluster.list(Pod)).items
            return found, device_list_entries(found, (await cluster.list(NodeDevices)).items, pods)

    found, ledger = asyncio.run(look())
    if is_document_output_form(form):
        print_document(form, output_list_document(found))
    else:
        print_screen(render_nodes(found, ledger, session.clock(), wide=form == "wide"))

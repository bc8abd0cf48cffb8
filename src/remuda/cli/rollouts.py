"""`remuda rollouts`, `remuda rollout NAME`: roll-outs over nodes, and one of them node by node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.output import is_document, output_option, plain_table, print_document, show
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.api.rollouts import NodeRollout

_STYLES = {"Stopped": "bold red", "Failed": "bold red", "Succeeded": "green", "Done": "green"}


def render_rollouts(found: list[NodeRollout], now: float) -> RenderableType:
    from rich.text import Text

    from remuda.cli.text import age

    if not found:
        return Text("No roll-outs. Make one with `remuda kubectl -- apply -f FILE`.")
    table = plain_table("NAME", "PHASE", "DONE", "FAILED", "AGE", "WHY", right=("DONE", "FAILED", "AGE"))
    table.columns[-1].no_wrap = False
    for r in sorted(found, key=lambda r: r.name):
        status = r.status
        phase = "Paused" if r.spec.paused and not r.is_over else status.phase.value
        table.add_row(
            r.name,
            Text(phase, style=_STYLES.get(phase, "")),
            f"{status.done}/{status.total}",
            str(status.failed),
            age(r.metadata.creation_timestamp, now),
            status.stopped_because or status.waiting_for or "-",
        )
    return table


def render_rollout(found: NodeRollout, now: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.text import age

    status = found.status
    head = f"{found.name}: {status.phase}, {status.done} of {status.total} nodes done"
    if status.stopped_because:
        head += f"\n{status.stopped_because}\nThe rest of the pool is as it was; the node that failed stays cordoned."
    if status.waiting_for:
        head += f"\nNot begun: {status.waiting_for}"
    table = plain_table("NODE", "STEP", "CANARY", "SINCE", "WHAT", right=("SINCE",))
    table.columns[-1].no_wrap = False
    for step in status.steps:
        words = f"{step.reason}: {step.message}" if step.reason else step.message
        phase = Text(step.phase.value, style=_STYLES.get(step.phase.value, ""))
        table.add_row(step.node, phase, "yes" if step.is_canary else "", age(step.since, now), words or "-")
    return Group(Text(head), Text(), table)


@click.command()
@output_option(formats=("table", "json", "yaml"))
@with_session
def rollouts(session: Session, form: str) -> None:
    """Roll-outs over nodes: how far each is, and why one stopped."""
    from remuda.api.codec import to_wire
    from remuda.api.rollouts import NodeRollout

    async def look() -> list[NodeRollout]:
        async with session.connect() as cluster:
            return (await cluster.list(NodeRollout)).items

    found = asyncio.run(look())
    if is_document(form):
        document: dict[str, Any] = {"rollouts": [to_wire(r) for r in found]}
        print_document(form, document)
    else:
        show(render_rollouts(found, session.clock()))


@click.command()
@click.argument("name")
@output_option(formats=("table", "json", "yaml"))
@with_session
def rollout(session: Session, name: str, form: str) -> None:
    """One roll-out, node by node."""
    from remuda.api.codec import to_wire
    from remuda.api.errors import NotFound, Refusal
    from remuda.api.rollouts import NodeRollout
    from remuda.cli.lookup import nearest

    async def look() -> NodeRollout:
        async with session.connect() as cluster:
            try:
                return await cluster.get(NodeRollout, name)
            except NotFound:
                names = sorted(r.name for r in (await cluster.list(NodeRollout)).items)
                none = "There are none; `kubectl apply` makes one."
                raise Refusal(
                    "RolloutNotFound", f"There is no roll-out `{name}`.", nearest(name, names, none)
                ) from None

    found = asyncio.run(look())
    if is_document(form):
        print_document(form, to_wire(found))
    else:
        show(render_rollout(found, session.clock()))

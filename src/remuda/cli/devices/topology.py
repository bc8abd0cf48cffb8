"""`remuda topology NODE`: how the devices of a node are joined, and the domains it sits in.

The links come from the machine model the node names, or from what it shows of itself when nobody knows its make. A model file of
one's own is the one the cluster was made with, or is given with --model; without a node --model shows the model alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from remuda.cli.output import is_document_output_form, make_console, output_option, print_document, print_screen
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.cli.devices.topology_screen import NodePlace
    from remuda.core.devices.machine_models import MachineModel

ZONE_LABEL = "topology.kubernetes.io/zone"


def node_place_for_topology_screen(
    devices: NodeDevices,
    node: Node | None,
    pods: list[Pod],
    own: list[MachineModel],
    forced: MachineModel | None = None,
) -> NodePlace:
    from remuda.api.conditions import is_condition_true
    from remuda.api.errors import Refusal
    from remuda.cli.devices.device_list import device_list_entries
    from remuda.cli.devices.topology_screen import NodePlace
    from remuda.core.devices.observed_model import machine_model_of
    from remuda.runtime.up_config import RACK_LABEL

    machine = forced or machine_model_of(devices.observed, own)
    if machine is None:
        raise Refusal("NoDevices", f"{devices.name} reports no devices.", "Check `remuda devices` and `remuda nodes`.")
    shown = {d.id for d in devices.observed.devices if not d.parent}
    if strangers := shown - {d.id for d in machine.devices}:
        raise Refusal(
            "ModelDoesNotFit",
            f"{devices.name} has {', '.join(sorted(strangers))}; the model {machine.name} does not.",
            "Name the model of that node, or leave --model out.",
            "model",
        )
    labels = node.labels if node else {}
    levels = [("zone", ZONE_LABEL), ("rack", RACK_LABEL)]
    status = ""
    if node is not None:
        status = "Ready" if is_condition_true(node.status.conditions, "Ready") else "NotReady"
        status += ",Cordoned" if node.spec.unschedulable else ""
    return NodePlace(
        machine=machine,
        name=devices.name,
        status=status,
        domains=tuple((level, labels[key]) for level, key in levels if labels.get(key)),
        fabric=labels.get(machine.fabric.label, "") if machine.fabric else "",
        entries=tuple(device_list_entries([node] if node else [], [devices], pods)),
    )


def topology_command_machine_models(session: Session) -> list[MachineModel]:
    """The model file the cluster of the state directory was made with, if it was and if it is still there."""
    from remuda.api.errors import Refusal
    from remuda.runtime.machine_model_files import names_machine_model_file, resolve_machine_model_file

    remembered = session.state.remembered() if session.is_embedded else None
    if remembered is None or not names_machine_model_file(remembered.model):
        return []
    try:
        return [resolve_machine_model_file(remembered.model)]
    except Refusal:
        return []  # the node's own report has to do


@click.command()
@click.argument("node", required=False, metavar="NODE")
@click.option("--model", metavar="NAME", help="Machine model or model file to show, with or without a node.")
@output_option()
@with_session
def topology(session: Session, node: str | None, model: str | None, form: str) -> None:
    """Show how a node's devices are connected: the link matrix as `nvidia-smi topo -m` draws it, and where the node sits.

    \b
    remuda topology node-03
    remuda topology --model dgx-a100
    remuda topology --model ./our-server.yaml

    -o json prints {node, model, domains, fabric, devices: [...], nics: [...], links: {device: {device or NIC: class}}}.
    """
    from remuda.api.errors import Refusal
    from remuda.runtime.machine_model_files import resolve_machine_model_file

    forced = resolve_machine_model_file(model) if model else None
    if node is None:
        if forced is None:
            raise Refusal(
                "NoNode", "No node was named.", "Name one from `remuda nodes`, or a machine model with --model."
            )
        from remuda.cli.devices.topology_screen import NodePlace

        return _print_topology(NodePlace(machine=forced), session, form)
    return _print_topology(asyncio.run(_read_place(session, node, forced)), session, form)


async def _read_place(session: Session, name: str, forced: MachineModel | None) -> NodePlace:
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.cli.lookup import find_node

    async with session.connect() as cluster:
        devices = await find_node(cluster, name)
        nodes = (await cluster.list(Node)).items
        pods = (await cluster.list(Pod)).items
    node = next((n for n in nodes if n.name == name), None)
    here = [p for p in pods if p.spec.node_name == name]
    return node_place_for_topology_screen(devices, node, here, topology_command_machine_models(session), forced)


def _print_topology(place: NodePlace, session: Session, form: str) -> None:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.devices.topology_screen import MatrixView, render_topology_tree, slices_line, topology_document

    if is_document_output_form(form):
        return print_document(form, topology_document(place))
    plain = not make_console().encoding.lower().startswith("utf")
    parts = [render_topology_tree(place, session.clock(), plain=plain), Text(), MatrixView(place)]
    if form == "wide" or not place.name:
        parts += [Text(), Text(place.machine.description, style="dim"), Text(slices_line(place.machine), style="dim")]
        if place.machine.source:
            parts.append(Text(f"Source: {place.machine.source}", style="dim"))
    return print_screen(Group(*parts))

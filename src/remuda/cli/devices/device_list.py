"""`remuda devices`: the ledger on the screen. One glyph per device, or with -o wide one row (`device_rows`).

A device that is cut into slices is shown as its slices in brackets: what can be had is the slices, not the device. What is wrong
with a node and no device's fault (a lost plugin) is told apart, below, and while it is held down it says until when.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from remuda.cli.output import (
    is_document_output_form,
    make_console,
    output_option,
    plain_table,
    print_document,
    print_screen,
)
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from remuda.api.devices import NodeDevices, Notice, ObservedDevice
    from remuda.api.incidents import Incident
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.core.health.ledger import LedgerRow


class LedgerScreenEntry(msgspec.Struct, frozen=True):
    """A row of the ledger, and what the screen adds to it."""

    row: LedgerRow
    rack: str
    since: datetime | None
    seen: ObservedDevice
    remedy: str = ""  # what is being done about it: quarantine, rung, soak

    @property
    def is_slice(self) -> bool:
        return bool(self.seen.parent)

    @property
    def is_sliced(self) -> bool:
        return not self.seen.resource and not self.seen.parent


# condition -> (glyph, plain glyph, style, word). In the order of the legend.
GLYPHS: dict[str, tuple[str, str, str, str]] = {
    "free": ("○", ".", "green", "free"),
    "held": ("●", "#", "blue", "held"),
    "sliced": ("▤", "%", "", "sliced"),
    "draining": ("◌", "-", "yellow", "draining"),
    "Degraded": ("◐", "~", "yellow", "degraded"),
    "Unhealthy": ("✗", "X", "bold red", "unhealthy"),
    "Quarantined": ("⊘", "Q", "magenta", "quarantined"),
    "Unknown": ("?", "?", "dim", "unknown"),
}


def device_list_entries(
    nodes: Sequence[Node],
    devices: Sequence[NodeDevices],
    pods: Sequence[Pod],
    incidents: Sequence[Incident] = (),
) -> list[LedgerScreenEntry]:
    from remuda.core.health.ledger import health_verdicts_with_holders
    from remuda.runtime.up_config import RACK_LABEL

    racks = {n.name: n.labels.get(RACK_LABEL, "") for n in nodes}
    since = {(d.name, v.device): v.since for d in devices for v in d.verdicts}
    seen = {(d.name, o.id): o for d in devices for o in d.observed.devices}
    remedies = remedy_words_by_device(devices, incidents)
    return [
        LedgerScreenEntry(
            r,
            racks.get(r.node, ""),
            since.get((r.node, r.device)),
            seen[r.node, r.device],
            remedies.get((r.node, r.device), ""),
        )
        for r in health_verdicts_with_holders(devices, pods)
    ]


def remedy_words_by_device(devices: Sequence[NodeDevices], incidents: Sequence[Incident]) -> dict[tuple[str, str], str]:
    """(node, device) -> what is being done about it: a soak, an open incident's phase, or whose quarantine it is under."""
    found = {
        (d.name, device): f"quarantined by {order.by or 'somebody'}"
        for d in devices
        for device, order in d.quarantine.items()
    }
    for incident in incidents:
        subject, status = incident.spec.subject, incident.status
        if not incident.is_open or not subject.device:
            continue
        running = next((r.key for r in reversed(status.remedies) if r.outcome == "Running"), "")
        words = f"{status.phase} {running}".strip()
        if status.soak_until is not None:
            words = f"soaks until {status.soak_until:%H:%M:%S}"
        if running or status.soak_until is not None or status.phase != "Open":
            found[subject.node, subject.device] = words
    return found


def device_list_entries_by_node(ledger: Sequence[LedgerScreenEntry]) -> Mapping[str, list[LedgerScreenEntry]]:
    found: dict[str, list[LedgerScreenEntry]] = {}
    for e in ledger:
        found.setdefault(e.row.node, []).append(e)
    return found


def shown_device_condition(entry: LedgerScreenEntry) -> str:
    """What matters most about a device: a bad state, else whether somebody has it."""
    row = entry.row
    if row.state != "Healthy":
        return row.state.value
    if row.draining:
        return "draining"
    if row.holder:
        return "held"
    return "sliced" if entry.is_sliced else "free"


def device_list_notices(devices: Sequence[NodeDevices]) -> list[tuple[str, Notice]]:
    """(node, notice), resources that are withheld among them."""
    from remuda.api.devices import Notice

    found: list[tuple[str, Notice]] = []
    for node in sorted(devices, key=lambda d: d.name):
        found += [(node.name, notice) for notice in node.notices]
        for resource, order in sorted(node.withheld.items()):
            fix = f"`remuda release {node.name} --resource {resource}` allows it again."
            words = f"{resource} is withheld. {order.message} {fix}"
            found.append((node.name, Notice(order.reason, words, resource, order.since)))
    return found


def device_list_resource_counts(devices: Sequence[NodeDevices], pods: Sequence[Pod]) -> list[dict[str, Any]]:
    """How many of each resource each node has, by the ledger."""
    from remuda.core.health.device_holders import device_health_counts

    bound: dict[str, list[Pod]] = {}
    for pod in pods:
        bound.setdefault(pod.spec.node_name, []).append(pod)
    return [
        {"node": d.name, "resource": resource, **msgspec.structs.asdict(counts)}
        for d in sorted(devices, key=lambda d: d.name)
        for resource, counts in device_health_counts(d, bound.get(d.name, ())).items()
    ]


def device_list_document(
    ledger: Sequence[LedgerScreenEntry],
    notices: Sequence[tuple[str, Notice]] = (),
    counts: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The shape of `-o json`."""
    return {
        "counts": list(counts),
        "notices": [
            {
                "node": node,
                "reason": n.reason,
                "message": n.message,
                "resource": n.resource,
                "since": _json_time(n.since),
                "holdingUntil": _json_time(n.holding_until),
            }
            for node, n in notices
        ],
        "devices": [
            {
                "node": e.row.node,
                "rack": e.rack,
                "device": e.row.device,
                "type": e.row.type,
                "state": e.row.state.value,
                "reason": e.row.reason,
                "message": e.row.message,
                "since": _json_time(e.since),
                "holder": e.row.holder,
                "container": e.row.container,
                "remedy": e.remedy,
                "idleSince": _json_time(e.seen.idle_since),
                "idleUtilisation": e.seen.idle_utilisation,
                "draining": e.row.draining,
                "resource": e.seen.resource,
                "uuid": e.seen.uuid,
                "pci": e.seen.pci,
                "numa": e.seen.numa,
                "nic": e.seen.nic,
                "memoryBytes": e.seen.memory_bytes,
                "slice": {"of": e.seen.parent, "profile": e.seen.profile, "start": e.seen.start}
                if e.is_slice
                else None,
            }
            for e in ledger
        ],
    }


def _json_time(time: datetime | None) -> str | None:
    return time.isoformat().replace("+00:00", "Z") if time else None


def render_ledger(
    ledger: Sequence[LedgerScreenEntry], now: float, *, notices: Sequence[tuple[str, Notice]] = (), plain: bool = False
) -> RenderableType:
    """A line per node, the legend with counts, what is wrong with nodes, and every device that is not well, with reasons."""
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
    for node, found in device_list_entries_by_node(ledger).items():
        kind = [found[0].row.type] if len(types) > 1 else []
        table.add_row(
            node, found[0].rack or "-", *kind, _device_glyphs(found, at), _free_count(found), _holder_names(found)
        )
    counts = Counter(shown_device_condition(e) for e in ledger)
    legend = Text()
    for name, glyph in GLYPHS.items():
        if counts[name] or name in ("free", "held"):
            legend.append(glyph[at], style=glyph[2]).append(f" {counts[name]} {glyph[3]}   ")
    if any(e.is_slice for e in ledger):
        legend.append("[ ] slices of one device   ", style="dim")
    if len(types) == 1:
        legend.append(f"all {types[0]}", style="dim")
    parts: list[RenderableType] = [table, Text(), legend]
    if notices:
        parts += [Text(), render_device_list_notices(notices, now)]
    bad = [e for e in ledger if e.row.state != "Healthy"]
    if bad:
        parts += [Text(), _render_unwell(bad, now)]
    return Group(*parts)


def _device_glyphs(found: Sequence[LedgerScreenEntry], at: int) -> Text:
    """One glyph per device; a sliced one that is well is its slices in brackets."""
    from rich.text import Text

    slices: dict[str, list[LedgerScreenEntry]] = {}
    for e in found:
        if e.is_slice:
            slices.setdefault(e.seen.parent, []).append(e)
    line = Text()
    for e in found:
        if e.is_slice:
            continue
        pieces = slices.get(e.row.device, [])
        shown = pieces if pieces and shown_device_condition(e) == "sliced" else [e]
        opening, closing = ("[", "]") if shown is pieces else ("", "")
        line.append(opening, style="dim")
        for piece in shown:
            glyph = GLYPHS[shown_device_condition(piece)]
            line.append(glyph[at], style=glyph[2])
        line.append(closing, style="dim")
    return line


def _free_count(found: Sequence[LedgerScreenEntry]) -> str:
    """Whole devices, and slices when there are any."""
    whole, slices = (
        sum(1 for e in found if e.is_slice is s and shown_device_condition(e) == "free") for s in (False, True)
    )
    return f"{whole}+{slices}" if any(e.is_slice for e in found) else str(whole)


def _holder_names(found: Sequence[LedgerScreenEntry]) -> str:
    """Pods on the node, without the namespace when it is the usual one."""
    names = dict.fromkeys(e.row.holder.removeprefix("default/") for e in found if e.row.holder)
    return ", ".join(names)


def render_device_list_notices(notices: Sequence[tuple[str, Notice]], now: float) -> RenderableType:
    """What is wrong with nodes and no device's fault."""
    from rich.text import Text

    from remuda.cli.text import age_text
    from remuda.core.health.node_notices import is_node_notice_held_down

    table = plain_table("NODE", "NOTICE", "SINCE", "WHAT", right=("SINCE",))
    table.columns[-1].no_wrap = False
    for node, n in notices:
        words = n.message
        if is_node_notice_held_down(n, now) and n.holding_until is not None:
            words += f" It may pass: nothing is done before {n.holding_until:%H:%M:%S}."
        table.add_row(node, Text(n.reason, style="yellow"), age_text(n.since, now), words)
    return table


def _render_unwell(bad: Sequence[LedgerScreenEntry], now: float) -> RenderableType:
    from rich.text import Text

    from remuda.cli.text import age_text, reason_sentence

    table = plain_table("NODE", "DEVICE", "STATE", "SINCE", "REASON", right=("SINCE",))
    table.columns[-1].no_wrap = False
    for e in bad:
        words = reason_sentence(e.row.reason, e.row.message)
        if e.row.holder:
            words += "" if words.endswith((".", ")", "!", "?")) else "."
            words += f" Held by {e.row.holder}{f' ({e.row.container})' if e.row.container else ''}."
        state = Text(e.row.state.value, style=GLYPHS[e.row.state.value][2])
        table.add_row(e.row.node, e.row.device, state, age_text(e.since, now), words)
    return table


@click.command()
@output_option()
@with_session
def devices(session: Session, form: str) -> None:
    """List all devices: state, reason, and which pod holds them. One line per node; -o wide prints one row per device and slice.

    -o json prints {"devices": [{node, rack, device, type, state, reason, message, since, holder, container, remedy, idleSince,
    idleUtilisation, draining, resource, uuid, pci, numa, nic, memoryBytes, slice: {of, profile, start} or null}], "notices":
    [{node, reason, message, resource, since, holdingUntil}], "counts": [{node, resource, total, healthy, unfit, held, free}]}.
    """
    from remuda.api.devices import NodeDevices
    from remuda.api.incidents import Incident
    from remuda.api.kubernetes.core_v1 import Node, Pod

    async def look() -> tuple[list[Node], list[NodeDevices], list[Pod], list[Incident]]:
        async with session.connect() as cluster:
            found = (await cluster.list(Node)).items, (await cluster.list(NodeDevices)).items
            return *found, (await cluster.list(Pod)).items, (await cluster.list(Incident)).items

    nodes, found, pods, incidents = asyncio.run(look())
    ledger, notices = device_list_entries(nodes, found, pods, incidents), device_list_notices(found)
    console = make_console()
    if is_document_output_form(form):
        print_document(form, device_list_document(ledger, notices, device_list_resource_counts(found, pods)))
    elif form == "wide":
        from remuda.cli.devices.device_rows import DeviceRows

        print_screen(DeviceRows(ledger, session.clock()))
        if notices:
            click.echo()
            print_screen(render_device_list_notices(notices, session.clock()))
    else:
        plain = not console.encoding.lower().startswith("utf")
        print_screen(render_ledger(ledger, session.clock(), notices=notices, plain=plain))

"""`remuda devices -o wide`: one row per device and slice, with as many columns as the terminal has room for.

What a row is about comes first (which device, its state, who holds it); where it sits and its address follow and are the
first to go when the terminal is narrow. What was left out is said below. A pipe gets every column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from remuda.cli.devices.device_list import GLYPHS, LedgerScreenEntry
from remuda.cli.output import plain_table
from remuda.cli.text import NOTHING, age_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

GAP = 2


class Column(msgspec.Struct, frozen=True):
    title: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells)))


# Left out one after the other until the rest fits. UUIDs are shortened first and go later (`~`); a slice's id says its profile.
_LEAVING = ("TYPE", "UUID", "SLICE", "UUID~", "PCI", "NIC", "NUMA")


class DeviceRows:
    def __init__(self, ledger: Sequence[LedgerScreenEntry], now: float) -> None:
        # A slice beside its device, in the order it lies on it.
        self._ledger = sorted(ledger, key=lambda e: (e.row.node, e.seen.index, e.is_slice, e.seen.start))
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if not self._ledger:
            yield Text("No devices. Nodes report theirs when they start.")
            return
        columns, hidden = fitting_device_table_columns(self._columns(), options.max_width)
        table = plain_table(*(c.title for c in columns), right=("SINCE", "NUMA"))
        for number, entry in enumerate(self._ledger):
            table.add_row(*(self._cell(c.title, c.cells[number], entry) for c in columns))
        yield table
        types = dict.fromkeys(e.row.type for e in self._ledger)
        if "TYPE" in hidden and len(types) == 1:
            hidden.remove("TYPE")
            yield Text(f"\nall {next(iter(types))}", style="dim")
        if hidden:
            yield Text(f"\nLeft out, the terminal is too narrow: {', '.join(hidden)}. -o json shows all.", style="dim")

    def _columns(self) -> list[Column]:
        def column(title: str, cell: Callable[[LedgerScreenEntry], str]) -> Column:
            return Column(title, [cell(e) or NOTHING for e in self._ledger])

        found = [
            column("NODE", lambda e: e.row.node),
            column("DEVICE", lambda e: e.row.device),
            column("TYPE", lambda e: e.row.type),
            column("SLICE", _slice_cell),
            column("STATE", lambda e: e.row.state.value),
            column("REASON", lambda e: e.row.reason),
            column("REMEDY", lambda e: e.remedy),
            column("HOLDER", _holder_cell),
            column("SINCE", lambda e: age_text(e.since, self._now)),
            column("NUMA", lambda e: str(e.seen.numa)),
            column("NIC", lambda e: e.seen.nic),
            column("PCI", lambda e: e.seen.pci),
            column("UUID", lambda e: e.seen.uuid),
        ]
        # A column nobody has anything for says nothing; slices are rare.
        return [
            c for c in found if c.title not in ("SLICE", "REMEDY", "NIC", "PCI", "UUID") or set(c.cells) != {NOTHING}
        ]

    def _cell(self, title: str, text: str, entry: LedgerScreenEntry) -> str | Text:
        from rich.text import Text

        if title == "STATE" and entry.row.state != "Healthy":
            return Text(text, style=GLYPHS[entry.row.state.value][2])
        return Text(text, style="dim") if text == NOTHING else text


def fitting_device_table_columns(columns: Sequence[Column], width: int) -> tuple[list[Column], list[str]]:
    """The columns that fit, and the titles of those that do not."""
    kept, hidden = list(columns), list[str]()
    for leaving in _LEAVING:
        if sum(c.width + GAP for c in kept) - GAP <= width:
            break
        title, at = leaving.rstrip("~"), [c.title for c in kept]
        if title not in at:
            continue
        if leaving == "UUID":  # the first group of digits is enough to tell devices apart
            kept[at.index("UUID")] = Column(
                "UUID", [c[:12] + ".." if len(c) > 14 else c for c in kept[at.index("UUID")].cells]
            )
        else:
            hidden.append(title)
            del kept[at.index(title)]
    return kept, hidden


def _holder_cell(entry: LedgerScreenEntry) -> str:
    if entry.is_sliced and not entry.row.holder:
        return "(sliced)"
    return entry.row.holder + (" (draining)" if entry.row.draining else "")


def _slice_cell(entry: LedgerScreenEntry) -> str:
    if entry.is_slice:
        return f"{entry.seen.profile} at {entry.seen.start}"
    return "sliced" if entry.is_sliced else ""

"""What a benchmark says in the end: samples, their spread, and PASS or MISS against a bar.

A bar is judged by the median. Wall time never decides the exit code: machines differ and this one may be busy, which is why
cores, memory, interpreter, kernel and load are part of the result.
"""

from __future__ import annotations

import itertools
import os
import platform
import signal
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.marks import Broken


class Bar(msgspec.Struct, frozen=True):
    """One measured quantity of a `group`. `limit` None: shown beside the bars, not judged."""

    group: str
    name: str
    samples: list[float]
    limit: float | None = None
    unit: str = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "PASS" if self.median < self.limit else "MISS"

    def as_json(self) -> dict[str, Any]:
        found = msgspec.to_builtins(self)
        return {
            **found,
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "verdict": self.verdict,
        }


class Machine(msgspec.Struct, frozen=True, rename="camel"):
    cores: int
    memory_gib: float
    python: str
    kernel: str
    load_before: float
    load_after: float = 0.0


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory, 1),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        load_before=os.getloadavg()[0],
    )


def describe(machine: Machine) -> str:
    return (
        f"{machine.cores} cores, {machine.memory_gib:g} GiB, {machine.python}, {machine.kernel}; "
        f"load {machine.load_before:.2f} before the run"
    )


def render(bars: Sequence[Bar]) -> Table:
    table = Table(pad_edge=False)
    table.add_column("", overflow="fold")
    for heading in ("median", "min", "max", "bar", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for group, members in itertools.groupby(bars, key=lambda bar: bar.group):
        table.add_section()
        table.add_row(f"[bold]{group}[/bold]")
        for bar in members:
            mark = {"PASS": "[green]PASS[/green]", "MISS": "[red]MISS[/red]"}.get(bar.verdict, "")
            limit = "" if bar.limit is None else f"< {bar.limit:g} {bar.unit}"
            numbers = (_number(value, bar.unit) for value in (bar.median, min(bar.samples), max(bar.samples)))
            table.add_row(f"  {bar.name}", *numbers, limit, mark)
    return table


def print_lines(console: Console, bars: Sequence[Bar]) -> None:
    """One greppable line for each bar that is judged."""
    for bar in bars:
        if bar.limit is not None:
            spread = f"{_number(min(bar.samples), bar.unit)} .. {_number(max(bar.samples), bar.unit)}"
            median = _number(bar.median, bar.unit)
            what = f"{bar.group}: {bar.name}"
            line = f"{bar.verdict} {what}: {median} ({spread}, n={len(bar.samples)}) bar < {bar.limit:g} {bar.unit}"
            console.print(line, highlight=False, soft_wrap=True)


def report(measure: Callable[[Console], Sequence[Bar]], json: Path | None) -> int:
    """Measure and print: the machine, the table, a line per bar; every sample as JSON where asked. The exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, it still takes its processes along
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # into a file or a pipe, where the default of 80 leaves no room for the names
    machine = this_machine()
    console.print(describe(machine), highlight=False, soft_wrap=True)
    try:
        bars = measure(console)
    except Broken as problem:
        console.print(f"[red]broken:[/red] {problem}", soft_wrap=True)
        return 1
    machine = msgspec.structs.replace(machine, load_after=os.getloadavg()[0])
    console.print(f"load {machine.load_after:.2f} after the run", highlight=False)
    console.print(render(bars))
    print_lines(console, bars)
    if json is not None:
        result = {"machine": msgspec.to_builtins(machine), "bars": [bar.as_json() for bar in bars]}
        json.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return 0


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
    return f"{value:.2f} {unit}"

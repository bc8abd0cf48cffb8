"""What the demo shows: the gang as a live grid, a line per event, a table of measured recoveries and a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from remuda.api.devices import LauncherReport
from remuda.api.meta import to_seconds
from remuda.api.training import Recovery, TrainingJob
from remuda.cli.text import compact_names

STYLES = {"running": "green", "ready": "yellow", "parked": "cyan", "stopping": "red", "exited": "red", "gone": "red"}


class Scene(msgspec.Struct, frozen=True):
    """One moment of the demo."""

    title: str
    job: TrainingJob | None
    reports: Mapping[str, LauncherReport]
    racks: Mapping[str, str]
    steps: Mapping[str, int]
    events: Sequence[str]


def render_scene(scene: Scene) -> RenderableType:
    parts: list[RenderableType] = [Text(scene.title, style="bold")]
    if scene.job is not None:
        parts.append(_render_gang(scene))
    parts.extend(Text.from_markup(line) for line in scene.events[-8:])
    return Panel(Group(*parts), title="remuda demo", border_style="blue")


def _render_gang(scene: Scene) -> RenderableType:
    job = scene.job
    assert job is not None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("rank", "pod", "uid", "node", "rack", "devices", "state", "step"):
        table.add_column(column, justify="right" if column in ("rank", "step") else "left", no_wrap=True)
    for member in job.status.members:
        table.add_row(
            str(member.rank),
            member.pod,
            member.uid[:8],
            member.node,
            scene.racks.get(member.node, ""),
            compact_names(member.devices),
            _launcher_state_text(scene.reports.get(member.uid), member_of=job),
            str(scene.steps.get(member.uid, "")),
        )
    for spare in job.status.spares:
        state = (
            _launcher_state_text(scene.reports.get(spare.uid), member_of=None)
            if spare.node
            else Text("waiting", style="dim")
        )
        node, rack = spare.node, scene.racks.get(spare.node, "")
        table.add_row("-", spare.pod, spare.uid[:8], node, rack, compact_names(spare.devices), state, "", style="dim")
    head = Text.assemble(
        (job.status.phase, "bold green" if job.status.phase == "Running" else "bold yellow"),
        f"  attempt {job.status.attempt}  step {job.status.progress.step}",
        f"  checkpoint {job.status.progress.checkpoint_step}  ETTR {job.status.goodput.ettr:.1%}",
    )
    return Group(head, table)


def _launcher_state_text(report: LauncherReport | None, member_of: TrainingJob | None) -> Text:
    word = report.state if report else "starting"
    if report and member_of and report.attempt and report.attempt < member_of.status.attempt:
        word = "stopping"
    return Text(word, style=STYLES.get(word, "dim"))


def render_demo_recoveries(rows: Sequence[tuple[str, Recovery]]) -> Table:
    """Measured times of each stage, from the first signal. Fits 80 columns."""
    title = "\nMeasured in this run: milliseconds since the failure, and steps repeated"
    table = Table(title=title, header_style="bold", title_justify="left", box=None, pad_edge=False)
    for column in ("failure", "remedy", "noticed", "stopped", "start", "1st step", "steps"):
        table.add_column(column, justify="left" if column in ("failure", "remedy") else "right", no_wrap=True)
    for name, recovery in rows:
        began = to_seconds(recovery.signal_at) if recovery.signal_at else 0.0
        marks = (recovery.detected_at, recovery.stopped_at, recovery.opened_at, recovery.first_step_at)
        times = [f"{(to_seconds(m) - began) * 1000:.0f}" if m else "-" for m in marks]
        lost = recovery.step_at_fault - recovery.resume_step
        table.add_row(name, recovery.remedy, *times, str(max(lost, 0)))
    return table


def render_demo_timeline(job: TrainingJob, letters: Mapping[int, str], until: float, width: int = 72) -> Text:
    """The gang's life on one line: training, standing still, and where each fault struck."""
    began = to_seconds(job.status.started_at) if job.status.started_at else until
    span = max(until - began, 0.001)
    cells = ["█"] * width
    marks = [" "] * width
    for recovery in job.status.recoveries:
        if recovery.signal_at is None:
            continue
        start = to_seconds(recovery.signal_at)
        end = to_seconds(recovery.first_step_at) if recovery.first_step_at else until
        first = min(width - 1, max(0, int((start - began) / span * width)))
        last = min(width - 1, max(first, int((end - began) / span * width)))
        for cell in range(first, last + 1):
            cells[cell] = "░"
        marks[first] = letters.get(recovery.attempt, "·")
    text = Text()
    text.append("  " + "".join(marks) + "\n", style="bold")
    text.append("  ")
    for glyph in cells:
        text.append(glyph, style="red" if glyph == "░" else "green")
    text.append(f"\n  0 s{'':{width - 3 - len(f'{span:.0f} s')}}{span:.0f} s\n", style="dim")
    text.append("  █ training", style="green")
    text.append("  ░ stopped, from the failure to the first new step", style="red")
    return text

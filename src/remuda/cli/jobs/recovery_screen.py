"""What happened to a job: its recoveries as a table or in words, and the difference between two looks. Pure.

Times of a recovery count from the first signal of the fault, so that the last one is what the fault cost in standing still.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from remuda.api.training import Recovery, TrainingJob
from remuda.cli.output import plain_table
from remuda.cli.text import NOTHING, elapsed_text, plural_text


def render_recoveries(recoveries: Sequence[Recovery], width: int, *, wide: bool = False) -> list[RenderableType]:
    """Newest last. Times count from the first signal of the fault. Below: what happened and why not otherwise."""
    notes = Text()
    for recovery in recoveries if wide else recoveries[-1:]:
        notes.append(f"\nattempt {recovery.attempt}: {recovery.message or recovery.reason}")
        if recovery.rule:
            payer = f", charged to {recovery.charged or 'nobody'}" if recovery.charged is not None else ""
            notes.append(f"\n  by the job's rule {recovery.rule}{payer}")
        if recovery.replaced:
            notes.append(f"\n  {', '.join(recovery.members)} -> {', '.join(recovery.replaced)}")
        for refused in recovery.why_not:
            notes.append(f"\n  not {refused}", style="dim")
    title = Text("Recoveries (price in GPU-hours; times since the failure; steps lost)", style="dim")
    return [title, recovery_table(recoveries, width), notes]


def recovery_table(recoveries: Sequence[Recovery], width: int) -> Table:
    tight = width < 100
    times = ("DETECT", "STOP", "START", "STEP")
    columns = ("ATTEMPT", "CAUSE", "REASON", "REMEDY", "PRICE", *times, "LOST")
    table = plain_table(*columns, tight=tight, right=("ATTEMPT", "PRICE", *times, "LOST"))
    table.columns[2].no_wrap, table.columns[2].overflow, table.columns[2].min_width = False, "fold", 8
    for r in recoveries:
        start = r.signal_at or r.detected_at
        lost = max(0, r.step_at_fault - r.resume_step) if r.opened_at else None
        table.add_row(
            str(r.attempt),
            r.cause.value,
            r.reason,
            r.remedy.value,
            f"{r.price_gpu_hours:.2f}",
            elapsed_text(start, r.detected_at),
            elapsed_text(start, r.stopped_at),
            elapsed_text(start, r.opened_at),
            elapsed_text(start, r.first_step_at),
            NOTHING if lost is None else str(lost),
        )
    return table


def recovery_screen_line(recovery: Recovery) -> str:
    """One recovery as a line of text."""
    start = recovery.signal_at or recovery.detected_at
    lost = max(0, recovery.step_at_fault - recovery.resume_step)
    times = (
        ("detected", recovery.detected_at),
        ("stopped", recovery.stopped_at),
        ("told to start", recovery.opened_at),
        ("first new step", recovery.first_step_at),
    )
    reached = ", ".join(f"{word} {elapsed_text(start, time)}" for word, time in times if time is not None)
    tail = f", {plural_text(lost, 'step')} lost" if recovery.opened_at else ""
    return f"{recovery.remedy} after {recovery.reason} ({recovery.cause}): {reached}{tail}"


def job_transition_lines(old: TrainingJob | None, new: TrainingJob) -> list[str]:
    """What changed between two looks, one line each, for output that cannot be redrawn."""
    was, status = (old.status if old else None), new.status
    lines: list[str] = []
    if was is None or (was.phase, was.attempt) != (status.phase, status.attempt):
        why = f"{status.reason}: {status.message}" if status.reason else "created"
        lines.append(f"attempt {status.attempt} {status.phase} - {why}")
    before = {(r.attempt, r.signal_at): r for r in was.recoveries} if was else {}
    for recovery in status.recoveries:
        seen = before.get((recovery.attempt, recovery.signal_at))
        if recovery.first_step_at is not None and (seen is None or seen.first_step_at is None):
            lines.append(f"attempt {recovery.attempt} recovered - {recovery_screen_line(recovery)}")
        elif seen is None:
            head = f"{recovery.remedy} at {recovery.price_gpu_hours:.2f} GPU-hours"
            why_not = f" (not {'; not '.join(recovery.why_not)})" if recovery.why_not else ""
            lines.append(f"attempt {recovery.attempt} remedy - {head}{why_not}")
    parked = _parked_spares(new)
    if was is not None and old is not None and parked - _parked_spares(old):
        lines.append(f"attempt {status.attempt} spare parked - {', '.join(sorted(parked - _parked_spares(old)))}")
    if was is not None and was.progress.checkpoint_step == 0 < status.progress.checkpoint_step:
        lines.append(f"attempt {status.attempt} first checkpoint - step {status.progress.checkpoint_step}")
    return lines


def _parked_spares(job: TrainingJob) -> set[str]:
    return {s.pod for s in job.status.spares if s.parked}

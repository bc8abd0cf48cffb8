"""Incidents on the screen: a line each, totals by cause, and one of them as a timeline. Pure.

A timeline tells the story in order: the first signal, what it was taken to mean, whom it hit, what was done and why nothing
cheaper, what came of it, the end. Times count from the first signal, because that is what a failure costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from remuda.api.incidents import Affected, Evidence, Incident, IncidentPhase, RemedyOutcome, RemedyRecord, SubjectKind
from remuda.api.meta import to_seconds
from remuda.api.training import Remedy
from remuda.cli.output import plain_table
from remuda.cli.text import NOTHING, age_text, compact_names, duration_text, plural_text
from remuda.core.incidents.names import incident_subject_name
from remuda.core.incidents.summary import CauseTotals, device_hours_lost_to_incident
from remuda.core.incidents.workload_remedies import OVERTAKEN
from remuda.core.remedies.remedy_keys import is_verify_key, is_workload_remedy_key, names_action

# kind of moment -> (glyph, plain glyph, style), in the order in which moments of the same time are told.
MARKS: dict[str, tuple[str, str, str]] = {
    "exit": ("✗", "x", "red"),
    "signal": ("●", "*", "red"),
    "node": ("●", "*", "red"),
    "correlation": ("●", "*", "magenta"),
    "verdict": ("▲", "!", "bold red"),
    "hit": ("✗", "x", "yellow"),
    "opened": ("○", "o", "bold"),
    "remedy": ("→", ">", "cyan"),
    "ended": ("◌", "-", "dim"),
    "probe": ("?", "?", "cyan"),
    "done": ("✓", "+", "green"),
    "failed": ("✗", "x", "bold red"),
    "well": ("✓", "+", "green"),
    "operator": ("☞", "@", "magenta"),
    "closed": ("■", "#", "bold green"),
}
WIDE = 100  # columns of a terminal; in one with fewer the gaps are smaller
_ORDER = list(MARKS)
_STYLES = {"Open": "bold red", "Remedying": "bold cyan", "Verifying": "yellow", "Closed": "green"}
_BAD_ENDS = ("NotCured",)
_NEVER_TAKEN = {
    RemedyOutcome.WAITING: "waits for approval",
    RemedyOutcome.OBSERVED: "only observed",
    RemedyOutcome.HELD_BACK: "held back",
    RemedyOutcome.REFUSED: "refused",
    RemedyOutcome.SKIPPED: "skipped",
}


class TimelineMoment(msgspec.Struct, frozen=True):
    """`at`: None for what waits now."""

    at: datetime | None
    kind: str
    text: str
    details: tuple[str, ...] = ()
    place: int = 0  # among those of its time


# -- many -------------------------------------------------------------------------------------------------------------


def incident_where_words(incident: Incident) -> str:
    """rank -> pod -> node -> device, as far as it is known."""
    subject, hit = incident.spec.subject, incident.status.affected
    if subject.kind is SubjectKind.DOMAIN:
        return f"{subject.domain} ({plural_text(len(incident.status.parts), 'part')})"
    first = hit[0] if hit else None
    who: list[str] = []
    if first is not None:
        who += [f"rank {first.rank}"] if first.rank is not None else []
        who.append(first.pod.removeprefix("default/"))
        who += [f"+{len(hit) - 1}"] if len(hit) > 1 else []
    elif subject.gang:
        who.append(f"{subject.namespace}/{subject.gang}".removeprefix("default/"))
    node = subject.node or (first.node if first is not None else "")
    at = "/".join(filter(None, (node, subject.device)))
    return " @ ".join(filter(None, (" ".join(who), at)))


def incident_state_text(incident: Incident) -> Text:
    status = incident.status
    if status.outcome is not None:  # an open one has it, too, when its ladder has ended: NotCured
        bad = status.outcome.value in _BAD_ENDS
        return Text(status.outcome.value, style="bold red" if bad else "dim" if status.part_of else "green")
    return Text(status.phase.value, style=_STYLES[status.phase.value])


def remedy_words(incident: Incident) -> str:
    """The newest remedy and what came of it. The probe after a rung (probe-reset-1) only says whether the rung has cured."""
    remedies = [r for r in incident.status.remedies if not is_verify_key(r.key)]
    if not remedies:
        return NOTHING
    # What is asked for or held back comes after all that was done.
    ahead = {r.key for r in remedies if incident.is_open and r.started_at is None and r.ended_at is None}
    last = max(remedies, key=lambda r: (r.key in ahead, _sort_time(r.started_at), remedies.index(r)))
    words = {
        **_NEVER_TAKEN,
        RemedyOutcome.SUCCEEDED: "ok",
        RemedyOutcome.RUNNING: "...",
        RemedyOutcome.FAILED: "failed",
        RemedyOutcome.TIMED_OUT: "timed out",
    }
    if last.action == Remedy.FAIL:
        return "job failed"
    if _is_overtaken(last):
        return f"{last.action} overtaken"
    return f"{last.action} {words.get(last.outcome, last.outcome.value)}"


def incident_columns_left_out(width: int, *, wide: bool = False) -> tuple[str, ...]:
    """A narrow terminal gets neither place nor cost: the name says most of the one, `remuda incident` both."""
    return ("WHERE", "GPU-H") if width < WIDE and not wide else ()


def render_incidents(incidents: Sequence[Incident], now: float, width: int = WIDE, *, wide: bool = False) -> Table:
    is_narrow = bool(incident_columns_left_out(width, wide=wide))
    extra = ("CAUSE", "HIT", "TOOK", "MESSAGE") if wide else ()
    place, cost = ((), ()) if is_narrow else (("WHERE",), ("GPU-H",))
    table = plain_table(
        *("NAME", "AGE", *place, "REASON", "STATE", "REMEDY", *cost, *extra),
        right=("AGE", "GPU-H"),
        tight=is_narrow,
        words=("WHERE", "REMEDY"),
    )
    if wide:
        for column in (table.columns[-1], table.columns[-3]):
            column.no_wrap, column.min_width = False, 16
    for incident in incidents:
        status = incident.status
        more: list[str] = []
        if wide:
            took = _elapsed_words(status.first_signal_at, status.closed_at)
            pods = ", ".join(a.pod for a in status.affected) or NOTHING
            more = [status.verdict.cause or NOTHING, pods, took, status.message]
        table.add_row(
            incident.name,
            age_text(status.first_signal_at or status.opened_at or incident.metadata.creation_timestamp, now),
            *((incident_where_words(incident),) if place else ()),
            status.verdict.reason or NOTHING,
            incident_state_text(incident),
            remedy_words(incident),
            *((incident_screen_gpu_hours(status.lost_gpu_hours),) if cost else ()),
            *more,
        )
    return table


def render_incident_summary(rows: Sequence[CauseTotals]) -> RenderableType:
    numbers = ("INCIDENTS", "OPEN", "LOST GPU-H", "DEVICE-H OUT", "MEAN CURE", "MEAN BETWEEN")
    table = plain_table("CAUSE", *numbers, right=numbers)
    for row in rows:
        table.add_row(
            Text(row.cause, style="bold" if row.cause == "total" else ""),
            str(row.count),
            str(row.open),
            incident_screen_gpu_hours(row.lost_gpu_hours),
            incident_screen_gpu_hours(row.device_hours_out),
            NOTHING if row.cured_seconds is None else duration_text(row.cured_seconds),
            NOTHING if row.between_seconds is None else duration_text(row.between_seconds),
        )
    return table


# -- one --------------------------------------------------------------------------------------------------------------


def incident_timeline(incident: Incident) -> list[TimelineMoment]:
    """Everything that happened, in order."""
    return sorted(
        _incident_moments(incident), key=lambda m: (m.at is None, _sort_time(m.at), m.place or _ORDER.index(m.kind))
    )


def _incident_moments(incident: Incident) -> Iterator[TimelineMoment]:
    status = incident.status
    said = {e.message for e in status.evidence if e.kind in ("signal", "node")}
    for piece in status.evidence:
        if _is_shown_by_remedy_row(piece, status.remedies):
            continue
        yield TimelineMoment(
            piece.time or status.first_signal_at, _evidence_row_mark(piece), _evidence_row_words(piece, said)
        )
    for hit in status.affected:
        if hit.devices or hit.gang:
            yield TimelineMoment(status.first_signal_at, "hit", _hit_words(hit))
        if hit.ended:
            yield TimelineMoment(hit.ended_at, "ended", _end_words(hit))
    for number, record in enumerate(status.remedies):
        for moment in _remedy_moments(record, status.first_signal_at):
            yield msgspec.structs.replace(moment, place=len(MARKS) + number)
    for approval in incident.spec.approvals:
        verb = "approves" if approval.granted else "denies"
        yield TimelineMoment(
            approval.time or status.first_signal_at,
            "operator",
            f"{approval.by or 'An operator'} {verb} {approval.remedy}.",
        )
    if status.closed_at is not None:
        place = len(MARKS) + len(status.remedies)
        yield TimelineMoment(status.closed_at, "closed", f"{status.outcome}: {status.message}", place=place)


def _evidence_row_mark(piece: Evidence) -> str:
    is_well = (piece.kind, piece.message) == ("verdict", "Healthy") or (piece.kind, piece.code) == ("node", "WellAgain")
    return "well" if is_well else piece.kind if piece.kind in MARKS else "signal"


def _is_shown_by_remedy_row(piece: Evidence, remedies: Sequence[RemedyRecord]) -> bool:
    """A probe that was a rung of the ladder stands there with its answer."""
    is_probe = piece.kind == "probe" or (piece.kind == "signal" and piece.source == "probe")
    return is_probe and any(r.message == piece.message for r in remedies)


def _evidence_row_words(piece: Evidence, said: set[str]) -> str:
    match piece.kind:
        case "signal":
            return f"{piece.source} {piece.code}: {_without_head(piece.message, f'{piece.code}: ')}"
        case "verdict":
            state, _, rest = piece.message.partition(": ")
            reason, _, message = rest.partition(": ")
            words = f"{piece.device} is {state}" + (f" ({reason})" if reason else "")
            return f"{words}." if not message or message in said else f"{words}: {message}"
        case "exit":
            code = f"exit {piece.exit_code}" if piece.exit_code is not None else ""
            who = " ".join(filter(None, (f"rank {piece.rank}" if piece.rank is not None else "", piece.pod)))
            return ", ".join(filter(None, (who, code))) + f": {piece.message}"
        case "probe":
            return f"{piece.code}: {piece.message}"
    return piece.message


def _hit_words(hit: Affected) -> str:
    rank = f"rank {hit.rank}, " if hit.rank is not None else ""
    owner = f" of {hit.gang}" if hit.gang else ""
    container = f" ({hit.container})" if hit.container else ""
    devices = f" held {compact_names(hit.devices)}" if hit.devices else ""
    restarts = f", {plural_text(hit.restarts, 'restart')}" if hit.restarts else ""
    return f"{rank}{hit.pod}{container}{owner}{devices} on {hit.node}{restarts}"


def _end_words(hit: Affected) -> str:
    code = f" with exit {hit.exit_code}" if hit.exit_code is not None else ""
    verb = "was deleted" if hit.ended == "Deleted" else f"ended {hit.ended}"
    state = f"; {compact_names(hit.devices)} was {hit.state} then" if hit.state is not None else ""
    return f"{hit.pod} {verb}{code}{state}."


def _remedy_moments(record: RemedyRecord, first: datetime | None) -> Iterator[TimelineMoment]:
    target = f" for {record.target}" if record.target else ""
    price = f", price {incident_screen_gpu_hours(record.price_gpu_hours)} GPU-hours" if record.price_gpu_hours else ""
    via = f" ({record.via})" if record.via else ""
    if record.outcome in _NEVER_TAKEN:
        why = record.message or record.reason
        text = f"{_remedy_step_words(record)}{target} {_NEVER_TAKEN[record.outcome]}{f': {why}' if why else ''}"
        is_waiting = record.outcome in (RemedyOutcome.WAITING, RemedyOutcome.HELD_BACK)
        yield TimelineMoment(
            None if is_waiting else record.ended_at or record.started_at or first,
            "remedy",
            text,
            _why_not_lines(record),
        )
        return
    said = "" if is_workload_remedy_key(record.key) else record.message  # of a workload it is the fault, told above
    is_running = record.outcome is RemedyOutcome.RUNNING
    words = f"{_remedy_step_words(record)}{target}{price}{via}.{f' {said}' if said and is_running else ''}"
    yield TimelineMoment(record.started_at or first, "remedy", words, _why_not_lines(record))
    if is_running:
        return
    took = _elapsed_words(record.started_at, record.ended_at)
    after = f" after {took}" if took not in (NOTHING, "0s") else ""
    lost = f", {incident_screen_gpu_hours(record.lost_gpu_hours)} GPU-hours lost" if record.lost_gpu_hours else ""
    if _is_overtaken(record):
        text = f"{record.key} overtaken by another interruption{after}{lost}."
        yield TimelineMoment(record.ended_at or record.started_at or first, "ended", text)
        return
    good = record.outcome is RemedyOutcome.SUCCEEDED
    reason = "" if good or not record.reason else f" ({record.reason})"
    yield TimelineMoment(
        record.ended_at or record.started_at or first,
        "done" if good else "failed",
        f"{record.key} {record.outcome.value}{reason}{after}{lost}{f': {said}' if said else '.'}",
    )


def _is_overtaken(record: RemedyRecord) -> bool:
    """The next attempt took over while this one was still starting: what it did may well have been right."""
    return record.outcome is RemedyOutcome.FAILED and record.reason == OVERTAKEN


def _remedy_step_words(record: RemedyRecord) -> str:
    """attempt-2 PromoteSpare; but probe-1, which names its action already."""
    return record.key if names_action(record.key, record.action) else f"{record.key} {record.action}"


def _why_not_lines(record: RemedyRecord) -> tuple[str, ...]:
    return tuple(f"not {why}" for why in record.why_not)


def render_incident(incident: Incident, now: float, *, plain: bool = False) -> RenderableType:
    status = incident.status
    head = Text()
    head.append(incident.name, style="bold").append("  ").append_text(incident_state_text(incident))
    began = status.first_signal_at or status.opened_at
    if began is not None:
        head.append(f"  {began:%Y-%m-%d %H:%M:%S}, {age_text(began, now)} ago", style="dim")
    parts: list[RenderableType] = [head, Text(status.message or "No details yet."), Text()]
    parts += [_incident_facts(incident, now), Text()]
    moments = incident_timeline(incident)
    if moments and began is not None:
        parts.append(Text(f"Since the first signal at {began:%H:%M:%S}:", style="dim"))
        parts.append(_timeline_table(moments, began, plain))
    if status.evidence_dropped:
        parts.append(Text(f"{plural_text(status.evidence_dropped, 'piece')} of evidence left out here.", style="dim"))
    if incident.is_open and status.phase is not IncidentPhase.CLOSED:
        parts += [Text(), Text(f'Close it by hand: remuda incident {incident.name} --dismiss "why"', style="dim")]
    return Group(*parts)


def _incident_facts(incident: Incident, now: float) -> Table:
    status, subject = incident.status, incident.spec.subject
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    uuid = f" ({status.device_uuid})" if status.device_uuid else ""
    table.add_row("Subject", f"{subject.kind} {incident_subject_name(subject)}{uuid}")
    verdict = status.verdict
    if verdict.reason:
        state = f"{verdict.state} " if subject.device else ""
        asks = f", needs {verdict.remedy}" if verdict.remedy not in ("", "None") else ""
        source = f", reported by {verdict.source}" if verdict.source else ""
        table.add_row("Verdict", f"{state}{verdict.reason}{source}{asks}; cause {verdict.cause or 'unknown'}")
    lost = f"{incident_screen_gpu_hours(status.lost_gpu_hours)} GPU-hours of training"
    if (out := device_hours_lost_to_incident(incident, now)) > 0:
        lost += (
            f"; {plural_text(status.devices, 'device')} out of use for {incident_screen_gpu_hours(out)} device-hours"
        )
    table.add_row("Cost", lost)
    if status.soak_until is not None:
        table.add_row("Soak", f"until {status.soak_until:%H:%M:%S}")
    if status.ticket:
        table.add_row("Ticket", status.ticket)
    if status.part_of:
        table.add_row("Part of", status.part_of)
    if status.parts:
        table.add_row("Parts", ", ".join(status.parts))
    return table


def _timeline_table(moments: Sequence[TimelineMoment], began: datetime, plain: bool) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True, style="dim", min_width=9)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for moment in moments:
        glyph = MARKS[moment.kind]
        text = Text(moment.text, style="bold" if moment.kind in ("verdict", "closed") else "")
        for detail in moment.details:
            text.append(f"\n{detail}", style="dim")
        table.add_row(
            _since_first_signal(began, moment.at) if moment.at is not None else "now",
            Text(glyph[1 if plain else 0], style=glyph[2]),
            moment.kind,
            text,
        )
    return table


def _since_first_signal(began: datetime, at: datetime) -> str:
    seconds = to_seconds(at) - to_seconds(began)
    return f"-{duration_text(-seconds)}" if seconds < -0.005 else f"+{duration_text(seconds)}"


def incident_screen_gpu_hours(number: float) -> str:
    """Two digits, and more of what would otherwise look like nothing."""
    return f"{number:,.2f}" if number == 0 or number >= 0.01 else f"{number:.4f}"


def _without_head(text: str, head: str) -> str:
    return text.removeprefix(head)


def _sort_time(moment: datetime | None) -> float:
    return to_seconds(moment) if moment is not None else 0.0


def _elapsed_words(start: datetime | None, end: datetime | None) -> str:
    return NOTHING if start is None or end is None else duration_text(to_seconds(end) - to_seconds(start))

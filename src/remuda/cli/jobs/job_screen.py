"""A job on the screen: the table of all jobs and the picture of one. Pure: objects in, rich renderables out.

`Picture` joins what the API keeps apart: the job's status (who has which rank), the launchers' reports in NodeDevices
(what each pod is doing right now), pods (before there is a launcher) and node labels (where that is).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from remuda.api.devices import LauncherReport, NodeDevices
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import to_seconds
from remuda.api.training import UNLIMITED, Cause, Loan, TrainingJob
from remuda.cli.jobs.recovery_screen import render_recoveries
from remuda.cli.output import columns_left_out_note, columns_too_many, plain_table
from remuda.cli.text import NOTHING, age_text, amount_text, compact_names, duration_text, percent_text, plural_text
from remuda.runtime.up_config import RACK_LABEL

PHASE_STYLE = {
    "Running": "green",
    "Succeeded": "bold green",
    "Failed": "bold red",
    "Recovering": "bold yellow",
    "Starting": "cyan",
    "Pending": "yellow",
    "Suspended": "blue",
}
STATE_STYLE = {"running": "green", "ready": "cyan", "parked": "blue", "stopping": "yellow"}
SLOWNESS = ("SlowRanks", "GangSlow", "TemplateInUse")  # conditions of a job that runs, but not as it should

_LEFT_OUT_FIRST = ("SPARES", "ETA", "CKPT", "ETTR", "AGE", "ATTEMPT", "STEP", "RANKS")  # where the terminal is narrow
ASKED_TO_STOP = 128 + 15  # exit code of what a TERM has ended
LIVE_RECOVERIES = 4  # on a screen that is redrawn the newest ones are enough


class JobPicture(msgspec.Struct, frozen=True):
    """One job and everything the screen says about it. Maps are by pod uid, `racks` by node."""

    job: TrainingJob
    pods: Mapping[str, Pod]
    reports: Mapping[str, LauncherReport]
    racks: Mapping[str, str]
    now: float


def take_job_screen_picture(
    job: TrainingJob, pods: Iterable[Pod], devices: Iterable[NodeDevices], nodes: Iterable[Node], now: float
) -> JobPicture:
    uids = {m.uid for m in job.status.members} | {s.uid for s in job.status.spares}
    return JobPicture(
        job=job,
        pods={p.uid: p for p in pods if p.uid in uids},
        reports={r.uid: r for d in devices for r in d.observed.launchers if r.uid in uids},
        racks={n.name: n.labels[RACK_LABEL] for n in nodes if RACK_LABEL in n.labels},
        now=now,
    )


def render_jobs(jobs: Sequence[TrainingJob], now: float, width: int, *, wide: bool = False) -> RenderableType:
    """A narrow terminal gets fewer columns and is told which; names and reasons are folded only where that is not enough."""
    rows = [_job_cells(job, now) for job in sorted(jobs, key=lambda j: (j.namespace, j.name))]
    cells: dict[str, list[str | Text]] = {name: [row[name] for row in rows] for name in _job_columns(jobs, wide=wide)}
    is_tight = width < 100
    texts = {name: [str(cell) for cell in column] for name, column in cells.items()}
    left_out = [] if wide else columns_too_many(texts, _LEFT_OUT_FIRST, width, 1 if is_tight else 2)
    columns = [name for name in cells if name not in left_out]
    table = plain_table(
        *columns,
        tight=is_tight,
        right=("ATTEMPT", "RANKS", "STEP", "CKPT", "ETTR", "ETA", "SPARES", "AGE"),
        words=("NAMESPACE", "DOMAIN", "MESSAGE"),
    )
    for name in ("NAME", "REASON"):  # these may be broken over lines; numbers never
        column = table.columns[columns.index(name)]
        column.no_wrap, column.overflow = False, "fold"
        column.min_width = min(12, max(map(len, texts[name]), default=0))
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return Group(table, Text(columns_left_out_note(left_out))) if left_out else table


def _job_columns(jobs: Sequence[TrainingJob], *, wide: bool) -> list[str]:
    columns = ["NAME", "PHASE", "ATTEMPT", "RANKS", "STEP", "CKPT", "ETTR", "ETA", "SPARES", "AGE", "REASON"]
    if not any(job.status.progress.total_steps for job in jobs):
        columns.remove("ETA")
    return ["NAMESPACE", *columns, "DOMAIN", "MESSAGE"] if wide else columns


def _job_cells(job: TrainingJob, now: float) -> dict[str, str | Text]:
    status = job.status
    return {
        "NAMESPACE": job.namespace,
        "NAME": job.name,
        "PHASE": _phase_text(job),
        "ATTEMPT": str(status.attempt),
        "RANKS": _ranks_cell(job),
        "STEP": _step_cell(status.progress.step, status.progress.total_steps),
        "CKPT": _step_cell(status.progress.checkpoint_step),
        "ETTR": percent_text(status.goodput.ettr) if status.started_at else NOTHING,
        "ETA": _eta_cell(job, now),
        "SPARES": _spares_cell(job),
        "AGE": age_text(job.metadata.creation_timestamp, now),
        "REASON": _reason_cell(job),
        "DOMAIN": status.placement.domain or NOTHING,
        "MESSAGE": status.message,
    }


def _ranks_cell(job: TrainingJob) -> str:
    here = 0 if job.is_finished else len(job.status.members)
    return f"{here}/{sum(r.replicas for r in job.spec.roles if r.name not in job.status.done_roles)}"


def _phase_text(job: TrainingJob) -> Text:
    if job.is_deleting:
        return Text("Deleting", style="yellow")
    return Text(job.status.phase, style=PHASE_STYLE.get(job.status.phase, ""))


def _reason_cell(job: TrainingJob) -> str:
    """A job that is well needs no reason; the word would only draw the eye away from those that have one."""
    return "" if job.status.phase in ("Running", "Succeeded") else job.status.reason


def _spares_cell(job: TrainingJob) -> str:
    if not job.spec.spares or job.is_finished:
        return NOTHING
    lent = sum(1 for loan in job.status.loans if loan.returned_at is None)
    parked = sum(1 for s in job.status.spares if s.parked)
    return f"{parked}/{job.spec.spares}" + (f" ({lent} lent)" if lent else "")


def _step_cell(step: int, total: int = 0) -> str:
    return (f"{step}/{total}" if total else str(step)) if step else NOTHING


def _eta_cell(job: TrainingJob, now: float) -> str:
    """How long it will still take, as of the newest step; nothing for one that does not run."""
    eta = job.status.progress.eta
    if eta is None or job.status.phase not in ("Running", "Recovering", "Starting"):
        return NOTHING
    return duration_text(max(0.0, to_seconds(eta) - now))


def render_job(picture: JobPicture, width: int, *, rows: int | None = None, wide: bool = False) -> RenderableType:
    """`rows`: how many members to show at most; those that are not simply running come first then. `wide`: the reasons of
    every recovery, not of the newest only."""
    job = picture.job
    parts: list[RenderableType] = [render_job_header(picture), Text(), _members_table(picture, rows)]
    recoveries = job.status.recoveries if rows is None else job.status.recoveries[-LIVE_RECOVERIES:]
    if recoveries:
        parts += [Text(), *render_recoveries(recoveries, width, wide=wide)]
    return Group(*parts)


def render_job_header(picture: JobPicture) -> RenderableType:
    job, now = picture.job, picture.now
    status, progress, goodput = job.status, job.status.progress, job.status.goodput
    first = Text()
    first.append(job.name, style="bold").append("  ").append_text(_phase_text(job))
    first.append(f"  attempt {status.attempt}")
    where = [job.namespace, status.placement.domain, f"age {age_text(job.metadata.creation_timestamp, now)}"]
    first.append("  " + " · ".join(w for w in where if w), style="dim")
    lines = [first]
    if status.message and status.phase != "Running":
        lines.append(Text(f"{status.reason}: {status.message}", style=PHASE_STYLE.get(status.phase, "")))
    lines += _slowness_lines(job, now)
    total = progress.total_steps or job.spec.total_steps
    facts = [
        f"step {progress.step} of {total} ({percent_text(progress.step / total)})" if total else f"step {progress.step}"
    ]
    if progress.checkpoint_time:
        saved = f"checkpoint {progress.checkpoint_step}"
        facts.append(saved if job.is_finished else f"{saved} ({age_text(progress.checkpoint_time, now)} ago)")
    if progress.step_seconds:
        facts.append(f"{duration_text(progress.step_seconds)}/step")
    if (left := _eta_cell(job, now)) != NOTHING:
        facts.append(f"done in {left}")
    if status.started_at:
        facts.append(f"ETTR {percent_text(goodput.ettr)}")
    lines.append(Text(" · ".join(facts)))
    lost = ", ".join(f"{cause} {amount_text(s)}" for cause, s in sorted(goodput.lost_gpu_seconds.items()))
    lines.append(_budget_line(job))
    if lost:
        lines.append(Text.assemble(("GPU-seconds lost ", "dim"), f" {lost}"))
    return Group(*lines)


def _slowness_lines(job: TrainingJob, now: float) -> list[Text]:
    """Who is slow, or that the gang is, and why nothing is done about it. The control plane wrote it where it decided."""
    said = [c for c in job.status.conditions if c.type in SLOWNESS and c.status == "True" and not job.is_finished]
    return [
        Text(f"{c.type} for {age_text(c.last_transition_time, now)}: {c.reason}: {c.message}", "yellow") for c in said
    ]


def _budget_line(job: TrainingJob) -> Text:
    line = Text.assemble(("failures/limit ", "dim"))
    for cause in Cause:
        limit, used = job.spec.failure.budgets.limit(cause), job.status.used.get(cause.value, 0)
        if limit == UNLIMITED and not used:
            continue
        style = "" if not used else ("bold red" if limit != UNLIMITED and used >= limit else "yellow")
        line.append(f" {cause.value} {used}/{'∞' if limit == UNLIMITED else limit}", style=style)
    return line


def _loan_text(loan: Loan) -> Text:
    """What has become of the place of a spare that was given up."""
    to = ", ".join(f"{b.namespace}/{b.pod}" for b in loan.borrowers)
    if loan.returned_at is not None:
        return Text("returned; a new spare starts")
    if loan.recalled_at is not None:
        return Text(f"called back from {to}" if to else "called back", style="yellow")
    return Text(f"to {to}")


def _members_table(picture: JobPicture, rows: int | None) -> RenderableType:
    status = picture.job.status
    if not status.members and not status.spares:
        return Text("No pods: suspended." if picture.job.spec.suspend else "No pods placed yet.", style="dim")
    columns = ["RANK", "POD", "NODE", "RACK", "DEVICES", "STEP", "STATE"]
    used = [m.node for m in status.members] + [s.node for s in status.spares] + [loan.node for loan in status.loans]
    if not any(node in picture.racks for node in used):
        columns.remove("RACK")
    table = plain_table(*columns, right=("RANK", "STEP"))
    table.columns[-1].no_wrap = False
    lines = [
        (str(m.rank), m.pod, m.node, m.devices, member_state_text(picture, m.uid))
        for m in sorted(status.members, key=lambda m: m.rank)
    ]
    hidden = 0
    if rows is not None and len(lines) > max(rows, 1):
        # The eye needs those that stand out; ranks in the common state can be counted instead.
        standing_out = sorted(lines, key=lambda line: line[4].plain == "running")
        shown = standing_out[: max(rows, 1)]
        hidden = len(lines) - len(shown)
        lines = [line for line in lines if line in shown]
    steps = {str(rank): str(step) for rank, step in enumerate(status.progress.steps)}
    spares = [("spare", s.pod, s.node, s.devices, member_state_text(picture, s.uid)) for s in status.spares]
    lent = [("lent", loan.spare, loan.node, loan.devices, _loan_text(loan)) for loan in status.loans]
    for rank, pod, node, devices, state in [*lines, *spares, *lent]:
        cells: list[str | Text] = [
            rank,
            pod,
            node or NOTHING,
            picture.racks.get(node, NOTHING),
            compact_names(devices),
            steps.get(rank, NOTHING),
            state,
        ]
        if "RACK" not in columns:
            del cells[3]
        table.add_row(*cells, style="dim" if rank in ("spare", "lent") else None)
    if not hidden:
        return table
    return Group(
        table, Text(f"… and {plural_text(hidden, 'more rank')}; see all: remuda job {picture.job.name}", "dim")
    )


def member_state_text(picture: JobPicture, uid: str) -> Text:
    """What the pod is doing, in one or two words; with the attempt when it is not the job's."""
    report, pod = picture.reports.get(uid), picture.pods.get(uid)
    if picture.job.is_finished and (pod is None or pod.is_deleting):
        return Text("ended", style="dim")
    if pod is None:
        return Text("gone", style="red")
    if pod.is_deleting:
        return Text("terminating", style="yellow")
    if report is None or report.state == "gone":
        if pod.is_terminal:
            return _ended_pod_text(pod)
        if picture.job.is_finished:
            return Text("stopping", style="yellow") if report is None else Text("stopped", style="dim")
        return _pod_state_text(pod)
    if report.hung_since is not None:
        return Text(f"hung for {duration_text(picture.now - to_seconds(report.hung_since))}", style="bold red")
    if report.state == "exited":
        code = report.code if report.code is not None else 0
        words = f"exited {code}" + (f": {report.message}" if code and report.message else "")
        return Text(words, style="green" if code == 0 else "bold red")
    behind = f" (attempt {report.attempt})" if report.attempt not in (0, picture.job.status.attempt) else ""
    return Text(report.state + behind, style=STATE_STYLE.get(report.state, ""))


def _ended_pod_text(pod: Pod) -> Text:
    if pod.status.reason:
        return Text(pod.status.reason, style="red")
    ends = [s.state.terminated.exit_code for s in pod.status.container_statuses if s.state.terminated]
    code = next(filter(None, ends), 0)
    if code == ASKED_TO_STOP:
        return Text("stopped", style="dim")
    if pod.status.phase == "Failed":
        return Text(f"failed (exit {code})" if code else "failed", style="red")
    return Text("ended", style="dim")


def _pod_state_text(pod: Pod) -> Text:
    """Before the launcher has said hello: the pod's own phase, and why it waits."""
    statuses = pod.status.container_statuses
    waiting = next((s.state.waiting.reason for s in statuses if s.state.waiting and s.state.waiting.reason), "")
    word = waiting or pod.status.reason
    if not word:
        refused = next(
            (c.reason for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), ""
        )
        word = refused or ("starting" if pod.status.phase == "Running" or pod.spec.node_name else "waiting for GPUs")
    return Text(word, style="yellow")

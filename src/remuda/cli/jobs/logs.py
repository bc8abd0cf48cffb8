"""`remuda logs`: what ranks wrote, by attempt. Read from the state directory, so also of pods and jobs that are gone.

A log file belongs to a pod; `link.rank_logs` cuts it into sections, one per attempt and rank. Here sections become
lines: whole lines only, each with the rank in front when several ranks are shown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remuda.cli.output import output_option
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.kube.cluster import Cluster
    from remuda.link.rank_logs import LogSection, RankLogIndex

POLL_S = 0.2

SectionKey = tuple[Path, int, float]


class ShownLogLines:
    """Joins the pieces of one section into lines; what has no newline yet waits for the next piece."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return whole

    def rest(self) -> list[bytes]:
        last, self._rest = self._rest, b""
        return [last] if last else []


def job_log_sections_to_show(
    sections: Sequence[LogSection], job: str, rank: int | None, attempt: int | None
) -> list[LogSection]:
    """The sections meant, newest attempt unless one is named; a Refusal that says what there is."""
    from remuda.api.errors import Refusal
    from remuda.cli.text import printed_number_ranges

    attempts = sorted({s.attempt for s in sections})
    if not attempts:
        raise Refusal("NoLogs", f"`{job}` has printed nothing yet.", f"Wait until it runs: remuda job {job}")
    wanted = attempts[-1] if attempt is None else attempt
    found = [s for s in sections if s.attempt == wanted]
    if not found:
        raise Refusal(
            "AttemptNotFound",
            f"`{job}` has no logs of attempt {wanted}.",
            f"Attempts with logs: {printed_number_ranges(attempts)}.",
        )
    ranks = [s.rank for s in found if s.rank is not None]
    chosen = [s for s in found if rank is None or s.rank == rank]
    if not chosen:
        raise Refusal(
            "RankNotFound",
            f"`{job}` has no rank {rank} in attempt {wanted}.",
            f"Ranks with logs: {printed_number_ranges(ranks)}.",
        )
    return chosen


def render_log_line(section: LogSection, line: bytes, *, prefix: bool, form: str) -> str:
    return render_rank_line(section.pod, section.rank, section.attempt, line, prefix=prefix, form=form)


def render_rank_line(pod: str, rank: int | None, attempt: int | None, line: bytes, *, prefix: bool, form: str) -> str:
    """`attempt`: None where it is not known."""
    text = line.decode(errors="replace").rstrip("\r")
    if form == "json":
        return json.dumps({"attempt": attempt, "rank": rank, "pod": pod, "line": text}, ensure_ascii=False)
    who = f"rank {rank}" if rank is not None else pod
    return f"[{who}] {text}" if prefix else text


def log_lines_to_show(section: LogSection, count: int | None) -> Iterator[bytes]:
    """The section's lines, or its last `count`."""
    from remuda.link.log_segments import log_segments_tail_start
    from remuda.link.rank_logs import read_rank_log_pieces

    start = section.start if count is None else log_segments_tail_start(section.path, section.start, section.end, count)
    lines = ShownLogLines()
    for _, piece in read_rank_log_pieces(section, start):
        yield from lines.feed(piece)
    yield from lines.rest()


@click.command()
@click.argument("job")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank.  [default: all]")
@click.option("--attempt", type=click.IntRange(min=0), help="An earlier attempt.  [default: the newest]")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, across restarts, until the job ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each rank.")
@output_option(formats=("table", "json"))
@with_session
def logs(
    session: Session, job: str, rank: int | None, attempt: int | None, follow: bool, tail: int | None, form: str
) -> None:
    """Show what the ranks of a job printed, earlier attempts and deleted pods included.

    On a real cluster: of the pods that are there. -o json prints one object per line: {"attempt", "rank", "pod", "line"}.
    """
    from remuda.link.rank_logs import RankLogIndex

    if session.is_real:
        from remuda.cli.jobs.pod_logs import print_pod_logs, refuse_pod_logs_attempt_option

        def render(prefix: bool) -> Callable[[str, int | None, bytes], str]:
            return lambda pod, of, line: render_rank_line(pod, of, None, line, prefix=prefix, form=form)

        refuse_pod_logs_attempt_option(attempt)
        asyncio.run(print_pod_logs(session, job, rank, tail, follow=follow, render=render))
        return
    root = session.state.logs
    index = RankLogIndex(root, session.namespace, job, asyncio.run(_find_job_uid(session, job)))
    sections = index.refresh()
    if not sections:
        asyncio.run(_check_job_exists(session, root, job))
    if not follow:
        chosen = job_log_sections_to_show(sections, job, rank, attempt)
        prefix = rank is None and len({s.rank for s in chosen}) > 1
        for section in chosen:
            for line in log_lines_to_show(section, tail):
                click.echo(render_log_line(section, line, prefix=prefix, form=form))
        return
    if sections and (rank is not None or attempt is not None):
        job_log_sections_to_show(sections, job, rank, attempt)
    newest = max((s.attempt for s in sections), default=0)
    follower = LogFollower(index, rank, attempt, attempt if attempt is not None else newest, tail, form)
    asyncio.run(_follow_logs(session, job, follower))


def _section_key(section: LogSection) -> SectionKey:
    """Of the same section at every look: its beginning moves when the oldest of a log is given up."""
    return section.path, section.attempt, section.time


class LogFollower:
    """Prints what is new in the sections from attempt `since` on (only that one, when `attempt` was named)."""

    def __init__(
        self, index: RankLogIndex, rank: int | None, attempt: int | None, since: int, tail: int | None, form: str
    ) -> None:
        self._index, self._rank, self._attempt, self._since = index, rank, attempt, since
        self._tail, self._form = tail, form
        self._read: dict[SectionKey, int] = {}  # how far, in the log
        self._lines: dict[SectionKey, ShownLogLines] = {}

    def print_new(self, *, last: bool) -> bool:
        """True when something was there."""
        from remuda.link.rank_logs import read_rank_log_pieces

        first_look, found = not self._read, False
        for section in self._wanted():
            key = _section_key(section)
            if first_look and self._tail is not None:
                for line in log_lines_to_show(section, self._tail):
                    self._print(section, line)
                self._read[key] = section.end
                continue
            lines = self._lines.setdefault(key, ShownLogLines())
            for at, piece in read_rank_log_pieces(section, self._read.get(key, section.start)):
                self._read[key] = at + len(piece)
                found = True
                for line in lines.feed(piece):
                    self._print(section, line)
        if last and not found:
            for section in self._wanted():
                for line in self._lines.get(_section_key(section), ShownLogLines()).rest():
                    self._print(section, line)
        return found

    def _wanted(self) -> list[LogSection]:
        return [
            s
            for s in self._index.refresh()
            if (s.attempt == self._attempt if self._attempt is not None else s.attempt >= self._since)
            and (self._rank is None or s.rank == self._rank)
        ]

    def _print(self, section: LogSection, line: bytes) -> None:
        click.echo(render_log_line(section, line, prefix=self._rank is None, form=self._form))


async def _follow_logs(session: Session, job: str, follower: LogFollower) -> None:
    """Until the job has ended and everything it wrote is printed. Without a cluster: what is there."""
    if session.is_embedded and session.state.holder() is None:
        follower.print_new(last=False)
        follower.print_new(last=True)
        return
    from remuda.cli.jobs.job_follow import silence_logs_while_following_job

    silence_logs_while_following_job()
    async with session.connect() as cluster:
        ended = asyncio.create_task(_wait_job_ended(session, cluster, job))
        try:
            while True:
                last = ended.done()
                if not follower.print_new(last=last):
                    if last:
                        return
                    await asyncio.wait([ended], timeout=POLL_S)
        finally:
            ended.cancel()


async def _wait_job_ended(session: Session, cluster: Cluster, job: str) -> None:
    """Returns when the job is finished or gone, or the cluster is."""
    from remuda.cli.jobs.job_follow import JobFollower

    following = JobFollower(cluster, job, session.namespace, session.clock)
    async with following.running():
        while (seen := following.job) is not None and not seen.is_finished:
            if session.is_embedded and session.state.holder() is None:
                return
            await following.next_change(1.0)


async def _find_job_uid(session: Session, job: str) -> str | None:
    """Whose logs are meant: of the job of that name. None: there is none (any more), or nobody to ask."""
    from remuda.api.errors import ApiError
    from remuda.api.training import TrainingJob

    if session.is_embedded and session.state.holder() is None:
        return None
    async with session.connect() as cluster:
        try:
            return (await cluster.get(TrainingJob, job, session.namespace)).uid
        except ApiError:
            return None


async def _check_job_exists(session: Session, root: Path, job: str) -> None:
    """No logs at all: is the name wrong, or is it only too early?"""
    from remuda.cli.lookup import find_job, job_not_found
    from remuda.link.rank_logs import rank_log_directory_name

    if session.is_embedded and session.state.holder() is None:
        folder = root / session.namespace
        names = sorted({rank_log_directory_name(p) for p in folder.iterdir()}) if folder.is_dir() else []
        raise job_not_found(job, session.namespace, names)
    async with session.connect() as cluster:
        await find_job(cluster, job, session.namespace)

"""Following one job: three watches (the job, its pods, the nodes' reports) joined into a picture that is redrawn.

On a terminal the picture is redrawn in place on every change, at most a few times a second; elsewhere each transition is
one line. Ends when the job has ended, is gone, or the cluster is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable
from time import localtime, strftime
from typing import Any

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.names import LABEL_GANG
from remuda.api.selectors import labels_equal, parse_api_field_selector
from remuda.api.training import TrainingJob
from remuda.cli.allowed import list_if_allowed
from remuda.cli.errors import FAILED, Failed
from remuda.cli.jobs.job_screen import JobPicture, render_job, take_job_screen_picture
from remuda.cli.jobs.recovery_screen import job_transition_lines
from remuda.cli.output import make_console, output_object_document
from remuda.cli.program_logs import show_program_logs
from remuda.cli.session import Session
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer

REDRAW_EVERY_S = 0.2
TICK_S = 1.0  # ages move even when nothing else does
_CHROME_ROWS = 17  # lines of the picture that are not members: header, headings, the newest recoveries


def silence_logs_while_following_job() -> None:
    """Informers log what they retry; on a screen that is noise, and the command says itself when it gives up."""
    show_program_logs(logging.CRITICAL)


class JobFollower:
    """The newest picture of one job, kept current while `run` runs. `changed` is set after every difference."""

    def __init__(self, cluster: Cluster, name: str, namespace: str, clock: Callable[[], float]) -> None:
        self.name, self.namespace = name, namespace
        self.changed = asyncio.Event()
        self._cluster, self._clock = cluster, clock
        self._jobs = Informer(cluster, TrainingJob, namespace, fields=parse_api_field_selector(f"metadata.name={name}"))
        self._pods = Informer(cluster, Pod, namespace, labels=labels_equal({LABEL_GANG: name}))
        self._devices = Informer(cluster, NodeDevices)
        self._nodes: list[Node] = []
        self._jobs.subscribe(lambda old, new: self.changed.set())
        self._pods.subscribe(lambda old, new: self.changed.set())
        self._devices.subscribe(lambda old, new: self.changed.set())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._nodes = await list_if_allowed(self._cluster, Node) or []
        informers: list[Informer[Any]] = [self._jobs, self._pods]
        if await list_if_allowed(self._cluster, NodeDevices) is not None:
            informers.append(self._devices)
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        try:
            async with asyncio.timeout(10):
                for informer in informers:
                    await informer.synced()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def job(self) -> TrainingJob | None:
        return self._jobs.get(self.name, self.namespace)

    def picture(self) -> JobPicture | None:
        job = self.job
        if job is None:
            return None
        return take_job_screen_picture(job, self._pods.items(), self._devices.items(), self._nodes, self._clock())

    async def next_change(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        self.changed.clear()


async def follow_job(session: Session, cluster: Cluster, name: str, form: str = "table") -> int:
    """Until the job ends; 0 when it succeeded, 1 when not."""
    silence_logs_while_following_job()
    following = JobFollower(cluster, name, session.namespace, session.clock)
    async with following.running():
        if form == "table" and sys.stdout.isatty():
            await _redraw_job(session, following)
        else:
            await _print_transitions(session, following, form)
        last = following.job
    if last is None:
        raise Failed("JobDeleted", f"`{name}` was deleted.", "`remuda jobs` lists the jobs there are.")
    return 0 if last.status.phase == "Succeeded" else FAILED


async def _redraw_job(session: Session, following: JobFollower) -> None:
    from rich.live import Live

    console = make_console()
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            picture = following.picture()
            if picture is None:
                return
            rows = max(3, console.height - _CHROME_ROWS - len(picture.job.status.spares))
            live.update(render_job(picture, console.width, rows=rows), refresh=True)
            if picture.job.is_finished:
                return
            await _check_cluster_runs(session)
            await following.next_change(TICK_S)
            await asyncio.sleep(REDRAW_EVERY_S)  # what else has changed meanwhile is drawn at the same time


async def _print_transitions(session: Session, following: JobFollower, form: str) -> None:
    import json

    seen: TrainingJob | None = None
    while True:
        job = following.job
        if job is None:
            return
        if form == "json":
            if job != seen:
                print(json.dumps(output_object_document(job)), flush=True)
        else:
            for line in job_transition_lines(seen, job):
                print(f"{strftime('%H:%M:%S', localtime(session.clock()))} {job.name} {line}", flush=True)
        seen = job
        if job.is_finished:
            return
        await _check_cluster_runs(session)
        await following.next_change(TICK_S)


async def _check_cluster_runs(session: Session) -> None:
    """Informers retry for ever; a person watching wants to know that the cluster was stopped."""
    if session.is_embedded and session.state.holder() is None:
        raise Failed(
            "ClusterStopped", "The cluster was stopped.", "Start it again with `remuda up`; the job continues."
        )

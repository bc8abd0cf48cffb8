"""`remuda suspend JOB...` and `remuda resume JOB...`: one patch of the job's spec each; the controller does the rest."""

from __future__ import annotations

import asyncio

import click

from remuda.cli.output import is_document, output_option, print_document
from remuda.cli.session import Session, with_session


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@output_option(formats=("table", "json", "yaml"))
@with_session
def suspend(session: Session, names: tuple[str, ...], form: str) -> None:
    """Stop jobs and give everything back; the record stays.

    Each is asked for a checkpoint first and stops when it has saved one, or after a while. `remuda resume` goes on from there; no
    budget is charged. -o json prints {"suspended": [names]}.
    """
    _set(session, names, form, suspend=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@output_option(formats=("table", "json", "yaml"))
@with_session
def resume(session: Session, names: tuple[str, ...], form: str) -> None:
    """Let suspended jobs go on from their newest checkpoint, wherever there is room.

    -o json prints {"resumed": [names]}.
    """
    _set(session, names, form, suspend=False)


def _set(session: Session, names: tuple[str, ...], form: str, *, suspend: bool) -> None:
    from remuda.api.errors import Refusal
    from remuda.api.training import TrainingJob
    from remuda.cli.lookup import find_job

    async def act() -> None:
        async with session.connect() as cluster:
            found = [await find_job(cluster, name, session.namespace) for name in names]
            for job in found:  # look at all before touching any
                if job.is_finished:
                    raise Refusal(
                        "JobFinished",
                        f"Job {job.name} has ended ({job.status.phase}).",
                        "Start a new one: remuda train.",
                    )
            for job in found:
                if job.spec.suspend is suspend:
                    _say(form, f"Job {job.name} {'is suspended already' if suspend else 'is not suspended'}.")
                    continue
                await cluster.patch(TrainingJob, job.name, {"spec": {"suspend": suspend}}, session.namespace)
                words = "saves a checkpoint and stops" if suspend else "goes on when there is room"
                _say(form, f"Job {job.name} {words}. Follow it: remuda job {job.name} -w")

    asyncio.run(act())
    if is_document(form):
        print_document(form, {"suspended" if suspend else "resumed": list(names)})


def _say(form: str, text: str) -> None:
    if not is_document(form):
        click.echo(text)

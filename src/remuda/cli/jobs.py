"""`remuda jobs`, `remuda job NAME [-w]` and `remuda delete`."""

from __future__ import annotations

import asyncio

import click

from remuda.cli.output import is_document, list_body, make_console, object_body, output_option, print_document, show
from remuda.cli.session import Session, with_session


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of every namespace.")
@output_option()
@with_session
def jobs(session: Session, all_namespaces: bool, form: str) -> None:
    """All jobs, one line each. -o json gives a List of TrainingJob objects."""
    from remuda.api.training import TrainingJob
    from remuda.cli.job_screen import render_jobs

    async def look() -> list[TrainingJob]:
        async with session.connect() as cluster:
            return (await cluster.list(TrainingJob, "" if all_namespaces else session.namespace)).items

    found = asyncio.run(look())
    if is_document(form):
        print_document(form, list_body(found))
    else:
        wide = form == "wide" or all_namespaces
        show(render_jobs(found, session.clock(), make_console().width, wide=wide))


@click.command()
@click.argument("name")
@click.option("-w", "--watch", is_flag=True, help="Follow it until it ends; a line per transition without a terminal.")
@output_option()
@with_session
def job(session: Session, name: str, watch: bool, form: str) -> int:
    """One job: phase, progress, members by rank, spares, recoveries and why each remedy was chosen.

    Times of a recovery count from the first signal of the fault; -o wide explains all of them. -o json gives the
    TrainingJob object; with -w one object a line for each change. With -w the exit code is 0 when the job succeeded and 1
    when not.
    """
    from remuda.cli.job_follow import follow_job
    from remuda.cli.job_screen import render_job
    from remuda.cli.lookup import find_job, find_picture

    async def look() -> int:
        async with session.connect() as cluster:
            if watch:
                await find_job(cluster, name, session.namespace)
                return await follow_job(session, cluster, name, form)
            if is_document(form):
                print_document(form, object_body(await find_job(cluster, name, session.namespace)))
            else:
                picture = await find_picture(cluster, name, session.namespace, session.clock)
                show(render_job(picture, make_console().width, wide=form == "wide"))
            return 0

    return asyncio.run(look())


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@output_option(formats=("table", "json", "yaml"))
@with_session
def delete(session: Session, names: tuple[str, ...], form: str) -> None:
    """Delete jobs. Their pods are stopped; logs and checkpoints stay.

    -o json prints {"deleted": [names]}.
    """
    from remuda.api.training import TrainingJob
    from remuda.cli.lookup import find_job

    async def act() -> None:
        async with session.connect() as cluster:
            for name in names:  # look at all before touching any
                await find_job(cluster, name, session.namespace)
            for name in names:
                await cluster.delete(TrainingJob, name, session.namespace)
                if not is_document(form):
                    click.echo(f"Deleted job {name}; its pods are being stopped.")

    asyncio.run(act())
    if is_document(form):
        print_document(form, {"deleted": list(names)})

"""`remuda jobs`, `job NAME [-w]`, `suspend`, `resume` and `delete`: what is done with a job that is there.

Suspending and resuming are one patch of the job's spec each; the controller does the rest.
"""

from __future__ import annotations

import asyncio

import click

from remuda.cli.input_files import train_example_with_input_file
from remuda.cli.output import (
    is_document_output_form,
    make_console,
    output_list_document,
    output_object_document,
    output_option,
    print_document,
    print_screen,
)
from remuda.cli.session import Session, with_session


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="List jobs of all namespaces.")
@output_option()
@with_session
def jobs(session: Session, all_namespaces: bool, form: str) -> None:
    """List all jobs, one line each. -o json prints a List of TrainingJob objects.

    CKPT is the newest step that all ranks have saved. ETTR is the share of time spent on steps that count.
    """
    from remuda.api.training import TrainingJob
    from remuda.cli.jobs.job_screen import render_jobs

    async def look() -> list[TrainingJob]:
        async with session.connect() as cluster:
            return (await cluster.list(TrainingJob, "" if all_namespaces else session.namespace)).items

    found = asyncio.run(look())
    if is_document_output_form(form):
        print_document(form, output_list_document(found))
    elif not found:
        click.echo(
            f"No jobs. Start one: {session.command_line(train_example_with_input_file('--gpus 1', is_real=session.is_real))}"
        )
    else:
        wide = form == "wide" or all_namespaces
        print_screen(render_jobs(found, session.clock(), make_console().width, wide=wide))


@click.command()
@click.argument("name", default="", metavar="NAME")
@click.option("-w", "--watch", is_flag=True, help="Follow the job until it ends; in a pipe, one line per change.")
@output_option()
@with_session
def job(session: Session, name: str, watch: bool, form: str) -> int:
    """Show one job: phase, progress, pods by rank, spares, and its recoveries from failures.

    ETTR is the share of time spent on steps that count: 97% means that 3% was lost to failures. Times of a recovery count from
    the first signal of the failure: until it was noticed (DETECT), all ranks had stopped (STOP), they were told to start again
    (START), and the first new step was done (STEP). -o wide explains every recovery.

    -o json prints the
    TrainingJob object; with -w, one object per line for each change. With -w the exit code is 0 if the job succeeded and 1
    if not.
    """
    from remuda.cli.jobs.job_follow import follow_job
    from remuda.cli.jobs.job_screen import render_job
    from remuda.cli.lookup import find_job, find_job_picture, job_not_named

    async def look() -> int:
        async with session.connect() as cluster:
            if not name:
                raise await job_not_named(cluster, session.namespace)
            if watch:
                await find_job(cluster, name, session.namespace)
                return await follow_job(session, cluster, name, form)
            if is_document_output_form(form):
                print_document(form, output_object_document(await find_job(cluster, name, session.namespace)))
            else:
                picture = await find_job_picture(cluster, name, session.namespace, session.clock)
                print_screen(render_job(picture, make_console().width, wide=form == "wide"))
            return 0

    return asyncio.run(look())


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@output_option(formats=("table", "json", "yaml"))
@with_session
def delete(session: Session, names: tuple[str, ...], form: str) -> None:
    """Stop jobs and remove them. Their pods end. Checkpoints are kept, and the logs for a day.

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
                if not is_document_output_form(form):
                    click.echo(f"Deleted job {name}; pods of it that still run are being stopped.")

    asyncio.run(act())
    if is_document_output_form(form):
        print_document(form, {"deleted": list(names)})


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@output_option(formats=("table", "json", "yaml"))
@with_session
def suspend(session: Session, names: tuple[str, ...], form: str) -> None:
    """Save a checkpoint, stop, and free the GPUs. The job stays in the list.

    The job stops when its checkpoint is saved, or after a while without one. `remuda resume` continues from there. A suspend does
    not count as a failure. -o json prints {"suspended": [names]}.
    """
    _set_suspend(session, names, form, suspend=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--from-step",
    type=click.IntRange(0, 2**53),
    metavar="N",
    help="Continue from the checkpoint of step N, also if newer ones were there; 0 = from the beginning.",
)
@output_option(formats=("table", "json", "yaml"))
@with_session
def resume(session: Session, names: tuple[str, ...], from_step: int | None, form: str) -> None:
    """Continue suspended jobs from their newest checkpoint, as soon as GPUs are free.

    A job that waits because a checkpoint is missing or cannot be read (CheckpointMissing, CheckpointsUnreadable) continues with
    --from-step. That counts for one start. Checkpoints behind that step are kept, marked abandoned.

    -o json prints {"resumed": [names]}.
    """
    _set_suspend(session, names, form, suspend=False, from_step=from_step)


def _set_suspend(
    session: Session, names: tuple[str, ...], form: str, *, suspend: bool, from_step: int | None = None
) -> None:
    from remuda.api.errors import Refusal
    from remuda.api.training import TrainingJob
    from remuda.cli.lookup import find_job

    async def act() -> None:
        async with session.connect() as cluster:
            found = [await find_job(cluster, name, session.namespace) for name in names]
            for job in found:  # look at all before touching any
                if job.is_finished:
                    again = "; with the same --checkpoint it continues from the last step saved"
                    raise Refusal(
                        "JobFinished",
                        f"Job {job.name} has ended ({job.status.phase}).",
                        f"Start a new job with `remuda train`{'' if job.status.phase == 'Succeeded' else again}.",
                    )
                if from_step is not None and job.status.barrier == "Open":
                    raise Refusal(
                        "JobRuns",
                        f"Job {job.name} is running, so it cannot continue from another step.",
                        f"Suspend it first: `remuda suspend {job.name}`. When it is Suspended, resume it with --from-step.",
                    )
            for job in found:
                if from_step is not None:
                    consent = {"step": from_step, "attempt": max(1, job.status.attempt)}
                    patch = {"spec": {"suspend": False, "checkpoint": {"resumeFrom": consent}}}
                    await cluster.patch(TrainingJob, job.name, patch, session.namespace)
                    where = f"the checkpoint of step {from_step}" if from_step else "the beginning"
                    follow = session.command_line(f"job {job.name} -w")
                    _echo_unless_document(form, f"Job {job.name} continues from {where}. Follow it: {follow}")
                    continue
                if job.spec.suspend is suspend:
                    _echo_unless_document(
                        form, f"Job {job.name} {'is already suspended' if suspend else 'is not suspended'}."
                    )
                    continue
                await cluster.patch(TrainingJob, job.name, {"spec": {"suspend": suspend}}, session.namespace)
                words = "saves a checkpoint and stops" if suspend else "continues as soon as GPUs are free"
                follow = session.command_line(f"job {job.name} -w")
                _echo_unless_document(form, f"Job {job.name} {words}. Follow it: {follow}")

    asyncio.run(act())
    if is_document_output_form(form):
        print_document(form, {"suspended" if suspend else "resumed": list(names)})


def _echo_unless_document(form: str, text: str) -> None:
    if not is_document_output_form(form):
        click.echo(text)

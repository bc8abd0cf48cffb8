"""`remuda train`: a job from flags or from a file, looked at from all sides, then created in one write.

Order: parse and validate (nothing else is touched), look at the machine and the cluster (`preflight`), create, say what to do
next. Whatever refuses does so before the one write, so there is never half a job.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from remuda.cli.durations import DURATION
from remuda.cli.output import (
    is_document_output_form,
    output_object_document,
    output_option,
    print_commands,
    print_document,
)
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node
    from remuda.api.training import TrainingJob
    from remuda.cli.jobs.manifest import JobRequest
    from remuda.kube.cluster import Cluster

_COMMAND = "remuda.train.command"


class _TrainCommand(click.Command):
    """Everything after the first `--` is the training command, word for word; before it there is at most a name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            args, ctx.meta[_COMMAND] = args[:split], args[split + 1 :]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[NAME] [OPTIONS] -- COMMAND...")
        formatter.write_usage(ctx.command_path, "[NAME] [OPTIONS] -f FILE", prefix="       ")


class TrainFlags(msgspec.Struct, kw_only=True):
    """The command line of `remuda train`, unset flags as None."""

    words: tuple[str, ...] = ()
    file: str | None = None
    replicas: int | None = None
    gpus: int | None = None
    spares: int | None = None
    topology: str | None = None
    checkpoint: str | None = None
    hang_after: float | None = None
    total_steps: int | None = None
    deadline: float | None = None
    ttl: float | None = None
    suspend: bool | None = None
    env: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    image: str | None = None
    workdir: Path | None = None


@click.command(cls=_TrainCommand)
@click.argument("words", nargs=-1, metavar="[NAME]")
@click.option(
    "-f", "--file", metavar="FILE", help="Read the job (a TrainingJob) from a YAML or JSON file; `-` is standard input."
)
@click.option("--replicas", type=int, metavar="N", help="Number of pods that train together (ranks).  [default: 1]")
@click.option("--gpus", type=int, metavar="N", help="GPUs per pod.  [default: 1]")
@click.option(
    "--spares", type=int, metavar="N", help="Extra pods that wait, ready to replace a failed one.  [default: 0]"
)
@click.option(
    "--topology",
    metavar="rack|none|LABEL",
    help="Keep all pods in one rack, anywhere, or on nodes that share a label.  [default: rack, if one is big enough]",
)
@click.option("--checkpoint", metavar="DIR", help="Shared directory for checkpoints.  [default: one made for the job]")
@click.option(
    "--hang-after",
    type=DURATION,
    metavar="TIME",
    help="Restart when there is no new step for this long.  [default: off]",
)
@click.option(
    "--total-steps", type=int, metavar="N", help="How many steps there will be; shows progress and time left."
)
@click.option(
    "--deadline",
    type=DURATION,
    metavar="TIME",
    help="Fail the job when it has run this long: 1h, 90m.  [default: none]",
)
@click.option(
    "--ttl", type=DURATION, metavar="TIME", help="Delete the job this long after it ended.  [default: keep it]"
)
@click.option(
    "--suspend", is_flag=True, default=None, help="Create the job without starting it; `remuda resume` starts it."
)
@click.option(
    "--env",
    multiple=True,
    metavar="K=V",
    help="Environment variable; may be repeated. K alone passes on your own value.",
)
@click.option(
    "--budget", multiple=True, metavar="CAUSE=N", help="How many failures of each cause are allowed: code=5,device=10."
)
@click.option(
    "--image",
    metavar="NAME",
    help="Container image; a real cluster needs one. `remuda up` runs no images: the command is a process of this machine.",
)
@click.option(
    "--workdir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory the command runs in.  [default: this one]",
)
@click.option("-w", "--watch", is_flag=True, help="Follow the job after it is created.")
@click.option("--dry-run", is_flag=True, help="Check and print the job; create nothing.")
@output_option(formats=("table", "json", "yaml"))
@with_session
def train(session: Session, watch: bool, dry_run: bool, form: str, **options: Any) -> int:
    """Start a training job: pods with GPUs that train together and are restarted together when something fails.

    \b
      remuda train --replicas 8 --gpus 8 --spares 1 -- python train.py
      remuda train --gpus 1 --workdir examples/01-hello-gang -- python train.py
      remuda train -f job.yaml

    Relative paths start from this directory; in a file, from the file's directory. -o json prints the TrainingJob that was
    created, or with --dry-run the one that would be.
    """
    flags = TrainFlags(**options)
    command: Sequence[str] = click.get_current_context().meta.get(_COMMAND, [])
    name = check_train_words(flags, command)
    # What is wrong with the request itself is said before anything is asked of the cluster.
    from_file = _read_job(session, flags, name) if flags.file else None
    asked = _read_flags(session, flags, name, command)

    async def act() -> int:
        async with _connect_if_needed(session, needed=not dry_run) as cluster:
            known = await _read_machines(cluster)
            job, note = (from_file, "") if from_file else await _complete_job(cluster, known, asked, flags, name)
            await _check_before_create(session, cluster, known, job)
            stuck = _why_it_cannot_start(known, job)
            notes = (
                note,
                stuck,
                _earlier_checkpoints_note(session, job),
                _unshared_checkpoints_note(session, job, known),
            )
            for line in filter(None, notes):
                click.echo(f"note: {line}", err=True)
            if dry_run:
                print_document("yaml" if form == "table" else form, output_object_document(job))
                return 0
            assert cluster is not None
            made = await _create_job(cluster, job)
            session.choose(namespace=made.namespace)  # a file may name another one
            _announce_job(session, made, form, can_start=not stuck)
            if not watch:
                return 0
            from remuda.cli.jobs.job_follow import follow_job

            return await follow_job(session, cluster, made.name, form)

    return asyncio.run(act())


def check_train_words(flags: TrainFlags, command: Sequence[str]) -> str:
    """The name, or ""; refuses words that belong after `--` and flags that a file makes ambiguous."""
    from remuda.api.errors import Refusal

    if len(flags.words) > 1:
        name, *rest = flags.words
        if _looks_like_program(name):
            name, rest = "", list(flags.words)
        words = " ".join(rest)
        raise Refusal(
            "MisplacedCommand",
            f"`{words}` is not an option or a name.",
            f"Put `--` before the command, after all options: remuda train {f'{name} ' if name else ''}... -- {words}",
        )
    if not flags.file:
        return flags.words[0] if flags.words else ""
    given: dict[str, object] = msgspec.structs.asdict(flags)
    clash = [
        f"--{field.replace('_', '-')}"
        for field, value in given.items()
        if value not in (None, ()) and field not in ("words", "file", "workdir")
    ]
    if command:
        clash.append("-- COMMAND")
    if clash:
        raise Refusal(
            "FileAndFlags",
            f"The job is described twice: by -f and by {', '.join(clash)}.",
            "Write all of it in the file, or leave -f out.",
        )
    return flags.words[0] if flags.words else ""


def _looks_like_program(word: str) -> bool:
    """`python`, `./run.sh`, `train.py`: the command itself, not the name of a job before it."""
    return word.startswith(("python", "torchrun", "bash", "sh ", ".", "/")) or word.endswith((".py", ".sh"))


def _read_job(session: Session, flags: TrainFlags, name: str) -> TrainingJob:
    from remuda.cli.input_files import STDIN, read_named_file
    from remuda.cli.jobs.manifest import job_from_document, job_with_workdir, parse_job_file

    assert flags.file is not None
    text, source = read_named_file(flags.file)
    directory = os.getcwd() if flags.file == STDIN else os.path.dirname(os.path.abspath(flags.file))
    job = job_from_document(
        parse_job_file(text, source),
        name=name,
        namespace=session.namespace,
        explicit_namespace=session.asked_namespace is not None,
    )
    if flags.workdir:
        return job_with_workdir(job, str(flags.workdir.absolute()), override=True)
    return job_with_workdir(job, directory, override=False)


def _read_flags(session: Session, flags: TrainFlags, name: str, command: Sequence[str]) -> JobRequest:
    from remuda.cli.jobs.manifest import (
        JobRequest,
        build_job,
        job_topology_option_label,
        parse_job_budget_options,
        parse_job_env_options,
    )

    asked = JobRequest(
        command=command,
        name=name or "unnamed",
        namespace=session.namespace,
        replicas=1 if flags.replicas is None else flags.replicas,
        gpus=1 if flags.gpus is None else flags.gpus,
        spares=flags.spares or 0,
        topology=job_topology_option_label(flags.topology) if flags.topology else "",
        checkpoint=os.path.abspath(flags.checkpoint) if flags.checkpoint else "",
        hang_after=flags.hang_after or 0.0,
        total_steps=flags.total_steps or 0,
        deadline=flags.deadline or 0.0,
        ttl=flags.ttl,
        suspend=bool(flags.suspend),
        env=parse_job_env_options(flags.env, os.environ),
        budgets=parse_job_budget_options(flags.budget),
        image=flags.image or "",
        workdir=os.path.abspath(flags.workdir) if flags.workdir else ("" if flags.image else os.getcwd()),
    )
    if not flags.file:
        build_job(asked)
    return asked


async def _complete_job(
    cluster: Cluster | None, known: KnownMachines, asked: JobRequest, flags: TrainFlags, name: str
) -> tuple[TrainingJob, str]:
    """With what only the cluster can tell: a free name, and whether a rack can hold the gang. And a note to the user."""
    import random

    from remuda.cli.jobs.manifest import build_job, derive_job_name

    if not name:
        taken = await _job_names(cluster, asked.namespace)
        asked = msgspec.structs.replace(asked, name=derive_job_name(asked.command, taken, random.Random()))
    note = ""
    if flags.topology is None and cluster is not None:
        label, note = _default_topology(known, asked)
        asked = msgspec.structs.replace(asked, topology=label)
    return build_job(asked), note


async def _job_names(cluster: Cluster | None, namespace: str) -> set[str]:
    from remuda.api.training import TrainingJob

    return {j.name for j in (await cluster.list(TrainingJob, namespace)).items} if cluster is not None else set()


class KnownMachines(msgspec.Struct, frozen=True):
    """None: the API does not show them, or there is no cluster."""

    nodes: Sequence[Node] | None = None
    ledgers: Sequence[NodeDevices] | None = None


async def _read_machines(cluster: Cluster | None) -> KnownMachines:
    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node
    from remuda.cli.allowed import list_if_allowed

    if cluster is None:
        return KnownMachines()
    return KnownMachines(await list_if_allowed(cluster, Node), await list_if_allowed(cluster, NodeDevices))


def _default_topology(known: KnownMachines, asked: JobRequest) -> tuple[str, str]:
    from remuda.cli.jobs.preflight import preflight_default_topology
    from remuda.runtime.up_config import RACK_LABEL

    if known.nodes is None or known.ledgers is None:
        return "", "You may not list the cluster's nodes and devices, so no rack is asked for. --topology names one."
    return preflight_default_topology(asked.replicas, asked.spares, asked.gpus, RACK_LABEL, known.nodes, known.ledgers)


def _why_it_cannot_start(known: KnownMachines, job: TrainingJob) -> str:
    from remuda.cli.jobs.preflight import preflight_job_wait_reason

    if known.nodes is None or known.ledgers is None:
        return ""
    return preflight_job_wait_reason(job, known.nodes, known.ledgers)


async def _check_before_create(
    session: Session, cluster: Cluster | None, known: KnownMachines, job: TrainingJob
) -> None:
    from remuda.cli.jobs import preflight

    if session.is_real:
        preflight.check_job_image(job)
    if _runs_on_this_machine(session, job):
        preflight.preflight_job_workdir(job)
        preflight.preflight_job_command(job, os.environ, os.path.dirname(sys.executable))
    if _is_process_runtime(session):
        preflight.preflight_job_checkpoint(job)
    if cluster is None:
        click.echo("note: No cluster is running, so the job was checked but not its place in the cluster.", err=True)
        return
    if known.ledgers is not None:
        preflight.preflight_job_gpus(job, known.ledgers)
    else:
        words = "You may not list the cluster's devices, so whether it has such GPUs was not checked."
        click.echo(f"note: {words}", err=True)
    if job.name in await _job_names(cluster, job.namespace):
        raise preflight.job_name_taken(job)


def _earlier_checkpoints_note(session: Session, job: TrainingJob) -> str:
    from remuda.cli.jobs.preflight import preflight_finds_checkpoints

    place = Path(job.spec.checkpoint.directory or session.state.checkpoints / job.namespace / job.name)
    if not _is_process_runtime(session) or not preflight_finds_checkpoints(place):
        return ""
    return f"Found checkpoints in {place}: training continues from them. Delete them to start from step 0."


def _unshared_checkpoints_note(session: Session, job: TrainingJob, known: KnownMachines) -> str:
    """Real nodes have a disk each; those of a cluster that `remuda up` runs are one machine."""
    from remuda.api.checkpoint_volume import (
        missing_checkpoint_volume_text,
        spec_lacks_checkpoint_volume,
        uncopied_nodes_text,
    )

    if not session.is_real or not spec_lacks_checkpoint_volume(job.spec):
        return ""
    ledgers = known.ledgers or ()
    takers = sum(bool(ledger.observed.door) for ledger in ledgers)
    if ledgers and takers < len(ledgers) and not job.spec.checkpoint.path:
        return uncopied_nodes_text(takers, len(ledgers))
    return missing_checkpoint_volume_text(job.spec)


def _is_process_runtime(session: Session) -> bool:
    if session.is_real:
        return False
    config = session.state.remembered()
    return config is None or config.runtime == "process"


def _runs_on_this_machine(session: Session, job: TrainingJob) -> bool:
    """Commands without an image on an embedded cluster of real processes: they run on this machine."""
    from remuda.cli.jobs.preflight import preflight_pod_spec

    has_image = any(preflight_pod_spec(role).containers[0].image for role in job.spec.roles)
    return _is_process_runtime(session) and not has_image


async def _create_job(cluster: Cluster, job: TrainingJob) -> TrainingJob:
    from remuda.api.errors import AlreadyExists
    from remuda.api.training import TrainingJob
    from remuda.cli.jobs.preflight import job_name_taken

    try:
        return await cluster.create(TrainingJob, job)
    except AlreadyExists:  # made by somebody else since we looked
        raise job_name_taken(job) from None


def _announce_job(session: Session, job: TrainingJob, form: str, *, can_start: bool) -> None:
    if is_document_output_form(form):
        print_document(form, output_object_document(job))
        return
    from remuda.api.training import gpus_in_role_spec
    from remuda.cli.text import plural_text

    ranks = sum(r.replicas for r in job.spec.roles)
    gpus = sum(r.replicas * gpus_in_role_spec(r) for r in job.spec.roles)
    spares = f" and {plural_text(job.spec.spares, 'spare')}" if job.spec.spares else ""
    where = f", all in one {job.spec.topology.required.rpartition('/')[2]}" if job.spec.topology.required else ""
    click.echo(f"Created job {job.name}: {plural_text(ranks, 'rank')} with {plural_text(gpus, 'GPU')}{spares}{where}.")
    if job.spec.checkpoint.directory:
        click.echo(f"Checkpoints: {job.spec.checkpoint.directory}")
    commands = {
        f"job {job.name} -w": "follow it",
        f"logs {job.name} -f --rank 0": "what rank 0 prints",
        f"drill process-kill {job.name} --rank {ranks - 1}": "break it on purpose",
        f"delete {job.name}": "stop and remove it",
    }
    if not can_start:
        click.echo("It cannot start on the nodes that there are now, even if nothing else ran: see the note.")
        commands = {f"delete {job.name}": "remove it", f"job {job.name}": "why it waits"}
    print_commands("", [(session.command_line(words), what) for words, what in commands.items()])


class _NoCluster:
    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *exc: object) -> None:
        return None


def _connect_if_needed(session: Session, *, needed: bool) -> Any:
    """The cluster; nothing at all when a dry run finds none running."""
    if not needed and session.is_embedded and session.state.holder() is None:
        return _NoCluster()
    return session.connect()

"""`remuda uninstall`: take Remuda off a cluster, after saying what that means."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from remuda.cli.output import plain_table, print_screen
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.core.uninstall.uninstall_plan import UninstallStep

MOST_ALIKE = 12  # rows of one kind and part that are shown one by one


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--delete-jobs", is_flag=True, help="Delete TrainingJobs with their pods.  [default: the pods run on, ownerless]"
)
@click.option(
    "--system-namespace",
    "system",
    default="remuda-system",
    show_default=True,
    metavar="NAME",
    help="Namespace of manager and agents.",
)
@click.option("--keep-node-files", is_flag=True, help="Leave the agents' files on their nodes.")
@click.option("--image", default="", metavar="IMAGE", help="To clean nodes with.  [default: the agents' own]")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    metavar="S",
    help="For managers and agents to stop, and for nodes to be clean; each.",
)
@with_session
def uninstall(
    session: Session,
    dry_run: bool,
    yes: bool,
    delete_jobs: bool,
    system: str,
    keep_node_files: bool,
    image: str,
    timeout_s: float,
) -> int:
    """Take Remuda off a Kubernetes cluster: manager, agents, their files, every mark on nodes and pods, rights and kinds.

    Nodes that Remuda cordoned are open again afterwards; those that somebody else cordoned stay closed. Pods of TrainingJobs run
    on, and nobody recovers them any more; --delete-jobs deletes them. It can be run again after it was interrupted.
    """
    import time

    from remuda.api.errors import Refusal
    from remuda.core.uninstall.uninstall_plan import plan_uninstall, what_stays
    from remuda.runtime.uninstall import Uninstall, UninstallOptions

    if image and keep_node_files:
        raise Refusal(
            "ContradictingOptions",
            "--keep-node-files cleans no node, so --image has no use.",
            "Leave one out.",
            "image",
        )
    options = UninstallOptions(system, delete_jobs, not keep_node_files, image, timeout_s)

    async def run() -> int:
        async with session.connect() as cluster:
            work = Uninstall(cluster, options, say=click.echo, clock=time.monotonic)
            seen = await work.observe()
            steps = plan_uninstall(seen, delete_jobs=delete_jobs)
            print_screen(render_uninstall(steps))
            for sentence in what_stays(seen, delete_jobs=delete_jobs):
                click.echo(sentence)
            if dry_run:
                return 0
            if not yes and not click.confirm("Do all this?"):
                click.echo("Nothing was changed.")
                return 1
            await work.run()
            click.echo(
                "Remuda is off this cluster. Its kubelets list its resources with 0 from now on (deploy/README.md, Uninstall)."
            )
            return 0

    return asyncio.run(run())


def render_uninstall(steps: Sequence[UninstallStep]) -> RenderableType:
    """One row per object; many alike are one row."""
    table = plain_table("STEP", "KIND", "NAME", "WHAT", words=("WHAT",))
    alike = Counter((step.part, step.resource.kind, step.what) for step in steps)
    shown: set[tuple[str, str, str]] = set()
    for step in steps:
        group = (step.part, step.resource.kind, step.what)
        if alike[group] <= MOST_ALIKE:
            name = f"{step.namespace}/{step.name}" if step.namespace else step.name
            table.add_row(step.part, step.resource.kind, name, step.what)
        elif group not in shown:
            shown.add(group)
            table.add_row(step.part, step.resource.kind, f"{alike[group]} of them", step.what)
    return table

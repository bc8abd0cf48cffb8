"""`remuda manager`: scheduler and controllers for a Kubernetes cluster that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from remuda.kube.leader import Term


@click.command()
@click.option(
    "--kubeconfig", metavar="FILE", help="Of the cluster.  [default: as kubectl; in a pod, its service account]"
)
@click.option("--context", default="", metavar="NAME", help="Of the kubeconfig, instead of the current one.")
@click.option("--lease-namespace", default="kube-system", show_default=True, metavar="NAME", help="Where the lease is.")
@click.option(
    "--lease", type=click.IntRange(min=3), default=15, show_default=True, metavar="S", help="How long it lasts."
)
@click.option(
    "--agent-root",
    default="/var/lib/remuda",
    show_default=True,
    metavar="DIR",
    help="The agents' state on their machines, as they were told with --root.",
)
def manager(kubeconfig: str | None, context: str, lease_namespace: str, lease: int, agent_root: str) -> int:
    """Schedule pods whose schedulerName is `remuda` and keep training jobs running on a Kubernetes cluster.

    Any number of them may run: one leads, the others wait for its lease to run out. Ctrl-C or SIGTERM gives the lease back.
    The cluster must have our kinds (deploy/crds), and an agent on every node with devices.
    """
    import asyncio

    from remuda.core.lease import Timing
    from remuda.runtime.leading import ManagerConfig, serve

    timing = Timing(lease, lease * 2 / 3, lease * 2 / 15)
    config = ManagerConfig(kubeconfig, context, lease_namespace, timing, agent_root)
    asyncio.run(serve(config, _Voice(lease_namespace)))
    click.echo("Stopped; the lease is free.")
    return 0


class _Voice:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def waiting(self) -> None:
        click.echo(f"Waiting for the lease {self._namespace}/remuda-manager.")

    def leading(self, term: Term) -> None:
        click.echo(f"Leading, term {term.token}.")

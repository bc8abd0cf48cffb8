"""`remuda manager`: scheduler and controllers for a Kubernetes cluster that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from remuda.cli.cluster.mass_silence_options import mass_silence_options

if TYPE_CHECKING:
    from remuda.kube.runtime.leader import LeaderTerm


@click.command()
@click.option(
    "--kubeconfig", metavar="FILE", help="Which cluster.  [default: as kubectl; in a pod, its service account]"
)
@click.option("--context", default="", metavar="NAME", help="A context of the kubeconfig other than the current one.")
@click.option(
    "--lease-namespace", default="kube-system", show_default=True, metavar="NAME", help="Namespace of the lease."
)
@click.option(
    "--lease", type=click.IntRange(min=3), default=15, show_default=True, metavar="S", help="Seconds the lease lasts."
)
@click.option(
    "--agent-root",
    default="/var/lib/remuda",
    show_default=True,
    metavar="DIR",
    help="The agents' state directory on their nodes, as given to them with --root.",
)
@click.option(
    "--link-address",
    default="",
    metavar="HOST",
    help="Address where agents reach this manager.  [default: $POD_IP; with neither there is no stream]",
)
@click.option(
    "--link-port",
    type=click.IntRange(0, 65535),
    default=9443,
    show_default=True,
    metavar="N",
    help="Port of that address.",
)
@click.option(
    "--link-cert", default="", metavar="FILE", help="Certificate for `remuda-link`.  [default: made at start]"
)
@click.option("--link-key", default="", metavar="FILE", help="Its key.")
@click.option("--link-ca", default="", metavar="FILE", help="The CA that signed it.")
@click.option(
    "--agent-account",
    default="",
    metavar="NAMESPACE/NAME",
    help="Service account of the agents.  [default: remuda-agent in the lease's namespace]",
)
@click.option(
    "--allow-hook-kind",
    "allow_hook_kinds",
    multiple=True,
    metavar="APIVERSION/KIND[@NAMESPACE]",
    help="A kind of object that hooks of policies and roll-outs may make: dc.example/v1/Repair.  [default: none]",
)
@click.option(
    "--nodes-on-demand",
    is_flag=True,
    help="An autoscaler adds nodes for waiting pods: make the pods of gangs that are larger than the cluster, too.",
)
@mass_silence_options
def manager(
    kubeconfig: str | None,
    context: str,
    lease_namespace: str,
    lease: int,
    agent_root: str,
    link_address: str,
    link_port: int,
    link_cert: str,
    link_key: str,
    link_ca: str,
    agent_account: str,
    allow_hook_kinds: tuple[str, ...],
    nodes_on_demand: bool,
    mass_silence: str | None,
    mass_silence_hold: float | None,
    mass_silence_window: float | None,
) -> int:
    """Run on a Kubernetes cluster: schedule pods whose schedulerName is `remuda`, and keep training jobs running.

    You may run several: one leads, the others take over when its lease expires. Ctrl-C or SIGTERM releases the lease.
    The cluster needs our kinds (deploy/crds) and an agent on every node with devices.
    """
    import asyncio
    import logging
    import os

    import msgspec

    from remuda.cli.program_logs import show_program_logs
    from remuda.core.health.mass_silence import MassSilenceRule, check_mass_silence_rule
    from remuda.core.remedies.hook_kinds import parse_hook_kinds
    from remuda.kube.runtime.leader_lease import LeaseTiming
    from remuda.runtime import link_endpoint
    from remuda.runtime.manager_process import ManagerConfig, serve_manager

    hook_kinds = parse_hook_kinds(allow_hook_kinds)
    timing = LeaseTiming(lease, lease * 2 / 3, lease * 2 / 15)
    link = None
    if host := link_address or os.environ.get("POD_IP", ""):
        account = (agent_account or f"{lease_namespace}/remuda-agent").replace("/", ":")
        link = link_endpoint.LinkConfig(
            host,
            link_port,
            namespace=lease_namespace,
            cert=link_cert,
            key=link_key,
            ca=link_ca,
            account=f"system:serviceaccount:{account}",
        )
        link_endpoint.check_manager_link_config(link)
    show_program_logs(logging.INFO)
    given = {"window_s": mass_silence_window, "hold_s": mass_silence_hold, "then": mass_silence}
    rule = msgspec.structs.replace(MassSilenceRule(), **{k: v for k, v in given.items() if v is not None})
    check_mass_silence_rule(rule)
    config = ManagerConfig(
        kubeconfig, context, lease_namespace, timing, agent_root, link, hook_kinds, nodes_on_demand, rule
    )
    asyncio.run(serve_manager(config, _ManagerVoice(lease_namespace)))
    click.echo("Stopped. The lease is released.")
    return 0


class _ManagerVoice:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def waiting(self) -> None:
        click.echo(f"Waiting for the lease {self._namespace}/remuda-manager.")

    def leading(self, term: LeaderTerm) -> None:
        click.echo(f"Leading, term {term.token}.")

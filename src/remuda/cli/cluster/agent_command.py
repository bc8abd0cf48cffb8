"""`remuda agent`: the agent of one real node, beside its kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from remuda.agent.agent import Agent


@click.command()
@click.option(
    "--node", metavar="NAME", help="Of this node in the cluster.  [default: $NODE_NAME, else the host's name]"
)
@click.option(
    "--kubeconfig", metavar="FILE", help="Of the cluster.  [default: as kubectl; in a pod, its service account]"
)
@click.option("--context", default="", metavar="NAME", help="Of the kubeconfig, instead of the current one.")
@click.option(
    "--backend",
    default="auto",
    show_default=True,
    metavar="auto|nvml|amd|sysfs|fake",
    help="Where devices and their signals come from.",
)
@click.option("--model", default="", metavar="NAME", help="Machine model of the node, or a model file.")
@click.option(
    "--mode",
    default="dp",
    show_default=True,
    metavar="dp|health-only",
    help="Hand devices out, or leave that to a vendor's plugin.",
)
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, metavar="DIR", help="The kubelet's directory."
)
@click.option(
    "--root", "state", default="/var/lib/remuda", show_default=True, metavar="DIR", help="The agent's own directory."
)
@click.option(
    "--mig", multiple=True, metavar="DEVICE=PROFILE[*N],...", help="Cut a device, or `all`, while idle: all=1g.10gb*7."
)
@click.option("--replicas", multiple=True, metavar="RESOURCE=N", help="Share each device in time: nvidia.com/gpu=4.")
@click.option("--dcgm-port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Read a dcgm-exporter there.")
@click.option(
    "--fence-after",
    type=click.FloatRange(min=0),
    default=25.0,
    show_default=True,
    metavar="S",
    help="Without the API for that long, stop the ranks that run here; 0 = never.",
)
@click.option(
    "--report-timeout",
    "report_timeouts",
    multiple=True,
    metavar="[DEVICE=]S",
    help="A device nothing is heard of for that long is Unknown; 0 = never.  [default: 30]",
)
@click.option(
    "--cdi-dir", default="", metavar="DIR", help="Name devices to the runtime by CDI specs kept there: /var/run/cdi."
)
@click.option(
    "--pod-logs",
    default="/var/log/pods",
    show_default=True,
    metavar="DIR",
    help="The kubelet's podLogsDir, for failure rules about a rank's log.",
)
@click.option(
    "--allow-hook",
    "allow_hooks",
    multiple=True,
    metavar="PATTERN",
    help="A command that the manager may have run here: '/opt/site/recycle ...'.  [default: none]",
)
@click.option(
    "--confirm-count", is_flag=True, help="After a boot hand nothing out until the node has shown all its devices once."
)
@click.option(
    "--reboot-command",
    default="",
    metavar="COMMAND",
    help="How to reboot this node: 'systemctl reboot'.  [default: none]",
)
@click.option(
    "--link-token",
    default="/var/run/secrets/remuda.dev/link/token",
    show_default=True,
    metavar="FILE",
    help="Token for the stream to the manager; without that file there is none.",
)
@click.option(
    "--link-namespace", default="kube-system", show_default=True, metavar="NAME", help="Where the manager's lease is."
)
def agent(
    node: str | None,
    kubeconfig: str | None,
    context: str,
    backend: str,
    model: str,
    mode: str,
    kubelet_dir: str,
    state: str,
    mig: tuple[str, ...],
    replicas: tuple[str, ...],
    dcgm_port: int,
    fence_after: float,
    report_timeouts: tuple[str, ...],
    cdi_dir: str,
    pod_logs: str,
    allow_hooks: tuple[str, ...],
    reboot_command: str,
    confirm_count: bool,
    link_token: str,
    link_namespace: str,
) -> int:
    """Serve this node's devices to its kubelet, watch their health, and keep its launchers at their barrier.

    Run one on every node with devices, as root. SIGTERM ends it and nothing else: devices stay with their pods, ranks run on,
    and the next agent over the same directory takes over.
    """
    import asyncio
    import logging

    import structlog

    from remuda.agent.allocation.mig_slicing import parse_layouts
    from remuda.cli.errors import Failed
    from remuda.runtime.node_agent import (
        NodeAgentConfig,
        own_node_name,
        parse_replicas,
        parse_report_timeouts,
        serve_node_agent,
    )
    from remuda.runtime.node_name_check import NodeNotFound

    config = NodeAgentConfig(
        node=node or own_node_name(),
        state=state,
        kubelet_dir=kubelet_dir,
        backend=backend,
        model=model,
        mode=mode,
        mig=parse_layouts(mig),
        replicas=parse_replicas(replicas),
        kubeconfig=kubeconfig,
        context=context,
        dcgm_port=dcgm_port,
        fence_s=fence_after,
        report_timeouts=parse_report_timeouts(report_timeouts),
        cdi_dir=cdi_dir,
        pod_logs=pod_logs,
        allow_hooks=allow_hooks,
        reboot_command=reboot_command,
        confirm_count=confirm_count,
        link_namespace=link_namespace,
        link_token=link_token,
    )
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        asyncio.run(serve_node_agent(config, _announce_agent))
    except NodeNotFound as error:
        raise Failed(error.reason, error.message, error.fix) from None
    click.echo("Stopped; what runs on this node runs on.")
    return 0


def _announce_agent(agent: Agent) -> None:
    counts = {resource: len(agent.inventory.of(resource)) for resource in agent.inventory.resources()}
    shown = ", ".join(f"{number} {resource}" for resource, number in counts.items()) or "no devices"
    click.echo(f"The agent of {agent.config.node} is up: {shown} ({agent.config.mode}).")

"""`remuda agent`: the agent of one real node, beside its kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from remuda.agent.agent import Agent


@click.command()
@click.option(
    "--node", metavar="NAME", help="Name of this node in the cluster.  [default: $NODE_NAME, else the host name]"
)
@click.option(
    "--kubeconfig", metavar="FILE", help="Which cluster.  [default: as kubectl; in a pod, its service account]"
)
@click.option("--context", default="", metavar="NAME", help="A context of the kubeconfig other than the current one.")
@click.option(
    "--backend",
    default="auto",
    show_default=True,
    metavar="auto|nvml|amd|sysfs|fake",
    help="Where to read devices and their health.",
)
@click.option("--model", default="", metavar="NAME", help="Machine model of the node, or a model file.")
@click.option(
    "--mode",
    default="dp",
    show_default=True,
    metavar="dp|health-only",
    help="dp: offer devices to the kubelet. health-only: leave that to a vendor's plugin.",
)
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, metavar="DIR", help="The kubelet's directory."
)
@click.option(
    "--root", "state", default="/var/lib/remuda", show_default=True, metavar="DIR", help="The agent's own directory."
)
@click.option(
    "--mig",
    multiple=True,
    metavar="DEVICE=PROFILE[*N],...",
    help="Cut a device into MIG slices while it is idle: all=1g.10gb*7.",
)
@click.option(
    "--replicas", multiple=True, metavar="RESOURCE=N", help="Share each device between N pods: nvidia.com/gpu=4."
)
@click.option(
    "--dcgm-port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Also read health from a dcgm-exporter on this port.",
)
@click.option(
    "--fence-after",
    type=click.FloatRange(min=0),
    default=25.0,
    show_default=True,
    metavar="S",
    help="Stop the ranks on this node when nobody (API, manager, peers) has vouched for it for this long; 0 = never.",
)
@click.option(
    "--report-timeout",
    "report_timeouts",
    multiple=True,
    metavar="[DEVICE=]S",
    help="A device that is silent for this long is Unknown; 0 = never.  [default: 30]",
)
@click.option(
    "--cdi-dir", default="", metavar="DIR", help="Pass devices to containers as CDI specs written there: /var/run/cdi."
)
@click.option(
    "--pod-logs",
    default="/var/log/pods",
    show_default=True,
    metavar="DIR",
    help="The kubelet's podLogsDir; failure rules that match log lines need it.",
)
@click.option(
    "--allow-hook",
    "allow_hooks",
    multiple=True,
    metavar="PATTERN",
    help="A command that remedies may run on this node: '/opt/site/recycle ...'.  [default: none]",
)
@click.option(
    "--confirm-count",
    is_flag=True,
    help="After a boot, offer nothing until all devices of the node have been seen once.",
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
    help="Token for the stream to the manager; without this file there is no stream.",
)
@click.option(
    "--link-namespace",
    default="kube-system",
    show_default=True,
    metavar="NAME",
    help="Namespace of the manager's lease.",
)
@click.option(
    "--peer-host",
    default="",
    envvar="POD_IP",
    metavar="ADDRESS",
    help="IP address of this node for its peers; without one it has no peers.  [default: $POD_IP]",
)
@click.option(
    "--peer-port",
    type=click.IntRange(0, 65535),
    default=9444,
    show_default=True,
    metavar="N",
    help="Port on which peers are answered; 0 = no peers.",
)
@click.option(
    "--uninstall",
    is_flag=True,
    help="Run nothing: remove the agent's files from this node (docs: deploy/README.md).",
)
@click.option(
    "--keep-launcher", is_flag=True, help="With --uninstall: pods of jobs run on here, and need the launcher's file."
)
@click.option(
    "--copy-space",
    default="",
    metavar="BYTES",
    help="Space for copies of other nodes' checkpoints: 500Gi; 0 = take none.  [default: a fifth of the file system]",
)
@click.option(
    "--copy-max", default="256Gi", show_default=True, metavar="BYTES", help="The largest checkpoint that is copied."
)
@click.option(
    "--copy-bandwidth",
    default="512Mi",
    show_default=True,
    metavar="BYTES",
    help="For copies of checkpoints, a second, each way; 0 = no limit.",
)
@click.option(
    "--checkpoint-ttl",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Checkpoints and copies of a job outlive it for so long; without end with --shared-checkpoints.",
)
@click.option(
    "--shared-checkpoints",
    is_flag=True,
    help="All nodes have one and the same ROOT/checkpoints: nothing is copied.",
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
    peer_host: str,
    peer_port: int,
    uninstall: bool,
    keep_launcher: bool,
    copy_space: str,
    copy_max: str,
    copy_bandwidth: str,
    checkpoint_ttl: float,
    shared_checkpoints: bool,
) -> int:
    """Run on a node: offer its devices to the kubelet, watch their health, and stop and start the ranks of jobs.

    Run one on every node with devices, as root. SIGTERM ends the agent and nothing else: pods keep their devices, ranks keep
    running, and the next agent with the same directory takes over.
    """
    import asyncio
    import logging

    from remuda.agent.allocation.mig_slicing import parse_mig_slicing
    from remuda.agent.copies.copy_store import CopyLimits
    from remuda.api.errors import Refusal
    from remuda.cli.errors import Failed
    from remuda.cli.program_logs import show_program_logs
    from remuda.runtime.copies_endpoint import CopyConfig, parse_copies_endpoint_bytes
    from remuda.runtime.node_agent import (
        AgentProcessConfig,
        own_node_name,
        parse_node_agent_replicas,
        parse_node_agent_report_timeouts,
        serve_node_agent,
    )
    from remuda.runtime.node_name_check import NodeNotFound
    from remuda.runtime.peer_endpoint import PeerConfig

    if keep_launcher and not uninstall:
        raise Refusal(
            "ContradictingOptions",
            "--keep-launcher is about --uninstall.",
            "Add --uninstall, or leave it out.",
            "keep-launcher",
        )
    if uninstall:
        from remuda.runtime.agent_files import remove_agent_files

        for line in remove_agent_files(state, kubelet_dir, cdi_dir, keep_launcher=keep_launcher):
            click.echo(line)
        return 0
    config = AgentProcessConfig(
        node=node or own_node_name(),
        state=state,
        kubelet_dir=kubelet_dir,
        backend=backend,
        model=model,
        mode=mode,
        mig=parse_mig_slicing(mig),
        replicas=parse_node_agent_replicas(replicas),
        kubeconfig=kubeconfig,
        context=context,
        dcgm_port=dcgm_port,
        fence_s=fence_after,
        report_timeouts=parse_node_agent_report_timeouts(report_timeouts),
        cdi_dir=cdi_dir,
        pod_logs=pod_logs,
        allow_hooks=allow_hooks,
        reboot_command=reboot_command,
        confirm_count=confirm_count,
        link_namespace=link_namespace,
        link_token=link_token,
        peers=PeerConfig(peer_host, peer_port),
        copies=CopyConfig(
            CopyLimits(
                parse_copies_endpoint_bytes(copy_space, "copy-space") if copy_space else None,
                parse_copies_endpoint_bytes(copy_max, "copy-max"),
            ),
            parse_copies_endpoint_bytes(copy_bandwidth, "copy-bandwidth"),
            checkpoint_ttl * 3600.0,
            shared_checkpoints,
        ),
    )
    show_program_logs(logging.INFO)
    try:
        asyncio.run(serve_node_agent(config, _print_agent_up))
    except NodeNotFound as error:
        raise Failed(error.reason, error.message, error.fix) from None
    click.echo("Stopped. Pods on this node keep running.")
    return 0


def _print_agent_up(agent: Agent) -> None:
    counts = {resource: len(agent.inventory.of(resource)) for resource in agent.inventory.resources()}
    shown = ", ".join(f"{number} {resource}" for resource, number in counts.items()) or "no devices"
    click.echo(f"The agent of {agent.config.node} is up: {shown} ({agent.config.mode}).")

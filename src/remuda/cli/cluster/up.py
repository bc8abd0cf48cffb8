"""`remuda up`, `remuda down` and `remuda demo`: the life of the embedded cluster.

`up --detach` starts `up` once more, in a session of its own, and holds one end of a pipe: the child writes a byte when the
cluster is ready, and the pipe closes when it is not going to be. No polling, no guessing from log lines.
"""

from __future__ import annotations

import logging
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.cluster.mass_silence_options import mass_silence_options
from remuda.cli.durations import DURATION
from remuda.cli.input_files import train_example_with_input_file
from remuda.cli.output import print_commands
from remuda.cli.program_logs import show_program_logs
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.runtime.state_dir import StateDir
    from remuda.runtime.up_config import ClusterConfig

_READY_FD = "REMUDA_READY_FD"
_TAIL_LINES = 12


@click.command()
@click.option("--nodes", type=int, metavar="N", help="Number of nodes.  [default: 16]")
@click.option("--racks", type=int, metavar="N", help="Number of racks.  [default: 2; 1 for one node]")
@click.option("--model", metavar="NAME", help="Machine model of the nodes, or a model file.  [default: dgx-h100]")
@click.option(
    "--runtime",
    metavar="process|simulated",
    help="Run pods as real processes, or only simulate them.  [default: process]",
)
@click.option(
    "--mig",
    multiple=True,
    metavar="DEVICE=PROFILE[*N],...",
    help="Cut a device of every node into MIG slices: gpu-0=3g.40gb*2. `all` means every device.",
)
@click.option(
    "--replicas", multiple=True, metavar="RESOURCE=N", help="Share each device between N pods: nvidia.com/gpu=2."
)
@click.option(
    "--allow-hook",
    "allow_hooks",
    multiple=True,
    metavar="PATTERN",
    help="A command that remedies may run here: '/opt/site/recycle ...'.  [default: none]",
)
@click.option(
    "--allow-hook-kind",
    "allow_hook_kinds",
    multiple=True,
    metavar="APIVERSION/KIND[@NAMESPACE]",
    help="A kind of object that hooks may make: dc.example/v1/Repair.  [default: none]",
)
@click.option(
    "--lease", type=DURATION, metavar="TIME", help="A node that is silent for this long counts as lost.  [default: 8]"
)
@mass_silence_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Port of the API; 0 picks a free one.  [default: as last time]",
)
@click.option("--bind", default="127.0.0.1", show_default=True, metavar="IP", help="Address the API listens on.")
@click.option(
    "--recover-to",
    type=int,
    metavar="REV",
    help="Continue from this revision of a damaged state; later changes are lost.",
)
@click.option(
    "--split", is_flag=True, help="Run server, manager and nodes as separate processes; each is restarted when it dies."
)
@click.option(
    "--groups",
    type=int,
    default=2,
    show_default=True,
    metavar="N",
    help="With --split: number of processes that run nodes.",
)
@click.option(
    "--checkpoints-per-node",
    is_flag=True,
    default=None,
    help="With --split: nodes share no directory of checkpoints; their agents copy them to each other.",
)
@click.option("-d", "--detach", is_flag=True, help="Run in the background; its log is <state>/up.log.")
@click.option(
    "--wait",
    type=DURATION,
    default=60.0,
    show_default="60s",
    metavar="TIME",
    help="With -d: how long to wait until it is ready.",
)
@with_session
def up(
    session: Session,
    detach: bool,
    wait: float,
    port: int | None,
    bind: str,
    recover_to: int | None,
    split: bool,
    groups: int,
    **asked: Any,
) -> int:
    """Start a cluster on this machine: an API server, the controllers, and nodes with fake GPUs. Pods run as processes.

    Start it again on the same state directory and it continues where it stopped. Ctrl-C or `remuda down` stops it.
    """
    from remuda.api.errors import Refusal
    from remuda.runtime.up_command import check_same_config, run_up
    from remuda.runtime.up_config import check_cluster_config

    session.need_embedded("up")
    state = session.state
    config = check_cluster_config(merge_up_command_line_options(state.remembered(), asked))
    if config.checkpoints_per_node and not split:
        raise Refusal(
            "ContradictingOptions", "Nodes of one process share a directory.", "Add --split to --checkpoints-per-node."
        )
    if detach:
        refuse_second_command_line_up(state)
        check_same_config(config, state.remembered())
        listening = [f"--bind={bind}", *([] if port is None else [f"--port={port}"])]
        recovering = [] if recover_to is None else [f"--recover-to={recover_to}"]
        splitting = ["--split", f"--groups={groups}"] if split else []
        return _start_detached(state, config, wait, [*listening, *recovering, *splitting])
    if _READY_FD in os.environ:
        show_program_logs(logging.INFO, state.up_log)  # which may hold more than a screen
    else:
        show_program_logs(logging.WARNING)
    if split:
        from remuda.runtime.split_supervisor import SplitConfig, run_split

        parts = SplitConfig(groups, port, bind, recover_to)
        return run_split(config, state, parts, on_ready=lambda: _print_and_report_ready(state, config))
    return run_up(
        config,
        state,
        on_ready=lambda: _print_and_report_ready(state, config),
        port=port,
        bind=bind,
        recover_to=recover_to,
    )


def merge_up_command_line_options(remembered: ClusterConfig | None, asked: dict[str, Any]) -> ClusterConfig:
    """Options given win over what the directory was made with, that over the defaults. Contradictions are for `agree`."""
    import msgspec

    from remuda.agent.allocation.mig_slicing import parse_mig_slicing
    from remuda.runtime.node_agent import parse_node_agent_replicas
    from remuda.runtime.up_config import ClusterConfig

    names = {
        "lease": "lease_seconds",
        "mass_silence_hold": "mass_silence_hold_seconds",
        "mass_silence_window": "mass_silence_window_seconds",
    }
    given = {names.get(name, name): value for name, value in asked.items() if value is not None}
    for name, read in (("mig", parse_mig_slicing), ("replicas", parse_node_agent_replicas)):
        if texts := given.pop(name, ()):
            given[name] = read(texts)
    base = remembered or ClusterConfig()
    given.setdefault("racks", max(1, min(base.racks, given.get("nodes", base.nodes))))
    return msgspec.structs.replace(base, **given)


def refuse_second_command_line_up(state: StateDir) -> None:
    if state.holder() is not None:
        raise state.in_use()


def describe_cluster(config: ClusterConfig) -> str:
    from remuda.cli.text import plural_text
    from remuda.runtime.device_sharing import cluster_config_mig_words, cluster_config_replica_words
    from remuda.runtime.machine_model_files import resolve_machine_model_file

    devices = resolve_machine_model_file(config.model).devices
    total = plural_text(config.nodes * len(devices), "GPU")
    shared = [f"cut {', '.join(cluster_config_mig_words(config.mig))}"] if config.mig else []
    shared += [f"shared {', '.join(cluster_config_replica_words(config.replicas))}"] if config.replicas else []
    total = "; ".join([total, *shared])
    return (
        f"{plural_text(config.nodes, 'node')} x {len(devices)} {devices[0].type} in {plural_text(config.racks, 'rack')}: {total} "
        f"({'real processes' if config.runtime == 'process' else 'simulated pods'})"
    )


def up_hint_gpus_per_node(config: ClusterConfig) -> int:
    """How many uncut NVIDIA GPUs each node has."""
    from remuda.agent.allocation.mig_slicing import ALL
    from remuda.api.names import RESOURCE_GPU
    from remuda.runtime.machine_model_files import resolve_machine_model_file

    model = resolve_machine_model_file(config.model)
    whole = [d for d in model.devices if not config.mig.get(d.id, config.mig.get(ALL))]
    return len(whole) if model.resource == RESOURCE_GPU else 0


def _print_and_report_ready(state: StateDir, config: ClusterConfig) -> None:
    """In the foreground process: say so on the screen, and to a parent that waits."""
    descriptor = os.environ.pop(_READY_FD, "")
    _print_ready(state, config, os.getpid(), detached=bool(descriptor))
    sys.stdout.flush()
    if descriptor:
        os.write(int(descriptor), b"1")
        os.close(int(descriptor))


def _print_ready(state: StateDir, config: ClusterConfig, pid: int, *, detached: bool) -> None:
    from remuda.runtime.state_dir import StateDir as Directory
    from remuda.runtime.state_dir import default_state_path

    click.echo(f"The cluster is ready: {describe_cluster(config)}.")
    click.echo(f"State: {state.path}   pid: {pid}")
    down = "remuda down"
    if state.path != Directory(default_state_path()).path:
        down = f"remuda --state {shlex.quote(str(state.path))} down"
        where = "Before other commands" if detached else "In other terminals, first"
        click.echo(f"{where} run:  export REMUDA_STATE={shlex.quote(str(state.path))}")
    replicas, gpus = max(1, min(4, config.nodes - 1)), up_hint_gpus_per_node(config)
    spares = " --spares 1" if config.nodes > 1 else ""
    print_commands(
        "\nTry:",
        [
            *(
                [
                    (
                        f"remuda {train_example_with_input_file(f'hello --replicas {replicas} --gpus {gpus}{spares}')}",
                        "start a job",
                    ),
                    ("remuda job hello -w", "follow it"),
                    ("remuda drill device-fail hello --rank 0", "break one of its GPUs"),
                ]
                if gpus
                else []
            ),
            ("remuda devices", "every GPU and who uses it"),
            ("remuda incidents", "what failed and what was done"),
            (f"remuda topology {config.node_names()[0]}", "how the GPUs of a node are connected"),
            (f"export KUBECONFIG={shlex.quote(str(state.kubeconfig))}", "makes kubectl work too"),
        ],
    )
    click.echo(
        f"\nStop it with `{down}`." if detached else f"\nStop it with Ctrl-C, or with `{down}` in another terminal."
    )


def _start_detached(state: StateDir, config: ClusterConfig, wait_s: float, listening: list[str]) -> int:
    from remuda.cli.errors import Failed
    from remuda.runtime.state_dir import open_state_dir_log

    state.prepare()
    began_at = state.up_log.stat().st_size if state.up_log.exists() else 0
    reader, writer = os.pipe()
    try:
        with open_state_dir_log(state.up_log) as log:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "remuda.cli",
                    "--state",
                    str(state.path),
                    "up",
                    *_up_options(config),
                    *listening,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, _READY_FD: str(writer)},
                pass_fds=(writer,),
                start_new_session=True,
            )
    finally:
        os.close(writer)
    try:
        told, _, _ = select.select([reader], [], [], wait_s)
        is_ready = bool(told) and os.read(reader, 1) == b"1"
    finally:
        os.close(reader)
    if is_ready:
        _print_ready(state, config, child.pid, detached=True)
        return 0
    if told:
        code = child.wait()
        reason, message, fix = (
            "ClusterNotStarted",
            f"The cluster ended with code {code} before it was ready.",
            "Its last log lines are above.",
        )
    else:
        reason, message = "NotReadyYet", f"The cluster (pid {child.pid}) was not ready within {wait_s:g} s."
        fix = "It is still starting: look again with `remuda status`, or stop it with `remuda down`."
    tail = up_log_tail(state.up_log, began_at, _TAIL_LINES)
    click.echo(f"--- {state.up_log}", err=True)
    click.echo(tail or "(nothing was written)", err=True)
    click.echo("---", err=True)
    raise Failed(reason, message, fix)


def _up_options(config: ClusterConfig) -> list[str]:
    from remuda.runtime.device_sharing import cluster_config_mig_words, cluster_config_replica_words

    return [
        f"--nodes={config.nodes}",
        f"--racks={config.racks}",
        f"--model={config.model}",
        f"--runtime={config.runtime}",
        f"--lease={config.lease_seconds:g}",
        f"--mass-silence={config.mass_silence}",
        f"--mass-silence-hold={config.mass_silence_hold_seconds:g}",
        f"--mass-silence-window={config.mass_silence_window_seconds:g}",
        *(["--checkpoints-per-node"] if config.checkpoints_per_node else []),
        *(f"--mig={layout}" for layout in cluster_config_mig_words(config.mig)),
        *(f"--replicas={shares}" for shares in cluster_config_replica_words(config.replicas)),
        *(f"--allow-hook={pattern}" for pattern in config.allow_hooks),
        *(f"--allow-hook-kind={kind}" for kind in config.allow_hook_kinds),
    ]


def up_log_tail(path: Path, start: int, count: int) -> str:
    """The end of what was written after byte `start`."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(start if start <= size else 0, size - 64 * 1024))  # it may have been begun anew
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return ""


@click.command()
@click.option(
    "--wait",
    type=DURATION,
    default=30.0,
    show_default="30s",
    metavar="TIME",
    help="How long to wait until it has stopped.",
)
@with_session
def down(session: Session, wait: float) -> None:
    """Stop the cluster and all processes of its pods. Jobs are kept and continue at the next `remuda up`."""
    from remuda.cli.errors import Failed
    from remuda.cli.text import duration_text

    session.need_embedded("down")
    state = session.state
    pid = state.holder()
    if pid is None:
        click.echo(f"No cluster is running in {state.path}.")
        return
    began = time.monotonic()
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        click.echo(f"The cluster in {state.path} has just stopped.")
        return
    try:
        click.echo(f"Stopping the cluster (pid {pid})", nl=False)
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        while not select.select([watched], [], [], 1.0)[0]:
            click.echo(".", nl=False)
            if time.monotonic() - began > wait:
                click.echo()
                raise Failed(
                    "StillRunning",
                    f"The cluster has not stopped within {wait:g} s.",
                    f"Wait longer (--wait), or force it: kill -9 {pid}",
                )
    finally:
        os.close(watched)
    click.echo(f" done after {duration_text(time.monotonic() - began)}. All pods have ended; the state is kept.")


@click.command()
@click.option(
    "--submit",
    type=click.Choice(["api", "kubectl"]),
    default="api",
    show_default=True,
    help="Send the job from this program, or with `kubectl apply -f`.",
)
@with_session
def demo(session: Session, submit: str) -> int:
    """Start a cluster and a training job, break it in four ways, and check after each that it recovered as promised.

    Takes about a minute and leaves nothing behind. Exit code 1 when a promise was broken.
    """
    session.need_embedded("demo")
    from rich.console import Console

    from remuda.cli.cluster.kubectl import find_kubectl
    from remuda.cli.demo.demo_run import run_demo
    from remuda.cli.output import PIPE_WIDTH

    # In a pipe nothing is broken over lines.
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    return run_demo(console, find_kubectl() if submit == "kubectl" else "")

"""`remuda`: the root command, its table of subcommands, and the one place where errors become words and exit codes.

A subcommand's module is imported only when it is called, and the help text of the root comes from the table alone:
`remuda --help` and shell completion must not wait for libraries they do not use.

Exit codes: 0 done, 1 it failed, 2 refused (bad input), 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from remuda.cli.session import CommandGroup, Session

# name -> (module:attribute, one line). In the order of the help text.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Cluster": {
        "up": ("remuda.cli.cluster.up:up", "Start a cluster on this machine: fake GPUs, real processes."),
        "down": ("remuda.cli.cluster.up:down", "Stop it. Its state stays and `up` goes on from there."),
        "status": ("remuda.cli.cluster.status:status", "Whether it runs, where its API is, what is in it."),
        "nodes": ("remuda.cli.cluster.nodes:nodes", "Nodes: rack, readiness, GPUs free and bad."),
        "devices": ("remuda.cli.devices.device_list:devices", "The ledger: state, reason and holder of every device."),
        "idle": ("remuda.cli.devices.idle:idle", "Devices held and not used: by whom, since when, at what cost."),
        "topology": (
            "remuda.cli.devices.topology:topology",
            "How a node's devices are joined, and the domains it sits in.",
        ),
        "explain": (
            "remuda.cli.devices.explain_pod:explain",
            "Why a pod does not run: the six steps to it, and the stuck one.",
        ),
    },
    "Real clusters": {
        "manager": (
            "remuda.cli.cluster.manager_command:manager",
            "Scheduler and controllers for a Kubernetes cluster.",
        ),
        "agent": ("remuda.cli.cluster.agent_command:agent", "Devices of one node: served to its kubelet, and watched."),
    },
    "Training": {
        "train": ("remuda.cli.jobs.train:train", "Start a training job, from flags or from a file."),
        "jobs": ("remuda.cli.jobs.job_commands:jobs", "All jobs, one line each."),
        "job": ("remuda.cli.jobs.job_commands:job", "One job: members, spares, recoveries. -w follows it live."),
        "suspend": ("remuda.cli.jobs.job_commands:suspend", "Have a job save, stop and give everything back."),
        "resume": ("remuda.cli.jobs.job_commands:resume", "Let a suspended job go on from its checkpoint."),
        "logs": ("remuda.cli.jobs.logs:logs", "What the ranks wrote, also in earlier attempts."),
        "delete": ("remuda.cli.jobs.job_commands:delete", "Delete a job and its pods."),
    },
    "Faults": {
        "incidents": (
            "remuda.cli.faults.incidents:incidents",
            "Failures, open and of late: what, whom, remedy, GPU-hours.",
        ),
        "incident": ("remuda.cli.faults.incidents:incident", "One failure as a story, from first signal to cure."),
        "policies": ("remuda.cli.faults.policies:policies", "Remedy policies: mode, limits in use, breaker."),
        "policy": ("remuda.cli.faults.policies:policy", "One policy in full, and --what-if: a dry run."),
        "apply": ("remuda.cli.faults.policies:apply", "Remedy policies from a file."),
        "pause": ("remuda.cli.faults.remedy_control:pause", "Begin no new remedy on devices, for a while."),
        "unpause": ("remuda.cli.faults.remedy_control:unpause", "Let remedies be begun again."),
        "approve": ("remuda.cli.faults.remedy_control:approve", "Say yes to a remedy that waits for it."),
        "deny": ("remuda.cli.faults.remedy_control:deny", "Say no to it."),
        "probe": ("remuda.cli.devices.device_operations:probe", "Have a node's agent test one device."),
        "quarantine": ("remuda.cli.devices.device_operations:quarantine", "Keep a device out of use."),
        "release": (
            "remuda.cli.devices.device_operations:release",
            "Lift a quarantine, on your word or after a probe.",
        ),
        "drill": ("remuda.cli.faults.drill:drill", "Break something on purpose and watch the recovery."),
        "demo": ("remuda.cli.cluster.up:demo", "A cluster, a job and four failures it survives, in a minute."),
    },
    "Other": {
        "kubectl": (
            "remuda.cli.cluster.kubectl:kubectl",
            "kubectl with this cluster's kubeconfig: remuda kubectl -- get pods",
        ),
        "backup": ("remuda.cli.cluster.backup:backup", "The cluster's state as one file, while it runs or not."),
        "restore": ("remuda.cli.cluster.backup:restore", "A state directory from such a file."),
        "get": ("remuda.cli.cluster.get:get", "Any API object as it is stored."),
        "version": ("remuda.cli.cluster.get:version", "The version of this program."),
    },
}

# Commands that one process of ours starts another with. Not in the help.
HIDDEN: dict[str, str] = {"part": "remuda.cli.cluster.part:part"}

_EPILOG = """\b
--state and -n may also follow the command.
Shell completion, in ~/.bashrc (likewise zsh_source, fish_source):
  eval "$(_REMUDA_COMPLETE=bash_source remuda)"
"""


class RootCommand(CommandGroup):
    """Finds subcommands in SECTIONS; imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        places = (section[cmd_name][0] for section in SECTIONS.values() if cmd_name in section)
        place = next(places, HIDDEN.get(cmd_name))
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.list_commands(ctx))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in section.items()])


@click.group(
    cls=RootCommand, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--state", type=click.Path(path_type=Path), metavar="DIR", help="The cluster's state directory.")
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of jobs; `default` when not given.")
@click.pass_context
def cli(ctx: click.Context, state: Path | None, namespace: str | None) -> None:
    """Remuda keeps training jobs running on GPUs that fail."""
    session = ctx.ensure_object(Session)
    session.choose(state, namespace)


def main(argv: Sequence[str] | None = None, session: Session | None = None) -> int:
    """Runs one command line and returns its exit code. Nothing but REMUDA_DEBUG=1 shows a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a glyph gets a question mark
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its library writes to stderr about every stream that ends
    arguments = list(sys.argv[1:] if argv is None else argv)
    extra: dict[str, Any] = {} if session is None else {"obj": session}
    try:
        result = cli.main(args=arguments, prog_name="remuda", standalone_mode=False, **extra)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (say `head`) has had enough. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as end:  # click's shell completion ends that way
        return end.code if isinstance(end.code, int) else 0
    except BaseException as error:
        if os.environ.get("REMUDA_DEBUG"):
            raise
        from remuda.cli.errors import explain_error

        code, line = explain_error(error)
        if line:
            click.echo(line, err=True)
        return code
    return result if isinstance(result, int) else 0

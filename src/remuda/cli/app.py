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

# name -> (module:attribute, one line). In the order of the help text: first what everybody needs every day, and ten of it.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Every day": {
        "up": ("cluster.up:up", "Start a cluster on this machine (fake GPUs, real processes)."),
        "down": ("cluster.up:down", "Stop it. Its state is kept for the next `up`."),
        "status": ("cluster.status:status", "Is the cluster running, and what is in it?"),
        "train": ("jobs.train:train", "Start a training job."),
        "jobs": ("jobs.job_commands:jobs", "List all jobs."),
        "job": ("jobs.job_commands:job", "Show one job. -w follows it live."),
        "logs": ("jobs.logs:logs", "Show what a job printed, earlier attempts included."),
        "delete": ("jobs.job_commands:delete", "Stop a job and remove it."),
        "devices": ("devices.device_list:devices", "List GPUs: state, and who uses them."),
        "incidents": ("faults.incidents:incidents", "List failures and what was done about them."),
    },
    "More for jobs": {
        "suspend": ("jobs.job_commands:suspend", "Save a checkpoint, stop, free the GPUs."),
        "resume": ("jobs.job_commands:resume", "Continue a suspended job from its checkpoint."),
        "explain": ("devices.explain_pod:explain", "Say why a pod does not start."),
        "demo": ("cluster.up:demo", "Watch a job survive four failures, in about a minute."),
    },
    "Faults": {
        "incident": ("faults.incidents:incident", "Show one failure from first signal to cure."),
        "drill": ("faults.drill:drill", "Break something on purpose and watch the recovery."),
        "probe": ("devices.device_operations:probe", "Test one device now."),
        "quarantine": ("devices.device_operations:quarantine", "Take a device out of use."),
        "release": ("devices.device_operations:release", "Put a quarantined device back into use."),
        "policies": ("faults.policies:policies", "List remedy policies: what may be done to devices."),
        "policy": ("faults.policies:policy", "Show one policy. --what-if is a dry run."),
        "apply": ("faults.policies:apply", "Create or change remedy policies from a file."),
        "pause": ("faults.remedy_control:pause", "Start no new remedies for a while."),
        "unpause": ("faults.remedy_control:unpause", "Allow new remedies again."),
        "approve": ("faults.remedy_control:approve", "Allow a remedy that waits for approval."),
        "give-up": ("faults.give_up:give_up", "Say that silent nodes are gone for good."),
        "deny": ("faults.remedy_control:deny", "Reject a remedy that waits for approval."),
    },
    "Cluster": {
        "nodes": ("cluster.nodes:nodes", "List nodes: rack, ready or not, GPUs free and bad."),
        "topology": ("devices.topology:topology", "Show how a node's devices are connected."),
        "idle": ("devices.idle:idle", "List devices that are held but not used, and the cost."),
        "get": ("cluster.get:get", "Print any API object as it is stored."),
        "kubectl": ("cluster.kubectl:kubectl", "Run kubectl on this cluster: remuda kubectl -- get pods"),
        "backup": ("cluster.backup:backup", "Write the cluster's state to one file."),
        "restore": ("cluster.backup:restore", "Make a state directory from a backup."),
        "version": ("cluster.get:version", "Print the version of this program."),
    },
    "On a real Kubernetes cluster": {
        "manager": ("cluster.manager_command:manager", "Run the scheduler and the controllers."),
        "agent": ("cluster.agent_command:agent", "Run on each node: offer its devices and watch them."),
        "uninstall": ("cluster.uninstall:uninstall", "Take Remuda off the cluster; jobs may run on."),
    },
}

# What people type who come from other tools. They get the name of the right command, not the nearest spelling.
OTHER_NAMES = {
    **dict.fromkeys(("submit", "deploy", "run", "create", "launch"), "train"),
    **dict.fromkeys(("cancel", "rm", "remove", "terminate"), "delete"),
    **dict.fromkeys(("ps", "ls", "list", "queue"), "jobs"),
    **dict.fromkeys(("describe", "show", "watch", "top"), "job"),
    **dict.fromkeys(("start", "init"), "up"),
    **dict.fromkeys(("halt", "shutdown"), "down"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("gpus", "gpu", "nvidia-smi"), "devices"),
    **dict.fromkeys(("hold", "preempt"), "suspend"),
    **dict.fromkeys(("continue", "restart"), "resume"),
    **dict.fromkeys(("failures", "faults", "errors"), "incidents"),
    **dict.fromkeys(("cordon", "ban"), "quarantine"),
    **dict.fromkeys(("uncordon", "unquarantine"), "release"),
}
# A word with two meanings names both ways.
TWO_MEANINGS = {
    "stop": "`remuda down` stops the cluster, `remuda delete JOB` a job, `remuda suspend JOB` stops a job and keeps it.",
    "kill": "`remuda delete JOB` ends a job; `remuda drill process-kill JOB --rank 0` kills a process to test recovery.",
}

# Commands that one process of ours starts another with. Not in the help.
HIDDEN: dict[str, str] = {"part": "cluster.part:part"}

_EPILOG = """\b
First steps: remuda up -d, then remuda train --gpus 1 -- python train.py
(in the directory of train.py; from elsewhere, add --workdir DIR).
`remuda COMMAND --help` explains a command. The options above may also follow it.
Which cluster: --kubeconfig or --context; else --state; else the one that `remuda up` runs;
else $KUBECONFIG. `remuda status` says which it is.
Shell completion, in ~/.bashrc (or zsh_source, fish_source):
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
        command: click.Command = getattr(importlib.import_module(f"remuda.cli.{module}"), attribute)
        return command

    def hint_for(self, name: str) -> str:
        if name in TWO_MEANINGS:
            return TWO_MEANINGS[name]
        return f"Use `remuda {OTHER_NAMES[name]}`." if name in OTHER_NAMES else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self.list_commands(ctx))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in section.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from remuda import __version__

        click.echo(f"remuda {__version__}")
        ctx.exit()


@click.group(
    cls=RootCommand, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--state", type=click.Path(path_type=Path), metavar="DIR", help="State directory of the cluster.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A real cluster, instead.  [default: $KUBECONFIG]",
)
@click.option("--context", metavar="NAME", help="A context of the kubeconfig other than the current one.")
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the jobs.  [default: default]")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version of this program.",
)
@click.pass_context
def cli(
    ctx: click.Context, state: Path | None, kubeconfig: Path | None, context: str | None, namespace: str | None
) -> None:
    """Remuda keeps training jobs running on GPUs that fail."""
    session = ctx.ensure_object(Session)
    session.choose(state=state, namespace=namespace, kubeconfig=kubeconfig, context=context)


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

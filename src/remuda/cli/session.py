"""What a command is run with: which cluster and namespace, the clock, and the way there.

Which cluster is meant, by one rule; the first that holds:

  1. --kubeconfig FILE or --context NAME: that cluster
  2. --state DIR, or $REMUDA_STATE: the embedded cluster of that directory
  3. the embedded cluster of this user's own directory, while it runs
  4. $KUBECONFIG: that cluster
  5. the embedded cluster of this user's own directory, which does not run

A file that kubectl reads without being told (~/.kube/config) is never taken: nobody said so, and it may be anybody's.

Made once per command line and passed through click's context; tests give it another way to a cluster and another clock.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from remuda.kube.client.access import Access
    from remuda.kube.cluster import Cluster
    from remuda.runtime.state_dir import StateDir

Connect = Callable[["StateDir"], contextlib.AbstractAsyncContextManager["Cluster"]]

F = TypeVar("F", bound=Callable[..., Any])


class Session:
    def __init__(
        self,
        state: Path | None = None,
        *,
        connect: Connect | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = state
        self._kubeconfig: Path | None = None
        self._context = ""
        self._access: Access | None = None
        self._is_chosen = False
        self.asked_namespace: str | None = None
        self._connect = connect
        self.clock = clock
        self._warned: set[str] = set()

    def choose(
        self,
        *,
        state: Path | None = None,
        namespace: str | None = None,
        kubeconfig: Path | None = None,
        context: str | None = None,
    ) -> None:
        """What the command line says; said twice, the later one (after the command) wins."""
        self._path = state or self._path
        self._kubeconfig = kubeconfig or self._kubeconfig
        self._context = context or self._context
        self.asked_namespace = namespace or self.asked_namespace

    @property
    def access(self) -> Access | None:
        """The cluster of a kubeconfig, when one is meant."""
        if not self._is_chosen:
            self._access, self._is_chosen = self._chosen_access(), True
        return self._access

    def _chosen_access(self) -> Access | None:
        named = self._kubeconfig is not None or bool(self._context)
        if named and self._path is not None:
            from remuda.api.errors import Refusal

            raise Refusal(
                "TwoClusters",
                "--state means the cluster of a directory, --kubeconfig and --context mean another one.",
                "Leave one of them out.",
            )
        if not named:
            has_state = self._path is not None or "REMUDA_STATE" in os.environ
            if has_state or not os.environ.get("KUBECONFIG") or self.state.holder() is not None:
                return None
        from remuda.kube.client.kubeconfig import load_kubeconfig

        return load_kubeconfig(self._kubeconfig, context=self._context)

    @property
    def chosen_by(self) -> str:
        """Why it is that cluster, in a few words."""
        if self._kubeconfig is not None:
            return f"--kubeconfig {self._kubeconfig}"
        if self.access is None:
            return f"state directory {self.state.path}"
        return f"--context {self._context}" if self._context else "$KUBECONFIG"

    @property
    def names_file(self) -> bool:
        """Whether --kubeconfig was given."""
        return self._kubeconfig is not None

    @property
    def is_embedded(self) -> bool:
        """The cluster is the one of the state directory, so its lock says whether it runs."""
        return self._connect is None and self.access is None

    @property
    def is_real(self) -> bool:
        """The cluster is that of a kubeconfig."""
        return self._connect is None and self.access is not None

    def need_embedded(self, command: str) -> None:
        """For commands that are about the state directory alone."""
        if self._kubeconfig is not None or self._context:
            from remuda.api.errors import Refusal

            raise Refusal(
                "EmbeddedOnly",
                f"`remuda {command}` is for the cluster that `remuda up` runs on this machine.",
                "Leave out --kubeconfig and --context.",
            )

    @property
    def namespace(self) -> str:
        if self.asked_namespace:
            return self.asked_namespace
        return (self.access.namespace if self.is_real and self.access is not None else "") or "default"

    @property
    def state(self) -> StateDir:
        from remuda.runtime.state_dir import StateDir, default_state_path

        return StateDir(self._path or default_state_path())

    def command_line(self, words: str) -> str:
        """`remuda <words>` as it works when pasted: with the options that lead to the same cluster and namespace."""
        is_default = not self.asked_namespace or self.asked_namespace == "default"
        words = words if is_default else f"-n {self.asked_namespace} {words}"
        if self.is_embedded:
            return self.state.command_line(words)
        options = [f"--kubeconfig {shlex.quote(str(self._kubeconfig))}"] if self._kubeconfig is not None else []
        options += [f"--context {shlex.quote(self._context)}"] if self._context else []
        return " ".join(["remuda", *options, words])

    def connect(self) -> contextlib.AbstractAsyncContextManager[Cluster]:
        if self._connect is not None:
            return self._connect(self.state)
        from remuda.cli.program_logs import show_plain_program_logs

        show_plain_program_logs()
        from remuda.runtime.cluster_client import cluster_client_for_access, cluster_client_for_state_dir

        if self.access is not None:
            return cluster_client_for_access(self.access, self._warn)
        return cluster_client_for_state_dir(self.state, self._warn)

    def _warn(self, text: str) -> None:
        """What the API warns of, as kubectl prints it: on stderr, each once for a command."""
        from remuda.cli.safe_text import printable_line

        if text not in self._warned:
            self._warned.add(text)
            click.echo(f"Warning: {printable_line(text)}", err=True)


class CommandGroup(click.Group):
    """A group that answers an unknown command in our words."""

    def hint_for(self, name: str) -> str:
        """What to use instead of a word that other tools know, or ""."""
        return ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from remuda.cli.errors import unknown_command

            raise unknown_command(args[0], ctx.command_path, self.list_commands(ctx), self.hint_for(args[0]))
        return super().resolve_command(ctx, args)


def _choose_from_option(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    ctx.ensure_object(Session).choose(**{str(param.name): value})


def with_session(command: F) -> F:
    """Passes the Session first and accepts --state, -n, --kubeconfig and --context after the command as well as before it."""
    path = click.Path(path_type=Path)
    for names, type_ in (
        (("-n", "--namespace"), str),
        (("--state",), path),
        (("--kubeconfig",), path),
        (("--context",), str),
    ):
        command = click.option(*names, expose_value=False, hidden=True, callback=_choose_from_option, type=type_)(
            command
        )
    return cast(F, click.make_pass_decorator(Session, ensure=True)(command))

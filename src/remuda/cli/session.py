"""What a command is run with: which state directory and namespace, the clock, and the way to the cluster.

Made once per command line and passed through click's context; tests give it another way to a cluster and another clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
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
        self.asked_namespace: str | None = None
        self._connect = connect
        self.clock = clock
        self._warned: set[str] = set()

    def choose(self, state: Path | None, namespace: str | None) -> None:
        """What the command line says; said twice, the later one (after the command) wins."""
        self._path = state or self._path
        self.asked_namespace = namespace or self.asked_namespace

    @property
    def is_embedded(self) -> bool:
        """The cluster is the one of the state directory, so its lock says whether it runs."""
        return self._connect is None

    @property
    def namespace(self) -> str:
        return self.asked_namespace or "default"

    @property
    def state(self) -> StateDir:
        from remuda.runtime.state_dir import StateDir, default_state_path

        return StateDir(self._path or default_state_path())

    def command_line(self, words: str) -> str:
        """`remuda <words>` as it works when pasted: with the options that lead to the same cluster and namespace."""
        words = f"-n {self.namespace} {words}" if self.namespace != "default" else words
        return self.state.command_line(words) if self.is_embedded else f"remuda {words}"

    def connect(self) -> contextlib.AbstractAsyncContextManager[Cluster]:
        if self._connect is not None:
            return self._connect(self.state)
        from remuda.cli.program_logs import show_plain_logs

        show_plain_logs()
        from remuda.runtime.cluster_client import connect_to_state

        return connect_to_state(self.state, self._warn)

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
    session = ctx.ensure_object(Session)
    if param.name == "state":
        session.choose(value, None)
    else:
        session.choose(None, value)


def with_session(command: F) -> F:
    """Passes the Session first and accepts --state and -n after the command as well as before it."""
    for option in (
        click.option("-n", "--namespace", expose_value=False, hidden=True, callback=_choose_from_option),
        click.option(
            "--state", expose_value=False, hidden=True, callback=_choose_from_option, type=click.Path(path_type=Path)
        ),
    ):
        command = option(command)
    return cast(F, click.make_pass_decorator(Session, ensure=True)(command))

"""`remuda part`: one process of a split cluster. Started by `remuda up --split`, not by people."""

from __future__ import annotations

import logging
import os

import click

from remuda.cli.program_logs import show_program_logs
from remuda.cli.session import Session, with_session


@click.command(hidden=True)
@click.argument("name")
@click.option("--groups", type=int, required=True)
@click.option("--bind", default="127.0.0.1")
@click.option("--port", type=click.IntRange(0, 65535))
@click.option("--recover-to", type=int)
@with_session
def part(session: Session, name: str, groups: int, bind: str, port: int | None, recover_to: int | None) -> int:
    """Run one part of the split cluster in the state directory."""
    from remuda.api.errors import Refusal
    from remuda.runtime.split_parts import PartConfig, run_part
    from remuda.runtime.split_supervisor import READY_FD, die_with_split_supervisor, split_part_names

    die_with_split_supervisor()
    state = session.state
    show_program_logs(logging.INFO, state.part_log(name) if READY_FD in os.environ else None)
    config = state.remembered()
    if config is None or name not in split_part_names(groups):
        raise Refusal(
            "NoSuchPart", f"{state.path} has no part `{name}`.", "Start a split cluster with `remuda up --split`."
        )

    def ready() -> None:
        if descriptor := os.environ.pop(READY_FD, ""):
            os.write(int(descriptor), b"1")
            os.close(int(descriptor))

    return run_part(PartConfig(name, groups, port, bind, recover_to), config, state, ready)

"""`--mass-silence`, `--mass-silence-hold` and `--mass-silence-window`: what `up` and `manager` do when most nodes fall silent at
once (`core.health.mass_silence`). Each is None when it was not given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from remuda.cli.durations import DURATION

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--mass-silence",
        metavar="wait|replace",
        help="When most nodes of a zone fall silent at once: wait for them, or replace after the hold.  [default: wait]",
    ),
    click.option(
        "--mass-silence-hold", type=DURATION, metavar="TIME", help="How long nobody is replaced for it.  [default: 10m]"
    ),
    click.option(
        "--mass-silence-window",
        type=DURATION,
        metavar="TIME",
        help="Nodes that fall silent within this time of each other count as at once.  [default: 30]",
    ),
)


def mass_silence_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command

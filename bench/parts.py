"""A benchmark in parts: its command line, and the repetitions of each part, each in a process of its own.

--repeat N    repetitions of each part            --only PART    one part alone
--quick       in small and once                   --json FILE    every sample
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from bench.bars import Bar, report
from bench.onerun import run_apart, scratch

Run = TypeVar("Run")


class Parts:
    """What was asked on the command line, carried out part by part."""

    def __init__(self, console: Console, repeat: int, only: str | None, *, is_quick: bool) -> None:
        self.is_quick = is_quick
        self._console = console
        self._repeat = repeat
        self._only = only

    def say(self, words: str) -> None:
        self._console.print(words, highlight=False, soft_wrap=True)

    def is_asked(self, part: str) -> bool:
        return not self._only or self._only == part

    def run(
        self, part: str, module: str, ask: object, result: type[Run], said: Callable[[Run], str], timeout_s: float
    ) -> list[Run]:
        """The part's repetitions, none when it is not asked for. `said`: one of them in a line."""
        found: list[Run] = []
        for number in range(self._repeat if self.is_asked(part) else 0):
            with scratch() as root:
                found.append(run_apart(module, ask, result, root, timeout_s))
            self.say(f"{part} {number + 1}/{self._repeat}: {said(found[-1])}; load {os.getloadavg()[0]:.2f}")
        return found


def main(
    name: str, description: str, parts: Sequence[str], repeat: int, measure: Callable[[Parts], Sequence[Bar]]
) -> int:
    """The exit code. `repeat`: as often when nothing is said."""
    parser = argparse.ArgumentParser(prog=name, description=description.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=repeat, help=f"repetitions of each part (default {repeat})")
    parser.add_argument("--only", choices=parts, help="one part alone")
    parser.add_argument("--quick", action="store_true", help="in small and once: does it work at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    options = parser.parse_args()
    times = 1 if options.quick else options.repeat
    return report(lambda console: measure(Parts(console, times, options.only, is_quick=options.quick)), options.json)

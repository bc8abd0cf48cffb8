"""How results leave: `-o table|wide` for people, `-o json|yaml` for programs.

json and yaml print exactly one document: an API object as stored; several API objects as a Kubernetes `List`; what is
derived (the ledger, a version) as an object described in the command's help. Tables go through rich: in a terminal they
fit its width, into a pipe they are never cut.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from remuda.cli.safe_text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from remuda.api.meta import KObject

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("table", "wide", "json", "yaml")
PIPE_WIDTH = 500


def output_option(formats: Sequence[str] = FORMATS) -> Callable[[F], F]:
    return click.option(
        "-o", "--output", "form", type=click.Choice(formats), default="table", show_default=True, help="Output format."
    )


def make_console() -> Console:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Careful(Console):
        """Everything that is shown passes here, whoever wrote it."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    width = None if sys.stdout.isatty() else max(PIPE_WIDTH, shutil.get_terminal_size((0, 0)).columns)
    return Careful(file=sys.stdout, width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def print_screen(renderable: RenderableType) -> None:
    """Prints for people. Rich pads lines to the column's width; in a pipe that would be invisible noise."""
    console = make_console()
    if sys.stdout.isatty():
        console.print(renderable)
        return
    with console.capture() as capture:
        console.print(renderable)
    click.echo("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))


def plain_table(*columns: str, right: Iterable[str] = (), tight: bool = False, words: Iterable[str] = ()) -> Table:
    """kubectl's look: headings, no lines. `tight` halves the gaps, for tables with many columns in narrow terminals. Where it
    is narrower still, the columns of `words` are broken over lines, and the others keep all they say."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1 if tight else 2, 0, 0), header_style="bold")
    for column in columns:
        is_broken = column in words
        table.add_column(
            column,
            no_wrap=not is_broken,
            justify="right" if column in right else "left",
            overflow="fold" if is_broken else "ellipsis",
        )
    return table


def columns_too_many(cells: Mapping[str, Sequence[str]], order: Sequence[str], width: int, gap: int) -> list[str]:
    """Which columns a terminal has no room for when nothing is folded or cut; those of `order` go, the first one first."""
    from rich.cells import cell_len

    widths = {name: max(map(cell_len, (name, *texts))) + gap for name, texts in cells.items()}
    gone: list[str] = []
    for name in order:
        if sum(widths.values()) - gap <= width:
            break
        if widths.pop(name, None) is not None:
            gone.append(name)
    return gone


def columns_left_out_note(names: Sequence[str]) -> str:
    return f"Columns left out: {', '.join(names)}. Widen the terminal, or -o wide."


def is_document_output_form(form: str) -> bool:
    return form in ("json", "yaml")


def print_document(form: str, body: Any) -> None:
    click.echo(render_document(form, body))


def render_document(form: str, body: Any) -> str:
    if form == "yaml":
        import yaml

        return yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
    return json.dumps(body, indent=2, ensure_ascii=False)


def output_object_document(obj: KObject) -> dict[str, Any]:
    """The object as the API writes it: times as text, empty fields left out."""
    from remuda.api.codec import decode_json_with_codec, encode

    body: dict[str, Any] = decode_json_with_codec(encode(obj))
    return body


def output_list_document(objects: Iterable[KObject]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": [output_object_document(o) for o in objects]}


def print_commands(title: str, commands: Iterable[tuple[str, str]]) -> None:
    """What to try next: commands as they can be pasted, with a few words each. A long one does not push away the words of all."""
    entries = list(commands)
    width = max((len(command) for command, _ in entries if len(command) <= 60), default=0)
    click.echo(title)
    for command, words in entries:
        click.echo(f"  {command.ljust(width)}  {words}".rstrip())

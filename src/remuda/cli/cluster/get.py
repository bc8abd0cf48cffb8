"""`remuda get KIND [NAME]`: API objects as they are; `remuda version`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from remuda.cli.output import (
    is_document_output_form,
    output_list_document,
    output_object_document,
    output_option,
    plain_table,
    print_document,
    print_screen,
)
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.meta import KObject

_FRIENDLY = {"job": "trainingjobs", "jobs": "trainingjobs", "devices": "nodedevices"}


def find_kind_for_get_command(text: str) -> type[KObject]:
    """A kind by plural, singular or short name."""
    from remuda.api.errors import Refusal
    from remuda.api.kinds import KINDS
    from remuda.cli.lookup import nearest_name_hint

    names: dict[str, type[KObject]] = {}
    for kind in KINDS:
        resource = kind.resource
        for name in (resource.plural, resource.kind.lower(), *resource.short):
            names[name] = kind
    asked = _FRIENDLY.get(text.lower(), text.lower())
    if asked not in names:
        plurals = sorted(k.resource.plural for k in KINDS)
        raise Refusal("UnknownKind", f"`{text}` is not a kind Remuda serves.", nearest_name_hint(asked, plurals, ""))
    return names[asked]


@click.command()
@click.argument("kind")
@click.argument("name", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="Objects of every namespace.")
@output_option()
@with_session
def get(session: Session, kind: str, name: str | None, all_namespaces: bool, form: str) -> None:
    """Print API objects as they are stored: pods, nodes, nodedevices, trainingjobs, drills, leases, namespaces.

    -o json prints the object, or a List of them.
    """
    from remuda.cli.text import age_text

    cls = find_kind_for_get_command(kind)
    namespace = "" if all_namespaces or not cls.resource.namespaced else session.namespace

    async def look() -> list[KObject]:
        async with session.connect() as cluster:
            if name:
                return [await cluster.get(cls, name, namespace)]
            return list((await cluster.list(cls, namespace)).items)

    found = asyncio.run(look())
    if is_document_output_form(form):
        print_document(form, output_object_document(found[0]) if name else output_list_document(found))
        return
    if not found:
        click.echo(f"No {cls.resource.plural} in {namespace or 'the cluster'}.")
        return
    table = plain_table("NAMESPACE", "NAME", "AGE")
    for obj in sorted(found, key=lambda o: (o.namespace, o.name)):
        table.add_row(obj.namespace or "-", obj.name, age_text(obj.metadata.creation_timestamp, session.clock()))
    print_screen(table)


@click.command()
@output_option(formats=("table", "json", "yaml"))
@with_session
def version(session: Session, form: str) -> None:
    """Print the version. -o json prints {"version", "python"}."""
    import platform

    from remuda import __version__

    if is_document_output_form(form):
        print_document(form, {"version": __version__, "python": platform.python_version()})
    else:
        click.echo(f"remuda {__version__}")

"""`remuda incidents`: failures, one line each or counted; `remuda incident NAME`: one of them from first signal to cure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.durations import parse_duration_option
from remuda.cli.output import (
    columns_left_out_note,
    is_document_output_form,
    make_console,
    output_list_document,
    output_object_document,
    output_option,
    print_document,
    print_screen,
)
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.incidents import Incident
    from remuda.kube.cluster import Cluster

RECENT_S = 86_400.0  # closed ones stay in the usual list for a day


def choose_incidents(
    incidents: Sequence[Incident],
    now: float,
    *,
    which: str = "recent",
    node: str = "",
    job: str = "",
    since_s: float | None = None,
) -> list[Incident]:
    """Newest first. `which`: open | recent (open, or closed within a day) | all."""
    from remuda.core.incidents.summary import incident_began_at

    found = [
        i
        for i in incidents
        if (
            which == "all"
            or i.is_open
            or (which == "recent" and since_s is not None)
            or _is_recent_incident(i, which, now)
        )
        and (not node or _is_incident_on_node(i, node))
        and (not job or _is_incident_about_job(i, job))
        and (since_s is None or now - incident_began_at(i) <= since_s)
    ]
    return sorted(found, key=lambda i: (-incident_began_at(i), i.name))


def fold_parts_in_incident_table(incidents: Sequence[Incident]) -> list[Incident]:
    """Without parts of another in the list: that one tells of them, and says how many. Those that ask an operator stay."""
    from remuda.api.incidents import RemedyOutcome

    named = {i.name for i in incidents}

    def is_told_by_another(incident: Incident) -> bool:
        is_asking = any(r.outcome is RemedyOutcome.WAITING for r in incident.status.remedies)
        return incident.status.part_of in named and not is_asking

    return [i for i in incidents if not is_told_by_another(i)]


def _is_recent_incident(incident: Incident, which: str, now: float) -> bool:
    from remuda.api.meta import to_seconds

    closed = incident.status.closed_at
    return which == "recent" and closed is not None and now - to_seconds(closed) <= RECENT_S


def _is_incident_on_node(incident: Incident, node: str) -> bool:
    return incident.spec.subject.node == node or any(a.node == node for a in incident.status.affected)


def _is_incident_about_job(incident: Incident, job: str) -> bool:
    """`job`: namespace/name or a name; Kind/name of owners that are not ours works too."""
    subject = incident.spec.subject
    names = {subject.gang, f"{subject.namespace}/{subject.gang}"}
    for hit in incident.status.affected:
        names |= {hit.gang, f"{hit.pod.partition('/')[0]}/{hit.gang}", hit.gang.partition("/")[2]}
    return job in names - {"", "/"}


@click.command()
@click.option("--all", "every", is_flag=True, help="Also list closed ones, however old.")
@click.option("--open", "only_open", is_flag=True, help="List open ones only.")
@click.option("--node", metavar="NAME", default="", help="Only failures on this node, its devices or its pods.")
@click.option("--job", metavar="NAME", default="", help="Only failures that hit this job.")
@click.option("--since", metavar="TIME", default="", help="Only failures that began within this time: 30m, 24h, 7d.")
@click.option("--summary", is_flag=True, help="Print counts, GPU-hours and times by cause.")
@output_option()
@with_session
def incidents(
    session: Session, every: bool, only_open: bool, node: str, job: str, since: str, summary: bool, form: str
) -> None:
    """List failures, newest first: the open ones, and those closed within a day. What is part of a larger failure is listed
    under that one.

    -o json prints a List of Incidents; with --summary {"causes": [{cause, count, open, lostGpuHours, deviceHoursOut,
    curedSeconds, betweenSeconds}]}, the last one being the total.
    """
    import msgspec

    from remuda.api.incidents import Incident
    from remuda.cli.faults.incident_screen import incident_columns_left_out, render_incident_summary, render_incidents
    from remuda.core.incidents.summary import summarise_incidents

    span = parse_duration_option(since) if since else None

    async def look() -> list[Incident]:
        async with session.connect() as cluster:
            return (await cluster.list(Incident)).items

    now = session.clock()
    which = "open" if only_open else "all" if every or summary else "recent"
    found = choose_incidents(asyncio.run(look()), now, which=which, node=node, job=job, since_s=span)
    if summary:
        rows = summarise_incidents(found, now)
        if is_document_output_form(form):
            print_document(form, {"causes": [msgspec.to_builtins(row) for row in rows]})
        else:
            print_screen(render_incident_summary(rows))
        return
    if is_document_output_form(form):
        print_document(form, output_list_document(found))
    elif not found:
        click.echo("No incidents are open." if only_open else "No incidents. --all lists old ones.")
    else:
        shown = found if every or node or job else fold_parts_in_incident_table(found)
        width, is_wide = make_console().width, form == "wide"
        print_screen(render_incidents(shown, now, width, wide=is_wide))
        if left_out := incident_columns_left_out(width, wide=is_wide):
            click.echo(columns_left_out_note(left_out))
        if len(shown) < len(found):
            click.echo(f"{len(found) - len(shown)} more are parts of these; --all or --node NAME lists them.")


@click.command()
@click.argument("name")
@click.option("--dismiss", metavar="WHY", help="Close the incident now; WHY is kept with it.")
@output_option(formats=("table", "json", "yaml"))
@with_session
def incident(session: Session, name: str, dismiss: str | None, form: str) -> None:
    """Show one incident from start to end: first signal, verdict, pods hit, remedies with price and outcome, cure.

    The beginning of its name is enough. -o json prints the Incident as it is stored.
    """
    from remuda.api.errors import Refusal
    from remuda.cli.faults.incident_screen import render_incident

    if dismiss is not None and not dismiss.strip():
        raise Refusal("ReasonMissing", "Dismissing an incident needs a reason.", 'Give it: --dismiss "why".')

    async def look() -> Incident:
        async with session.connect() as cluster:
            found = await find_incident(cluster, name)
            return await _dismiss_incident(cluster, found, dismiss.strip()) if dismiss is not None else found

    found = asyncio.run(look())
    if is_document_output_form(form):
        print_document(form, output_object_document(found))
    elif dismiss is not None:
        click.echo(f"{found.name} is dismissed and will be closed.")
    else:
        plain = not make_console().encoding.lower().startswith("utf")
        print_screen(render_incident(found, session.clock(), plain=plain))


async def find_incident(cluster: Cluster, name: str) -> Incident:
    from remuda.api.errors import NotFound, Refusal
    from remuda.api.incidents import Incident
    from remuda.cli.lookup import nearest_name_hint

    try:
        return await cluster.get(Incident, name)
    except NotFound:
        names = sorted(i.name for i in (await cluster.list(Incident)).items)
        starting = [n for n in names if n.startswith(name)]
        if len(starting) == 1:
            return await cluster.get(Incident, starting[0])
        if starting:
            which = nearest_name_hint("", starting, "")
            raise Refusal("AmbiguousName", f"{len(starting)} incidents begin with `{name}`.", which) from None
        fix = nearest_name_hint(name, names, "There are none.")
        raise Refusal("IncidentNotFound", f"There is no incident `{name}`.", fix) from None


async def _dismiss_incident(cluster: Cluster, found: Incident, why: str) -> Incident:
    from remuda.api.errors import Refusal
    from remuda.api.incidents import Incident
    from remuda.kube.cluster import Preconditions

    if not found.is_open:
        text = f"{found.name} is already closed: {found.status.outcome}."
        raise Refusal("IncidentClosed", text, "Nothing to do.")
    patch: dict[str, Any] = {"spec": {"dismiss": why}}
    return await cluster.patch(Incident, found.name, patch, when=Preconditions(uid=found.uid))

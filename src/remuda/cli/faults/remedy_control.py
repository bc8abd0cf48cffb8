"""`remuda pause`, `unpause`, `approve`, `deny`: what operators say to remedies. Each is a field of an object, nothing more."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING

import click

from remuda.cli.durations import parse_duration_option
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.incidents import Incident
    from remuda.api.remedies import RemedyPolicy
    from remuda.kube.cluster import Cluster


@click.command()
@click.option("--policy", "name", metavar="NAME", help="Only this RemedyPolicy.  [default: all]")
@click.option(
    "--for",
    "duration",
    metavar="TIME",
    help="End the pause after this long: 1h, 30m.  [default: until `remuda unpause`]",
)
@click.option("--why", default="", metavar="TEXT", help="The reason; shown in `remuda policies`.")
@with_session
def pause(session: Session, name: str | None, duration: str | None, why: str) -> None:
    """Start no new remedies on devices and nodes. Those that already run are finished; jobs still recover from failures."""
    from remuda.api.codec import to_wire
    from remuda.api.meta import to_time
    from remuda.api.remedies import Pause

    now = session.clock()
    until = to_time(now + parse_duration_option(duration)) if duration else None
    body = to_wire(Pause(by=getpass.getuser(), message=why, since=to_time(now), until=until))

    async def run() -> list[str]:
        async with session.connect() as cluster:
            names = await _policies_meant(cluster, name, create=True)
            for policy in names:
                await _patch_pause(cluster, policy, None)  # what an earlier pause said and this one does not
                await _patch_pause(cluster, policy, body)
            return names

    names = asyncio.run(run())
    ends = f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until else ""
    click.echo(f"Paused{ends}: {', '.join(names)}")
    click.echo(f"End the pause: {session.command_line('unpause' + (f' --policy {name}' if name else ''))}")


@click.command()
@click.option("--policy", "name", metavar="NAME", help="Only this RemedyPolicy.  [default: all]")
@with_session
def unpause(session: Session, name: str | None) -> None:
    """Allow new remedies again."""

    async def run() -> list[str]:
        async with session.connect() as cluster:
            names = await _policies_meant(cluster, name, create=False)
            paused = [p.name for p in await _list_policies(cluster) if p.name in names and p.spec.pause is not None]
            for policy in paused:
                await _patch_pause(cluster, policy, None)
            return paused

    names = asyncio.run(run())
    click.echo(f"No longer paused: {', '.join(names)}" if names else "Nothing was paused.")


@click.command()
@click.argument("incident")
@click.argument("remedy", required=False)
@with_session
def approve(session: Session, incident: str, remedy: str | None) -> None:
    """Allow a remedy that waits for approval (in policies with mode Approve).

    Without REMEDY: the one that waits. If all remedies of an incident have been tried, this asks for another probe; a device
    that passes it, and its soak (a time without new faults), is put back into use.
    """
    key, found = asyncio.run(_write_approval(session, incident, remedy, granted=True))
    click.echo(f"Approved: {key} of {found.name}. {approval_effect(found, key)}")


@click.command()
@click.argument("incident")
@click.argument("remedy", required=False)
@with_session
def deny(session: Session, incident: str, remedy: str | None) -> None:
    """Reject a remedy that waits for approval. The next one of the ladder is asked for; this one is not asked for again."""
    key, found = asyncio.run(_write_approval(session, incident, remedy, granted=False))
    click.echo(f"Denied: {key} of {found.name}")


async def _write_approval(session: Session, name: str, remedy: str | None, *, granted: bool) -> tuple[str, Incident]:
    """The key of the remedy and its incident as it was when this was said."""
    from remuda.api.codec import to_wire
    from remuda.api.incidents import Approval, Incident
    from remuda.api.meta import to_time
    from remuda.cli.faults.incidents import find_incident
    from remuda.kube.cluster import Preconditions

    async with session.connect() as cluster:
        incident = await find_incident(cluster, name)
        key = _remedy_meant(incident, remedy, granted=granted)
        said = Approval(remedy=key, by=getpass.getuser(), granted=granted, time=to_time(session.clock()))
        kept = [a for a in incident.spec.approvals if a.remedy != key]
        patch = {"spec": {"approvals": [to_wire(a) for a in (*kept, said)]}}
        when = Preconditions(resource_version=incident.metadata.resource_version)
        await cluster.patch(Incident, incident.name, patch, when=when)
        return key, incident


def approval_effect(incident: Incident, key: str) -> str:
    """When an approved remedy starts. A yes lifts no limit and ends no soak, so what stands in the way is said with it."""
    from remuda.api.incidents import IncidentPhase, RemedyOutcome
    from remuda.core.remedies.remedy_keys import is_remedy_key_of_recheck
    from remuda.core.remedies.rungs import device_remedies

    status = incident.status
    records = [r for r in device_remedies(status.remedies).values() if r.key != key]
    held = next((r for r in records if r.outcome is RemedyOutcome.HELD_BACK), None)
    if is_remedy_key_of_recheck(key):
        return "If the device passes the probe and its soak, it is put back into use."
    if held is not None:
        return f"It does not start yet: {held.key} is held back ({held.reason}). {held.message}".rstrip()
    if status.phase is IncidentPhase.VERIFYING and status.soak_until is not None:
        return f"The soak lasts until {status.soak_until:%H:%M:%S} UTC; the remedy starts only if a new fault comes before."
    return f"It starts when the policy's limits, pause and breaker allow it: see `remuda incident {incident.name}`."


def _remedy_meant(incident: Incident, remedy: str | None, *, granted: bool) -> str:
    """Which remedy is meant."""
    from remuda.api.errors import Refusal
    from remuda.core.remedies.remedy_keys import is_remedy_key_of_recheck, remedy_key_of_recheck
    from remuda.core.remedies.rungs import are_remedies_exhausted, device_remedies, remedy_needs_approval

    if not incident.is_open:
        raise Refusal("IncidentClosed", f"{incident.name} is closed.", "`remuda incidents --open` lists the open ones.")
    records = device_remedies(incident.status.remedies)
    waiting = [key for key, r in records.items() if remedy_needs_approval(r)]
    if remedy is not None:
        if remedy in records and remedy not in waiting:
            outcome = records[remedy].outcome
            fix = f"Waiting: {', '.join(waiting)}." if waiting else "Nothing in this incident waits for approval."
            raise Refusal("NotWaiting", f"{remedy} of {incident.name} does not wait for approval: {outcome}.", fix)
        if remedy not in records and not _is_possible_remedy_argument(remedy):
            fix = f"Waiting: {', '.join(waiting)}." if waiting else f"See `remuda incident {incident.name}`."
            raise Refusal("UnknownRemedy", f"`{remedy}` is not a remedy.", fix)
        return remedy
    if waiting:
        return waiting[-1]
    if granted and are_remedies_exhausted(incident) and incident.spec.subject.device:
        asked = [a for a in incident.spec.approvals if is_remedy_key_of_recheck(a.remedy)]
        return remedy_key_of_recheck(len(asked) + 1)
    raise Refusal(
        "NothingWaits", f"Nothing in {incident.name} waits for approval.", f"See `remuda incident {incident.name}`."
    )


def _is_possible_remedy_argument(remedy: str) -> bool:
    """Whether a ladder can come to it: a yes may be said ahead, say to reboot-1 while reset-1 still waits."""
    from remuda.api.remedies import Action
    from remuda.api.validation.remedy_policies import MAX_ATTEMPTS

    action, _, attempt = remedy.rpartition("-")
    return action in list(Action) and attempt.isdecimal() and 1 <= int(attempt) <= MAX_ATTEMPTS


async def _list_policies(cluster: Cluster) -> list[RemedyPolicy]:
    from remuda.api.remedies import RemedyPolicy

    return sorted((await cluster.list(RemedyPolicy)).items, key=lambda p: p.name)


async def _policies_meant(cluster: Cluster, name: str | None, *, create: bool) -> list[str]:
    """The policies meant. All of them includes `default`, made when it is not there: devices are under it all the same."""
    from remuda.api.errors import AlreadyExists, Refusal
    from remuda.api.meta import ObjectMeta
    from remuda.api.remedies import DEFAULT_POLICY, RemedyPolicy
    from remuda.cli.lookup import nearest_name_hint

    names = [p.name for p in await _list_policies(cluster)]
    if create and DEFAULT_POLICY not in names and name in (None, DEFAULT_POLICY):
        try:
            await cluster.create(RemedyPolicy, RemedyPolicy(metadata=ObjectMeta(name=DEFAULT_POLICY)))
        except AlreadyExists:
            pass
        names = sorted([*names, DEFAULT_POLICY])
    if name is None:
        return names
    if name not in names:
        fix = nearest_name_hint(name, sorted({*names, DEFAULT_POLICY}), "There are none.")
        raise Refusal("PolicyNotFound", f"There is no RemedyPolicy `{name}`.", fix)
    return [name]


async def _patch_pause(cluster: Cluster, policy: str, body: object) -> None:
    from remuda.api.remedies import RemedyPolicy

    await cluster.patch(RemedyPolicy, policy, {"spec": {"pause": body}})

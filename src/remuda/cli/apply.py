"""`remuda apply -f FILE`: RemedyPolicies from a file, made or changed. Everything is checked before anything is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.meta import JsonObject
    from remuda.api.remedies import RemedyPolicy
    from remuda.kube.cluster import Cluster


@click.command()
@click.option("-f", "--file", "file", required=True, metavar="FILE", help="YAML, one or more documents; - for stdin.")
@with_session
def apply(session: Session, file: str) -> None:
    """Make remedy policies what a file says. What a policy says now and the file does not, is taken out of it; a pause stays.

    Jobs are started with `remuda train -f`; every other kind goes through `remuda kubectl -- apply -f`.
    """
    from remuda.cli.files import read_named

    found = policies_in(*read_named(file))

    async def run() -> list[str]:
        async with session.connect() as cluster:
            return [f"{policy.name}: {await _put(cluster, policy)}" for policy in found]

    for line in asyncio.run(run()):
        click.echo(line)


def policies_in(text: str, source: str) -> list[RemedyPolicy]:
    """The policies of a file, checked."""
    from remuda.api.codec import decode_strict
    from remuda.api.errors import Refusal
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.validation.validate import validate
    from remuda.cli.manifest import parse_documents

    found: list[RemedyPolicy] = []
    for body in parse_documents(text, source):
        _check_kind(body, source)
        body = {name: value for name, value in body.items() if name != "status"}
        policy = decode_strict(RemedyPolicy, body)
        if not policy.name:
            raise Refusal("NoName", f"A RemedyPolicy in {source} has no name.", "Set metadata.name.", "metadata.name")
        if any(policy.name == other.name for other in found):
            raise Refusal("SaidTwice", f"{source} has `{policy.name}` twice.", "Keep one of the two.", "metadata.name")
        validate(policy)
        found.append(policy)
    return found


def _check_kind(body: JsonObject, source: str) -> None:
    from remuda.api.errors import Refusal
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.training import TrainingJob

    resource = RemedyPolicy.resource
    if body.get("kind") == TrainingJob.resource.kind:
        raise Refusal("NotAPolicy", f"{source} has a TrainingJob.", "Start it with `remuda train -f`.", "kind")
    for field, right in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if body.get(field) != right:
            said = f"`{body[field]}`" if body.get(field) else "missing"
            fix = f"Write `{field}: {right}`; other kinds go through `remuda kubectl -- apply -f`."
            raise Refusal("NotAPolicy", f"{source}: `{field}` is {said}.", fix, field)


async def _put(cluster: Cluster, policy: RemedyPolicy) -> str:
    import msgspec

    from remuda.api.codec import to_wire
    from remuda.api.errors import AlreadyExists, NotFound
    from remuda.api.remedies import RemedyPolicy

    try:
        there = await cluster.get(RemedyPolicy, policy.name)
    except NotFound:
        try:
            await cluster.create(RemedyPolicy, policy)
            return "created"
        except AlreadyExists:
            there = await cluster.get(RemedyPolicy, policy.name)
    spec = policy.spec if policy.spec.pause else msgspec.structs.replace(policy.spec, pause=there.spec.pause)
    if spec == there.spec:
        return "unchanged"
    body = to_wire(msgspec.structs.replace(there, spec=spec))
    await cluster.replace(RemedyPolicy, body)
    return "configured"

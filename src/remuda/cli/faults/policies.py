"""`remuda policies`, `policy NAME` and `apply -f FILE`: what may be done to devices without asking.

`policy --what-if` is a dry run: it decides with the manager's own functions and writes nothing. `apply` checks every policy of
the file before it sends the first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.faults.policy_screen import render_policies, render_policy, render_what_if
from remuda.cli.output import (
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
    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.meta import JsonObject
    from remuda.api.remedies import RemedyPolicy
    from remuda.core.remedies.what_if import WhatIf
    from remuda.kube.cluster import Cluster


@click.command()
@output_option()
@with_session
def policies(session: Session, form: str) -> None:
    """List remedy policies: what they apply to, mode, limits in use, state. -o json and yaml print them as stored."""
    from remuda.cli.text import plural_text

    if is_document_output_form(form):
        print_document(form, output_list_document(asyncio.run(_list_policies(session))))
        return
    found = asyncio.run(_policies_with_status(session))
    now = session.clock()
    print_screen(render_policies(found, now, make_console().width))
    if not any(p.uid for p in found):
        click.echo(
            f"\nOnly the built-in policy, with {plural_text(len(_built_in_ladders()), 'ladder')}: `remuda policy default`.\n"
            "To add your own, write a RemedyPolicy and run `remuda apply -f FILE`."
        )


@click.command()
@click.argument("name")
@click.option(
    "--what-if",
    nargs=3,
    metavar="device NODE DEVICE",
    help="Show what would be done if that device failed, and which pods it would hit. Changes nothing.",
)
@click.option("--code", default="xid-79", show_default=True, help="Fault code for --what-if: 79, ecc-dbe ...")
@output_option()
@with_session
def policy(session: Session, name: str, what_if: tuple[str, str, str] | None, code: str, form: str) -> None:
    """Show one policy in full: what it applies to, its limits and how much of them is used, and its ladders step by step.

    -o json with --what-if prints {policy, mode, reason, remedy, when, quarantined, hits: [{key, nodes, devices, pods,
    namespaces, how}], remarks}.
    """
    from remuda.api.errors import Refusal
    from remuda.cli.faults.drill_target import parse_fault_code_option

    if what_if is None:
        if is_document_output_form(form):
            print_document(form, output_object_document(asyncio.run(_get_policy(session, name))))
        else:
            found = asyncio.run(_policy_with_status(session, name))
            print_screen(render_policy(found, session.clock()))
        return
    what, node, device = what_if
    if what != "device":
        raise Refusal(
            "UnknownWhatIf", f"--what-if knows `device`, not `{what}`.", "Write: --what-if device NODE DEVICE."
        )
    code = parse_fault_code_option(code)
    answer = asyncio.run(ask_what_if(session, name, node, device, code))
    if is_document_output_form(form):
        import msgspec

        print_document(form, msgspec.to_builtins(answer))
    else:
        print_screen(render_what_if(answer, node, device, code))


async def _list_policies(session: Session) -> list[RemedyPolicy]:
    from remuda.api.remedies import RemedyPolicy

    async with session.connect() as cluster:
        return sorted((await cluster.list(RemedyPolicy)).items, key=lambda p: p.name)


async def _get_policy(session: Session, name: str) -> RemedyPolicy:
    async with session.connect() as cluster:
        return await _find_policy(cluster, name)


async def _policy_with_status(session: Session, name: str) -> RemedyPolicy:
    found = await _get_policy(session, name)
    return found if found.uid else next(p for p in await _policies_with_status(session) if p.name == name)


async def _policies_with_status(session: Session) -> list[RemedyPolicy]:
    """Every policy with its status; that of the built-in one, which has no object, is worked out."""
    import msgspec

    from remuda.api.devices import NodeDevices
    from remuda.api.incidents import Incident
    from remuda.api.kubernetes.core_v1 import Node
    from remuda.core.remedies.policy_status import work_out_policy_status

    found = _with_built_in_policy(await _list_policies(session))
    default = next((p for p in found if not p.uid), None)
    if default is None:
        return found
    async with session.connect() as cluster:
        nodes, incidents = (await cluster.list(Node)).items, (await cluster.list(Incident)).items
        ledgers = {n.name: n for n in (await cluster.list(NodeDevices)).items}
    status = work_out_policy_status(default, found, nodes, ledgers, incidents, session.clock())
    return [msgspec.structs.replace(p, status=status) if p is default else p for p in found]


async def _find_policy(cluster: Cluster, name: str) -> RemedyPolicy:
    from remuda.api.errors import NotFound, Refusal
    from remuda.api.remedies import DEFAULT_POLICY, RemedyPolicy
    from remuda.cli.lookup import nearest_name_hint
    from remuda.core.remedies.policies import BUILT_IN

    try:
        return await cluster.get(RemedyPolicy, name)
    except NotFound:
        if name == DEFAULT_POLICY:
            return BUILT_IN
        names = sorted({DEFAULT_POLICY, *(p.name for p in (await cluster.list(RemedyPolicy)).items)})
        raise Refusal(
            "PolicyNotFound", f"There is no RemedyPolicy `{name}`.", nearest_name_hint(name, names, "")
        ) from None


async def ask_what_if(session: Session, name: str, node_name: str, device: str, code: str) -> WhatIf:
    from remuda.api.devices import NodeDevices
    from remuda.api.errors import NotFound, Refusal
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.names import LABEL_CLIQUE
    from remuda.api.selectors import labels_equal
    from remuda.cli.lookup import find_node
    from remuda.core.remedies.drain import domain_recycled_by_remedy
    from remuda.core.remedies.what_if import what_if_remedies

    async with session.connect() as cluster:
        policy = await _find_policy(cluster, name)
        ledger = await find_node(cluster, node_name)
        try:
            node = await cluster.get(Node, node_name)
        except NotFound:
            raise Refusal("NodeNotFound", f"There is no node `{node_name}`.", "`remuda nodes` lists them.") from None
        clique = node.labels.get(LABEL_CLIQUE, "")
        peers: list[Node] = (
            (await cluster.list(Node, labels=labels_equal({LABEL_CLIQUE: clique}))).items if clique else []
        )
        domain = domain_recycled_by_remedy(node, ledger, peers)
        ledgers: dict[str, NodeDevices] = {node_name: ledger}
        for peer in domain.nodes:
            if peer not in ledgers:
                try:
                    ledgers[peer] = await cluster.get(NodeDevices, peer)
                except NotFound:
                    continue
        pods: dict[str, list[Pod]] = {}
        for pod in (await cluster.list(Pod)).items:
            pods.setdefault(pod.spec.node_name, []).append(pod)
        return what_if_remedies(policy, node, device, code, domain, ledgers, pods)


def _with_built_in_policy(found: list[RemedyPolicy]) -> list[RemedyPolicy]:
    from remuda.core.remedies.policies import BUILT_IN

    return found if any(p.name == BUILT_IN.name for p in found) else [*found, BUILT_IN]


def _built_in_ladders() -> Any:
    from remuda.core.remedies.policies import BUILT_IN_LADDERS

    return BUILT_IN_LADDERS


@click.command()
@click.option(
    "-f",
    "--file",
    "file",
    required=True,
    metavar="FILE",
    help="YAML file with one or more policies; `-` is standard input.",
)
@with_session
def apply(session: Session, file: str) -> None:
    """Create or replace remedy policies from a file. Fields that the file leaves out are removed; a pause stays.

    Start jobs with `remuda train -f`. For all other kinds use `remuda kubectl -- apply -f`.
    """
    from remuda.cli.input_files import read_named_file

    found = policies_in_file(*read_named_file(file))

    async def run() -> list[str]:
        async with session.connect() as cluster:
            return [f"{policy.name}: {await _apply_policy(cluster, policy)}" for policy in found]

    for line in asyncio.run(run()):
        click.echo(line)


def policies_in_file(text: str, source: str) -> list[RemedyPolicy]:
    """The policies of a file, checked."""
    from remuda.api.codec import decode_strict
    from remuda.api.errors import Refusal
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.validation.validate import validate
    from remuda.cli.jobs.manifest import parse_manifest_documents

    found: list[RemedyPolicy] = []
    for body in parse_manifest_documents(text, source):
        _check_policy_kind(body, source)
        body = {name: value for name, value in body.items() if name != "status"}
        policy = decode_strict(RemedyPolicy, body)
        if not policy.name:
            raise Refusal("NoName", f"A RemedyPolicy in {source} has no name.", "Set metadata.name.", "metadata.name")
        if any(policy.name == other.name for other in found):
            raise Refusal(
                "SaidTwice", f"{source} has two policies named `{policy.name}`.", "Keep one of them.", "metadata.name"
            )
        validate(policy)
        found.append(policy)
    return found


def _check_policy_kind(body: JsonObject, source: str) -> None:
    from remuda.api.errors import Refusal
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.training import TrainingJob

    resource = RemedyPolicy.resource
    if body.get("kind") == TrainingJob.resource.kind:
        raise Refusal("NotAPolicy", f"{source} holds a TrainingJob.", "Start it with `remuda train -f`.", "kind")
    for field, right in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if body.get(field) != right:
            said = f"`{body[field]}`" if body.get(field) else "missing"
            fix = f"Write `{field}: {right}`. For other kinds use `remuda kubectl -- apply -f`."
            raise Refusal("NotAPolicy", f"{source}: `{field}` is {said}.", fix, field)


async def _apply_policy(cluster: Cluster, policy: RemedyPolicy) -> str:
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

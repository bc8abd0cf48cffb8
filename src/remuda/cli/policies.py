"""`remuda policies`, `remuda policy NAME`: what may be done to devices by itself, said in full, and `--what-if`: a dry run.

A dry run reads and decides with the manager's own functions and writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.output import (
    is_document,
    list_body,
    make_console,
    object_body,
    output_option,
    plain_table,
    print_document,
    show,
)
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.remedies import RemedyPolicy
    from remuda.core.remedies.what_if import WhatIf
    from remuda.kube.cluster import Cluster

NARROW = 100  # columns of a terminal below which gaps are smaller


@click.command()
@output_option()
@with_session
def policies(session: Session, form: str) -> None:
    """Remedy policies: what they select, mode, limits in use, breaker. -o json and yaml print them as stored."""
    from remuda.cli.text import plural

    if is_document(form):
        print_document(form, list_body(asyncio.run(_all(session))))
        return
    found = asyncio.run(_standing(session))
    now = session.clock()
    show(render_policies(found, now, make_console().width))
    if not any(p.uid for p in found):
        click.echo(
            f"\nNothing but the built-in policy, with {plural(len(_built_in_ladders()), 'ladder')}: `remuda policy default`.\n"
            "Your own: write a RemedyPolicy, `remuda apply -f FILE`."
        )


@click.command()
@click.argument("name")
@click.option(
    "--what-if",
    nargs=3,
    metavar="device NODE DEVICE",
    help="What would be done if that device failed, and to whom. Changes nothing.",
)
@click.option("--code", default="xid-79", show_default=True, help="The fault code of --what-if: 79, ecc-dbe ...")
@output_option()
@with_session
def policy(session: Session, name: str, what_if: tuple[str, str, str] | None, code: str, form: str) -> None:
    """One policy, resolved: what it applies to, its ladders rung by rung, limits and what of them is in use, breaker, soak.

    -o json with --what-if prints {policy, mode, reason, remedy, when, quarantined, hits: [{key, nodes, devices, pods,
    namespaces, how}], remarks}.
    """
    from remuda.api.errors import Refusal
    from remuda.cli.drill_target import parse_code

    if what_if is None:
        if is_document(form):
            print_document(form, object_body(asyncio.run(_one(session, name))))
        else:
            found = asyncio.run(_one_standing(session, name))
            show(render_policy(found, session.clock()))
        return
    what, node, device = what_if
    if what != "device":
        raise Refusal("UnknownWhatIf", f"`{what}` cannot fail here.", "Write --what-if device NODE DEVICE.")
    code = parse_code(code)
    answer = asyncio.run(_what_if(session, name, node, device, code))
    if is_document(form):
        import msgspec

        print_document(form, msgspec.to_builtins(answer))
    else:
        show(render_what_if(answer, node, device, code))


async def _all(session: Session) -> list[RemedyPolicy]:
    from remuda.api.remedies import RemedyPolicy

    async with session.connect() as cluster:
        return sorted((await cluster.list(RemedyPolicy)).items, key=lambda p: p.name)


async def _one(session: Session, name: str) -> RemedyPolicy:
    async with session.connect() as cluster:
        return await _find(cluster, name)


async def _one_standing(session: Session, name: str) -> RemedyPolicy:
    found = await _one(session, name)
    return found if found.uid else next(p for p in await _standing(session) if p.name == name)


async def _standing(session: Session) -> list[RemedyPolicy]:
    """Every policy with its status; that of the built-in one, which has no object, is worked out."""
    import msgspec

    from remuda.api.devices import NodeDevices
    from remuda.api.incidents import Incident
    from remuda.api.kubernetes.core_v1 import Node
    from remuda.core.remedies.policy_status import standing_of

    found = _with_default(await _all(session))
    default = next((p for p in found if not p.uid), None)
    if default is None:
        return found
    async with session.connect() as cluster:
        nodes, incidents = (await cluster.list(Node)).items, (await cluster.list(Incident)).items
        ledgers = {n.name: n for n in (await cluster.list(NodeDevices)).items}
    status = standing_of(default, found, nodes, ledgers, incidents, session.clock())
    return [msgspec.structs.replace(p, status=status) if p is default else p for p in found]


async def _find(cluster: Cluster, name: str) -> RemedyPolicy:
    from remuda.api.errors import NotFound, Refusal
    from remuda.api.remedies import DEFAULT_POLICY, RemedyPolicy
    from remuda.cli.lookup import nearest
    from remuda.core.remedies.policies import BUILT_IN

    try:
        return await cluster.get(RemedyPolicy, name)
    except NotFound:
        if name == DEFAULT_POLICY:
            return BUILT_IN
        names = sorted({DEFAULT_POLICY, *(p.name for p in (await cluster.list(RemedyPolicy)).items)})
        raise Refusal("PolicyNotFound", f"There is no RemedyPolicy `{name}`.", nearest(name, names, "")) from None


async def _what_if(session: Session, name: str, node_name: str, device: str, code: str) -> WhatIf:
    from remuda.api.devices import NodeDevices
    from remuda.api.errors import NotFound, Refusal
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.names import LABEL_CLIQUE
    from remuda.api.selectors import where
    from remuda.cli.lookup import find_node
    from remuda.core.remedies.drain import domain_of
    from remuda.core.remedies.what_if import what_if

    async with session.connect() as cluster:
        policy = await _find(cluster, name)
        ledger = await find_node(cluster, node_name)
        try:
            node = await cluster.get(Node, node_name)
        except NotFound:
            raise Refusal("NodeNotFound", f"There is no node `{node_name}`.", "`remuda nodes` lists them.") from None
        clique = node.labels.get(LABEL_CLIQUE, "")
        peers: list[Node] = (await cluster.list(Node, labels=where({LABEL_CLIQUE: clique}))).items if clique else []
        domain = domain_of(node, ledger, peers)
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
        return what_if(policy, node, device, code, domain, ledgers, pods)


# --- the screen -------------------------------------------------------------------------------------------------------


def render_policies(found: Sequence[RemedyPolicy], now: float, width: int) -> RenderableType:
    from remuda.core.remedies.limits import bound

    table = plain_table(
        *("NAME", "MODE", "PRIORITY", "SELECTS", "NODES", "UNDER REMEDY", "HELD BACK", "STATE"),
        right=("PRIORITY", "NODES", "UNDER REMEDY", "HELD BACK"),
        tight=width < NARROW,
        words=("NAME", "SELECTS", "STATE", "UNDER REMEDY", "HELD BACK"),
    )
    for policy in found:
        status = policy.status
        most = bound(policy.spec.limits.pool, status.nodes)
        remedied = str(len(status.under_remedy)) + ("" if most is None else f" of {most}")
        table.add_row(
            policy.name,
            policy.spec.mode.value,
            str(policy.spec.priority),
            _selects(policy),
            str(status.nodes),
            remedied,
            str(status.held_back),
            _state(policy, now),
        )
    return table


def render_policy(policy: RemedyPolicy, now: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.text import span
    from remuda.core.remedies.policies import ladders_of

    spec, status = policy.spec, policy.status
    head = plain_table("", "what", words=("what",))
    head.show_header = False

    def say(name: str, text: str) -> None:
        head.add_row(name, text)

    say("policy", policy.name + ("" if policy.uid else "   (built in; no object of that name)"))
    say("applies to", _selects(policy) + (f", priority {spec.priority}" if spec.priority else ""))
    say("mode", spec.mode.value)
    say("state", _state(policy, now))
    say("limits", _limits(policy))
    say(
        "breaker",
        f"opens above {spec.breaker.share} of the nodes (and {spec.breaker.at_least}) within "
        f"{span(spec.breaker.window_seconds)}, closes after {span(spec.breaker.cooldown_seconds)} without another",
    )
    whole = "whole domains" if spec.drain.whole_domain else "nodes alone"
    waits = [span(s) for s in (spec.drain.patience_seconds, spec.drain.checkpoint_seconds, spec.drain.deadline_seconds)]
    say("drain", f"others left in peace for {waits[0]}, checkpoint {waits[1]}, deadline {waits[2]}, {whole}")
    say("soak", span(spec.soak.seconds))
    say(
        "offenders",
        f"more than {spec.offender.incidents} failures within {span(spec.offender.window_seconds)}: "
        f"start at {spec.offender.action}",
    )
    for webhook in spec.webhooks:
        say("webhook", f"{webhook.url} on {', '.join(webhook.on) or 'everything'}")
    rungs = plain_table(
        "WHEN", "RUNG", "ATTEMPTS", "TIMEOUT", "DONE BY", right=("ATTEMPTS", "TIMEOUT"), words=("DONE BY",)
    )
    for ladder in ladders_of(policy):
        for number, rung in enumerate(ladder.rungs):
            when = ladder.when if number == 0 else ""
            early = f", not in the first {span(rung.after_seconds)}" if rung.after_seconds else ""
            done_by = f"{_done_by(rung)}{early}"
            rungs.add_row(when, rung.action.value, str(rung.attempts), span(rung.timeout_seconds), done_by)
        if not ladder.rungs:
            rungs.add_row(ladder.when, "none", "", "", "the workload is restarted, the device is fine")
    parts: list[RenderableType] = [head, Text(), rungs]
    for condition in status.conditions:
        if condition.status == "True":
            parts += [Text(), Text(f"{condition.type}: {condition.message}", style="yellow")]
    return Group(*parts)


def render_what_if(answer: WhatIf, node: str, device: str, code: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.text import compact, plural

    asks = f", asks for {answer.remedy}" if answer.remedy != "None" else ""
    lines = [
        f"If {device} of {node} had {code} ({answer.reason}{asks}), policy {answer.policy} ({answer.mode}):",
        *answer.remarks,
    ]
    if answer.quarantined:
        lines.append(f"quarantined: {compact(answer.quarantined)}; the node's other devices go on serving")
    parts: list[RenderableType] = [Text(line) for line in lines]
    if answer.hits:
        columns = ("NODES", "DEVICES", "PODS THAT LEAVE", "NAMESPACES", "BY")
        table = plain_table("RUNG", *columns, words=columns)
        for hit in answer.hits:
            pods = ", ".join(hit.pods[:4]) + (f" and {len(hit.pods) - 4} more" if len(hit.pods) > 4 else "")
            devices = ", ".join(hit.devices) if len(hit.devices) < 3 else plural(len(hit.devices), "device")
            table.add_row(
                hit.key, compact(hit.nodes), devices or "-", pods or "-", ", ".join(hit.namespaces) or "-", hit.how
            )
        parts += [Text(), table]
    parts += [Text(), Text("Nothing was changed.")]
    return Group(*parts)


def _with_default(found: list[RemedyPolicy]) -> list[RemedyPolicy]:
    from remuda.core.remedies.policies import BUILT_IN

    return found if any(p.name == BUILT_IN.name for p in found) else [*found, BUILT_IN]


def _built_in_ladders() -> Any:
    from remuda.core.remedies.policies import BUILT_IN_LADDERS

    return BUILT_IN_LADDERS


def _selects(policy: RemedyPolicy) -> str:
    from remuda.api.remedies import DEFAULT_POLICY

    if policy.name == DEFAULT_POLICY:
        return "what no other does"
    selector = policy.spec.selector
    said = [*selector.device_types, *(f"{name}={value}" for name, value in selector.nodes.items())]
    return ", ".join(said) or "everything"


def _state(policy: RemedyPolicy, now: float) -> str:
    from remuda.core.remedies.policies import is_paused

    pause, breaker = policy.spec.pause, policy.status.breaker
    if pause is not None and is_paused(pause, now):
        until = f" until {pause.until:%H:%M:%S}" if pause.until else ""
        why = f": {pause.message}" if pause.message else ""
        return f"paused{until}{f' by {pause.by}' if pause.by else ''}{why}"
    if breaker.open:
        ends = f", closes at {breaker.closes_at:%H:%M:%S}" if breaker.closes_at else ""
        return f"breaker open{ends}: {breaker.message}"
    return "active"


def _limits(policy: RemedyPolicy) -> str:
    limits, status = policy.spec.limits, policy.status
    named = ("pool", "rack", "tenant", "reservation", "cause", "per_hour")
    said = [f"{name.replace('per_hour', 'an hour')} {getattr(limits, name)}" for name in named if getattr(limits, name)]
    use = ""
    if policy.uid or status.nodes:
        nodes = ", ".join(status.under_remedy[:6]) + (" ..." if len(status.under_remedy) > 6 else "")
        use = f"; in use: {len(status.under_remedy)} of {status.nodes} nodes{f' ({nodes})' if nodes else ''}"
        use += f", {status.held_back} held back" if status.held_back else ""
    return (", ".join(said) or "none") + use


def _done_by(rung: Any) -> str:
    if rung.hook is not None:
        return f"command {rung.hook.command[0]}" if rung.hook.command else f"object {rung.hook.object.get('kind')}"
    return {"replace": "nobody: it needs a hook", "ticket": "recorded, told to webhooks"}.get(rung.action, "the agent")

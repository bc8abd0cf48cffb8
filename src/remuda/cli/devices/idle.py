"""`remuda idle`: who holds devices without using them, what that has cost, and what the policy will do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.output import is_document_output_form, output_option, plain_table, print_document, print_screen
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.training import TrainingJob
    from remuda.core.remedies.idle_devices import IdlePod


def gather_idle_screen_pods(
    nodes: Sequence[Node],
    devices: Sequence[NodeDevices],
    pods: Sequence[Pod],
    policies: Sequence[RemedyPolicy],
    jobs: Sequence[TrainingJob],
    now: float,
) -> list[IdlePod]:
    """Of all nodes, most wasteful first."""
    from remuda.core.remedies.idle_devices import idle_pods

    labels = {node.name: node.labels for node in nodes}
    by_name = {(job.namespace, job.name): job for job in jobs}
    bound: dict[str, list[Pod]] = {}
    for pod in pods:
        bound.setdefault(pod.spec.node_name, []).append(pod)

    def job_of(namespace: str, name: str) -> TrainingJob | None:
        return by_name.get((namespace, name))

    found = [
        each
        for node in devices
        for each in idle_pods(node, bound.get(node.name, []), labels.get(node.name, {}), policies, job_of, now)
    ]
    return sorted(found, key=lambda each: (-each.idle_gpu_hours, each.pod.namespace, each.pod.name))


def idle_next_words(found: IdlePod, now: float) -> str:
    """What will be done, and when."""
    from remuda.cli.text import duration_text

    if found.exempt:
        return f"nothing ({found.exempt})"
    if found.next_at is None:
        return "warned; nothing else"
    left = found.next_at - now
    return f"{found.next_step} {'now' if left <= 0 else f'in {duration_text(left)}'}"


def render_idle(found: Sequence[IdlePod], now: float, *, wide: bool = False) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.api.meta import to_time
    from remuda.cli.text import NOTHING, age_text

    if not found:
        return Text("No idle devices: every device that is held is in use.")
    has_price = any(each.cost for each in found)
    columns = ["POD", "NODE", "IDLE", "BUSY", "SINCE", "GPU-HOURS", *(["COST"] if has_price else []), "POLICY", "NEXT"]
    columns += ["DEVICES"] if wide else []
    table = plain_table(*columns, right=("IDLE", "BUSY", "SINCE", "GPU-HOURS", "COST"))
    for each in found:
        since = to_time(each.since) if each.since is not None else None
        cells = [
            f"{each.pod.namespace}/{each.pod.name}",
            each.node,
            f"{len(each.idle)}/{each.held}",
            f"{each.utilisation:.0%}" if each.utilisation is not None else NOTHING,
            age_text(since, now) if since is not None else NOTHING,
            f"{each.idle_gpu_hours:.1f}",
            *([f"{each.cost:.2f}"] if has_price else []),
            each.policy,
            idle_next_words(each, now),
            *([", ".join(each.idle)] if wide else []),
        ]
        table.add_row(*cells)
    hours, cost = sum(each.idle_gpu_hours for each in found), sum(each.cost for each in found)
    total = f"{sum(len(each.idle) for each in found)} devices held but not used, {hours:.1f} GPU-hours so far"
    return Group(table, Text(), Text(f"{total}, {cost:.2f} at the policies' price." if has_price else f"{total}."))


def idle_document(found: Sequence[IdlePod]) -> dict[str, Any]:
    from remuda.api.meta import to_time

    def moment(seconds: float | None) -> str | None:
        at: datetime | None = to_time(seconds) if seconds is not None else None
        return at.isoformat().replace("+00:00", "Z") if at is not None else None

    return {
        "idle": [
            {
                "namespace": each.pod.namespace,
                "pod": each.pod.name,
                "node": each.node,
                "devices": list(each.idle),
                "held": each.held,
                "utilisation": each.utilisation,
                "since": moment(each.since),
                "gpuHours": round(each.idle_gpu_hours, 4),
                "cost": round(each.cost, 4),
                "policy": each.policy,
                "exempt": each.exempt or None,
                "next": each.next_step or None,
                "nextAt": moment(each.next_at),
            }
            for each in found
        ]
    }


@click.command()
@output_option()
@with_session
def idle(session: Session, form: str) -> None:
    """List devices that a pod holds but hardly uses: how busy, since when, GPU-hours and cost so far, and what the policy
    (`spec.idle` of a RemedyPolicy) will do about it and when. All namespaces unless you name one with -n.

    -o json prints {"idle": [{namespace, pod, node, devices, held, utilisation, since, gpuHours, cost, policy, exempt,
    next, nextAt}]}.
    """
    from remuda.api.devices import NodeDevices
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.training import TrainingJob

    async def look() -> list[IdlePod]:
        async with session.connect() as cluster:
            nodes, devices = (await cluster.list(Node)).items, (await cluster.list(NodeDevices)).items
            pods, jobs = (await cluster.list(Pod)).items, (await cluster.list(TrainingJob)).items
            policies = (await cluster.list(RemedyPolicy)).items
            return gather_idle_screen_pods(nodes, devices, pods, policies, jobs, session.clock())

    found = asyncio.run(look())
    if session.asked_namespace:
        found = [each for each in found if each.pod.namespace == session.asked_namespace]
    if is_document_output_form(form):
        print_document(form, idle_document(found))
    else:
        print_screen(render_idle(found, session.clock(), wide=form == "wide"))

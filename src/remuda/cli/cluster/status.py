"""`remuda status`: is there a cluster, where, and how is it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.output import is_document, output_option, print_document
from remuda.cli.safe_text import printable_line
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.remedies import RemedyPolicy


@click.command()
@output_option(formats=("table", "json", "yaml"))
@with_session
def status(session: Session, form: str) -> int:
    """Show whether the cluster runs, where its API is, and what is in it. Exit code 1 when it does not run.

    -o json prints {"running", "pid", "state", "api", "kubeconfig", "nodes", "ready", "pods", "jobs", "openIncidents",
    "paused", "storage", "massSilence"}. "paused" lists the remedy policies under which no new remedy starts ({"policy", "by",
    "message", "until"}). "storage" is empty or, when nothing can be written, the reason and the fix.
    """
    body = asyncio.run(_read_status(session))
    if is_document(form):
        print_document(form, body)
    elif not body["running"]:
        click.echo(f"No cluster is running in {body['state']}. Start one with `{session.command_line('up')}`.")
    else:
        from remuda.cli.text import plural_text

        click.echo(f"Running: pid {body['pid']}, {body['ready']} of {plural_text(body['nodes'], 'node')} ready.")
        click.echo(f"Pods: {body['pods']}   jobs: {body['jobs']}   open incidents: {body['openIncidents']}")
        if body["storage"]:
            click.echo(f"Storage: {body['storage']} Pods keep running; changes are refused until then.")
        if body["paused"]:
            said = "; ".join(_pause_words(pause) for pause in body["paused"])
            click.echo(f"Remedies are paused: {said}. End it: {session.command_line('unpause')}")
        for words in body["massSilence"]:
            click.echo(f"MassSilence: {words}")
        click.echo(f"API: {body['api']}   KUBECONFIG={body['kubeconfig']}")
        click.echo(f"State: {body['state']}")
    return 0 if body["running"] else 1


def _pause_words(pause: dict[str, str]) -> str:
    by, why = (f" by {pause['by']}" if pause["by"] else ""), (f" ({pause['message']})" if pause["message"] else "")
    return printable_line(f"{pause['policy']}{f' until {until}' if (until := pause['until']) else ''}{by}{why}")


async def _read_status(session: Session) -> dict[str, Any]:
    from remuda.api.conditions import is_condition_true
    from remuda.api.incidents import Incident
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.training import TrainingJob
    from remuda.runtime.cluster_client import api_address
    from remuda.runtime.readiness import ask_storage_trouble

    state = session.state
    pid = state.holder()
    if pid is None or not state.socket.exists():
        return {"running": False, "state": str(state.path)}
    async with session.connect() as cluster:
        nodes = (await cluster.list(Node)).items
        pods, jobs = (await cluster.list(Pod)).items, (await cluster.list(TrainingJob)).items
        incidents = (await cluster.list(Incident)).items
        policies = (await cluster.list(RemedyPolicy)).items
    return {
        "running": True,
        "pid": pid,
        "state": str(state.path),
        "api": api_address(state),
        "kubeconfig": str(state.kubeconfig),
        "nodes": len(nodes),
        "ready": sum(1 for node in nodes if is_condition_true(node.status.conditions, "Ready")),
        "pods": len(pods),
        "jobs": len(jobs),
        "paused": _paused_policies(policies, session.clock()),
        "storage": ask_storage_trouble(state),
        "massSilence": [i.status.message for i in incidents if i.is_open and i.status.verdict.reason == "MassSilence"],
        "openIncidents": sum(1 for incident in incidents if incident.is_open),
    }


def _paused_policies(policies: list[RemedyPolicy], now: float) -> list[dict[str, str]]:
    from remuda.core.remedies.policies import is_policy_paused

    return [
        {
            "policy": policy.name,
            "by": pause.by,
            "message": pause.message,
            "until": f"{pause.until:%Y-%m-%dT%H:%M:%SZ}" if pause.until else "",
        }
        for policy in sorted(policies, key=lambda p: p.name)
        if (pause := policy.spec.pause) is not None and is_policy_paused(pause, now)
    ]

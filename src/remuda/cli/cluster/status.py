"""`remuda status`: is there a cluster, where, and how is it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.output import is_document_output_form, output_option, print_document
from remuda.cli.safe_text import printable_line
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.remedies import RemedyPolicy
    from remuda.kube.cluster import Cluster


@click.command()
@output_option(formats=("table", "json", "yaml"))
@with_session
def status(session: Session, form: str) -> int:
    """Show which cluster is meant and why, where its API is, and what is in it. Exit code 1 when it does not run.

    -o json prints {"running", "cluster", "chosenBy", "api", "nodes", "ready", "pods", "jobs", "openIncidents", "paused",
    "massSilence"} and, for the cluster of `remuda up`, {"pid", "state", "kubeconfig", "storage"}. "paused" lists the remedy
    policies under which no new remedy starts ({"policy", "by", "message", "until"}). "storage" is empty or, when nothing can
    be written, the reason and the fix.
    """
    body = asyncio.run(_read_status(session) if session.is_embedded else _read_other_status(session))
    if is_document_output_form(form):
        print_document(form, body)
    elif not body["running"]:
        click.echo(f"No cluster is running in {body['state']}. Start one with `{session.command_line('up')}`.")
    else:
        from remuda.cli.text import plural_text

        running = f"Running: pid {body['pid']}, " if "pid" in body else f"Cluster: {body['cluster']}, "
        click.echo(f"{running}{body['ready']} of {plural_text(body['nodes'], 'node')} ready.")
        click.echo(f"Pods: {body['pods']}   jobs: {body['jobs']}   open incidents: {body['openIncidents']}")
        if body.get("storage"):
            click.echo(f"Storage: {body['storage']} Pods keep running; changes are refused until then.")
        if body["paused"]:
            said = "; ".join(_pause_words(pause) for pause in body["paused"])
            click.echo(f"Remedies are paused: {said}. End it: {session.command_line('unpause')}")
        for words in body["massSilence"]:
            click.echo(f"MassSilence: {words}")
        kubeconfig = f"   KUBECONFIG={body['kubeconfig']}" if "kubeconfig" in body else ""
        click.echo(f"API: {body['api']}{kubeconfig}")
        click.echo(f"State: {body['state']}" if "state" in body else f"Chosen by: {body['chosenBy']}")
    return 0 if body["running"] else 1


def _pause_words(pause: dict[str, str]) -> str:
    by, why = (f" by {pause['by']}" if pause["by"] else ""), (f" ({pause['message']})" if pause["message"] else "")
    return printable_line(f"{pause['policy']}{f' until {until}' if (until := pause['until']) else ''}{by}{why}")


async def _read_status(session: Session) -> dict[str, Any]:
    from remuda.runtime.cluster_client import api_address
    from remuda.runtime.readiness import ask_readiness_for_storage_trouble

    state = session.state
    pid = state.holder()
    if pid is None or not state.socket.exists():
        return {"running": False, "cluster": "embedded", "chosenBy": session.chosen_by, "state": str(state.path)}
    async with session.connect() as cluster:
        found = await _read_objects(session, cluster)
    return {
        "running": True,
        "cluster": "embedded",
        "chosenBy": session.chosen_by,
        "pid": pid,
        "state": str(state.path),
        "api": api_address(state),
        "kubeconfig": str(state.kubeconfig),
        **found,
        "storage": ask_readiness_for_storage_trouble(state),
    }


async def _read_other_status(session: Session) -> dict[str, Any]:
    """Of a cluster that is not ours: an API that does not answer is an error, and not "not running"."""
    access = session.access
    async with session.connect() as cluster:
        found = await _read_objects(session, cluster)
    name, api = (access.context or access.user, access.server) if access is not None else ("", "")
    return {"running": True, "cluster": name, "chosenBy": session.chosen_by, "api": api, **found}


async def _read_objects(session: Session, cluster: Cluster) -> dict[str, Any]:
    from remuda.api.conditions import is_condition_true
    from remuda.api.incidents import Incident
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.training import TrainingJob

    nodes = (await cluster.list(Node)).items
    incidents = (await cluster.list(Incident)).items
    policies = (await cluster.list(RemedyPolicy)).items
    return {
        "nodes": len(nodes),
        "ready": sum(1 for node in nodes if is_condition_true(node.status.conditions, "Ready")),
        "pods": len((await cluster.list(Pod)).items),
        "jobs": len((await cluster.list(TrainingJob)).items),
        "paused": _paused_policies(policies, session.clock()),
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

"""`remuda kubectl -- ...`: the user's kubectl with this cluster's kubeconfig."""

from __future__ import annotations

import os
import shutil

import click

from remuda.cli.session import Session, with_session


def find_kubectl(otherwise: str = "") -> str:
    """The program, or a refusal. `otherwise`: what else would do."""
    from remuda.api.errors import Refusal

    program = shutil.which(os.environ.get("KUBECTL") or "kubectl")
    if program is None:
        fix = f"Install it, or set KUBECTL to its path{otherwise}."
        raise Refusal("KubectlNotFound", "There is no kubectl on the PATH.", fix)
    return program


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_session
def kubectl(session: Session, arguments: tuple[str, ...]) -> int:
    """Run kubectl on this cluster: remuda kubectl -- get pods. Set KUBECTL to use another program."""
    from remuda.api.errors import Refusal

    namespace = ["--namespace", session.asked_namespace] if session.asked_namespace else []
    if (access := session.access) is not None:
        file = [f"--kubeconfig={access.origin}"] if session.names_file else []
        context = [f"--context={access.context}"] if access.context else []
        os.execve(find_kubectl(), ["kubectl", *file, *context, *namespace, *arguments], dict(os.environ))
    state = session.state
    if state.holder() is None or not state.kubeconfig.exists():
        raise Refusal(
            "ClusterNotRunning",
            f"No cluster is running in {state.path}.",
            f"Start one with `{state.command_line('up -d')}`, or choose another state directory with --state.",
        )
    program = find_kubectl(f"; any client works with KUBECONFIG={state.kubeconfig}")
    os.execve(program, ["kubectl", *namespace, *arguments], {**os.environ, "KUBECONFIG": str(state.kubeconfig)})

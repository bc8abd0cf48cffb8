"""`remuda explain pod NAME`: the chain from the device to the running container, and which link of it is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from remuda.cli.output import is_document_output_form, output_option, plain_table, print_document, print_screen
from remuda.cli.session import CommandGroup, Session, with_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from remuda.api.errors import Refusal
    from remuda.api.kubernetes.core_v1 import Pod
    from remuda.cli.devices.pod_start_steps import StartStep

_GLYPHS = {"Done": ("✓", "green"), "Waiting": ("…", "yellow"), "Stuck": ("✗", "bold red"), "Later": ("·", "dim")}


def pod_steps_document(pod: Pod, steps: Sequence[StartStep]) -> dict[str, Any]:
    """The shape of `-o json`."""
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "node": pod.spec.node_name,
        "steps": [
            {
                "name": s.name,
                "state": s.state.value,
                "at": s.at.isoformat().replace("+00:00", "Z") if s.at else None,
                "tookSeconds": None if s.took_s is None else round(s.took_s, 3),
                "message": s.message,
                "fix": s.fix,
            }
            for s in steps
        ],
    }


def _took_words(seconds: float) -> str:
    """Kubernetes writes some times in whole seconds; what took less is not nothing."""
    from remuda.cli.text import duration_text

    return "<1s" if seconds == 0 else "<0.01s" if seconds < 0.01 else duration_text(seconds)


def render_pod_steps(pod: Pod, steps: Sequence[StartStep], *, plain: bool = False) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from remuda.cli.devices.pod_start_steps import StartStepState, stuck_start_step
    from remuda.cli.text import NOTHING

    table = plain_table("", "STEP", "AT", "TOOK", "WHAT", right=("TOOK",))
    table.columns[-1].no_wrap = False
    for step in steps:
        glyph, style = _GLYPHS[step.state.value]
        took = NOTHING if step.took_s is None else _took_words(step.took_s)
        at = f"{step.at.astimezone():%H:%M:%S}" if step.at is not None else NOTHING
        word = step.message or ("" if step.state is StartStepState.DONE else step.state.value.lower())
        table.add_row(Text(step.state.value[0] if plain else glyph, style=style), step.name, at, took, Text(word))
    where = f"on {pod.spec.node_name}" if pod.spec.node_name else "not bound"
    title = Text.assemble((f"{pod.namespace}/{pod.name}", "bold"), f"  {pod.status.phase}, {where}")
    stuck = stuck_start_step(steps)
    if stuck is None:
        last = Text("Every step is done; the pod has ended." if pod.is_terminal else "Every step is done.")
    else:
        verb = "Stuck at" if stuck.state is StartStepState.STUCK else "Waiting for"
        last = Text.assemble(f"{verb} ", (stuck.name, "bold"), f". {stuck.fix}".rstrip())
    return Group(title, Text(), table, Text(), last)


class ExplainGroup(CommandGroup):
    """Whoever writes the name of a job here means its pods."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None and not name.startswith("-"):
            from remuda.api.errors import Refusal

            fix = f"A pod: remuda explain pod POD (remuda job {name} lists those of a job)."
            raise Refusal("UnknownCommand", f"There is nothing to explain called `{name}`.", fix)
        return super().resolve_command(ctx, args)


def pod_not_found(name: str, namespace: str, pods: Sequence[Pod]) -> Refusal:
    """A pod of a job that was replaced is not looked for by its spelling: the job's pods of now are named."""
    from remuda.api.errors import Refusal
    from remuda.api.names import LABEL_GANG
    from remuda.cli.lookup import nearest_name_hint
    from remuda.cli.text import compact_names

    stem = name.rstrip("0123456789")
    like = (p.labels.get(LABEL_GANG, "") for p in pods if stem != name and p.name.rstrip("0123456789") == stem)
    job = next((gang for gang in like if gang), "")
    if job:
        now = compact_names(p.name for p in sorted(pods, key=_by_number) if p.labels.get(LABEL_GANG) == job)
        said = f"Namespace {namespace} has no pod `{name}`: it is gone, or there never was one."
        return Refusal("PodNotFound", said, f"The pods of {job} now: {now}.")
    fix = nearest_name_hint(name, [p.name for p in pods], "It has none.")
    return Refusal("PodNotFound", f"Namespace {namespace} has no pod `{name}`.", fix)


def _by_number(pod: Pod) -> tuple[str, int]:
    stem = pod.name.rstrip("0123456789")
    return stem, int(pod.name.removeprefix(stem) or 0)


@click.group(cls=ExplainGroup)
def explain() -> None:
    """Say why a pod does not start, step by step: remuda explain pod NAME"""


@explain.command("pod")
@click.argument("name")
@output_option(formats=("table", "json", "yaml"))
@with_session
def explain_pod_command(session: Session, name: str, form: str) -> int:
    """Show the six steps to a running pod: plugin up, registered, capacity published, bound, Allocate, started.

    Shows how long each step took, and which one is stuck and why. Exit code 1 when one is stuck.
    """
    from remuda.api.devices import NodeDevices
    from remuda.api.errors import NotFound
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.meta import to_time
    from remuda.cli.devices.pod_start_steps import StartStepState, explain_pod_start, stuck_start_step
    from remuda.cli.output import make_console
    from remuda.core.state.pod_requests import is_extended_resource, requests_of_pod

    async def look() -> tuple[Pod, list[StartStep]]:
        async with session.connect() as cluster:
            try:
                pod = await cluster.get(Pod, name, session.namespace)
            except NotFound:
                pods = (await cluster.list(Pod, session.namespace)).items
                raise pod_not_found(name, session.namespace, pods) from None
            nodes, devices = (await cluster.list(Node)).items, (await cluster.list(NodeDevices)).items
        asked = sorted(r for r in requests_of_pod(pod) if is_extended_resource(r))
        return pod, explain_pod_start(pod, asked, nodes, devices, to_time(session.clock()))

    pod, steps = asyncio.run(look())
    if is_document_output_form(form):
        print_document(form, pod_steps_document(pod, steps))
    else:
        print_screen(render_pod_steps(pod, steps, plain=not make_console().encoding.lower().startswith("utf")))
    stuck = stuck_start_step(steps)
    return 1 if stuck is not None and stuck.state is StartStepState.STUCK else 0

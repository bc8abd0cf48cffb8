"""`remuda drill`: break something on purpose. Targets are named as people think of them (job and rank); a Drill object says
exactly which node, pod or device, and the cluster carries it out and tells in its status what it did.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from remuda.cli.output import (
    is_document,
    object_body,
    output_option,
    plain_table,
    print_document,
    show,
)
from remuda.cli.session import CommandGroup, Session, with_session

if TYPE_CHECKING:
    from remuda.api.devices import Drill, DrillKind, DrillSpec
    from remuda.api.training import Member, SparePod, TrainingJob
    from remuda.kube.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

DEADLINE_S = 10.0
DEFAULT_CODE = "xid-79"

# kind -> (what it does, example)
KINDS: dict[str, tuple[str, str]] = {
    "process-kill": ("A rank's process is killed", "remuda drill process-kill JOB --rank 3"),
    "process-hang": ("A rank's process stops making progress", "remuda drill process-hang JOB --rank 3"),
    "launcher-kill": ("The launcher of a rank's pod is killed", "remuda drill launcher-kill JOB --rank 3"),
    "pod-delete": ("Somebody deletes a rank's pod", "remuda drill pod-delete JOB --rank 3"),
    "device-fail": ("A GPU reports a fault code", "remuda drill device-fail JOB --rank 5 --code 79"),
    "node-lost": ("A node loses power", "remuda drill node-lost node-03"),
}


class Target(msgspec.Struct, frozen=True):
    """Who is to be hit, as said on the command line."""

    name: str = ""  # a job, or for node-lost a node
    rank: int | None = None
    spare: bool = False
    pod: str = ""
    node: str = ""
    device: str = ""
    code: str = ""


def parse_code(text: str) -> str:
    """79, xid79, `Xid 79` and xid-79 are the same; other codes (ecc-dbe) go as they are."""
    match = re.fullmatch(r"(?:xid)?[\s_-]*(\d+)", text.strip().lower())
    if match:
        return f"xid-{int(match[1])}"
    code = text.strip().lower()
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code):
        from remuda.api.errors import Refusal

        raise Refusal("InvalidFaultCode", f"`{text}` is not a fault code.", "Write an Xid number, say --code 79.")
    return code


def pick(job: TrainingJob, target: Target) -> Member | SparePod:
    """The member or spare of the job that is meant."""
    from remuda.api.errors import Refusal
    from remuda.cli.text import numbers

    status = job.status
    if job.is_finished:
        raise Refusal(
            "JobFinished", f"`{job.name}` has ended ({status.phase}).", "Pick a job that runs; see `remuda jobs`."
        )
    if target.spare:
        found = next((s for s in status.spares if s.parked), next(iter(status.spares), None))
        if found is None or not found.node:
            raise Refusal(
                "NoSpare", f"`{job.name}` has no spare placed.", "Give the job some with --spares N, or wait."
            )
        return found
    if not status.members:
        raise Refusal("NotPlaced", f"`{job.name}` has no pods placed yet ({status.phase}).", "Wait until it runs.")
    if target.rank is None:
        raise Refusal(
            "NoTarget", f"Which pod of `{job.name}`?", f"Give --rank (0 to {len(status.members) - 1}) or --spare."
        )
    member = next((m for m in status.members if m.rank == target.rank), None)
    if member is None:
        ranks = numbers([m.rank for m in status.members])
        raise Refusal("RankNotFound", f"`{job.name}` has no rank {target.rank}.", f"Ranks: {ranks}.")
    return member


def aim(kind: DrillKind, job: TrainingJob | None, target: Target, namespace: str) -> DrillSpec:
    """The exact drill. Pure: `job` is the one named, if one was."""
    from remuda.api.devices import DrillKind, DrillSpec
    from remuda.api.errors import Refusal

    where = pick(job, target) if job is not None else None
    node = where.node if where else target.node
    if kind is DrillKind.NODE_LOST:
        if not node:
            raise Refusal(
                "NoTarget", "Which node?", "Name it, say `remuda drill node-lost node-03`, or a job and --rank."
            )
        return DrillSpec(type=kind, node=node)
    if kind is DrillKind.DEVICE_FAIL:
        device = target.device or (where.devices[0] if where and where.devices else "")
        if not node or not device:
            fix = "Name a job and --rank, or --node and --device."
            raise Refusal("NoTarget", "Which device?", fix)
        if where is not None and device not in where.devices:
            has = ", ".join(where.devices) or "none"
            raise Refusal("NotItsDevice", f"{where.pod} does not hold {device}.", f"It holds: {has}.")
        return DrillSpec(type=kind, node=node, device=device, code=parse_code(target.code or DEFAULT_CODE))
    if where is None:
        raise Refusal("NoTarget", "Which job?", f"Say `{KINDS[kind.value][1]}`.")
    return DrillSpec(type=kind, node=where.node, pod=where.pod, namespace=namespace)


@click.group(cls=CommandGroup)
def drill() -> None:
    """Break something on purpose and watch the recovery. `remuda drill list` shows what can be broken."""


@drill.command("list")
@output_option(formats=("table", "json", "yaml"))
@with_session
def list_drills(session: Session, form: str) -> None:
    """What can be broken, and how to say it. -o json prints {"drills": [{type, does, example}]}."""
    if is_document(form):
        kinds = [{"type": kind, "does": does, "example": example} for kind, (does, example) in KINDS.items()]
        print_document(form, {"drills": kinds})
        return
    table = plain_table("DRILL", "WHAT HAPPENS", "EXAMPLE")
    table.columns[1].no_wrap = False
    for kind, (does, example) in KINDS.items():
        table.add_row(kind, does, example)
    show(table)
    click.echo("\n--spare instead of --rank hits a job's parked spare. Fault codes: Xid numbers (79, 48, 94, ...).")


def _pod_options(command: F) -> F:
    for option in (
        output_option(formats=("table", "json", "yaml")),
        click.option("--spare", is_flag=True, help="A parked spare of the job instead of a rank."),
        click.option("--rank", type=int, metavar="N", help="Which rank."),
    ):
        command = option(command)
    return command


def _pod_drill(kind: str) -> None:
    @drill.command(kind, help=f"{KINDS[kind][0]}.\n\nExample: {KINDS[kind][1]}")
    @click.argument("job")
    @_pod_options
    @with_session
    def command(session: Session, job: str, rank: int | None, spare: bool, form: str) -> None:
        _run(session, kind, Target(name=job, rank=rank, spare=spare), form)


for _kind in ("process-kill", "process-hang", "launcher-kill", "pod-delete"):
    _pod_drill(_kind)


@drill.command("device-fail")
@click.argument("job", required=False)
@click.option("--node", help="A node, when no job is named.")
@click.option("--device", help="Which device, say gpu-2.  [default: the first the rank holds]")
@click.option("--code", default=DEFAULT_CODE, show_default=True, help="Fault code: 79, xid-79, ecc-dbe ...")
@_pod_options
@with_session
def device_fail(
    session: Session,
    job: str | None,
    node: str | None,
    device: str | None,
    code: str,
    rank: int | None,
    spare: bool,
    form: str,
) -> None:
    """A GPU reports a fault code.

    \b
      remuda drill device-fail JOB --rank 5 --code 79
      remuda drill device-fail --node node-03 --device gpu-2 --code xid-48
    """
    _run(
        session,
        "device-fail",
        Target(name=job or "", rank=rank, spare=spare, node=node or "", device=device or "", code=code),
        form,
    )


@drill.command("node-lost")
@click.argument("node")
@_pod_options
@with_session
def node_lost(session: Session, node: str, rank: int | None, spare: bool, form: str) -> None:
    """A node loses power: its processes die and it falls silent. With --rank, NODE is a job: the node under that rank."""
    by_job = rank is not None or spare
    target = Target(name=node, rank=rank, spare=spare) if by_job else Target(node=node)
    _run(session, "node-lost", target, form)


def _run(session: Session, kind: str, target: Target, form: str) -> None:
    asyncio.run(_carry_out(session, kind, target, form))


async def _carry_out(session: Session, kind: str, target: Target, form: str) -> None:
    from remuda.api.devices import Drill, DrillKind
    from remuda.api.errors import Refusal
    from remuda.api.meta import ObjectMeta
    from remuda.api.validation import validate
    from remuda.cli.lookup import find_job, find_node

    async with session.connect() as cluster:
        if target.name and target.node:
            raise Refusal(
                "TwoTargets", "A job and a node are both named.", "Give JOB with --rank, or --node with --device."
            )
        job = await find_job(cluster, target.name, session.namespace) if target.name else None
        spec = aim(DrillKind(kind), job, target, session.namespace)
        if spec.node:
            await _check_node(await find_node(cluster, spec.node), spec)
        body = Drill(metadata=ObjectMeta(generate_name=f"{kind}-"), spec=spec)
        validate(body)
        made = await cluster.create(Drill, body)
        done = await _outcome(cluster, made)
    if is_document(form):
        print_document(form, object_body(done))
    if done.status.phase != "Done":
        raise Refusal(done.status.reason or "DrillRefused", done.status.message or "The drill was refused.")
    if not is_document(form):
        who = f"{_who(target)} of {target.name}: " if target.name else ""
        click.echo(f"Done: {who}{done.status.message}")
        option = f" -n {session.namespace}" if session.namespace != "default" else ""
        watch = f"remuda{option} job {target.name} -w" if target.name else "remuda devices"
        click.echo(f"Watch: {watch}")


def _who(target: Target) -> str:
    return "spare" if target.spare else f"rank {target.rank}"


async def _check_node(node: Any, spec: DrillSpec) -> None:
    from remuda.api.errors import Refusal
    from remuda.cli.text import compact

    known = [d.id for d in node.observed.devices]
    if spec.device and spec.device not in known:
        raise Refusal("DeviceNotFound", f"{spec.node} has no device `{spec.device}`.", f"It has {compact(known)}.")


async def _outcome(cluster: Cluster, made: Drill) -> Drill:
    """The drill once it was carried out or refused."""
    from remuda.api.devices import Drill
    from remuda.api.selectors import parse_field_selector
    from remuda.cli.errors import Failed

    fields = parse_field_selector(f"metadata.name={made.name}")
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for event in cluster.watch(Drill, made.metadata.resource_version, fields=fields):
                if event.obj is not None and event.obj.status.phase != "Pending":
                    return event.obj
    except TimeoutError:
        pass
    raise Failed(
        "DrillPending",
        f"Nobody carried out drill {made.name} within {DEADLINE_S:g} s.",
        f"See `remuda get drills {made.name} -o yaml`, and whether `remuda up` is busy.",
    )

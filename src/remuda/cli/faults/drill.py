"""`remuda drill`: break something on purpose. Targets are named as people think of them (job and rank); a Drill object says
exactly which node, pod or device, and the cluster carries it out and tells in its status what it did. What lasts can be undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from remuda.api.drills import DRILLS, Aim, DrillKind, DrillKindFacts
from remuda.cli.durations import DURATION
from remuda.cli.faults.drill_target import DEFAULT_CODE, DrillTarget, aim_drill, unknown_drill_code_option_note
from remuda.cli.output import (
    is_document_output_form,
    output_object_document,
    output_option,
    plain_table,
    print_document,
    print_screen,
)
from remuda.cli.safe_text import printable_line
from remuda.cli.session import CommandGroup, Session, with_session

if TYPE_CHECKING:
    from rich.table import Table

    from remuda.api.drills import Drill, DrillSpec
    from remuda.kube.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

DEADLINE_S = 40.0  # a manager refuses after 20 s what no agent took
NOTE_AFTER_S = 2.0


@click.group(cls=CommandGroup)
def drill() -> None:
    """Break something on purpose and watch the recovery. `remuda drill list` shows what can be broken."""


@drill.command("list")
@output_option(formats=("table", "json", "yaml"))
@with_session
def list_drills(session: Session, form: str) -> None:
    """List what can be broken, with an example each, and what `remuda drill undo` does.

    -o json prints {"drills": [{type, target, does, example, undo}]}.
    """
    if is_document_output_form(form):
        kinds = [
            {"type": k.value, "target": f.aim.value, "does": f.does, "example": _example_command(f), "undo": f.undoing}
            for k, f in DRILLS.items()
        ]
        print_document(form, {"drills": kinds})
        return
    print_screen(render_drills())
    click.echo(
        "\nUse --spare instead of --rank to hit a spare. Fault codes are Xid numbers"
        "\n(79, 48, 94, ...). Drills that can be undone end after --seconds, or with"
        "\n`remuda drill undo`."
    )


def render_drills() -> Table:
    """An example begins with the drill's name, so the two columns say all and fit a narrow terminal."""
    table = plain_table("remuda drill ...", "WHAT HAPPENS", words=("WHAT HAPPENS",))
    for facts in DRILLS.values():
        table.add_row(facts.example, f"{facts.does}." + (f" Undo: {facts.undoing}." if facts.undoing else ""))
    return table


def _example_command(facts: DrillKindFacts) -> str:
    return f"remuda drill {facts.example}"


_OPTIONS = {
    "code": click.option("--code", default=DEFAULT_CODE, show_default=True, help="Fault code: 79, xid-79, ecc-dbe ..."),
    "heals": click.option(
        "--heals",
        default="",
        metavar="reset|reboot|replace|never",
        help="What cures the device.  [default: what the fault code needs]",
    ),
    "times": click.option("--times", type=int, metavar="N", help="How many times."),
    "factor": click.option("--factor", type=float, metavar="X", help="How many times slower."),
    "seconds": click.option(
        "--seconds", type=DURATION, metavar="TIME", help="How long it lasts; for notices, how long until it happens."
    ),
}
_NUMBERS: dict[DrillKind, tuple[str, ...]] = {
    DrillKind.DEVICE_FAIL: ("code", "heals", "seconds"),
    DrillKind.DEVICE_FLAP: ("times",),
    DrillKind.DEVICE_SLOW: ("factor", "seconds"),
    DrillKind.ECC_TREND: ("times",),
    DrillKind.POWER_CAP: ("factor", "seconds"),
}
_HELP = {
    Aim.DEVICE: "\n\nOr name the device: --node node-03 --device gpu-2",
    Aim.NODE: "\n\nWith --rank, give a job instead of NODE: its rank's node is hit.",
    Aim.PLUGIN: "\n\nWith --rank, give a job instead of NODE: its rank's node is hit. --resource names the plugin.",
}


def _drill_options(kind: DrillKind, facts: DrillKindFacts) -> list[Callable[[F], F]]:
    numbers = _NUMBERS.get(kind, ("seconds",) if facts.lasts else ())
    found: list[Callable[[F], F]] = [_OPTIONS[name] for name in numbers]
    if facts.aim is Aim.DEVICE:
        found.append(
            click.option(
                "--device",
                default="",
                metavar="NAME",
                help="Which device: gpu-2.  [default: the first one of the rank]",
            )
        )
        found.append(click.option("--node", default="", metavar="NAME", help="Which node, when no job is named."))
    if facts.aim is Aim.PLUGIN:
        found.append(
            click.option("--resource", default="", metavar="NAME", help="Which plugin.  [default: nvidia.com/gpu]")
        )
    found.append(output_option(formats=("table", "json", "yaml")))
    found.append(click.option("--spare", is_flag=True, help="Hit a spare of the job instead of a rank."))
    found.append(click.option("--rank", type=int, metavar="N", help="Which rank."))
    return found


def _add_drill_command(kind: DrillKind, facts: DrillKindFacts) -> None:
    on_node = facts.aim in (Aim.NODE, Aim.PLUGIN)

    @with_session
    def command(
        session: Session, form: str, rank: int | None, spare: bool, job: str | None = None, **said: Any
    ) -> None:
        by_job = not on_node or rank is not None or spare
        if not by_job:
            said["node"] = job or ""
        target = DrillTarget(name=(job or "") if by_job else "", rank=rank, spare=spare, **said)
        asyncio.run(_carry_out_drill(session, kind, target, form))

    made: Any = command
    for option in _drill_options(kind, facts):
        made = option(made)
    made = click.argument("job", required=facts.aim is not Aim.DEVICE, metavar="NODE" if on_node else "JOB")(made)
    text = f"{facts.does}.\n\nExample: {_example_command(facts)}{_HELP.get(facts.aim, '')}"
    drill.command(kind.value, help=text)(made)


for _kind, _facts in DRILLS.items():
    _add_drill_command(_kind, _facts)


@drill.command("undo")
@click.argument("name", required=False)
@with_session
def undo(session: Session, name: str | None) -> None:
    """Undo a drill. Without NAME, list the drills that can be undone."""
    asyncio.run(_undo_drill(session, name))


async def _undo_drill(session: Session, name: str | None) -> None:
    from remuda.api.drills import Drill
    from remuda.api.errors import NotFound, Refusal
    from remuda.cli.lookup import nearest_name_hint
    from remuda.cli.text import age_text

    async with session.connect() as cluster:
        lasting = [
            d for d in (await cluster.list(Drill)).items if d.status.phase == "Done" and DRILLS[d.spec.type].lasts
        ]
        if name is None:
            if not lasting:
                click.echo("Nothing to undo.")
                return
            table = plain_table("DRILL", "SINCE", "WHAT IT DID", right=("SINCE",), words=("WHAT IT DID",))
            for d in lasting:
                table.add_row(d.name, age_text(d.status.time, session.clock()), d.status.message)
            print_screen(table)
            return
        try:
            found = await cluster.get(Drill, name)
        except NotFound:
            fix = nearest_name_hint(name, [d.name for d in lasting], "No drill can be undone now.")
            raise Refusal("DrillNotFound", f"There is no drill `{name}`.", fix) from None
        if not DRILLS[found.spec.type].lasts:
            raise Refusal(
                "CannotBeUndone",
                f"A {found.spec.type} cannot be undone.",
                "Wait for the recovery, or repair what it broke. `remuda drill undo` lists what can be undone.",
            )
        if found.status.phase == "Undone":
            since = age_text(found.status.undone_at, session.clock())
            raise Refusal(
                "AlreadyUndone",
                f"`{name}` was undone {since} ago ({found.status.reason}).",
                "`remuda drill undo` lists what can be undone.",
            )
        found = await cluster.patch(Drill, name, {"spec": {"undo": True}})
        found = await _await_drill(cluster, found, "Undone")
    click.echo(f"Undone: {DRILLS[found.spec.type].undoing}.")


async def _carry_out_drill(session: Session, kind: DrillKind, target: DrillTarget, form: str) -> None:
    from remuda.api.drills import Drill
    from remuda.api.errors import Refusal
    from remuda.api.meta import ObjectMeta
    from remuda.api.validation.validate import validate
    from remuda.cli.lookup import find_job, find_node

    async with session.connect() as cluster:
        if target.name and target.node:
            raise Refusal(
                "TwoTargets", "You named both a job and a node.", "Give JOB with --rank, or --node with --device."
            )
        if target.spare and target.rank is not None:
            raise Refusal("TwoTargets", "You named both a rank and a spare.", "Give --rank or --spare.")
        job = await find_job(cluster, target.name, session.namespace) if target.name else None
        spec = aim_drill(kind, job, target, session.namespace)
        if spec.node:
            await _check_device_option(await find_node(cluster, spec.node), spec)
        if spec.code and (note := unknown_drill_code_option_note(spec.code)):
            click.echo(f"note: {note}", err=True)
        body = Drill(metadata=ObjectMeta(generate_name=f"{kind.value}-"), spec=spec)
        validate(body)
        made = await cluster.create(Drill, body)
        done = await _await_drill(cluster, made)
    if is_document_output_form(form):
        print_document(form, output_object_document(done))
    if done.status.phase != "Done":
        raise Refusal(done.status.reason or "DrillRefused", done.status.message or "The drill was refused.")
    if not is_document_output_form(form):
        who = f"{_victim_words(target)} of {target.name}: " if target.name else ""
        click.echo(f"Done: {who}{printable_line(done.status.message)}")
        click.echo(f"Watch: {session.command_line(f'job {target.name} -w' if target.name else 'devices')}")
        if DRILLS[kind].lasts:
            click.echo(f"Undo:  {session.command_line(f'drill undo {done.name}')}")


def _victim_words(target: DrillTarget) -> str:
    return "spare" if target.spare else f"rank {target.rank}"


async def _check_device_option(node: Any, spec: DrillSpec) -> None:
    from remuda.api.errors import Refusal
    from remuda.cli.text import compact_names

    known = [d.id for d in node.observed.devices]
    if spec.device and spec.device not in known:
        raise Refusal(
            "DeviceNotFound", f"{spec.node} has no device `{spec.device}`.", f"It has {compact_names(known)}."
        )


async def _await_drill(cluster: Cluster, made: Drill, phase: str = "") -> Drill:
    """The drill once it was carried out or refused; with `phase`, once it has got that far. A drill that nobody has taken by then
    is withdrawn: it must not happen later, when nobody expects it."""
    from remuda.api.drills import UNDER_WAY, Drill
    from remuda.api.selectors import parse_api_field_selector
    from remuda.cli.errors import Failed

    fields = parse_api_field_selector(f"metadata.name={made.name}")
    noting = asyncio.get_running_loop().call_later(NOTE_AFTER_S, _note_waiting, made)
    last = made
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for event in cluster.watch(Drill, made.metadata.resource_version, fields=fields):
                last = event.obj or last
                if last.status.phase == phase if phase else last.status.phase not in UNDER_WAY:
                    return last
    except TimeoutError:
        pass
    finally:
        noting.cancel()
    look = f"Check `remuda status` and `remuda get drills {made.name} -o yaml`."
    if phase:
        raise Failed("DrillPending", f"Drill {made.name} was not {phase.lower()} within {DEADLINE_S:g} s.", look)
    withdrawn = await _withdraw_drill(cluster, made)
    if withdrawn is None:
        raise Failed(
            "NobodyTookIt",
            f"Nobody carried out drill {made.name} within {DEADLINE_S:g} s. It is withdrawn; nothing was broken.",
            "Look at the log of the node's agent, or at `remuda status` where `remuda up` runs the node.",
        )
    if withdrawn.status.phase in UNDER_WAY:
        words = f"Drill {made.name} was begun, and there was no answer within {DEADLINE_S:g} s."
        raise Failed("DrillPending", words, look)
    return withdrawn


async def _withdraw_drill(cluster: Cluster, made: Drill) -> Drill | None:
    """None when it is gone and never happened; else the drill, which somebody took in the last moment."""
    from remuda.api.drills import Drill
    from remuda.api.errors import Conflict, NotFound
    from remuda.kube.cluster import Preconditions

    while True:
        try:
            found = await cluster.get(Drill, made.name)
            if found.uid != made.uid or found.status.phase != "Pending":
                return found
            when = Preconditions(uid=found.uid, resource_version=found.metadata.resource_version)
            await cluster.delete(Drill, made.name, when=when)
        except NotFound:
            return None
        except Conflict:
            continue
        return None


def _note_waiting(made: Drill) -> None:
    spec = made.spec
    where = spec.node or f"pod {spec.namespace}/{spec.pod}"
    click.echo(f"note: waiting for {where} to answer drill {made.name} (up to {DEADLINE_S:g} s)", err=True)

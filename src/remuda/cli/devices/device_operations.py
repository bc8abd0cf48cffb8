"""`remuda probe`, `quarantine`, `release`: what an operator does to one device.

A quarantine is lifted by its operator's word or by a probe that passed, never by a restart. A probe is an order to the agent,
taken away again once it is answered.
"""

from __future__ import annotations

import asyncio
import getpass
import uuid
from typing import TYPE_CHECKING

import click

from remuda.cli.durations import DURATION
from remuda.cli.safe_text import printable_line
from remuda.cli.session import Session, with_session

if TYPE_CHECKING:
    from remuda.api.devices import NodeDevices, OrderAnswer
    from remuda.api.errors import Refusal
    from remuda.kube.cluster import Cluster

LOOK_S, LATE_S = 0.2, 2.0
_TIMEOUT = click.option(
    "--timeout", type=DURATION, default=60.0, show_default="60s", metavar="TIME", help="How long the probe may take."
)


async def find_device_for_command(cluster: Cluster, node: str, device: str) -> NodeDevices:
    """Refusal NodeNotFound or DeviceNotFound."""
    from remuda.api.errors import Refusal
    from remuda.cli.lookup import find_node, nearest_name_hint

    found = await find_node(cluster, node)
    names = [d.id for d in found.observed.devices]
    if device not in names:
        raise Refusal(
            "DeviceNotFound",
            f"{node} has no device `{device}`.",
            nearest_name_hint(device, names, "It has none."),
            "device",
        )
    return found


async def probe_device_by_command(
    session: Session, cluster: Cluster, node: str, device: str, timeout_s: float
) -> OrderAnswer:
    """The answer; one that did not come in time is TimedOut."""
    from remuda.api.codec import to_wire
    from remuda.api.devices import DeviceOrder, NodeDevices, OrderAnswer
    from remuda.api.meta import to_time

    id, now = f"probe-{uuid.uuid4().hex[:12]}", session.clock()
    order = DeviceOrder("probe", device, by=getpass.getuser(), since=to_time(now), deadline=to_time(now + timeout_s))
    await cluster.patch(NodeDevices, node, {"orders": {id: to_wire(order)}})
    try:
        async with asyncio.timeout(timeout_s + LATE_S):
            while True:
                found = await cluster.get(NodeDevices, node)
                answer = next((a for a in found.observed.answers if a.id == id), None)
                if answer is not None and answer.outcome != "Running":
                    return answer
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        pass
    finally:
        await cluster.patch(NodeDevices, node, {"orders": {id: None}})
    return OrderAnswer(id, "probe", "TimedOut", device, "NoAnswer", f"The agent of {node} did not answer.")


@click.command()
@click.argument("node")
@click.argument("device")
@_TIMEOUT
@with_session
def probe(session: Session, node: str, device: str, timeout: float) -> int:
    """Test one device now and wait for the result. A pass clears what was reported against the device; a failure counts against
    it. Exit code 1 when it does not pass."""

    async def run() -> OrderAnswer:
        async with session.connect() as cluster:
            await find_device_for_command(cluster, node, device)
            return await probe_device_by_command(session, cluster, node, device, timeout)

    answer = asyncio.run(run())
    if answer.outcome == "Succeeded":
        click.echo(f"{device} of {node} passed: {printable_line(answer.message)}")
        return 0
    click.echo(f"{device} of {node} did not pass ({answer.reason or answer.outcome}): {printable_line(answer.message)}")
    return 1


@click.command()
@click.argument("node")
@click.argument("device")
@click.option("--why", default="", metavar="TEXT", help="The reason, needed; shown wherever the device is listed.")
@with_session
def quarantine(session: Session, node: str, device: str, why: str) -> None:
    """Take a device out of use until it is released, whatever it reports. The pod that holds it is treated as if the device had
    failed: a training job moves the rank; for other pods their annotation decides. Who that is, and what becomes of them, is
    printed."""
    from remuda.api.codec import to_wire
    from remuda.api.devices import NodeDevices, QuarantineOrder
    from remuda.api.errors import Refusal
    from remuda.api.meta import to_time
    from remuda.core.remedies.policies import BY_OPERATOR
    from remuda.kube.cluster import Preconditions

    if not why.strip():
        line = session.command_line(f'quarantine {node} {device} --why "smells burnt"')
        raise Refusal("ReasonMissing", "A quarantine needs a reason.", f"Add why: {line}")
    order = QuarantineOrder(BY_OPERATOR, why, getpass.getuser(), to_time(session.clock()))

    async def run() -> list[str]:
        async with session.connect() as cluster:
            found = await find_device_for_command(cluster, node, device)
            before = found.quarantine.get(device)
            if before is not None:
                raise Refusal(
                    "AlreadyQuarantined",
                    f"{device} of {node} is quarantined by {before.by or 'somebody'}: {before.reason}. {before.message}",
                    f"Nothing to do. `remuda release {node} {device}` puts it back into use.",
                )
            hit = await _quarantine_effects(cluster, found, device)
            when = Preconditions(resource_version=found.metadata.resource_version)
            await cluster.patch(NodeDevices, node, {"quarantine": {device: to_wire(order)}}, when=when)
            return hit

    hit = asyncio.run(run())
    click.echo(f"{device} of {node} is quarantined. {hit[0]}")
    for line in hit[1:]:
        click.echo(f"  {line}")
    click.echo(f"To put it back into use: {session.command_line(f'release {node} {device} --after-probe')}")


async def _quarantine_effects(cluster: Cluster, found: NodeDevices, device: str) -> list[str]:
    """Who holds it, and what becomes of them, below a first sentence. Whoever may quarantine need not be allowed to read that."""
    from remuda.api.errors import ApiError
    from remuda.api.kubernetes.core_v1 import Node, Pod
    from remuda.api.remedies import RemedyPolicy
    from remuda.api.training import TrainingJob
    from remuda.cli.devices.quarantine_effects import quarantine_effect_lines
    from remuda.core.remedies.policies import policy_in_force, remedy_policy_for

    try:
        pods, jobs = (await cluster.list(Pod)).items, (await cluster.list(TrainingJob)).items
        labels = (await cluster.get(Node, found.name)).labels
        policies = [policy_in_force(policy) for policy in (await cluster.list(RemedyPolicy)).items]
    except ApiError as error:
        return [f"Who holds it could not be read: {printable_line(error.message)}."]
    rows = found.observed.devices
    policy = remedy_policy_for(rows[0].type if rows else "", labels, policies)
    lines = [printable_line(line) for line in quarantine_effect_lines(found, device, pods, jobs, policy)]
    return ["It was in use:", *lines] if lines else ["Nobody holds it."]


@click.command()
@click.argument("node")
@click.argument("device", default="")
@click.option(
    "--resource", default="", metavar="NAME", help="Instead of a device: a resource that is withheld on the node."
)
@click.option("--after-probe", is_flag=True, help="Release it only if a probe passes.")
@_TIMEOUT
@with_session
def release(session: Session, node: str, device: str, resource: str, after_probe: bool, timeout: float) -> int:
    """Put a quarantined device back into use; its own reports count again. A device that was quarantined for flapping
    is quarantined again at once unless a probe has passed: use --after-probe."""
    from remuda.api.devices import NodeDevices
    from remuda.api.errors import Refusal
    from remuda.kube.cluster import Preconditions

    if not device and not resource:
        raise asyncio.run(_nothing_named_for_release(session, node))
    if device and resource:
        fix = "Use `remuda release NODE DEVICE` or `remuda release NODE --resource nvidia.com/gpu`."
        raise Refusal("NothingToRelease", "Name a device or a resource of the node, not both.", fix)

    async def give_back() -> str:
        async with session.connect() as cluster:
            return await release_device_resource_by_command(cluster, node, resource)

    if resource:
        click.echo(asyncio.run(give_back()))
        return 0

    async def run() -> str:
        async with session.connect() as cluster:
            found = await find_device_for_command(cluster, node, device)
            if device not in found.quarantine:
                raise Refusal(
                    "NotQuarantined", f"{device} of {node} is not quarantined.", "See `remuda devices -o wide`."
                )
            if after_probe:
                answer = await probe_device_by_command(session, cluster, node, device, timeout)
                if answer.outcome != "Succeeded":
                    return f"{answer.reason or answer.outcome}: {answer.message}"
                found = await find_device_for_command(cluster, node, device)
            else:
                await _check_no_incident_keeps_it(cluster, node, device, found.quarantine[device].incident)
            when = Preconditions(resource_version=found.metadata.resource_version)
            await cluster.patch(NodeDevices, node, {"quarantine": {device: None}}, when=when)
            return ""

    wrong = asyncio.run(run())
    if wrong:
        click.echo(f"{device} of {node} stays quarantined. {wrong}")
        return 1
    click.echo(f"{device} of {node} is released.")
    return 0


async def _nothing_named_for_release(session: Session, node: str) -> Refusal:
    from remuda.api.errors import Refusal
    from remuda.cli.lookup import find_node

    async with session.connect() as cluster:
        found = await find_node(cluster, node)
    lines = [f"{node} {device}" for device in sorted(found.quarantine)]
    lines += [f"{node} --resource {resource}" for resource in sorted(found.withheld)]
    kept = " or ".join(f"`{session.command_line(f'release {line}')}`" for line in lines)
    fix = f"Write {kept}." if kept else f"Nothing is quarantined or withheld on {node}."
    return Refusal("NothingToRelease", f"Which device of {node} is meant?", fix)


async def _check_no_incident_keeps_it(cluster: Cluster, node: str, device: str, incident: str) -> None:
    """An open incident gives its order again at its next look, so taking it away would be no release."""
    from remuda.api.errors import NotFound, Refusal
    from remuda.api.incidents import Incident

    try:
        is_open = bool(incident) and (await cluster.get(Incident, incident)).is_open
    except NotFound:
        return
    if is_open:
        raise Refusal(
            "IncidentOpen",
            f"The open incident {incident} would quarantine {device} of {node} again at once.",
            f'Add --after-probe, or close the incident first: remuda incident {incident} --dismiss "why".',
        )


async def release_device_resource_by_command(cluster: Cluster, node: str, resource: str) -> str:
    """What became of it. Refused when it is not withheld there."""
    from remuda.api.devices import NodeDevices
    from remuda.cli.lookup import find_node
    from remuda.core.foreign.withheld_resources import release_withheld_resource
    from remuda.kube.cluster import Preconditions

    found = await find_node(cluster, node)
    patch = release_withheld_resource(found, resource)
    when = Preconditions(resource_version=found.metadata.resource_version)
    await cluster.patch(NodeDevices, node, patch, when=when)
    return f"{resource} may be used on {node} again. Earlier refusals there no longer count."

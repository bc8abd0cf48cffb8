"""Whom a drill hits: from how people say it (a job and a rank, a node, a device) to the exact Drill. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from remuda.api.drills import DrillKind, DrillSpec
    from remuda.api.training import Member, SparePod, TrainingJob

DEFAULT_CODE = "xid-79"


class DrillTarget(msgspec.Struct, frozen=True):
    """Who is to be hit, as said on the command line."""

    name: str = ""  # a job
    rank: int | None = None
    spare: bool = False
    pod: str = ""
    node: str = ""
    device: str = ""
    code: str = DEFAULT_CODE
    resource: str = ""
    heals: str = ""
    times: int | None = None
    factor: float | None = None
    seconds: float | None = None


def parse_fault_code_option(text: str) -> str:
    """79, xid79, `Xid 79` and xid-79 are the same, whichever number; other codes (ecc-dbe) must be in the fault table."""
    from remuda.api.errors import Refusal
    from remuda.core.devices.fault_codes import fault_table

    code = text.strip().lower()
    match = re.fullmatch(r"(?:xid[\s_-]*)?(\d+)", code)
    if match:
        return f"xid-{int(match[1])}"
    if code not in fault_table().by_code:
        fix = "Write an Xid number, say --code 79, or a code of the fault table, say ecc-dbe or nvlink-down."
        raise Refusal("InvalidFaultCode", f"`{text}` is not a fault code.", fix)
    return code


def unknown_drill_code_option_note(code: str) -> str:
    """What becomes of a device with a code that the fault table does not know; "" for a known one."""
    from remuda.core.devices.fault_codes import fault_table

    if code in fault_table().by_code:
        return ""
    return f"The fault table does not know {code}, so the device is Unhealthy (UnknownFaultCode) until somebody looks at it."


def _check_number_option(number: float | None, least: float, most: float, name: str) -> None:
    """A number that was said; one that was not takes its default."""
    from remuda.api.errors import Refusal

    if number is not None and not least <= number <= most:
        reason = f"Invalid{name.capitalize()}"
        raise Refusal(reason, f"--{name} {number:g} is out of range.", f"Give a number from {least:g} to {most}.")


def pod_meant_by_drill_options(job: TrainingJob, target: DrillTarget) -> Member | SparePod:
    """The member or spare of the job that is meant."""
    from remuda.api.errors import Refusal
    from remuda.cli.text import printed_number_ranges

    status = job.status
    if job.is_finished:
        raise Refusal(
            "JobFinished",
            f"`{job.name}` has ended ({status.phase}).",
            "Start a new job with `remuda train`, or choose a running one from `remuda jobs`.",
        )
    if target.spare:
        found = next((s for s in status.spares if s.parked), next(iter(status.spares), None))
        if found is None or not found.node:
            raise Refusal("NoSpare", f"`{job.name}` has no running spare.", "Start the job with --spares N, or wait.")
        return found
    if not status.members:
        raise Refusal("NotPlaced", f"`{job.name}` has no pods yet ({status.phase}).", "Wait until it runs.")
    if target.rank is None:
        raise Refusal(
            "NoTarget", f"Which pod of `{job.name}`?", f"Add --rank (0 to {len(status.members) - 1}) or --spare."
        )
    member = next((m for m in status.members if m.rank == target.rank), None)
    if member is None:
        ranks = printed_number_ranges([m.rank for m in status.members])
        raise Refusal("RankNotFound", f"`{job.name}` has no rank {target.rank}.", f"Ranks: {ranks}.")
    return member


def aim_drill(kind: DrillKind, job: TrainingJob | None, target: DrillTarget, namespace: str) -> DrillSpec:
    """The exact drill. `job` is the one named, if one was."""
    from remuda.api.drills import DEFAULT_FACTOR, DEFAULT_SECONDS, DEFAULT_TIMES, DRILLS, Aim, DrillKind, DrillSpec
    from remuda.api.errors import Refusal
    from remuda.api.names import RESOURCE_GPU

    facts = DRILLS[kind]
    where = pod_meant_by_drill_options(job, target) if job is not None else None
    node = where.node if where else target.node
    _check_number_option(target.times, 1, 100_000, "times")
    _check_number_option(target.factor, 1, 100, "factor")
    _check_number_option(target.seconds, 0.001, 86_400, "seconds")
    drill = DrillSpec(
        type=kind,
        times=target.times if target.times is not None else DEFAULT_TIMES.get(kind, 0),
        factor=target.factor if target.factor is not None else DEFAULT_FACTOR.get(kind, 0.0),
        seconds=target.seconds if target.seconds is not None else DEFAULT_SECONDS.get(kind, 0.0),
    )
    if facts.aim is Aim.POD:
        if where is None:
            raise Refusal("NoTarget", "No job is named.", f"Write: remuda drill {facts.example}")
        return replace(drill, node=where.node, pod=where.pod, namespace=namespace)
    if facts.aim is Aim.DEVICE:
        device = target.device or (where.devices[0] if where and where.devices else "")
        if not node or not device:
            raise Refusal("NoTarget", "No device is named.", "Give a job and --rank, or --node and --device.")
        if where is not None and device not in where.devices:
            has = ", ".join(where.devices) or "none"
            raise Refusal("NotItsDevice", f"{where.pod} does not hold {device}.", f"It holds: {has}.")
        code = parse_fault_code_option(target.code) if kind is DrillKind.DEVICE_FAIL else ""
        return replace(drill, node=node, device=device, code=code, heals=target.heals)
    if not node:
        raise Refusal(
            "NoTarget", "No node is named.", f"Write: remuda drill {facts.example}, or give a job and --rank."
        )
    resource = (target.resource or RESOURCE_GPU) if facts.aim is Aim.PLUGIN else ""
    return replace(drill, node=node, resource=resource)

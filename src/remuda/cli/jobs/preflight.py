"""Looks before a job is created: what would certainly fail later, refused now. Each check is a function of what it is told.

They are a courtesy to the person at the keyboard, not a rule of the API: a job that comes another way meets the same
problems as a Failed phase with the same reasons.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from remuda.api.codec import from_wire
from remuda.api.devices import NodeDevices
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node, PodSpec
from remuda.api.training import Role, TrainingJob, gpus_in_role_spec
from remuda.cli.text import plural_text
from remuda.core.state.cluster_capacity import node_amounts, sum_capacity
from remuda.core.training.gang_size import job_too_large

_INTERPRETERS = ("python", "bash", "sh")


def job_name_taken(job: TrainingJob) -> Refusal:
    return Refusal(
        "JobNameTaken",
        f"There is already a job `{job.name}` in namespace {job.namespace}.",
        f"Choose another name, or delete that job first: remuda delete {job.name}",
    )


def preflight_job_gpus(job: TrainingJob, devices: Iterable[NodeDevices]) -> None:
    """No pod may ask for more than the largest node has, whatever is free now."""
    largest = max((len(d.observed.devices) for d in devices), default=None)
    if largest is None:
        return
    for role in job.spec.roles:
        asked = gpus_in_role_spec(role)
        if asked > largest:
            total = asked * role.replicas
            fix = f"Ask for at most {largest} GPUs per pod, and for more pods"
            if largest:
                fix += f": --replicas {-(-total // largest)} --gpus {largest}"
            raise Refusal(
                "GpusExceedNode",
                f"Each {role.name} pod asks for {asked} GPUs; the largest node has {largest}.",
                f"{fix}.",
                "spec.roles.gpus",
            )


def preflight_default_topology(
    replicas: int, spares: int, gpus: int, label: str, nodes: Iterable[Node], devices: Iterable[NodeDevices]
) -> tuple[str, str]:
    """(label or "", a note or ""). Gangs belong into one rack, unless no rack could ever hold them with their spares."""
    room, total = _count_room(replicas + spares, gpus, label, nodes, devices)
    if not room:
        return "", ""
    if max(room.values()) >= replicas + spares:
        return label, ""
    if total < replicas:
        return "", ""  # `preflight_job_wait_reason` says more
    what = plural_text(replicas, "pod") + (f" and {plural_text(spares, 'spare')}" if spares else "")
    return (
        "",
        f"No rack is big enough for {what} with {gpus} GPUs each, so the job may span racks. Use --topology rack to insist.",
    )


def _count_room(
    pods: int, gpus: int, label: str, nodes: Iterable[Node], devices: Iterable[NodeDevices]
) -> tuple[dict[str, int], int]:
    """How many pods of so many GPUs there would be room for in each domain of the label, and in all, if nothing else ran. Pods
    without GPUs fit everywhere."""
    size = {d.name: len(d.observed.devices) for d in devices}
    room: dict[str, int] = {}
    total = 0
    for node in nodes:
        fits = size.get(node.name, 0) // gpus if gpus else pods
        total += fits
        if label in node.labels:
            room[node.labels[label]] = room.get(node.labels[label], 0) + fits
    return room, total


def preflight_job_wait_reason(job: TrainingJob, nodes: Sequence[Node], devices: Sequence[NodeDevices]) -> str:
    """Why the job would wait even if nothing else ran; "" when it would not. It is allowed: nodes may come."""
    ledgers = {d.name: d for d in devices}
    if not any(d.observed.devices for d in devices):
        return ""  # before nodes have reported nobody can tell
    capacity = sum_capacity(node_amounts(node, ledgers.get(node.name)) for node in nodes)
    too_large = job_too_large(job, capacity)
    return (
        f"{too_large.message} {too_large.fix}"
        if too_large is not None
        else preflight_topology_note(job, nodes, devices)
    )


def preflight_topology_note(job: TrainingJob, nodes: Sequence[Node], devices: Sequence[NodeDevices]) -> str:
    """For a job that insists on one domain: why it waits even in an empty cluster, or "". It is allowed: nodes may come."""
    label = job.spec.topology.required
    if not label or not nodes:
        return ""
    name = label.rpartition("/")[2]
    for role in job.spec.roles:
        gpus = gpus_in_role_spec(role)
        room, _ = _count_room(role.replicas, gpus, label, nodes, devices)
        if not room:
            return f"No node has the label {label}, so the job waits. Label the nodes, or use --topology rack or none."
        if max(room.values()) < role.replicas:
            what = f"{plural_text(role.replicas, 'pod')} with {gpus} GPUs each"
            return (
                f"No {name} is big enough for {what} (the largest has room for {max(room.values())}), so the job waits. "
                "Ask for fewer pods, or use --topology none."
            )
    return ""


def check_job_image(job: TrainingJob) -> None:
    """For clusters that run containers, where nothing of this machine is."""
    for role in job.spec.roles:
        if not preflight_pod_spec(role).containers[0].image:
            raise Refusal(
                "NoImage",
                f"Role {role.name} names no container image, and this cluster runs nothing else.",
                "Name one that has python3 and your program: --image NAME, or `image:` in the file. "
                "examples/01-hello-gang/job.yaml shows it.",
                "image",
            )


def preflight_job_workdir(job: TrainingJob) -> None:
    for role in job.spec.roles:
        directory = preflight_pod_spec(role).containers[0].working_dir
        if directory and not os.path.isdir(directory):
            raise Refusal(
                "WorkdirNotFound",
                f"The working directory {directory} does not exist.",
                "Name an existing one with --workdir.",
                "workingDir",
            )


def preflight_job_command(job: TrainingJob, outer: Mapping[str, str], bin_directory: str) -> None:
    """The command must be found where the launcher will look: PATH with our own bin first, or the working directory."""
    for role in job.spec.roles:
        container = preflight_pod_spec(role).containers[0]
        if container.image:
            continue
        words = [*container.command, *container.args]
        directory = container.working_dir or "/"
        env = {variable.name: variable.value for variable in container.env}
        path = env.get("PATH") or f"{bin_directory}{os.pathsep}{outer.get('PATH', os.defpath)}"
        if "$(" in words[0]:
            continue  # known only on the node
        found = _check_program(words[0], directory, path)
        if found:
            raise found
        if script := _script_of(words):
            target = os.path.join(directory, script)
            if not os.path.isfile(target):
                raise Refusal(
                    "CommandNotFound",
                    f"{target} does not exist.",
                    "Check the name, or give its directory with --workdir DIR.",
                    "command",
                )


def _check_program(command: str, directory: str, path: str) -> Refusal | None:
    if os.sep in command:
        target = os.path.join(directory, command)
        if not os.path.isfile(target):
            return Refusal(
                "CommandNotFound", f"{target} does not exist.", "Check the path, or give --workdir.", "command"
            )
        if not os.access(target, os.X_OK):
            return Refusal(
                "CommandNotExecutable",
                f"{target} is not executable.",
                f"Make it executable: chmod +x {target}",
                "command",
            )
        return None
    if shutil.which(command, path=path):
        return None
    fix = "Check the spelling, install it, or give its full path."
    if os.path.isfile(os.path.join(directory, command)):
        start = "python " if command.endswith(".py") else "./"
        fix = f"It is a file in {directory}: write `{start}{command}`."
    return Refusal("CommandNotFound", f"There is no command `{command}` on the PATH.", fix, "command")


def _script_of(words: list[str]) -> str:
    """The script of `python train.py`; options before it make it somebody else's business."""
    name = os.path.basename(words[0])
    if len(words) > 1 and name.startswith(_INTERPRETERS) and not words[1].startswith("-") and "$(" not in words[1]:
        return words[1]
    return ""


def preflight_job_checkpoint(job: TrainingJob) -> None:
    """The path, or the nearest directory above it that exists, must take a file. Nothing is left behind."""
    path = job.spec.checkpoint.path
    if not path:
        return
    place = Path(path)
    while not place.exists() and place != place.parent:
        place = place.parent
    problem = ""
    if not place.is_dir():
        problem = f"{place} is not a directory"
    else:
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            problem = f"{place}: {(error.strerror or str(error)).lower()}"
    if problem:
        raise Refusal(
            "CheckpointPathNotWritable",
            f"Checkpoints cannot be written to {path} ({problem}).",
            "Choose a directory you can write to with --checkpoint, or leave it out to use one made for the job.",
            "spec.checkpoint.path",
        )


def preflight_finds_checkpoints(directory: Path) -> bool:
    """Somebody has saved there before: a new job goes on from it."""
    return next(directory.glob("rank-*/step-*.json"), None) is not None


def preflight_pod_spec(role: Role) -> PodSpec:
    return from_wire(PodSpec, role.template.spec)

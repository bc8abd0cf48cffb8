"""A TrainingJob from what a user said: flags, or a YAML file. Pure; everything wrong is refused here, before anything is sent.

Relative paths mean something only where they were written: on the command line the current directory, in a file the
file's own directory. Both become absolute here, because ranks run elsewhere.
"""

from __future__ import annotations

import difflib
import os.path
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from remuda.api.codec import decode_strict
from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject
from remuda.api.training import UNLIMITED, Cause, TrainingJob
from remuda.api.validation.validate import validate
from remuda.runtime.up_config import RACK_LABEL

# Coat colours: a job without a name gets one that can be said aloud.
WORDS = (
    "bay roan dun sorrel pinto buckskin palomino grullo chestnut appaloosa cremello perlino dapple blaze overo tobiano "
    "champagne brindle flaxen sabino"
).split()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `remuda train`."""

    command: Sequence[str]
    name: str
    namespace: str = "default"
    replicas: int = 1
    gpus: int = 1
    spares: int = 0
    topology: str = ""  # a node label
    checkpoint: str = ""
    hang_after: float = 0.0
    total_steps: int = 0
    suspend: bool = False
    ttl: float | None = None
    deadline: float = 0.0
    env: Mapping[str, str] = {}
    budgets: Mapping[str, int] = {}
    image: str = ""
    workdir: str = ""


def build_job(asked: JobRequest) -> TrainingJob:
    """The job the flags describe, validated."""
    if not asked.command:
        raise Refusal(
            "NoCommand",
            "No training command was given.",
            "Put it last, after `--`: remuda train --replicas 8 --gpus 8 -- python train.py",
        )
    container: JsonObject = {"name": "main", "command": list(asked.command)}
    if asked.image:
        container["image"] = asked.image
    if asked.env:
        container["env"] = [{"name": k, "value": v} for k, v in asked.env.items()]
    if asked.workdir:
        container["workingDir"] = asked.workdir
    failure: JsonObject = {}
    if asked.hang_after:
        failure["hangAfterSeconds"] = asked.hang_after
    if asked.budgets:
        failure["budgets"] = dict(asked.budgets)
    spec: JsonObject = {
        "roles": [
            {
                "name": "worker",
                "replicas": asked.replicas,
                "gpus": asked.gpus,
                "template": {"spec": {"containers": [container]}},
            }
        ],
        "spares": asked.spares,
        "topology": {"required": asked.topology} if asked.topology else {},
        "checkpoint": {"path": asked.checkpoint} if asked.checkpoint else {},
        "failure": failure,
        "totalSteps": asked.total_steps,
        "suspend": asked.suspend,
        "activeDeadlineSeconds": asked.deadline,
    }
    if asked.ttl is not None:
        spec["ttlSecondsAfterFinished"] = asked.ttl
    try:
        return checked_job({"metadata": {"name": asked.name, "namespace": asked.namespace}, "spec": spec})
    except Refusal as refusal:
        raise _in_words_of_flags(refusal) from None


# The field of a refusal, and the flag that the value came from.
_FLAGS = {
    "spec.roles[0].replicas": "--replicas",
    "spec.roles[0].gpus": "--gpus",
    "spec.spares": "--spares",
    "spec.topology.required": "--topology",
    "spec.checkpoint.path": "--checkpoint",
    "spec.failure.hangAfterSeconds": "--hang-after",
    "spec.totalSteps": "--total-steps",
    "spec.activeDeadlineSeconds": "--deadline",
    "spec.ttlSecondsAfterFinished": "--ttl",
    **{f"spec.failure.budgets.{cause}": f"--budget {cause}" for cause in Cause},
}
_TIMES = ("--hang-after", "--deadline", "--ttl")


def _in_words_of_flags(refusal: Refusal) -> Refusal:
    """Who wrote flags is told of flags."""
    field, message, fix = refusal.field, refusal.message, refusal.fix
    if ".env[" in field:
        return Refusal(refusal.reason, message.replace("Role `worker`", "--env"), "Give it another name.", "--env")
    flag = _FLAGS.get(field)
    if flag is None:
        return refusal
    if flag in _TIMES:
        message = re.sub(r" is (\S+)\.$", r" is \1 seconds.", message)
        fix = re.sub(r"^Give a number from (.*)\.$", r"Give a time from \1 seconds.", fix)
    return Refusal(refusal.reason, message.replace(field, flag), fix.replace(field, flag), flag)


def checked_job(body: JsonObject) -> TrainingJob:
    job = decode_strict(TrainingJob, body)
    validate(job)
    return job


def job_topology_option_label(asked: str) -> str:
    """`rack` is short for the rack's label, `none` for no requirement; anything else is a label itself."""
    if asked == "rack":
        return RACK_LABEL
    if asked == "none":
        return ""
    if not re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", asked):
        raise Refusal(
            "InvalidTopology",
            f"`{asked}` is not a node label.",
            f"Use `rack`, `none`, or a label such as {RACK_LABEL}.",
        )
    return asked


def parse_job_env_options(pairs: Iterable[str], outer: Mapping[str, str]) -> dict[str, str]:
    """K=V, or K alone for the value it has here."""
    env: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
            raise Refusal("InvalidEnv", f"`{pair}` does not set a variable.", "Write --env NAME=VALUE.")
        if not equals and name not in outer:
            raise Refusal("InvalidEnv", f"{name} has no value in this shell to pass on.", f"Write --env {name}=VALUE.")
        env[name] = value if equals else outer[name]
    return env


def parse_job_budget_options(texts: Iterable[str]) -> dict[str, int]:
    """`code=5,device=10`; `unlimited` for no limit."""
    budgets: dict[str, int] = {}
    causes = [cause.value for cause in Cause]
    for entry in (part.strip() for text in texts for part in text.split(",")):
        cause, equals, number = entry.partition("=")
        if cause not in causes:
            near = difflib.get_close_matches(cause, causes, n=1)
            fix = f"Did you mean `{near[0]}`?" if near else f"Causes: {', '.join(causes)}."
            raise Refusal("InvalidBudget", f"`{cause}` is not a cause of failures.", fix)
        if number in ("unlimited", "-1"):
            budgets[cause] = UNLIMITED
        elif equals and number.isascii() and number.isdigit():
            budgets[cause] = int(number)
        else:
            raise Refusal(
                "InvalidBudget",
                f"`{entry}` does not say how many failures of {cause} are allowed.",
                f"Write --budget {cause}=5, or {cause}=unlimited.",
            )
    return budgets


def derive_job_name(command: Sequence[str], taken: Collection[str], chance: random.Random) -> str:
    """<script>-<word>, free of those taken."""
    script = next((w for w in command if w.endswith((".py", ".sh"))), "")
    stem = re.sub(r"[^a-z0-9]+", "-", os.path.splitext(os.path.basename(script))[0].lower()).strip("-")[:30]
    stem = stem if stem and stem[0].isalpha() else "train"
    free = [name for word in WORDS if (name := f"{stem}-{word}") not in taken]
    if free:
        return chance.choice(free)
    number = 2
    while (name := f"{stem}-{chance.choice(WORDS)}-{number}") in taken:
        number += 1
    return name


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key said twice is an error; the last one would win silently."""


def _yaml_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if isinstance(key_node, yaml.ScalarNode):
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"`{key_node.value}` is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key_node.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _yaml_mapping)


def load_manifest_documents(text: str, source: str) -> list[Any]:
    """Everything between the `---` lines that is not empty."""
    try:
        return [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.MarkedYAMLError as error:
        raise _yaml_refusal(error, source) from None
    except yaml.YAMLError as error:
        raise Refusal(
            "InvalidYaml", f"{source}: {' '.join(str(error).split())}.", "Save the file as plain UTF-8 text."
        ) from None


def parse_manifest_documents(text: str, source: str) -> list[JsonObject]:
    """At least one mapping."""
    documents = load_manifest_documents(text, source)
    if not documents:
        raise Refusal("EmptyFile", f"{source} is empty.", "Write an object with apiVersion and kind.")
    for body in documents:
        if not isinstance(body, dict):
            raise Refusal(
                "NotAnObject",
                f"{source} has a document that is not an object.",
                "Start each document with `apiVersion:`.",
            )
    return documents


def parse_job_file(text: str, source: str) -> JsonObject:
    """The one document in `text`."""
    documents = load_manifest_documents(text, source)
    if not documents:
        raise Refusal("EmptyFile", f"{source} has no job in it.", "Write a TrainingJob, or use flags instead of -f.")
    if len(documents) > 1:
        raise Refusal(
            "SeveralDocuments",
            f"{source} has {len(documents)} documents, but a job is one.",
            "Split the file at `---` and start the jobs one by one.",
        )
    if not isinstance(documents[0], dict):
        raise Refusal(
            "NotAnObject",
            f"{source} is not an object.",
            "Start with `apiVersion: remuda.dev/v1alpha1`, `kind: TrainingJob`.",
        )
    return documents[0]


def _yaml_refusal(error: yaml.MarkedYAMLError, source: str) -> Refusal:
    mark = error.problem_mark or error.context_mark
    where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    what = error.problem or error.context or "it cannot be read"
    context = f" ({error.context})" if error.context and error.problem else ""
    fix = (
        "Indent with spaces only, not tabs."
        if "'\\t'" in what
        else "Fix that line: check its indentation, colons and quotes."
    )
    return Refusal("InvalidYaml", f"{source}{where}: {what}{context}.", fix)


def job_from_document(body: JsonObject, *, name: str, namespace: str, explicit_namespace: bool) -> TrainingJob:
    """The document as a TrainingJob. `name` (given on the command line) wins over the file's."""
    _check_job_kind(body)
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise Refusal("InvalidField", "`metadata` is not an object.", "Give it a name: `metadata: {name: my-job}`.")
    said = metadata.get("namespace")
    if said and explicit_namespace and said != namespace:
        raise Refusal(
            "NamespaceMismatch",
            f"The file says namespace `{said}` and -n says `{namespace}`.",
            "Leave one of them out.",
        )
    made = {**body, "metadata": {**metadata, "namespace": said or namespace}}
    made.pop("status", None)
    if name:
        made["metadata"]["name"] = name
    if not made["metadata"].get("name"):
        raise Refusal(
            "NoName", "The job has no name.", "Set metadata.name, or name it here: remuda train NAME -f FILE."
        )
    return checked_job(made)


def _check_job_kind(body: JsonObject) -> None:
    resource = TrainingJob.resource
    for field, right in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if body.get(field) != right:
            said = f"`{body[field]}`" if body.get(field) else "missing"
            raise Refusal("NotATrainingJob", f"`{field}` is {said}.", f"Write `{field}: {right}`.")


def job_with_workdir(job: TrainingJob, directory: str, *, override: bool) -> TrainingJob:
    """Local commands of a file run in `directory` unless they say where; a relative place starts from there.

    With an image the working directory is the image's business.
    """
    body = msgspec.to_builtins(job.spec)
    for role in body["roles"]:
        container = role["template"]["spec"]["containers"][0]
        if override:
            container["workingDir"] = directory
        elif not container.get("image"):
            container["workingDir"] = os.path.normpath(os.path.join(directory, container.get("workingDir") or ""))
    return msgspec.structs.replace(job, spec=msgspec.convert(body, type(job.spec)))

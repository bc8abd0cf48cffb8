"""A pod, or a template of pods, held against the table: what of it is refused and what is warned about. Pure.

Only what was written is looked at: the walk goes through the spec, not through the table. What is found is told once for each
entry of the table, at the first place, with the number of the others.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from remuda.api.checkpoint_volume import with_checkpoint_mount
from remuda.api.meta import JsonObject, Resource
from remuda.api.names import GROUP
from remuda.api.training import VOLUME_PATH
from remuda.embedded.pod_fields.field_table import NOT_MOUNTED, POD_FIELDS, FieldClaim, PodField, pod_field_table_path

MAX_WARNINGS: Final = 16  # clients read a bounded number of headers
_MAX_WORD: Final = 80  # of what the user wrote and we repeat
_TOKEN_VOLUMES: Final = "kube-api-access-"  # nobody asked for them: a real API server adds them to every pod
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage", "hugepages-")


class PodHost(msgspec.Struct, frozen=True):
    """What pods run on: in whose name, and whether any pod of the cluster is a process at all."""

    uid: int = 0
    gid: int = 0
    is_simulated: bool = False


class FieldFinding(msgspec.Struct, frozen=True):
    """Something a pod asks for and does not get. `path`: where; `others`: in how many places more."""

    path: str
    claim: FieldClaim
    said: str
    reason: str = ""
    fix: str = ""
    others: int = 0

    @property
    def place(self) -> str:
        return f"{self.path} (and {self.others} more)" if self.others else self.path

    @property
    def warning(self) -> str:
        return f"{self.place}: {self.said}"

    @property
    def refusal(self) -> str:
        return f"{self.reason}: {self.said}. {self.fix}"


def judge_pod_spec(spec: Any, host: PodHost, at: str = "spec") -> list[FieldFinding]:
    """What the pod of this spec would not get. `at`: the path of the spec in its object."""
    if not isinstance(spec, dict):
        return []
    look = _PodLook(spec, host)
    found: dict[tuple[str, FieldClaim, str], FieldFinding] = {}
    for key, finding in look.findings(spec, "", at):
        known = found.get(key)
        found[key] = finding if known is None else msgspec.structs.replace(known, others=known.others + 1)
    return list(found.values())


def is_pod_judged_as_processes(spec: JsonObject, host: PodHost) -> bool:
    """A pod with a container that names no command is simulated as a whole."""
    containers = [c for field in ("initContainers", "containers") for c in _objects_in(spec.get(field))]
    return not host.is_simulated and all(c.get("command") for c in containers)


def kind_has_pod_fields(resource: Resource) -> bool:
    """A pod, or a kind whose objects have templates of pods."""
    return (resource.group, resource.plural) in _WITH_PODS


def pod_specs_in(resource: Resource, body: JsonObject) -> Iterator[tuple[str, Any]]:
    """The pod specs that an object carries, each with its path."""
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return
    name = (resource.group, resource.plural)
    if name == ("", "pods"):
        yield "spec", spec
    elif name in _TEMPLATED:
        yield "spec.template.spec", _template_spec(spec)
    elif name == (GROUP, "trainingjobs"):
        for index, role in enumerate(_objects_in(spec.get("roles"))):
            pods = _template_spec(role)
            yield f"spec.roles[{index}].template.spec", _with_job_volume(pods, spec.get("checkpoint"))


def refused_pod_fields(
    resource: Resource, body: JsonObject, old: JsonObject | None, host: PodHost
) -> list[FieldFinding]:
    """What the pods of an object may not ask for; of a spec that was there before, nothing."""
    before = [] if old is None else [spec for _, spec in pod_specs_in(resource, old)]
    return [
        finding
        for at, spec in pod_specs_in(resource, body)
        if spec not in before
        for finding in judge_pod_spec(spec, host, at)
        if finding.claim is FieldClaim.REFUSED
    ]


def pod_field_warnings(resource: Resource, body: JsonObject, old: JsonObject | None, host: PodHost) -> list[str]:
    """The Warning headers for an object that was written: each once for all roles, none for pods that stayed as they were."""
    if not kind_has_pod_fields(resource):
        return []
    before = [] if old is None else [spec for _, spec in pod_specs_in(resource, old)]
    found: dict[tuple[str, FieldClaim, str], FieldFinding] = {}
    for at, spec in pod_specs_in(resource, body):
        for finding in judge_pod_spec(spec, host, at) if spec not in before else ():
            key = (finding.path.removeprefix(at), finding.claim, finding.said)
            known = found.get(key)
            others = finding.others if known is None else known.others + finding.others + 1
            found[key] = msgspec.structs.replace(known or finding, others=others)
    said: list[str] = []
    for finding in found.values():
        if finding.claim is FieldClaim.WARNED:
            said.append(finding.warning)
        elif resource.plural != "pods":
            said.append(f"{finding.place}: pods of this template are refused: {finding.refusal}")
    if len(said) > MAX_WARNINGS:
        rest = len(said) - MAX_WARNINGS + 1
        said[MAX_WARNINGS - 1 :] = [f"{rest} more fields are not honoured here: see docs/compatibility.md"]
    return said


_TEMPLATED: Final = frozenset((("apps", "deployments"), ("apps", "replicasets"), ("batch", "jobs")))
_WITH_PODS: Final = _TEMPLATED | {("", "pods"), (GROUP, "trainingjobs")}


def _template_spec(spec: JsonObject) -> Any:
    template = spec.get("template")
    return template.get("spec") if isinstance(template, dict) else None


def _with_job_volume(spec: Any, checkpoint: Any) -> Any:
    """As the job's pods will be. What is not well-formed is validation's to refuse."""
    volume = checkpoint.get("volume") if isinstance(checkpoint, dict) else None
    if not (isinstance(volume, dict) and volume and isinstance(spec, dict) and _objects_in(spec.get("containers"))):
        return spec
    sound = {**spec, "containers": _objects_in(spec["containers"]), "volumes": _objects_in(spec.get("volumes"))}
    return with_checkpoint_mount(sound, volume, str(checkpoint.get("path") or VOLUME_PATH))


def _objects_in(value: Any) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_Found = Iterator[tuple[tuple[str, FieldClaim, str], FieldFinding]]


class _PodLook:
    """One pod while it is looked at."""

    def __init__(self, spec: JsonObject, host: PodHost) -> None:
        self.host = host
        self.is_process = is_pod_judged_as_processes(spec, host)
        self.volumes = {str(v.get("name")): v for v in _objects_in(spec.get("volumes"))}

    def findings(self, value: JsonObject, path: str, at: str) -> _Found:
        """In one object. `path`: in the schema; `at`: in what was written."""
        for name, below in value.items():
            here, there = f"{path}.{name}" if path else name, f"{at}.{name}"
            if isinstance(below, list):
                for index, item in enumerate(below):
                    yield from self._place(item, f"{here}[]", f"{there}[{index}]", value)
            elif isinstance(below, dict) and f"{pod_field_table_path(here)}{{}}" in POD_FIELDS:
                yield from self._place(below, f"{here}{{}}", there, value)
            elif below is not None:
                yield from self._place(below, here, there, value)

    def _place(self, value: Any, path: str, at: str, beside: JsonObject) -> _Found:
        field = POD_FIELDS.get(pod_field_table_path(path))
        if field is None:
            return  # no field of a pod: the schema's to judge
        if field.is_section:
            if isinstance(value, dict):
                yield from self.findings(value, path, at)
            return
        judged = self._judged(value, field, beside)
        if judged is not None:
            if judged.claim is FieldClaim.REFUSED and field.is_process_only and not self.is_process:
                judged = msgspec.structs.replace(judged, claim=FieldClaim.WARNED)
            finding = FieldFinding(at, judged.claim, judged.said, judged.reason, judged.fix)
            yield (field.path, judged.claim, judged.said), finding

    def _judged(self, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
        """The entry, as it is for this value; None when there is nothing to say. `beside`: the object that has the field."""
        judge = _JUDGES.get(field.path)
        if judge is not None:
            return judge(self, value, field, beside)
        if field.claim is FieldClaim.HONOURED or _asks_nothing(value) or value in field.quiet:
            return None
        return field


def _asks_nothing(value: Any) -> bool:
    return value == "" or (isinstance(value, (list, dict)) and not value)


# -- the fields that are judged by more than whether they are set ---------------------------------------------------------


def _judge_mount(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    name = str(value.get("name")) if isinstance(value, dict) else ""
    volume = look.volumes.get(name)
    if volume is None or not isinstance(value, dict):
        return None  # validation's to refuse
    source = next((key for key, of in volume.items() if key != "name" and of is not None), "emptyDir")
    where = str(value.get("mountPath") or "")
    what = f"volume `{_clipped(name)}` ({_clipped(source)}) is not mounted at {_clipped(where)}"
    if source == "projected" and name.startswith(_TOKEN_VOLUMES):
        return _as_warning(field, f"{what}: pods get no account and no token here")
    if source == "hostPath" and _is_same_place(volume["hostPath"], value):
        said = "readOnly is not enforced: the process can write what its user can"
        return _as_warning(field, said) if value.get("readOnly") is True else None
    if source == "emptyDir" and posixpath.normpath(where) == "/dev/shm":
        return _as_warning(field, f"{what}: the machine's own /dev/shm is used, shared with everybody")
    return msgspec.structs.replace(field, said=f"{what}: {NOT_MOUNTED}")


def _is_same_place(host_path: Any, mount: JsonObject) -> bool:
    path = host_path.get("path") if isinstance(host_path, dict) else None
    return (
        isinstance(path, str)
        and not (mount.get("subPath") or mount.get("subPathExpr"))
        and posixpath.normpath(path) == posixpath.normpath(str(mount.get("mountPath") or ""))
    )


def _judge_user(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    return None if value == look.host.uid else _with_user(look, value, field)


def _judge_group(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    return None if value == look.host.gid else _with_user(look, value, field)


def _judge_non_root(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    return _with_user(look, value, field) if value is True and look.host.uid == 0 else None


def _with_user(look: _PodLook, value: Any, field: PodField) -> PodField:
    is_who = f"uid {look.host.uid} and gid {look.host.gid}"
    return msgspec.structs.replace(field, said=f"processes here run as the user of `remuda up`, {is_who}")


def _judge_spread(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    is_wish = isinstance(value, dict) and value.get("whenUnsatisfiable") == "ScheduleAnyway"
    return _as_warning(field, field.said) if is_wish else field


def _judge_limits(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    return field if isinstance(value, dict) and any(name.startswith(_NATIVE) for name in value) else None


def _judge_host_port(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    return None if not value or value == beside.get("containerPort") else field


def _judge_volume(look: _PodLook, value: Any, field: PodField, beside: JsonObject) -> PodField | None:
    return None  # one that nobody mounts asks for nothing; `_judge_mount` asks the entry


def _as_warning(field: PodField, said: str) -> PodField:
    return msgspec.structs.replace(field, claim=FieldClaim.WARNED, said=said)


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_WORD else f"{text[:_MAX_WORD]}..."


_Judge = Callable[[_PodLook, Any, PodField, JsonObject], PodField | None]


def _both(name: str) -> Iterable[str]:
    return f"securityContext.{name}", f"containers[].securityContext.{name}"


_JUDGES: Final[dict[str, _Judge]] = {
    "containers[].volumeMounts[]": _judge_mount,
    "containers[].resources.limits{}": _judge_limits,
    "containers[].ports[].hostPort": _judge_host_port,
    "topologySpreadConstraints[]": _judge_spread,
    **dict.fromkeys(_both("runAsUser"), _judge_user),
    **dict.fromkeys(_both("runAsGroup"), _judge_group),
    **dict.fromkeys(_both("runAsNonRoot"), _judge_non_root),
    **dict.fromkeys((path for path in POD_FIELDS if path.startswith("volumes[].")), _judge_volume),
}

"""The kinds this build knows, by plural and by (apiVersion, kind)."""

from __future__ import annotations

from remuda.api.core_v1 import Lease, Namespace, Node, Pod
from remuda.api.devices import NodeDevices
from remuda.api.drills import Drill
from remuda.api.errors import Refusal
from remuda.api.meta import KObject
from remuda.api.training import TrainingJob

KINDS: tuple[type[KObject], ...] = (Namespace, Node, Pod, Lease, TrainingJob, NodeDevices, Drill)

BY_PATH: dict[tuple[str, str, str], type[KObject]] = {
    (k.resource.group, k.resource.version, k.resource.plural): k for k in KINDS
}
BY_KIND: dict[tuple[str, str], type[KObject]] = {(k.resource.api_version, k.resource.kind): k for k in KINDS}


def kind_of(api_version: str, kind: str) -> type[KObject]:
    found = BY_KIND.get((api_version, kind))
    if found is None:
        served = ", ".join(sorted(f"{v}/{k}" for v, k in BY_KIND))
        raise Refusal("UnknownKind", f"`{kind}` in `{api_version}` is not a kind Remuda serves.", f"Served: {served}.")
    return found

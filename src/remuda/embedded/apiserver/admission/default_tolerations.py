"""Tolerations every pod gets: of a node that is away for five minutes, and of nodes dedicated to the devices it asks for."""

from __future__ import annotations

from remuda.api.meta import JsonObject, json_objects_in_api_list, wire_map_or_empty
from remuda.embedded.apiserver.admission.name_syntax import is_extended_resource
from remuda.embedded.apiserver.admission.request import CREATE, UPDATE, AdmissionRequest

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
DEFAULT_TOLERATION_S = 300


class PodTolerations:
    """Kubernetes' DefaultTolerationSeconds and ExtendedResourceToleration. A node with devices is tainted with the resource's
    name; whoever asks for the resource may be there."""

    def admit(self, request: AdmissionRequest, body: JsonObject) -> JsonObject:
        spec = body.get("spec")
        if request.operation not in (CREATE, UPDATE) or not isinstance(spec, dict):
            return body
        own = spec.get("tolerations") or []
        if not isinstance(own, list):
            return body
        added: list[JsonObject] = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEFAULT_TOLERATION_S}
            for key in (NOT_READY, UNREACHABLE)
            if not any(_replaces_default_toleration(toleration, key) for toleration in own)
        ]
        asked = {
            name
            for field in ("containers", "initContainers")
            for container in json_objects_in_api_list(spec.get(field))
            for name in wire_map_or_empty(wire_map_or_empty(container.get("resources")).get("requests"))
            if is_extended_resource(name)
        }
        added += [
            {"key": name, "operator": "Exists"}
            for name in sorted(asked)
            if not any(
                isinstance(t, dict) and t.get("key") == name and t.get("operator") == "Exists" and not t.get("effect")
                for t in own
            )
        ]
        return {**body, "spec": {**spec, "tolerations": [*own, *added]}} if added else body


def _replaces_default_toleration(toleration: object, key: str) -> bool:
    if not isinstance(toleration, dict):
        return False
    fits_effect = toleration.get("effect") in (None, "", "NoExecute")
    return fits_effect and (toleration.get("key") == key or not toleration.get("key"))

"""LimitRange: defaults for containers that ask for nothing, and bounds for what they ask (per container, pod and claim)."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission.request import CREATE, UPDATE, AdmissionRequest, Forbidden, ReadObjects
from remuda.embedded.builtin.planners.pod_resources import Amounts, pod_resources_counted_by_quota, resource_amounts
from remuda.embedded.builtin.planners.pod_resources import quota_quantity_or_zero as _value


class LimitRanger:
    def __init__(self, read: ReadObjects) -> None:
        self._read = read

    def admit(self, request: AdmissionRequest, body: JsonObject) -> JsonObject:
        """Defaults, to new pods only."""
        spec = body.get("spec")
        if request.operation != CREATE or not isinstance(spec, dict):
            return body
        limits: JsonObject = {}
        requests: JsonObject = {}
        for item in self._items(request, "Container"):
            limits.update(item.get("default") or {})
            requests.update(item.get("defaultRequest") or {})
        if not limits and not requests:
            return body
        filled = dict(spec)
        for field in ("containers", "initContainers"):
            if isinstance(spec.get(field), list):
                filled[field] = [_with_limit_defaults(container, limits, requests) for container in spec[field]]
        return {**body, "spec": filled}

    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None:
        if body is None or request.subresource or request.operation not in (CREATE, UPDATE):
            return
        if request.is_about("pods") and request.operation == CREATE:
            spec = body.get("spec") or {}
            containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
            for item in self._items(request, "Container"):
                for container in containers:
                    _check_limit_range(
                        request,
                        "Container",
                        item,
                        resource_amounts(container, "requests"),
                        resource_amounts(container, "limits"),
                    )
            for item in self._items(request, "Pod"):
                _check_limit_range(
                    request,
                    "Pod",
                    item,
                    pod_resources_counted_by_quota(spec, "requests"),
                    pod_resources_counted_by_quota(spec, "limits"),
                )
        elif request.is_about("persistentvolumeclaims"):
            asked = resource_amounts(body.get("spec") or {}, "requests")
            for item in self._items(request, "PersistentVolumeClaim"):
                _check_limit_range(request, "PersistentVolumeClaim", item, asked, asked)

    def _items(self, request: AdmissionRequest, kind: str) -> Iterable[JsonObject]:
        for found in self._read.list("", "limitranges", request.namespace):
            for item in (found.get("spec") or {}).get("limits") or ():
                if item.get("type") == kind:
                    yield item


def _with_limit_defaults(container: Any, limits: JsonObject, requests: JsonObject) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources") or {}, dict):
        return container
    resources = container.get("resources") or {}
    own = {which: resources.get(which) or {} for which in ("limits", "requests")}
    if not all(isinstance(amounts, dict) for amounts in own.values()):
        return container
    filled = {"limits": {**limits, **own["limits"]}, "requests": {**requests, **own["requests"]}}
    return {**container, "resources": {**resources, **{name: value for name, value in filled.items() if value}}}


def _check_limit_range(
    request: AdmissionRequest, kind: str, item: JsonObject, asked: Amounts, limited: Amounts
) -> None:
    for name, least in (item.get("min") or {}).items():
        for word, have in (("", asked.get(name)), ("limit", limited.get(name) if kind == "Container" else None)):
            if have is None and not word:
                raise Forbidden(request, f"minimum {name} usage per {kind} is {least}.  No request is specified")
            if have is not None and have < _value(least):
                raise Forbidden(
                    request, f"minimum {name} usage per {kind} is {least}, but the {word or 'request'} is less"
                )
    for name, most in (item.get("max") or {}).items():
        have = limited.get(name)
        if have is None:
            raise Forbidden(request, f"maximum {name} usage per {kind} is {most}.  No limit is specified")
        if have > _value(most) or asked.get(name, Fraction(0)) > _value(most):
            raise Forbidden(request, f"maximum {name} usage per {kind} is {most}, but limit is more")
    for name, ratio in (item.get("maxLimitRequestRatio") or {}).items():
        have, want = limited.get(name), asked.get(name)
        if not have or not want:
            raise Forbidden(
                request, f"{name} max limit to request ratio per {kind} is {ratio}, but no limit or request is set"
            )
        if have / want > _value(ratio):
            raise Forbidden(
                request, f"{name} max limit to request ratio per {kind} is {ratio}, but it is {float(have / want):g}"
            )

"""What admission is asked, what it may read, and how it says no.

A plug-in sees one write at a time, inside the store's decide-then-stage step: what `ReadObjects` answers is the newest
accepted state, and nothing else is accepted before this write is. That is what makes a count of objects (quotas) exact.

Bodies are wire dicts. A mutating plug-in returns a new body and shares unchanged parts; nobody mutates one in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from remuda.api.errors import ApiError, StatusCause, StatusDetails
from remuda.api.meta import JsonObject, Resource

CREATE = "CREATE"
UPDATE = "UPDATE"
DELETE = "DELETE"


class AdmissionRequest(msgspec.Struct, frozen=True):
    """One write. `old` is None for a create; `body` is None for a delete."""

    operation: str
    resource: Resource
    namespace: str
    name: str
    body: JsonObject | None
    old: JsonObject | None = None
    subresource: str = ""
    dry_run: bool = False
    user: str = ""

    def is_about(self, plural: str, group: str = "") -> bool:
        return self.resource.plural == plural and self.resource.group == group


class ReadObjects(Protocol):
    """The newest accepted objects, durable or not, as wire dicts that must not be mutated."""

    def get(self, group: str, plural: str, name: str, namespace: str = "") -> JsonObject | None: ...

    def list(self, group: str, plural: str, namespace: str = "") -> Iterable[JsonObject]:
        """Of one namespace, or of all when none is named."""
        ...


class MutatingPlugin(Protocol):
    def admit(self, request: AdmissionRequest, body: JsonObject) -> JsonObject: ...


class ValidatingPlugin(Protocol):
    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None: ...


class Forbidden(ApiError):
    """403: the request is well formed, but a rule of the cluster or the namespace says no."""

    code, reason = 403, "Forbidden"

    def __init__(self, request: AdmissionRequest, why: str, causes: list[StatusCause] | None = None) -> None:
        resource = request.resource
        details = StatusDetails(request.name, resource.plural, resource.group, causes or [])
        super().__init__(f'{resource.full_name} "{request.name}" is forbidden: {why}', details=details)

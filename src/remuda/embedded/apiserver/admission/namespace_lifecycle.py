"""NamespaceLifecycle: nothing new in a namespace that is not there or goes; the namespaces the cluster needs stay."""

from __future__ import annotations

from remuda.api.errors import NotFound, StatusCause, StatusDetails
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission.request import CREATE, DELETE, AdmissionRequest, Forbidden, ReadObjects

# The embedded nodes keep their leases in kube-node-lease: without it the cluster would declare every node dead.
IMMORTAL = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


class NamespaceLifecycle:
    def __init__(self, read: ReadObjects) -> None:
        self._read = read

    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None:
        if request.is_about("namespaces"):
            if request.operation == DELETE and request.name in IMMORTAL:
                raise Forbidden(request, "this namespace may not be deleted")
            return
        if request.operation != CREATE or not request.resource.namespaced or request.subresource:
            return
        namespace = self._read.get("", "namespaces", request.namespace)
        if namespace is None:
            raise NotFound(
                f'namespaces "{request.namespace}" not found', details=StatusDetails(request.namespace, "namespaces")
            )
        if "deletionTimestamp" in namespace["metadata"]:
            why = f"unable to create new content in namespace {request.namespace} because it is being terminated"
            cause = StatusCause(
                "NamespaceTerminating", f"namespace {request.namespace} is being terminated", "metadata.namespace"
            )
            raise Forbidden(request, why, [cause])

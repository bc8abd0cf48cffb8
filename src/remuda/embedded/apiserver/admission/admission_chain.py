"""`AdmissionChain`: everything a write passes before it is stored, in the real server's order.

    namespace lifecycle -> defaults -> mutating plug-ins -> field validation -> validating plug-ins -> quotas

Plug-ins are asked about the kinds they are for.
Call it inside the store's decide step (see `request`). It never mutates what it is given.
"""

from __future__ import annotations

from remuda.api.meta import JsonObject, Resource
from remuda.api.names import GROUP
from remuda.embedded.apiserver.admission.default_tolerations import PodTolerations
from remuda.embedded.apiserver.admission.defaults import with_kind_defaults
from remuda.embedded.apiserver.admission.limit_ranges import LimitRanger
from remuda.embedded.apiserver.admission.namespace_lifecycle import NamespaceLifecycle
from remuda.embedded.apiserver.admission.priority_classes import PriorityAdmission
from remuda.embedded.apiserver.admission.request import AdmissionRequest, MutatingPlugin, ReadObjects, ValidatingPlugin
from remuda.embedded.apiserver.admission.resource_quotas import QuotaAdmission
from remuda.embedded.apiserver.admission.service_addresses import ServiceAddresses
from remuda.embedded.apiserver.admission.unhonoured_pods import UnhonouredPods
from remuda.embedded.apiserver.admission.validate import validate_object_fields
from remuda.embedded.builtin.planners.pod_resources import qos_class
from remuda.embedded.pod_fields.judge_pod import PodHost, pod_field_warnings

_ROOT = PodHost()


class AdmissionChain:
    """`host`: what pods run on, which decides what they cannot have."""

    def __init__(self, read: ReadObjects, host: PodHost = _ROOT) -> None:
        self._host = host
        limits, priority, unhonoured = LimitRanger(read), PriorityAdmission(read), UnhonouredPods(read, host)
        self._first = NamespaceLifecycle(read)
        self._mutating: dict[str, tuple[MutatingPlugin, ...]] = {
            "services": (ServiceAddresses(read),),
            "pods": (limits, priority, PodTolerations()),
        }
        self._validating: dict[str, tuple[ValidatingPlugin, ...]] = {
            "pods": (limits, unhonoured),
            "persistentvolumeclaims": (limits,),
            "priorityclasses.scheduling.k8s.io": (priority,),
            f"trainingjobs.{GROUP}": (unhonoured,),
        }
        self._last = QuotaAdmission(read)

    def admit(self, request: AdmissionRequest) -> JsonObject:
        """The body to store; raises the ApiError that is the answer. A write of a subresource is only looked at."""
        body, kind = request.body, request.resource.full_name
        self._first.check(request, body)
        if body is None:
            return {}
        if not request.subresource:
            body = with_kind_defaults(request.resource, body, request.old)
            for mutating in self._mutating.get(kind, ()):
                body = mutating.admit(request, body)
            if request.is_about("pods") and request.old is None and isinstance(body.get("spec"), dict):
                # The plug-ins may have set limits, which make another class of it.
                body = {**body, "status": {**body["status"], "qosClass": qos_class(body["spec"])}}
            # What was stored before a default existed is compared as if it had been stored with it.
            old = None if request.old is None else with_kind_defaults(request.resource, request.old, request.old)
            validate_object_fields(request.resource, request.name, body, old)
        for validating in self._validating.get(kind, ()):
            validating.check(request, body)
        self._last.check(request, body)
        return body

    def warnings(self, resource: Resource, body: JsonObject, old: JsonObject | None) -> list[str]:
        """What whoever wrote this should know of it: one text for each Warning header."""
        return pod_field_warnings(resource, body, old, self._host)

"""Field validation: which checks apply to which kind, for a create and for an update.

Metadata is checked for every kind, custom ones included; the rest for the built-in kinds users meet daily. The errors have the
code, reason and field path of the real server; tests/kube holds them against it.
"""

from __future__ import annotations

from collections.abc import Callable

from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver.admission import validate_objects as objects
from remuda.embedded.apiserver.admission import validate_pods as pods
from remuda.embedded.apiserver.admission import validate_workloads as workloads
from remuda.embedded.apiserver.admission.field_errors import AdmissionField, Causes
from remuda.embedded.apiserver.admission.name_syntax import (
    check_annotation_map,
    check_label_map,
    has_subdomain_name_syntax,
    is_qualified_name,
)
from remuda.embedded.apiserver.naming import served_object_invalid

Validate = Callable[[AdmissionField, JsonObject | None], None]


def validate_object_fields(resource: Resource, name: str, body: JsonObject, old: JsonObject | None) -> None:
    """Raises Invalid with everything that is wrong, or BadRequest for a value of a wrong type."""
    causes: Causes = []
    root = AdmissionField(body, "", causes)
    validate_metadata(root["metadata"])
    check = _CHECKS.get((resource.group, resource.plural))
    if check is not None:
        check(root, old)
    if causes:
        raise served_object_invalid(resource, name, causes)


def validate_metadata(meta: AdmissionField) -> None:
    prefix = meta["generateName"]
    if prefix.text() and not has_subdomain_name_syntax(prefix.text().rstrip("-.") or "-"):
        prefix.invalid("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'")
    check_label_map(meta["labels"])
    check_annotation_map(meta["annotations"])
    for finalizer in meta["finalizers"].each():
        if not is_qualified_name(finalizer.text()):
            meta["finalizers"].invalid("a finalizer is a qualified name", finalizer.value)
        if "/" not in finalizer.text() and finalizer.text() not in _STANDARD_FINALIZERS:
            finalizer.invalid("name is neither a standard finalizer name nor is it fully qualified")
    controllers = 0
    for owner in meta["ownerReferences"].each():
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner[field].text():
                owner[field].required("must not be empty")
        controllers += owner["controller"].flag()
    if controllers > 1:
        meta["ownerReferences"].invalid("only one reference can have controller set to true", None)


_STANDARD_FINALIZERS = frozenset(
    ("foregroundDeletion", "orphan", "kubernetes", "customresourcecleanup.apiextensions.k8s.io")
)
_CHECKS: dict[tuple[str, str], Validate] = {
    ("", "pods"): pods.validate_pod,
    ("", "services"): objects.validate_service,
    ("", "configmaps"): objects.validate_config_map,
    ("", "secrets"): objects.validate_secret,
    ("", "persistentvolumeclaims"): objects.validate_claim,
    ("", "resourcequotas"): objects.validate_resource_quota,
    ("", "limitranges"): objects.validate_limit_range,
    ("apps", "deployments"): workloads.validate_deployment,
    ("apps", "replicasets"): workloads.validate_replica_set,
    ("batch", "jobs"): workloads.validate_job,
    ("policy", "poddisruptionbudgets"): workloads.validate_disruption_budget,
    ("autoscaling", "horizontalpodautoscalers"): workloads.validate_autoscaler,
    ("scheduling.k8s.io", "priorityclasses"): objects.validate_priority_class,
    ("coordination.k8s.io", "leases"): objects.validate_lease,
    ("discovery.k8s.io", "endpointslices"): objects.validate_endpoint_slice,
}

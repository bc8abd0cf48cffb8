"""Refuses pods that ask for what the embedded cluster would not give them, where to run all the same would do harm.

A pod is refused when it is made. A TrainingJob is refused with its template, when it is submitted or its template changes: its
pods could never be made. Other workloads are let in with a warning, as on a real cluster, and their pods are refused.

A pod that names its node skips the scheduler. A kubelet refuses it when it may not go to that node; here it is not made.
"""

from __future__ import annotations

import msgspec

from remuda.api.errors import StatusCause
from remuda.api.kubernetes.core_v1 import PodSpec
from remuda.api.meta import JsonObject
from remuda.core.scheduling.node_affinity import is_node_in_terms, required_node_terms
from remuda.embedded.apiserver.admission.request import AdmissionRequest, ReadObjects
from remuda.embedded.apiserver.naming import served_object_invalid
from remuda.embedded.pod_fields.judge_pod import PodHost, refused_pod_fields


class UnhonouredPods:
    def __init__(self, read: ReadObjects, host: PodHost) -> None:
        self._read, self._host = read, host

    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None:
        is_pod = request.is_about("pods")
        if body is None or request.subresource or (is_pod and request.old is not None):
            return
        causes = [
            StatusCause("FieldValueForbidden", f"Forbidden: {finding.refusal}", finding.path)
            for finding in refused_pod_fields(request.resource, body, request.old, self._host)
        ]
        if is_pod and not causes:
            causes = self._wrong_node(body)
        if causes:
            raise served_object_invalid(request.resource, request.name, causes)

    def _wrong_node(self, body: JsonObject) -> list[StatusCause]:
        name = body["spec"].get("nodeName")
        node = self._read.get("", "nodes", name) if name else None
        if node is None:
            return []
        try:
            spec = msgspec.convert(body["spec"], PodSpec)
        except msgspec.ValidationError:
            return []  # the store refuses it, with better words
        labels = node["metadata"].get("labels") or {}
        is_selected = all(labels.get(key) == value for key, value in spec.node_selector.items())
        if is_selected and is_node_in_terms(required_node_terms(spec), name, labels):
            return []
        why = f"NodeAffinity: node {name} is none that nodeSelector and node affinity allow. Leave nodeName out, or name another."
        return [StatusCause("FieldValueForbidden", f"Forbidden: {why}", "spec.nodeName")]

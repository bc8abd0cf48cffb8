"""Refuses pods that ask for what the embedded cluster would not give them, where to run all the same would do harm.

A pod is refused when it is made. A TrainingJob is refused with its template, when it is submitted or its template changes: its
pods could never be made. Other workloads are let in with a warning, as on a real cluster, and their pods are refused.
"""

from __future__ import annotations

from remuda.api.errors import StatusCause
from remuda.api.meta import JsonObject
from remuda.api.names import GROUP
from remuda.embedded.apiserver.admission.request import AdmissionRequest
from remuda.embedded.apiserver.naming import invalid_causes
from remuda.embedded.pod_fields.field_table import FieldClaim
from remuda.embedded.pod_fields.judge_pod import PodHost, judge_pod_spec, pod_specs_in


class UnhonouredPods:
    def __init__(self, host: PodHost) -> None:
        self._host = host

    def check(self, request: AdmissionRequest, body: JsonObject | None) -> None:
        if body is None or request.subresource:
            return
        if not (request.is_about("trainingjobs", GROUP) or (request.is_about("pods") and request.old is None)):
            return
        before = [] if request.old is None else [spec for _, spec in pod_specs_in(request.resource, request.old)]
        causes = [
            StatusCause("FieldValueForbidden", f"Forbidden: {finding.refusal}", finding.path)
            for at, spec in pod_specs_in(request.resource, body)
            if spec not in before
            for finding in judge_pod_spec(spec, self._host, at)
            if finding.claim is FieldClaim.REFUSED
        ]
        if causes:
            raise invalid_causes(request.resource, request.name, causes)

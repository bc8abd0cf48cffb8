"""Questions about oneself. Whoever holds the token may do everything, so the answers are short."""

from __future__ import annotations

from remuda.api.errors import BadRequest, Invalid, StatusCause, StatusDetails
from remuda.api.meta import JsonObject, Resource

USER = "remuda:admin"
GROUPS = ["system:masters", "system:authenticated"]


def answer_self_review(resource: Resource, body: JsonObject) -> JsonObject:
    given = (body.get("apiVersion", resource.api_version), body.get("kind", resource.kind))
    if given != (resource.api_version, resource.kind):
        raise BadRequest(
            f"the object is a {given[1]} of {given[0]}; expected a {resource.kind} of {resource.api_version}"
        )
    answer = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}}
    spec = body.get("spec") or {}
    match resource.kind:
        case "SelfSubjectAccessReview":
            asked = ("resourceAttributes", "nonResourceAttributes")
            if not isinstance(spec, dict) or not all(isinstance(spec.get(field), dict | None) for field in asked):
                raise BadRequest("spec must be an object, and so must be its attributes")
            if sum(spec.get(field) is not None for field in asked) != 1:
                what = f"Invalid value: exactly one of {' or '.join(asked)} must be specified"
                causes = [StatusCause("FieldValueInvalid", what, "spec")]
                raise Invalid(f"spec: {what}", details=StatusDetails(group=resource.group, causes=causes))
            return {**answer, "spec": spec, "status": {"allowed": True}}
        case "SelfSubjectRulesReview":
            rules = {
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": False,
            }
            return {**answer, "spec": {}, "status": rules}
        case _:
            return {**answer, "status": {"userInfo": {"username": USER, "groups": GROUPS}}}

"""Questions about oneself. Whoever holds the token may do everything, so the answers are short."""

from __future__ import annotations

from remuda.api.errors import BadRequest
from remuda.api.meta import JsonObject, Resource

USER = "remuda:admin"
GROUPS = ["system:masters", "system:authenticated"]


def review(resource: Resource, body: JsonObject) -> JsonObject:
    given = (body.get("apiVersion", resource.api_version), body.get("kind", resource.kind))
    if given != (resource.api_version, resource.kind):
        raise BadRequest(f"the object is a {given[1]} of {given[0]}; here go {resource.kind} of {resource.api_version}")
    answer = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}}
    spec = body.get("spec") or {}
    match resource.kind:
        case "SelfSubjectAccessReview":
            asked = ("resourceAttributes", "nonResourceAttributes")
            if not isinstance(spec, dict) or sum(bool(spec.get(field)) for field in asked) != 1:
                raise BadRequest(
                    "spec.resourceAttributes: Invalid value: exactly one of nonResourceAttributes or resourceAttributes "
                    "must be specified",
                    reason="Invalid",
                    code=422,
                )
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

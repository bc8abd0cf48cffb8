"""What a hostile or clumsy user writes: one refusal with reason, sentence and fix, in the CLI and in admission alike."""

from __future__ import annotations

import re
from typing import Any

import pytest

from remuda.api.codec import decode_strict
from remuda.api.errors import Invalid, Refusal
from remuda.api.incidents import Incident
from remuda.api.meta import KObject
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout
from remuda.api.training import TrainingJob
from remuda.api.validation.validate import validate
from remuda.embedded.apiserver.own_kinds import check_own_kind

Body = dict[str, Any]
RUN = {"command": ["/bin/true"]}
MAIN = {"spec": {"containers": [{"name": "main", "command": ["train"]}]}}


def rung(**hook: Any) -> Body:
    return {"ladders": [{"when": "*", "rungs": [{"action": "replace", "hook": hook}]}]}


def rule(**more: Any) -> Body:
    return {"action": "Fail", **more}


def device(**more: Any) -> Body:
    return {"subject": {"kind": "Device", "node": "n1", "device": "gpu-0"}, **more}


POLICIES: dict[str, tuple[str, Body]] = {
    "rungs": ("TooMany", {"ladders": [{"when": "*", "rungs": [{"action": "reset"}] * 10_000}]}),
    "ladders": ("TooMany", {"ladders": [{"when": f"Xid{i}", "rungs": [{"action": "reset"}]} for i in range(10_000)]}),
    "webhooks": ("TooMany", {"webhooks": [{"url": f"http://x/{i}"} for i in range(10_000)]}),
    "patterns": ("TooMany", {"selector": {"deviceTypes": [f"x{i}" for i in range(20_000)]}}),
    "pattern": ("InvalidSelector", {"selector": {"deviceTypes": ["x" * 200_000]}}),
    "stars": ("InvalidSelector", {"selector": {"deviceTypes": ["*a" * 100]}}),
    "label": ("InvalidSelector", {"selector": {"nodes": {"pool": "a b\n"}}}),
    "priority": ("InvalidPriority", {"priority": 10**30}),
    "half an address": ("InvalidWebhook", {"webhooks": [{"url": "http://[::1/"}]}),
    "port": ("InvalidWebhook", {"webhooks": [{"url": "http://x:99999/"}]}),
    "header": ("InvalidWebhook", {"webhooks": [{"url": "http://x/\r\nHost: y"}]}),
    "zone": ("InvalidTime", {"pause": {"since": "2026-01-02T00:00:00", "until": "2026-01-03T00:00:00Z"}}),
    "NUL": ("InvalidHook", rung(command=["/x\0y"])),
    "words": ("InvalidHook", rung(command=["/x", *["y"] * 1000])),
    "relative": ("InvalidHook", rung(command=["x"])),
    "both": ("InvalidHook", rung(command=["/x"], object={"apiVersion": "v1", "kind": "Pod"})),
    "kind": ("InvalidHook", rung(object={"apiVersion": "v1", "kind": "Po d/../x"})),
    "version": ("InvalidHook", rung(object={"apiVersion": "a/b/c", "kind": "Pod"})),
    "metadata": ("InvalidHook", rung(object={"apiVersion": "v1", "kind": "Pod", "metadata": "x"})),
    "size": ("InvalidHook", rung(object={"apiVersion": "v1", "kind": "Pod", "data": "x" * 100_000})),
    "share": ("InvalidLimit", {"limits": {"pool": "120%"}}),
    "field": ("UnknownField", {"limits": {"poool": "1"}}),
}
ROLLOUTS: dict[str, tuple[str, Body]] = {
    "relative": ("InvalidHook", {"hook": {"command": ["reset"]}}),
    "placeholder": (
        "InvalidHook",
        {"hook": {"object": {"apiVersion": "v1", "kind": "Pod", "spec": {"x": "{device}"}}}},
    ),
    "drain": ("InvalidSeconds", {"hook": RUN, "drain": {"deadlineSeconds": -5}}),
    "selector": ("InvalidSelector", {"hook": RUN, "selector": {"a b": "c"}}),
    "expect": ("InvalidExpect", {"hook": RUN, "expect": {"a": "c d"}}),
    "share": ("InvalidBound", {"hook": RUN, "maxUnavailable": "120%"}),
}
INCIDENTS: dict[str, tuple[str, Body]] = {
    "no node": ("InvalidSubject", {"subject": {"kind": "Device", "device": "gpu-0"}}),
    "two subjects": ("InvalidSubject", {"subject": {"kind": "Node", "node": "n1", "gang": "job"}}),
    "escape": ("InvalidSubject", {"subject": {"kind": "Node", "node": "\x1b[2J"}}),
    "approvals": ("TooManyApprovals", device(approvals=[{"remedy": f"r{i}"} for i in range(5000)])),
    "approval": ("InvalidApproval", device(approvals=[{"remedy": ""}])),
    "zone": ("InvalidTime", device(approvals=[{"remedy": "reset-1", "time": "2026-01-02T00:00:00"}])),
    "essay": ("DismissTooLong", device(dismiss="x" * 100_000)),
}
JOBS: dict[str, tuple[str, Body]] = {
    "pods": ("TooManyPods", {"roles": [{"name": f"r{i}", "replicas": 100_000, "template": MAIN} for i in range(64)]}),
    "spares": ("TooManyPods", {"roles": [{"replicas": 60_000, "template": MAIN}], "spares": 60_000}),
    "after": ("TooMany", {"roles": [{"name": "a", "after": [{"role": "a"}] * 1000, "template": MAIN}]}),
    "ranks": ("TooMany", {"roles": [{"template": MAIN}], "success": {"ranks": [0] * 100_001}}),
    "codes": ("TooMany", {"roles": [{"template": MAIN}], "failure": {"rules": [rule(exitCodes=[1] * 1000)]}}),
    "faults": ("TooMany", {"roles": [{"template": MAIN}], "failure": {"rules": [rule(faults=["Xid79"] * 1000)]}}),
    "steps": ("InvalidSteps", {"roles": [{"template": MAIN}], "totalSteps": 9_000_000_000_000_000}),
    "refill": ("InvalidBudget", {"roles": [{"template": MAIN}], "failure": {"budgets": {"refillAfterSteps": 2**53}}}),
    "chain": (
        "TooManyRoles",
        {
            "roles": [
                {"name": f"r{i}", "after": [{"role": f"r{i + 1}"}] if i < 4999 else [], "template": MAIN}
                for i in range(5000)
            ]
        },
    ),
    "circle": (
        "RolesInACircle",
        {"roles": [{"name": a, "after": [{"role": b}], "template": MAIN} for a, b in ("ab", "ba")]},
    ),
    "pattern": (
        "InvalidPattern",
        {
            "roles": [{"template": MAIN}],
            "failure": {"rules": [{"action": "Fail", "logPattern": "(a{999}){999}"}]},
        },
    ),
}
CASES = [
    pytest.param(kind, reason, spec, id=f"{kind.resource.kind} {name}")
    for kind, cases in ((RemedyPolicy, POLICIES), (NodeRollout, ROLLOUTS), (Incident, INCIDENTS), (TrainingJob, JOBS))
    for name, (reason, spec) in cases.items()
]


@pytest.mark.parametrize(("kind", "reason", "spec"), CASES)
def test_it_is_refused_once_and_clearly_here_and_there(kind: type[KObject], reason: str, spec: Body) -> None:
    body = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "metadata": {"name": "a", "namespace": "default"},
        "spec": spec,
    }
    with pytest.raises(Refusal) as said:
        validate(decode_strict(kind, body))
    refusal = said.value
    assert refusal.reason == reason
    assert re.fullmatch(r"[A-Z][A-Za-z]+", refusal.reason)
    assert refusal.message
    assert refusal.fix
    assert len(str(refusal)) < 1000, "a refusal does not repeat a novel"
    assert not set(str(refusal)) & set("\0\x1b"), "a refusal does not steer a terminal"
    with pytest.raises(Invalid, match=reason):
        check_own_kind(kind, body)


def test_what_remuda_itself_writes_is_let_in() -> None:
    for subject in (
        {"kind": "Device", "node": "n1", "device": "gpu-0"},
        {"kind": "Node", "node": "n1"},
        {"kind": "Gang", "namespace": "default", "gang": "Job/train"},
        {"kind": "Domain", "domain": "topology.remuda.dev/rack=rack-1"},
    ):
        check_own_kind(Incident, {"metadata": {"name": "a"}, "spec": {"subject": subject}})

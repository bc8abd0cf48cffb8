"""Contradictory policies are refused when they are written, with the field and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.codec import decode_strict
from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject
from remuda.api.remedies import RemedyPolicy
from remuda.api.validation.validate import validate

PROBE: JsonObject = {"action": "probe"}


def policy(name: str = "p", **spec: Any) -> RemedyPolicy:
    return decode_strict(RemedyPolicy, {"metadata": {"name": name}, "spec": spec})


def ladder(*rungs: JsonObject, when: str = "ResetDevice") -> JsonObject:
    return {"when": when, "rungs": list(rungs)}


def hooked(**hook: Any) -> list[JsonObject]:
    return [ladder({"action": "replace", "hook": hook})]


BAD: dict[str, tuple[JsonObject, str, str]] = {
    "one fault, two ladders": ({"ladders": [ladder(PROBE), ladder(PROBE)]}, "LadderSaidTwice", "spec.ladders[1].when"),
    "no rungs": ({"ladders": [ladder()]}, "EmptyLadder", "spec.ladders[0].rungs"),
    "no reason": ({"ladders": [ladder(PROBE, when="xid-79")]}, "InvalidReason", "spec.ladders[0].when"),
    "half a pattern": ({"ladders": [ladder(PROBE, when="Xid*")]}, "InvalidReason", "spec.ladders[0].when"),
    "down the ladder": (
        {"ladders": [ladder({"action": "reboot"}, {"action": "reset"})]},
        "LadderGoesDown",
        "spec.ladders[0].rungs[1].action",
    ),
    "no attempts": (
        {"ladders": [ladder({"action": "reset", "attempts": 0})]},
        "InvalidAttempts",
        "spec.ladders[0].rungs[0].attempts",
    ),
    "for ever": (
        {"ladders": [ladder({"action": "reset", "attempts": 1000})]},
        "InvalidAttempts",
        "spec.ladders[0].rungs[0].attempts",
    ),
    "negative time": (
        {"ladders": [ladder({"action": "reset", "timeoutSeconds": -1})]},
        "InvalidSeconds",
        "spec.ladders[0].rungs[0].timeoutSeconds",
    ),
    "more than all": ({"limits": {"pool": "120%"}}, "InvalidLimit", "spec.limits.pool"),
    "less than none": ({"limits": {"rack": "-1"}}, "InvalidLimit", "spec.limits.rack"),
    "words": ({"limits": {"perHour": "a few"}}, "InvalidLimit", "spec.limits.perHour"),
    "a share of a share": ({"limits": {"tenant": "5%%"}}, "InvalidLimit", "spec.limits.tenant"),
    "rack label": ({"limits": {"rackLabel": "not a label"}}, "InvalidLimit", "spec.limits.rackLabel"),
    "no share": ({"breaker": {"share": ""}}, "InvalidLimit", "spec.breaker.share"),
    "no window": ({"breaker": {"windowSeconds": 0}}, "InvalidSeconds", "spec.breaker.windowSeconds"),
    "no hook": ({"ladders": hooked()}, "InvalidHook", "spec.ladders[0].rungs[0].hook"),
    "two hooks": (
        {"ladders": hooked(command=["/x"], object={"apiVersion": "v1", "kind": "X"})},
        "InvalidHook",
        "spec.ladders[0].rungs[0].hook",
    ),
    "somewhere on the path": (
        {"ladders": hooked(command=["reboot"])},
        "InvalidHook",
        "spec.ladders[0].rungs[0].hook.command",
    ),
    "a command with something to fill in": (
        {"ladders": hooked(command=["/opt/recycle", "--node={node}"])},
        "InvalidHook",
        "spec.ladders[0].rungs[0].hook.command",
    ),
    "an object of no kind": (
        {"ladders": hooked(object={"apiVersion": "v1"})},
        "InvalidHook",
        "spec.ladders[0].rungs[0].hook.object.kind",
    ),
    "nothing fills that in": (
        {"ladders": hooked(object={"apiVersion": "v1", "kind": "X", "spec": {"of": "{serial}"}})},
        "InvalidHook",
        "spec.ladders[0].rungs[0].hook.object",
    ),
    "good is bad": (
        {"ladders": hooked(object={"apiVersion": "v1", "kind": "X"}, failureCondition="Succeeded")},
        "InvalidHook",
        "spec.ladders[0].rungs[0].hook.failureCondition",
    ),
    "soak": ({"soak": {"seconds": -1}}, "InvalidSeconds", "spec.soak.seconds"),
    "saving takes too long": (
        {"drain": {"checkpointSeconds": 100, "deadlineSeconds": 50}},
        "InvalidSeconds",
        "spec.drain.deadlineSeconds",
    ),
    "never an offender": ({"offender": {"incidents": 0}}, "InvalidOffender", "spec.offender.incidents"),
    "reclaim when": ({"idle": {"action": "Reclaim"}}, "InvalidIdle", "spec.idle.afterSeconds"),
    "idle what": ({"idle": {"action": "Scold"}}, "InvalidIdle", "spec.idle.action"),
    "file": ({"webhooks": [{"url": "file:///etc/passwd"}]}, "InvalidWebhook", "spec.webhooks[0].url"),
    "no host": ({"webhooks": [{"url": "http://"}]}, "InvalidWebhook", "spec.webhooks[0].url"),
    "never": ({"webhooks": [{"url": "http://x", "on": ["Exploded"]}]}, "InvalidWebhook", "spec.webhooks[0].on"),
    "nothing": ({"selector": {"deviceTypes": [""]}}, "InvalidSelector", "spec.selector.deviceTypes"),
    "label": ({"selector": {"nodes": {"a b": "c"}}}, "InvalidSelector", "spec.selector.nodes"),
    "backwards": (
        {"pause": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}},
        "InvalidPause",
        "spec.pause.until",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_contradiction_is_refused_by_its_field(what: str) -> None:
    spec, reason, field = BAD[what]
    with pytest.raises(Refusal) as refused:
        validate(policy(**spec))
    assert (refused.value.reason, refused.value.field) == (reason, field)
    assert refused.value.message.endswith(".")
    assert refused.value.fix


def test_default_takes_the_rest_and_cannot_select() -> None:
    with pytest.raises(Refusal, match="DefaultSelects"):
        validate(policy("default", selector={"deviceTypes": ["NVIDIA*"]}))


def test_an_unknown_action_or_field_is_refused_before_that() -> None:
    odd: list[JsonObject] = [{"ladders": [ladder({"action": "pray"})]}, {"limit": {}}, {"mode": "auto"}]
    for spec in odd:
        with pytest.raises(Refusal):
            policy(**spec)


def test_a_policy_that_says_everything_passes() -> None:
    validate(
        policy(
            selector={"deviceTypes": ["NVIDIA H100*"], "nodes": {"pool": "a"}},
            priority=5,
            mode="Approve",
            ladders=[
                ladder(
                    PROBE,
                    {"action": "reset", "attempts": 2},
                    PROBE,
                    {"action": "reboot", "hook": {"command": ["/bin/sh", "-c", "bmc ${node} {x}"]}},
                    {"action": "replace"},
                    {
                        "action": "ticket",
                        "hook": {"object": {"apiVersion": "a/v1", "kind": "T", "spec": {"n": "{node}"}}},
                    },
                    when="*",
                ),
                ladder(PROBE, when="Xid79"),
            ],
            limits={"pool": "10%", "rack": "1", "tenant": "50%", "perHour": "3", "cause": "", "reservation": "0"},
            idle={"action": "Reclaim", "afterSeconds": 3600},
            webhooks=[{"url": "https://hooks.example/x", "on": ["Opened", "Breaker"]}],
            pause={"by": "eva"},
        )
    )

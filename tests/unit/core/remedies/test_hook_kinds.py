"""Objects of hooks: only kinds that an administrator allowed by name, those that run containers only where he said."""

from __future__ import annotations

import pytest

from remuda.api.errors import Refusal
from remuda.core.remedies.hook_kinds import HookKind, parse_hook_kinds, require_allowed_remedy_hook_kind


def body(version: str, kind: str, namespace: str = "") -> dict[str, object]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "x", **({"namespace": namespace} if namespace else {})},
    }


ALLOWED = ("dc.example/v1/Repair", "batch/v1/Job@site-hooks", "v1/ConfigMap@default")


def test_what_an_administrator_writes_is_read() -> None:
    assert parse_hook_kinds(ALLOWED) == (
        HookKind("dc.example/v1", "Repair"),
        HookKind("batch/v1", "Job", "site-hooks"),
        HookKind("v1", "ConfigMap", "default"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not apiVersion/Kind"),
        ("Repair", "not apiVersion/Kind"),
        ("dc.example/v1/*", "not apiVersion/Kind"),
        ("dc.example/v1/Repair@", "not apiVersion/Kind"),
        ("v1/Pod", "never make a Pod"),
        ("v1/Pod@site-hooks", "never make a Pod"),
        ("v1/POD@site-hooks", "never make a POD"),
        ("batch/v1/Job", "no namespace is named"),
        ("apps/v1/DaemonSet", "no namespace is named"),
        ("remuda.dev/v1alpha1/TrainingJob", "no namespace is named"),
    ],
)
def test_what_cannot_be_allowed_is_refused_with_the_fix(text: str, words: str) -> None:
    with pytest.raises(Refusal, match=words) as caught:
        parse_hook_kinds([text])
    assert caught.value.reason == "InvalidHookKind"
    assert caught.value.fix


@pytest.mark.parametrize(
    "asked",
    [
        body("dc.example/v1", "Repair"),
        body("dc.example/v1", "Repair", "anywhere"),
        body("batch/v1", "Job", "site-hooks"),
    ],
    ids=lambda asked: f"{asked['kind']}-{asked['metadata']}",
)
def test_what_is_allowed_may_be_made(asked: dict[str, object]) -> None:
    require_allowed_remedy_hook_kind(asked, parse_hook_kinds(ALLOWED))


@pytest.mark.parametrize(
    "asked",
    [
        body("v1", "Pod", "kube-system"),
        body("dc.example/v2", "Repair"),
        body("other.example/v1", "Repair"),
        body("batch/v1", "Job"),
        body("batch/v1", "Job", "kube-system"),
        {"kind": "Repair"},
    ],
    ids=str,
)
@pytest.mark.parametrize("allowed", [(), ALLOWED], ids=["none", "some"])
def test_everything_else_is_refused_by_name(asked: dict[str, object], allowed: tuple[str, ...]) -> None:
    with pytest.raises(Refusal) as caught:
        require_allowed_remedy_hook_kind(asked, parse_hook_kinds(allowed))
    assert caught.value.reason == "HookKindNotAllowed"
    assert str(asked["kind"]) in caught.value.message
    assert caught.value.fix

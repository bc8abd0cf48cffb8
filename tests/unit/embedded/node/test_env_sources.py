"""Variables from elsewhere: what they become, and why a container has to wait for them."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.embedded.node.env_sources import EnvObjects, EnvPlace, EnvProblem, env_objects_named, with_env_values

PLACE = EnvPlace("n1", "127.1.2.3", "127.0.0.1", {"cpu": 64, "memory": "256Gi"})
OBJECTS: EnvObjects = {
    ("ConfigMap", "c"): {"k": "v", "z": "$(X)"},
    ("Secret", "s"): {"k": "dmFsdWU=", "bin": "/w==", "zero": "AA==", "bad": "%%"},
    ("ConfigMap", "own"): {"REMUDA_POD_UID": "x"},
    ("ConfigMap", "gone"): None,
    ("Secret", "gone"): None,
}


def pod(env: list[JsonObject], taken: list[JsonObject], **container: Any) -> Pod:
    spec = {"containers": [{"name": "main", "env": env, "envFrom": taken, **container}], "serviceAccountName": "sa"}
    meta = {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"a/b": "c"}}
    return from_wire(Pod, {"metadata": meta, "spec": spec})


def values(env: list[JsonObject], taken: list[JsonObject] | None = None, **container: Any) -> dict[str, str]:
    made = pod(env, taken or [], **container)
    return {e.name: e.value for e in with_env_values(made, made.spec.containers[0], OBJECTS, PLACE).env}


def value(source: JsonObject, **container: Any) -> str | None:
    return values([{"name": "A", "valueFrom": source}], **container).get("A")


def field(path: str) -> JsonObject:
    return {"fieldRef": {"fieldPath": path}}


def amount(resource: str, divisor: str = "", container: str = "") -> JsonObject:
    return {"resourceFieldRef": {"resource": resource, "divisor": divisor, "containerName": container}}


ASKED = {"resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "1Gi"}}}


@pytest.mark.parametrize(
    ("source", "becomes"),
    [
        ({"configMapKeyRef": {"name": "c", "key": "k"}}, "v"),
        ({"configMapKeyRef": {"name": "c", "key": "z"}}, "$$(X)"),
        ({"configMapKeyRef": {"name": "c", "key": "no", "optional": True}}, None),
        ({"configMapKeyRef": {"name": "gone", "key": "no", "optional": True}}, None),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "value"),
        (field("metadata.name"), "p"),
        (field("metadata.namespace"), "ns"),
        (field("metadata.uid"), "u"),
        (field("metadata.annotations['a/b']"), "c"),
        (field("metadata.labels['no']"), ""),
        (field("spec.serviceAccountName"), "sa"),
        (field("status.podIP"), "127.1.2.3"),
        (field("status.hostIP"), "127.0.0.1"),
        (amount("limits.cpu"), "2"),
        (amount("limits.cpu", "1m"), "1500"),
        (amount("requests.cpu"), "2"),
        (amount("limits.memory", "1Gi"), "256"),
        (amount("requests.memory"), str(2**30)),
        (amount("requests.ephemeral-storage"), "0"),
        (amount("limits.cpu", "0"), "2"),
    ],
    ids=str,
)
def test_what_a_variable_becomes(source: JsonObject, becomes: str | None) -> None:
    assert value(source, **ASKED) == becomes


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"configMapKeyRef": {"name": "gone", "key": "k"}}, 'configmap "gone" not found'),
        ({"secretKeyRef": {"name": "gone", "key": "k"}}, 'secret "gone" not found'),
        ({"configMapKeyRef": {"name": "c", "key": "no"}}, "couldn't find key no in ConfigMap ns/c"),
        ({"secretKeyRef": {"name": "s", "key": "bin"}}, "is no text"),
        ({"secretKeyRef": {"name": "s", "key": "bad"}}, "is no text"),
        ({"secretKeyRef": {"name": "s", "key": "zero"}}, "zero byte"),
        (field("spec.containers"), "is not known"),
        (amount("limits.cpu", container="no"), "container no not found"),
        (amount("cpu"), "is not known"),
        ({"fileKeyRef": {"path": "x"}}, "the source of A is not known"),
    ],
    ids=str,
)
def test_why_a_container_waits(source: JsonObject, why: str) -> None:
    with pytest.raises(EnvProblem, match=why):
        value(source)


def test_env_comes_after_env_from_and_wins() -> None:
    taken: list[JsonObject] = [{"configMapRef": {"name": "c"}}, {"prefix": "S_", "configMapRef": {"name": "c"}}]
    assert values([{"name": "k", "value": "mine"}], taken) == {"k": "mine", "z": "$$(X)", "S_k": "v", "S_z": "$$(X)"}


def test_env_from_that_is_missing_is_waited_for_unless_optional() -> None:
    with pytest.raises(EnvProblem, match='secret "gone" not found'):
        values([], [{"secretRef": {"name": "gone"}}])
    assert values([], [{"secretRef": {"name": "gone", "optional": True}}]) == {}


def test_nobody_takes_our_own_variables_from_a_config_map() -> None:
    with pytest.raises(EnvProblem, match="REMUDA_POD_UID is Remuda's own variable"):
        values([], [{"configMapRef": {"name": "own"}}])
    assert values([], [{"prefix": "MY_", "configMapRef": {"name": "own"}}]) == {"MY_REMUDA_POD_UID": "x"}


def test_each_object_is_named_once() -> None:
    key = {"configMapKeyRef": {"name": "c", "key": "k"}}
    env: list[JsonObject] = [
        {"name": "A", "valueFrom": key},
        {"name": "B", "valueFrom": key},
        {"name": "C", "value": "x"},
    ]
    made = pod(env, [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}])
    assert env_objects_named(made.spec.containers[0]) == [("ConfigMap", "c"), ("Secret", "s")]

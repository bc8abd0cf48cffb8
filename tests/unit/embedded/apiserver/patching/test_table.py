"""The committed table of built-in kinds."""

import os
import subprocess
from pathlib import Path

import pytest

from remuda.embedded.apiserver.patching import builtin_kind_schema
from remuda.embedded.apiserver.patching.patch_schema import PatchSchema

TOOL = Path(__file__).parents[5] / "tools" / "extract-merge-keys"
NO_SOURCE = 3

KINDS = """
    v1 Namespace, v1 Node, v1 Pod, v1 Service, discovery.k8s.io/v1 EndpointSlice, v1 ConfigMap, v1 Secret, v1 ServiceAccount,
    v1 Event, v1 PersistentVolumeClaim, v1 ResourceQuota, v1 LimitRange, coordination.k8s.io/v1 Lease,
    scheduling.k8s.io/v1 PriorityClass, policy/v1 PodDisruptionBudget, batch/v1 Job, apps/v1 Deployment, apps/v1 ReplicaSet,
    autoscaling/v2 HorizontalPodAutoscaler, apiextensions.k8s.io/v1 CustomResourceDefinition, autoscaling/v1 Scale,
    policy/v1 Eviction, v1 Binding, events.k8s.io/v1 Event
"""


def schema_of(api_version: str, kind: str, *path: str) -> PatchSchema:
    found = builtin_kind_schema(api_version, kind)
    assert found is not None
    node = found.root
    for name in path:
        node = node.items if name == "[]" else node.fields[name]
    return node


def test_the_table_is_what_the_source_says() -> None:
    done = subprocess.run([TOOL, "--check"], capture_output=True, text=True)
    if done.returncode == NO_SOURCE:
        if os.environ.get("REMUDA_REQUIRE_KUBE", "") not in ("", "0"):
            pytest.fail(done.stderr)
        pytest.skip(f"the table was not compared with its source: {done.stderr.strip()}")
    assert done.returncode == 0, (
        f"run tools/extract-merge-keys; it would change this:\n{done.stdout[:4000]}{done.stderr}"
    )


@pytest.mark.parametrize("kind", [kind.strip() for kind in KINDS.split(",")])
def test_every_kind_is_in_the_table(kind: str) -> None:
    root = schema_of(*kind.split())
    assert root.type == "object"
    assert root.fields["metadata"].fields["labels"].element is not None
    assert root.fields["apiVersion"].type == "string"


def test_unknown_kinds_have_no_schema() -> None:
    assert builtin_kind_schema("v1", "Gadget") is None
    assert builtin_kind_schema("apps/v2", "Deployment") is None


def test_rules_of_lists() -> None:
    containers = schema_of("v1", "Pod", "spec", "containers")
    assert (containers.list_type, containers.keys, containers.merge_key) == ("map", ("name",), "name")
    ports = schema_of("apps/v1", "Deployment", "spec", "template", "spec", "containers", "[]", "ports")
    assert (ports.list_type, ports.keys, ports.merge_key) == ("map", ("containerPort", "protocol"), "containerPort")
    assert ports.items.fields["protocol"].default == "TCP"
    finalizers = schema_of("v1", "Pod", "metadata", "finalizers")
    assert (finalizers.list_type, set(finalizers.strategy), finalizers.merge_key) == ("set", {"merge"}, "")
    tolerations = schema_of("v1", "Pod", "spec", "tolerations")
    assert (tolerations.list_type, tolerations.strategy) == ("atomic", frozenset())
    volumes = schema_of("v1", "Pod", "spec", "volumes")
    assert volumes.strategy == {"merge", "retainKeys"}


def test_rules_of_objects() -> None:
    assert schema_of("v1", "Service", "spec", "selector").atomic
    assert schema_of("apps/v1", "Deployment", "spec", "selector").atomic
    assert not schema_of("v1", "ConfigMap", "data").atomic
    assert schema_of("apps/v1", "Deployment", "spec", "strategy").strategy == {"retainKeys"}
    assert schema_of("policy/v1", "PodDisruptionBudget", "spec", "selector").strategy == {"replace"}
    assert schema_of("v1", "Pod", "spec").required == ("containers",)


def test_types_of_scalars() -> None:
    container = schema_of("v1", "Pod", "spec", "containers", "[]")
    assert container.fields["image"].type == "string"
    assert container.fields["tty"].type == "boolean"
    limits = container.fields["resources"].fields["limits"].element
    assert limits is not None
    assert limits.type == "quantity"
    replicas = schema_of("apps/v1", "Deployment", "spec", "replicas")
    assert (replicas.type, replicas.format) == ("integer", "int32")
    assert schema_of("v1", "Service", "spec", "ports", "[]", "targetPort").type == "int-or-string"
    assert schema_of("v1", "Secret", "data").items.format == "byte"


def test_a_recursive_type_is_one_node() -> None:
    props = schema_of(
        "apiextensions.k8s.io/v1", "CustomResourceDefinition", "spec", "versions", "[]", "schema", "openAPIV3Schema"
    )
    assert props.fields["properties"].element is props
    assert props.fields["allOf"].items is props


def test_what_the_server_always_has() -> None:
    deployment = builtin_kind_schema("apps/v1", "Deployment")
    assert deployment is not None
    assert deployment.zero["spec"]["strategy"] == {}
    assert deployment.zero["spec"]["template"] == {"metadata": {}, "spec": {"containers": None}}
    assert "securityContext" not in deployment.zero["spec"]["template"]["spec"]

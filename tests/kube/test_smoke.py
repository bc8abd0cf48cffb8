"""The control plane that `make kube` built is the pinned one and does what Remuda counts on."""

import time
from collections.abc import Callable

import pytest

from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ControlPlane, Response, pinned_version

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainingjobs.remuda.dev"},
    "spec": {
        "group": "remuda.dev",
        "scope": "Namespaced",
        "names": {"kind": "TrainingJob", "plural": "trainingjobs", "singular": "trainingjob"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def eventually(
    look: Callable[[], Response], done: Callable[[Response], bool], deadline_s: float = PATIENCE_S
) -> Response:
    """The first answer that satisfies `done`; the last one is shown when the deadline passes."""
    deadline = time.monotonic() + deadline_s
    while not done(answer := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {deadline_s} s; the last answer was {answer}")
    return answer


def has_condition(response: Response, kind: str) -> bool:
    conditions = response.body.get("status", {}).get("conditions") or []  # null until the first is there
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> str:
    """A namespace with the service account that pods need; no controller makes one here."""
    name = str(request.node.name).replace("_", "-")[:60].strip("-")
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": name}}),
        (f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}),
    ):
        created = control_plane.request("POST", path, body)
        assert created.status == 201, created
    return name


def test_version_is_the_pinned_one(control_plane: ControlPlane) -> None:
    response = control_plane.request("GET", "/version")
    assert response.status == 200
    assert response.body["gitVersion"] == pinned_version()
    assert (response.body["major"], response.body["minor"]) == tuple(pinned_version().lstrip("v").split(".")[:2])


def test_requests_without_the_token_are_refused(control_plane: ControlPlane) -> None:
    stranger = ControlPlane(**{**vars(control_plane), "token": "wrong", "processes": {}})
    assert stranger.request("GET", "/api/v1/namespaces").status == 401


def test_kubectl_lists_namespaces(control_plane: ControlPlane) -> None:
    names = control_plane.kubectl("get", "namespaces", "-o", "name").split()
    assert {"namespace/default", "namespace/kube-system"} <= set(names)


def test_a_crd_with_an_open_schema_keeps_every_field(control_plane: ControlPlane, namespace: str) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    created = control_plane.request("POST", crds, CRD)
    assert created.status == 201, created
    eventually(
        lambda: control_plane.request("GET", f"{crds}/trainingjobs.remuda.dev"),
        lambda response: has_condition(response, "Established"),
    )

    jobs = f"/apis/remuda.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
    spec = {"spares": 1, "roles": [{"name": "worker", "replicas": 8}]}
    job = {
        "apiVersion": "remuda.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "hello"},
        "spec": spec,
    }
    # Established is a promise about storage; the handler for the new path may follow a moment later.
    stored = eventually(lambda: control_plane.request("POST", jobs, job), lambda response: response.status != 404)
    assert stored.status == 201, stored
    assert control_plane.request("GET", f"{jobs}/hello").body["spec"] == spec


def test_annotations_of_a_binding_reach_the_pod(control_plane: ControlPlane, namespace: str) -> None:
    """Chosen device ids travel this way, so the agent can read them from the pod it was given."""
    node = {"metadata": {"name": "node-0"}}
    assert control_plane.request("POST", "/api/v1/nodes", node).status == 201
    pods = f"/api/v1/namespaces/{namespace}/pods"
    pod = {
        "metadata": {"name": "worker-0", "annotations": {"kept": "before"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    created = control_plane.request("POST", pods, pod)
    assert created.status == 201, created

    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "worker-0", "annotations": {"remuda.dev/devices": "GPU-0,GPU-1"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-0"},
    }
    bound = control_plane.request("POST", f"{pods}/worker-0/binding", binding)
    assert bound.status == 201, bound

    body = control_plane.request("GET", f"{pods}/worker-0").body
    assert body["spec"]["nodeName"] == "node-0"
    assert body["metadata"]["annotations"] == {"kept": "before", "remuda.dev/devices": "GPU-0,GPU-1"}
    again = control_plane.request("POST", f"{pods}/worker-0/binding", binding)
    assert (again.status, again.body["reason"]) == (409, "Conflict")

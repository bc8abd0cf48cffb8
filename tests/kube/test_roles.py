"""deploy/roles.yaml on a real kube-apiserver: who may edit a namespace may make TrainingJobs there, and who may view it may not.

Kubernetes' own roles take ours in by a controller of kube-controller-manager, which runs here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.waiting import PATIENCE_S, wait_until
from tests.kube.control_plane import ControlPlane
from tests.kube.deployed import DEPLOY, Bearer, bearer
from tests.kube.planes import own_plane, running_controllers

JOBS = "/apis/remuda.dev/v1alpha1/namespaces/default/trainingjobs"
LEDGERS = "/apis/remuda.dev/v1alpha1/nodedevices"
CONTAINER = {"name": "main", "image": "x", "command": ["train"]}
JOB = {
    "apiVersion": "remuda.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"generateName": "job-"},
    "spec": {"roles": [{"replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}}]},
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with own_plane(tmp_path_factory.mktemp("roles")) as plane:
        plane.kubectl("apply", "-f", str(DEPLOY / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        plane.kubectl("apply", "--validate=strict", "-f", str(DEPLOY / "roles.yaml"))
        with running_controllers(plane, "clusterrole-aggregation-controller", tmp_path_factory.mktemp("manager")):
            yield plane


def person(plane: ControlPlane, name: str, *, role: str, cluster_wide: bool = False) -> Bearer:
    plane.kubectl("create", "serviceaccount", name)
    scope = "clusterrolebinding" if cluster_wide else "rolebinding"
    plane.kubectl("create", scope, name, f"--clusterrole={role}", f"--serviceaccount=default:{name}")
    return bearer(plane, plane.kubectl("create", "token", name).strip())


def test_who_may_edit_a_namespace_makes_and_deletes_its_jobs(plane: ControlPlane) -> None:
    one = person(plane, "ml-engineer", role="edit")
    wait_until("edit to have taken ours in", lambda: one.request("POST", JOBS, JOB).status == 201)
    name = one.request("GET", JOBS).body["items"][0]["metadata"]["name"]
    assert one.patch(f"{JOBS}/{name}", {"spec": {"suspend": True}}).status == 200
    assert one.request("DELETE", f"{JOBS}/{name}").status == 200
    assert one.request("GET", LEDGERS).status == 403, "the cluster's devices are not the namespace's"


def test_who_may_view_it_looks_on(plane: ControlPlane) -> None:
    one = person(plane, "guest", role="view")
    wait_until("view to have taken ours in", lambda: one.request("GET", JOBS).status == 200)
    assert one.request("POST", JOBS, JOB).status == 403


def test_an_operator_quarantines_and_changes_no_status(plane: ControlPlane) -> None:
    plane.request(
        "POST", LEDGERS, {"apiVersion": "remuda.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "n"}}
    )
    one = person(plane, "operator", role="remuda-operator", cluster_wide=True)
    order = {"quarantine": {"gpu-0": {"reason": "ByOperator"}}}
    wait_until("the binding to count", lambda: one.patch(f"{LEDGERS}/n", order).status == 200)
    assert one.patch(f"{LEDGERS}/n/status", {"status": {"model": "x"}}).status == 403
    looker = person(plane, "looker", role="remuda-cluster-view", cluster_wide=True)
    wait_until("the other to count", lambda: looker.request("GET", LEDGERS).status == 200)
    assert looker.patch(f"{LEDGERS}/n", order).status == 403


def remuda(plane: ControlPlane, user: Bearer, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The CLI as that person, by a kubeconfig of their own."""
    body = json.loads(plane.kubeconfig.read_text())
    body["users"][0]["user"] = {"token": user.token}
    place.write_text(json.dumps(body))
    command = [sys.executable, "-m", "remuda.cli", "--kubeconfig", str(place), *words]
    environment = {**os.environ, "NO_PROXY": "*"}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False)


def test_the_cli_does_what_the_person_may_and_names_the_verb_that_is_missing(
    plane: ControlPlane, tmp_path: Path
) -> None:
    one, place = person(plane, "cli-user", role="edit"), tmp_path / "kubeconfig"
    train = ("train", "by-cli", "--gpus", "1", "--image", "x", "--", "python", "train.py")

    def created() -> bool:
        return remuda(plane, one, place, *train).returncode == 0

    wait_until("edit to have taken ours in", created)
    listed = remuda(plane, one, place, "jobs", "-o", "json")
    assert [job["metadata"]["name"] for job in json.loads(listed.stdout)["items"]] == ["by-cli"]
    assert remuda(plane, one, place, "suspend", "by-cli").returncode == 0
    refused = remuda(plane, one, place, "quarantine", "n", "gpu-0", "--why", "test")
    assert refused.returncode == 1
    assert "Ask for the verb `get` on nodedevices.remuda.dev; deploy/roles.yaml has roles for it." in refused.stderr
    assert remuda(plane, one, place, "up").stderr.startswith("error: EmbeddedOnly:")
    assert remuda(plane, one, place, "delete", "by-cli").returncode == 0


def test_status_says_which_cluster_is_meant_and_why(plane: ControlPlane, tmp_path: Path) -> None:
    looker = person(plane, "status-looker", role="remuda-cluster-view", cluster_wide=True)
    plane.kubectl(
        "create", "clusterrolebinding", "status", "--clusterrole=view", "--serviceaccount=default:status-looker"
    )
    place = tmp_path / "kubeconfig"
    wait_until("the roles to count", lambda: remuda(plane, looker, place, "status").returncode == 0)
    said = remuda(plane, looker, place, "status").stdout
    assert said.startswith("Cluster: test, 0 of 0 nodes ready.")
    assert f"API: {plane.url}\nChosen by: --kubeconfig {place}\n" in said

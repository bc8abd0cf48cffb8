"""In which order things go, and what is left where nothing else is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from remuda.api.kubernetes.core_v1 import Lease, Node, NodeSpec, Pod, PodSpec
from remuda.api.meta import ObjectMeta, OwnerReference
from remuda.core.uninstall.cleaning_pods import cleaning_daemon_set
from remuda.core.uninstall.installed_objects import SYSTEM, installed_objects, workloads_to_uninstall
from remuda.core.uninstall.uninstall_plan import UninstallObserved, UninstallStep, plan_uninstall, what_stays
from tests.builders.gangs import a_job

DEPLOY = Path(__file__).parents[4] / "deploy"
NAMES = {*workloads_to_uninstall(SYSTEM), *installed_objects(SYSTEM)}


def documents(*names: str) -> list[dict[str, Any]]:
    return [d for name in names for d in yaml.safe_load_all((DEPLOY / name).read_text()) if d]


def test_everything_that_the_manifests_install_goes() -> None:
    files = (
        "manager.yaml",
        "agent.yaml",
        "roles.yaml",
        "clean.yaml",
        *(f"crds/{f.name}" for f in DEPLOY.glob("crds/*")),
    )
    shipped = {
        (d["apiVersion"], d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"])
        for d in documents(*files)
    }
    known = {(o.resource.api_version, o.resource.kind, o.namespace, o.name) for o in NAMES}
    made_at_work = {
        ("coordination.k8s.io/v1", "Lease", SYSTEM, "remuda-manager"),
        ("v1", "ConfigMap", SYSTEM, "remuda-link"),
    }
    assert known == shipped | made_at_work


def test_the_manifest_that_cleans_nodes_is_what_the_command_makes() -> None:
    agents = next(d for d in documents("agent.yaml") if d["kind"] == "DaemonSet")
    (clean,) = documents("clean.yaml")
    assert clean["spec"] == cleaning_daemon_set(agents["spec"], jobs_stay=True)


def test_other_directories_of_the_agent_are_cleaned_too() -> None:
    container = {"name": "agent", "image": "i", "args": ["agent", "--root", "/data/remuda", "--cdi-dir=/var/run/cdi"]}
    made = cleaning_daemon_set({"template": {"spec": {"containers": [container]}}}, jobs_stay=False)
    (clean,) = made["template"]["spec"]["initContainers"]
    assert "--root=/host/state/remuda" in clean["args"]
    assert "--cdi-dir=/host/cdi" in clean["args"]
    paths = [volume["hostPath"]["path"] for volume in made["template"]["spec"]["volumes"]]
    assert paths == ["/data", "/var/lib/kubelet/device-plugins", "/var/run/cdi"]


def rank(name: str = "job-worker-0") -> Pod:
    owner = OwnerReference(
        "remuda.dev/v1alpha1", "TrainingJob", "job", "u1", controller=True, block_owner_deletion=True
    )
    meta = ObjectMeta(name=name, namespace="team", uid="u2", owner_references=[owner])
    return Pod(metadata=meta, spec=PodSpec(node_name="n1", scheduler_name="remuda"))


def a_cluster() -> UninstallObserved:
    marks = {"remuda.dev/cordoned-by": "rollout-driver"}
    job = a_job().build()
    return UninstallObserved(
        installed=NAMES,
        nodes=[Node(metadata=ObjectMeta(name="n1", annotations=marks), spec=NodeSpec(unschedulable=True))],
        pods=[rank()],
        training_jobs=[replace(job, metadata=replace(job.metadata, namespace="team"))],
        leases=[Lease(metadata=ObjectMeta(name="n1")), Lease(metadata=ObjectMeta(name="n1.remuda-agent"))],
    )


def index(steps: list[UninstallStep], kind: str, name: str) -> int:
    return next(n for n, step in enumerate(steps) if (step.resource.kind, step.name) == (kind, name))


def test_the_order() -> None:
    steps = plan_uninstall(a_cluster(), delete_jobs=False)
    places = [
        index(steps, "Deployment", "remuda-manager"),
        index(steps, "DaemonSet", "remuda-agent"),
        index(steps, "Node", "n1"),
        index(steps, "Pod", "job-worker-0"),
        index(steps, "TrainingJob", "job"),
        index(steps, "ClusterRole", "remuda-manager"),
        index(steps, "Namespace", "remuda-system"),
        index(steps, "CustomResourceDefinition", "trainingjobs.remuda.dev"),
    ]
    assert places == sorted(places)


def test_only_leases_of_agents_go() -> None:
    steps = plan_uninstall(a_cluster(), delete_jobs=False)
    leases = [(step.namespace, step.name) for step in steps if step.resource.kind == "Lease"]
    assert leases == [("kube-node-lease", "n1.remuda-agent"), (SYSTEM, "remuda-manager")]


@pytest.mark.parametrize("delete_jobs", [False, True])
def test_ranks_run_on_unless_asked_otherwise(delete_jobs: bool) -> None:
    steps = plan_uninstall(a_cluster(), delete_jobs=delete_jobs)
    (pod,) = (step for step in steps if step.resource.kind == "Pod")
    assert pod.patch == (None if delete_jobs else {"metadata": {"ownerReferences": None}})
    words = " ".join(what_stays(a_cluster(), delete_jobs=delete_jobs))
    assert ("Nobody recovers them any more" in words) is not delete_jobs


def test_pods_that_wait_for_our_scheduler_are_named() -> None:
    waiting = replace(rank(), metadata=ObjectMeta(name="p"), spec=PodSpec(scheduler_name="remuda"))
    (words,) = what_stays(UninstallObserved(pods=[waiting]), delete_jobs=False)
    assert "1 waiting pod" in words


def test_another_namespace_is_not_deleted() -> None:
    seen = replace(a_cluster(), system="kube-system", installed=installed_objects("kube-system"))
    assert not [step for step in plan_uninstall(seen, delete_jobs=False) if step.resource.kind == "Namespace"]


def test_of_what_is_gone_nothing_is_left_to_do() -> None:
    assert plan_uninstall(UninstallObserved(), delete_jobs=False) == []

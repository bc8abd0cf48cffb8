"""What a stolen token is good for: the agent's and the manager's, on a real kube-apiserver under the manifests of deploy/.

Each refusal is looked for until the policy is in force, and is a dry run, so that nothing is left when it is not refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from remuda.core.training.job_pods import build_job_pod
from remuda.runtime.manager_process import manager_process_kubelet_form
from tests.builders.gangs import a_job
from tests.builders.waiting import wait_until
from tests.kube.control_plane import ControlPlane, Response
from tests.kube.deployed import (
    HERE,
    THERE,
    Bearer,
    agents_pod,
    bearer,
    deployed_plane,  # noqa: F401
    token_of,
)

DRY = "?dryRun=All"
LEDGERS, NODES = "/apis/remuda.dev/v1alpha1/nodedevices", "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
PRIVILEGED, SERVICE_ACCOUNTS = "pod-security.kubernetes.io/enforce=privileged", "remuda.dev/service-accounts=any"


@pytest.fixture(scope="module")
def agent(plane: ControlPlane) -> Bearer:
    return bearer(plane, token_of(plane, "remuda-agent", agents_pod(plane)))


@pytest.fixture(scope="module")
def manager(plane: ControlPlane) -> Bearer:
    return bearer(plane, token_of(plane, "remuda-manager"))


@pytest.fixture(scope="module")
def ledger(plane: ControlPlane) -> str:
    """That of the agent's node, with a device that an operator keeps out."""
    for name in (HERE, THERE):
        body = {"apiVersion": "remuda.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": name}}
        made = plane.request("POST", LEDGERS, {**body, "quarantine": {"gpu-0": {"reason": "ByOperator"}}})
        assert made.status in (201, 409), made
    return f"{LEDGERS}/{HERE}"


def refused(words: str, ask: Callable[[], Response]) -> None:
    said: list[Response] = []

    def is_refused() -> bool:
        said[:] = [ask()]
        assert said[0].status in (200, 201, 403), said
        return said[0].status == 403 and words in said[0].body["message"]

    try:
        wait_until(f"a refusal with `{words}`", is_refused, seconds=30.0)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last answer: {said}") from None


def done(answer: Response) -> Any:
    assert answer.status in (200, 201), answer
    return answer.body


# --- the agent's --------------------------------------------------------------------------------------------------------


ORDER = {"evil": {"action": "command", "command": ["/bin/sh"]}}


@pytest.mark.parametrize(
    "body",
    [{"quarantine": {"gpu-0": None}}, {"orders": ORDER}, {"verdicts": []}, {"findings": {}}, {"observed": {}}],
    ids=lambda body: next(iter(body)),
)
def test_an_agents_token_lifts_no_quarantine_and_gives_no_orders(agent: Bearer, ledger: str, body: Any) -> None:
    refused("cannot patch resource", lambda: agent.patch(ledger + DRY, body))


def test_through_the_status_it_changes_the_status_alone(agent: Bearer, ledger: str) -> None:
    forged = {"quarantine": None, "orders": ORDER, "metadata": {"labels": {"a": "b"}, "finalizers": ["a.b/c"]}}
    found = done(agent.patch(f"{ledger}/status", {**forged, "status": {"model": "seen"}}))
    assert found["status"] == {"model": "seen"}
    assert found["quarantine"] == {"gpu-0": {"reason": "ByOperator"}}
    assert "orders" not in found
    assert not {"labels", "finalizers"} & found["metadata"].keys()


def test_an_agent_makes_and_removes_no_ledger(agent: Bearer, ledger: str) -> None:
    body = {"apiVersion": "remuda.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "another"}}
    refused("cannot create resource", lambda: agent.request("POST", LEDGERS + DRY, body))
    refused("cannot delete resource", lambda: agent.request("DELETE", ledger + DRY))


def test_an_agent_says_nothing_about_another_node(agent: Bearer, ledger: str) -> None:
    words = f"WrongNode: the agent on node '{HERE}' may not write nodedevices {THERE}"
    refused(words, lambda: agent.patch(f"{LEDGERS}/{THERE}/status{DRY}", {"status": {"model": "forged"}}))
    refused(
        "WrongNode", lambda: agent.patch(f"{NODES}/{THERE}{DRY}", {"metadata": {"labels": {"nvidia.com/gpu.a": "b"}}})
    )


def test_a_token_that_names_no_node_writes_nothing(plane: ControlPlane, ledger: str) -> None:
    nobody = bearer(plane, token_of(plane, "remuda-agent"))
    refused("WrongNode", lambda: nobody.patch(f"{ledger}/status{DRY}", {"status": {"model": "forged"}}))


DRILLS = "/apis/remuda.dev/v1alpha1/drills"


@pytest.fixture(scope="module")
def drills(plane: ControlPlane) -> dict[str, str]:
    """By node, "" for one that names none: paths of drills."""
    spec = {"type": "process-kill", "pod": "p", "namespace": "default"}
    found = {}
    for node in (HERE, THERE, ""):
        body = {"apiVersion": "remuda.dev/v1alpha1", "kind": "Drill", "metadata": {"name": f"on-{node or 'none'}"}}
        done(plane.request("POST", DRILLS, {**body, "spec": {**spec, **({"node": node} if node else {})}}))
        found[node] = f"{DRILLS}/on-{node or 'none'}"
    return found


@pytest.mark.parametrize("node", [THERE, ""])
def test_an_agent_answers_no_drill_of_another_node(agent: Bearer, drills: dict[str, str], node: str) -> None:
    words = f"WrongNode: the agent on node '{HERE}' may not write drills on-{node or 'none'}"
    refused(words, lambda: agent.patch(f"{drills[node]}/status{DRY}", {"status": {"phase": "Refused"}}))


def test_an_agent_answers_the_drills_of_its_node_and_aims_none_elsewhere(agent: Bearer, drills: dict[str, str]) -> None:
    forged = {"status": {"phase": "Done"}, "spec": {"node": THERE, "pod": "another"}}
    found = done(agent.patch(f"{drills[HERE]}/status", forged))
    assert (found["status"], found["spec"]["node"], found["spec"]["pod"]) == ({"phase": "Done"}, HERE, "p")
    refused("cannot patch resource", lambda: agent.patch(drills[HERE] + DRY, {"spec": {"undo": True}}))
    body = {"apiVersion": "remuda.dev/v1alpha1", "kind": "Drill", "metadata": {"name": "mine"}}
    spec = {"type": "node-lost", "node": HERE}
    refused("cannot create resource", lambda: agent.request("POST", DRILLS + DRY, {**body, "spec": spec}))
    refused("cannot delete resource", lambda: agent.request("DELETE", drills[HERE] + DRY))


def lease(name: str, **spec: Any) -> dict[str, Any]:
    times = {"renewTime": "2099-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40, **spec}
    meta = {"name": name, "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": times}


def test_an_agent_renews_its_own_lease_and_not_that_of_its_kubelet(plane: ControlPlane, agent: Bearer) -> None:
    refused("WrongNode", lambda: agent.request("POST", LEASES + DRY, lease(HERE)))
    done(plane.request("POST", LEASES, lease(HERE)))
    refused("WrongNode", lambda: agent.patch(f"{LEASES}/{HERE}{DRY}", {"spec": {"leaseDurationSeconds": 9999}}))
    refused("WrongNode", lambda: agent.request("POST", LEASES + DRY, lease(f"{THERE}.remuda-agent")))
    own = f"{HERE}.remuda-agent"
    refused("LeaseTooLong", lambda: agent.request("POST", LEASES + DRY, lease(own, leaseDurationSeconds=10**9)))
    done(agent.request("POST", LEASES, lease(own)))
    done(agent.patch(f"{LEASES}/{own}", {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}))


TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"taints": None}},
        {"spec": {"unschedulable": True}},
        {"metadata": {"labels": {"remuda.dev/reservation": "mine"}}},
        {"metadata": {"labels": {"team": None}}},
        {"metadata": {"labels": {"nvidia.com/gpu.clique": "a.1"}}},
        {"metadata": {"annotations": {"remuda.dev/cordoned-by": None}}},
        {"metadata": {"annotations": {"remuda.dev/remedy-by": "me"}}},
        {"metadata": {"finalizers": ["a.b/c"]}},
    ],
    ids=str,
)
def test_an_agent_changes_no_taint_and_no_mark_of_its_node(plane: ControlPlane, agent: Bearer, body: Any) -> None:
    marks = {"labels": {"team": "a"}, "annotations": {"remuda.dev/cordoned-by": "incident"}}
    done(bearer(plane, plane.token).patch(f"{NODES}/{HERE}", {"spec": {"taints": [TAINT]}, "metadata": marks}))
    refused("NotTheAgents", lambda: agent.patch(f"{NODES}/{HERE}{DRY}", body))


def test_an_agent_describes_the_gpus_of_its_node(agent: Bearer) -> None:
    labels = {
        "nvidia.com/gpu.product": "H100",
        "nvidia.com/mig.strategy": "none",
        "nvidia.com/cuda.driver.major": "570",
    }
    labels |= {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.compute.major": "9", "nvidia.com/mig-3g.40gb.count": "2"}
    mark = {"remuda.dev/written-labels": ",".join(labels)}
    done(agent.patch(f"{NODES}/{HERE}", {"metadata": {"labels": labels, "annotations": mark}}))
    gone = {"metadata": {"labels": dict.fromkeys(labels), "annotations": dict.fromkeys(mark)}}
    done(agent.patch(f"{NODES}/{HERE}", gone))


# --- the manager's ------------------------------------------------------------------------------------------------------


def a_pod(gpus: int = 0, name: str = "one", namespace: str = "default") -> dict[str, Any]:
    """As the manager makes it for a job."""
    job = a_job().gpus(gpus).template(containers=[{"name": "main", "image": "i", "command": ["train"]}]).build()
    body = build_job_pod(job, job.spec.roles[0], 0, spare=False, domain="")
    body["metadata"] |= {"name": name, "namespace": namespace}
    body["metadata"]["ownerReferences"][0]["uid"] = "6f0c2a0e-0000-4000-8000-000000000001"
    return copy.deepcopy(manager_process_kubelet_form("/var/lib/remuda").rewrite(body))


def pods(namespace: str = "default") -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_manager_makes_the_pods_of_its_jobs(manager: Bearer, gpus: int) -> None:
    done(manager.request("POST", pods() + DRY, a_pod(gpus)))


def test_init_containers_may_mount_what_is_not_of_the_node(manager: Bearer) -> None:
    body = a_pod()
    body["spec"]["volumes"].append({"name": "mine", "emptyDir": {}})
    mounts = [{"name": "mine", "mountPath": "/mine"}]
    body["spec"]["initContainers"] = [{"name": "i", "image": "i", "volumeMounts": mounts}, {"name": "j", "image": "i"}]
    done(manager.request("POST", pods() + DRY, body))


def test_the_manager_makes_no_pod_that_is_not_of_its_kinds(manager: Bearer, plane: ControlPlane) -> None:
    done_or_there(plane, "kube-system")
    bare = a_pod()
    del bare["metadata"]["ownerReferences"]
    bare["metadata"]["namespace"] = "kube-system"
    bare["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    bare["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    refused("NotOurs", lambda: manager.request("POST", pods("kube-system") + DRY, bare))
    other = a_pod()
    other["metadata"]["ownerReferences"][0] |= {"apiVersion": "batch/v1", "kind": "Job"}
    refused("NotOurs", lambda: manager.request("POST", pods() + DRY, other))
    loose = a_pod()
    del loose["metadata"]["ownerReferences"][0]["controller"]
    refused("NotOurs", lambda: manager.request("POST", pods() + DRY, loose))


def done_or_there(plane: ControlPlane, namespace: str) -> None:
    account = {"metadata": {"name": "default"}}
    assert plane.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account).status in (201, 409)


def _spec(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec.update(fields)


def _container(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec["containers"][0].update(fields)


def _host_path(name: str, path: str) -> Callable[[dict[str, Any]], None]:
    def change(spec: dict[str, Any]) -> None:
        spec["volumes"] = [v for v in spec["volumes"] if v["name"] != name]
        spec["volumes"].append({"name": name, "hostPath": {"path": path}})

    return change


def _init(spec: dict[str, Any]) -> None:
    spec["initContainers"] = [{"name": "i", "image": "i", "securityContext": {"privileged": True}}]


def _all_allocations(spec: dict[str, Any]) -> None:
    spec["containers"][0]["volumeMounts"].append({"name": "remuda-alloc", "mountPath": "/all"})


def _of_another(spec: dict[str, Any]) -> None:
    env = spec["containers"][0]["env"]
    spec["containers"][0]["env"] = [e for e in env if e["name"] != "REMUDA_POD_UID"]
    spec["containers"][0]["env"].append({"name": "REMUDA_POD_UID", "value": "another"})


def _of_configuration(spec: dict[str, Any]) -> None:
    env = spec["containers"][0]["env"]
    spec["containers"][0]["env"] = [e for e in env if e["name"] != "REMUDA_POD_UID"]
    spec["containers"][0]["envFrom"] = [{"configMapRef": {"name": "mine"}}]


def _unmasked(spec: dict[str, Any]) -> None:
    spec["hostUsers"] = False  # without it the server itself refuses
    spec["containers"][0]["securityContext"] = {"procMount": "Unmasked"}


def _writable_launcher(spec: dict[str, Any]) -> None:
    for mount in spec["containers"][0]["volumeMounts"]:
        mount.pop("readOnly", None)


def _writable_door(spec: dict[str, Any]) -> None:
    for mount in spec["containers"][0]["volumeMounts"]:
        if mount["name"] == "remuda-alloc":
            del mount["readOnly"]


def _init_mounts(name: str) -> Callable[[dict[str, Any]], None]:
    """As the first container has it."""

    def change(spec: dict[str, Any]) -> None:
        first = spec["containers"][0]
        mounts = [m for m in first["volumeMounts"] if m["name"] == name]
        assert mounts
        spec["initContainers"] = [{"name": "i", "image": "i", "env": first["env"], "volumeMounts": mounts}]

    return change


PRIVILEGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "host network": _spec(hostNetwork=True),
    "host processes": _spec(hostPID=True),
    "host ipc": _spec(hostIPC=True),
    "host port": _container(ports=[{"containerPort": 80, "hostPort": 80}]),
    "privileged": _container(securityContext={"privileged": True}),
    "capability": _container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    "unmasked proc": _unmasked,
    "no seccomp": _container(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "no seccomp of the pod": _spec(securityContext={"seccompProfile": {"type": "Unconfined"}}),
    "sysctl": _spec(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    "init container": _init,
    "a directory": _host_path("mine", "/etc"),
    "our name, another directory": _host_path("remuda-alloc", "/"),
    "our directory, another name": _host_path("mine", "/var/lib/remuda/alloc"),
    "checkpoints of every job": _host_path("remuda-checkpoints", "/var/lib/remuda/checkpoints"),
    "checkpoints of another job": _host_path(
        "remuda-checkpoints", "/var/lib/remuda/checkpoints/default/other-12345678"
    ),
    "every allocation": _all_allocations,
    "the allocation of another": _of_another,
    "the allocation that a ConfigMap names": _of_configuration,
    "the launcher of all": _writable_launcher,
    "a door that can be written": _writable_door,
    "the door in an init container": _init_mounts("remuda-alloc"),
    "the launcher in an init container": _init_mounts("remuda-bin"),
    "checkpoints in an init container": _init_mounts("remuda-checkpoints"),
    "service account": _spec(serviceAccountName="strong"),
}


@pytest.mark.parametrize("what", PRIVILEGES)
def test_the_manager_gives_a_pod_no_privilege_that_its_owner_might_not_have(
    manager: Bearer, plane: ControlPlane, what: str
) -> None:
    account = {"metadata": {"name": "strong"}}
    assert plane.request("POST", "/api/v1/namespaces/default/serviceaccounts", account).status in (201, 409)
    body = a_pod()
    PRIVILEGES[what](body["spec"])
    refused("TooMuchPrivilege", lambda: manager.request("POST", pods() + DRY, body))
    body["metadata"]["annotations"]["remuda.dev/retry-of"] = "p"
    del body["metadata"]["ownerReferences"]
    refused("TooMuchPrivilege", lambda: manager.request("POST", pods() + DRY, body))


@pytest.mark.parametrize("label", [PRIVILEGED, SERVICE_ACCOUNTS])
def test_an_administrator_lifts_it_by_a_label_of_the_namespace(
    manager: Bearer, plane: ControlPlane, label: str
) -> None:
    key, _, value = label.partition("=")
    name = f"lifted-{value}"
    space = plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {key: value}}})
    assert space.status == 201, space
    for account in ("default", "strong"):
        done(plane.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": account}}))
    body = a_pod(namespace=name)
    body["spec"]["serviceAccountName"] = "strong"
    wait_until("the label to be seen", lambda: manager.request("POST", pods(name) + DRY, body).status == 201)
    body["spec"]["hostPID"] = True
    if label == PRIVILEGED:
        done(manager.request("POST", pods(name) + DRY, body))
    else:
        refused("TooMuchPrivilege", lambda: manager.request("POST", pods(name) + DRY, body))


def test_the_manager_changes_marks_of_a_pod_and_not_what_it_runs(manager: Bearer, plane: ControlPlane) -> None:
    done(plane.request("POST", pods(), a_pod(1, "theirs")))
    path = f"{pods()}/theirs"
    image = {"spec": {"containers": [{"name": "main", "image": "mine"}]}}
    strategic = "application/strategic-merge-patch+json"
    refused("NotOurs", lambda: manager.request("PATCH", path + DRY, image, strategic))
    done(manager.patch(path, {"metadata": {"annotations": {"remuda.dev/rejections": "2"}}}))


def test_the_manager_makes_ledgers_and_does_not_speak_for_agents(manager: Bearer, ledger: str) -> None:
    body = {"apiVersion": "remuda.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": "new"}}
    done(manager.request("POST", LEDGERS + DRY, body))
    done(manager.patch(ledger + DRY, {"quarantine": {"gpu-1": {"reason": "Xid79"}}}))
    refused("cannot patch resource", lambda: manager.patch(f"{ledger}/status{DRY}", {"status": {"model": "x"}}))

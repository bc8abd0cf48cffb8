"""Install, run jobs, break a device, roll out, uninstall in the middle: the cluster is as it was, but for what was to run on.

A real kube-apiserver and kube-controller-manager, which deletes what has lost its owner, makes the pods of Deployments and
DaemonSets, and empties namespaces; manager and agent with their real rights. The kubelets are played: pods on a node are ready,
and gone when told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.errors import ApiError
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Binding, Node, Pod
from remuda.api.names import LABEL_GANG
from remuda.api.rollouts import NodeRollout
from remuda.api.training import TrainingJob
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.cluster import Preconditions
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.runtime.agent_files import remove_agent_files
from remuda.runtime.link_endpoint import LinkConfig
from remuda.runtime.manager_process import ManagerConfig, run_manager
from remuda.runtime.node_agent import node_agent
from remuda.runtime.uninstall import Uninstall, UninstallOptions, untyped_kind_for_uninstall_run
from tests.builders.waiting import PATIENCE_S, until
from tests.kube.control_plane import ControlPlane
from tests.kube.deployed import DEPLOY, HERE, SPACE, THERE, Watched, agents_pod, as_user, fake_agent_config, token_of
from tests.kube.planes import MERGE_PATCH, make_node_ready, own_plane, running_controllers
from tests.kube.test_deploy import Quiet, a_job, bound

CONTROLLERS = (
    "garbage-collector-controller,namespace-controller,daemonset-controller,deployment-controller,replicaset-controller"
)
# What changes by itself, and what the API server and its controllers keep of their own.
PASSING = (
    "resourceVersion",
    "generation",
    "managedFields",
    "uid",
    "creationTimestamp",
    "renewTime",
    "observedGeneration",
)
NOT_OURS = {
    "events",
    "componentstatuses",
    "flowschemas",
    "prioritylevelconfigurations",
    "apiservices",
    "endpointslices",
}


@pytest.fixture(scope="module", name="plane")
def plane_with_controllers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    place = tmp_path_factory.mktemp("manager")
    with own_plane(tmp_path_factory.mktemp("uninstall")) as plane, running_controllers(plane, CONTROLLERS, place):
        plane.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        for node in (HERE, THERE):
            labels = {"topology.remuda.dev/rack": "r1"}
            plane.request("POST", "/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
            make_node_ready(plane, node)
        cordon = {"spec": {"unschedulable": True}}
        assert plane.request("PATCH", f"/api/v1/nodes/{THERE}", cordon, MERGE_PATCH).status == 200
        yield plane


@pytest_asyncio.fixture
async def api(plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    async with asyncio.timeout(2 * PATIENCE_S), HttpCluster(access=load_kubeconfig(plane.kubeconfig)) as cluster:
        kubelets = asyncio.create_task(play_kubelets(cluster))
        yield cluster
        kubelets.cancel()
        (ended,) = await asyncio.gather(kubelets, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


async def play_kubelets(api: HttpCluster) -> None:
    """Pods that are bound are ready; those that are deleted are gone. What DaemonSets ask for is bound by name."""
    while True:
        found: list[Pod] = []
        with contextlib.suppress(ApiError):
            await bind_daemon_pods(api)
            found = (await api.list(Pod)).items
        for pod in found:
            with contextlib.suppress(ApiError):
                if pod.is_deleting:
                    await api.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid), grace_s=0)
                elif pod.spec.node_name and pod.status.phase == "Pending":
                    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                    # The patch replaces the whole list of conditions: not one that somebody wrote since the pod was read.
                    seen = Preconditions(pod.uid, pod.metadata.resource_version)
                    await api.patch(Pod, pod.name, {"status": ready}, pod.namespace, subresource="status", when=seen)
        await asyncio.sleep(0.2)


async def bind_daemon_pods(api: HttpCluster) -> None:
    """As a scheduler would: such a pod names its node."""
    for pod in (await api.list(untyped_kind_for_uninstall_run(Pod.resource))).items:
        if pod.owner("DaemonSet") is not None and not pod.spec.get("nodeName"):
            terms = pod.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (field,) = terms["nodeSelectorTerms"][0]["matchFields"]
            await api.bind(pod.name, pod.namespace, Binding(field["values"][0]))


def everything(plane: ControlPlane) -> dict[str, Any]:
    """Every object of every kind, without what passes."""
    found: dict[str, Any] = {}
    names = plane.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    for name in sorted(names):
        if name.partition(".")[0] in NOT_OURS:
            continue
        for item in json.loads(plane.kubectl("get", name, "-A", "-o", "json"))["items"]:
            meta = item["metadata"]
            found[f"{item['kind']}/{meta.get('namespace', '')}/{meta['name']}"] = _without_passing(item)
    return found


def _without_passing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_passing(part) for key, part in value.items() if key not in PASSING}
    return [_without_passing(part) for part in value] if isinstance(value, list) else value


def install(plane: ControlPlane) -> None:
    plane.kubectl("apply", "-f", str(DEPLOY / "crds"))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    for name in ("roles.yaml", "manager.yaml", "agent.yaml"):
        plane.kubectl("apply", "--validate=strict", "-f", str(DEPLOY / name))
    plane.kubectl("create", "serviceaccount", "default", "-n", SPACE)  # by a controller that does not run here
    plane.kubectl("label", "node", HERE, "remuda.dev/agent=true")


class Parts:
    """A manager and the agent of one node, where their pods would run them: ended by hand when those are gone."""

    def __init__(self, plane: ControlPlane, place: Path) -> None:
        pod = agents_pod(plane)
        self.place = place
        self.link_token = place / "link-token"
        self.link_token.write_text(token_of(plane, "remuda-agent", pod, "remuda-link"))
        self.manager: Watched = as_user(plane, token_of(plane, "remuda-manager"), place / "manager")
        self.agent: Watched = as_user(plane, token_of(plane, "remuda-agent", pod), place / "agent")

    async def run(self, is_up: asyncio.Event, api: HttpCluster) -> None:
        """Until their workloads are deleted, as the kubelet ends what a DaemonSet or a Deployment no longer wants."""
        link = LinkConfig("127.0.0.1", 0, "127.0.0.1", SPACE, account=f"system:serviceaccount:{SPACE}:remuda-agent")
        config = ManagerConfig(lease_namespace=SPACE, timing=LeaseTiming(4, 2.5, 0.2), link=link)
        node = fake_agent_config(self.place, self.link_token)
        async with self.manager, self.agent:
            work = asyncio.create_task(run_manager(config, self.manager, self.manager, identity="m", said=Quiet()))
            async with node_agent(node, self.agent) as agent:
                self.node = agent
                is_up.set()
                await until(
                    "the managers to be told to stop", lambda: _is_gone(api, "apps/v1/Deployment", "remuda-manager")
                )
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                await until("the agents to be told to stop", lambda: _is_gone(api, "apps/v1/DaemonSet", "remuda-agent"))


async def _is_gone(api: HttpCluster, kind: str, name: str) -> bool:
    from remuda.core.uninstall.installed_objects import workloads_to_uninstall

    each = next(o for o in workloads_to_uninstall(SPACE) if o.name == name and kind.endswith(o.resource.kind))
    try:
        return (await api.get(untyped_kind_for_uninstall_run(each.resource), name, SPACE)).is_deleting
    except ApiError:
        return True


async def make_marked_pod(api: HttpCluster) -> None:
    """Somebody's pod, with what the manager writes on such."""
    marks = {"remuda.dev/devices": "gpu-0", "remuda.dev/device-failed": "ignore"}
    body = {
        "metadata": {"name": "foreign", "namespace": "default", "annotations": marks},
        "spec": {"nodeName": THERE, "containers": [{"name": "c", "image": "i"}]},
    }
    await api.create(Pod, body)
    said = {"conditions": [{"type": "DeviceFailed", "status": "True"}, {"type": "Mine", "status": "True"}]}
    await api.patch(Pod, "foreign", {"status": {"phase": "Running", **said}}, "default", subresource="status")


def publish(plane: ControlPlane) -> None:
    amounts = {"nvidia.com/gpu": "8"}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    assert plane.request("PATCH", f"/api/v1/nodes/{HERE}/status", status, MERGE_PATCH).status == 200


async def test_in_the_middle_of_a_rollout_and_a_remedy_nothing_is_left_behind(
    plane: ControlPlane, api: HttpCluster, tmp_path: Path
) -> None:
    before = await asyncio.to_thread(everything, plane)
    await asyncio.to_thread(install, plane)
    publish(plane)  # what a kubelet says of the plugin's devices; it is taken off below
    parts, is_up = Parts(plane, tmp_path), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(parts.run(is_up, api))
        await is_up.wait()
        await api.create(TrainingJob, a_job())
        rank = await bound(api)
        await make_marked_pod(api)
        hook = {"command": ["/opt/install"]}
        spec = {"hook": hook, "drain": {"checkpointSeconds": 600, "deadlineSeconds": 1200}}
        await api.create(NodeRollout, {"metadata": {"name": "driver"}, "spec": spec})

        async def is_cordoned() -> bool:
            node = await api.get(Node, HERE)
            return node.spec.unschedulable and "remuda.dev/drain-requested" in node.annotations

        await until("the roll-out to have cordoned the node", is_cordoned)
        parts.node.inject_fault("gpu-7", "xid-79")

        async def is_open() -> bool:
            return bool((await api.list(Incident)).items)

        await until("the fault to be an incident", is_open)
        said: list[str] = []
        options = UninstallOptions(timeout_s=PATIENCE_S)
        await Uninstall(api, options, say=said.append, clock=time.monotonic).run()
    assert not [line for line in said if line.startswith("Not clean")], said
    # What the pods that clean nodes would run.
    remove_agent_files(
        str(tmp_path / "state"), str(tmp_path / "kubelet"), "", keep_launcher=False, pause=lambda seconds: None
    )
    assert not (tmp_path / "state").exists()
    assert list((tmp_path / "kubelet" / "device-plugins").iterdir()) == []

    async def namespace_is_gone() -> bool:
        return plane.request("GET", f"/api/v1/namespaces/{SPACE}").status == 404

    await until("the namespace to be empty and gone", namespace_is_gone)
    unpublish(plane)
    after = await asyncio.to_thread(everything, plane)
    kept = {key: after.pop(key) for key in list(after) if key.startswith("Pod/default/")}
    assert set(after) == set(before)
    assert {key: value for key, value in after.items() if value != before[key]} == {}
    assert kept[f"Pod/default/{rank.name}"]["metadata"]["labels"][LABEL_GANG] == "job"
    assert "ownerReferences" not in kept[f"Pod/default/{rank.name}"]["metadata"]
    foreign = kept["Pod/default/foreign"]
    assert foreign["metadata"]["annotations"] == {"remuda.dev/device-failed": "ignore"}
    assert [condition["type"] for condition in foreign["status"]["conditions"]] == ["Mine"]
    assert parts.agent.forbidden == []


def unpublish(plane: ControlPlane) -> None:
    """As deploy/README.md says to do by hand: kubelets leave the name there, with 0."""
    nothing = {"nvidia.com/gpu": None}
    status = {"status": {"capacity": nothing, "allocatable": nothing}}
    assert plane.request("PATCH", f"/api/v1/nodes/{HERE}/status", status, MERGE_PATCH).status == 200

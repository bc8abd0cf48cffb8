"""The manifests of deploy/ on a real kube-apiserver: it takes them, and what they allow is enough for what the code does.

Manager and agent run here with the tokens of their service accounts under RBAC, place a gang, and get over a broken device.
There is no kubelet: what pods do is not looked at. Nothing may be refused, except an agent that writes about another node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remuda.api.checkpoint_volume import missing_checkpoint_volume_text
from remuda.api.devices import NodeDevices
from remuda.api.errors import NotFound
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_DEVICES
from remuda.api.training import Checkpoint, TrainingJob, TrainingJobSpec
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.http_errors import Forbidden
from remuda.kube.runtime.leader import LeaderTerm
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.runtime.link_endpoint import LinkConfig
from remuda.runtime.manager_process import ManagerConfig, run_manager
from remuda.runtime.node_agent import node_agent
from tests.builders.waiting import until
from tests.kube.control_plane import ControlPlane
from tests.kube.deployed import HERE, SPACE, THERE, Cast, deployed_cast, deployed_plane, fake_agent_config  # noqa: F401
from tests.kube.planes import make_node_ready

STRICT = "strict"


class Quiet:
    def waiting(self) -> None: ...

    def leading(self, term: LeaderTerm) -> None: ...


async def test_what_the_manifests_allow_is_enough(plane: ControlPlane, cast: Cast, tmp_path: Path) -> None:
    make_node_ready(plane, HERE, **{"nvidia.com/gpu": "8"})
    level = {"pod-security.kubernetes.io/enforce": "baseline"}
    made = plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": STRICT, "labels": level}})
    assert made.status == 201, made
    account = plane.request("POST", f"/api/v1/namespaces/{STRICT}/serviceaccounts", {"metadata": {"name": "default"}})
    assert account.status in (201, 409), account
    link = LinkConfig("127.0.0.1", 0, "127.0.0.1", SPACE, account=f"system:serviceaccount:{SPACE}:remuda-agent")
    config = ManagerConfig(lease_namespace=SPACE, timing=LeaseTiming(4, 2.5, 0.2), link=link)
    work = asyncio.create_task(run_manager(config, cast.manager, cast.manager, identity="m", said=Quiet()))
    place = fake_agent_config(tmp_path, cast.link_token)
    try:
        async with node_agent(place, cast.agent) as agent:
            await cast.admin.create(TrainingJob, a_job())
            first = await bound(cast.admin)
            strict = await strict_pod(cast.admin)
            assert "/run/remuda/bin/remuda-launch.pyz" in strict.spec.containers[0].command
            assert "/run/remuda/launch/remuda-launch.pyz" in first.spec.containers[0].command
            device = first.annotations[ANNOTATION_DEVICES].split(",")[0]
            agent.inject_fault(device, "xid-79")

            async def replaced() -> bool:
                pods = (await cast.admin.list(Pod, "default")).items
                return any(p.uid != first.uid and p.spec.node_name for p in pods)

            await until("the pod on the broken device to be replaced", replaced)
            await agent.flush()
            labels = (await cast.admin.get(NodeDevices, HERE)).observed.model
            assert labels == "dgx-h100"
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert [f for f in cast.manager.forbidden if "violates PodSecurity" not in str(f)] == []
    assert cast.agent.forbidden == []


def a_job() -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "none", "command": ["train"]}]}}
    role = {"replicas": 1, "gpus": 2, "template": template}
    return {"metadata": {"name": "job", "namespace": "default"}, "spec": {"roles": [role]}}


async def strict_pod(api: HttpCluster) -> Pod:
    """A pod in a namespace whose level allows no hostPath: our plugin brings what it needs."""
    await api.create(TrainingJob, {**a_job(), "metadata": {"name": "strict", "namespace": STRICT}})
    found: list[Pod] = []

    async def there() -> bool:
        found[:] = (await api.list(Pod, STRICT)).items
        return bool(found)

    await until("a pod in the strict namespace", there)
    return found[0]


async def bound(api: HttpCluster, but: str = "") -> Pod:
    found: list[Pod] = []

    async def there() -> bool:
        found[:] = [p for p in (await api.list(Pod, "default")).items if p.spec.node_name and p.name != but]
        return bool(found)

    await until("a pod of the job to be bound", there)
    return found[0]


async def test_an_agent_writes_about_its_own_node_only(cast: Cast) -> None:
    await cast.admin.create(NodeDevices, {"metadata": {"name": THERE}})
    words = f"WrongNode: the agent on node '{HERE}' may not write nodedevices {THERE}"

    async def refused() -> bool:
        """A policy takes a moment to be in force."""
        try:
            await cast.agent.patch(NodeDevices, THERE, {"status": {"model": "mine"}}, subresource="status")
        except Forbidden as error:
            return words in str(error)
        return False

    await until("the policy to be in force", refused)


async def test_an_agent_is_told_which_job_is_not_there(cast: Cast) -> None:
    with pytest.raises(NotFound) as caught:
        await cast.agent.get(TrainingJob, "never", "default")
    assert caught.value.is_about_object("trainingjobs", "remuda.dev", "never")


async def test_whoever_submits_a_job_is_told_that_its_checkpoints_stay_on_nodes(cast: Cast) -> None:
    heard: list[str] = []
    cast.admin.transport.warn = heard.append
    number = 0

    async def told(mounts: Sequence[str] = (), **checkpoint: Any) -> list[str]:
        nonlocal number
        number += 1
        body = a_job()
        body["metadata"]["name"] = f"told-{number}"
        body["spec"] |= {"checkpoint": checkpoint, "suspend": True}
        if mounts:
            pod = body["spec"]["roles"][0]["template"]["spec"]
            pod["volumes"] = [{"name": "data", "nfs": {"server": "s", "path": "/p"}}]
            pod["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": mount} for mount in mounts]
        heard.clear()
        await cast.admin.create(TrainingJob, body)
        return [text for text in heard if "CheckpointsNotShared" in text]

    async def is_in_force() -> bool:
        return bool(await told())

    await until("the policy to be in force", is_in_force)
    assert await told(volume={"persistentVolumeClaim": {"claimName": "c"}}) == []
    assert await told(volume={"persistentVolumeClaim": {"claimName": "c"}}, path="/data") == []
    (said,) = await told(typicalSeconds=3)
    assert _says(said, missing_checkpoint_volume_text(TrainingJobSpec()))
    path_alone = missing_checkpoint_volume_text(TrainingJobSpec(checkpoint=Checkpoint(path="/data")))
    (said,) = await told(path="/data")
    assert _says(said, path_alone), "a path is a directory of the node, and nobody copies what is in it"
    (said,) = await told(mounts=["/database"], path="/data/ckpt")
    assert _says(said, path_alone)
    for mount in ("/data", "/data/ckpt", "/data/", "/"):
        assert await told(mounts=[mount], path="/data/ckpt") == []


def _says(warning: str, text: str) -> bool:
    """A policy's words follow its name, and a reason."""
    return text[:1].lower() + text[1:] in warning

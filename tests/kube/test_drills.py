"""Drills on a real kube-apiserver under the manifests of deploy/: manager and agent with their own tokens, a kubelet that is not
there, and a person at the command line. Nothing waits for ever: what the node cannot do, and what nobody took, is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.drills import UNDER_WAY, Drill
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.training import TrainingJob
from remuda.cli.app import cli
from remuda.cli.errors import explain_error
from remuda.cli.session import Session
from remuda.core.health import untaken_drills
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.runtime.manager_process import ManagerConfig, run_manager
from remuda.runtime.node_agent import node_agent
from tests.builders.waiting import until
from tests.kube.control_plane import ControlPlane
from tests.kube.deployed import HERE, SPACE, THERE, Cast, deployed_cast, deployed_plane, fake_agent_config  # noqa: F401
from tests.kube.planes import make_node_ready
from tests.kube.test_deploy import Quiet, a_job, bound


@pytest_asyncio.fixture
async def running(plane: ControlPlane, cast: Cast, tmp_path: Path) -> AsyncIterator[Cast]:
    """Manager and agent; in the end nothing was forbidden them."""
    make_node_ready(plane, HERE, **{"nvidia.com/gpu": "8"})
    config = ManagerConfig(lease_namespace=SPACE, timing=LeaseTiming(4, 2.5, 0.2))
    place = fake_agent_config(tmp_path, tmp_path / "none")
    work = asyncio.create_task(run_manager(config, cast.manager, cast.manager, identity="m", said=Quiet()))
    try:
        async with node_agent(place, cast.agent) as agent:
            await agent.flush()
            yield cast
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert (cast.manager.forbidden, cast.agent.forbidden) == ([], [])


async def drill(cast: Cast, kind: str, phase: str = "", **spec: Any) -> Drill:
    body = {"metadata": {"generateName": "d-"}, "spec": {"type": kind, **spec}}
    return await settled(cast, (await cast.admin.create(Drill, body)).name, phase)


async def settled(cast: Cast, name: str, phase: str = "") -> Drill:
    found: list[Drill] = []

    async def is_over() -> bool:
        found[:] = [await cast.admin.get(Drill, name)]
        return found[0].status.phase == phase if phase else found[0].status.phase not in UNDER_WAY

    await until(f"drill {name}", is_over)
    return found[0]


async def test_a_device_that_fails_in_a_drill_is_judged_and_mended(running: Cast) -> None:
    done = await drill(running, "device-fail", node=HERE, device="gpu-3", code="xid-79")
    assert (done.status.phase, done.status.message) == ("Done", f"gpu-3 of {HERE} reports xid-79.")

    async def is_judged() -> bool:
        found = await running.admin.get(NodeDevices, HERE)
        return any(v.device == "gpu-3" and v.state is DeviceState.UNHEALTHY for v in found.verdicts)

    await until("the verdict", is_judged)
    await running.admin.patch(Drill, done.name, {"spec": {"undo": True}})
    assert (await settled(running, done.name, "Undone")).status.reason == "TakenBack"


async def test_what_cannot_be_done_is_refused_by_name(running: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untaken_drills, "UNTAKEN_S", 1.0)
    pod = {"pod": "nobody", "namespace": "default"}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("node-lost", {"node": HERE}, "NotOnARealNode"),
        ("node-reboot", {"node": HERE}, "NoRebootCommand"),
        ("launcher-kill", {"node": HERE, **pod}, "NoLauncher"),
        ("device-flap", {"node": HERE, "device": "gpu-1", "times": 10**9}, "InvalidTimes"),
        ("device-drop", {"node": THERE, "device": "gpu-1"}, "NoAgent"),
        ("device-drop", {"node": "nowhere", "device": "gpu-1"}, "NoSuchNode"),
        ("process-kill", pod, "NodeNotNamed"),
        ("pod-delete", pod, "NoSuchPod"),
    ]
    for kind, spec, reason in cases:
        done = await drill(running, kind, **spec)
        assert (done.status.phase, done.status.reason) == ("Refused", reason), done
        assert done.status.message, done


async def test_the_manager_deletes_pods_of_jobs_and_no_others(running: Cast) -> None:
    container = {"name": "main", "image": "none"}
    meta = {"name": "theirs", "namespace": "default"}
    await running.admin.create(Pod, {"metadata": meta, "spec": {"nodeName": HERE, "containers": [container]}})
    refused = await drill(running, "pod-delete", pod="theirs", namespace="default")
    assert (refused.status.reason, "kubectl -n default delete pod theirs" in refused.status.message) == (
        "NotOurPod",
        True,
    )
    await running.admin.create(TrainingJob, a_job())
    try:
        pod = await bound(running.admin, but="theirs")
        done = await drill(running, "pod-delete", pod=pod.name, namespace="default", node=HERE)
        assert done.status.phase == "Done", done
        assert not any(
            p.uid == pod.uid and p.metadata.deletion_timestamp is None
            for p in (await running.admin.list(Pod, "default")).items
        )
    finally:
        await running.admin.delete(TrainingJob, "job", "default")
        await running.admin.delete(Pod, "theirs", "default", grace_s=0)


async def test_a_person_at_the_command_line_is_told_in_words(running: Cast, plane: ControlPlane) -> None:
    def connect(state: object) -> contextlib.AbstractAsyncContextManager[HttpCluster]:
        return HttpCluster(access=load_kubeconfig(plane.kubeconfig))

    async def run(*words: str) -> str:
        session = Session(connect=connect)
        result = await asyncio.to_thread(CliRunner().invoke, cli, words, obj=session)
        return result.output + (explain_error(result.exception)[1] if result.exception is not None else "")

    said = await run("drill", "device-fail", "--node", HERE, "--device", "gpu-5", "--code", "79")
    assert f"\nDone: gpu-5 of {HERE} reports xid-79.\n" in f"\n{said}", said
    assert "Undo:  remuda drill undo device-fail-" in said
    undone = await run("drill", "undo", said.split()[-1])
    assert undone.endswith("Undone: a probe passes.\n"), undone
    refused = await run("drill", "node-lost", HERE)
    assert f"error: NotOnARealNode: The agent of {HERE} cannot do a node-lost" in refused, refused
    assert "Switch the machine off yourself" in refused

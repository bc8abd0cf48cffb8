"""The heart with a real kube-apiserver underneath: control plane and nodes over HTTP, real processes, demo promises (a) and (b).

Only the API server is Kubernetes' own here: nothing lifts the not-ready taint that it puts on every new node, and nothing
collects what belongs to a deleted owner. The fixture does the first; pods are deleted by name.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from remuda.api.drills import DrillKind
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.training import TrainingJob
from remuda.cli.demo import promises
from remuda.cli.demo.promises import DemoGangAfter, DemoGangBefore
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.cluster_parts import ClusterParts
from remuda.runtime.control_plane import ControlPlane as Manager
from remuda.runtime.machines import ClusterMachines
from remuda.runtime.manager_process import ATTACHED_SCHEDULERS, check_cluster
from remuda.runtime.up_config import RACK_LABEL, ClusterConfig
from tests.builders.waiting import PATIENCE_S, until
from tests.e2e.rig import NAMESPACE, RANKS, Rig, left_running, sweep
from tests.kube.control_plane import ROOT, ControlPlane
from tests.kube.planes import own_plane

CONFIG = ClusterConfig(nodes=4, racks=2, lease_seconds=8.0)
STOP_AT, SAVED = 14, 12  # training waits here while something is broken; the checkpoint before it
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Of its own: it installs our kinds and registers nodes."""
    with own_plane(tmp_path_factory.mktemp("heart")) as plane:
        assert plane.request("POST", ACCOUNT, {"metadata": {"name": "default"}}).status in (201, 409)
        yield plane


@pytest_asyncio.fixture
async def api(plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    async with asyncio.timeout(PATIENCE_S), HttpCluster(access=load_kubeconfig(plane.kubeconfig)) as cluster:
        yield cluster


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "state"
    path.mkdir()
    yield path
    sweep(path)


async def install_kinds(plane: ControlPlane) -> None:
    files = sorted((ROOT / "deploy" / "crds").glob("*.yaml"))
    names = []
    for path in files:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
        answer = await asyncio.to_thread(plane.request, "POST", CRDS, body)
        assert answer.status in (201, 409), answer
        names.append(body["metadata"]["name"])
    assert "nodedevices.remuda.dev" in names

    async def established() -> bool:
        found = [await asyncio.to_thread(plane.request, "GET", f"{CRDS}/{name}") for name in names]
        return all(_is_established(each.body) for each in found)

    await until("our kinds to be served", established)


def _is_established(crd: dict[str, Any]) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []  # null at first
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


class Heart(Rig):
    """The rig of the end-to-end tests; the real server wants an image of every container."""

    def training_job(self) -> TrainingJob:
        job = self.job(spares=1, rack=True)
        containers = [{**c, "image": "train:1"} for c in job.spec.roles[0].template.spec["containers"]]
        body = json.loads(msgspec.json.encode(job))
        body["spec"]["roles"][0]["template"]["spec"]["containers"] = containers
        return msgspec.convert(body, TrainingJob)

    async def racks(self) -> dict[str, str]:
        return {node.name: node.labels[RACK_LABEL] for node in (await self.api.list(Node)).items}

    async def before(self, job: TrainingJob) -> DemoGangBefore:
        return DemoGangBefore(job, await self.racks())

    async def after(self, attempt: int) -> DemoGangAfter:
        """Everybody trains again and is back where training was; each rank's own log says what it resumed from."""
        job = await self.trained_to(STOP_AT, attempt=attempt)
        started = await self.all_started(attempt)
        assert {rank: line.resumed for rank, line in started.items()} == dict.fromkeys(range(RANKS), SAVED)
        await self.check_invariants()
        return DemoGangAfter(job, await self.racks(), {rank: line.resumed or 0 for rank, line in started.items()})


class AttachedParts(ClusterParts):
    """Manager and machines over an API that is there already, with no store and no built-in controllers of their own."""

    def __init__(self, api: HttpCluster, root: Path) -> None:
        board, chance = ProgressBoard(), random.Random(0)
        super().__init__(ClusterMachines(CONFIG, api, board, root=root, clock=time.time, chance=chance))
        self.manager = Manager(api, board, time.time, chance=chance, schedulers=ATTACHED_SCHEDULERS)

    async def start(self) -> None:
        await self.start_machines()
        self.spawn("control-plane", self.manager.run())


@pytest_asyncio.fixture
async def heart(plane: ControlPlane, api: HttpCluster, state: Path) -> AsyncIterator[Heart]:
    await install_kinds(plane)
    await check_cluster(api)
    async with AttachedParts(api, state):
        for name in CONFIG.node_names():
            await api.patch(Node, name, {"spec": {"taints": None}})  # as the node lifecycle controller does
        yield Heart(api, state)
        await clean(api)
    assert not left_running(state)


async def clean(api: HttpCluster) -> None:
    """The job first, or it would have its pods again."""
    for job in (await api.list(TrainingJob, NAMESPACE)).items:
        await api.delete(TrainingJob, job.name, NAMESPACE)
    for pod in (await api.list(Pod, NAMESPACE)).items:
        await api.delete(Pod, pod.name, NAMESPACE, grace_s=0)

    async def gone() -> bool:
        return not (await api.list(Pod, NAMESPACE)).items

    await until("the pods to be gone", gone)


async def test_without_our_kinds_it_says_what_to_install(api: HttpCluster) -> None:
    """Runs first in this module: later tests install them."""
    with pytest.raises(Refusal) as refused:
        await check_cluster(api)
    assert refused.value.reason == "KindNotInstalled"
    assert "trainingjobs.remuda.dev" in str(refused.value)


async def test_the_promises_hold_on_a_real_api_server(heart: Heart) -> None:
    heart.let_run_to(STOP_AT)
    await heart.submit(heart.training_job())
    calm = await heart.before(await heart.trained_to(STOP_AT, spares=1))
    launchers = heart.launchers()

    # (a) a process is killed: everybody restarts in place.
    await heart.strike(DrillKind.PROCESS_KILL, calm.job.status.members[3])
    restarted = await heart.after(attempt=2)
    assert promises.demo_promises_broken_by_restart(calm, restarted) == []
    assert heart.launchers() == launchers, "launchers must live on"

    # (b) a device fails: the spare takes the rank in the same rack, the others keep pod and devices.
    parked = await heart.until("the spare", lambda job: any(s.parked for s in job.status.spares))
    before = await heart.before(parked)
    victim = before.job.status.members[1]
    await heart.fail_device(victim.node, victim.devices[0])
    promoted = await heart.after(attempt=3)
    bad = (victim.node, victim.devices[0])
    assert promises.demo_promises_broken_by_device(before, promoted, 1, bad, by_spare=True) == []
    await heart.until("a fresh spare", lambda job: not promises.demo_promises_broken_by_spare(before, job))
    await events_tell_of_it(heart)


async def events_tell_of_it(heart: Heart) -> None:
    """The real server takes our events, and what our nodes say of themselves."""
    wanted = {"Scheduled", "Started", "Killing", "Placed", "AttemptRaised", "SparePromoted", "Resumed"}

    async def told() -> bool:
        return wanted <= {e.reason for e in (await heart.api.list(Event, NAMESPACE)).items}

    await until(f"events {sorted(wanted)}", told)
    for node in (await heart.api.list(Node)).items:
        assert node.status.node_info is not None
        assert node.status.node_info.kubelet_version.endswith("+remuda")

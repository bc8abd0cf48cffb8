"""Checkpoints without shared storage on a real kubelet: a rank's pod and its node's directory are lost together, and the
replacement goes on from what an agent on another node has of it.

The other node has an agent of its own, with directories of its own, and no kubelet: it takes copies and runs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest_asyncio

from remuda.api.conditions import find_condition
from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.training import Checkpoint, RankCopies, TrainingJob
from remuda.runtime.link_endpoint import LINK
from tests.builders.evidence import note
from tests.builders.waiting import until
from tests.kube.control_plane import ControlPlane, free_ports
from tests.kube.real_node import RealNode
from tests.kube.real_node_agent import Command, agent_command, agent_root, manager_of
from tests.kube.real_node_images import PAUSE
from tests.kube.test_kubelet_heart import NAME, SAVED, STOP_AT, Heart, job_place
from tests.kube.test_kubelet_vendor import end_jobs, with_checkpoint

OTHER = "other-node"
ADDRESS = "10.251.9.1"  # of this machine: peers are not met on loopback
SPACE, ACCOUNT = "kube-system", "remuda-agent"


@contextlib.contextmanager
def peer_address() -> Iterator[None]:
    subprocess.run(["ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "address", "delete", f"{ADDRESS}/32", "dev", "lo"], check=True)


def link_token(plane: ControlPlane, node: str, place: Path) -> Path:
    """As a kubelet projects it into the pod of the node's agent. That pod is asked for by name only and runs nothing."""
    spec = {
        "serviceAccountName": ACCOUNT,
        "automountServiceAccountToken": False,
        "nodeName": node,
        "containers": [{"name": "main", "image": PAUSE, "imagePullPolicy": "Never"}],
    }
    made = plane.request(
        "POST", f"/api/v1/namespaces/{SPACE}/pods", {"metadata": {"name": f"agent-{node}"}, "spec": spec}
    )
    assert made.status == 201, made
    bound = {"kind": "Pod", "apiVersion": "v1", "name": f"agent-{node}", "uid": made.body["metadata"]["uid"]}
    body = {"spec": {"audiences": [LINK], "boundObjectRef": bound}}
    answer = plane.request("POST", f"/api/v1/namespaces/{SPACE}/serviceaccounts/{ACCOUNT}/token", body)
    assert answer.status == 201, answer
    file = place / f"token-{node}"
    file.write_text(answer.body["status"]["token"])
    return file


class TwoNodes:
    """A real node, and another one that has its copies."""

    def __init__(self, heart: Heart, place: Path) -> None:
        self.heart, self.place = heart, place
        self.node = heart.rig.real
        self.other_root = place / "other"
        self.lives = 0
        self.agent: Command | None = None
        self._agents = contextlib.AsyncExitStack()
        self._tokens = {name: link_token(self.node.plane, name, place) for name in (self.node.name, OTHER)}
        self._ports = dict(zip(self._tokens, free_ports(2), strict=True))

    def _peer_options(self, name: str) -> tuple[str, ...]:
        return f"--link-token={self._tokens[name]}", f"--peer-host={ADDRESS}", f"--peer-port={self._ports[name]}"

    async def start_agent(self) -> None:
        self.lives += 1
        log = self.place / f"agent-{self.lives}.log"
        command = agent_command(self.node, log, *self._peer_options(self.node.name))
        self.agent = await self._agents.enter_async_context(command)

    async def start_other_agent(self) -> None:
        kubelet = self.place / "other-kubelet"
        for name in ("device-plugins", "pod-resources"):
            (kubelet / name).mkdir(parents=True)
        command = Command(
            self.place / "other.log",
            "agent",
            f"--node={OTHER}",
            f"--kubeconfig={self.node.plane.kubeconfig}",
            "--backend=fake",
            "--model=dgx-h100",
            f"--kubelet-dir={kubelet}",
            f"--root={self.other_root}",
            *self._peer_options(OTHER),
        )
        self._agents.push_async_callback(command.stop)
        await command.has_said("is up:")

    async def stop(self) -> None:
        await self._agents.aclose()

    async def safe(self, home: str) -> TrainingJob:
        """Once the newest step of the only rank is on the other node, and the job says so."""
        copies = [RankCopies(0, home, OTHER)]

        def is_safe(job: TrainingJob) -> bool:
            kept = job.status.progress.kept
            return bool(kept) and kept[-1].step == SAVED and job.status.copies == copies

        return await self.heart.until(f"step {SAVED} to be safe", is_safe)

    async def lose_pod_and_disk(self, job: TrainingJob) -> None:
        """The node comes back with nothing on its disk. Meanwhile nothing is placed there."""
        assert self.agent is not None
        await self._cordon(True)
        await self.agent.kill()
        (member,) = job.status.members
        await self.heart.rig.delete_pod(member.pod)

        async def is_gone() -> bool:
            return bool((await self.heart.rig.pod(member.pod)).get("metadata", {}).get("uid") != member.uid)

        await until("the pod to be gone", is_gone)
        for name in ("checkpoints", "copies"):
            await asyncio.to_thread(shutil.rmtree, agent_root(self.node) / name)
        await self.start_agent()
        await self._cordon(False)

    async def _cordon(self, is_so: bool) -> None:
        await self.heart.api.patch(Node, self.node.name, {"spec": {"unschedulable": is_so or None}})

    def copies(self, job: TrainingJob) -> dict[int, Path]:
        """By step, what the other node has."""
        folder = self.other_root / "copies" / job.namespace / f"{NAME}-{job.uid[:8]}" / "rank-0"
        return {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.ckpt")}


@pytest_asyncio.fixture
async def two(real_node: RealNode, tmp_path: Path) -> AsyncIterator[TwoNodes]:
    plane = real_node.plane
    with peer_address():
        async with job_place(real_node) as heart:
            account = {"metadata": {"name": ACCOUNT}}
            made = plane.request("POST", f"/api/v1/namespaces/{SPACE}/serviceaccounts", account)
            assert made.status in (201, 409), made
            node = {"metadata": {"name": OTHER}, "spec": {"unschedulable": True}}
            assert plane.request("POST", "/api/v1/nodes", node).status == 201
            found = TwoNodes(heart, tmp_path)
            link = (f"--link-address={ADDRESS}", "--link-port=0")
            async with manager_of(real_node, tmp_path / "manager.log", *link):
                try:
                    await found.start_other_agent()
                    await found.start_agent()
                    yield found
                    await end_jobs(heart)
                finally:
                    await found.stop()
            for name in (real_node.name, OTHER):
                plane.request("DELETE", f"/api/v1/namespaces/{SPACE}/pods/agent-{name}", {"gracePeriodSeconds": 0})
            await heart.api.delete(NodeDevices, OTHER)
            await heart.api.delete(Node, OTHER)


async def test_a_rank_that_loses_pod_and_disk_goes_on_from_its_copy(two: TwoNodes) -> None:
    heart = two.heart
    heart.let_run_to(STOP_AT)
    await heart.api.create(TrainingJob, with_checkpoint(heart.job(replicas=1, spares=0), Checkpoint()))
    await heart.trained_to(STOP_AT, attempt=1, ranks=1)
    job = await two.safe(two.node.name)
    said = find_condition(job.status.conditions, "CheckpointsNotShared")
    assert said is not None
    assert (said.status, said.reason) == ("True", "Copied")

    await two.lose_pod_and_disk(job)
    again, second = await heart.trained_to(STOP_AT, attempt=2, ranks=1)
    assert again.status.members[0].uid != job.status.members[0].uid
    assert second[0]["resumed"] == SAVED, "never from the beginning"

    # The copy rots, and pod and disk are lost once more: that is said, and older copies are there for the asking.
    job = await two.safe(two.node.name)
    copies = two.copies(job)
    copies[SAVED].write_bytes(b"?" * copies[SAVED].stat().st_size)
    older = max((step for step in copies if step < SAVED), default=0)
    await two.lose_pod_and_disk(job)
    held = await heart.until("the loss", lambda job: job.status.reason == "CheckpointMissing")
    assert f"the copy of step {SAVED} is damaged on {OTHER} (CopyCorrupt)" in held.status.message
    assert f"--from-step {older}" in held.status.message
    consent = {"resumeFrom": {"step": older, "attempt": held.status.attempt}}
    await heart.api.patch(TrainingJob, NAME, {"spec": {"checkpoint": consent}}, heart.rig.namespace)
    _, third = await heart.trained_to(STOP_AT, attempt=held.status.attempt, ranks=1)
    assert third[0]["resumed"] == (older or None)
    note(
        "kubelet: a rank whose pod and checkpoint directory are lost goes on from the copy on another node; a damaged copy is "
        "CheckpointMissing, and the rank goes on from an older copy by consent"
    )

"""The heart on a real kubelet with real containers: kube-apiserver, kubelet, containerd; `remuda manager` and our agent.

A TrainingJob of four pods and one spare. A process is killed: four pods keep uid, devices and container. A device fails: three
keep theirs, the fourth rank goes to the spare, and everybody resumes from the checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from remuda.agent.agent import Agent
from remuda.api.codec import from_wire
from remuda.api.devices import NodeDevices
from remuda.api.drills import UNDER_WAY, Drill
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_DEVICES
from remuda.api.training import FailureRule, Member, RuleAction, TrainingJob
from remuda.kube.cluster import Cluster
from tests.builders.evidence import note
from tests.builders.waiting import PATIENCE_S, POLL_S, until
from tests.kube.control_plane import ROOT
from tests.kube.real_node import RealNode
from tests.kube.real_node_agent import agent_command, agent_root, api_of, install_kinds, manager_of, running_agent
from tests.kube.real_node_images import PYTHON
from tests.kube.real_node_rig import RealRig
from tests.kubelet_rows.rig import container_status, restarts, see_counts

RANKS, NAME = 4, "job"
STOP_AT, SAVED = 14, 12  # training waits here while something is broken; the checkpoint before it
MARKER = re.compile(r"--- remuda attempt=(\d+) rank=(\d+|None|-) ")


class Heart:
    def __init__(self, rig: RealRig, api: Cluster, shared: Path) -> None:
        self.rig, self.api, self.shared = rig, api, shared

    def let_run_to(self, step: int) -> None:
        new = self.shared / "limit.new"
        new.write_text(str(step))
        new.replace(self.shared / "limit")

    def job(self, *, replicas: int = RANKS, gpus: int = 1, spares: int = 1) -> TrainingJob:
        """Checkpoints and the program come by hostPath, under one path on the machine and in the container."""
        shared = str(self.shared)
        container = {
            "name": "main",
            "image": PYTHON,
            "imagePullPolicy": "Never",
            "command": ["python3", f"{shared}/train.py"],
            "env": [{"name": "E2E_LIMIT", "value": f"{shared}/limit"}],
            "volumeMounts": [{"name": "shared", "mountPath": shared}],
        }
        spec = {
            "containers": [container],
            "volumes": [{"name": "shared", "hostPath": {"path": shared}}],
            "automountServiceAccountToken": False,
        }
        body = {
            "apiVersion": "remuda.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": NAME, "namespace": self.rig.namespace},
            "spec": {
                "roles": [{"name": "worker", "replicas": replicas, "gpus": gpus, "template": {"spec": spec}}],
                "spares": spares,
                "checkpoint": {"path": f"{shared}/checkpoints"},
            },
        }
        return from_wire(TrainingJob, body)

    async def get(self) -> TrainingJob:
        return await self.api.get(TrainingJob, NAME, self.rig.namespace)

    async def until(self, what: str, holds: Callable[[TrainingJob], bool]) -> TrainingJob:
        deadline = time.monotonic() + PATIENCE_S
        while not holds(job := await self.get()):
            s = job.status
            words = f"waiting for {what}: {s.phase}, attempt {s.attempt} {s.barrier}: {s.reason}: {s.message}"
            assert time.monotonic() < deadline, f"{words}; {[msgspec.to_builtins(r) for r in s.recoveries]}"
            await asyncio.sleep(POLL_S)
        return job

    async def sections(self, attempt: int) -> dict[int, list[str]]:
        """What each rank wrote in an attempt, from the runtime's logs."""
        found: dict[int, list[str]] = {}
        for pod in (await self.api.list(Pod, self.rig.namespace)).items:
            lines: list[str] | None = None
            for line in (await self.rig.output(pod.name)).splitlines():
                if marker := MARKER.match(line):
                    lines = None
                    if int(marker[1]) == attempt:
                        lines = found.setdefault(int(marker[2]), [])
                elif lines is not None:
                    lines.append(line)
        return found

    async def trained_to(
        self, step: int, attempt: int, ranks: int = RANKS
    ) -> tuple[TrainingJob, dict[int, dict[str, Any]]]:
        """Every rank has finished `step` in the attempt; also the first line each rank wrote in it."""

        async def there() -> dict[int, list[str]]:
            found = await self.sections(attempt)
            return found if sum(f"step {step}" in lines for lines in found.values()) == ranks else {}

        try:
            sections = await until(f"step {step} of attempt {attempt}", there, PATIENCE_S)
        except AssertionError as error:
            status = (await self.get()).status
            words = f"{status.phase}, attempt {status.attempt} {status.barrier}: {status.message}"
            raise AssertionError(f"{error}; {words}") from None
        job = await self.until("all to be said", lambda job: _is_running(job, attempt))
        return job, {rank: json.loads(lines[0]) for rank, lines in sections.items()}

    async def are_annotations_true(self, held: Mapping[str, Sequence[str]]) -> bool:
        said = {
            p.name: p.annotations.get(ANNOTATION_DEVICES) for p in (await self.api.list(Pod, self.rig.namespace)).items
        }
        return said.items() >= {pod: ",".join(devices) for pod, devices in held.items()}.items()

    async def containers(self, members: list[Member]) -> dict[str, tuple[str, int]]:
        """Container id and restart count by pod uid."""
        found = {}
        for member in members:
            pod = await self.rig.pod(member.pod)
            found[member.uid] = (container_status(pod)["containerID"], restarts(pod))
        return found

    async def drill(self, kind: str, member: Member, **spec: Any) -> None:
        """Carried out by the agent of the member's node."""
        body = {"metadata": {"generateName": f"{kind}-"}, "spec": {"type": kind, "node": member.node, **spec}}
        made = await self.api.create(Drill, body)

        async def is_over() -> Drill | None:
            found = await self.api.get(Drill, made.name)
            return found if found.status.phase not in UNDER_WAY else None

        done = await until(f"a {kind}", is_over)
        assert done is not None
        assert done.status.phase == "Done", done

    async def training_process(self, member: Member) -> int:
        """The pid, on this machine, of the program below the launcher."""
        pod = await self.rig.pod(member.pod)
        launcher = await asyncio.to_thread(self.rig.pid, container_status(pod)["containerID"])
        (child,) = _children(launcher)
        return child


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_running(job: TrainingJob, attempt: int = 0) -> bool:
    return job.status.phase == "Running" and job.status.attempt >= attempt


def _parked(job: TrainingJob) -> bool:
    return any(spare.parked for spare in job.status.spares)


@contextlib.asynccontextmanager
async def job_place(node: RealNode) -> AsyncIterator[Heart]:
    """A namespace, and a directory of the machine that its pods share. Nothing of ours runs yet."""
    rig = RealRig(node, node.fresh_namespace())
    await rig.open()
    shared = agent_root(node) / rig.namespace
    shared.mkdir(parents=True)
    (shared / "train.py").write_bytes((ROOT / "tests" / "e2e" / "train.py").read_bytes())
    async with api_of(node.plane) as api:
        await install_kinds(node.plane)
        yield Heart(rig, api, shared)
        for job in (await api.list(TrainingJob, rig.namespace)).items:
            await api.delete(TrainingJob, job.name, rig.namespace)
        await rig.close()
        # Its faults outlive its agents, and what is known against its devices its managers; the next test has new devices.
        for incident in (await api.list(Incident)).items:
            await api.delete(Incident, incident.name)
        await api.delete(NodeDevices, rig.name)


@pytest_asyncio.fixture
async def heart(real_node: RealNode) -> AsyncIterator[Heart]:
    async with job_place(real_node) as made:
        yield made


@pytest_asyncio.fixture
async def agent(heart: Heart, tmp_path: Path) -> AsyncIterator[Agent]:
    """In this process, for a test to break its devices; a manager runs beside it."""
    node = heart.rig.real
    async with running_agent(node, heart.api) as running, manager_of(node, tmp_path / "manager.log"):
        yield running
        for job in (await heart.api.list(TrainingJob, heart.rig.namespace)).items:
            await heart.api.delete(TrainingJob, job.name, heart.rig.namespace)


@pytest.mark.usefixtures("agent")
async def test_a_rule_about_a_log_decides_on_a_real_kubelet(heart: Heart) -> None:
    """The first attempt ends in words that no rule is about, the second in those of the rule, which stood in no log before."""
    mark = heart.shared / "been-here"
    words = f"if [ -e {mark} ]; then echo 'CUDA out of memory' >&2; else echo 'no luck' >&2; touch {mark}; fi; exit 1"
    job = heart.job(replicas=1, spares=0)
    container = job.spec.roles[0].template.spec["containers"][0]
    container["command"] = ["sh", "-c", words]
    rule = FailureRule(RuleAction.FAIL, "oom", log_pattern="(?i)out of MEMORY$")
    failure = msgspec.structs.replace(job.spec.failure, rules=[rule])
    spec = msgspec.structs.replace(job.spec, failure=failure)
    await heart.api.create(TrainingJob, msgspec.structs.replace(job, spec=spec))
    failed = await heart.until("the rule to decide", lambda job: job.status.phase == "Failed")
    assert (failed.status.reason, failed.status.attempt) == ("RuleFail", 3), "two ran, and the third only ends them"
    assert "oom" in failed.status.message

    ranks = {member.pod for member in failed.status.members}

    async def have_ended() -> bool:
        pods = (await heart.api.list(Pod, heart.rig.namespace)).items
        return {pod.name for pod in pods} == ranks and all(pod.status.phase == "Succeeded" for pod in pods)

    await until("its ranks to have ended, and to be there", have_ended)
    for name in ranks:
        assert restarts(await heart.rig.pod(name)) == 0, "nobody starts them again"
        assert MARKER.search(await heart.rig.output(name)), "kubectl logs shows what it wrote"

    async def is_free() -> bool:
        nodes = (await heart.api.list(NodeDevices)).items
        return not any(node.observed.holdings for node in nodes)

    await until("their devices to be free", is_free)


@pytest.mark.usefixtures("agent")
async def test_row_60_the_promises_hold_on_a_real_kubelet(heart: Heart) -> None:
    heart.let_run_to(STOP_AT)
    await heart.api.create(TrainingJob, heart.job())
    await heart.trained_to(STOP_AT, attempt=1)
    calm = await heart.until("the spare", lambda job: _parked(job) and _is_running(job))
    members = calm.status.members
    before = await heart.containers(members)
    assert len({d for m in members for d in m.devices}) == RANKS
    rows = await heart.rig.pod_resources()
    held = {row.pod: list(row.device_ids) for row in rows}
    assert {m.pod: m.devices for m in members}.items() <= held.items(), "the kubelet gave what the scheduler chose"
    await until("pods that are said to hold what they hold", lambda: heart.are_annotations_true(held))
    ledgers = (await heart.api.list(NodeDevices)).items
    assert not any(h.chosen for ledger in ledgers for h in ledger.observed.holdings), (
        "mixed up among a gang, the set is the same"
    )

    # (a) a process is killed: everybody restarts in place.
    os.kill(await heart.training_process(members[3]), signal.SIGKILL)
    restarted, first = await heart.trained_to(STOP_AT, attempt=2)
    assert [(m.uid, m.devices) for m in restarted.status.members] == [(m.uid, m.devices) for m in members]
    assert {rank: line["resumed"] for rank, line in first.items()} == dict.fromkeys(range(RANKS), SAVED)
    assert await heart.containers(members) == before, "the containers never ended: same id, same restart count"

    # (b) a device fails: the spare takes the rank, the others keep pod, container and devices.
    spared = await heart.until("the spare", _parked)
    spare = next(s for s in spared.status.spares if s.parked)
    victim = spared.status.members[1]
    await heart.drill("device-fail", victim, device=victim.devices[0], code="xid-79")
    promoted, first = await heart.trained_to(STOP_AT, attempt=3)
    now = {m.rank: m.uid for m in promoted.status.members}
    assert now[1] == spare.uid
    assert {rank: now[rank] for rank in (0, 2, 3)} == {m.rank: m.uid for m in members if m.rank != 1}
    assert {rank: line["resumed"] for rank, line in first.items()} == dict.fromkeys(range(RANKS), SAVED)
    kept = [m for m in members if m.rank != 1]
    assert await heart.containers(kept) == {m.uid: before[m.uid] for m in kept}
    assert victim.devices[0] not in {d for m in promoted.status.members for d in m.devices}
    await heart.until("a fresh spare", _parked)
    note(
        f"kubelet, {RANKS} pods: a killed process restarts all in place (same UID, container and devices, attempt 2); "
        "a failed device costs one pod, the spare takes its rank, attempt 3"
    )


@pytest.mark.usefixtures("agent")
async def test_pods_without_devices_restart_in_place_too(heart: Heart) -> None:
    """No plugin hands them anything: launcher and socket reach them by hostPath."""
    heart.let_run_to(STOP_AT)
    await heart.api.create(TrainingJob, heart.job(replicas=2, gpus=0, spares=0))
    calm, _ = await heart.trained_to(STOP_AT, attempt=1, ranks=2)
    members = calm.status.members
    before = await heart.containers(members)
    await heart.drill("process-kill", members[1], pod=members[1].pod, namespace=heart.rig.namespace)
    restarted, first = await heart.trained_to(STOP_AT, attempt=2, ranks=2)
    assert [m.uid for m in restarted.status.members] == [m.uid for m in members]
    assert {rank: line["resumed"] for rank, line in first.items()} == {0: SAVED, 1: SAVED}
    assert await heart.containers(members) == before


async def test_training_goes_on_while_kubelet_agent_and_manager_restart(heart: Heart, tmp_path: Path) -> None:
    node, rig = heart.rig.real, heart.rig
    heart.let_run_to(STOP_AT)
    async with agent_command(node, tmp_path / "agent-1.log") as first:
        async with manager_of(node, tmp_path / "manager-1.log"):
            await heart.api.create(TrainingJob, heart.job(replicas=2, spares=0))
            calm, _ = await heart.trained_to(STOP_AT, attempt=1, ranks=2)
        members = calm.status.members
        before = await heart.containers(members)
        async with manager_of(node, tmp_path / "manager-2.log"):
            await rig.stop_kubelet()
            await rig.start_kubelet()
            await first.kill()
            async with agent_command(node, tmp_path / "agent-2.log"):
                await see_counts(rig, "nvidia.com/gpu", 8, 8)
                heart.let_run_to(STOP_AT + 12)
                job, _ = await heart.trained_to(STOP_AT + 12, attempt=1, ranks=2)
                assert [(m.uid, m.devices) for m in job.status.members] == [(m.uid, m.devices) for m in members]
                assert await heart.containers(members) == before
                assert not job.status.recoveries

                # And whoever is here now is in charge: a killed process restarts the gang in place.
                os.kill(await heart.training_process(members[0]), signal.SIGKILL)
                job, _ = await heart.trained_to(STOP_AT + 12, attempt=2, ranks=2)
                assert await heart.containers(members) == before
                await heart.api.delete(TrainingJob, NAME, rig.namespace)

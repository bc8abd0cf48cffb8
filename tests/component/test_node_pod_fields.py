"""Fields of a pod that the embedded node honours, each shown by a process."""

from __future__ import annotations

import base64
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from remuda.api.kubernetes.core_v1 import ConfigMap, ContainerStateWaiting, Pod, Secret
from remuda.api.meta import JsonObject
from remuda.embedded.node import pod_worker
from tests.builders.nodes import Rig
from tests.builders.pods import pod_wire
from tests.builders.runtimes import ProcessMachine


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[ProcessMachine]:
    (tmp_path / "alloc").mkdir()
    yield ProcessMachine(tmp_path)


async def ended(rig: Rig, name: str = "worker-0") -> Pod:
    return await rig.pod(name, lambda p: p.is_terminal)


async def test_a_working_directory_is_the_machines(machine: ProcessMachine, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with machine.boot().running() as rig:
        body = pod_wire(command=["pwd"], policy="Never")
        body["spec"]["containers"][0]["workingDir"] = str(tmp_path / "work")
        await rig.create(body)
        assert machine.log(await ended(rig)) == f"{tmp_path / 'work'}\n"


# --- variables from elsewhere -------------------------------------------------------------------------------------------

ENV: list[JsonObject] = [
    {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "one"}}},
    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
    {"name": "CORES", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
    {"name": "NEVER", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "no", "optional": True}}},
    {"name": "ALSO_NEVER", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": True}}},
    {"name": "BOTH", "value": "$(P_one)/$(ONE)"},
]
TAKEN: list[JsonObject] = [
    {"prefix": "P_", "configMapRef": {"name": "settings"}},
    {"secretRef": {"name": "no", "optional": True}},
]


def with_env(env: list[JsonObject], taken: list[JsonObject]) -> JsonObject:
    body = pod_wire(command=["env"], policy="Never", limits={"cpu": 2})
    body["metadata"]["labels"]["team"] = "vision"
    body["spec"]["containers"][0] |= {"env": env, "envFrom": taken}
    return body


async def settings(rig: Rig, **data: str) -> None:
    await rig.cluster.create(ConfigMap, {"metadata": {"name": "settings", "namespace": "default"}, "data": data})


async def secret(rig: Rig, value: str) -> None:
    data = {"token": base64.b64encode(value.encode()).decode()}
    await rig.cluster.create(Secret, {"metadata": {"name": "keys", "namespace": "default"}, "data": data})


async def test_variables_come_from_config_maps_secrets_fields_and_resources(machine: ProcessMachine) -> None:
    async with machine.boot().running() as rig:
        await settings(rig, one="1", dollars="$(HOME) $$")
        await secret(rig, "s3cret")
        await rig.create(with_env(ENV, TAKEN))
        pod = await ended(rig)
        found = dict(line.split("=", 1) for line in machine.log(pod).splitlines())
        wanted = {
            "ONE": "1", "TOKEN": "s3cret", "NODE": "node-01", "TEAM": "vision", "CORES": "2000", "BOTH": "1/1",
            "P_one": "1", "P_dollars": "$(HOME) $$",
        }  # fmt: skip
        assert {name: found.get(name) for name in wanted} == wanted
        assert not {"NEVER", "ALSO_NEVER"} & set(found)


async def test_values_of_secrets_are_for_nobody_elses_eyes(machine: ProcessMachine) -> None:
    """What a container is started with is written down for its shim."""
    async with machine.boot().running() as rig:
        await secret(rig, "s3cret")
        body = with_env(ENV[1:2], [])
        body["spec"]["containers"][0]["command"] = ["sleep", "600"]
        pod = await rig.create(body)
        await rig.running_pod()
        spec = machine.state / "nodes" / "node-01" / "pods" / pod.uid / "main" / "0" / "spec.json"
        assert b"s3cret" in spec.read_bytes()
        assert stat.S_IMODE(spec.stat().st_mode) == 0o600
        await rig.cluster.delete(Pod, "worker-0", "default", grace_s=0)
        await rig.gone("worker-0")


@pytest.mark.parametrize(
    ("env", "taken", "said"),
    [
        (ENV[:1], [], 'configmap "settings" not found'),
        (ENV[1:2], [], 'secret "keys" not found'),
        ([], TAKEN, 'configmap "settings" not found'),
    ],
)
async def test_a_container_waits_for_what_its_variables_come_from(
    machine: ProcessMachine, env: list[JsonObject], taken: list[JsonObject], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_worker, "PREPARE_S", 0.05)
    async with machine.boot().running() as rig:
        await rig.create(with_env(env, taken))
        waits = await rig.pod("worker-0", cannot_start)
        assert (_waiting(waits).reason, _waiting(waits).message) == ("CreateContainerConfigError", said)
        await settings(rig, one="1")
        await secret(rig, "s3cret")
        assert (await ended(rig)).status.phase == "Succeeded"


async def test_a_pod_that_waits_for_its_variables_can_be_deleted(machine: ProcessMachine) -> None:
    async with machine.boot().running() as rig:
        await rig.create(with_env(ENV, []))
        await rig.pod("worker-0", cannot_start)
        await rig.cluster.delete(Pod, "worker-0", "default")
        await rig.gone("worker-0")


def cannot_start(pod: Pod) -> bool:
    return bool(pod.status.container_statuses) and bool(_waiting(pod).message)


def _waiting(pod: Pod) -> ContainerStateWaiting:
    return pod.status.container_statuses[0].state.waiting or ContainerStateWaiting()

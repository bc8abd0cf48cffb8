"""Fields of a pod that the embedded node honours, each shown by a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from remuda.api.kubernetes.core_v1 import Pod
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

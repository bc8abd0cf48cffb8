"""The kubelet rows on the embedded node. A real kubelet runs the same class in tests/kube/test_kubelet_rows.py."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.kubelet_rows.embedded_rig import EmbeddedRig
from tests.kubelet_rows.rig import NodeRig, StartPlugin, is_running, see_pod, stock_plugins
from tests.kubelet_rows.rows import KubeletRows


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[EmbeddedRig]:
    state = Path(tempfile.mkdtemp(prefix="er-"))
    made = EmbeddedRig(state)
    await made.start_kubelet()
    try:
        yield made
    finally:
        await made.close()
        shutil.rmtree(state, ignore_errors=True)


@pytest_asyncio.fixture
async def plugin(rig: EmbeddedRig) -> AsyncIterator[StartPlugin]:
    async with stock_plugins(rig.plugin_directory) as start:
        yield start


class TestEmbeddedNode(KubeletRows):
    async def nothing_starts(self, rig: NodeRig, pod: str) -> None:
        """Better than a kubelet, on purpose (checklist row 17): a plugin that hangs holds up its own pods alone."""
        await see_pod(rig, pod, "running although another plugin hangs", is_running)

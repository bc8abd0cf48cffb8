"""The kubelet rows on the real kubelet. The embedded node runs the same class in tests/kubelet_rows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kube.real_node import RealNode
from tests.kube.real_node_rig import RealRig
from tests.kubelet_rows.rig import StartPlugin, stock_plugins
from tests.kubelet_rows.rows import KubeletRows


@pytest_asyncio.fixture
async def rig(real_node: RealNode, request: pytest.FixtureRequest) -> AsyncIterator[RealRig]:
    made = RealRig(real_node, real_node.fresh_namespace())
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@pytest_asyncio.fixture
async def plugin(rig: RealRig) -> AsyncIterator[StartPlugin]:
    async with stock_plugins(rig.plugin_directory) as start:
        yield start


class TestRealKubelet(KubeletRows):
    pass

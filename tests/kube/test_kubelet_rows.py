"""The kubelet rows on the real kubelet. The embedded node runs the same class in tests/kubelet_rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.kube.real_node import RealNode
from tests.kube.real_node_rig import RealRig
from tests.kubelet_rows.rows import FOUR, KubeletRows, StartPlugin
from tests.kubelet_rows.stock_plugin import StockPlugin


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
    started: list[StockPlugin] = []

    async def start(resource: str, devices: tuple[str, ...] = FOUR, **options: Any) -> StockPlugin:
        stock = StockPlugin(rig.plugin_directory, resource, devices, **options)
        started.append(stock)
        await stock.serve()
        await stock.register()
        return stock

    yield start
    for stock in started:
        await stock.stop()


class TestRealKubelet(KubeletRows):
    pass

"""The five minutes a kubelet remembers a lost plugin, on a real one. Not collected by default, because it waits them out:

pytest tests/kube/slow_kubelet_grace.py
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.builders.waiting import until
from tests.kube.real_node import RealNode
from tests.kube.real_node_rig import RealRig
from tests.kubelet_rows.rig import (
    FOUR,
    container_status,
    counts,
    held,
    is_running,
    pod_body,
    restarts,
    run_pod,
    see_counts,
    see_held,
    see_pod,
)
from tests.kubelet_rows.stock_plugin import StockPlugin

GRACE_S = 300.0


@pytest_asyncio.fixture
async def rig(real_node: RealNode) -> AsyncIterator[RealRig]:
    made = RealRig(real_node, real_node.fresh_namespace())
    await made.open()
    yield made
    await made.close()


@pytest.mark.timeout(500)
async def test_after_five_minutes_the_resource_is_dropped(rig: RealRig) -> None:
    resource = "rows.test/grace"
    async with StockPlugin(rig.plugin_directory, resource, FOUR):
        await see_counts(rig, resource, 4, 4)
        await run_pod(rig, pod_body("holder", resource, 1))
        mine = await held(rig, "holder")
    lost = time.monotonic()
    await see_counts(rig, resource, 4, 0)

    async def dropped() -> bool:
        return counts(await rig.node(), resource) == ("0", "0")

    await until("both counts to read 0", dropped, seconds=GRACE_S + 30)
    print(f"dropped after {time.monotonic() - lost:.1f} s")
    assert time.monotonic() - lost >= GRACE_S - 5
    assert is_running(await rig.pod("holder")), "the holder is left alone"
    assert await held(rig, "holder") == mine

    await rig.kill_container("holder")
    pod = await see_pod(
        rig,
        "holder",
        "stuck",
        lambda p: container_status(p).get("state", {}).get("waiting", {}).get("reason") == "CreateContainerConfigError",
    )
    print(container_status(pod)["state"])
    assert "endpoint not found in cache" in container_status(pod)["state"]["waiting"]["message"]
    async with StockPlugin(rig.plugin_directory, resource, FOUR) as again:
        await see_counts(rig, resource, 4, 4)
        pod = await see_pod(rig, "holder", "running again", is_running)
        await see_held(rig, "holder", mine)
        print(restarts(pod), again.calls)

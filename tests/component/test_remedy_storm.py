"""Many devices fail at once: looks run side by side, and the limit holds at every moment."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from structlog.testing import capture_logs

from remuda.api.codec import to_wire
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.incidents import Incident, IncidentStatus, IncidentVerdict, RemedyOutcome
from remuda.api.kubernetes.core_v1 import Namespace, Node
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.remedies import DEFAULT_POLICY, RemedyPolicy
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.remedies import WORKERS, RemedyController
from remuda.controllers.remedy_table import RemedyTable
from remuda.core.incidents.names import blank_incident, device_subject
from remuda.core.remedies.rungs import device_remedies, is_under_remedy
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.backoff import Backoff
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.work_queue import WorkQueue

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

T0, NODES, MAY = 1_000_000.0, 40, 4


class Slow(LocalCluster):
    """As far away as a real server: a write takes a while, and others go on meanwhile. The first writes of some fail."""

    fails = 0

    async def patch(self, kind: Any, name: str, patch: Any, *args: Any, **options: Any) -> Any:
        for _ in range(7):
            await asyncio.sleep(0)
        if kind is Incident and self.fails:
            self.fails -= 1
            raise TimeoutError("the server did not answer")
        return await super().patch(kind, name, patch, *args, **options)


async def a_storm(api: LocalCluster) -> None:
    await api.create(Namespace, Namespace(metadata=ObjectMeta(name="default")))
    spec = {"limits": {"pool": f"{100 * MAY // NODES}%"}, "breaker": {"share": "100%"}}
    await api.create(RemedyPolicy, {"metadata": {"name": DEFAULT_POLICY}, "spec": spec})
    verdict = IncidentVerdict(state=DeviceState.UNHEALTHY, reason="Xid79", source="kmsg/xid-79", remedy="RebootNode")
    status = IncidentStatus(opened_at=to_time(T0), verdict=verdict)
    for number in range(NODES):
        name = f"n{number:02d}"
        await api.create(Node, {"metadata": {"name": name}})
        rows = [{"id": "gpu-0", "type": "H100", "resource": "nvidia.com/gpu"}]
        await api.create(NodeDevices, {"metadata": {"name": name}})
        await api.patch(NodeDevices, name, {"status": {"devices": rows}}, subresource="status")
        made = await api.create(Incident, blank_incident(device_subject(name, "gpu-0"), to_time(T0)))
        await api.patch(Incident, made.name, {"status": to_wire(status)}, subresource="status")


@pytest.mark.parametrize("fails", [0, 9])
async def test_looks_side_by_side_never_pass_the_same_limit(fails: int) -> None:
    counter = itertools.count()
    api = Slow(ObjectStore(MemoryJournal()), clock=lambda: T0, new_uid=lambda: f"uid-{next(counter)}")
    await a_storm(api)
    api.fails = fails
    view, queue = ClusterView(api, jitter=lambda: 0.0), WorkQueue[str](backoff=Backoff(base_s=0.001))
    table = RemedyTable(view)
    remedies = RemedyController(api, view, table, queue)
    most, active = 0, set[str]()

    def see(old: Incident | None, new: Incident | None) -> None:
        nonlocal most
        if new is not None and is_under_remedy(new):
            active.add(new.name)
        most = max(most, len(active))

    view.incidents.subscribe(see)
    tasks = [asyncio.create_task(informer.run()) for informer in view.informers]
    for informer in view.informers:
        await informer.synced()
    tasks.append(asyncio.create_task(run_controller("remedies", queue, remedies, lambda: T0, WORKERS)))
    try:
        with capture_logs():  # a traceback of eight workers takes seconds to draw
            async with asyncio.timeout(30):
                while not (_all_recorded(view) and _quarantined(view) >= MAY):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    found = [r for i in view.incidents.items() for r in device_remedies(i.status.remedies).values()]
    assert (most, len(active)) == (MAY, MAY)
    assert sum(r.outcome is RemedyOutcome.RUNNING for r in found) == MAY
    held = [r for r in found if r.outcome is RemedyOutcome.HELD_BACK]
    assert len(held) == NODES - MAY
    assert {r.reason for r in held} == {"PoolLimit"}
    assert _quarantined(view) == MAY


def _all_recorded(view: ClusterView) -> bool:
    return all(device_remedies(i.status.remedies) for i in view.incidents.items())


def _quarantined(view: ClusterView) -> int:
    return sum(bool(d.quarantine) for d in view.devices.items())

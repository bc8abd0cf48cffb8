"""Many nodes quarantined at once, through a real kube-apiserver whose etcd syncs to disk.

The manager is the whole control plane over its HTTP client, as on a cluster. A device on each of many nodes fails at the same
moment, written to NodeDevices as agents write it. Timed is from the first of those writes until every one of them that the policy
lets be taken out has an Incident and its quarantine order, and every other one is held back with the reason.

What happened is read from a watch of its own, version by version: how many nodes were under remedy at any time, and that no
device got two incidents, no order was given twice and no quarantine was put up again. Nobody answers the orders: what is under
remedy stays so.

The bound beside it: as many bare patches of the same objects, guarded by their versions, through the same client.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bench.apiserver_servers import DurablePlane
from bench.marks import Broken
from bench.onerun import answer, quiet, rss_mib
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices, Signal
from remuda.api.incidents import Incident, RemedyOutcome, SubjectKind
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import to_time
from remuda.api.remedies import DEFAULT_POLICY, RemedyPolicy
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.core.remedies.limits import limit_of_share
from remuda.core.remedies.rungs import device_remedies, is_under_remedy
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.cluster import Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.informer import Informer
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.control_plane import ControlPlane
from tests.kube.control_plane import ROOT
from tests.kube.control_plane import ControlPlane as RealServer

MODEL = "dgx-h100"
DEVICE, FATAL = "gpu-3", "xid-79"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
POLL_S = 0.05  # how soon the benchmark goes on; the times it reports are those of watch events


class QuarantineAsk(msgspec.Struct, frozen=True):
    nodes: int
    failed: int
    pool: str  # limit of the policy
    still_s: float = 3.0  # watched on after the end: nothing more may happen
    timeout_s: float = 300.0


class QuarantineRun(msgspec.Struct, frozen=True):
    """Seconds from the first fault written. `bound_s`: of as many bare patches."""

    said: float  # until the last fault was written
    quarantined: float
    told: float  # until all is settled: the last incident says what is done, or why nothing is
    bound_s: float
    calls: int
    conflicts: int
    cpu: float
    rss_mib: float
    allowed: int
    under_remedy: int
    most_under_remedy: int
    held_back: int
    twice: int


class Counting(HttpCluster):
    """Requests by method, and refusals because somebody was faster."""

    calls: int = 0
    conflicts: int = 0

    async def _call(self, *args: Any, **options: Any) -> bytes:
        self.calls += 1
        try:
            return await super()._call(*args, **options)
        except Exception as error:
            self.conflicts += type(error).__name__ == "Conflict"
            raise


class History:
    """What became of every object, version by version."""

    def __init__(self, cluster: HttpCluster) -> None:
        self.incidents = Informer(cluster, Incident)
        self.devices = Informer(cluster, NodeDevices)
        self.most = 0
        self.quarantined_at: dict[str, float] = {}  # by node
        self.settled_at: dict[str, float] = {}  # by node
        self._orders: Counter[tuple[str, str]] = Counter()  # how often each appeared
        self._active: dict[str, str] = {}  # incident -> node
        self.incidents.subscribe(self._on_incident)
        self.devices.subscribe(self._on_devices)

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        incident = new or old
        assert incident is not None
        node = incident.spec.subject.node
        if new is not None and is_under_remedy(new):
            self._active[incident.name] = node
            self.most = max(self.most, len(set(self._active.values())))
        else:
            self._active.pop(incident.name, None)
        if new is not None and device_remedies(new.status.remedies):
            self.settled_at.setdefault(node, time.monotonic())

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is None:
            return
        before: set[str] = {*old.orders, *old.quarantine} if old is not None else set()
        for id in {*new.orders, *new.quarantine} - before:
            self._orders[new.name, id] += 1
        if DEVICE in new.quarantine:
            self.quarantined_at.setdefault(new.name, time.monotonic())

    @property
    def under_remedy(self) -> set[str]:
        return set(self._active.values())

    def held_back(self) -> list[str]:
        """The reasons of those that are."""
        records = (r for i in self.incidents.items() for r in device_remedies(i.status.remedies).values())
        return [r.reason for r in records if r.outcome is RemedyOutcome.HELD_BACK]

    def twice(self) -> list[str]:
        """What was done a second time."""
        subjects = Counter(
            (i.spec.subject.node, i.spec.subject.device)
            for i in self.incidents.items()
            if i.spec.subject.kind is SubjectKind.DEVICE
        )
        rungs = Counter((d.name, order.by, order.action) for d in self.devices.items() for order in d.orders.values())
        return [str(key) for counter in (subjects, rungs, self._orders) for key, count in counter.items() if count > 1]


async def run_quarantine(root: Path, ask: QuarantineAsk) -> QuarantineRun:
    server = DurablePlane.start(root / "kube")
    try:
        await install_kinds(server)
        access = load_kubeconfig(server.kubeconfig)
        manager = Counting(access=access)
        async with HttpCluster(access=access) as agents, manager:
            return await _measure(agents, manager, ask)
    finally:
        server.stop()


async def _measure(agents: HttpCluster, manager: Counting, ask: QuarantineAsk) -> QuarantineRun:
    names = [f"node-{number + 1:04d}" for number in range(ask.nodes)]
    await _fill(agents, names, ask)
    plane = ControlPlane(manager, ProgressBoard(), time.time, chance=random.Random(0))
    history = History(agents)
    async with asyncio.timeout(ask.timeout_s), _running(history, plane):
        await _until(lambda: sum(bool(d.verdicts) for d in history.devices.items()) == ask.nodes)
        bound_s = await _bound(manager, history, names[: ask.failed])
        failing = random.Random(0).sample(names, ask.failed)
        allowed = min(ask.failed, limit_of_share(ask.pool, ask.nodes) or 0)
        manager.calls = manager.conflicts = 0
        began, cpu = time.monotonic(), time.process_time()

        async def fail(name: str) -> None:
            found = history.devices.get(name)
            assert found is not None
            signal = Signal("kmsg", FATAL, time=to_time(time.time()))
            rows = [
                to_wire(d) | ({"signals": [to_wire(signal)]} if d.id == DEVICE else {}) for d in found.observed.devices
            ]
            await agents.patch(NodeDevices, name, {"status": {"devices": rows}}, subresource="status")

        await write_all_objects(fail, failing)
        said = time.monotonic() - began
        try:
            await _until(lambda: len(history.quarantined_at) >= allowed and len(history.settled_at) >= ask.failed)
        except TimeoutError:
            raise Broken(
                f"after {time.monotonic() - began:.0f} s {len(history.quarantined_at)} of {allowed} have an order and "
                f"{len(history.settled_at)} of {ask.failed} an incident with a remedy or why there is none"
            ) from None
        cpu, calls = time.process_time() - cpu, manager.calls
        await asyncio.sleep(ask.still_s)
        reasons = history.held_back()
        _check(history, ask, allowed, set(failing), reasons)
        return QuarantineRun(
            said=said,
            quarantined=max(history.quarantined_at.values()) - began,
            told=max(history.settled_at.values()) - began,
            bound_s=bound_s,
            calls=calls,
            conflicts=manager.conflicts,
            cpu=cpu,
            rss_mib=rss_mib(),
            allowed=allowed,
            under_remedy=len(history.under_remedy),
            most_under_remedy=history.most,
            held_back=len(reasons),
            twice=len(history.twice()),
        )


def _check(history: History, ask: QuarantineAsk, allowed: int, failing: set[str], reasons: list[str]) -> None:
    if history.most > allowed:
        raise Broken(f"{history.most} nodes were under remedy at a time; {allowed} ({ask.pool} of {ask.nodes}) may be")
    if twice := history.twice():
        raise Broken(f"done twice: {', '.join(twice[:3])}")
    if wrong := (history.under_remedy | history.quarantined_at.keys()) - failing:
        raise Broken(f"nodes that did not fail were taken out: {', '.join(sorted(wrong)[:3])}")
    if len(history.quarantined_at) != allowed or len(reasons) != ask.failed - allowed or {*reasons} - {"PoolLimit"}:
        raise Broken(f"{len(history.quarantined_at)} have an order and {len(reasons)} are held back ({set(reasons)})")


@contextlib.asynccontextmanager
async def _running(history: History, plane: ControlPlane) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work) for work in (history.incidents.run(), history.devices.run(), plane.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(POLL_S)


async def _bound(cluster: HttpCluster, history: History, names: list[str]) -> float:
    """Seconds of a bare guarded patch of each."""
    began = time.monotonic()

    async def patch(name: str) -> None:
        found = history.devices.get(name)
        assert found is not None
        when = Preconditions(resource_version=found.metadata.resource_version)
        await cluster.patch(NodeDevices, name, {"metadata": {"annotations": {"bench": "1"}}}, when=when)

    await write_all_objects(patch, names)
    return time.monotonic() - began


async def _fill(cluster: HttpCluster, names: list[str], ask: QuarantineAsk) -> None:
    model = load_built_in_machine_model(MODEL)
    # The breaker is another thing; here half of a cluster fails and the limit alone decides.
    spec = {"limits": {"pool": ask.pool}, "breaker": {"share": "100%"}}
    await cluster.create(RemedyPolicy, {"metadata": {"name": DEFAULT_POLICY}, "spec": spec})

    async def make(name: str) -> None:
        rows = [to_wire(row) for row in FakeBackend(model, name, time.time).inventory()]
        await cluster.create(Node, {"metadata": {"name": name}})
        await cluster.patch(Node, name, {"spec": {"taints": None}})
        await cluster.patch(Node, name, {"status": {"conditions": [READY]}}, subresource="status")
        await cluster.create(NodeDevices, {"metadata": {"name": name}})
        seen = {"status": {"model": MODEL, "devices": rows}}
        await cluster.patch(NodeDevices, name, seen, subresource="status")

    await write_all_objects(make, names)


async def install_kinds(server: RealServer) -> None:
    names = []
    for path in sorted((ROOT / "deploy" / "crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
        made = await asyncio.to_thread(server.request, "POST", CRDS, body)
        if made.status != 201:
            raise Broken(f"{path.name} was refused: {made.body}")
        names.append(body["metadata"]["name"])
    async with asyncio.timeout(300):
        for name in names:
            while not _is_established((await asyncio.to_thread(server.request, "GET", f"{CRDS}/{name}")).body):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)


def _is_established(crd: Any) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []  # null at first
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


if __name__ == "__main__":
    quiet()
    sys.exit(answer(QuarantineAsk, run_quarantine))

"""Signals from agents to durable verdicts, the manager on one core.

The manager's side is in this process, pinned to one CPU: link server with TLS, failure controller over its informers, API
objects and the sqlite store that makes every transition durable with fsync. The agents (`node_agents`) are another process, with
real link clients, a stream for each node. Every GPU has a pod that holds it, as a full cluster has.

A transition is durable when the store has committed it. Its latency counts from the moment the agent was told by its driver and
has the client's pause between two messages in it (0 to 50 ms). The bound beside it: a bare 4 KiB write with fsync in the same
directory, in the same run. Nobody writes the agents' own copy to the API here, so the manager remembers every signal for as long
as it ever does: the dearest case for it.

`whole`: with everything else a manager runs (incidents, remedies, scheduler, workloads), under a policy that lets a tenth of the
nodes be under remedy. Every transition is an incident then. Every other node is free, so that remedies begin until the limit is
reached; the rest are held back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.marks import Broken
from bench.node_agents import BIN_S, FATAL, GPUS, AgentsAsk, AgentsRun, node_name
from bench.onerun import answer, quiet, rss_mib
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.codec import to_wire
from remuda.api.devices import DeviceState, NodeDevices, Signal
from remuda.api.errors import Refusal
from remuda.api.incidents import Incident, SubjectKind
from remuda.api.kubernetes.core_v1 import Namespace, Node, Pod
from remuda.api.meta import ObjectMeta, to_seconds
from remuda.api.names import ANNOTATION_DEVICES, RESOURCE_GPU
from remuda.api.remedies import DEFAULT_POLICY, RemedyPolicy
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.verdicts import WORKERS, VerdictController
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.core.remedies.rungs import device_remedies, is_remedy_held_back, is_under_remedy
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore
from remuda.embedded.apiserver.store.sqlite_journal import SqliteJournal
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.link.certificates import LinkCertificates
from remuda.link.progress_board import ProgressBoard
from remuda.link.stream_server import LinkServer
from remuda.runtime.control_plane import ControlPlane

MODEL = "dgx-h100"
START_S = 1.0  # from the word to begin to the first signal
SETTLE_S = 3.0  # after the last signal
SETTLE_WHOLE_S = 60.0  # without one more incident: the rest will not come
SHARE = 10  # percent of the nodes that may be under remedy; the breaker stays out of it


class SignalsAsk(msgspec.Struct, frozen=True):
    nodes: int
    rate: float
    seconds: float
    transitions: float = 0.01
    lead_s: float = 60.0  # for streams to open, at most
    seed: int = 0
    whole: bool = False  # everything a manager runs, not verdicts alone


class WholeRun(msgspec.Struct, frozen=True):
    """What the rest of the manager made of it, when nothing changed any more. `twice`: incidents beyond one for a device."""

    incidents: int
    twice: int
    held_back: int
    under_remedy: int  # nodes
    most_under_remedy: int
    limit: int
    behind_s: float  # from the last transition on, until each had its incident and that its first remedy or why not


class SignalsRun(msgspec.Struct, frozen=True):
    """`backlog`: said and not yet heard, at the end of each bin. `waiting`: nodes in the controller's queue then."""

    offered: float
    heard: float
    window_cpu: float
    window: float
    agents_cpu: float
    signals: int
    lost: int
    backlog: list[int]
    waiting: list[int]
    transitions: int
    durable: int
    latency: list[float]
    fsync: list[float]
    commits: int
    rss_mib: float
    streams: int
    filled_mib: float  # before the first signal
    whole: WholeRun | None = None

    @property
    def cpu_per_signal(self) -> float:
        return self.window_cpu / max(1, self.signals)


class Tap:
    """The controller's port to the API: sees which transitions have become durable, and when."""

    def __init__(self, inner: Cluster) -> None:
        self._inner = inner
        self.said_at: dict[tuple[str, str], float] = {}
        self.latency: list[float] = []
        self.durable: set[tuple[str, str]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def patch(self, kind: Any, name: str, patch: Any, *args: Any, **options: Any) -> Any:
        found = await self._inner.patch(kind, name, patch, *args, **options)
        now = time.time()
        for verdict in patch.get("verdicts", ()):
            key = (name, verdict["device"])
            if key in self.said_at and key not in self.durable and verdict.get("state") == DeviceState.UNHEALTHY:
                self.durable.add(key)
                self.latency.append(now - self.said_at[key])
        return found


class Desk:
    """What the link server tells, counted by moments."""

    def __init__(self, failure: VerdictController, tap: Tap) -> None:
        self._failure = failure
        self._tap = tap
        self.heard = 0

    def hear(self, node: str, device: str, signal: Signal) -> None:
        self.heard += 1
        if signal.code == FATAL and signal.time is not None:
            self._tap.said_at.setdefault((node, device), to_seconds(signal.time))
        self._failure.hear(node, device, signal, time.time())


class Manager(msgspec.Struct, frozen=True):
    """The manager's parts that take part; `run` until cancelled."""

    view: ClusterView
    queue: WorkQueue[str]
    failure: VerdictController
    run: Callable[[], Awaitable[None]]


def verdicts_alone(api: Cluster, ask: SignalsAsk) -> Manager:
    view, queue = ClusterView(api, jitter=lambda: 0.0), WorkQueue[str]()
    failure = VerdictController(api, view, queue)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for informer in view.informers:
                group.create_task(informer.run())
            for informer in view.informers:
                await informer.synced()
            group.create_task(run_controller("failure", queue, failure, time.time, WORKERS))

    return Manager(view, queue, failure, run)


def whole_manager(api: Cluster, ask: SignalsAsk) -> Manager:
    plane = ControlPlane(api, ProgressBoard(), time.time, chance=random.Random(ask.seed))
    return Manager(plane.view, plane._nodes, plane.verdicts, plane.run)


async def run_signals(root: Path, ask: SignalsAsk) -> SignalsRun:
    journal = SqliteJournal(root / "store.db")
    api = LocalCluster(ObjectStore(journal), clock=time.time, new_uid=_uids())
    await _fill(api, ask)
    tap = Tap(api)
    manager = whole_manager(tap, ask) if ask.whole else verdicts_alone(tap, ask)
    view, queue = manager.view, manager.queue
    tally = Tally(view)
    desk = Desk(manager.failure, tap)
    server = LinkServer(_check, ProgressBoard(), desk.hear, lambda node, beat: True)
    certificates = LinkCertificates(root)
    tls = certificates.prepare([], time.time())
    _on_one_core()
    async with _running(manager):
        await _judged(view, ask.nodes)
        port = await server.start("127.0.0.1", 0, tls)
        fsync = _fsyncs(root / "probe")
        gc.collect()
        filled = rss_mib()
        agents = AgentsAsk(port, str(certificates.ca), ask.nodes, ask.rate, ask.transitions, ask.seconds, ask.seed)
        child = await _spawn(root, agents)
        speaking = asyncio.create_task(_speak(child))
        try:
            await _opened(server, ask)
            start_at = time.time() + START_S
            assert child.stdin is not None
            child.stdin.write(f"{start_at}\n".encode())
            await asyncio.sleep(max(0.0, start_at - time.time()))
            streams, commits = len(server.nodes), journal.commits
            began, began_cpu = time.monotonic(), time.process_time()
            heard, waiting = [], []
            for number in range(round(ask.seconds / BIN_S)):
                await asyncio.sleep(max(0.0, start_at + (number + 1) * BIN_S - time.time()))
                heard.append(desk.heard)
                waiting.append(len(queue))
            window, window_cpu = time.monotonic() - began, time.process_time() - began_cpu
            commits = journal.commits - commits
            said = await speaking
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    while len(tap.durable) < said.transitions:  # noqa: ASYNC110 - to the nearest bin
                        await asyncio.sleep(BIN_S)
            whole = await tally.settled(tap.durable, ask.nodes) if ask.whole else None
        finally:
            speaking.cancel()
            await server.stop()
        rss = rss_mib()
    await api.store.close()
    return SignalsRun(
        offered=said.said[-1] / window,
        heard=heard[-1] / window,
        window_cpu=window_cpu,
        window=window,
        agents_cpu=said.cpu,
        signals=heard[-1],
        lost=said.said[-1] - desk.heard,
        backlog=[max(0, a - b) for a, b in zip(said.said, heard, strict=True)],
        waiting=waiting,
        transitions=said.transitions,
        durable=len(tap.durable),
        latency=tap.latency,
        fsync=fsync,
        commits=commits,
        rss_mib=rss,
        streams=streams,
        filled_mib=filled,
        whole=whole,
    )


class Tally:
    """Incidents as the informer tells of them."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._limit = 0
        self._active: dict[str, str] = {}  # incident -> node
        self._most = 0
        self._told: set[tuple[str, str]] = set()  # (node, device) with an incident that says what is done, or why not
        view.incidents.subscribe(self._on_incident)

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        incident = new or old
        assert incident is not None
        subject = incident.spec.subject
        if new is not None and device_remedies(new.status.remedies):
            self._told.add((subject.node, subject.device))
        if new is not None and is_under_remedy(new):
            self._active[incident.name] = subject.node
            self._most = max(self._most, len(set(self._active.values())))
        else:
            self._active.pop(incident.name, None)

    async def settled(self, transitions: set[tuple[str, str]], nodes: int) -> WholeRun:
        began = moved = time.monotonic()
        missing = self._missing(transitions)
        while missing and time.monotonic() - moved < SETTLE_WHOLE_S:
            await asyncio.sleep(BIN_S)
            left = self._missing(transitions)
            if left != missing:
                missing, moved = left, time.monotonic()
        behind = time.monotonic() - began
        if missing:
            raise Broken(
                f"{missing} of {len(transitions)} failures have no incident with a remedy, or why there is none"
            )
        every = [i for i in self._view.incidents.items() if i.spec.subject.kind is SubjectKind.DEVICE]
        subjects = {(i.spec.subject.node, i.spec.subject.device) for i in every}
        return WholeRun(
            incidents=len(every),
            twice=len(every) - len(subjects),
            held_back=sum(map(is_remedy_held_back, every)),
            under_remedy=len(set(self._active.values())),
            most_under_remedy=self._most,
            limit=nodes * SHARE // 100,
            behind_s=behind,
        )

    def _missing(self, transitions: set[tuple[str, str]]) -> int:
        return len(transitions - self._told)


@contextlib.asynccontextmanager
async def _running(manager: Manager) -> AsyncIterator[None]:
    running = asyncio.ensure_future(manager.run())
    try:
        for informer in manager.view.informers:
            await informer.synced()
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _judged(view: ClusterView, nodes: int) -> None:
    """Every node has its first verdicts."""
    async with asyncio.timeout(300):
        while sum(bool(n.verdicts) for n in view.devices.items()) < nodes:  # noqa: ASYNC110 - before anything is timed
            await asyncio.sleep(0.05)


async def _fill(api: LocalCluster, ask: SignalsAsk) -> None:
    for name in ("default", "kube-node-lease"):
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))
    limits = {"limits": {"pool": f"{SHARE}%"}, "breaker": {"share": "100%"}}
    await api.create(RemedyPolicy, {"metadata": {"name": DEFAULT_POLICY}, "spec": limits})
    model = load_built_in_machine_model(MODEL)

    async def make(number: int) -> None:
        name = node_name(number)
        rows = FakeBackend(model, name, time.time).inventory()
        await api.create(Node, {"metadata": {"name": name}, "status": {"allocatable": {RESOURCE_GPU: str(GPUS)}}})
        observed = {"model": MODEL, "devices": [to_wire(row) for row in rows]}
        await api.create(NodeDevices, {"metadata": {"name": name}})
        await api.patch(NodeDevices, name, {"status": observed}, subresource="status")
        for row in () if ask.whole and number % 2 else rows:
            meta = {"name": f"{name}-{row.id}", "namespace": "default", "annotations": {ANNOTATION_DEVICES: row.id}}
            container = {"name": "main", "image": "i", "resources": {"limits": {RESOURCE_GPU: "1"}}}
            await api.create(Pod, {"metadata": meta, "spec": {"nodeName": name, "containers": [container]}})

    await write_all_objects(make, range(ask.nodes))


async def _opened(server: LinkServer, ask: SignalsAsk) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ask.lead_s):
            while len(server.nodes) < ask.nodes:  # noqa: ASYNC110 - before anything is timed
                await asyncio.sleep(BIN_S)


async def _spawn(root: Path, ask: AgentsAsk) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.node_agents",
        str(root),
        msgspec.json.encode(ask).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        preexec_fn=_on_the_other_cores,
    )


async def _speak(child: asyncio.subprocess.Process) -> AgentsRun:
    assert child.stdout is not None
    try:
        out = await child.stdout.read()
        await child.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        raise
    if child.returncode:
        raise Broken(f"the agents ended with {child.returncode}")
    return msgspec.json.decode(out.splitlines()[-1], type=AgentsRun)


def _on_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _on_the_other_cores() -> None:
    every = set(range(os.cpu_count() or 1))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, (every - os.sched_getaffinity(0)) or every)


async def _check(token: str, node: str) -> None:
    if token != f"token-{node}":
        raise Refusal("WrongNode", f"The token is not {node}'s.", "Use its own.")


def _uids() -> Any:
    count = 0

    def new() -> str:
        nonlocal count
        count += 1
        return f"{count:08x}-0000-4000-8000-000000000000"

    return new


def _fsyncs(path: Path, count: int = 50) -> list[float]:
    """Seconds of a 4 KiB append with fsync: what a commit cannot beat."""
    found = []
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            found.append(time.perf_counter() - began)
    path.unlink()
    return found


if __name__ == "__main__":
    quiet()
    sys.exit(answer(SignalsAsk, run_signals))

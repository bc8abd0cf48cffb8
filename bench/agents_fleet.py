"""Many agents on a real kube-apiserver, each with connections of its own, and the manager beside them: what they cost the API.

Agents are `remuda agent`'s own code with fake devices in health-only mode, one after the other in this process. Requests are the
server's own count (`apiserver_request_total`): first while nothing happens, then from the moment a device of every node fails
until each node's verdicts say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.apiserver_servers import DurablePlane
from bench.failure_quarantine import Counting, install_kinds
from bench.marks import Broken
from bench.onerun import answer, quiet, rss_mib
from remuda.agent.agent import Agent
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.kubernetes.core_v1 import Node
from remuda.kube.client.access import Access
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.informer import Informer
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.control_plane import ControlPlane as Manager
from remuda.runtime.node_agent import AgentProcessConfig, node_agent
from tests.kube.control_plane import ControlPlane

MODEL, DEVICE, FATAL = "dgx-h100", "gpu-3", "xid-79"
STARTING = 16  # agents at a time
_REQUESTS = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>[0-9.e+]+)$", re.M)
_BYTES = re.compile(r"^apiserver_(?:response_sizes|watch_events_sizes)_sum\{.*\} (?P<count>[0-9.e+]+)$", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class FleetAsk(msgspec.Struct, frozen=True):
    agents: int
    idle_s: float
    settle_s: float = 20.0
    timeout_s: float = 900.0


class FleetRun(msgspec.Struct, frozen=True):
    """`idle`: requests of one agent in a minute, by verb and resource. CPU in seconds of kube-apiserver and etcd."""

    idle: dict[str, float]
    idle_bytes: float  # a second, of all
    idle_cores: float
    storm: dict[str, float]  # requests for each node
    storm_s: float
    storm_cpu: float
    storm_bytes: float  # for each node
    conflicts: int
    manager_calls: int
    manager_conflicts: int
    rss_mib: float


class ServerCount(msgspec.Struct, frozen=True):
    requests: Counter[tuple[str, str]]
    conflicts: int
    sent: float
    cpu: float
    at: float


async def count_server(plane: ControlPlane) -> ServerCount:
    text = await asyncio.to_thread(plane.kubectl, "get", "--raw", "/metrics")
    requests: Counter[tuple[str, str]] = Counter()
    conflicts = 0
    for found in _REQUESTS.finditer(text):
        labels, count = dict(_LABEL.findall(found["labels"])), float(found["count"])
        part = f"/{labels['subresource']}" if labels.get("subresource") else ""
        requests[labels["verb"], labels.get("resource", "") + part] += int(count)
        conflicts += int(count) if labels.get("code") == "409" else 0
    sent = sum(float(found["count"]) for found in _BYTES.finditer(text))
    return ServerCount(requests, conflicts, sent, sum(map(cpu_seconds, plane.processes.values())), time.monotonic())


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def between(before: ServerCount, after: ServerCount, share: float) -> dict[str, float]:
    """Requests since, for each agent; what agents and manager do not ask for is the server's own."""
    found = {
        f"{verb} {what}": (count - before.requests[verb, what]) / share
        for (verb, what), count in after.requests.items()
        if what.split("/")[0] in ("leases", "pods", "nodes", "nodedevices", "trainingjobs", "configmaps", "drills")
    }
    return {name: value for name, value in sorted(found.items()) if value >= 0.01}


async def run_fleet(root: Path, ask: FleetAsk) -> FleetRun:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    plane = DurablePlane.start(root / "kube")
    try:
        await install_kinds(plane)
        access = load_kubeconfig(plane.kubeconfig)
        async with (
            asyncio.timeout(ask.timeout_s),
            HttpCluster(access=access) as admin,
            Counting(access=access) as calls,
        ):
            return await _measure(root, ask, plane, access, admin, calls)
    except TimeoutError:
        raise Broken(f"not done within {ask.timeout_s:g} s") from None
    finally:
        plane.stop()


async def _measure(
    root: Path, ask: FleetAsk, plane: ControlPlane, access: Access, admin: HttpCluster, calls: Counting
) -> FleetRun:
    names = [f"node-{number + 1:04d}" for number in range(ask.agents)]

    async def make(name: str) -> None:
        await admin.create(Node, {"metadata": {"name": name}})
        await admin.create(NodeDevices, {"metadata": {"name": name}})

    await write_all_objects(make, names)
    ledgers = Informer(admin, NodeDevices)
    manager = Manager(calls, ProgressBoard(), time.time, chance=random.Random(0))
    tasks = [asyncio.create_task(work) for work in (ledgers.run(), manager.run())]
    try:
        async with contextlib.AsyncExitStack() as stack:
            agents: list[Agent] = []
            for begin in range(0, len(names), STARTING):
                some = [_start(stack, root, name, access) for name in names[begin : begin + STARTING]]
                agents += await asyncio.gather(*some)
            await _until(lambda: all(d.verdicts for d in ledgers.items()))
            await asyncio.sleep(ask.settle_s)
            before = await count_server(plane)
            await asyncio.sleep(ask.idle_s)
            after = await count_server(plane)
            elapsed = after.at - before.at
            calls.calls = calls.conflicts = 0
            for agent in agents:
                agent.inject_fault(DEVICE, FATAL)
            await _until(lambda: all(_has_failed(d) for d in ledgers.items()))
            last = await count_server(plane)
            return FleetRun(
                idle=between(before, after, ask.agents * elapsed / 60),
                idle_bytes=(after.sent - before.sent) / elapsed,
                idle_cores=(after.cpu - before.cpu) / elapsed,
                storm=between(after, last, ask.agents),
                storm_s=last.at - after.at,
                storm_cpu=last.cpu - after.cpu,
                storm_bytes=(last.sent - after.sent) / ask.agents,
                conflicts=last.conflicts - after.conflicts,
                manager_calls=calls.calls,
                manager_conflicts=calls.conflicts,
                rss_mib=rss_mib(),
            )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _start(stack: contextlib.AsyncExitStack, root: Path, name: str, access: Access) -> Agent:
    cluster = await stack.enter_async_context(HttpCluster(access=access))
    config = AgentProcessConfig(
        name,
        str(root / name),
        str(root / "kubelet"),
        backend="fake",
        model=MODEL,
        mode="health-only",
        link_token="",
        kmsg=False,  # one machine has one kernel's log
    )
    return await stack.enter_async_context(node_agent(config, cluster))


def _has_failed(ledger: NodeDevices) -> bool:
    return any(v.device == DEVICE and v.state is not DeviceState.HEALTHY for v in ledger.verdicts)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    quiet()
    sys.exit(answer(FleetAsk, run_fleet))

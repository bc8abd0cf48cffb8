"""Many agents on a real kube-apiserver, each with connections of its own, and the manager beside them: what they cost the API.

Agents are `remuda agent`'s own code with fake devices in health-only mode, one after the other in this process. Requests are the
server's own count (`apiserver_request_total`): first while nothing happens, then from the moment a device of every node fails
until each node's verdicts say so and the manager has said in an incident of each what it does about it, or why nothing.

A fleet that does not run costs nothing, which would look best of all: agents that renew fewer than three quarters of the leases
that are due are no measurement (`Broken`).
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
from bench.failure_quarantine import Counting, History, install_kinds
from bench.marks import Broken
from bench.onerun import answer, quiet, rss_mib
from remuda.agent.agent import Agent
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.training import TrainingJob
from remuda.core.health.agent_liveness import REPORT_TIMEOUT_S
from remuda.kube.client.access import Access
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.control_plane import ControlPlane as Manager
from remuda.runtime.node_agent import AgentProcessConfig, node_agent
from tests.kube.control_plane import ControlPlane

MODEL, DEVICE, FATAL = "dgx-h100", "gpu-3", "xid-79"
STARTING = 16  # agents at a time
RAN_SHARE = 0.75  # of the renewals that are due
RENEWALS_PER_MINUTE = 60 / (REPORT_TIMEOUT_S / 3)
_REQUESTS = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>[0-9.e+]+)$", re.M)
_BYTES = re.compile(r"^apiserver_(?:response_sizes|watch_events_sizes)_sum\{.*\} (?P<count>[0-9.e+]+)$", re.M)
OWN = ("PUT", "leases")
_ASKED_FOR = {"leases", "pods", "nodes", "configmaps", "events"}  # beside Remuda's own kinds
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class FleetAsk(msgspec.Struct, frozen=True):
    agents: int
    idle_s: float
    settle_s: float = 20.0
    timeout_s: float = 1800.0


class FleetRun(msgspec.Struct, frozen=True):
    """`idle`: requests of one agent in a minute, by verb and resource. CPU in seconds of kube-apiserver and etcd."""

    idle: dict[str, float]
    idle_calls: float  # of the manager in a minute; they are in `idle`
    idle_bytes: float  # a second, of all
    idle_cores: float
    storm: dict[str, float]  # requests for each node
    verdicts_s: float
    storm_s: float
    storm_cpu: float
    storm_bytes: float  # for each node
    conflicts: int
    start_calls: int  # of the manager, as the two below
    start_conflicts: int
    manager_calls: int
    manager_conflicts: int
    rss_mib: float


class Stage:
    """How far a run has come, for whoever asks why it did not end."""

    said = "the API server was starting"


class ServerCount(msgspec.Struct, frozen=True):
    requests: Counter[tuple[str, str]]
    conflicts: int
    sent: float
    cpu: float
    at: float


def count_requests(metrics: str) -> tuple[Counter[tuple[str, str]], int]:
    """By verb and resource, and how many were refused because somebody was faster."""
    requests: Counter[tuple[str, str]] = Counter()
    conflicts = 0
    for found in _REQUESTS.finditer(metrics):
        labels, count = dict(_LABEL.findall(found["labels"])), int(float(found["count"]))
        what = labels.get("resource", "")
        # The rest, and the lease in which the server says who it is, are its own.
        if labels.get("group") == TrainingJob.resource.group or (what in _ASKED_FOR and (labels["verb"], what) != OWN):
            part = f"/{labels['subresource']}" if labels.get("subresource") else ""
            requests[labels["verb"], what + part] += count
            conflicts += count if labels.get("code") == "409" else 0
    return requests, conflicts


async def count_server(plane: ControlPlane) -> ServerCount:
    text = await asyncio.to_thread(plane.kubectl, "get", "--raw", "/metrics")
    requests, conflicts = count_requests(text)
    sent = sum(float(found["count"]) for found in _BYTES.finditer(text))
    return ServerCount(requests, conflicts, sent, sum(map(cpu_seconds, plane.processes.values())), time.monotonic())


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def between(before: ServerCount, after: ServerCount, share: float) -> dict[str, float]:
    """Requests since, for each agent."""
    found = {
        f"{verb} {what}": (count - before.requests[verb, what]) / share
        for (verb, what), count in after.requests.items()
    }
    return {name: value for name, value in sorted(found.items()) if value >= 0.01}


async def run_fleet(root: Path, ask: FleetAsk) -> FleetRun:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    plane, stage = DurablePlane.start(root / "kube"), Stage()
    try:
        await install_kinds(plane)
        access = load_kubeconfig(plane.kubeconfig)
        async with (
            asyncio.timeout(ask.timeout_s),
            HttpCluster(access=access) as admin,
            Counting(access=access) as calls,
        ):
            return await _measure(root, ask, plane, access, admin, calls, stage)
    except TimeoutError:
        raise Broken(f"not done within {ask.timeout_s:g} s: {stage.said}") from None
    finally:
        plane.stop()


async def _measure(
    root: Path,
    ask: FleetAsk,
    plane: ControlPlane,
    access: Access,
    admin: HttpCluster,
    calls: Counting,
    stage: Stage,
) -> FleetRun:
    names = [f"node-{number + 1:04d}" for number in range(ask.agents)]

    async def make(name: str) -> None:
        await admin.create(Node, {"metadata": {"name": name}})
        await admin.create(NodeDevices, {"metadata": {"name": name}})

    stage.said = "nodes were being made"
    await write_all_objects(make, names)
    history = History(admin)
    manager = Manager(calls, ProgressBoard(), time.time, chance=random.Random(0))
    tasks = [asyncio.create_task(work) for work in (history.devices.run(), history.incidents.run(), manager.run())]
    try:
        async with contextlib.AsyncExitStack() as stack:
            agents: list[Agent] = []
            for begin in range(0, len(names), STARTING):
                some = [_start(stack, root, name, access) for name in names[begin : begin + STARTING]]
                agents += await asyncio.gather(*some)
                stage.said = f"{len(agents)} of {len(names)} agents had started"
            await _until(lambda: sum(bool(d.verdicts) for d in history.devices.items()) == ask.agents)
            await asyncio.sleep(ask.settle_s)
            start_calls, start_conflicts = calls.calls, calls.conflicts
            calls.calls = calls.conflicts = 0
            stage.said = "the idle fleet was being measured"
            before = await count_server(plane)
            await asyncio.sleep(ask.idle_s)
            after = await count_server(plane)
            elapsed = after.at - before.at
            idle = between(before, after, ask.agents * elapsed / 60)
            idle_calls = calls.calls * 60 / elapsed
            check_fleet_ran(idle.get("PATCH leases", 0.0) - idle_calls / ask.agents, elapsed)
            calls.calls = calls.conflicts = 0
            for agent in agents:
                agent.inject_fault(DEVICE, FATAL)
            stage.said = "not every verdict spoke of the failed device"
            await _until(lambda: sum(_has_failed(d) for d in history.devices.items()) == ask.agents)
            verdicts_s = time.monotonic() - after.at
            stage.said = "the manager had not settled the incident of every device"
            await _until(lambda: len(history.settled_at) == ask.agents)
            last = await count_server(plane)
            stage.said = "the agents were ending"
            return FleetRun(
                idle=idle,
                idle_calls=idle_calls,
                idle_bytes=(after.sent - before.sent) / elapsed,
                idle_cores=(after.cpu - before.cpu) / elapsed,
                storm=between(after, last, ask.agents),
                verdicts_s=verdicts_s,
                storm_s=last.at - after.at,
                storm_cpu=last.cpu - after.cpu,
                storm_bytes=(last.sent - after.sent) / ask.agents,
                conflicts=last.conflicts - after.conflicts,
                start_calls=start_calls,
                start_conflicts=start_conflicts,
                manager_calls=calls.calls,
                manager_conflicts=calls.conflicts,
                rss_mib=rss_mib(),
            )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def check_fleet_ran(renewals: float, elapsed: float) -> None:
    """`renewals`: of one agent in a minute. One may fall just outside of the time in which they are counted."""
    if renewals * elapsed / 60 < RAN_SHARE * (RENEWALS_PER_MINUTE * elapsed / 60 - 1):
        raise Broken(
            f"agents renewed their leases {renewals:.1f} times a minute, {RENEWALS_PER_MINUTE:g} are due: they did not run, or "
            "the machine is too busy to run so many"
        )


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

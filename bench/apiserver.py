"""`make bench-apiserver`: the embedded API server beside a real kube-apiserver, under the same load, in the same run.

A Go client (bench/loadgen) puts load on both over TLS, in turns, so that whatever else the machine does meets both. Printed
are ratios, embedded to real, each so that more is better: rates for requests, the inverse for memory and time to ready. A bar
is judged by the median of its rounds: PASS from 1x on, MISS below, with the reason. Exit code 0 also on MISS.

Every step has a number of requests and a deadline; what is done by then counts. The whole takes under four minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.apiserver_servers import Server, embedded_server, real_server
from bench.bars import describe, this_machine
from tests.kube.control_plane import binaries_dir

LOADGEN = Path(__file__).parent / "loadgen"
NAMESPACE = "bench"
ROUNDS = 3
BATCH = 500  # pods made in a round
PODS = 10_000
FILL_S, STEP_S = 35, 4
WATCHERS, CHANGES = 100, 100

# Why a bar is missed, where it is: known limits of the embedded server, each found by measuring.
FANOUT = f"watch events to {WATCHERS} watchers"
WHY = {
    FANOUT: "each watcher's TLS record is made and sent in one thread, over a connection of its own; kube-apiserver uses all "
    "cores, and one HTTP/2 connection for all watchers here",
}
SLOWER = "one Python process does on one core what kube-apiserver and etcd do in Go on all of them"


class Load(msgspec.Struct, frozen=True):
    """What the Go client says of one run."""

    done: int
    seconds: float
    rate: float
    p50: float
    p99: float
    bytes: int
    protocol: str


class Measure(msgspec.Struct):
    """One row: values of both servers, by round. `is_less_better`: memory and time."""

    name: str
    unit: str
    is_less_better: bool = False
    embedded: list[float] = []
    real: list[float] = []
    embedded_cpu: list[float] = []  # milliseconds of the server's CPU for each thing done
    real_cpu: list[float] = []

    def add(self, server: Server, value: float, cpu_ms: float | None = None) -> None:
        is_own = server.name == "embedded"
        (self.embedded if is_own else self.real).append(value)
        if cpu_ms is not None:
            (self.embedded_cpu if is_own else self.real_cpu).append(cpu_ms)

    @property
    def ratios(self) -> list[float]:
        pairs = zip(self.embedded, self.real, strict=True)
        return [real / own if self.is_less_better else own / real for own, real in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        return "PASS" if self.ratio >= 1 else "MISS"

    @property
    def why(self) -> str:
        return "" if self.verdict == "PASS" else WHY.get(self.name, SLOWER)


class Bench:
    def __init__(self, servers: Sequence[Server], binary: Path, directory: Path, console: Console) -> None:
        self.servers = servers
        self.measures: dict[str, Measure] = {}
        self.protocols: dict[str, str] = {}
        self.delays: dict[str, list[tuple[float, float]]] = {}  # of a watch event: the median and 99 %, in milliseconds
        self._binary = binary
        self._console = console
        self._body = directory / "pod.json"
        self._body.write_text(json.dumps(pod()), encoding="utf-8")

    def run(self, rounds: int, pods: int) -> None:
        for server in self.servers:
            self._measure("time to ready", "s", is_less_better=True).add(server, server.ready_s)
            self._prepare(server)
        made = {server.name: 0 for server in self.servers}
        for number in range(rounds):
            for server in self._turn(number):
                first = made[server.name]
                new = self._rate(server, "create a pod", "create", first=first, count=BATCH).done
                made[server.name] += new
                self._rate(server, "patch its status", "status", first=first, pods=new, count=BATCH)
                self._rate(server, "get a pod", "get", first=first, pods=new, count=2 * BATCH)
                if made[server.name] >= 500:
                    self._rate(server, "list 500 pods", "list", first=0, count=30, workers=4, limit=500)
        for server in self.servers:
            first = made[server.name]
            filled = self._load(server, "create", first=first, count=pods - first, workers=16, deadline=FILL_S)
            if filled.done < pods - first:
                self._console.print(f"{server.name}: only {first + filled.done} pods within {FILL_S} s", soft_wrap=True)
            self._measure(f"memory with {pods:,} pods", "MB", is_less_better=True).add(server, server.memory_mb())
        for number in range(rounds):
            for server in self._turn(number):
                self._rate(server, f"list {pods:,} pods", "list", first=0, count=4, workers=1, limit=0)
                self._fanout(server)

    def _turn(self, number: int) -> Sequence[Server]:
        """Who goes first changes: the second one finds a warmer machine."""
        return self.servers if number % 2 else self.servers[::-1]

    def _prepare(self, server: Server) -> None:
        context = ssl.create_default_context(cafile=str(server.ca))
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        token = server.token.read_text(encoding="utf-8").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        for path, name in (
            ("/api/v1/namespaces", NAMESPACE),
            (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", "default"),
        ):
            data = json.dumps({"metadata": {"name": name}}).encode()
            request = urllib.request.Request(server.url + path, method="POST", data=data, headers=headers)
            with urllib.request.build_opener(*handlers).open(request, timeout=20) as answer:
                answer.read()

    def _fanout(self, server: Server) -> None:
        load = self._rate(server, FANOUT, "fanout", first=0, count=CHANGES, workers=WATCHERS, deadline=20)
        self.delays.setdefault(server.name, []).append((load.p50 * 1000, load.p99 * 1000))

    def _rate(self, server: Server, name: str, mode: str, **options: int) -> Load:
        before = server.cpu_s()
        load = self._load(server, mode, **options)
        self._measure(name, "/s").add(server, load.rate, (server.cpu_s() - before) * 1000 / max(1, load.done))
        self.protocols[server.name] = load.protocol
        return load

    def _load(
        self,
        server: Server,
        mode: str,
        *,
        first: int,
        count: int,
        pods: int = 1,
        workers: int = 8,
        limit: int = 0,
        deadline: int = STEP_S,
    ) -> Load:
        command = [
            str(self._binary),
            f"-server={server.url}",
            f"-ca={server.ca}",
            f"-token-file={server.token}",
            f"-mode={mode}",
            f"-namespace={NAMESPACE}",
            f"-body={self._body}",
            f"-first={first}",
            f"-pods={pods}",
            f"-count={count}",
            f"-workers={workers}",
            f"-limit={limit}",
            f"-deadline={deadline}s",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline + 60)
        if done.returncode:
            raise RuntimeError(f"{server.name}, {mode}: {done.stderr.strip()}")
        return msgspec.json.decode(done.stdout, type=Load)

    def _measure(self, name: str, unit: str, *, is_less_better: bool = False) -> Measure:
        return self.measures.setdefault(name, Measure(name, unit, is_less_better))


def pod() -> dict[str, Any]:
    """A worker of a training job as users write it, about 1.5 KB; servers add their defaults."""
    names = (
        "NCCL_DEBUG",
        "NCCL_IB_HCA",
        "OMP_NUM_THREADS",
        "DATASET",
        "CHECKPOINT_DIR",
        "LEARNING_RATE",
        "SEED",
        "RUN",
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "NAME",
            "labels": {"app": "pretrain", "team": "vision", "remuda.dev/gang": "pretrain", "tier": "training"},
            "annotations": {"example.com/owner": "vision@example.com", "example.com/run": "2026-10-01/17"},
        },
        "spec": {
            "schedulerName": "remuda",
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/vision/pretrain:2026.10",
                    "command": ["python", "-m", "pretrain", "--config", "configs/large.yaml"],
                    "env": [{"name": name, "value": f"value of {name.lower()}"} for name in names],
                    "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "32", "memory": "512Gi"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}],
                }
            ],
            "volumes": [
                {"name": "data", "hostPath": {"path": "/data"}},
                {"name": "shm", "hostPath": {"path": "/dev/shm"}},
            ],
        },
    }


def render(measures: Sequence[Measure]) -> Table:
    table = Table(pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("embedded", "real", "ratio", "spread", "CPU ms each", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in measures:
        mark = {"PASS": "[green]PASS[/green]", "MISS": "[red]MISS[/red]"}[each.verdict]
        own, real = (f"{statistics.median(values):,.1f} {each.unit}" for values in (each.embedded, each.real))
        table.add_row(each.name, own, real, f"{each.ratio:.2f}x", spread(each), cpu(each), mark)
    return table


def cpu(measure: Measure) -> str:
    """Of both servers. What a busy machine does to the clock it does not do to this."""
    if not measure.real_cpu:
        return ""
    return " : ".join(f"{statistics.median(values):.2f}" for values in (measure.embedded_cpu, measure.real_cpu))


def delayed(delays: dict[str, list[tuple[float, float]]]) -> str:
    """From asking for a change until a watcher has it, while changes come as fast as each server takes them."""
    words = []
    for name, rounds in delays.items():
        middle, worst = (statistics.median(values) for values in zip(*rounds, strict=True))
        words.append(f"{name} {middle:.0f} and {worst:.0f} ms")
    return f"Delay of a watch event under that load, median and 99 %: {', '.join(words)}."


def spread(measure: Measure) -> str:
    return f"{min(measure.ratios):.2f} .. {max(measure.ratios):.2f}" if len(measure.ratios) > 1 else "one value"


def build(directory: Path) -> Path:
    binary = directory / "loadgen"
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=LOADGEN, check=True)
    return binary


def missing() -> str:
    if shutil.which("go") is None:
        return "Go is not installed; the load is made by a Go program. Install Go >= 1.26."
    if not binaries_dir().is_dir():
        return "The real control plane is not built. Run `make kube` first."
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.apiserver", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of every request rate")
    parser.add_argument("--pods", type=int, default=PODS, help="for memory and the long list")
    parser.add_argument("--json", type=Path, help="also write the result there")
    asked = parser.parse_args(arguments)
    console = Console(width=120)
    if why := missing():
        print(f"error: {why}", file=sys.stderr)
        return 2
    machine = this_machine()
    console.print(describe(machine), soft_wrap=True, highlight=False)
    with tempfile.TemporaryDirectory(prefix="remuda-bench-") as made:
        directory = Path(made)
        binary = build(directory)
        begun = time.monotonic()
        with real_server(directory / "real") as real, embedded_server(directory / "embedded") as embedded:
            bench = Bench([real, embedded], binary, directory, console)
            bench.run(asked.rounds, asked.pods)
            spent = {server.name: server.cpu_s() for server in bench.servers}
        took = time.monotonic() - begun
    measures = list(bench.measures.values())
    console.print(render(measures))
    for each in measures:
        line = f"{each.verdict} {each.name}: {each.ratio:.2f}x ({spread(each)}, n={len(each.ratios)})"
        console.print(f"{line}: {each.why}" if each.why else line, soft_wrap=True, highlight=False)
    console.print(delayed(bench.delays), soft_wrap=True, highlight=False)
    words = ", ".join(f"{name} {seconds:.0f} s over {bench.protocols[name]}" for name, seconds in spent.items())
    console.print(f"CPU: {words}. The run took {took:.0f} s.", soft_wrap=True, highlight=False)
    if asked.json:
        rows = [
            {**msgspec.to_builtins(each), "ratio": each.ratio, "verdict": each.verdict, "why": each.why}
            for each in measures
        ]
        asked.json.write_bytes(
            msgspec.json.encode({"machine": machine, "seconds": took, "rows": rows, "delays": bench.delays})
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

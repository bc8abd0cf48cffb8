"""The failure benchmark runs from end to end in small. Its figures are the machine's and are not looked at here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.failure import growth, noise
from bench.node_signals import SignalsAsk, SignalsRun
from tests.kube.control_plane import binaries_dir

ROOT = Path(__file__).parents[2]
STORM = {
    "manager's CPU",
    "backlog grew, against its noise",
    "transitions lost",
    "said -> durable, median",
    "said -> durable, p99",
    "devices with two incidents",
    "manager's resident memory",
}
QUARANTINE = {"under remedy beyond the limit", "done twice"}


@pytest.mark.slow
def test_every_part_of_bench_failure_measures_something(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.failure", "--quick", "--json", str(result)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    has_kube = binaries_dir().is_dir()
    bars = json.loads(result.read_text())["bars"]
    assert all(bar["samples"] and all(map(math.isfinite, bar["samples"])) for bar in bars)
    judged = STORM | (QUARANTINE if has_kube else set())
    assert {bar["name"] for bar in bars if bar["verdict"]} == judged
    assert len({bar["group"] for bar in bars}) == (3 if has_kube else 1)
    assert has_kube or "left out, there is no kube-apiserver" in ended.stdout
    of = {(bar["group"][:3], bar["name"]): bar["median"] for bar in bars}
    assert of["400", "transitions lost"] == of["400", "devices with two incidents"] == 0
    assert of["400", "incidents"] == of["400", "transitions"] > 0


def test_a_backlog_that_grows_is_told_from_one_that_is_flat() -> None:
    ask = SignalsAsk(nodes=1, rate=1000, seconds=6.0)

    def run(backlog: list[int]) -> SignalsRun:
        return SignalsRun(
            offered=1000,
            heard=1000,
            window_cpu=1,
            window=6,
            agents_cpu=1,
            signals=6000,
            lost=0,
            backlog=backlog,
            waiting=[0],
            transitions=1,
            durable=1,
            latency=[0.1],
            fsync=[0.001],
            commits=1,
            rss_mib=1,
            streams=1,
            filled_mib=1,
        )

    flat, growing = run([30, 70, 10] * 20), run(list(range(0, 6000, 100)))
    assert growth(flat) < noise(flat, ask)
    assert growth(growing) > noise(growing, ask)

"""The node benchmark runs from end to end in small. Its figures are the machine's and are not looked at here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JUDGED = {
    "CPU while nothing happens",
    "resident memory",
    "leases that ran out (8 s)",
    "oldest lease (a node fences itself there)",
    "round trip, median",
    "manager's CPU at that rate",
    "backlog grew by (a tenth of a second's)",
    "transitions that did not get durable",
}


@pytest.mark.slow
def test_every_part_of_bench_node_measures_something(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.node", "--quick", "--json", str(result)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    bars = {bar["name"]: bar for bar in json.loads(result.read_text())["bars"]}
    assert {name for name, bar in bars.items() if bar["verdict"]} == JUDGED
    assert all(bar["samples"] and all(map(math.isfinite, bar["samples"])) for bar in bars.values())
    for name in ("renewals", "offered", "heard and queued to be judged", "transitions"):
        assert bars[name]["median"] > 0, name
    assert bars["transitions that did not get durable"]["median"] == 0
    for name in JUDGED:
        assert sum(name in line for line in ended.stdout.splitlines() if line.startswith(("PASS ", "MISS "))) == 1, name

"""The benchmark of a hostile tenant runs from end to end in small. Its figures are the machine's and are not looked at here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JUDGED = {
    "oldest lease of a node (it fences itself there)",
    "pods of the gang replaced, attempts raised",
    "1 KB write, p99",
    "memory above what it was, at most",
    "memory above what it was, after",
}


@pytest.mark.slow
def test_bench_hostile_measures_an_abuse(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "bench.hostile", "--quick", "--only", "odd", "--json", str(result)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    bars = json.loads(result.read_text())["bars"]
    assert {bar["name"] for bar in bars if bar["verdict"]} == JUDGED
    (refused,) = {bar["group"] for bar in bars if bar["group"].startswith("odd: ")}
    assert "400 x" in refused
    assert "500 x" not in refused

"""The benchmark of a hostile tenant runs from end to end in small. Its figures are the machine's and are not looked at here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.onerun import end_processes_below, processes_below, scratch
from tests.builders.waiting import PATIENCE_S, wait_until

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


def test_nothing_that_a_benchmark_started_outlives_it() -> None:
    """Its cluster may have died, and ranks go on without it."""
    with scratch() as root, scratch() as other:
        sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
        ours = subprocess.Popen([*sleeper, str(root / "marks")], start_new_session=True)
        others = subprocess.Popen([*sleeper, str(other / "marks")])
        wait_until("both command lines show", lambda: processes_below(root) and processes_below(other))
        end_processes_below(root)
        assert ours.wait(PATIENCE_S) == -signal.SIGKILL
        assert others.poll() is None
    assert others.wait(PATIENCE_S) == -signal.SIGKILL
    assert not root.exists()

"""The demo as a user runs it, with its job submitted by the real `kubectl apply -f`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.kubectl import find_kubectl

DEADLINE_S = 400.0  # a bound for a hang


def run_demo(*words: str, **env: str) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "remuda.cli", "demo", *words],
        env={**os.environ, "COLUMNS": "200", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    return ran.returncode, ran.stdout


def test_every_promise_holds_when_kubectl_submits_the_job(tmp_path: Path) -> None:
    code, said = run_demo("--submit", "kubectl", KUBECTL=find_kubectl(), TMPDIR=str(tmp_path), HOME=str(tmp_path))
    assert code == 0, said
    assert "kubectl apply -f demo.yaml: trainingjob.remuda.dev/demo created" in said
    assert said.count("kept:") == 4, said
    remedies = re.findall(r"^\(([abcd])\) .*?(RestartInPlace|PromoteSpare|ReplacePod)", said, re.MULTILINE)
    assert remedies == [("a", "RestartInPlace"), ("b", "PromoteSpare"), ("c", "ReplacePod"), ("d", "PromoteSpare")]
    assert re.search(r"named after \d+ steps: Rank 6 of default/demo \(pod \S+, node \S+\) takes [\d.]+ x", said), said
    assert "(d) counts from the swap at a checkpoint" in said.partition("Measured in this run")[2], said
    listed = said.partition("$ remuda incidents")[2]
    assert re.search(r"^dev-\S+ .*SlowRank", listed, re.MULTILINE), said
    assert len(re.findall(r"^dev-", listed, re.MULTILINE)) >= 4, said
    assert list(tmp_path.iterdir()) == [], "the demo leaves nothing, kubectl's cache included"


def test_without_kubectl_it_says_what_is_missing(tmp_path: Path) -> None:
    code, said = run_demo("--submit", "kubectl", KUBECTL=str(tmp_path / "nowhere"), TMPDIR=str(tmp_path))
    assert code == 2
    assert said.startswith("error: KubectlNotFound: ")
    assert list(tmp_path.iterdir()) == []

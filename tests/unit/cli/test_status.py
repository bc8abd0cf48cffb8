"""`remuda status` of a cluster that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda.runtime import cluster_client, readiness
from remuda.runtime.state_dir import StateDir
from tests.unit.cli.scenes import Cli, Result, machines


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """As good as running: somebody holds its directory, and its socket is there."""
    StateDir(tmp_path).socket.touch()
    monkeypatch.setattr(StateDir, "holder", lambda self: 123)
    monkeypatch.setattr(cluster_client, "api_address", lambda state: "https://127.0.0.1:1")
    monkeypatch.setattr(readiness, "ask_readiness_for_storage_trouble", lambda state: "")
    return Cli(tmp_path, machines())


def status(cluster: Cli, *options: str) -> Result:
    result = cluster.run("status", *options)
    assert result.code == 0, result.err
    return result


def test_it_says_that_remedies_are_paused_by_whom_and_why(cluster: Cli) -> None:
    assert "paused" not in status(cluster).out
    assert status(cluster, "-o", "json").document["paused"] == []
    assert cluster.run("pause", "--for", "1h", "--why", "network works").code == 0
    said = status(cluster).out
    assert "Remedies are paused: default until 2027-01-15T09:00:00Z by " in said
    assert " (network works). End it: remuda " in said
    (pause,) = status(cluster, "-o", "json").document["paused"]
    assert (pause["policy"], pause["message"], pause["until"]) == ("default", "network works", "2027-01-15T09:00:00Z")
    assert cluster.run("unpause").code == 0
    assert "paused" not in status(cluster).out


def test_a_pause_that_is_over_is_not_shown(cluster: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.run("pause", "--for", "1s").code == 0
    assert "Remedies are paused" in status(cluster).out
    monkeypatch.setattr("tests.unit.cli.scenes.NOW", 1_800_000_002.0)
    assert "paused" not in status(cluster).out

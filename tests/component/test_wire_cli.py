"""`remuda status|kubectl|backup|restore` without a cluster, and the kubectl they start with one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from remuda.cli.app import main
from remuda.runtime.state_dir import StateDir


def test_status_says_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state", str(tmp_path), "status"]) == 1
    assert "No cluster is running" in capsys.readouterr().out
    assert main(["--state", str(tmp_path), "status", "-o", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["running"], said["state"]) == (False, str(tmp_path))
    assert (said["cluster"], said["chosenBy"]) == ("embedded", f"state directory {tmp_path}")


def test_kubectl_needs_a_running_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state", str(tmp_path), "kubectl", "--", "get", "pods"]) == 2
    assert "ClusterNotRunning" in capsys.readouterr().err


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.prepare()
    state.kubeconfig.write_text("{}")
    return state


def test_kubectl_gets_the_kubeconfig_and_the_words(
    state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my-kubectl"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    started: list[tuple[str, list[str], str]] = []

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        started.append((path, arguments, environment["KUBECONFIG"]))

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("KUBECTL", str(program))
    with state.locked():
        main(["--state", str(state.path), "-n", "team", "kubectl", "--", "get", "pods", "-o", "wide"])
    words = ["kubectl", "--namespace", "team", "get", "pods", "-o", "wide"]
    assert started == [(str(program), words, str(state.kubeconfig))]


def test_no_kubectl_is_said(
    state: StateDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECTL", "no-such-program")
    with state.locked():
        assert main(["--state", str(state.path), "kubectl", "version"]) == 2
    assert "KubectlNotFound" in capsys.readouterr().err


def test_backup_of_nothing_and_restore_of_nonsense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--state", str(tmp_path), "backup", str(tmp_path / "b.tgz")]) == 2
    assert "NothingToBackUp" in capsys.readouterr().err
    (tmp_path / "n").write_text("nonsense")
    assert main(["--state", str(tmp_path / "s"), "restore", str(tmp_path / "n")]) == 2
    assert "NotABackup" in capsys.readouterr().err

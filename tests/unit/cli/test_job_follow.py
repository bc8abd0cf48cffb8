"""Following a job: on a terminal redrawn in place, elsewhere a line per transition."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from remuda.api.training import TrainingJob
from remuda.cli.errors import Failed
from remuda.cli.jobs.job_follow import follow_job
from remuda.cli.session import Session
from remuda.kube.cluster import Cluster
from remuda.runtime.state_dir import StateDir
from tests.builders.waiting import PATIENCE_S
from tests.unit.cli.scenes import NOW, Cli, a_job, machines, pods


def test_a_terminal_is_redrawn_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    cluster = Cli(tmp_path, [*machines(), *pods(), a_job(phase="Succeeded", reason="AllRanksDone", message="Done.")])
    result = cluster.run("job", "hello", "-w", tty=True)
    assert result.code == 0
    assert "AllRanksDone: Done." in result.out
    assert "\x1b[" in result.out
    assert "hello attempt 2 Succeeded -" not in result.out, "that is the form for pipes"


async def set_status(cluster: Cluster, **changes: object) -> None:
    patch = {"status": {name: msgspec.to_builtins(value) for name, value in changes.items()}}
    await cluster.patch(TrainingJob, "hello", patch, "default", subresource="status")


async def printed(capsys: pytest.CaptureFixture[str], word: str) -> list[str]:
    """What has been printed once a line has that word."""
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while not any(word in line for line in lines):
            await asyncio.sleep(0)
            lines += capsys.readouterr().out.splitlines()
    return lines


async def test_each_transition_is_a_line_until_the_job_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Cli(tmp_path, [*machines(), *pods(), a_job(recoveries=[], attempt=1)])
    async with scene.connect(StateDir(tmp_path)) as cluster:
        following = asyncio.create_task(follow_job(_session(scene), cluster, "hello"))
        lines: list[str] = []
        for phase, attempt in (("Running", 1), ("Recovering", 2), ("Failed", 2)):
            await set_status(cluster, phase=phase, attempt=attempt, reason=f"{phase}Reason", message="Words.")
            lines += await printed(capsys, f"{phase}Reason")
        assert await following == 1
    assert [line.split(" ", 1)[1] for line in lines][-2:] == [
        "hello attempt 2 Recovering - RecoveringReason: Words.",
        "hello attempt 2 Failed - FailedReason: Words.",
    ]


async def test_a_job_that_is_deleted_meanwhile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Cli(tmp_path, [*machines(), a_job()])
    async with scene.connect(StateDir(tmp_path)) as cluster:
        following = asyncio.create_task(follow_job(_session(scene), cluster, "hello"))
        await printed(capsys, "Running")
        await cluster.delete(TrainingJob, "hello", "default")
        with pytest.raises(Failed, match="JobDeleted"):
            await following


async def test_a_cluster_that_is_stopped_meanwhile(tmp_path: Path) -> None:
    """Without the lock nobody serves the directory any more."""
    scene = Cli(tmp_path, [*machines(), a_job()])
    async with scene.connect(StateDir(tmp_path)) as cluster:
        with pytest.raises(Failed, match="ClusterStopped"):
            await follow_job(Session(tmp_path), cluster, "hello")


def _session(scene: Cli) -> Session:
    return Session(scene.state, connect=scene.connect, clock=lambda: NOW)

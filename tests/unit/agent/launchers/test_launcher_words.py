"""For how long the agent lets launchers run, as it tells them: with the moment, so that a word may wait unread."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from remuda.agent.launchers.launcher_registry import LauncherRegistry
from remuda.api.devices import LauncherReport
from remuda.api.training import TrainingJob
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.informer import Informer
from remuda.launch.protocol import ToLauncher, Vouch
from remuda.link.progress_board import ProgressBoard
from tests.unit.agent.scene import NODE, NOW, a_launcher


class Registry(LauncherRegistry):
    """On a clock of its own, as the nodes of `up --split` are: it stands still while the machine sleeps."""

    def __init__(self, root: Path) -> None:
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: NOW, new_uid=lambda: "uid")
        super().__init__(
            NODE,
            str(root),
            jobs=Informer(cluster, TrainingJob),
            board=ProgressBoard(),
            clock=lambda: NOW,
            env_of=lambda job, member, gpus: {},
            rejoin_s=5.0,
            announce=lambda: None,
            elapsed=lambda: 50.0,
            manager_socket="/state/link.sock",
        )
        self.said: list[tuple[str, ToLauncher]] = []
        self.links.send = lambda uid, message: self.said.append((uid, message))  # type: ignore[method-assign]


@pytest.mark.parametrize(("seconds", "told"), [(7.25, 7.25), (math.inf, None)])
def test_a_word_carries_the_moment_by_the_clock_that_launchers_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, told: float | None
) -> None:
    registry = Registry(tmp_path)
    registry.welcome(a_launcher(connected=True, state="running", attempt=1))
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {time.CLOCK_BOOTTIME: 981.5}[clock])
    registry.vouch(seconds)
    assert registry.said == [("a", Vouch(told, "/state/link.sock", 981.5))]


@pytest.mark.parametrize("is_shared", [False, True])
def test_reports_say_whether_all_nodes_have_one_directory(tmp_path: Path, is_shared: bool) -> None:
    registry = Registry(tmp_path)
    registry.has_shared_root = is_shared
    report = LauncherReport("pod-a", "a", "running", 1)
    registry.welcome(a_launcher(connected=True, state="running", attempt=1, report=report))
    assert [report.shared for report in registry.reports()] == [is_shared]

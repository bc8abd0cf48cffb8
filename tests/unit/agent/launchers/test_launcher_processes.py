"""Whom a drill on a launcher hits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from remuda.agent.launchers.launcher_processes import (
    LauncherProcess,
    launcher_process_behind_socket,
    signal_launcher_process,
    signal_user_process,
)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_the_kernel_names_who_dialled() -> None:
    here, there = socket.socketpair()
    with here, there:
        found = launcher_process_behind_socket(here)
    assert found.pid == os.getpid()
    assert found.started > 0


def test_a_later_process_of_the_same_number_is_not_meant(other: subprocess.Popen[bytes]) -> None:
    earlier = LauncherProcess(other.pid, 1)
    for send in (signal_launcher_process, signal_user_process):
        with pytest.raises(ProcessLookupError):
            send(earlier, signal.SIGKILL)
    assert other.poll() is None


@pytest.mark.parametrize("process", [LauncherProcess(), LauncherProcess(os.getpid(), 1), LauncherProcess(1, -1)])
def test_nobody_is_hit_whom_one_cannot_see(process: LauncherProcess) -> None:
    with pytest.raises(ProcessLookupError):
        signal_launcher_process(process, signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        signal_user_process(process, signal.SIGKILL)


def test_children_that_lead_no_group_are_not_the_users_command() -> None:
    """As a scan of checkpoints."""
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True)
    assert shell.stdout is not None
    shell.stdout.readline()
    try:
        with open(f"/proc/{shell.pid}/stat", "rb") as file:
            started = int(file.read().rsplit(b")", 1)[1].split()[19])
        assert not signal_user_process(LauncherProcess(shell.pid, started), signal.SIGKILL)
        signal_launcher_process(LauncherProcess(shell.pid, started), signal.SIGKILL)
        assert shell.wait() == -signal.SIGKILL
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.stdout.close()

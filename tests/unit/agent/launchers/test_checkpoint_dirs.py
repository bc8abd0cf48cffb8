"""A checkpoint directory that does not answer holds up nobody but the launchers that wait for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from remuda.agent.launchers import checkpoint_dirs
from remuda.agent.launchers.checkpoint_dirs import CheckpointDirs
from tests.builders.waiting import PATIENCE_S, until

ATTEMPTS = 100  # more than any pool of threads has


async def test_a_directory_that_hangs_takes_nobody_elses_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, back, looks = str(tmp_path / "away"), threading.Event(), list[str]()
    look_at = checkpoint_dirs.launcher_checkpoint_dir_fault

    def hang(directory: str) -> str:
        looks.append(directory)
        if directory == away:
            back.wait(PATIENCE_S)
        return look_at(directory)

    monkeypatch.setattr(checkpoint_dirs, "launcher_checkpoint_dir_fault", hang)
    answers = list[int]()
    dirs = CheckpointDirs(lambda: answers.append(len(looks)))
    try:
        for attempt in range(ATTEMPTS):
            dirs.look(away, attempt)
        dirs.look(str(tmp_path / "well"), 1)

        async def is_well() -> bool:
            return dirs.fault(str(tmp_path / "well"), 1) == ""

        await until("the directory that answers", is_well, 10.0)
        async with asyncio.timeout(10.0):
            assert await asyncio.to_thread(lambda: "others work") == "others work"
        assert (looks.count(away), dirs.fault(away, 0)) == (1, None)
    finally:
        back.set()

    async def is_back() -> bool:
        dirs.look(away, ATTEMPTS - 1)  # as the launchers that wait do, each time somebody has answered
        return dirs.fault(away, ATTEMPTS - 1) == ""

    await until("the directory that is back", is_back)
    assert dirs.fault(away, 0) == ""
    assert looks.count(away) == 2
    dirs.close()

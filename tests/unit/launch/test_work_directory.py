"""Where a launcher keeps its progress, and what its child may put there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from remuda.launch.progress_inbox import ProgressInbox
from remuda.launch.work_directory import launcher_work_directory, remove_launcher_work_directory


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory as a read-only mount looks to anybody, root too."""
    path = tmp_path / "alloc"
    path.mkdir()
    may = os.access
    monkeypatch.setattr(os, "access", lambda at, how: str(at) != str(path) and may(at, how))
    return str(path)


def test_the_allocation_s_directory_where_it_can_be_written(tmp_path: Path) -> None:
    assert launcher_work_directory(str(tmp_path)) == str(tmp_path)
    remove_launcher_work_directory(str(tmp_path), str(tmp_path))
    assert tmp_path.exists()


def test_a_directory_of_its_own_where_not(tmp_path: Path, read_only: str) -> None:
    found = launcher_work_directory(read_only, (str(tmp_path / "missing"), str(tmp_path)))
    assert Path(found).parent == tmp_path
    assert Path(found).stat().st_mode & 0o777 == 0o777  # its child may be another user
    (Path(found) / "progress.json").write_text("{}")
    assert launcher_work_directory(read_only, (str(tmp_path),)) != found
    remove_launcher_work_directory(found, read_only)
    assert not Path(found).exists()


def test_where_nothing_can_be_written_the_log_says_so(tmp_path: Path, read_only: str) -> None:
    assert launcher_work_directory(read_only, (str(tmp_path / "missing"),)) == read_only


@pytest.mark.parametrize("trap", ["fifo", "device", "directory"])
def test_what_is_no_file_is_no_progress_and_nothing_waits_for_it(tmp_path: Path, trap: str) -> None:
    inbox = ProgressInbox(str(tmp_path), lambda words: None)
    inbox.open(0.0)
    path = tmp_path / "progress.json"
    if trap == "fifo":
        os.mkfifo(path)
    elif trap == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert inbox.read_file(1.0) == []
    os.rename(path, tmp_path / "away")
    path.write_text(json.dumps({"step": 3}))
    assert [report.step for report in inbox.read_file(2.0)] == [3]
    inbox._socket.close()

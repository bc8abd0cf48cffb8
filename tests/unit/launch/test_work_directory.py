"""Where a launcher keeps its progress, and what its child may put there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from remuda.launch import work_directory
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


@pytest.mark.parametrize(("is_volume", "found"), [(False, "tmp"), (True, "shm")])
def test_a_volume_that_may_hang_comes_last(
    tmp_path: Path, read_only: str, monkeypatch: pytest.MonkeyPatch, is_volume: bool, found: str
) -> None:
    places = [str(tmp_path / name) for name in ("tmp", "shm")]
    for place in places:
        os.mkdir(place)
    devices = {"/": 1, places[0]: 2 if is_volume else 1, places[1]: 3}
    monkeypatch.setattr(work_directory, "IN_MEMORY", places[1])
    monkeypatch.setattr(os, "stat", lambda path, **_: SimpleNamespace(st_dev=devices[path]))
    made = launcher_work_directory(read_only, tuple(places))
    monkeypatch.undo()
    assert Path(made).parent.name == found


def test_where_nothing_can_be_written_the_log_says_so(tmp_path: Path, read_only: str) -> None:
    assert launcher_work_directory(read_only, (str(tmp_path / "missing"),)) == read_only


@pytest.mark.parametrize("trap", ["fifo", "device", "directory", "link"])
def test_what_is_no_file_is_no_progress_and_nothing_waits_for_it(tmp_path: Path, trap: str) -> None:
    inbox = ProgressInbox(str(tmp_path), lambda words: None)
    inbox.open(0.0)
    path = tmp_path / "progress.json"
    if trap == "fifo":
        os.mkfifo(path)
    elif trap == "device":
        path.symlink_to("/dev/zero")
    elif trap == "link":  # to a volume that may hang
        (tmp_path / "elsewhere").write_text(json.dumps({"step": 9}))
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    assert inbox.read_file(1.0) == []
    os.rename(path, tmp_path / "away")
    path.write_text(json.dumps({"step": 3}))
    assert [report.step for report in inbox.read_file(2.0)] == [3]
    inbox._socket.close()

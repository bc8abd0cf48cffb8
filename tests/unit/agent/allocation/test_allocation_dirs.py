"""A directory per allocation: wiped for a new owner, removed whatever is in it, and nothing in it followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remuda.agent.allocation.allocation_dirs import FEW, TRASH, AllocationDirs
from tests.builders.waiting import wait_until


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_owner_finds_it_empty_and_others_of_the_machine_do_not_get_near(tmp_path: Path) -> None:
    dirs = AllocationDirs(str(tmp_path / "alloc"), shared=False)
    dirs.make("gpu-0")
    (dirs.path("gpu-0") / "progress.json").write_text("{}")
    dirs.make("gpu-0")
    assert os.listdir(dirs.path("gpu-0")) == []
    assert (mode(tmp_path / "alloc"), mode(dirs.path("gpu-0"))) == (0o700, 0o700)


def test_containers_of_any_user_can_enter_and_none_can_write(tmp_path: Path) -> None:
    dirs = AllocationDirs(str(tmp_path / "alloc"), shared=True)
    dirs.make("gpu-0")
    assert mode(dirs.path("gpu-0")) == 0o755
    assert dirs.is_ours_alone("gpu-0")


@pytest.mark.parametrize(("before", "after", "ours"), [(0o700, 0o755, True), (0o777, 0o777, False)])
def test_a_kubelet_s_directory_is_opened_and_an_old_agent_s_stays_as_its_pod_needs_it(
    tmp_path: Path, before: int, after: int, ours: bool
) -> None:
    (tmp_path / "pod-a").mkdir()
    (tmp_path / "pod-a").chmod(before)
    dirs = AllocationDirs(str(tmp_path), shared=True)
    dirs.let_in("pod-a")
    assert mode(tmp_path / "pod-a") == after
    assert dirs.is_ours_alone("pod-a") is ours


def test_a_link_in_its_place_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "alloc").mkdir()
    (tmp_path / "alloc" / "gpu-0").symlink_to(tmp_path / "elsewhere")
    dirs = AllocationDirs(str(tmp_path / "alloc"), shared=True)
    assert not dirs.has("gpu-0")
    assert dirs.names() == []
    with pytest.raises(OSError, match="gpu-0"):
        dirs.let_in("gpu-0")
    assert mode(tmp_path / "elsewhere") == 0o700


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    dirs = AllocationDirs(str(tmp_path / "alloc"), shared=True)
    dirs.remove("gpu-0")
    dirs.make("gpu-0")
    dirs.remove("gpu-0")
    dirs.remove("gpu-0")
    assert os.listdir(tmp_path / "alloc") == []


def test_whatever_a_pod_left_goes_and_nothing_it_points_at(tmp_path: Path) -> None:
    dirs = AllocationDirs(str(tmp_path / "alloc"), shared=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    dirs.make("gpu-0")
    inside = dirs.path("gpu-0")
    for number in range(FEW + 1):
        (inside / str(number)).write_text("")
    at = os.open(inside, os.O_RDONLY)
    for _ in range(1500):  # deeper than descriptors or recursion would go
        os.mkdir("deep", dir_fd=at)
        below = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.symlink(tmp_path / "precious", "link", dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    dirs.remove("gpu-0")
    assert dirs.names() == []
    wait_until("the trash to be empty", lambda: not os.listdir(tmp_path / "alloc" / TRASH))
    assert (tmp_path / "precious" / "file").read_text() == "x"

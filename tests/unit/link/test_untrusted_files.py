"""Reading what somebody hostile put there: a small regular file with one name, or an error, at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from remuda.link.untrusted_files import (
    UnfitFile,
    read_untrusted_end,
    read_untrusted_file,
    remove_untrusted_trees,
    untrusted_directory,
)

LIMIT = 100


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def a_hard_link(path: Path) -> None:
    (path.parent / "other").write_text("secret")
    os.link(path.parent / "other", path)


def a_huge_file(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


TRAPS: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "fifo": os.mkfifo,
    "socket": a_socket,
    "directory": os.mkdir,
    "hard link": a_hard_link,
    "too long": lambda path: path.write_bytes(b"x" * (LIMIT + 1)),
    "huge": a_huge_file,
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_is_an_error_and_nothing_waits(tmp_path: Path, trap: str) -> None:
    TRAPS[trap](tmp_path / "file")
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the trap
        read_untrusted_file(tmp_path, "file", LIMIT)


@pytest.mark.parametrize("path", ["../file", "/etc/hostname", "a/../../file"])
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    with pytest.raises(UnfitFile, match="leads out"):
        read_untrusted_file(tmp_path, path, LIMIT)


def test_no_directory_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("words")
    (tmp_path / "link").symlink_to("real")
    assert read_untrusted_file(tmp_path, "real/file", LIMIT) == b"words"
    with pytest.raises(NotADirectoryError):
        read_untrusted_file(tmp_path, "link/file", LIMIT)
    assert read_untrusted_file(tmp_path / "link", "file", LIMIT) == b"words"  # the root itself is the caller's


def test_a_directory_that_is_swapped_for_a_link_after_it_was_opened_stays_the_one_that_was_opened(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "victim").mkdir()
    with untrusted_directory(tmp_path, "a") as fd:
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").symlink_to("victim")
        os.mkdir("made", dir_fd=fd)
    assert os.listdir(tmp_path / "victim") == []


def test_the_end_of_a_file_of_any_length(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    os.truncate(tmp_path / "log", 1 << 40)
    with (tmp_path / "log").open("ab") as file:
        file.write(b"last words")
    assert read_untrusted_end(tmp_path, "log", 10) == b"last words"
    assert read_untrusted_end(tmp_path, "log", 12) == b"\0\0last words"


def test_trash_is_emptied_and_what_links_point_at_is_not(tmp_path: Path) -> None:
    trash, kept = tmp_path / "trash", tmp_path / "kept"
    (trash / "a" / "b" / "c").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").write_text("x")
    (trash / "a" / "link").symlink_to(kept)
    (trash / "link").symlink_to(kept)
    os.mkfifo(trash / "a" / "b" / "fifo")
    remove_untrusted_trees(trash)
    assert os.listdir(trash) == []
    assert (kept / "file").read_text() == "x"

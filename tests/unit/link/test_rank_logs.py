"""Logs split by the launcher's marker."""

from __future__ import annotations

import os
from pathlib import Path

from remuda.link.rank_logs import LogSection, RankLogIndex, find_log_sections, rank_log_path, read_rank_log_section
from tests.builders.pods import a_pod


def marker(attempt: int, rank: object, pod: str, time: float = 1.5) -> str:
    return f"--- remuda attempt={attempt} rank={rank} host={pod} time={time} ---\n"


def write(root: Path, pod: str, text: str, gang: str = "job", uid: str = "1") -> Path:
    path = root / "default" / f"{gang}_{uid}" / f"{pod}_uid" / "main.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    return path


def text_of(section: LogSection) -> str:
    return b"".join(read_rank_log_section(section)).decode()


def test_a_gang_pod_logs_under_its_gang_and_a_plain_pod_under_its_own_name(tmp_path: Path) -> None:
    owner = {"apiVersion": "remuda.dev/v1alpha1", "kind": "TrainingJob", "name": "job", "uid": "j", "controller": True}
    place = tmp_path / "default"
    worker = a_pod("w-0", gang="job", meta={"ownerReferences": [owner]})
    assert rank_log_path(tmp_path, worker, "main") == place / "job_j" / "w-0_uid-1" / "main.log"
    assert rank_log_path(tmp_path, a_pod("solo"), "main") == place / "solo_uid-1" / "solo_uid-1" / "main.log"


def test_a_job_does_not_show_what_an_earlier_one_of_its_name_wrote(tmp_path: Path) -> None:
    write(tmp_path, "w-0", marker(1, 0, "w-0") + "old\n", uid="old")
    write(tmp_path, "w-0", marker(1, 0, "w-0") + "new\n", uid="new")
    assert [text_of(s) for s in find_log_sections(tmp_path, "default", "job", "new")] == ["new\n"]
    assert find_log_sections(tmp_path, "default", "job", "newest") == []
    os.utime(tmp_path / "default" / "job_old", (1, 1))
    assert [text_of(s) for s in find_log_sections(tmp_path, "default", "job")] == ["new\n"], "the one written to last"


def test_sections_go_on_over_rotated_files_and_lose_only_what_is_gone(tmp_path: Path) -> None:
    path = write(tmp_path, "w-0", marker(1, 0, "w-0") + "one\n")
    index = RankLogIndex(tmp_path, "default", "job")
    assert [text_of(s) for s in index.refresh()] == ["one\n"]
    first = path.with_name(f"main.log.{0:020d}")
    path.rename(first)
    write(tmp_path, "w-0", "more\n" + marker(2, 0, "w-0") + "two\n")
    second = path.with_name(f"main.log.{first.stat().st_size:020d}")
    for found in (index.refresh(), find_log_sections(tmp_path, "default", "job")):
        assert [(s.attempt, text_of(s)) for s in found] == [(1, "one\nmore\n"), (2, "two\n")]
    path.rename(second)
    write(tmp_path, "w-0", "end\n")
    first.unlink()
    assert [(s.attempt, text_of(s)) for s in index.refresh()] == [(1, "more\n"), (2, "two\nend\n")]


def test_sections_of_a_gang_by_attempt_and_rank(tmp_path: Path) -> None:
    write(tmp_path, "w-0", marker(1, 0, "w-0") + "zero one\n" + marker(2, 0, "w-0") + "zero two\n")
    write(tmp_path, "w-1", marker(1, 1, "w-1") + "one one\n")
    write(tmp_path, "w-8", "launcher waits\n" + marker(2, 1, "w-8") + "one two\n")
    write(tmp_path, "x-0", marker(1, 0, "x-0") + "other job\n", gang="other")
    found = find_log_sections(tmp_path, "default", "job")
    assert [(s.attempt, s.rank, s.pod, text_of(s)) for s in found] == [
        (0, None, "w-8", "launcher waits\n"),
        (1, 0, "w-0", "zero one\n"),
        (1, 1, "w-1", "one one\n"),
        (2, 0, "w-0", "zero two\n"),
        (2, 1, "w-8", "one two\n"),
    ]


def test_a_log_without_markers_is_one_section(tmp_path: Path) -> None:
    write(tmp_path, "solo", "a\nb\n", gang="solo")
    (section,) = find_log_sections(tmp_path, "default", "solo")
    assert (section.attempt, section.rank, text_of(section)) == (0, None, "a\nb\n")


def test_a_marker_behind_an_unfinished_line_still_counts(tmp_path: Path) -> None:
    write(tmp_path, "w-0", marker(1, 0, "w-0") + "loss=0.3" + marker(2, 0, "w-0") + "go\n")
    assert [text_of(s) for s in find_log_sections(tmp_path, "default", "job")] == ["loss=0.3", "go\n"]


def test_a_quoted_marker_of_another_pod_is_text(tmp_path: Path) -> None:
    write(tmp_path, "w-0", marker(1, 0, "w-0") + marker(5, 3, "w-3") + "end\n")
    (section,) = find_log_sections(tmp_path, "default", "job")
    assert text_of(section) == marker(5, 3, "w-3") + "end\n"


def test_an_attempt_that_said_nothing_is_there(tmp_path: Path) -> None:
    write(tmp_path, "w-0", marker(1, 0, "w-0") + marker(2, 0, "w-0"))
    found = find_log_sections(tmp_path, "default", "job")
    assert [(s.attempt, s.end - s.start) for s in found] == [(1, 0), (2, 0)]


def test_nothing_there(tmp_path: Path) -> None:
    assert find_log_sections(tmp_path, "default", "job") == []


def test_a_marker_cut_in_half_between_two_looks_is_found(tmp_path: Path) -> None:
    line = marker(2, 0, "w-0")
    for cut in range(1, len(line)):
        root = tmp_path / str(cut)
        index = RankLogIndex(root, "default", "job")
        write(root, "w-0", marker(1, 0, "w-0") + "one\n" + line[:cut])
        index.refresh()
        write(root, "w-0", line[cut:] + "two\n")
        assert [text_of(s) for s in index.refresh()] == ["one\n", "two\n"], cut
